//! GET /v1/models: one list from all pools.
//!
//! With one pool the request is passed through, so that the answer is the engine's own. With several, or for a caller
//! that may use some of the models only, what the backends said when they were last asked (by the control loop; a
//! request causes no side call) is merged: the entries themselves are unchanged, and of two with the same id the first
//! is kept.

use std::collections::HashSet;

use bytes::Bytes;
use http::Method;
use pingora_core::Result;
use pingora_http::ResponseHeader;
use pingora_proxy::Session;

use crate::auth::Caller;
use crate::pool::Snapshot;
use crate::request::decoded;
use crate::state::State;

/// The list, if this request asks for it and it is ours to make.
pub(super) fn list(state: &State, session: &Session, caller: Option<&Caller>) -> Option<Bytes> {
    let header = session.req_header();
    if header.method != Method::GET || decoded(header.uri.path()) != "/v1/models" {
        return None;
    }
    let snapshot = state.snapshot.load();
    let caller = caller.filter(|caller| caller.is_limited());
    (snapshot.pools().len() > 1 || caller.is_some()).then(|| merge(&snapshot, caller))
}

/// Sends the list.
pub(super) async fn reply(session: &mut Session, list: Bytes) -> Result<()> {
    let mut header = ResponseHeader::build(200, Some(2))?;
    header.insert_header(http::header::CONTENT_TYPE, "application/json")?;
    header.insert_header(http::header::CONTENT_LENGTH, list.len())?;
    session.write_response_header(Box::new(header), false).await?;
    session.write_response_body(Some(list), true).await
}

fn merge(snapshot: &Snapshot, caller: Option<&Caller>) -> Bytes {
    let mut seen = HashSet::new();
    let mut list = Vec::from(br#"{"object":"list","data":["#);
    let pools = snapshot.pools().iter().enumerate();
    let listed = pools.flat_map(|(index, pool)| {
        pool.backends.iter().flat_map(|backend| backend.models.iter()).map(move |model| (index, model))
    });
    for (pool, model) in listed {
        // What a backend lists beyond its pool's models would not be sent to it.
        let is_served = snapshot.pool_for(Some(&model.id)) == Some(pool);
        let name = snapshot.pools()[pool].pool.name();
        let is_allowed = caller.is_none_or(|caller| caller.permits(Some(&model.id), name).is_ok());
        if is_served && is_allowed && seen.insert(&model.id) {
            if seen.len() > 1 {
                list.push(b',');
            }
            list.extend_from_slice(model.json.get().as_bytes());
        }
    }
    list.extend_from_slice(b"]}");
    Bytes::from(list)
}
