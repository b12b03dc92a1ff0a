//! The schema's part about time.

use std::time::Duration;

use super::file::{DAY, HOUR, MINUTE, millis, secs};
use super::reader::Section;
use super::tree::Node;
use super::values as kind;
use super::{Drain, Timeouts};

/// The pause that ends a stream, unless the file says otherwise: engines that were told to stop hold their streams open
/// and silent, and none that works pauses for that long.
const BETWEEN_TOKENS: Duration = MINUTE;

pub(super) fn timeouts(section: &mut Section<'_, '_>) -> Timeouts {
    let limit = || kind::duration(millis(100), DAY);
    let read = section.value("read", limit(), secs(600));
    Timeouts {
        connect: section.value("connect", kind::duration(millis(10), MINUTE), secs(2)),
        // Where only `read` is given it goes on to be the limit of everything but a pause between tokens.
        first_token: section.value("first_token", limit(), read),
        between_tokens: section.value("between_tokens", limit(), BETWEEN_TOKENS.min(read)),
        read,
        write: section.value("write", kind::duration(millis(100), HOUR), secs(30)),
        total: section.value("total", kind::duration_or_none(millis(100), DAY), None),
    }
}

pub(super) fn drain(section: &mut Section<'_, '_>) -> Drain {
    Drain { deadline: section.value("deadline", deadline(), 5 * MINUTE) }
}

fn deadline() -> kind::Kind<Duration> {
    kind::duration(Duration::ZERO, DAY)
}

/// The deadline of a drain as the file would spell it, from elsewhere.
///
/// # Errors
/// What would be right.
pub fn drain_deadline(text: &str) -> Result<Duration, String> {
    let kind = deadline();
    kind.read(&Node::Text(text.to_owned())).map_err(|_| format!("expected {}", kind.right))
}
