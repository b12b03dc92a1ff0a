//! The schema's part about the binary upgrade.

use std::time::Duration;

use super::Upgrade;
use super::file::{GIB, MIB, secs};
use super::reader::Section;
use super::values as kind;

const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn upgrade(section: &mut Section<'_, '_>) -> Upgrade {
    Upgrade {
        start_timeout: section.value("start_timeout", kind::duration(secs(1), secs(600)), secs(60)),
        drain_timeout: section.value("drain_timeout", kind::duration(Duration::ZERO, 24 * HOUR), HOUR),
        max_state_bytes: section.value("max_state_bytes", kind::size(0, 4 * GIB), 64 * MIB),
    }
}
