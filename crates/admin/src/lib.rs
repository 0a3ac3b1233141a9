//! The server's engine: it decides when jobs are due, claims their fires, hands runs to executors, and keeps what
//! comes back.
//!
//! - [`engine`] puts the loops together and is what the edges (REST, command line) hold; below it, services work on a [`Node`];
//! - `scheduler` claims fires ahead of time and keeps them in the ring until they are due; [`fires`] reports what became of
//!   them;
//! - `dispatch` routes runs to executors, and turns results into durable verdicts;
//! - `cluster` renews the node's lease and takes over what dead nodes left;
//! - [`events`] finds what happens for those who listen;
//! - [`alert`] sends messages about failures, [`channels`] those of alerts, [`rules`] decides about incidents; `housekeeping` removes what is old; `metrics` counts what operators watch, and `exposition` puts it into words;
//! - [`apps`] bounds the apps of a namespace; `declared` keeps the jobs that executors' code declares in step with it;
//! - `gateway` and `registry` are the executors' side; [`jobs`] is the jobs' life, [`calendars`] the
//!   calendars', [`identity`] is who calls.

pub mod alert;
pub mod apps;
mod background;
pub mod calendars;
pub mod cancel;
pub mod channels;
pub mod clock;
mod cluster;
pub mod coming;
mod config;
mod counters;
mod declared;
mod definitions;
mod dispatch;
pub mod engine;
pub mod events;
mod exposition;
pub mod fires;
pub mod gateway;
mod host;
mod host_process;
mod housekeeping;
pub mod identity;
pub mod jobs;
pub mod lifecycle;
mod log_limit;
mod metrics;
mod node;
mod progress;
mod pumps;
mod registry;
pub mod reports;
pub mod rules;
mod scheduler;
pub mod scripts;
pub mod shadow;
mod sight;
pub mod trace;
mod turn_queue;
pub mod xxl;

pub use cluster::{DatabaseTrouble, Regression, StartError};
pub use config::EngineConfig;
pub use counters::{Count, Counters};
pub use declared::DeclarationProblem;
pub use dispatch::given_name;
pub use engine::Engine;
pub use exposition::METRICS_MEDIA_TYPE;
pub use host::watched::WatchedHost;
pub use identity::lookups::LookupError;
pub use identity::{current_password, lineage, oidc, passwords, sign_in, tokens as auth};
pub use lifecycle::{Lifecycle, Until};
pub use metrics::{Limit, XxlCall, XxlOutcome, label_name};
pub use node::{Node, Readiness};
pub use progress::Progress;
pub use registry::{Handler, OnlineExecutor, OnlineName, ParamsSchema, UnansweredTriggers};
