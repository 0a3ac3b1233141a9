//! The program in the README: `cargo run -p rondel-executor --example hello -- http://127.0.0.1:8080 TOKEN_FILE`.

use rondel::{Executor, ExecutorError, JobError, Params};

async fn greet(Params(name): Params<Option<String>>) -> Result<String, JobError> {
    let name = name.unwrap_or_else(|| "world".to_owned());
    tracing::info!("hello, {name}"); // lands in the run's log, and on stderr
    Ok(format!("greeted {name}")) // the run's result
}

#[tokio::main]
async fn main() -> Result<(), ExecutorError> {
    let mut args = std::env::args().skip(1);
    Executor::builder("hello")
        .server(args.next().unwrap_or_else(|| "http://127.0.0.1:8080".to_owned()))
        .token_file(args.next().unwrap_or_else(|| "executor.token".to_owned()))
        .handler("greet", greet)
        .run_until(rondel::signal::terminate())
        .await
}
