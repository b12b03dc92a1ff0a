//! Faults on demand: what can go wrong with an engine, how often, and when it is over.
//!
//! Faults of requests are a script: each is used up `count` times, in the order in which they were added, and one without
//! a count stays until it is cleared. They strike requests that carry a prompt; `/metrics`, `/health` and the messages with
//! KV events have faults of their own, one at a time, and `/sim/...` always works.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Something that goes wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// New connections are refused and idle ones are closed; requests in flight go on.
    Refuse {
        /// Milliseconds until it ends by itself. Over HTTP this must be given: nobody could ask for the end.
        for_ms: Option<u64>,
    },
    /// The connection is reset after the request's header, before its body is read.
    ResetBeforeBody,
    /// The connection is reset in the middle of the body.
    ResetMidUpload,
    /// The connection is reset after some tokens of a stream; before the answer if it is not streamed.
    ResetMidStream {
        /// Tokens that still come out.
        #[serde(default = "one")]
        after_tokens: u32,
    },
    /// The engine's core dies: a stream gets an error event and ends, a plain answer becomes a 500.
    ErrorMidStream {
        /// Tokens that still come out.
        #[serde(default = "one")]
        after_tokens: u32,
    },
    /// An error status instead of an answer.
    Status {
        /// 400 to 599.
        status: u16,
        /// Answer without having read the body.
        #[serde(default)]
        before_body: bool,
    },
    /// The request is taken and never answered.
    Stall,
    /// Status and headers come at once, then nothing.
    StallStream,
    /// Every step takes `factor` times as long.
    Slow {
        /// Above 0; 1 is the normal speed.
        factor: f64,
    },
    /// No step ends any more: all requests hang, health and metrics answer.
    Freeze,
    /// As vLLM after SIGTERM: requests in flight hang in silence, new ones get 200 and no token (a stream of `[DONE]`
    /// alone, or a completion that ended by `abort`), on other endpoints than completions an error 500. Health and metrics
    /// answer.
    Sigterm,
    /// The process dies and comes back: connections are reset, cache and counters are empty, the start time is new.
    Restart {
        /// Milliseconds in between, in which connections are refused.
        #[serde(default)]
        down_ms: u64,
    },
    /// `/metrics` is taken and never answered.
    MetricsHang,
    /// `/health` gives an error.
    HealthFail {
        /// 400 to 599.
        #[serde(default = "unavailable")]
        status: u16,
    },
    /// A message with KV events gets its number but is not published: a gap, which a replay fills.
    DropKvEvents,
    /// KV events are lost before they get a number: nothing tells that they ever were.
    StopKvEvents,
    /// A message with KV events is published with a payload that cannot be read. In a replay it is whole.
    CorruptKvEvents,
    /// The prefix cache is emptied. Who listens to KV events is told with the next step.
    ClearCache,
    /// The prefix cache is emptied without a word, and KV events start again as from a new process: with number 0 and
    /// other names. Requests and connections go on.
    RestartCache,
}

// === impl Fault ===

impl Fault {
    /// Whether it is a state of the whole engine rather than something that strikes one exchange after the other.
    pub fn is_condition(&self) -> bool {
        let is_cache = matches!(self, Self::ClearCache | Self::RestartCache);
        is_cache
            || matches!(
                self,
                Self::Refuse { .. } | Self::Slow { .. } | Self::Freeze | Self::Sigterm | Self::Restart { .. }
            )
    }

    /// Whether it strikes messages with KV events.
    pub(super) fn is_of_kv_events(&self) -> bool {
        matches!(self, Self::DropKvEvents | Self::StopKvEvents | Self::CorruptKvEvents)
    }
}

fn one() -> u32 {
    1
}

fn unavailable() -> u16 {
    503
}

/// A fault and how many requests it strikes; `None`: until it is cleared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Order {
    /// What.
    #[serde(flatten)]
    pub fault: Fault,
    /// How often.
    pub count: Option<u32>,
}

// === impl Order ===

impl Order {
    /// Reads `{"kind": ..., "count": ...}` with the fields of the kind; the error is for people.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let mut value: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let count = value.as_object_mut().and_then(|fields| fields.remove("count"));
        let count: Option<u32> =
            count.map_or(Ok(None), serde_json::from_value).map_err(|error| format!("count: {error}"))?;
        let fault: Fault = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let is_status = |status: u16| (400..600).contains(&status);
        match fault {
            _ if count.is_some() && fault.is_condition() => {
                Err(String::from("count: this kind lasts until it is cleared, it has no count"))
            }
            Fault::Status { status, .. } | Fault::HealthFail { status } if !is_status(status) => {
                Err(format!("status: {status} is not between 400 and 599"))
            }
            Fault::Slow { factor } if !(factor.is_finite() && factor > 0.0) => {
                Err(format!("factor: {factor} is not above 0"))
            }
            fault => Ok(Self { fault, count }),
        }
    }
}

/// The most faults of requests that wait for their turn.
const MAX_SCRIPT: usize = 64;

/// The faults in force that strike requests.
#[derive(Debug, Default)]
pub(super) struct Faults {
    script: VecDeque<Order>,
    metrics: Option<Order>,
    health: Option<Order>,
}

// === impl Faults ===

impl Faults {
    /// Adds a fault of a request, of `/metrics` or of `/health`; false if the script is full. The other kinds are not
    /// kept here.
    pub(super) fn add(&mut self, order: Order) -> bool {
        match order.fault {
            Fault::MetricsHang => self.metrics = Some(order),
            Fault::HealthFail { .. } => self.health = Some(order),
            _ if self.script.len() >= MAX_SCRIPT => return false,
            _ => self.script.push_back(order),
        }
        true
    }

    /// Forgets them all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The fault that strikes the request that begins now.
    pub(super) fn strike_request(&mut self) -> Option<Fault> {
        let mut first = self.script.pop_front();
        let struck = strike(&mut first);
        if let Some(remaining) = first {
            self.script.push_front(remaining);
        }
        struck
    }

    /// The same for `/metrics`.
    pub(super) fn strike_metrics(&mut self) -> Option<Fault> {
        strike(&mut self.metrics)
    }

    /// The same for `/health`.
    pub(super) fn strike_health(&mut self) -> Option<Fault> {
        strike(&mut self.health)
    }

    /// All of them, for people.
    pub(super) fn list(&self) -> Vec<Order> {
        self.script.iter().chain(&self.metrics).chain(&self.health).cloned().collect()
    }
}

/// Uses a fault once; empties the place when it is used up.
pub(super) fn strike(place: &mut Option<Order>) -> Option<Fault> {
    let order = place.as_mut().filter(|order| order.count != Some(0))?;
    let fault = order.fault.clone();
    if let Some(count) = &mut order.count {
        *count -= 1;
        if *count == 0 {
            *place = None;
        }
    }
    Some(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_played_in_order_and_each_line_as_often_as_it_says() {
        let mut faults = Faults::default();
        for text in [r#"{"kind":"reset_before_body","count":2}"#, r#"{"kind":"status","status":503}"#] {
            assert!(faults.add(Order::from_json(text).unwrap()));
        }
        let struck: Vec<Option<Fault>> = (0..4).map(|_| faults.strike_request()).collect();
        let status = Some(Fault::Status { status: 503, before_body: false });
        assert_eq!(struck, [Some(Fault::ResetBeforeBody), Some(Fault::ResetBeforeBody), status.clone(), status]);
        assert_eq!((faults.strike_metrics(), faults.strike_health()), (None, None), "requests' faults are requests'");
        faults.clear();
        assert_eq!(faults.strike_request(), None);
    }

    #[test]
    fn an_order_that_makes_no_sense_is_refused_with_its_reason() {
        for (text, reason) in [
            ("{", "EOF"),
            (r#"{"kind":"explode"}"#, "unknown variant"),
            (r#"{"kind":"status"}"#, "status"),
            (r#"{"kind":"status","status":200}"#, "between 400 and 599"),
            (r#"{"kind":"slow","factor":0}"#, "above 0"),
            (r#"{"kind":"slow","factor":2,"colour":1}"#, "colour"),
            (r#"{"kind":"stall","count":-1}"#, "count"),
            (r#"{"kind":"slow","factor":2,"count":1}"#, "no count"),
        ] {
            let error = Order::from_json(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn the_script_is_bounded() {
        let mut faults = Faults::default();
        let stall = Order { fault: Fault::Stall, count: Some(1) };
        assert_eq!((0..100).filter(|_| faults.add(stall.clone())).count(), MAX_SCRIPT);
    }
}
