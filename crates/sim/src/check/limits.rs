//! The check of limits on runs at the same time that jobs share.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::starts::{describe_start, end_ms};
use crate::truth::{Start, Truth};

/// I16: whenever a run under a limit begins, the runs that are in execution under this limit could be admitted in some order, each while fewer
/// others were open than its job allows. Which of them was really admitted first is not known, because triggers overtake each other.
///
/// Known gap: if the takeover of a lease takes longer than a lease, another server takes over some of its runs, and the limit's home does not
/// know these. Only what begins before that is checked.
pub(super) fn over_limit(facts: &Facts, truth: &Truth) -> Vec<String> {
    let checked_until_ms = truth.split_adoption_ms.unwrap_or(u64::MAX);
    let mut by_key: BTreeMap<&str, Vec<(&Start, u32)>> = BTreeMap::new();
    for start in &truth.starts {
        if let Some(limit) = facts.jobs.get(&start.job).and_then(|job| job.spec.concurrency.as_ref()) {
            by_key.entry(&limit.key).or_default().push((start, limit.max));
        }
    }
    let mut found = Vec::new();
    for (key, starts) in by_key {
        let checked_starts = starts.iter().enumerate().filter(|(_, (start, _))| start.began_ms < checked_until_ms);
        for (index, (start, _)) in checked_starts {
            let is_open = |(other, _): &&(&Start, u32)| end_ms(other, facts, truth) > start.began_ms;
            let mut open: Vec<&(&Start, u32)> = starts[..index].iter().filter(is_open).collect();
            open.push(&starts[index]);
            open.sort_by_key(|(_, max)| *max);
            let bounds = open.iter().map(|(_, max)| usize::try_from(*max).unwrap_or(usize::MAX));
            if bounds.enumerate().any(|(others, max)| others >= max) {
                let described: Vec<String> =
                    open.iter().map(|(other, max)| format!("{} (of {max})", describe_start(other))).collect();
                found.push(format!("I16 limits: under {key:?} are in execution {}", described.join(", ")));
            }
        }
    }
    found
}
