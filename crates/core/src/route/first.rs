//! First: the first executor by name (XXL-JOB's FIRST). Remembers nothing. Shards are dealt from the first on.

use super::ask::{Choice, RouteRequest};
use super::memory::Memory;

pub(super) fn pick(ask: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    ask.dealt(0).into()
}
