//! What speaks HTTP: the REST API, the health checks, the pages, and the one port that they share with gRPC.
//!
//! - [`app()`] puts a router together from an engine, [`serve()`] runs it on a listener, `tls` under
//!   certificates;
//! - `routes` builds routes, none of them without a declared access; `access` admits callers before anything else is
//!   looked at; `frame` is around every request: its id, its log line, its limits;
//! - `rate` counts the requests of a caller, `keyed` makes a call with a key once;
//! - `limits` are the bounds for one client and for all; `peers` holds those of connections, `load` those of requests,
//!   `guarded` what an answer holds until it was read, `drain` reads bodies of refused requests, `shares` what one caller has of heavy work;
//! - `note` is what the audit log hears of a request, `grants` roles in words; `cookies`, `origin` and `redirect` are what
//!   signing in takes;
//! - `trace` is the span of a request;
//! - `call`, `query`, `body`, `etag` and `cursor` read requests; `problem` is the one shape of every error;
//! - `openapi` tells all of this to programs, `parameter` what a parameter can be;
//! - [`yaml`] reads and writes definitions as people keep them in files;
//! - `api` holds the endpoints, one file for each noun; `health` and `pages` what lies outside of the API.
//!
//! No decision about jobs or runs is made here: the engine and the store make them.

mod access;
mod api;
mod app;
mod body;
mod call;
mod code;
mod cookies;
mod cursor;
mod drain;
mod etag;
mod frame;
mod grants;
mod guarded;
mod health;
mod keyed;
mod limits;
mod load;
mod note;
mod openapi;
mod origin;
mod pages;
mod parameter;
mod peers;
mod preface;
mod problem;
mod query;
mod rate;
mod recheck;
mod redirect;
mod routes;
mod serve;
mod shares;
mod tls;
mod trace;
pub mod yaml;

pub use access::Permission;
pub use app::{WebConfig, app, openapi, route_table};
pub use code::Code;
pub use limits::HttpLimits;
pub use rate::Rate;
pub use routes::{Access, RouteInfo};
pub use serve::{Port, serve, serve_on};
pub use tls::{Tls, TlsError, TlsFiles};
