//! Runs the checker by hand, on a journal's folder and a server's ledger.
//!
//! ```text
//! cargo run -p rondel-tests --bin check -- --journal DIR --server http://127.0.0.1:8080 --token FILE [--settle MS]
//! cargo run -p rondel-tests --bin check -- --journal DIR --jobs jobs.json --runs runs.json --read-at INSTANT
//! ```
//!
//! `jobs.json` and `runs.json` are arrays of the items that `GET /api/v1/jobs` and `/api/v1/runs` list (runs with several
//! attempts as `GET /api/v1/runs/{id}` shows them). Violations are printed with their rows; the exit code is then 1.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rondel_tests::check::{Evidence, JobFacts, Report, Rules, RunRow, check, collect, read_journal};
use rondel_tests::{Api, millis};
use serde_json::Value;

const USAGE: &str = "usage: check --journal DIR (--server URL --token FILE | --jobs FILE --runs FILE --read-at INSTANT) \
                     [--settle MILLISECONDS] [--working]";

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let judged = match runtime {
        Ok(runtime) => runtime.block_on(judge(std::env::args().skip(1).collect())),
        Err(error) => Err(error.to_string()),
    };
    let (text, code) = match judged {
        Ok(report) => (report.to_string(), if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        Err(problem) => (problem, ExitCode::from(2)),
    };
    // If the write fails, the reader of the output is gone.
    std::io::stdout().lock().write_all(format!("{text}\n").as_bytes()).ok();
    code
}

async fn judge(args: Vec<String>) -> Result<Report, String> {
    let mut rules = Rules { may_be_open: args.iter().any(|arg| arg == "--working"), ..Rules::default() };
    let value = |name: &str| {
        args.iter().position(|arg| arg == name).and_then(|place| args.get(place + 1)).ok_or_else(|| USAGE.to_owned())
    };
    if let Ok(settle) = value("--settle") {
        rules.settle_ms = settle.parse().map_err(|error| format!("--settle {settle}: {error}"))?;
    }
    let journal = PathBuf::from(value("--journal")?);
    let evidence = match (value("--server"), value("--token")) {
        (Ok(server), Ok(token)) => {
            let token = std::fs::read_to_string(token).map_err(|error| format!("{token}: {error}"))?;
            collect(&Api::new(server.trim_end_matches('/'), token.trim()), &journal).await
        }
        _ => exported(&journal, value("--jobs")?, value("--runs")?, value("--read-at")?)?,
    };
    Ok(check(&evidence, rules))
}

fn exported(journal: &Path, jobs: &str, runs: &str, read_at: &str) -> Result<Evidence, String> {
    let items = |path: &str| {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        serde_json::from_str::<Vec<Value>>(&text).map_err(|error| format!("{path}: {error}"))
    };
    let mut evidence = read_journal(journal).map_err(|error| error.to_string())?;
    evidence.jobs = items(jobs)?.iter().filter_map(JobFacts::from_json).collect();
    evidence.runs = items(runs)?.iter().filter_map(RunRow::from_json).collect();
    evidence.read_at_ms =
        millis(read_at).ok_or_else(|| format!("--read-at {read_at}: not of the form 2026-03-08T07:00:00Z"))?;
    Ok(evidence)
}
