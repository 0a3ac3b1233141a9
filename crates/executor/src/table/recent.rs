//! Recently acknowledged results, so that a repeated trigger is answered and not run again.

use std::collections::{HashMap, VecDeque};

use rondel_proto::v1;

use super::RunKey;

/// How many results are remembered.
const RESULT_COUNT_MAX: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct RecentResults {
    results: HashMap<RunKey, v1::Result>,
    order: VecDeque<RunKey>,
}

impl RecentResults {
    /// Remembers a result without its texts, which the server has.
    pub(super) fn insert(&mut self, key: RunKey, mut result: v1::Result) {
        result.message = String::new();
        result.result = String::new();
        if self.results.insert(key, result).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > RESULT_COUNT_MAX
            && let Some(oldest_key) = self.order.pop_front()
        {
            self.results.remove(&oldest_key);
        }
    }

    pub(super) fn get(&self, key: RunKey) -> Option<&v1::Result> {
        self.results.get(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let mut recent = RecentResults::default();
        for run in 0..=i64::try_from(RESULT_COUNT_MAX).unwrap() {
            recent.insert(RunKey::new(run, 1), v1::Result::default());
        }
        assert!(recent.get(RunKey::new(0, 1)).is_none());
        assert!(recent.get(RunKey::new(1, 1)).is_some());
        assert_eq!(recent.results.len(), RESULT_COUNT_MAX);
    }
}
