//! Three jobs declared in code: `cargo run -p rondel-executor --example invoices -- http://127.0.0.1:8080 TOKEN_FILE`.
#![expect(clippy::unused_async, reason = "an example's handlers do nothing that takes time")]
use rondel::{Executor, ExecutorError, JobError, Params, Shard};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Close {
    /// Only the invoices of this region.
    region: Option<String>,
}

/// Closes the invoices of the day.
#[rondel::job(name = "invoices.close", cron = "0 30 2 * * ?", tz = "Europe/Berlin", retry = 3, backoff = "10s..5m")]
async fn close_invoices(Params(close): Params<Close>) -> Result<u32, JobError> {
    tracing::info!(region = close.region, "closing"); // lands in the run's log
    Ok(7)
}

/// Notifies the accountants once all are closed.
#[rondel::job(name = "invoices.mail", parent = "invoices.close", timeout = "5m")]
async fn mail_accountants() {}

/// Warms the caches, each executor its own.
#[rondel::job(every = "10m", route = "broadcast", misfire = "skip")]
async fn warm_caches(shard: Shard) {
    tracing::info!("part {} of {}", shard.index, shard.total);
}

#[tokio::main]
async fn main() -> Result<(), ExecutorError> {
    let mut args = std::env::args().skip(1);
    Executor::builder("billing")
        .server(args.next().unwrap_or_else(|| "http://127.0.0.1:8080".to_owned()))
        .token_file(args.next().unwrap_or_else(|| "executor.token".to_owned()))
        .job(close_invoices)
        .job(mail_accountants)
        .job(warm_caches)
        .run_until(rondel::signal::terminate())
        .await
}
