//! Takes items from many queues.

use std::collections::VecDeque;

/// At most `count` items, one from each queue in turn, so that a long queue does not use up the count.
pub(super) fn round_robin<Q: Iterator>(queues: impl Iterator<Item = Q>, count: usize) -> Vec<Q::Item> {
    let mut queues: VecDeque<Q> = queues.collect();
    let mut chosen_items = Vec::new();
    while chosen_items.len() < count {
        let Some(mut queue) = queues.pop_front() else { break };
        if let Some(item) = queue.next() {
            chosen_items.push(item);
            queues.push_back(queue);
        }
    }
    chosen_items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_queue_leaves_room_for_the_others() {
        let taken = |count| round_robin([1..9, 20..22, 30..30, 40..41].into_iter(), count);
        assert_eq!(taken(3), [1, 20, 40]);
        assert_eq!(taken(6), [1, 20, 40, 2, 21, 3]);
        assert_eq!((taken(usize::MAX).len(), taken(0).len()), (11, 0));
    }
}
