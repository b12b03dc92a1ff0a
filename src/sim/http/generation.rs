//! Runs a request through the engine and sends what comes out, streamed or whole.

use pingora_core::Result;

use super::body::Body;
use super::connection::After;
use super::exchange::{self, Exchange, busy};
use super::plan::{self, Plan, Planned};
use super::reply::{self, Reply};
use crate::sim::answer::{self, Answer, CORE_DIED, STOPPING, Usage};
use crate::sim::driver::Ticket;
use crate::sim::endpoint::Endpoint;
use crate::sim::engine::{Rejected, Request};
use crate::sim::fault::Fault;
use crate::sim::process::{InFlight, Outcome};

/// How an answer ended that was not given up by the client.
#[derive(Clone, Copy)]
enum End {
    Whole,
    Reset,
    CoreDied,
}

/// Answers a prompt.
pub(super) async fn run(
    mut exchange: Exchange<'_>,
    endpoint: Endpoint,
    body: &Body,
    fault: Option<Fault>,
    mut in_flight: InFlight,
) -> Result<After> {
    let reply = match plan::plan(&exchange, endpoint, body).await {
        Err(reply) => reply,
        Ok(Plan::Immediate(reply)) => {
            exchange.send(reply).await?;
            in_flight.end(Outcome::Served);
            return Ok(After::Reuse);
        }
        Ok(Plan::Engine(planned)) if fault == Some(Fault::StallStream) => {
            in_flight.stall();
            if planned.is_streamed {
                reply::open_stream(exchange.session, &exchange.marks).await?;
            }
            return exchange.hang().await;
        }
        Ok(Plan::Engine(planned)) if fault == Some(Fault::Sigterm) => {
            return give_up(exchange, *planned, in_flight).await;
        }
        Ok(Plan::Engine(planned)) => match exchange.process.driver.submit(planned.request.clone()) {
            Ok(ticket) => return generate(exchange, *planned, ticket, fault, in_flight).await,
            Err(Rejected::QueueFull) => busy(endpoint),
            Err(Rejected::TooLong { limit_tokens }) => {
                plan::too_long(endpoint, u64::from(planned.request.prompt_tokens), 0, limit_tokens)
            }
        },
    };
    exchange.send(reply).await?;
    in_flight.end(Outcome::Rejected);
    Ok(After::Reuse)
}

/// Answers as an engine does that was told to stop.
async fn give_up(mut exchange: Exchange<'_>, planned: Planned, in_flight: InFlight) -> Result<After> {
    let mut answer = planned.answer;
    match answer.endpoint {
        Endpoint::Completions if planned.is_streamed => {
            reply::open_stream(exchange.session, &exchange.marks).await?;
            exchange.session.write_body(answer::DONE.as_bytes()).await?;
            exchange.session.finish_body().await?;
        }
        Endpoint::Completions => {
            answer.abort();
            exchange.send(Reply::json(answer.plain())).await?;
        }
        endpoint => exchange.send(Reply::error(endpoint, 500, "InternalServerError", STOPPING, None)).await?,
    }
    in_flight.end(Outcome::Faulted);
    Ok(After::Reuse)
}

/// What the client gets to see of a fault, and when.
#[derive(Clone, Copy)]
struct Cut {
    after_tokens: u32,
    end: End,
}

/// Sends the answer of a request that is in the engine.
async fn generate(
    mut exchange: Exchange<'_>,
    planned: Planned,
    mut ticket: Ticket,
    fault: Option<Fault>,
    in_flight: InFlight,
) -> Result<After> {
    let cut = match fault {
        Some(Fault::ResetMidStream { after_tokens }) => Some(Cut { after_tokens, end: End::Reset }),
        Some(Fault::ErrorMidStream { after_tokens }) => Some(Cut { after_tokens, end: End::CoreDied }),
        _ => None,
    };
    let end = if planned.is_streamed {
        stream(&mut exchange, planned, &mut ticket, cut).await?
    } else {
        plain(&mut exchange, planned, &mut ticket, cut).await?
    };
    in_flight.end(if matches!(end, End::Whole) { Outcome::Served } else { Outcome::Faulted });
    Ok(if matches!(end, End::Reset) { After::Reset } else { After::Reuse })
}

async fn stream(exchange: &mut Exchange<'_>, planned: Planned, ticket: &mut Ticket, cut: Option<Cut>) -> Result<End> {
    reply::open_stream(exchange.session, &exchange.marks).await?;
    let (mut answer, mut events, mut sent) = (planned.answer, Vec::new(), 0);
    answer.prelude(&mut events);
    let mut end = End::Whole;
    loop {
        let progress = ticket.progress();
        count(&mut answer.usage, &planned.request, planned.block_tokens, progress.cached_tokens);
        let until = progress.generated.min(cut.map_or(u32::MAX, |cut| cut.after_tokens));
        if sent == 0 && until > 0 {
            answer.opening(&mut events);
        }
        (sent..until).for_each(|index| answer.token(index, &mut events));
        sent = until;
        let cut_now = cut.filter(|cut| sent >= cut.after_tokens);
        match cut_now {
            Some(Cut { end: End::CoreDied, .. }) => Answer::core_died(&mut events),
            None if progress.is_finished => answer.closing(&mut events),
            _ => {}
        }
        for event in events.drain(..) {
            exchange.session.write_body(event.as_bytes()).await?;
        }
        if let Some(cut) = cut_now {
            end = cut.end;
        }
        if cut_now.is_some() || progress.is_finished {
            break;
        }
        next(exchange, ticket).await?;
    }
    if !matches!(end, End::Reset) {
        exchange.session.finish_body().await?;
    }
    Ok(end)
}

async fn plain(exchange: &mut Exchange<'_>, planned: Planned, ticket: &mut Ticket, cut: Option<Cut>) -> Result<End> {
    let mut answer = planned.answer;
    loop {
        let progress = ticket.progress();
        count(&mut answer.usage, &planned.request, planned.block_tokens, progress.cached_tokens);
        if let Some(cut) = cut.filter(|cut| progress.generated >= cut.after_tokens) {
            if matches!(cut.end, End::CoreDied) {
                exchange.send(Reply::error(answer.endpoint, 500, "InternalServerError", CORE_DIED, None)).await?;
            }
            return Ok(cut.end);
        }
        if progress.is_finished {
            break;
        }
        next(exchange, ticket).await?;
    }
    let body = match answer.endpoint {
        Endpoint::Embeddings => {
            let Answer { id, created, model, usage, .. } = &answer;
            answer::embeddings(id, *created, model, planned.digest, planned.inputs, *usage)
        }
        _ => answer.plain(),
    };
    exchange.send(Reply::json(body)).await?;
    Ok(End::Whole)
}

/// Waits for more tokens; an error if the client goes away first.
async fn next(exchange: &mut Exchange<'_>, ticket: &mut Ticket) -> Result<()> {
    tokio::select! {
        () = ticket.changed() => Ok(()),
        error = exchange::gone(exchange.session) => Err(error),
    }
}

fn count(usage: &mut Usage, request: &Request, block_tokens: u32, cached_tokens: Option<u32>) {
    if let Some(cached_tokens) = cached_tokens {
        let full = request.prompt_tokens / block_tokens * block_tokens;
        usage.cached_tokens = u64::from(cached_tokens);
        usage.created_cache_tokens = u64::from(full.saturating_sub(cached_tokens));
    }
}
