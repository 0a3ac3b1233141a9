//! The time ring: 60 slots, one for each second of the minute, that hold claimed runs *with* their full instant, so
//! that a stalled tick or a step of the clock can neither fire a run early nor a minute late.

use rondel_core::{Run, Timestamp};

const SLOT_COUNT: i64 = 60;

/// The slots of the ring. Their runs are durable in the store; losing a ring loses nothing.
#[derive(Debug)]
pub(crate) struct Ring {
    slots: Vec<Vec<Run>>,
    /// All runs that were due in this second or earlier have been taken.
    taken_through: i64,
}

impl Ring {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { slots: (0..SLOT_COUNT).map(|_| Vec::new()).collect(), taken_through: now.second() - 1 }
    }

    /// Puts a run into the slot of the second in which it is due. Returns the run if that second has been taken already. The caller then hands the
    /// run over.
    pub(crate) fn put(&mut self, run: Run) -> Option<Run> {
        if run.due_at.second() <= self.taken_through {
            return Some(run);
        }
        self.slots[slot(run.due_at.second())].push(run);
        None
    }

    /// Takes every run that is due in `second` or earlier, the earliest first. Slots that were missed are taken too.
    pub(crate) fn take_through(&mut self, second: i64) -> Vec<Run> {
        let mut due_runs = Vec::new();
        let first_second = (self.taken_through + 1).max(second - SLOT_COUNT + 1);
        for index in (first_second..=second).map(slot) {
            let (slot_runs, later_runs): (Vec<Run>, Vec<Run>) =
                std::mem::take(&mut self.slots[index]).into_iter().partition(|run| run.due_at.second() <= second);
            due_runs.extend(slot_runs);
            self.slots[index] = later_runs;
        }
        self.taken_through = self.taken_through.max(second);
        due_runs.sort_by_key(|run| (run.due_at, run.fire_at, run.id));
        due_runs
    }

    /// Empties the ring and returns its runs.
    pub(crate) fn clear(&mut self) -> Vec<Run> {
        self.slots.iter_mut().flat_map(std::mem::take).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.iter().map(Vec::len).sum()
    }
}

fn slot(second: i64) -> usize {
    usize::try_from(second.rem_euclid(SLOT_COUNT)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::tests_support::run_due_at;

    fn millis_taken(ring: &mut Ring, second: i64) -> Vec<i64> {
        ring.take_through(second).iter().map(|run| run.due_at.as_millis()).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_secs(second)
    }

    #[test]
    fn a_run_a_minute_ahead_shares_the_slot_and_is_not_taken() {
        let mut ring = Ring::new(at(100));
        for millis in [160_000, 100_500, 100_000, 101_000] {
            assert_eq!(ring.put(run_due_at(Timestamp::from_millis(millis))), None);
        }
        assert_eq!(millis_taken(&mut ring, 100), [100_000, 100_500]);
        assert_eq!(millis_taken(&mut ring, 101), [101_000]);
        assert_eq!(ring.len(), 1);
        assert_eq!(millis_taken(&mut ring, 160), [160_000]);
    }

    #[test]
    fn a_stalled_tick_takes_everything_it_missed() {
        let mut ring = Ring::new(at(100));
        for second in [101, 103, 130, 159, 170] {
            assert_eq!(ring.put(run_due_at(at(second))), None);
        }
        assert_eq!(millis_taken(&mut ring, 165), [101_000, 103_000, 130_000, 159_000]);
        assert_eq!(millis_taken(&mut ring, 300), [170_000]);
    }

    #[test]
    fn runs_due_in_a_taken_second_are_returned() {
        let mut ring = Ring::new(at(100));
        assert!(millis_taken(&mut ring, 110).is_empty());
        assert!(ring.put(run_due_at(Timestamp::from_millis(110_999))).is_some());
        assert!(ring.put(run_due_at(at(111))).is_none());
    }

    #[test]
    fn a_clock_that_steps_back_fires_nothing_early() {
        let mut ring = Ring::new(at(100));
        assert_eq!(ring.put(run_due_at(at(105))), None);
        assert!(millis_taken(&mut ring, 40).is_empty());
        assert_eq!(millis_taken(&mut ring, 105), [105_000]);
    }
}
