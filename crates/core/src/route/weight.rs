//! Weight: random, in proportion to the weights that executors declare (from easyJob). An executor that declares 0 gets nothing, unless all
//! do. Remembers nothing.

use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    let weight = |index: usize| u128::from(request.candidates[index].weight);
    let total_weight: u128 = request.open().map(weight).sum();
    if total_weight == 0 {
        return request.candidate_in_turn(request.draw).into();
    }
    let mut weight_left = (u128::from(request.random_number()) * total_weight) >> 32;
    let chosen_index = request.open().find(|index| match weight_left.checked_sub(weight(*index)) {
        Some(remaining_weight) => {
            weight_left = remaining_weight;
            false
        }
        None => true,
    });
    chosen_index.into()
}
