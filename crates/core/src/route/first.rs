//! First: the first executor by name (XXL-JOB's FIRST). Remembers nothing. Shards go to the executors in turn, beginning with the first.

use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    request.candidate_in_turn(0).into()
}
