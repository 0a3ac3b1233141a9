//! Least active: picks the executor with the fewest runs, of whatever job; among equals, a random one. Corresponds to easyJob's router
//! *least count*. Keeps no memory.

use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    let run_count = |index: usize| u64::try_from(request.candidates[index].active).unwrap_or(u64::MAX);
    request.least(run_count).into()
}
