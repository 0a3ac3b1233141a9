//! The times at which handlers ran, as they wrote them themselves.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

/// A file to which handlers write when they begin and when they end, however they end.
pub(crate) struct Intervals {
    folder: tempfile::TempDir,
}

/// One attempt of a run, from its beginning to its end; without an end while it runs.
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
        let write = |event: &str| {
            format!("echo {event} $RONDEL_RUN_ID $RONDEL_ATTEMPT $(date +%s%3N) $PPID >> {}", file.display())
        };
        let script = format!("trap '{}' EXIT; trap 'exit 1' TERM; {}; {work}", write("end"), write("begin"));
        json!({"argv": ["sh", "-c", script]})
    }

    /// The attempts so far, in the order in which they began.
    pub(crate) fn read(&self, name: &str) -> Vec<Interval> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        let complete_lines = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut intervals: Vec<Interval> = Vec::new();
        for line in complete_lines.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let Ok([event, run, attempt, at, executor]) = <[&str; 5]>::try_from(words) else { continue };
            let (attempt, at_ms) = (attempt.parse().expect("an attempt"), at.parse().expect("an instant"));
            match event {
                "begin" => intervals.push(Interval {
                    run: run.to_owned(),
                    attempt,
                    executor: executor.to_owned(),
                    begin_ms: at_ms,
                    end_ms: None,
                }),
                _ => {
                    let begun_interval =
                        intervals.iter_mut().rev().find(|interval| interval.run == run && interval.attempt == attempt);
                    begun_interval.expect("what ends has begun").end_ms = Some(at_ms);
                }
            }
        }
        intervals.sort_by_key(|interval| interval.begin_ms);
        intervals
    }
}

/// The maximum number of intervals that were open concurrently. An interval without an end counts as open until the
/// last begin.
pub(crate) fn max_concurrent<'a>(intervals: impl IntoIterator<Item = &'a Interval>) -> usize {
    let mut steps: Vec<(i64, i32)> = Vec::new();
    for interval in intervals {
        steps.push((interval.begin_ms, 1));
        steps.push((interval.end_ms.unwrap_or(i64::MAX), -1));
    }
    // An end and a begin within the same millisecond do not overlap.
    steps.sort_unstable();
    let (mut open_count, mut max_count) = (0, 0);
    for (_, step) in steps {
        open_count += step;
        max_count = max_count.max(open_count);
    }
    usize::try_from(max_count).expect("more ends than begins")
}

pub(crate) fn max_concurrent_on_one_executor(intervals: &[Interval]) -> usize {
    let executors: BTreeSet<&str> = intervals.iter().map(|interval| interval.executor.as_str()).collect();
    let max_on = |executor: &str| max_concurrent(intervals.iter().filter(|interval| interval.executor == executor));
    executors.into_iter().map(max_on).max().unwrap_or(0)
}
