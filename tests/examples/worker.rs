//! An executor for tests that kill processes. Its handler `journal` writes one line when it begins and one when it ends, in the
//! form that the checker reads (`tests/src/check/journal.rs`). Its parameters are `{"sleep_ms": n, "fail": bool, "log": bool}`. The
//! handler `line` writes one line for each start, as the script of `tests/it/journal.rs` does.
//!
//! `worker --server URL… --token-file FILE --app APP --name NAME --journal FILE [--slots N] [--data-dir DIR]
//! [--failpoint PLACE…]`
use std::fs::File;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rondel::{Executor, JobError, Params, RunContext, State};
use serde::Deserialize;
use serde_json::json;
use tracing_subscriber::prelude::*;

#[derive(Default, Deserialize, schemars::JsonSchema)]
#[serde(default)]
struct Work {
    sleep_ms: u64,
    fail: bool,
    log: bool,
}

/// Writes the end line on drop, which also happens if the run is cancelled.
struct End {
    file: Arc<File>,
    run: RunContext,
    ok: Option<bool>,
}

impl Drop for End {
    fn drop(&mut self) {
        let line = json!({"event": "end", "run": self.run.run_id().to_string(), "attempt": self.run.attempt(),
            "pid": std::process::id(), "at_ms": now_ms(), "ok": self.ok});
        write(&self.file, &line);
    }
}

async fn journal(Params(work): Params<Work>, run: RunContext, State(file): State<Arc<File>>) -> Result<(), JobError> {
    let token = run.fencing_token();
    let line = json!({"event": "start", "run": run.run_id().to_string(), "attempt": run.attempt(), "job": run.job(),
        "fire_at_ms": run.fire_at().as_millis(), "shard": rondel::shard::index(), "term": token.term, "n": token.n,
        "pid": std::process::id(), "at_ms": now_ms()});
    write(&file, &line);
    if work.log {
        tracing::info!("at work"); // lands in the run's log
    }
    let mut end = End { file, run, ok: None };
    tokio::time::sleep(Duration::from_millis(work.sleep_ms)).await;
    end.ok = Some(!work.fail);
    if work.fail { Err(JobError::failed("asked to fail")) } else { Ok(()) }
}

async fn line(run: RunContext, State(file): State<Arc<File>>) {
    let (index, total) = (rondel::shard::index(), rondel::shard::total());
    let pid = std::process::id();
    write(&file, &format!("{} {} {} {index}/{total} {pid}", run.run_id(), run.attempt(), run.fire_at()));
}

/// Appends a line with a single write, because several processes may share the file.
fn write(mut file: &File, line: &impl std::fmt::Display) {
    if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
        // The checker trusts the journal, so a process that cannot write it must not continue.
        tracing::error!(%error, "cannot write the journal");
        std::process::abort();
    }
}

#[expect(clippy::disallowed_methods, reason = "ground truth is the wall clock")]
fn now_ms() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_millis()
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::registry()
        .with(tracing_subscriber::filter::LevelFilter::INFO)
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr))
        .with(rondel::log_layer())
        .init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tracing::error!("{problem}");
            ExitCode::from(2)
        }
    }
}

async fn run(args: &[String]) -> Result<(), String> {
    let all = |name: &'static str| args.windows(2).filter(move |pair| pair[0] == name).map(|pair| pair[1].as_str());
    let one = |name: &'static str| all(name).next().ok_or_else(|| format!("{name} is missing"));
    for place in all("--failpoint") {
        rondel_failpoint::arm(place).map_err(|refused| format!("--failpoint: {refused}"))?;
    }
    let file = File::options().create(true).append(true).open(one("--journal")?).map_err(|error| error.to_string())?;
    let mut builder = Executor::builder(one("--app")?)
        .token_file(one("--token-file")?)
        .name(one("--name")?)
        .slots(one("--slots").unwrap_or("256").parse().map_err(|error| format!("--slots: {error}"))?)
        .state(Arc::new(file))
        .handler("journal", journal)
        .handler("line", line);
    for server in all("--server") {
        builder = builder.server(server);
    }
    if let Ok(folder) = one("--data-dir") {
        builder = builder.data_dir(folder);
    }
    builder.run_until(rondel::signal::terminate()).await.map_err(|error| format!("{error:?}"))
}
