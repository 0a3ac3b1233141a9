//! Executors that speak XXL-JOB's protocol: their addresses, and the numbers by which they know jobs and runs.
//!
//! The row of an attempt is written before the attempt's request is sent. Therefore every attempt that an executor may have has a row, and
//! no number is sent twice.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::{AppId, ExecutorId, JobId, NamespaceId, NodeId, RunId, Timestamp};

use crate::LeaseToken;
use crate::error::Result;
use crate::settle::without_nul;

/// How long an executor counts as registered after its last registration: three times the usual period.
pub const XXL_REGISTERED_FOR: Duration = Duration::from_secs(90);
/// Maximum number of rows that one call writes.
pub const XXL_BATCH_MAX: usize = 512;
/// Maximum length of a stored message, in characters.
pub const XXL_MESSAGE_LEN_MAX: usize = 15_000;

/// The code of an attempt that the executor stopped on request.
pub const XXL_STOPPED: i32 = -1;

/// A registered executor.
#[derive(Clone, PartialEq, Eq)]
pub struct XxlExecutor {
    pub id: ExecutorId,
    pub namespace: NamespaceId,
    pub app: AppId,
    /// Where servers reach it, without a slash at the end.
    pub address: String,
    /// The token that it is called with.
    pub token: String,
    /// When it first registered.
    pub first_seen_at: Timestamp,
    /// When it last registered.
    pub last_seen_at: Timestamp,
    /// When it signed off.
    pub left_at: Option<Timestamp>,
    /// When its address was registered by hand.
    pub by_hand_at: Option<Timestamp>,
}

impl std::fmt::Debug for XxlExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("XxlExecutor");
        debug.field("id", &self.id).field("app", &self.app).field("address", &self.address);
        debug.field("last_seen_at", &self.last_seen_at).field("left_at", &self.left_at).finish_non_exhaustive()
    }
}

/// An attempt that is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewXxlRun {
    pub run: RunId,
    pub attempt: i32,
    pub job: JobId,
    pub executor: ExecutorId,
    pub app: AppId,
}

/// How much is known of the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XxlRunState {
    /// No end is known.
    Open,
    /// An end is known, but no verdict is stored.
    Reported,
    /// A verdict is stored, or the attempt never began.
    Settled,
}

impl XxlRunState {
    pub(crate) const fn number(self) -> i64 {
        match self {
            Self::Open => 0,
            Self::Reported => 1,
            Self::Settled => 2,
        }
    }

    pub(crate) const fn of_number(number: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Open),
            1 => Some(Self::Reported),
            2 => Some(Self::Settled),
            _ => None,
        }
    }
}

/// An attempt that was sent, or that may have been sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XxlRun {
    /// The number by which the executor knows it.
    pub log_id: i64,
    pub run: RunId,
    pub attempt: i32,
    pub job: JobId,
    /// The number by which the executor knows the job.
    pub number: i32,
    pub executor: ExecutorId,
    pub app: AppId,
    /// The node that it was sent from.
    pub node: NodeId,
    /// When the row was written.
    pub sent_at: Timestamp,
    /// How much is known of its end.
    pub state: XxlRunState,
    /// The code of the end: the executor's (0 or more), [`XXL_STOPPED`], or a lower one if the server assumed the end.
    pub code: Option<i32>,
    pub message: Option<String>,
    /// When the end became known.
    pub reported_at: Option<Timestamp>,
    /// The number of the first line of its log that is not stored yet, from 1.
    pub log_line: i64,
}

impl XxlRun {
    /// Records the end of the attempt if the report counts: see [`XxlExecutors::report_xxl`]. `false` if the recorded end stays.
    pub(crate) fn record_end(&mut self, report: &XxlReport, now: Timestamp) -> bool {
        let replaces_assumed_end = is_assumed(self.code) && report.code >= 0;
        let is_stopped = report.code == XXL_STOPPED && self.state != XxlRunState::Settled;
        let replaces_end = self.state == XxlRunState::Open || replaces_assumed_end || is_stopped;
        if replaces_end {
            (self.state, self.code, self.reported_at) = (XxlRunState::Reported, Some(report.code), Some(now));
            self.message = report.message.as_deref().map(truncate_message);
        }
        replaces_end
    }
}

/// The message without NUL, cut to the length that is stored.
fn truncate_message(message: &str) -> String {
    without_nul(&message.chars().take(XXL_MESSAGE_LEN_MAX).collect::<String>()).into_owned()
}

/// Applies the reports of an app to the attempts with their numbers, and returns the outcome of each. If an attempt has several reports,
/// they count as described at [`XxlExecutors::report_xxl`].
pub(crate) fn apply_reports(
    app: AppId,
    reports: &[XxlReport],
    runs: &mut BTreeMap<i64, XxlRun>,
    now: Timestamp,
) -> Vec<XxlReportOutcome> {
    let outcome = |report: &XxlReport| match runs.get_mut(&report.log_id) {
        Some(run) if run.app != app => XxlReportOutcome::OfOtherApp,
        Some(run) => {
            if run.record_end(report, now) {
                XxlReportOutcome::Accepted
            } else {
                XxlReportOutcome::Duplicate
            }
        }
        None => XxlReportOutcome::Unknown,
    };
    reports.iter().map(outcome).collect()
}

/// The end of an attempt, as an executor reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XxlReport {
    /// The number by which the executor knows the attempt.
    pub log_id: i64,
    /// The code of the end: the executor's, [`XXL_STOPPED`], or a lower one if the server assumes the end.
    pub code: i32,
    pub message: Option<String>,
}

/// An attempt that has its verdict, or that never began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XxlSettlement {
    pub log_id: i64,
    /// The code of the end from which the verdict follows; `None` if the attempt never began.
    pub code: Option<i32>,
}

impl XxlSettlement {
    /// Whether the verdict follows from an end that the server assumed.
    pub(crate) fn is_assumed(&self) -> bool {
        is_assumed(self.code)
    }
}

/// Whether a server assumed the end with this code.
pub(crate) fn is_assumed(code: Option<i32>) -> bool {
    code.is_some_and(|code| code < XXL_STOPPED)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XxlReportOutcome {
    /// The report is now the end of its attempt.
    Accepted,
    /// The end was known already.
    Duplicate,
    /// The attempt belongs to another app.
    OfOtherApp,
    /// No attempt has the number.
    Unknown,
}

/// Outcome of several reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XxlReportResults {
    /// The reported attempts that belong to the app, in their new state.
    pub runs: Vec<XxlRun>,
    /// The outcome of each report, in the order of the reports.
    pub outcomes: Vec<XxlReportOutcome>,
}

#[async_trait]
pub trait XxlExecutors {
    /// Registers an executor, or records that it registered again. An executor that registers again keeps its first id. Returns the id.
    async fn register_xxl(&self, executor: &XxlExecutor) -> Result<ExecutorId>;

    /// Records that an executor signed off; `false` if it is not registered.
    async fn unregister_xxl(&self, app: AppId, address: &str, now: Timestamp) -> Result<bool>;

    /// Registers an executor by hand. An executor that is already registered keeps its first id and the instants at which it registered
    /// itself, and gets the new token. Returns the id.
    async fn register_xxl_by_hand(&self, executor: &XxlExecutor, now: Timestamp) -> Result<ExecutorId>;

    /// Removes a registration by hand; `false` if there is none. The executor's own registration stays. An executor that has not registered
    /// itself for [`XXL_REGISTERED_FOR`] counts as signed off now, whether it signed off before or not.
    async fn unregister_xxl_by_hand(&self, app: AppId, address: &str) -> Result<bool>;

    /// The executors of one app, or of all apps, that are registered by hand; at most `limit`.
    async fn xxl_registered_by_hand(&self, app: Option<AppId>, limit: u32) -> Result<Vec<XxlExecutor>>;

    /// The executors that last registered at `since` or later, signed off or not; at most `limit`.
    async fn xxl_executors(&self, since: Timestamp, limit: u32) -> Result<Vec<XxlExecutor>>;

    /// The executors that last registered before `before` and have attempts with a known end but without a stored verdict.
    async fn xxl_executors_with_unsettled_ends(&self, before: Timestamp, limit: u32) -> Result<Vec<XxlExecutor>>;

    /// Assigns numbers to attempts before they are sent. `None` if the lease is no longer valid; nothing may then be sent.
    async fn send_xxl(&self, token: LeaseToken, runs: &[NewXxlRun], now: Timestamp) -> Result<Option<Vec<XxlRun>>>;

    /// The attempts of an executor that have no stored verdict, the oldest first.
    async fn unsettled_xxl(&self, executor: ExecutorId, limit: u32) -> Result<Vec<XxlRun>>;

    /// Records the ends of attempts of an app. The first end of each attempt counts, with two exceptions. An end that the server assumed
    /// has a code below -1, and the executor's report replaces it. [`XXL_STOPPED`] replaces any end that is not settled. A number that
    /// belongs to no attempt of this app changes nothing.
    async fn report_xxl(&self, app: AppId, reports: &[XxlReport], now: Timestamp) -> Result<XxlReportResults>;

    /// Records that attempts have their verdicts, or never began. A verdict from an end that the server assumed does not settle an attempt
    /// whose end is known by now: that end has no verdict yet.
    async fn settle_xxl(&self, settlements: &[XxlSettlement], now: Timestamp) -> Result<()>;

    /// Records the number of the first line of an attempt's log that is not stored yet.
    async fn note_xxl_log(&self, log_id: i64, next_line: i64) -> Result<()>;

    /// Removes, at most `limit` of each:
    /// - settled attempts whose ends were known before `before`;
    /// - other attempts that were sent before `before` and whose runs have ended;
    /// - executors that were last seen before `before`, are not registered by hand, and have only settled attempts.
    ///
    /// Returns how many were removed in total.
    async fn forget_xxl(&self, before: Timestamp, limit: u32) -> Result<u64>;
}
