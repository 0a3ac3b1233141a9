//! Rondel's persistent state: one trait, divided into parts, on SQLite, PostgreSQL, MySQL/MariaDB, and in memory for tests.
//!
//! - [`Namespaces`], [`Catalog`], [`CreateJobs`], [`ChangeJobs`]: namespaces, apps, jobs with their versions;
//! - [`Accounts`], [`SignIns`], [`Tokens`], [`AuditLog`]: accounts, sign-ins, API tokens, and the log of what callers did;
//! - [`Calendars`]: business calendars with their versions; [`Scripts`]: scripts with their versions;
//! - [`Declarations`]: the sets of jobs that executors' code declares;
//! - [`Claim`], [`Dispatch`], [`Adopt`], [`Finish`], [`Cancel`], [`Limits`], [`Move`], [`Relay`], [`Runs`], [`SearchRuns`]: due jobs and
//!   runs, from claim to verdict ([`ledger`]);
//! - [`Changes`]: recent changes of runs and jobs, for live views;
//! - [`Cluster`], [`Executors`]: the database's clock, nodes with their leases, executors with their sessions;
//! - [`Logs`]: the log lines of runs; [`Traces`]: the trace contexts of requested runs;
//! - [`SavedFilters`]: filters that users saved under names;
//! - [`RequestKeys`]: idempotency keys, so that a repeated call takes effect once;
//! - [`Channels`]: destinations of alerts, and the messages to them;
//! - [`Alerts`]: alert rules, their incidents and silences;
//! - [`Reports`]: failures by message, and the report schedules of namespaces;
//! - [`Outbox`]: messages about failed and skipped runs; [`Upkeep`], [`Heal`], [`Stats`]: removal of old rows, repair of stuck jobs, and
//!   counts; [`Rollups`]: the data of charts and overviews;
//! - [`XxlExecutors`]: executors that speak XXL-JOB's protocol, and the numbers by which they know jobs and runs;
//! - [`ShadowFires`]: fires of another scheduler, as observed there;
//! - [`Pumps`]: pump jobs, and the owners of their items;
//! - [`counters`]: what a database counts about its own work, for measurements.
//!
//! Every transition names the state that it expects and returns whether it won; a lost race is a value, not an error. Batches lock first,
//! then write. All SQL of the product is in this crate.

pub mod access;
pub mod alerts;
pub mod calendars;
pub mod catalog;
pub mod changes;
pub mod channels;
pub mod cluster;
#[cfg(feature = "testing")]
pub mod conformance;
pub mod counters;
pub mod declarations;
mod delegate_store;
mod error;
mod follow;
pub mod foreign;
pub mod host;
mod lease;
pub mod ledger;
mod log_codec;
pub mod logs;
#[cfg(feature = "testing")]
mod mem;
pub mod outbox;
mod parents;
pub mod pumps;
pub mod reports;
pub mod request_keys;
pub mod rollups;
pub mod saved_filters;
pub mod scripts;
mod sealed;
mod settle;
pub mod shadow;
mod sql;
mod streams;
mod switches;
pub mod traces;
pub mod upkeep;
pub mod xxl;

pub use access::{Accounts, AuditLog, SignIns, Tokens};
pub use alerts::Alerts;
#[doc(hidden)]
pub use async_trait::async_trait;
pub use calendars::Calendars;
pub use catalog::{Catalog, ChangeJobs, CreateJobs, Namespaces};
pub use changes::Changes;
pub use channels::Channels;
pub use cluster::{Cluster, Executors, LeaseToken};
pub use declarations::Declarations;
pub use error::{DatabaseTroubleKind, OpenError, Result, StoreError};
pub use ledger::{Adopt, Cancel, Claim, Dispatch, Finish, Limits, Move, Relay, Runs, SearchRuns};
pub use logs::Logs;
#[cfg(feature = "testing")]
pub use mem::MemStore;
pub use outbox::Outbox;
pub use pumps::Pumps;
pub use reports::Reports;
pub use request_keys::RequestKeys;
pub use rollups::Rollups;
pub use saved_filters::SavedFilters;
pub use scripts::Scripts;
pub use sealed::SecretKeys;
pub use shadow::ShadowFires;
pub use sql::{DatabaseUrl, SqlStore, StoreConfig};
pub use traces::Traces;
pub use upkeep::{Heal, Stats, Upkeep};
pub use xxl::XxlExecutors;

/// Declares [`Store`] as the sum of the traits of its areas.
macro_rules! declare_store {
    ($($area:ident),+) => {
        /// The whole store: the traits of all areas.
        pub trait Store: $($area +)+ std::fmt::Debug + Send + Sync + 'static {}

        impl<T: $($area +)+ std::fmt::Debug + Send + Sync + 'static> Store for T {}
    };
}
declare_store!(
    Namespaces,
    Catalog,
    CreateJobs,
    ChangeJobs,
    Changes,
    Channels,
    Alerts,
    Accounts,
    SignIns,
    Tokens,
    AuditLog,
    Calendars,
    Declarations,
    Claim,
    Dispatch,
    Adopt,
    Finish,
    Cancel,
    Limits,
    Move,
    Relay,
    Runs,
    SearchRuns,
    Cluster,
    Executors,
    Logs,
    Outbox,
    RequestKeys,
    Traces,
    Upkeep,
    Heal,
    Stats,
    Rollups,
    SavedFilters,
    Reports,
    XxlExecutors,
    ShadowFires,
    Pumps,
    Scripts
);
