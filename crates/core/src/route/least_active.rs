//! Least active: the executor with the fewest runs of any job (from easyJob's least count); a random one of equals. Remembers nothing.

use super::ask::{Ask, Choice};
use super::memory::Memory;

pub(super) fn pick(ask: &Ask<'_>, _: &mut Memory) -> Choice {
    let active = |index: usize| u64::try_from(ask.candidates[index].active).unwrap_or(u64::MAX);
    ask.least(active).into()
}
