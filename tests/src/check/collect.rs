//! Reading the ledger of a running server.

use std::path::Path;

use serde_json::Value;

use super::evidence::{Call, Evidence, JobFacts, RunRow};
use super::journal::read_journal;
use crate::Api;
use crate::instants::wall_clock_ms;

/// Reads the evidence from a journal's folder and a server: jobs, runs, and the attempts of runs that had several. If
/// the folder has a `history.json-lines`, it is the history of the calls.
///
/// # Panics
/// When the journal or an answer cannot be read.
pub async fn collect(api: &Api, journal: &Path) -> Evidence {
    let mut evidence = read_journal(journal).unwrap_or_else(|error| panic!("{}: {error}", journal.display()));
    evidence.calls = read_calls(&journal.join("history.json-lines"));
    // The journal is read before the ledger. Otherwise it could have a start whose run the ledger did not have yet.
    evidence.read_at_ms = wall_clock_ms();
    let jobs = api.all("/api/v1/jobs", &[]).await;
    evidence.jobs = jobs.iter().filter_map(JobFacts::from_json).collect();
    for run in api.all("/api/v1/runs", &[]).await {
        let had_several = run["attempt"].as_i64() > Some(1);
        let run = match run["id"].as_str().filter(|_| had_several) {
            Some(id) => api.get(&format!("/api/v1/runs/{id}")).await.expect(200),
            None => run,
        };
        evidence.runs.extend(RunRow::from_json(&run));
    }
    evidence
}

/// Reads a history, which has one call per line. Without the file, it is empty.
fn read_calls(path: &Path) -> Vec<Call> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| Call::from_json(&line)).collect()
}
