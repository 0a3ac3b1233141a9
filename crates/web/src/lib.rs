//! The HTTP interface: the REST API, the health checks, the pages, and the one port that they share with gRPC.
//!
//! - [`app()`] builds a router from an engine, [`serve()`] runs it on a listener, `tls` with certificates;
//! - `state` is the state that handlers work with;
//! - `routes` builds routes, each with a declared access, and `route_info` is their table; `access` admits callers, who are in `caller`,
//!   before anything else is read; `frame` is the layer around every request, with its id and its log line;
//! - `rate` counts the requests of a caller, `keyed` makes a call with a key once;
//! - `limits` are the bounds for one client and for all: `peers` applies those of connections, `load` those of requests; `holdings` is what
//!   requests hold, `guarded` what an answer holds until it is read; `drain` reads bodies of refused requests, `shares` divides heavy work
//!   among callers;
//! - `mounted` is the interface to endpoints of another protocol, and `mounts` has their routes;
//! - `audit` writes the audit entry of a request, `denials` bounds the entries of refusals, `grants` reads and writes roles by names;
//!   `cookies`, `origin` and `redirect` serve the sign-in;
//! - `trace` is the span of a request;
//! - `call`, `path`, `query`, `body`, `etag` and `cursor` read requests; `answer` writes JSON; `run_filter` and `job_filter` apply filters,
//!   `job_board` holds the facts that jobs are filtered by, `run_bulk` and `job_bulk` act on many at once; `shown_runs`, `parent_params`
//!   and `named_jobs` decide what a caller may see of runs, `pump_view` reads the items and groups of a pump job; `problem` is the one shape of every error;
//! - `openapi` describes the API to programs, `parameter` the parameters in it;
//! - [`yaml`] reads and writes definitions as users keep them in files;
//! - `api` holds the endpoints, one file for each noun; `health` and `pages` hold the routes outside of the API.
//!
//! No decision about jobs or runs is made here: the engine and the store make them.

mod access;
mod answer;
mod api;
mod app;
mod audit;
mod body;
mod call;
mod caller;
mod code;
mod cookies;
mod cursor;
mod denials;
mod drain;
mod etag;
mod frame;
mod grants;
mod guarded;
mod health;
mod holdings;
mod job_board;
mod job_bulk;
mod job_filter;
mod job_order;
mod job_states;
mod keyed;
mod limits;
mod load;
mod mounted;
mod mounts;
mod named_jobs;
mod openapi;
mod origin;
mod overview;
mod pages;
mod parameter;
mod parent_params;
mod part_of;
mod path;
mod peers;
mod preface;
mod problem;
mod pump_view;
mod query;
mod rate;
mod recheck;
mod redirect;
mod refused_lines;
mod report;
mod route_info;
mod routes;
mod run_bulk;
mod run_filter;
mod serve;
mod shares;
mod shown_runs;
mod state;
mod tls;
mod trace;
pub mod yaml;

pub use app::{app, openapi, route_table};
pub use code::Code;
pub use limits::HttpLimits;
pub use mounted::{BodyRead, BodyReader, Mounted, MountedAnswer, MountedCall};
pub use rate::Rate;
pub use rondel_core::access::Permission;
pub use route_info::{Access, RouteInfo};
pub use serve::{Port, serve, serve_on};
pub use state::WebConfig;
pub use tls::{Tls, TlsError, TlsFiles};
