//! The check of concurrency limits that jobs share.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::starts::{describe_start, end_ms};
use crate::truth::{Start, Truth};

/// I16: whenever a run under a limit begins, there is an order in which the runs that are in execution under this limit could have been admitted:
/// each while fewer others were open than its job allows. The real order is not known, because triggers overtake each other.
///
/// Known gap: if the takeover of a lease takes longer than two leases, another server takes over some of its runs, and the limit's home does not
/// know these. Only runs that begin before that are checked.
pub(super) fn over_limit(facts: &Facts, truth: &Truth) -> Vec<String> {
    let checked_until_ms = truth.split_adoption_ms.unwrap_or(u64::MAX);
    let mut starts_by_key: BTreeMap<&str, Vec<(&Start, u32)>> = BTreeMap::new();
    for start in &truth.starts {
        if let Some(limit) = facts.jobs.get(&start.job).and_then(|job| job.spec.concurrency.as_ref()) {
            starts_by_key.entry(&limit.key).or_default().push((start, limit.max));
        }
    }
    let mut complaints = Vec::new();
    for (key, starts) in starts_by_key {
        let checked_starts = starts.iter().enumerate().filter(|(_, (start, _))| start.began_ms < checked_until_ms);
        for (index, (start, _)) in checked_starts {
            let is_open = |(open_start, _): &&(&Start, u32)| end_ms(open_start, facts, truth) > start.began_ms;
            let mut open_starts: Vec<&(&Start, u32)> = starts[..index].iter().filter(is_open).collect();
            open_starts.push(&starts[index]);
            open_starts.sort_by_key(|(_, max)| *max);
            let bounds = open_starts.iter().map(|(_, max)| usize::try_from(*max).unwrap_or(usize::MAX));
            if bounds.enumerate().any(|(other_count, max)| other_count >= max) {
                let descriptions: Vec<String> = open_starts
                    .iter()
                    .map(|(open_start, max)| format!("{} (of {max})", describe_start(open_start)))
                    .collect();
                complaints.push(format!("I16 limits: under {key:?} are in execution {}", descriptions.join(", ")));
            }
        }
    }
    complaints
}
