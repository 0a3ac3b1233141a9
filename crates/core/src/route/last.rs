//! Last: the last executor by name (XXL-JOB's LAST). Remembers nothing. Shards go to the executors in turn, backwards from the last one.

use super::memory::Memory;
use super::request::{Choice, RouteRequest, nth_wrapping};

pub(super) fn pick(request: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    nth_wrapping(request.open().rev(), request.shard_offset()).into()
}
