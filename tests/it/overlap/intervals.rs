//! The times at which handlers ran, as they wrote them themselves.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

/// A file to which handlers write when they begin and when they end, however they end.
pub(crate) struct Intervals {
    folder: tempfile::TempDir,
}

/// One attempt of a run, from its begin to its end; without an end while it runs.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) run: String,
    pub(crate) attempt: i64,
    /// The process of the agent.
    pub(crate) executor: String,
    pub(crate) begin_ms: i64,
    pub(crate) end_ms: Option<i64>,
}

impl Intervals {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("make a folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Parameters for the agent's `shell` handler: writes its begin into the file `name`, does `work`, writes its end.
    pub(crate) fn params(&self, name: &str, work: &str) -> Value {
        let file = self.path(name);
        let write = |what: &str| {
            format!("echo {what} $RONDEL_RUN_ID $RONDEL_ATTEMPT $(date +%s%3N) $PPID >> {}", file.display())
        };
        let script = format!("trap '{}' EXIT; trap 'exit 1' TERM; {}; {work}", write("end"), write("begin"));
        json!({"argv": ["sh", "-c", script]})
    }

    /// The attempts so far, in the order of their begins.
    pub(crate) fn of(&self, name: &str) -> Vec<Interval> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut intervals: Vec<Interval> = Vec::new();
        for line in complete.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let Ok([what, run, attempt, at, executor]) = <[&str; 5]>::try_from(words) else { continue };
            let (attempt, at_ms) = (attempt.parse().expect("an attempt"), at.parse().expect("an instant"));
            match what {
                "begin" => intervals.push(Interval {
                    run: run.to_owned(),
                    attempt,
                    executor: executor.to_owned(),
                    begin_ms: at_ms,
                    end_ms: None,
                }),
                _ => {
                    let begun = intervals.iter_mut().rev().find(|one| one.run == run && one.attempt == attempt);
                    begun.expect("what ends has begun").end_ms = Some(at_ms);
                }
            }
        }
        intervals.sort_by_key(|one| one.begin_ms);
        intervals
    }
}

/// The maximum number of intervals that were open concurrently. An interval without an end counts as open until the
/// last begin.
pub(crate) fn most_at_once<'a>(intervals: impl IntoIterator<Item = &'a Interval>) -> usize {
    let mut steps: Vec<(i64, i32)> = Vec::new();
    for one in intervals {
        steps.push((one.begin_ms, 1));
        steps.push((one.end_ms.unwrap_or(i64::MAX), -1));
    }
    // An end and a begin within the same millisecond do not overlap.
    steps.sort_unstable();
    let (mut open, mut most) = (0, 0);
    for (_, step) in steps {
        open += step;
        most = most.max(open);
    }
    usize::try_from(most).expect("more ends than begins")
}

pub(crate) fn most_on_one_executor(intervals: &[Interval]) -> usize {
    let executors: BTreeSet<&str> = intervals.iter().map(|one| one.executor.as_str()).collect();
    let on = |executor: &str| most_at_once(intervals.iter().filter(|one| one.executor == executor));
    executors.into_iter().map(on).max().unwrap_or(0)
}
