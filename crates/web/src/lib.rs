//! The HTTP interface: the REST API, the health checks, the console's pages, and the one port that they share with gRPC.
//!
//! - [`app()`] builds a router from an engine, [`serve()`] runs it on a listener; `preface` detects HTTP/2, `tls` adds certificates;
//! - `state` is the state that all handlers share;
//! - `routes` builds routes, each with a declared access, and `route_info` describes them; `access` checks the caller (`caller`) before
//!   anything else is read; `recheck` checks callers of streams again; `unread` refuses inputs that a route does not read; `frame` is the
//!   outermost layer, with the request's id and its log line, and `refused_lines` limits the lines about refusals;
//! - `rate` applies the rate limit of callers, `keyed` runs a call with an idempotency key only once;
//! - `limits` has the limits for one client and for all: `peers` applies those of connections, `load` those of requests; `permits` counts
//!   what requests occupy; `sending_body` releases the permits of a request when the client has read its answer; `drain` reads bodies of
//!   refused requests; `shares` divides heavy work among callers;
//! - `mounted` is the interface to endpoints of another protocol, and `mounted_routes` has their routes;
//! - `audit` writes the audit entry of a request, `denials` limits the entries for refusals, `grants` reads and writes roles by names;
//!   `cookies`, `origin` and `redirect` serve the sign-in;
//! - `trace` is the span of a request;
//! - `call`, `path`, `query`, `body`, `etag` and `cursor` read requests; `answer` writes JSON; `run_filter` and `job_filter` apply
//!   filters; `job_board` caches the facts that jobs are filtered by; `job_order` sorts jobs, `job_states` reads their states;
//!   `run_bulk` and `job_bulk` act on many objects in one request; `read_again` repeats a read after a change;
//!   `shown_runs`, `parent_params` and `named_jobs` decide what a caller may see of runs; `pump_view` reads the items and groups of a
//!   pump job; `problem` is the one format of every error;
//! - `report` computes reports, `overview` the data of charts, and `incident_of_fire` finds the alert of a fire;
//! - `openapi` describes the API to programs, `parameter` the parameters in it, and `code` has the codes of errors;
//! - [`yaml`] reads and writes definitions in the format of users' files;
//! - `api` has the endpoints, one file for each noun; `health` and `pages` have the routes outside of the API.
//!
//! This crate makes no decision about jobs or runs: the engine and the store do.

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
mod health;
mod incident_of_fire;
mod job_board;
mod job_bulk;
mod job_filter;
mod job_order;
mod job_states;
mod keyed;
mod limits;
mod load;
mod mounted;
mod mounted_routes;
mod named_jobs;
mod openapi;
mod origin;
mod overview;
mod pages;
mod parameter;
mod parent_params;
mod path;
mod peers;
mod permits;
mod preface;
mod problem;
mod pump_view;
mod query;
mod rate;
mod read_again;
mod recheck;
mod redirect;
mod refused_lines;
mod report;
mod route_info;
mod routes;
mod run_bulk;
mod run_filter;
mod sending_body;
mod serve;
mod shares;
mod shown_runs;
mod state;
mod tls;
mod trace;
mod unread;
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
