//! An executor for tests, with handlers that do what no handler should.
//!
//! `unruly SERVER TOKEN_FILE APP NAME [DATA_DIR]`. `abort` ends the process after `ms`; `spin` blocks its thread for
//! `ms` without an `await`, and neither yields nor checks whether it should stop; `flood` writes `mib` MiB to its log;
//! `garble` prints what no text should contain, in its log, its result and its error; `steady` does nothing.
use std::process::ExitCode;
use std::time::Duration;

use rondel::{Executor, ExecutorError, JobError, Log, Params, Timing};
use serde::Deserialize;

#[derive(Default, Deserialize, schemars::JsonSchema)]
#[serde(default)]
struct UnrulyParams {
    ms: u64,
    mib: usize,
    fails: bool,
}

/// Escapes, a bell, NUL, a right-to-left override, remains of invalid UTF-8, and a line break in the middle.
fn garbage() -> String {
    let broken = String::from_utf8_lossy(b"\xff\xfe broken \xc3").into_owned();
    format!("\u{1b}[31mred\u{1b}]0;title\u{7} \0 \u{202e}back {broken}\r\nsecond")
}

async fn abort(Params(how): Params<UnrulyParams>) {
    tokio::time::sleep(Duration::from_millis(how.ms)).await;
    std::process::abort();
}

#[expect(clippy::disallowed_methods, reason = "a thread of the runtime is blocked on purpose")]
async fn spin(Params(how): Params<UnrulyParams>) {
    std::thread::sleep(Duration::from_millis(how.ms));
}

async fn flood(Params(how): Params<UnrulyParams>, log: Log) {
    log.info("first");
    let line = "all work and no play ".repeat(48);
    for written in 0..how.mib * 1024 {
        log.info(&line);
        if written % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    // A line that is too long for the log, which therefore cuts it.
    log.warn("x".repeat(1 << 20));
    log.info("last");
}

async fn garble(Params(how): Params<UnrulyParams>, log: Log) -> Result<serde_json::Value, JobError> {
    log.error(garbage());
    if how.fails { Err(JobError::terminal(garbage())) } else { Ok(serde_json::json!({ garbage(): garbage() })) }
}

async fn steady() {}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, token_file, app, name, rest @ ..] = &args[..] else {
        tracing::error!("usage: unruly SERVER TOKEN_FILE APP NAME [DATA_DIR]");
        return ExitCode::from(2);
    };
    let timing = Timing { cancel_grace: Duration::from_secs(1), ..Timing::default() };
    let builder = Executor::builder(app).server(server).token_file(token_file).name(name).timing(timing);
    let builder = builder.handler("abort", abort).handler("spin", spin).handler("flood", flood);
    let builder = builder.handler("garble", garble).handler("steady", steady);
    match run(rest.iter().fold(builder, rondel::Builder::data_dir)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "cannot start");
            ExitCode::FAILURE
        }
    }
}

async fn run(builder: rondel::Builder) -> Result<(), ExecutorError> {
    builder.run_until(rondel::signal::terminate()).await
}
