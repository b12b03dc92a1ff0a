//! Before a proxy is measured it has to give what the engine gives.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use memchr::memmem;
use tokio::time::timeout;

use crate::client::Client;
use crate::fleet::Fleet;
use crate::load::{next_number, require_whole};
use crate::message::Message;
use crate::subject::{Kind, Subject};
use crate::workload::Workload;

/// One answer takes much less.
const PATIENCE: Duration = Duration::from_secs(20);

/// Every workload through every proxy, and past it.
pub(crate) async fn check(fleet: &Fleet, workloads: &[Arc<Workload>], subjects: &[Subject]) -> io::Result<()> {
    let mut request = Vec::new();
    for workload in workloads {
        workload.write(next_number(), false, &mut request);
        let mut engine = Client::connect(fleet.engines[0].address).await?;
        let expected = engine.exchange_whole(&request).await?;
        require_whole(workload, &expected)?;
        for subject in subjects.iter().filter(|subject| subject.kind.takes(workload)) {
            workload.write(next_number(), subject.kind == Kind::Exact, &mut request);
            let mut client = Client::connect(subject.address).await?;
            let answer = timeout(PATIENCE, client.exchange_whole(&request)).await;
            let answer = answer.map_err(|_| io::Error::other(format!("{}: no answer", subject.kind.name())))??;
            if answer.status() != 200 || !is_same(subject.kind, &answer, &expected) {
                let (name, workload, line) = (subject.kind.name(), workload.name, answer.first_line());
                return Err(io::Error::other(format!("{name}, {workload}: not the engine's answer: {line}")));
            }
        }
    }
    Ok(())
}

/// Routers write requests anew, so that the engine counts tokens of another prompt; the number has a fixed width.
fn is_same(kind: Kind, answer: &Message, expected: &Message) -> bool {
    let (Some(answer), Some(expected)) = (&answer.body, &expected.body) else { return false };
    let compared = match kind {
        Kind::Router(_) => memmem::find(expected, b"\"usage\"").unwrap_or(expected.len()),
        _ => expected.len(),
    };
    answer.len() == expected.len() && answer[..compared] == expected[..compared]
}
