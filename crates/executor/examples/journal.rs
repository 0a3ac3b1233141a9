//! An executor for tests: the handler `append` writes one line per start to a file, `noop` does nothing.
//!
//! `journal SERVER TOKEN_FILE APP NAME FILE [SLOTS]`. A line is
//! `run_id attempt fire_at_ms start_ms shard_index shard_total`, written by one write to a file opened for appending, so
//! that several processes can share it. `start_ms` is this host's wall clock. `append` takes `{"sleep_ms": n}`.
use std::fs::File;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rondel::{Executor, ExecutorError, JobError, Params, RunContext, State};
use serde::Deserialize;
use tracing_subscriber::prelude::*;

#[derive(Default, Deserialize, schemars::JsonSchema)]
#[serde(default)]
struct Append {
    sleep_ms: u64,
}

async fn append(
    Params(params): Params<Append>,
    run: RunContext,
    State(file): State<Arc<File>>,
) -> Result<(), JobError> {
    let start_ms = wall_clock_ms();
    // Code that does not get the shard as an argument finds it in the task's context, which a spawned task inherits.
    let here = || rondel::Shard { index: rondel::shard::index(), total: rondel::shard::total() };
    let shard = rondel::spawn(async move { here() }).await?;
    let line = format!(
        "{} {} {} {start_ms} {} {}\n",
        run.run_id(),
        run.attempt(),
        run.fire_at().as_millis(),
        shard.index,
        shard.total
    );
    (&*file).write_all(line.as_bytes())?;
    tokio::time::sleep(Duration::from_millis(params.sleep_ms)).await;
    Ok(())
}

async fn noop() {}

#[expect(clippy::disallowed_methods, reason = "the line has the wall-clock time of the start")]
fn wall_clock_ms() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_millis()
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr))
        .with(rondel::log_layer())
        .init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, token_file, app, name, path, rest @ ..] = &args[..] else {
        tracing::error!("usage: journal SERVER TOKEN_FILE APP NAME FILE [SLOTS]");
        return ExitCode::from(2);
    };
    let slots = rest.first().and_then(|slots| slots.parse().ok()).unwrap_or(64);
    let file = match File::options().create(true).append(true).open(path) {
        Ok(file) => Arc::new(file),
        Err(error) => {
            tracing::error!(%error, "cannot open {path}");
            return ExitCode::FAILURE;
        }
    };
    let builder = Executor::builder(app).server(server).token_file(token_file).name(name).slots(slots);
    let builder = builder.state(file).handler("append", append).handler("noop", noop);
    match run(builder).await {
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
