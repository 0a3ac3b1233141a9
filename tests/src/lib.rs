//! The harness for whole-system tests: it starts the real `rondel` binary on a fresh database, speaks to it as a user
//! would, and leaves nothing behind.
//!
//! ```no_run
//! # use rondel_tests::{Agent, Backend, Server, scratch, wait_until};
//! # use serde_json::json;
//! # use std::time::Duration;
//! # async fn test() {
//! let Some(db) = scratch(Backend::Postgres).await else { return };
//! let server = Server::start(&db).await;
//! let _agent = Agent::start_with(&server, "demo", &["--allow-scripts"]).await;
//! server.api().post("/api/v1/jobs", json!({"name": "hello", "app": "demo", "handler": "shell", "params": {"argv": ["date"]}}))
//!     .await.expect(201);
//! server.api().post("/api/v1/jobs/hello/runs", json!({"params": {"argv": ["true"]}})).await.expect(201);
//! let run = wait_until(Duration::from_secs(10), "the run succeeds", async || {
//!     let runs = server.api().runs("hello").await;
//!     match runs.as_slice() {
//!         [run] if run["status"] == "succeeded" => Ok(run.clone()),
//!         _ => Err(runs),
//!     }
//! });
//! assert_eq!(run.await["attempt"], 1);
//! # }
//! ```
//!
//! It uses the binary, its command line and the REST API, and no crate of the workspace, so that tests see what users
//! see.
#![expect(clippy::panic, clippy::print_stderr, reason = "a harness fails a test by a panic, and speaks on stderr")]

mod api;
mod binary;
pub mod check;
mod databases;
mod instants;
mod languages;
mod process;
mod settings;
mod system;
mod uncovered;
mod wait;

pub use api::{Answer, Api};
pub use binary::{Finished, binary, cargo, example, rondel};
pub use databases::{Backend, ScratchDb, left_out_without, scratch};
pub use instants::{instant_at, instant_in, length_millis, millis, wall_clock_ms};
pub use languages::has_interpreter;
pub use process::{Process, Signal};
pub use reqwest::Method;
pub use settings::{keeps, variable};
pub use system::{Agent, Dev, Server, seed};
pub use uncovered::uncovered;
pub use wait::{wait_at_most, wait_until};
