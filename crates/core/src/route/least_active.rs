//! Least active: the executor with the fewest runs of any job (from easyJob's least count); a random one of equals. Remembers nothing.

use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    let active = |index: usize| u64::try_from(request.candidates[index].active).unwrap_or(u64::MAX);
    request.least(active).into()
}
