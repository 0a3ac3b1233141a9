//! The check of limits on runs at the same time that jobs share.

use std::collections::BTreeMap;

use rondel_core::spec::ConcurrencySpec;

use super::facts::Facts;
use super::starts::{describe_start, end_ms};
use crate::truth::{Start, Truth};

/// I16: when a run under a limit begins, fewer other runs under this limit are in execution than its job allows.
pub(super) fn over_limit(facts: &Facts, truth: &Truth) -> Vec<String> {
    let mut by_key: BTreeMap<&str, Vec<(&Start, &ConcurrencySpec)>> = BTreeMap::new();
    for start in &truth.starts {
        if let Some(limit) = facts.jobs.get(&start.job).and_then(|job| job.spec.concurrency.as_ref()) {
            by_key.entry(&limit.key).or_default().push((start, limit));
        }
    }
    let mut found = Vec::new();
    for starts in by_key.values() {
        for (index, (start, limit)) in starts.iter().enumerate() {
            let is_open = |(other, _): &&(&Start, &ConcurrencySpec)| end_ms(other, facts, truth) > start.began_ms;
            let others: Vec<String> =
                starts[..index].iter().filter(is_open).map(|(other, _)| describe_start(other)).collect();
            if others.len() >= usize::try_from(limit.max).unwrap_or(usize::MAX) {
                found.push(format!(
                    "I16 limits: {} beside {}; {:?} allows {}",
                    describe_start(start),
                    others.join(", "),
                    limit.key,
                    limit.max
                ));
            }
        }
    }
    found
}
