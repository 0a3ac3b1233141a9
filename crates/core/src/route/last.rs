//! Last: the last executor by name (XXL-JOB's LAST). Remembers nothing. Shards are dealt from the last on, backwards.

use super::ask::{Choice, RouteRequest, nth_wrapping};
use super::memory::Memory;

pub(super) fn pick(ask: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    nth_wrapping(ask.open().rev(), ask.shard_offset()).into()
}
