//! Counts runs by labels of their jobs; off unless a setting names the keys.
//!
//! A definition refers to the counts of its labels, so that counting a run needs no look-up. The number of values and of their combinations is
//! bounded: later values and combinations are counted as `_other`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rondel_core::RunStatus;
use rondel_core::labels::Labels;

use super::namespaces::OTHER_NAME;

/// Maximum number of values per key that are counted separately.
const VALUE_COUNT_MAX: usize = 100;
/// Maximum number of groups that are counted separately: each has a series for each verdict.
const GROUP_COUNT_MAX: usize = 1_000;

/// A group of counted runs: namespace, app, and a value for each key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    namespace: String,
    app: String,
    values: Vec<String>,
}

/// The counts of one group.
#[derive(Debug)]
pub(crate) struct LabelledCounts {
    group: Group,
    runs: [AtomicU64; RunStatus::ALL.len()],
}

impl LabelledCounts {
    fn new(group: Group) -> Self {
        Self { group, runs: Default::default() }
    }

    pub(crate) fn count_run(&self, status: RunStatus) {
        self.runs[status as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.group.namespace
    }

    pub(crate) fn app(&self) -> &str {
        &self.group.app
    }

    /// A value for each key; empty for jobs without the label.
    pub(crate) fn values(&self) -> &[String] {
        &self.group.values
    }

    /// The verdicts that occurred, each with its count.
    pub(crate) fn read(&self) -> impl Iterator<Item = (RunStatus, u64)> {
        let run_counts = RunStatus::ALL.iter().zip(&self.runs);
        run_counts.map(|(status, count)| (*status, count.load(Ordering::Relaxed))).filter(|(_, count)| *count > 0)
    }
}

#[derive(Debug, Default)]
struct LabelGroups {
    /// The values of each key that were seen so far.
    values: Vec<BTreeSet<String>>,
    groups: BTreeMap<Group, Arc<LabelledCounts>>,
}

/// The keys, and the groups that this node has seen.
#[derive(Debug, Default)]
pub(crate) struct LabelledRuns {
    keys: Vec<String>,
    groups: Mutex<LabelGroups>,
}

impl LabelledRuns {
    pub(crate) fn new(keys: Vec<String>) -> Self {
        let groups = LabelGroups { values: vec![BTreeSet::new(); keys.len()], groups: BTreeMap::new() };
        Self { keys, groups: Mutex::new(groups) }
    }

    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The counts for runs of a job with these labels; `None` if no key is configured.
    pub(crate) fn of(&self, namespace: &str, app: &str, labels: &Labels) -> Option<Arc<LabelledCounts>> {
        if self.keys.is_empty() {
            return None;
        }
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let values = self.keys.iter().zip(&mut groups.values).map(|(key, seen_values)| match labels.get(key) {
            None => String::new(),
            Some(value) if seen_values.contains(value) => value.clone(),
            Some(value) if seen_values.len() < VALUE_COUNT_MAX => {
                seen_values.insert(value.clone());
                value.clone()
            }
            Some(_) => OTHER_NAME.to_owned(),
        });
        let mut group = Group { values: values.collect(), namespace: namespace.to_owned(), app: app.to_owned() };
        if groups.groups.len() >= GROUP_COUNT_MAX && !groups.groups.contains_key(&group) {
            let other_text = || OTHER_NAME.to_owned();
            group = Group { namespace: other_text(), app: other_text(), values: vec![other_text(); self.keys.len()] };
        }
        let counts =
            groups.groups.entry(group).or_insert_with_key(|group| Arc::new(LabelledCounts::new(group.clone())));
        Some(Arc::clone(counts))
    }

    pub(crate) fn all(&self) -> Vec<Arc<LabelledCounts>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).groups.values().cloned().collect()
    }
}

/// The name of a metric's label for a job label key: characters that Prometheus does not allow become `_`.
#[must_use]
pub fn label_name(key: &str) -> String {
    let allowed_char = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("label_{}", key.chars().map(allowed_char).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn runs_are_counted_by_the_keys_that_are_set() {
        assert!(LabelledRuns::default().of("default", "a", &labels(&[("team", "pay")])).is_none());
        let runs = LabelledRuns::new(vec!["team".to_owned(), "tier".to_owned()]);
        let of = |app: &str, pairs: &[(&str, &str)]| runs.of("default", app, &labels(pairs)).unwrap();
        of("a", &[("team", "pay"), ("other", "x")]).count_run(RunStatus::Succeeded);
        of("a", &[("team", "pay"), ("other", "y")]).count_run(RunStatus::Succeeded);
        of("a", &[("team", "pay"), ("tier", "1")]).count_run(RunStatus::Failed);
        of("b", &[]).count_run(RunStatus::Skipped);
        let mut found: Vec<_> = Vec::new();
        for counts in runs.all() {
            found.extend(
                counts
                    .read()
                    .map(|(status, count)| (counts.app().to_owned(), counts.values().join("/"), status, count)),
            );
        }
        let row = |app: &str, values: &str, status, count| (app.to_owned(), values.to_owned(), status, count);
        assert_eq!(
            found,
            [
                row("a", "pay/", RunStatus::Succeeded, 2),
                row("a", "pay/1", RunStatus::Failed, 1),
                row("b", "/", RunStatus::Skipped, 1)
            ]
        );
    }

    #[test]
    fn values_and_groups_without_end_are_counted_together() {
        let runs = LabelledRuns::new(vec!["team".to_owned()]);
        for number in 0..500 {
            runs.of("default", "a", &labels(&[("team", &format!("t{number}"))]))
                .unwrap()
                .count_run(RunStatus::Succeeded);
        }
        let all = runs.all();
        assert_eq!(all.len(), VALUE_COUNT_MAX + 1);
        let others = all.iter().find(|counts| counts.values() == [OTHER_NAME]).unwrap();
        assert_eq!(others.read().map(|(_, count)| count).sum::<u64>(), 400);
        for number in 0..3_000 {
            runs.of("default", &format!("app-{number}"), &labels(&[])).unwrap().count_run(RunStatus::Succeeded);
        }
        let all = runs.all();
        assert_eq!(all.len(), GROUP_COUNT_MAX + 1);
        let sum = all.iter().flat_map(|counts| counts.read().map(|(_, count)| count).collect::<Vec<_>>()).sum::<u64>();
        assert_eq!(sum, 3_500, "no run is left out");
    }

    #[test]
    fn keys_become_names_that_prometheus_can_write() {
        assert_eq!(label_name("app.kubernetes.io/name"), "label_app_kubernetes_io_name");
    }
}
