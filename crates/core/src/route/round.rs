//! Round: each executor in turn (XXL-JOB's ROUND). Remembers whose turn is next and begins with a random executor, so that jobs created
//! together do not all begin with the first. An executor that is not open is skipped.

use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, memory: &mut Memory) -> Choice {
    let count = request.candidates.len();
    let turn = usize::try_from(memory.turn().unwrap_or(request.draw)).unwrap_or(0);
    let is_open_at = |step: &usize| request.candidates[turn.wrapping_add(*step) % count].refusal.is_none();
    let Some(step) = (0..count).find(is_open_at) else { return Choice::NoExecutor };
    let index = turn.wrapping_add(step) % count;
    memory.set_turn(u32::try_from(index + 1).unwrap_or(0));
    Choice::Take(index)
}
