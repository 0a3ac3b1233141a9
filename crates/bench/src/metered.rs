//! The store with a watch on it: it passes every call on, and notes how long calls took, which fires were claimed, and
//! when their verdicts were durable.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::graph::Edge;
use rondel_core::homes::Switch;
use rondel_core::run::Attempt;
use rondel_core::{
    AccountId, AppId, CalendarId, ExecutorId, JobId, NamespaceId, NodeId, OutboxId, Run, RunId, SessionId, Timestamp,
    TokenId,
};
use rondel_store::access::{
    Account, AccountChange, AccountChanged, AuditEntry, AuditQuery, PasswordHash, SignInLink, TokenQuery, TokenRecord,
    WebSession,
};
use rondel_store::calendars::{CalendarChange, CalendarDeleted, CalendarRecord, CalendarSaved};
use rondel_store::catalog::{
    App, Changed, Created, Declared, Definition, Deleted, JobChange, JobQuery, JobRecord, Namespace, NamespaceDeleted,
    NewJob, VersionRecord,
};
use rondel_store::cluster::{ExecutorRecord, HomeMove, Join, JoinRequest, Node, NodeReport, Session};
use rondel_store::declarations::{DeclaredMark, DeclaredSet};
use rondel_store::ledger::{
    Adopted, CancelAsked, CancelElsewhere, ClaimJob, Claimed, DueJob, DueRange, Ends, Finish, Finished, Finisher,
    InHand, LimitName, MovedJobs, RunCheck, RunQuery, UnsentRun,
};
use rondel_store::logs::{LogChunk, LogRange, RemovedLogs};
use rondel_store::outbox::{FailureWebhook, OutboxItem};
use rondel_store::request_keys::{Begun, KeptAnswer, KeyedCall};
use rondel_store::upkeep::{JobStat, StuckJob};
use rondel_store::{
    Accounts, AuditLog, Calendars, Catalog, Cluster, Declarations, LeaseToken, Ledger, Logs, Outbox, RequestKeys,
    Result, SignIns, SqlStore, StoreError, Tokens, Trouble, Upkeep,
};
use tokio::time::Instant;

use crate::clock;
use crate::recorder::Window;

/// How long calls of one kind took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    pub(crate) calls: u64,
    /// Rows that went in with them, where that says something.
    pub(crate) rows: u64,
    pub(crate) total: Duration,
    pub(crate) max: Duration,
}

/// The fires of one instant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fires {
    pub(crate) claimed: u64,
    pub(crate) durable: u64,
    /// How long after the instant the last verdict was durable, in microseconds.
    pub(crate) last_durable: u64,
}

/// What was seen since the last [`Metered::begin`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) calls: BTreeMap<&'static str, Timing>,
    pub(crate) fires: BTreeMap<Timestamp, Fires>,
    /// Results that became durable at whatever instant, and with them other answers to results.
    pub(crate) stored: u64,
    pub(crate) other_answers: u64,
    /// Results that became durable while the window was open.
    pub(crate) stored_in_window: u64,
    /// Claimed runs without a verdict, by their instant.
    open: HashMap<RunId, Timestamp>,
    window: Option<Window>,
    /// A job whose runs are not measured.
    ignored: Option<JobId>,
}

#[derive(Debug)]
pub(crate) struct Metered {
    inner: Arc<SqlStore>,
    metrics: Mutex<Metrics>,
}

impl Metered {
    pub(crate) fn new(inner: Arc<SqlStore>) -> Self {
        Self { inner, metrics: Mutex::default() }
    }

    /// Opens the window: calls are counted from now on, results while it lasts.
    pub(crate) fn begin(&self, window: Window) {
        let mut metrics = self.lock();
        metrics.calls.clear();
        metrics.window = Some(window);
    }

    /// Runs of this job are not counted.
    pub(crate) fn ignore(&self, job: JobId) {
        self.lock().ignored = Some(job);
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Metrics) -> T) -> T {
        read(&self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Metrics> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn time<T>(&self, name: &'static str, rows: usize, call: impl Future<Output = Result<T>>) -> Result<T> {
        let start = Instant::now();
        let done = call.await;
        let took = start.elapsed();
        let mut metrics = self.lock();
        let timing = metrics.calls.entry(name).or_default();
        timing.calls += 1;
        timing.rows += rows as u64;
        timing.total += took;
        timing.max = timing.max.max(took);
        done
    }

    fn note_claimed(&self, jobs: &[ClaimJob], claimed: &Claimed) {
        let mut metrics = self.lock();
        let won: HashMap<JobId, i64> = claimed.jobs.iter().copied().collect();
        let ignored = metrics.ignored;
        let counts = |job: &&ClaimJob| won.contains_key(&job.seen.job) && Some(job.seen.job) != ignored;
        for run in jobs.iter().filter(counts).flat_map(|job| &job.runs) {
            if !run.status.is_terminal() && !claimed.existing.contains(&run.id) {
                metrics.open.insert(run.id, run.fire_at);
                metrics.fires.entry(run.fire_at).or_default().claimed += 1;
            }
        }
    }

    fn note_finished(&self, batch: &[Finish], finished: &[Finished]) {
        let now = clock::now();
        let mut metrics = self.lock();
        let in_window = metrics.window.is_some_and(|window| window.has(now));
        for (finish, answer) in batch.iter().zip(finished) {
            if Some(finish.job) == metrics.ignored {
                continue;
            }
            if !matches!(answer, Finished::Stored(_, None)) {
                metrics.other_answers += 1;
                continue;
            }
            metrics.stored += 1;
            metrics.stored_in_window += u64::from(in_window);
            if let Some(fire_at) = metrics.open.remove(&finish.run) {
                let fires = metrics.fires.entry(fire_at).or_default();
                fires.durable += 1;
                let late = u64::try_from(clock::micros_after(fire_at)).unwrap_or(0);
                fires.last_durable = fires.last_durable.max(late);
            }
        }
    }
}

/// The calls of one trait that are timed and passed on; after `also`, those that are looked at.
macro_rules! pass_on {
    ($trait:ident { $(fn $name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)* } also { $($rest:tt)* }) => {
        #[async_trait]
        impl $trait for Metered {
            $(async fn $name(&self, $($arg: $kind),*) -> Result<$answer> {
                self.time(stringify!($name), 0, self.inner.$name($($arg),*)).await
            })*
            $($rest)*
        }
    };
}

pass_on!(Catalog {
    fn namespace(name: &str) -> Option<Namespace>;
    fn namespaces() -> Vec<Namespace>;
    fn create_namespace(namespace: &Namespace, now: Timestamp) -> bool;
    fn delete_namespace(id: NamespaceId) -> NamespaceDeleted;
    fn app(namespace: NamespaceId, name: &str) -> Option<App>;
    fn apps(namespace: NamespaceId) -> Vec<App>;
    fn ensure_app(id: AppId, namespace: NamespaceId, name: &str, now: Timestamp) -> App;
    fn create_job(job: NewJob) -> Created;
    fn create_jobs(jobs: &[NewJob]) -> Vec<Created>;
    fn jobs_named(namespace: NamespaceId, names: &[&str]) -> Vec<JobRecord>;
    fn edges(namespace: NamespaceId) -> Vec<Edge>;
    fn job(namespace: NamespaceId, name: &str) -> Option<JobRecord>;
    fn jobs(namespace: NamespaceId, query: &JobQuery) -> Vec<JobRecord>;
    fn job_names(ids: &[JobId]) -> Vec<(JobId, String)>;
    fn definitions(keys: &[(JobId, i64)]) -> Vec<Definition>;
    fn change_job(change: JobChange<'_>) -> Changed;
    fn delete_job(id: JobId, expected_version: Option<i64>, now: Timestamp) -> Deleted;
    fn child_names(job: JobId) -> Vec<String>;
    fn declare_job(id: JobId, declared: &Declared) -> bool;
    fn undeclare_jobs(ids: &[JobId], since: Timestamp) -> u64;
    fn versions(job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Vec<VersionRecord>;
} also {});

pass_on!(Accounts {
    fn create_account(account: &Account) -> bool;
    fn create_first_admin(account: &Account) -> bool;
    fn account(id: AccountId) -> Option<Account>;
    fn account_by_name(name: &str) -> Option<Account>;
    fn accounts(after_name: Option<&str>, limit: u32) -> Vec<Account>;
    fn has_admin_account() -> bool;
    fn change_account(id: AccountId, change: &AccountChange) -> AccountChanged;
    fn set_password(id: AccountId, password: &PasswordHash, keep: Option<SessionId>, now: Timestamp) -> bool;
    fn delete_account(id: AccountId) -> AccountChanged;
} also {});

pass_on!(SignIns {
    fn begin_sign_in(session: &WebSession, idle_max: Duration, count_max: u32) -> ();
    fn sign_in(hash: &str) -> Option<WebSession>;
    fn touch_sign_in(id: SessionId, now: Timestamp) -> ();
    fn sign_ins(account: AccountId) -> Vec<WebSession>;
    fn end_sign_in(id: SessionId, account: Option<AccountId>) -> bool;
    fn end_sign_ins(account: AccountId, keep: Option<SessionId>) -> u64;
    fn add_link(link: &SignInLink, now: Timestamp) -> ();
    fn link(hash: &str) -> Option<SignInLink>;
    fn take_link(hash: &str) -> Option<SignInLink>;
    fn count_attempt(bucket: i64, max: u32, window: Duration, now: Timestamp) -> rondel_store::access::Attempt;
    fn forget_attempts(bucket: i64) -> ();
} also {});

pass_on!(Tokens {
    fn add_token(token: &TokenRecord) -> ();
    fn token(hash: &str) -> Option<TokenRecord>;
    fn token_by_id(id: TokenId) -> Option<TokenRecord>;
    fn tokens(query: &TokenQuery) -> Vec<TokenRecord>;
    fn touch_token(id: TokenId, now: Timestamp) -> ();
    fn revoke_token(id: TokenId, now: Timestamp) -> bool;
    fn rotate_token(old: TokenId, old_ends_at: Timestamp, new: &TokenRecord) -> bool;
} also {});

pass_on!(AuditLog {
    fn add_audit(entry: &AuditEntry) -> ();
    fn audit(query: &AuditQuery) -> Vec<AuditEntry>;
} also {});

pass_on!(Ledger {
    fn due_jobs(homes: &[NodeId], range: DueRange) -> Vec<DueJob>;
    fn request_run(token: LeaseToken, run: Run) -> Run;
    fn take_waiting(token: LeaseToken, until: Timestamp, limit: u32) -> Vec<Run>;
    fn overdue(token: LeaseToken, before: Timestamp, limit: u32) -> Vec<Run>;
    fn running(token: LeaseToken, limit: u32) -> Vec<Run>;
    fn adopt(token: LeaseToken, dead: &[NodeId], limit: u32) -> Vec<Adopted>;
    fn runs(ids: &[RunId]) -> Vec<Run>;
    fn mark(token: LeaseToken, runs: &[InHand]) -> Vec<RunId>;
    fn unmark(token: LeaseToken, runs: &[(RunId, i32)]) -> ();
    fn expand(token: LeaseToken, run: RunId, shards: &[Run]) -> bool;
    fn ask_cancel(run: RunId, by: &str, now: Timestamp) -> CancelAsked;
    fn ask_cancels(runs: &[RunId], by: &str, now: Timestamp) -> u64;
    fn cancels_elsewhere(token: LeaseToken, limit: u32) -> Vec<CancelElsewhere>;
    fn limit_homes(token: LeaseToken, limits: &[LimitName]) -> Vec<NodeId>;
    fn hand_over(token: LeaseToken, runs: &[RunId], to: NodeId, not_before: Timestamp) -> Vec<RunId>;
    fn move_jobs(token: LeaseToken, moves: &[HomeMove], not_before: Timestamp) -> MovedJobs;
    fn unsent(token: LeaseToken, after: RunId, limit: u32) -> Vec<UnsentRun>;
    fn jobs_at(home: NodeId, after: JobId, limit: u32) -> Vec<JobId>;
    fn count_jobs_at(home: NodeId) -> u64;
    fn free_jobs(token: LeaseToken, dead: NodeId, limit: u32) -> u64;
    fn open_runs(job: JobId, fire_at: Option<Timestamp>, limit: u32) -> Vec<Run>;
    fn cancels(token: LeaseToken) -> Vec<(RunId, String)>;
    fn list_runs(namespace: NamespaceId, query: &RunQuery) -> Vec<Run>;
    fn attempts(run: RunId) -> Vec<Attempt>;
    fn runs_below(parents: &[RunId], limit: u32) -> Vec<Run>;
    fn planned_rows(job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Vec<Run>;
} also {
    async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<Claimed> {
        let claimed = self.time("claim", jobs.len(), self.inner.claim(token, jobs)).await?;
        self.note_claimed(jobs, &claimed);
        Ok(claimed)
    }

    async fn finish(&self, finisher: Finisher<'_>, batch: &[Finish]) -> Result<Ends> {
        let ends = self.time("finish", batch.len(), self.inner.finish(finisher, batch)).await?;
        self.note_finished(batch, &ends.answers);
        Ok(ends)
    }

    async fn check_runs(&self, ids: &[RunId]) -> Result<Vec<RunCheck>> {
        self.time("check_runs", ids.len(), self.inner.check_runs(ids)).await
    }

    async fn note_running(&self, token: LeaseToken, runs: &[InHand]) -> Result<()> {
        self.time("note_running", runs.len(), self.inner.note_running(token, runs)).await
    }
});

pass_on!(Cluster {
    fn now() -> Timestamp;
    fn join(request: &JoinRequest) -> Join;
    fn renew(token: LeaseToken, lease: Duration) -> Option<Timestamp>;
    fn release(token: LeaseToken) -> ();
    fn nodes() -> Vec<Node>;
    fn report_node(token: LeaseToken, report: &NodeReport) -> ();
    fn set_node_switch(name: &str, switch: Switch) -> bool;
    fn set_app_switch(app: AppId, switch: Switch) -> bool;
    fn app_switches() -> Vec<(AppId, Switch)>;
    fn forget_nodes(dead_since: Timestamp, limit: u32) -> u64;
    fn open_session(token: LeaseToken, executor: &ExecutorRecord) -> ();
    fn beat_sessions(token: LeaseToken, executors: &[ExecutorId]) -> ();
    fn close_session(token: LeaseToken, executor: ExecutorId) -> ();
    fn sessions(since: Timestamp) -> Vec<Session>;
    fn executors(namespace: NamespaceId, since: Timestamp) -> Vec<ExecutorRecord>;
} also {
    fn is_single_server(&self) -> bool {
        self.inner.is_single_server()
    }

    async fn trouble(&self, error: &StoreError) -> Trouble {
        self.inner.trouble(error).await
    }
});

pass_on!(Logs {
    fn append_logs(chunks: &[LogChunk]) -> ();
    fn log_chunks(run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Vec<LogChunk>;
    fn log_cut(namespace: NamespaceId, bytes: u64) -> Option<RunId>;
    fn remove_logs(namespace: NamespaceId, range: LogRange, limit: u32) -> RemovedLogs;
} also {});

pass_on!(Outbox {
    fn failure_webhook(namespace: NamespaceId) -> Option<FailureWebhook>;
    fn put_failure_webhook(namespace: NamespaceId, webhook: &FailureWebhook) -> bool;
    fn delete_failure_webhook(namespace: NamespaceId) -> bool;
    fn take_outbox(now: Timestamp, limit: u32, hold: Duration) -> Vec<OutboxItem>;
    fn drop_outbox(ids: &[OutboxId]) -> ();
    fn postpone_outbox(item: &OutboxItem, attempt_count: i32, due_at: Timestamp) -> ();
} also {});

pass_on!(RequestKeys {
    fn begin_call(call: KeyedCall<'_>, now: Timestamp, given_up: Timestamp) -> Begun;
    fn end_call(call: KeyedCall<'_>, answer: Option<&KeptAnswer>) -> ();
    fn forget_calls(before: Timestamp, limit: u32) -> u64;
} also {});

pass_on!(Declarations {
    fn see_declared_set(app: AppId, hash: &str, specs: &str, now: Timestamp) -> ();
    fn declared_marks(since: Timestamp) -> Vec<DeclaredMark>;
    fn declared_sets(app: AppId) -> Vec<DeclaredSet>;
    fn forget_declared_set(mark: &DeclaredMark) -> ();
} also {});

pass_on!(Calendars {
    fn calendar(namespace: NamespaceId, name: &str) -> Option<CalendarRecord>;
    fn calendars(namespace: NamespaceId, after_name: Option<&str>, limit: u32) -> Vec<CalendarRecord>;
    fn save_calendar(change: CalendarChange<'_>) -> CalendarSaved;
    fn delete_calendar(id: CalendarId, expected_version: Option<i64>) -> CalendarDeleted;
    fn jobs_behind(limit: u32) -> Vec<JobRecord>;
    fn calendar_users(id: CalendarId, after_name: Option<&str>, limit: u32) -> Vec<String>;
} also {});

pass_on!(Upkeep {
    fn roll_up(before: Timestamp, limit: u32) -> u64;
    fn job_stats(job: JobId, from: Timestamp, to: Timestamp) -> Vec<JobStat>;
    fn forget_stats(before: Timestamp, limit: u32) -> u64;
    fn stuck_jobs(limit: u32) -> Vec<StuckJob>;
    fn heal_job(seen: StuckJob, next_fire_at: Option<Timestamp>) -> bool;
    fn free_homeless(nodes: &[NodeId], limit: u32) -> u64;
    fn begin_pass(task: &str, period: Duration) -> bool;
    fn purge(finished_before: Timestamp, limit: u32) -> u64;
    fn forget_executors(seen_before: Timestamp, limit: u32) -> u64;
} also {});
