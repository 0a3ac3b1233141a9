//! Ground truth: the lines that handlers wrote to a file outside Rondel.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A file that runs append to.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: tempfile::TempDir,
}

/// One start of a handler.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    pub(crate) run: String,
    pub(crate) attempt: i64,
    pub(crate) fire_at: String,
    pub(crate) shard: String,
    pub(crate) executor: String,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("make a folder") }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("journal")
    }

    /// A file to which handlers may append the instant of their run and the milliseconds at which they began.
    pub(crate) fn starts(&self) -> PathBuf {
        self.path().with_extension("starts")
    }

    /// The lines of that file, in the order of the starts: the instant in seconds, and the start in milliseconds.
    pub(crate) fn read_starts(&self) -> Vec<(i64, i64)> {
        let text = std::fs::read_to_string(self.starts()).unwrap_or_default();
        let read = |line: &str| {
            let (fire_at, start) = line.split_once(' ')?;
            Some((seconds(fire_at), start.parse().ok()?))
        };
        text.lines().filter_map(read).collect()
    }

    /// Parameters for the agent's `shell` handler that append a line and then do `more`.
    pub(crate) fn params(&self, more: &str) -> Value {
        let line = "$RONDEL_RUN_ID $RONDEL_ATTEMPT $RONDEL_FIRE_AT $RONDEL_SHARD_INDEX/$RONDEL_SHARD_TOTAL $PPID";
        let script = format!("echo {line} >> {}; {more}", self.path().display());
        json!({"argv": ["sh", "-c", script.trim_end_matches([' ', ';'])]})
    }

    /// The lines so far. A line that is just being written is left out.
    pub(crate) fn lines(&self) -> Vec<Line> {
        read(&self.path())
    }

    /// The runs' instants, each with its lines.
    pub(crate) fn by_fire(&self) -> BTreeMap<String, Vec<Line>> {
        let mut fires: BTreeMap<String, Vec<Line>> = BTreeMap::new();
        for line in self.lines() {
            fires.entry(line.fire_at.clone()).or_default().push(line);
        }
        fires
    }
}

fn read(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete.lines().map(line).collect()
}

fn line(text: &str) -> Line {
    let words: Vec<&str> = text.split(' ').collect();
    assert_eq!(words.len(), 5, "a broken line: {text:?}");
    let word = |index: usize| words[index].to_owned();
    let attempt = words[1].parse().expect("the attempt is a number");
    Line { run: word(0), attempt, fire_at: word(2), shard: word(3), executor: word(4) }
}

/// Whole seconds since 1970 of an RFC 3339 instant in UTC, as the API and handlers write them.
pub(crate) fn seconds(instant: &str) -> i64 {
    let digits = |range: std::ops::Range<usize>| instant[range].parse::<i64>().expect("an instant");
    let (year, month, day) = (digits(0..4), digits(5..7), digits(8..10));
    // Days from 1970 by the civil calendar: March is the first month, so that leap days come last.
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    days * 86_400 + digits(11..13) * 3600 + digits(14..16) * 60 + digits(17..19)
}

/// Compares the journal with the ledger: each line is an attempt of a run, each run began at most once per attempt, and
/// two lines for a fire are two attempts, with the reason in the ledger.
pub(crate) fn check_against_ledger(lines: &[Line], runs: &[Value]) {
    let by_id: BTreeMap<&str, &Value> = runs.iter().map(|run| (run["id"].as_str().expect("an id"), run)).collect();
    let mut begun = BTreeSet::new();
    for line in lines {
        let run = by_id.get(line.run.as_str());
        assert!(run.is_some(), "no run in the ledger for {line:?}");
        let Some(run) = run else { continue };
        let last = run["attempt"].as_i64().expect("an attempt");
        assert!((1..=last).contains(&line.attempt), "{line:?} is no attempt of {run}");
        assert!(begun.insert((line.run.as_str(), line.attempt)), "{line:?} began twice");
        assert_eq!(run["fire_at"], line.fire_at.as_str(), "{line:?} has another instant than {run}");
    }
    let keys: BTreeSet<_> = runs
        .iter()
        .map(|run| (run["job"].to_string(), run["fire_at"].to_string(), run["shard_index"].to_string()))
        .collect();
    assert_eq!(keys.len(), runs.len(), "two runs of one fire");
}

#[test]
fn instants_are_read() {
    assert_eq!(seconds("1970-01-01T00:00:00Z"), 0);
    assert_eq!(seconds("2026-03-08T07:00:00Z"), 1_772_953_200);
    assert_eq!(seconds("2028-02-29T23:59:59.500Z"), 1_835_481_599);
}
