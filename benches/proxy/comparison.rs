//! warmgate beside the routers that are published for the same purpose, round by round: how many times its CPU time they
//! take, and how many times their requests it serves.

use crate::closed::Turn;
use crate::subject::Kind;
use crate::table::Table;
use crate::workload::Workload;

/// What warmgate is meant to reach in both.
const GOAL: f64 = 3.0;

pub(crate) const HEAD: [&str; 7] = [
    "request",
    "connections",
    "router",
    "its CPU / warmgate's",
    "warmgate's requests/s / its",
    "3x in both",
    "engine requests a request",
];

/// A row for each router that was measured, if warmgate was as well.
pub(crate) fn add_rows(table: &mut Table, workload: &Workload, connections: usize, turns: &[Turn<'_>]) {
    let Some(warmgate) = turns.iter().find(|turn| turn.subject.kind == Kind::Assumed) else { return };
    let warmgate = &warmgate.measured;
    for Turn { subject, measured: this, .. } in turns {
        let Kind::Router(router) = subject.kind else { continue };
        let cpu = this.cpu_micros.over(&warmgate.cpu_micros);
        let rate = warmgate.rate.over(&this.rate);
        let is_reached = cpu.median() >= GOAL && rate.median() >= GOAL;
        table.add(vec![
            workload.name.to_owned(),
            connections.to_string(),
            router.name().to_owned(),
            format!("{cpu:.2}"),
            format!("{rate:.2}"),
            if is_reached { "yes" } else { "no" }.to_owned(),
            format!("{:.2}", this.engine_requests),
        ]);
    }
}
