//! Serves unmodified XXL-JOB executors (protocol 2.2 to 3.5): to the engine, each is an executor like those that use gRPC.
//!
//! - `wire` reads and writes the bodies of both directions, without I/O;
//! - `client` calls an executor: `/run`, `/beat`, `/idleBeat`, `/kill`, `/log`; `room` bounds the calls and bodies of each app;
//! - `api` answers calls by executors (`/api/registry`, `/api/registryRemove`, `/api/callback`); `tokens` caches the apps of their tokens,
//!   `registrations` bounds their number;
//! - `bridge` keeps a `link` for each registered executor, and calls `/beat` of those registered by hand (`by_hand`);
//!   `refresh_state` has the state that it keeps between two reads of the registrations;
//! - `pruning` removes old rows;
//! - `console_calls` names the replacements for calls to XXL-JOB's console;
//! - `link` is an executor's side of a session with the engine. `table` holds its attempts, `request` converts triggers to requests, `ends`
//!   converts reports to results, `log` converts log pages to chunks. `writes` batches the concurrent writes of links into one transaction.
//!
//! Routing, overlap, limits, retries and verdicts belong to the engine. State that must survive a restart is in the store: an attempt has a
//! row before its request is sent, and a callback is acknowledged once it is in that row.

mod api;
mod bridge;
mod by_hand;
mod client;
mod config;
mod console_calls;
mod ends;
mod lines;
mod link;
mod log;
mod pruning;
mod refresh_state;
mod registrations;
mod request;
mod room;
mod table;
mod tokens;
mod wire;
mod writes;

pub use api::{ApiAnswer, ApiCall, BodyRead, BodyReader};
pub use bridge::Bridge;
pub use config::XxlConfig;
