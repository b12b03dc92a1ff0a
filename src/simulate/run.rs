//! One run: a workload, a fleet and a contender, from the first arrival to the last answer.
//!
//! Event-driven: time jumps from one event to the next. Events at one moment happen in the order in which they were
//! planned, so a run is the same for the same seed.

mod faults;
#[cfg(test)]
mod held;
mod waiting;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::fleet::{Fleet, Progress};
use super::outcome::{Outcome, Record, Times};
use super::router::{Look, Routed, Router};
use super::setup::{Contender, Setup};
use super::workload::{Session, Turn, Workload};
use crate::pool::{InFlight, OtherRouters};
use crate::sim::engine::EventKind;
use crate::time::Moment;
#[cfg(test)]
pub(super) use held::run_to_nothing;
use waiting::{Coming, Row, Waiting};

/// Between two readings of each engine's gauges: the proxy's default.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The part of the sessions' starts over which utilization is measured begins here: not while the fleet fills up.
const MEASURED_FROM: f64 = 0.2;

/// Requests between two reports of progress.
const PROGRESS_EVERY: usize = 256;

/// Runs `contender` to the end. `seed` decides ties; `progress` is told now and then how many requests have ended.
pub fn run(workload: &Workload, setup: &Setup, contender: Contender, seed: u64, progress: &dyn Fn(usize)) -> Outcome {
    let mut run = Run::new(workload, setup, contender, seed);
    run.go(progress);
    run.outcome()
}

struct Run<'a> {
    workload: &'a Workload,
    setup: &'a Setup,
    fleet: Fleet,
    routers: Vec<Router>,
    /// Which router a request goes to.
    rng: fastrand::Rng,
    events: BinaryHeap<Reverse<Entry>>,
    planned: u64,
    /// By number; none once it has ended.
    requests: Vec<Option<Request<'a>>>,
    records: Vec<Record>,
    /// Requests that are to come in all.
    total: usize,
    /// When prefill was measured, and how long it had taken.
    measured: Vec<(Moment, Duration)>,
    progress: Vec<Progress>,
    /// By backend: restarts that it is not back from.
    away: Vec<u32>,
    waiting: Waiting,
}

/// Ordered by time, then by number.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: Moment,
    number: u64,
    event: Event,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A turn of a session comes.
    Arrival { session: usize, turn: usize },
    /// Something may happen in an engine.
    Step { backend: usize },
    /// Engines' gauges are read.
    Poll,
    /// Routers tell each other what they have in flight.
    Share,
    /// One of the setup's faults.
    Fault { place: usize },
    /// An engine is back.
    Return { backend: usize },
    /// Utilization is read.
    Measure,
    /// Time has made room, as far as a router can tell.
    Again { router: usize, row: Row },
    /// A request has been deferred for as long as it may.
    Overdue { router: usize, id: u64 },
}

/// A request that has come and has not ended.
struct Request<'a> {
    session: usize,
    turn: usize,
    work: &'a Turn,
    router: usize,
    arrived: Moment,
    alone: f64,
    backend: usize,
    cached_tokens: u32,
    state: State,
}

enum State {
    Pending(Routed),
    Decoding { in_flight: InFlight, since: Moment },
}

// === impl Run ===

impl<'a> Run<'a> {
    fn new(workload: &'a Workload, setup: &'a Setup, contender: Contender, seed: u64) -> Self {
        let router = |place| Router::new(contender, setup, workload.block_tokens, seed.wrapping_add(place));
        let total = workload.requests();
        Self {
            workload,
            setup,
            fleet: Fleet::new(setup.engine, contender.shared_cache(setup)),
            routers: (0..setup.routers as u64).map(router).collect(),
            rng: fastrand::Rng::with_seed(seed),
            events: BinaryHeap::new(),
            planned: 0,
            requests: Vec::with_capacity(total),
            records: Vec::with_capacity(total),
            total,
            measured: Vec::new(),
            progress: Vec::new(),
            away: Vec::new(),
            waiting: Waiting::new(setup.routers),
        }
    }

    /// From the first arrival until every request has ended.
    fn go(&mut self, progress: &dyn Fn(usize)) {
        self.start();
        let (mut reported, mut last) = (0, Moment::ORIGIN);
        while self.records.len() < self.total {
            let Some(Reverse(Entry { at, event, .. })) = self.events.pop() else { break };
            self.happen(event, at);
            self.give_turns(at);
            last = at;
            if self.records.len() >= reported + PROGRESS_EVERY {
                reported = self.records.len();
                progress(reported);
            }
        }
        if self.measured.len() == 1 {
            self.happen(Event::Measure, last);
        }
    }

    fn start(&mut self) {
        (0..self.setup.backends).for_each(|_| self.add_backend());
        let sessions = &self.workload.sessions;
        let started = |start: Duration| start.div_f64(self.setup.speed);
        let arrivals: Vec<Moment> = sessions.iter().map(|session| Moment::at(started(session.start))).collect();
        let last = started(sessions.iter().map(|session| session.start).max().unwrap_or_default());
        for (session, (Session { turns, .. }, &arrival)) in sessions.iter().zip(&arrivals).enumerate() {
            if let Some(first) = turns.first() {
                self.plan(arrival + first.pause, Event::Arrival { session, turn: 0 });
            }
        }
        // Clients of a closed loop start at once and are busy to the end.
        let is_closed = sessions.iter().any(|session| session.turns.iter().skip(1).any(|turn| turn.pause.is_zero()));
        if is_closed {
            self.plan(Moment::ORIGIN, Event::Measure);
        } else {
            self.plan(Moment::at(last.mul_f64(MEASURED_FROM)), Event::Measure);
            self.plan(Moment::at(last), Event::Measure);
        }
        for (place, fault) in self.setup.faults.iter().enumerate() {
            self.plan(Moment::at(fault.at), Event::Fault { place });
        }
        self.plan(Moment::ORIGIN + POLL_INTERVAL, Event::Poll);
        self.plan_sharing(Moment::ORIGIN);
    }

    fn plan(&mut self, at: Moment, event: Event) {
        self.events.push(Reverse(Entry { at, number: self.planned, event }));
        self.planned += 1;
    }

    fn plan_sharing(&mut self, now: Moment) {
        if let Some(interval) = self.setup.sharing.filter(|_| self.routers.len() > 1) {
            self.plan(now + interval, Event::Share);
        }
    }

    fn happen(&mut self, event: Event, now: Moment) {
        match event {
            Event::Arrival { session, turn } => self.arrive(session, turn, now),
            Event::Step { backend } => self.step(backend, now),
            Event::Poll => self.poll(now),
            Event::Share => self.share(now),
            Event::Fault { place } => self.strike(self.setup.faults[place].kind, now),
            Event::Return { backend } => self.come_back(backend),
            Event::Again { router, row } => self.look_again(router, row, now),
            Event::Overdue { router, id } => self.end_deferral(router, id, now),
            Event::Measure => self.measured.push((now, self.fleet.prefill_busy())),
        }
    }

    fn arrive(&mut self, session: usize, turn: usize, now: Moment) {
        let router = if self.routers.len() > 1 { self.rng.usize(..self.routers.len()) } else { 0 };
        let alone = self.alone(&self.workload.sessions[session].turns[turn]);
        self.send(Coming { session, turn, router, arrived: now, alone, tried: None, has_waited: false }, now);
    }

    /// How long the first token would take, in seconds, if the engine that holds most of the prompt did nothing else.
    fn alone(&self, work: &Turn) -> f64 {
        let block_tokens = self.workload.block_tokens;
        let blocks = work.prompt_blocks(block_tokens);
        let matched = self.fleet.engines().iter().map(|engine| engine.matched_blocks(blocks) as u32).max().unwrap_or(0);
        // The block of the last token is always computed.
        let matched = matched.min(work.prompt_tokens.saturating_sub(1) / block_tokens);
        let engine = &self.setup.engine;
        engine.timing.alone(matched * block_tokens.get(), work.prompt_tokens, engine.step_tokens)
    }

    /// Gives a request to a backend, or lets it wait for one.
    fn send(&mut self, coming: Coming, now: Moment) {
        let [full, deferred] = Row::ALL.map(|row| self.line(coming.router, row).seat());
        match self.look(&coming, now) {
            Look::Found(routed) => self.submit(coming, Some(*routed), now),
            Look::Full(outlook) => self.enter(coming, outlook, full, now),
            Look::Deferred(how) => self.defer(coming, how, deferred, now),
            Look::None => self.submit(coming, None, now),
        }
    }

    fn look(&mut self, coming: &Coming, now: Moment) -> Look {
        let Session { turns, key, .. } = &self.workload.sessions[coming.session];
        let key = key.filter(|_| self.setup.session_keys);
        let (router, tried) = (&mut self.routers[coming.router], coming.tried.as_slice());
        let may_be_deferred = self.setup.max_defer.is_some() && !coming.has_waited && tried.is_empty();
        router.route(&turns[coming.turn], key, tried, may_be_deferred, self.fleet.engines(), now)
    }

    fn submit(&mut self, coming: Coming, routed: Option<Routed>, now: Moment) {
        let Coming { session, turn, router, arrived, alone, tried, .. } = coming;
        let work = &self.workload.sessions[session].turns[turn];
        let backend = routed.as_ref().map_or(tried.unwrap_or(0), |routed| routed.decision.index);
        let number = self.requests.len();
        // Where every backend is away, the router tries one nevertheless, and its connection is refused.
        let is_there = routed.is_some() && self.away[backend] == 0;
        let is_taken = is_there && self.fleet.submit(backend, work, number, now).is_ok();
        let Some(routed) = routed.filter(|_| is_taken) else {
            return self.give_up(session, turn, arrived, backend, now);
        };
        let state = State::Pending(routed);
        let request = Request { session, turn, work, router, arrived, alone, backend, cached_tokens: 0, state };
        self.requests.push(Some(request));
        self.wake(backend);
    }

    /// Comes back for an engine's next event.
    fn wake(&mut self, backend: usize) {
        if let Some(at) = self.fleet.next_step(backend) {
            self.plan(at, Event::Step { backend });
        }
    }

    fn step(&mut self, backend: usize, now: Moment) {
        let mut progress = std::mem::take(&mut self.progress);
        self.fleet.advance(backend, now, &mut progress);
        for Progress { number, at, kind } in progress.drain(..) {
            match kind {
                EventKind::Admitted { cached_tokens } => {
                    if let Some(request) = &mut self.requests[number] {
                        request.cached_tokens = cached_tokens;
                    }
                }
                EventKind::Token { index: 0 } => self.first_token(number, at),
                EventKind::Token { .. } => {}
                EventKind::Finished => self.finish(number, at),
            }
        }
        self.progress = progress;
        self.wake(backend);
    }

    fn first_token(&mut self, number: usize, at: Moment) {
        let Some(request) = self.requests[number].take() else { return };
        let router = &self.routers[request.router];
        let state = match request.state {
            State::Pending(routed) => State::Decoding { in_flight: router.first_token(routed, at), since: at },
            decoding @ State::Decoding { .. } => decoding,
        };
        router.stir(request.backend);
        self.requests[number] = Some(Request { state, ..request });
    }

    fn finish(&mut self, number: usize, at: Moment) {
        let Some(request) = self.requests[number].take() else { return };
        let State::Decoding { in_flight, since } = request.state else { return };
        in_flight.finish(at);
        self.routers[request.router].stir(request.backend);
        let seconds = |moment: Moment| moment.since(request.arrived).as_secs_f64();
        self.records.push(Record {
            arrived: request.arrived,
            backend: request.backend,
            blocks: request.work.prompt_blocks(self.workload.block_tokens).len() as u32,
            cached_blocks: request.cached_tokens / self.workload.block_tokens,
            prefill_tokens: request.work.prompt_tokens - request.cached_tokens,
            output_tokens: request.work.output_tokens,
            times: Some(Times { first_token: seconds(since), end: seconds(at), alone: request.alone }),
        });
        self.plan_next(request.session, request.turn, at);
    }

    /// A request that was cut off, or that nobody takes.
    fn give_up(&mut self, session: usize, turn: usize, arrived: Moment, backend: usize, now: Moment) {
        let work = &self.workload.sessions[session].turns[turn];
        self.records.push(Record {
            arrived,
            backend,
            blocks: 0,
            cached_blocks: 0,
            prefill_tokens: 0,
            output_tokens: work.output_tokens,
            times: None,
        });
        self.plan_next(session, turn, now);
    }

    fn plan_next(&mut self, session: usize, turn: usize, now: Moment) {
        if let Some(next) = self.workload.sessions[session].turns.get(turn + 1) {
            self.plan(now + next.pause, Event::Arrival { session, turn: turn + 1 });
        }
    }

    fn poll(&mut self, now: Moment) {
        for (backend, engine) in self.fleet.engines().iter().enumerate() {
            let load = engine.load();
            self.routers.iter_mut().for_each(|router| router.observe(backend, &load, self.setup.engine.kv_blocks, now));
        }
        self.stir_all();
        self.plan(now + POLL_INTERVAL, Event::Poll);
    }

    /// Everyone hears the sum of all others.
    fn share(&mut self, now: Moment) {
        let shares: Vec<Vec<OtherRouters>> = self.routers.iter().map(|router| router.shares(now)).collect();
        let mut totals = vec![OtherRouters::default(); self.fleet.engines().len()];
        for (backend, share) in shares.iter().flat_map(|shares| shares.iter().enumerate()) {
            totals[backend].pending_work += share.pending_work;
            totals[backend].decoding += share.decoding;
            totals[backend].in_flight += share.in_flight;
            totals[backend].prompt_tokens += share.prompt_tokens;
        }
        let without = |(total, own): (&OtherRouters, &OtherRouters)| OtherRouters {
            pending_work: (total.pending_work - own.pending_work).max(0.0),
            decoding: total.decoding - own.decoding,
            in_flight: total.in_flight - own.in_flight,
            prompt_tokens: total.prompt_tokens - own.prompt_tokens,
        };
        for (router, own) in self.routers.iter_mut().zip(&shares) {
            let others: Vec<OtherRouters> = totals.iter().zip(own).map(without).collect();
            router.hear(&others);
        }
        self.plan_sharing(now);
    }

    fn outcome(self) -> Outcome {
        let backends = self.fleet.engines().len();
        let utilization = match self.measured[..] {
            [(from, before), (to, after)] if to > from => {
                (after - before).as_secs_f64() / to.since(from).as_secs_f64() / backends.max(1) as f64
            }
            _ => 0.0,
        };
        Outcome { records: self.records, backends, utilization }
    }
}
