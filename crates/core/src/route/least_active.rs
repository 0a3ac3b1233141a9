//! Least active: the executor with the fewest runs of any job (from easyJob's least count); a random one of equals. Remembers nothing.

use super::ask::{Choice, RouteRequest};
use super::memory::Memory;

pub(super) fn pick(ask: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    let active = |index: usize| u64::try_from(ask.candidates[index].active).unwrap_or(u64::MAX);
    ask.least(active).into()
}
