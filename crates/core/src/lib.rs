//! The types of the domain, and every decision as a pure function: no clock, no I/O, no runtime.
//!
//! - When a job is due: [`cron`], [`schedule`] and [`calendar`] compute instants, [`timetable`] combines them for a job.
//!   [`plan`] decides what a scan does about a job's fires. [`misfire`] decides about fires that did not run in time,
//!   [`maintenance`] about fires inside maintenance windows. [`dense`] decides when to start claiming the fires of an instant at
//!   which many jobs fire.
//! - The definition: [`spec`] is a job's definition as users write it; [`job`] is the same definition, checked and ready for
//!   the engine. [`document`] writes a definition without its default values. [`diff`] shows what an edit changed, [`ahead`]
//!   which future fires it changes; [`edit`] decides which unsent rows it changes, [`queued`] which queued runs a pause or a
//!   deletion skips. [`shadow`] decides which fires are not sent. [`declared`] decides what happens to jobs that are declared in
//!   code.
//! - What users see of fires: [`fires`] accounts for every past fire, [`preview`] lists future ones, [`year`] shows a calendar
//!   day by day, [`tree`] shows which run of a fire follows from which. [`words`] describes schedules in sentences. [`reason`]
//!   explains why a run has its status, in codes with parameters and in words. [`report`] has the rules of weekly reports.
//! - Lists: [`filter`] parses what users type to narrow a list of runs or jobs, [`folded_state`] sums up a job's state in one
//!   word, [`labels`] are what users group jobs by, [`attention`] picks the jobs and runs that need attention.
//! - Running: [`select`] and [`route`] choose the executor of a run, [`outcome`] and [`graph`] decide what follows its end.
//!   [`request`] checks what a caller sets for a run, [`overrides`] decides which parameters may be replaced for one run. [`pump`]
//!   decides which group of a pump job has which item, and when the job's root run begins and ends. [`homes`] decides which node
//!   of a cluster owns which job.
//! - The agent: [`agent_handlers`] has what a server knows about the agent's handlers, [`script`] how their parameters name a
//!   script that the server keeps. [`glue`] has the script handlers of XXL-JOB's executors.
//! - Alerts: [`alert`] has rules, incidents and silences, and decides which messages are sent about them. [`notice`] is the
//!   content of a message, [`channel`] where it is sent.
//! - Security: [`access`] decides what a caller may do, [`authority`] which accounts and tokens it may manage. [`visibility`] hides
//!   the names of jobs, and [`disclosure`] secrets in documents, from readers who may not see them. [`outgoing`] decides which
//!   addresses the server may send requests to, [`forwarded`] which client a request comes from, [`secret_file`] whether too many
//!   users may read a file with a secret.
//! - Small types and helpers: [`run`] is a row of the ledger, [`status`] its status and its trigger, [`part`] its place in a fire
//!   with several runs; [`id`], [`name`], [`time`], [`size`], [`trace_parent`] and [`field_error`] are what their names state.
//!   [`shape`] checks whether a document has the form of a type, and reports every error; [`schema`] has the JSON schemas that
//!   cannot be derived. [`sketch`] counts lengths of time and computes their quantiles. [`log_line`] decides how severe a line of a
//!   log is. [`plain`] checks text for one line of a screen, [`near`] finds similar names. [`error_chain`] puts an error and its
//!   causes into one text. [`backoff`] computes how long to wait before the next try.

pub mod access;
pub mod agent_handlers;
pub mod ahead;
pub mod alert;
pub mod attention;
pub mod authority;
pub mod backoff;
pub mod calendar;
mod calendar_effect;
pub mod channel;
pub mod cron;
pub mod declared;
pub mod dense;
pub mod diff;
pub mod disclosure;
pub mod document;
pub mod edit;
pub mod error_chain;
pub mod field_error;
pub mod filter;
pub mod fires;
pub mod folded_state;
pub mod forwarded;
pub mod glue;
pub mod graph;
pub mod homes;
pub mod id;
pub mod job;
pub mod labels;
mod local;
pub mod log_line;
pub mod maintenance;
pub mod misfire;
pub mod name;
pub mod near;
pub mod notice;
pub mod outcome;
pub mod outgoing;
pub mod overrides;
pub mod part;
pub mod plain;
pub mod plan;
pub mod preview;
pub mod pump;
pub mod queued;
pub mod reason;
pub mod report;
pub mod request;
pub mod route;
pub mod run;
pub mod schedule;
pub mod schema;
pub mod script;
pub mod secret_file;
pub mod select;
pub mod shadow;
pub mod shape;
pub mod size;
pub mod sketch;
pub mod spec;
pub mod status;
pub mod time;
pub mod timetable;
pub mod trace_parent;
pub mod tree;
pub mod visibility;
mod word_enum;
pub mod words;
pub mod year;

pub use field_error::FieldError;
pub use id::{
    AccountId, AlertRuleId, AppId, AuditId, CalendarId, ChannelId, DeliveryId, ExecutorId, IdGen, IncidentId, JobId,
    MaintenanceId, MessageId, NamespaceId, NodeId, OutboxId, RunId, ScriptId, SessionId, SilenceId, TokenId,
};
pub use job::Job;
pub use reason::Reason;
pub use run::Run;
pub use spec::{JobSpec, Route};
pub use status::{RunStatus, Trigger};
pub use time::{TimeError, Timestamp};
pub use trace_parent::TraceParent;
