//! Random: any executor (XXL-JOB's RANDOM). Remembers nothing. The shards of a fire go to the executors in turn, beginning with
//! a random one.

use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    request.candidate_in_turn(request.draw).into()
}
