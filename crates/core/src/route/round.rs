//! Round: each executor in turn, from a drawn start, so that jobs born together do not all begin with the first.

pub(super) fn pick(turn: &mut Option<u32>, count: usize, draw: u32) -> usize {
    let this = turn.map_or(draw, |last| last.wrapping_add(1));
    *turn = Some(this);
    super::remainder(this, count)
}
