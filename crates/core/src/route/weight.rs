//! Weight: random, in proportion to the weights that executors declare (from easyJob). An executor that declares 0 gets nothing, unless all
//! do. Remembers nothing.

use super::ask::{Choice, RouteRequest};
use super::memory::Memory;

pub(super) fn pick(ask: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    let weight = |index: usize| u128::from(ask.candidates[index].weight);
    let total: u128 = ask.open().map(weight).sum();
    if total == 0 {
        return ask.dealt(ask.draw).into();
    }
    let mut left = (u128::from(ask.chance()) * total) >> 32;
    let hit = ask.open().find(|index| match left.checked_sub(weight(*index)) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    });
    hit.into()
}
