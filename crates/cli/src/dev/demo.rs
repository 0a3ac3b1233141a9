//! The handler of the job `demo-hello`: an example of a handler in Rust.

use rondel::{JobError, Params, Progress, RunContext};
use serde::{Deserialize, Serialize};

/// The name of the handler.
pub(super) const HELLO_HANDLER: &str = "demo.hello";

/// Parameters of the handler demo.hello.
#[derive(Debug, Deserialize, rondel::schemars::JsonSchema)]
#[schemars(crate = "rondel::schemars")]
pub(super) struct Greeting {
    #[serde(default = "world")]
    name: String,
}

fn world() -> String {
    "world".to_owned()
}

/// The result of a run.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    greeted: String,
    letters: usize,
}

/// Greets, letter by letter. The run's log gets the tracing events, and the return value is the run's result.
pub(super) async fn hello(
    Params(greeting): Params<Greeting>,
    run: RunContext,
    progress: Progress,
) -> Result<Summary, JobError> {
    tracing::info!("hello, {}", greeting.name);
    let letters = greeting.name.chars().count();
    for done_count in 1..=letters {
        progress.set(done_count as u64, letters as u64);
        tokio::task::yield_now().await;
    }
    tracing::info!(attempt = run.attempt(), letters, "this was planned for {}", run.fire_at());
    Ok(Summary { greeted: greeting.name, letters })
}
