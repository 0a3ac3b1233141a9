//! Executors that speak XXL-JOB's protocol (2.2 to 3.5), unchanged: each is an executor of the engine like those of gRPC.
//!
//! - `wire` reads and writes the bodies of both directions, without I/O;
//! - `client` calls an executor: `/run`, `/beat`, `/idleBeat`, `/kill`, `/log`;
//! - `api` answers what executors call (`/api/registry`, `/api/registryRemove`, `/api/callback`); `tokens` keeps the apps of their tokens;
//! - `bridge` keeps a `link` for each registered executor, and asks those by hand by `/beat` whether they are there (`by_hand`);
//! - `moved` names what is called here instead of XXL-JOB's console;
//! - `link` is an executor's end of a session of the engine. `table` holds its attempts, `request` makes requests of triggers,
//!   `ends` results of reports, `log` chunks of log pages. What links write at the same time, `writes` puts into one transaction.
//!
//! Routing, overlap, limits, retries and verdicts are the engine's. What must survive a restart is in the store: an attempt has a row
//! before its request is sent, and a callback is acknowledged once it is in that row.

mod api;
mod bridge;
mod by_hand;
mod client;
mod config;
mod ends;
mod lines;
mod link;
mod log;
mod moved;
mod request;
mod table;
mod tokens;
mod wire;
mod writes;

pub use api::{ApiAnswer, ApiCall, BodyRead, BodyReader};
pub use bridge::Bridge;
pub use config::XxlConfig;
