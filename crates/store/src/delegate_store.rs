//! A macro for stores that wrap another store, to observe its calls or to disturb them. This file lists every method of every trait once.

/// Makes a type a [`Store`](crate::Store) that delegates each call to another one. The type has `fn inner(&self)`, which returns the other
/// store, and `async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T>`, which gets
/// each call with its name. A wrapper can implement some methods itself, in braces after the names of their traits. There are three such
/// sets of methods: `claim` and `finish`; these two with `note_running`, `check_runs` and `runs`; or all of these with `change_items`.
#[macro_export]
macro_rules! delegate_store {
    ($wrapper:ty) => {
        $crate::delegate_store!($wrapper {
            Claim {
                async fn claim(
                    &self,
                    token: $crate::LeaseToken,
                    jobs: &[$crate::ledger::ClaimJob],
                ) -> $crate::Result<$crate::ledger::ClaimResult> {
                    self.call("claim", $crate::Claim::claim(self.inner(), token, jobs)).await
                }
            }
            Finish {
                async fn finish(
                    &self,
                    finisher: $crate::ledger::Finisher<'_>,
                    batch: &[$crate::ledger::AttemptEnd],
                ) -> $crate::Result<$crate::ledger::Ends> {
                    self.call("finish", $crate::Finish::finish(self.inner(), finisher, batch)).await
                }
            }
        });
    };
    ($wrapper:ty { Claim { $($claim:tt)* } Finish { $($finish:tt)* } }) => {
        $crate::delegate_store!($wrapper {
            Claim { $($claim)* }
            Finish { $($finish)* }
            Dispatch {
                async fn note_running(
                    &self,
                    token: $crate::LeaseToken,
                    runs: &[$crate::ledger::RunAtExecutor],
                ) -> $crate::Result<()> {
                    self.call("note_running", $crate::Dispatch::note_running(self.inner(), token, runs)).await
                }
            }
            Runs {
                async fn check_runs(&self, ids: &[::rondel_core::RunId]) -> $crate::Result<Vec<$crate::ledger::RunCheck>> {
                    self.call("check_runs", $crate::Runs::check_runs(self.inner(), ids)).await
                }
                async fn runs(&self, ids: &[::rondel_core::RunId]) -> $crate::Result<Vec<::rondel_core::Run>> {
                    self.call("runs", $crate::Runs::runs(self.inner(), ids)).await
                }
            }
        });
    };
    ($wrapper:ty {
        Claim { $($claim:tt)* }
        Finish { $($finish:tt)* }
        Dispatch { $($dispatch:tt)* }
        Runs { $($runs:tt)* }
    }) => {
        $crate::delegate_store!($wrapper {
            Claim { $($claim)* }
            Finish { $($finish)* }
            Dispatch { $($dispatch)* }
            Runs { $($runs)* }
            Pumps {
                async fn change_items(
                    &self,
                    token: LeaseToken,
                    job: JobId,
                    changes: &[(String, ItemChange)],
                    now: Timestamp,
                ) -> $crate::Result<ChangedItems> {
                    self.call("change_items", $crate::Pumps::change_items(self.inner(), token, job, changes, now)).await
                }
            }
        });
    };
    ($wrapper:ty {
        Claim { $($own_claim:tt)* }
        Finish { $($own_finish:tt)* }
        Dispatch { $($own_dispatch:tt)* }
        Runs { $($own_runs:tt)* }
        Pumps { $($own_pumps:tt)* }
    }) => {
        const _: () = {
            use ::std::time::Duration;
            use ::rondel_core::{
                AccountId, AlertRuleId, AppId, CalendarId, ChannelId, DeliveryId, ExecutorId, IncidentId, JobId, MaintenanceId, MessageId, NamespaceId,
                NodeId, OutboxId, Reason, Run, RunId, RunStatus, ScriptId, SessionId, SilenceId, Timestamp, TokenId, TraceParent,
            };
            use ::rondel_core::{alert::{Incident, OpenIncidents, SubjectKind}, dense::DenseInstant, graph::Edge, homes::Switch, outcome::CancelRequest, request::IfOpen, run::Attempt, sketch::Step};
            use ::rondel_core::pump::{ItemChange, Item};
            use $crate::{LeaseToken, StoreError, DatabaseTroubleKind};
            use $crate::access::{
                Account, AccountChange, AccountChanged, AuditEntry, AuditQuery, KeptAccess, PasswordHash, SignInLink, TokenQuery, TokenRecord, WebSession,
            };
            use $crate::calendars::{CalendarChange, CalendarDeleted, CalendarOutline, CalendarRecord, CalendarSaved};
            use $crate::catalog::{
                App, Declared, Definition, DeletedJob, JobChange, JobCreated, JobDeleted, JobDeletion, JobQuery, JobRecord, JobSaved, ListedJob,
                Namespace, NamespaceDeleted, NewJob, VersionRecord,
            };
            use $crate::changes::{RunSnapshot, SavedJob};
            use $crate::alerts::{
                AlertEvent, AlertWrite, ExpectCheck, IncidentQuery, IncidentRecord, MaintenanceRecord, OpenRunExpectations,
                RuleChange, RuleDeleted, RuleRecord, RuleSaved, SilenceRecord, WatchedJob,
            };
            use $crate::channels::{AfterTry, Channel, ChannelDeleted, ChannelSaved, Delivery, IncidentMessage, LeaseChannels, LeasedChannel, NewMessage};
            use $crate::cluster::{
                ExecutorProof, ExecutorRecord, HomeMove, HostProcess, Join, JoinRequest, Node, NodeReport, Renewal, SeenExecutor, Session,
                StreamEnd, Switches,
            };
            use $crate::declarations::{DeclaredSetHeader, DeclaredSet};
            use $crate::ledger::{
                Adoption, CancelOutcome, CancelElsewhere, DeadNode, DueJob, DueRange, FenceRequest, FoundRuns, ExecutorRunCount, HomeLoad, RunAtExecutor, JobAtHome, KeyedRun, LimitName,
                MarkToRemove, MovedJobs, NotedWait, OpenPage, OrphanedJobs, RelayedAnswer, RequestedShards, RunQuery, RunSearch, UnsentPlace, UnsentRun,
            };
            use $crate::logs::{ChunkSize, LogChunk, LogRange, RemovedLogs};
            use $crate::outbox::{FailureWebhook, OutboxItem, TakeOutbox};
            use $crate::pumps::{ChangedItems, PumpJob};
            use $crate::reports::{FailureMessage, FailureQuery, ReportChange, ReportDeleted, ReportSaved, ReportWrite, ScheduledReport};
            use $crate::request_keys::{CallState, StoredAnswer, KeyedCall};
            use $crate::rollups::{ComingJob, JobActivity, UnsuccessfulCounts, NewestOutcomes, OpenJob, OpenQuery, PointKind, PointQuery, ChartRun, StatPoint};
            use ::rondel_core::shadow::compare::OldFire;
            use $crate::saved_filters::{FilterOwner, FilteredList, SavedFilter};
            use $crate::scripts::{ScriptChange, ScriptDeleted, ScriptRecord, ScriptSaved, ScriptVersion};
            use $crate::shadow::{ShadowFire, ShadowSpan};
            use $crate::upkeep::{JobStat, PurgeStep, StuckJob};
            use $crate::xxl::{NewXxlRun, XxlExecutor, XxlReport, XxlReportResults, XxlRun, XxlSettlement};

            $crate::delegate_store!(@$wrapper, Namespaces {
                fn namespace(name: &str) -> Option<Namespace>;
                fn namespaces() -> Vec<Namespace>;
                fn create_namespace(namespace: &Namespace, now: Timestamp) -> bool;
                fn delete_namespace(id: NamespaceId) -> NamespaceDeleted;
                fn app(namespace: NamespaceId, name: &str) -> Option<App>;
                fn apps(namespace: NamespaceId) -> Vec<App>;
                fn ensure_app(id: AppId, namespace: NamespaceId, name: &str, now: Timestamp) -> App;
            } also {});
            $crate::delegate_store!(@$wrapper, Catalog {
                fn job(namespace: NamespaceId, name: &str) -> Option<JobRecord>;
                fn deleted_job(namespace: NamespaceId, name: &str) -> Option<DeletedJob>;
                fn listed_jobs(namespace: NamespaceId, query: &JobQuery) -> Vec<ListedJob>;
                fn jobs(namespace: NamespaceId, query: &JobQuery) -> Vec<JobRecord>;
                fn listed_jobs_named(namespace: NamespaceId, names: &[&str]) -> Vec<ListedJob>;
                fn jobs_named(namespace: NamespaceId, names: &[&str]) -> Vec<JobRecord>;
                fn jobs_by_id(ids: &[JobId]) -> Vec<JobRecord>;
                fn job_names(ids: &[JobId]) -> Vec<(JobId, String)>;
                fn definitions(keys: &[(JobId, i64)]) -> Vec<Definition>;
                fn versions(job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Vec<VersionRecord>;
                fn edges(namespace: NamespaceId) -> Vec<Edge>;
                fn child_names(job: JobId) -> Vec<String>;
            } also {});
            $crate::delegate_store!(@$wrapper, CreateJobs {
                fn create_job(job: NewJob) -> JobCreated;
                fn create_jobs(jobs: &[NewJob]) -> Vec<JobCreated>;
            } also {});
            $crate::delegate_store!(@$wrapper, ChangeJobs {
                fn change_job(change: JobChange<'_>) -> JobSaved;
                fn delete_job(deletion: JobDeletion<'_>) -> JobDeleted;
            } also {});
            $crate::delegate_store!(@$wrapper, Accounts {
                fn create_account(account: &Account) -> bool;
                fn create_first_admin(account: &Account) -> bool;
                fn account(id: AccountId) -> Option<Account>;
                fn account_by_name(name: &str) -> Option<Account>;
                fn accounts(after_name: Option<&str>, limit: u32) -> Vec<Account>;
                fn has_admin_account() -> bool;
                fn change_account(id: AccountId, change: &AccountChange) -> AccountChanged;
                fn set_password(id: AccountId, password: &PasswordHash, kept_access: KeptAccess, now: Timestamp) -> bool;
                fn delete_account(id: AccountId) -> AccountChanged;
            } also {});
            $crate::delegate_store!(@$wrapper, SignIns {
                fn begin_sign_in(session: &WebSession, idle_max: Duration, count_max: u32) -> ();
                fn sign_in(hash: &str) -> Option<WebSession>;
                fn touch_sign_in(id: SessionId, now: Timestamp) -> ();
                fn sign_ins(account: AccountId) -> Vec<WebSession>;
                fn end_sign_in(id: SessionId, account: Option<AccountId>) -> bool;
                fn add_link(link: &SignInLink, now: Timestamp) -> ();
                fn link(hash: &str) -> Option<SignInLink>;
                fn take_link(hash: &str) -> Option<SignInLink>;
                fn count_attempt(bucket: i64, max: u32, window: Duration, now: Timestamp) -> $crate::access::AttemptDecision;
                fn server_key(name: &str, new_key: &str, now: Timestamp) -> String;
                fn forget_attempts(bucket: i64) -> ();
                fn is_known_address(account: AccountId, network: &str) -> bool;
                fn remember_address(account: AccountId, network: &str, now: Timestamp, count_max: u32) -> ();
            } also {});
            $crate::delegate_store!(@$wrapper, Tokens {
                fn add_token(token: &TokenRecord) -> bool;
                fn token(hash: &str) -> Option<TokenRecord>;
                fn token_by_id(id: TokenId) -> Option<TokenRecord>;
                fn tokens(query: &TokenQuery) -> Vec<TokenRecord>;
                fn count_valid_tokens(owner: AccountId, now: Timestamp) -> u64;
                fn count_valid_tokens_of_line(line: TokenId, now: Timestamp) -> u64;
                fn forget_tokens(before: Timestamp, limit: u32) -> u64;
                fn touch_token(id: TokenId, now: Timestamp) -> ();
                fn revoke_token(id: TokenId, now: Timestamp) -> bool;
                fn rotate_token(old_token: TokenId, old_ends_at: Timestamp, new: &TokenRecord) -> bool;
            } also {});
            $crate::delegate_store!(@$wrapper, AuditLog {
                fn add_audit(entry: &AuditEntry) -> ();
                fn complete_audit(entry: &AuditEntry) -> bool;
                fn audit(query: &AuditQuery) -> Vec<AuditEntry>;
            } also {});
            $crate::delegate_store!(@$wrapper, Claim {
                fn due_jobs(homes: &[NodeId], range: DueRange) -> Vec<DueJob>;
                fn dense_instants(homes: &[NodeId], range: DueRange, count_min: u32) -> Vec<DenseInstant>;
                fn jobs_with_rows_from(jobs: &[(JobId, Timestamp)]) -> Vec<JobId>;
                fn fires_with_rows(job: JobId, range: (Timestamp, Timestamp), limit: u32) -> Vec<(Timestamp, Timestamp)>;
                fn unsent_runs_of_job(token: LeaseToken, job: JobId, after: UnsentPlace, limit: u32) -> Vec<Run>;
                fn request_run(token: LeaseToken, run: Run) -> Run;
                fn request_keyed_run(token: LeaseToken, run: Run, if_open: IfOpen, now: Timestamp) -> KeyedRun;
                fn request_shards(token: LeaseToken, root: Run, shards: Vec<Run>) -> RequestedShards;
            } also { $($own_claim)* });
            $crate::delegate_store!(@$wrapper, Dispatch {
                fn take_waiting(token: LeaseToken, until: Timestamp, limit: u32) -> Vec<Run>;
                fn mark(token: LeaseToken, runs: &[RunAtExecutor]) -> Vec<RunId>;
                fn unmark(token: LeaseToken, marks: &[MarkToRemove]) -> ();
                fn shelve(token: LeaseToken, in_hand: &[RunId]) -> u64;
                fn note_waits(token: LeaseToken, waits: &[NotedWait]) -> ();
                fn expand(token: LeaseToken, run: RunId, shards: &[Run]) -> bool;
            } also { $($own_dispatch)* });
            $crate::delegate_store!(@$wrapper, Adopt {
                fn orphaned_jobs(token: LeaseToken, dead_nodes: &[DeadNode], limit: u32) -> OrphanedJobs;
                fn jobs_open_under_earlier_leases(token: LeaseToken, jobs: &[JobId]) -> Vec<JobId>;
                fn adopt(token: LeaseToken, dead_nodes: &[DeadNode], jobs: &[JobId]) -> Adoption;
            } also {});
            $crate::delegate_store!(@$wrapper, Finish {
            } also { $($own_finish)* });
            $crate::delegate_store!(@$wrapper, Cancel {
                fn ask_cancel(run: RunId, request: CancelRequest<'_>, now: Timestamp) -> CancelOutcome;
                fn ask_cancels(runs: &[RunId], request: CancelRequest<'_>, now: Timestamp) -> u64;
                fn ask_drops(runs: &[RunId], request: CancelRequest<'_>, now: Timestamp) -> ();
                fn drops(token: LeaseToken, after: RunId, limit: u32) -> Vec<(RunId, Reason)>;
                fn cancels(token: LeaseToken) -> Vec<(RunId, String)>;
                fn cancels_elsewhere(token: LeaseToken, after: RunId, limit: u32) -> Vec<CancelElsewhere>;
                fn open_runs(job: JobId, fire_at: Option<Timestamp>, app: Option<AppId>, limit: u32) -> Vec<Run>;
            } also {});
            $crate::delegate_store!(@$wrapper, Limits {
                fn limit_homes(token: LeaseToken, limits: &[LimitName]) -> Vec<NodeId>;
                fn give_limits(token: LeaseToken, limits: &[LimitName], to: Option<NodeId>) -> Vec<LimitName>;
            } also {});
            $crate::delegate_store!(@$wrapper, Relay {
                fn ask_fences(requests: &[FenceRequest], forget_before: Timestamp) -> ();
                fn fences_to_relay(token: LeaseToken, since: Timestamp, limit: u32) -> Vec<FenceRequest>;
                fn answer_fences(answers: &[RelayedAnswer], now: Timestamp) -> ();
                fn fence_answers(asker: NodeId, since: Timestamp, limit: u32) -> Vec<RelayedAnswer>;
            } also {});
            $crate::delegate_store!(@$wrapper, Move {
                fn hand_over(token: LeaseToken, runs: &[RunId], to: NodeId) -> Vec<RunId>;
                fn move_jobs(token: LeaseToken, moves: &[HomeMove], not_before: Timestamp) -> MovedJobs;
                fn unsent_runs(token: LeaseToken, after: RunId, limit: u32) -> Vec<UnsentRun>;
                fn unsent_runs_of_jobs(token: LeaseToken, jobs: &[JobId]) -> Vec<UnsentRun>;
                fn jobs_of_home(home: NodeId, after: JobId, limit: u32) -> Vec<JobAtHome>;
                fn homes_of_jobs(jobs: &[JobId]) -> Vec<(JobId, NodeId)>;
                fn home_loads(homes: &[NodeId], now: Timestamp) -> Vec<HomeLoad>;
                fn free_jobs(token: LeaseToken, dead_node: NodeId, limit: u32) -> u64;
            } also {});
            $crate::delegate_store!(@$wrapper, Runs {
                fn open_keys(token: LeaseToken, page: OpenPage) -> Vec<(Timestamp, RunId)>;
                fn list_runs(namespace: NamespaceId, query: &RunQuery) -> Vec<Run>;
                fn count_running_by_executor(namespace: NamespaceId) -> Vec<ExecutorRunCount>;
                fn running_runs_of_executor(namespace: NamespaceId, app: AppId, executor: &str, limit: u32) -> Vec<Run>;
                fn next_fire_after(run: &Run) -> Option<Run>;
                fn runs_below(parents: &[RunId], limit: u32) -> Vec<Run>;
                fn planned_rows(job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Vec<Run>;
                fn attempts(run: RunId) -> Vec<Attempt>;
            } also { $($own_runs)* });
            $crate::delegate_store!(@$wrapper, SearchRuns {
                fn search_runs(namespace: NamespaceId, search: &RunSearch) -> FoundRuns;
            } also {});
            $crate::delegate_store!(@$wrapper, Cluster {
                fn now() -> Timestamp;
                fn join(request: &JoinRequest) -> Join;
                fn renew(token: LeaseToken, lease: Duration) -> Option<Renewal>;
                fn release(token: LeaseToken, reached: Timestamp) -> ();
                fn nodes() -> Vec<Node>;
                fn report_node(token: LeaseToken, report: &NodeReport) -> ();
                fn set_node_switch(name: &str, switch: Switch) -> bool;
                fn set_app_switch(app: AppId, switch: Switch) -> bool;
                fn set_executor_switch(app: AppId, name: &str, switch: Switch, at: Timestamp) -> ();
                fn switches() -> Switches;
                fn forget_nodes(dead_since: Timestamp, limit: u32) -> u64;
            } also {
                fn is_single_server(&self) -> bool {
                    self.inner().is_single_server()
                }

                fn connections(&self) -> Option<$crate::cluster::Connections> {
                    self.inner().connections()
                }

                async fn diagnose(&self, error: &StoreError) -> DatabaseTroubleKind {
                    self.inner().diagnose(error).await
                }
            });
            $crate::delegate_store!(@$wrapper, Executors {
                fn open_session(token: LeaseToken, executor: &ExecutorRecord, process: Option<HostProcess>) -> Option<Timestamp>;
                fn beat_sessions(token: LeaseToken, executors: &[ExecutorId]) -> ();
                fn close_session(token: LeaseToken, executor: ExecutorId, end: StreamEnd) -> ();
                fn leave_sessions(executor: ExecutorId) -> ();
                fn sessions(since: Timestamp) -> Vec<Session>;
                fn sessions_that_may_have_carried(since: Timestamp) -> Vec<Session>;
                fn executors(namespace: NamespaceId, since: Timestamp) -> Vec<ExecutorRecord>;
                fn executor_proof(id: ExecutorId) -> Option<ExecutorProof>;
                fn executor_successors(id: ExecutorId, limit: u32) -> Vec<ExecutorId>;
                fn seen_executors(namespace: NamespaceId, since: Timestamp) -> Vec<SeenExecutor>;
                fn executors_by_id(ids: &[ExecutorId], since: Timestamp) -> Vec<ExecutorRecord>;
                fn forget_executors(seen_before: Timestamp, limit: u32) -> u64;
            } also {});
            $crate::delegate_store!(@$wrapper, Logs {
                fn append_logs(chunks: &[LogChunk]) -> ();
                fn log_chunks(run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Vec<LogChunk>;
                fn log_sizes(run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Vec<ChunkSize>;
                fn log_cut(namespace: NamespaceId, bytes: u64) -> Option<RunId>;
                fn remove_logs(namespace: NamespaceId, range: LogRange, limit: u32) -> RemovedLogs;
            } also {});
            $crate::delegate_store!(@$wrapper, Outbox {
                fn failure_webhook(namespace: NamespaceId) -> Option<FailureWebhook>;
                fn put_failure_webhook(namespace: NamespaceId, webhook: &FailureWebhook) -> bool;
                fn delete_failure_webhook(namespace: NamespaceId) -> bool;
                fn take_outbox(now: Timestamp, take: TakeOutbox<'_>) -> Vec<OutboxItem>;
                fn drop_outbox(ids: &[OutboxId]) -> ();
                fn postpone_outbox(item: &OutboxItem, try_count: i32, due_at: Timestamp) -> ();
                fn forget_outbox(namespace: NamespaceId, before: Timestamp, limit: u32) -> u64;
            } also {});
            $crate::delegate_store!(@$wrapper, Channels {
                fn channel(namespace: NamespaceId, name: &str) -> Option<Channel>;
                fn channels(namespace: NamespaceId) -> Vec<Channel>;
                fn save_channel(channel: &Channel, expected: Option<Timestamp>) -> ChannelSaved;
                fn delete_channel(namespace: NamespaceId, name: &str, expected: Option<Timestamp>) -> ChannelDeleted;
                fn write_messages(messages: &[NewMessage]) -> u64;
                fn lease_channels(lease: LeaseChannels<'_>) -> Vec<LeasedChannel>;
                fn free_channel(channel: ChannelId, held_until: Timestamp, free_at: Timestamp) -> ();
                fn record_try(delivery: &Delivery, after: AfterTry) -> bool;
                fn record_test(delivery: &Delivery) -> ();
                fn deliveries(channel: ChannelId, before: Option<DeliveryId>, limit: u32) -> Vec<Delivery>;
                fn incident_messages(incident: IncidentId, limit: u32) -> Vec<IncidentMessage>;
                fn channels_of_incident(incident: IncidentId) -> Vec<String>;
                fn message_subjects(messages: &[MessageId]) -> Vec<(MessageId, String)>;
                fn last_deliveries(namespace: NamespaceId) -> Vec<Delivery>;
                fn forget_messages(before: Timestamp, limit: u32) -> u64;
            } also {});
            $crate::delegate_store!(@$wrapper, Alerts {
                fn alert_rules(namespace: NamespaceId) -> Vec<RuleRecord>;
                fn save_alert_rule(change: RuleChange<'_>) -> RuleSaved;
                fn delete_alert_rule(namespace: NamespaceId, name: &str, expected_version: Option<i64>, now: Timestamp) -> RuleDeleted;
                fn namespaces_with_due_alerts(now: Timestamp) -> Vec<NamespaceId>;
                fn alert_version(namespace: NamespaceId) -> Option<i64>;
                fn alert_events(namespace: NamespaceId, limit: u32) -> Vec<AlertEvent>;
                fn open_incidents(namespace: NamespaceId, rule: AlertRuleId, subjects: &[(SubjectKind, i64)]) -> OpenIncidents;
                fn open_incidents_of_rule(rule: AlertRuleId, limit: u32) -> Vec<Incident>;
                fn due_incidents(namespace: NamespaceId, now: Timestamp, limit: u32) -> Vec<IncidentRecord>;
                fn due_expectations(namespace: NamespaceId, now: Timestamp, limit: u32) -> Vec<ExpectCheck>;
                fn expect_checks_of_jobs(jobs: &[JobId]) -> Vec<ExpectCheck>;
                fn open_run_expectations(namespace: NamespaceId) -> OpenRunExpectations;
                fn acknowledge_dead_letters(namespace: NamespaceId, runs: &[RunId]) -> u64;
                fn dead_letter_count(namespace: NamespaceId, limit: u32) -> u64;
                fn maintenance(namespace: Option<NamespaceId>, after: Timestamp) -> Vec<MaintenanceRecord>;
                fn add_maintenance(record: &MaintenanceRecord) -> bool;
                fn end_maintenance(namespace: NamespaceId, id: MaintenanceId, now: Timestamp) -> bool;
                fn write_alerts(write: &AlertWrite<'_>) -> bool;
                fn incidents(query: IncidentQuery<'_>) -> Vec<IncidentRecord>;
                fn ungrouped_incidents(query: IncidentQuery<'_>) -> Vec<IncidentRecord>;
                fn incidents_of_group(group: IncidentId, limit: u32) -> Vec<IncidentRecord>;
                fn incident(namespace: NamespaceId, id: IncidentId) -> Option<IncidentRecord>;
                fn acknowledge_incident(namespace: NamespaceId, id: IncidentId, by: &str, now: Timestamp) -> bool;
                fn silences(namespace: NamespaceId, after: Timestamp) -> Vec<SilenceRecord>;
                fn add_silence(silence: &SilenceRecord) -> bool;
                fn end_silence(namespace: NamespaceId, id: SilenceId, now: Timestamp) -> bool;
                fn forget_incidents(before: Timestamp, limit: u32) -> u64;
                fn watched_jobs(namespace: NamespaceId, app: Option<AppId>, after_name: &str, limit: u32) -> Vec<WatchedJob>;
                fn watched_jobs_by_id(jobs: &[JobId]) -> Vec<WatchedJob>;
                fn newest_successes_since(jobs: &[JobId], since: Timestamp) -> Vec<(JobId, Timestamp)>;
            } also {});
            $crate::delegate_store!(@$wrapper, SavedFilters {
                fn saved_filters(owner: FilterOwner) -> Vec<SavedFilter>;
                fn save_filter(owner: FilterOwner, filter: &SavedFilter, now: Timestamp) -> bool;
                fn delete_filter(owner: FilterOwner, list: FilteredList, name: &str) -> bool;
            } also {});
            $crate::delegate_store!(@$wrapper, RequestKeys {
                fn begin_call(call: KeyedCall<'_>, now: Timestamp, given_up_before: Timestamp) -> CallState;
                fn renew_call(call: KeyedCall<'_>, now: Timestamp) -> ();
                fn end_call(call: KeyedCall<'_>, answer: Option<&StoredAnswer>) -> ();
                fn forget_calls(before: Timestamp, limit: u32) -> u64;
            } also {});
            $crate::delegate_store!(@$wrapper, Traces {
                fn note_trace(run: RunId, parent: TraceParent) -> ();
                fn traces(runs: &[RunId]) -> Vec<(RunId, TraceParent)>;
                fn forget_traces(before: Timestamp, limit: u32) -> u64;
            } also {});
            $crate::delegate_store!(@$wrapper, Declarations {
                fn declare_job(id: JobId, declared: &Declared) -> bool;
                fn undeclare_jobs(ids: &[JobId], since: Timestamp) -> u64;
                fn record_declared_set(app: AppId, hash: &str, specs: &str, now: Timestamp) -> ();
                fn declared_set_headers(since: Timestamp) -> Vec<DeclaredSetHeader>;
                fn declared_sets(app: AppId) -> Vec<DeclaredSet>;
                fn forget_declared_set(header: &DeclaredSetHeader) -> ();
            } also {});
            $crate::delegate_store!(@$wrapper, Calendars {
                fn calendar(namespace: NamespaceId, name: &str) -> Option<CalendarRecord>;
                fn calendars(namespace: NamespaceId, after_name: Option<&str>, limit: u32) -> Vec<CalendarRecord>;
                fn calendar_outlines(namespace: NamespaceId, after_name: Option<&str>, limit: u32) -> Vec<CalendarOutline>;
                fn save_calendar(change: CalendarChange<'_>) -> CalendarSaved;
                fn delete_calendar(id: CalendarId, expected_version: Option<i64>) -> CalendarDeleted;
                fn jobs_with_outdated_calendar(limit: u32) -> Vec<JobRecord>;
                fn jobs_with_calendar(id: CalendarId, within: Option<&[AppId]>, after_name: Option<&str>, limit: u32) -> Vec<String>;
            } also {});
            $crate::delegate_store!(@$wrapper, Scripts {
                fn script(namespace: NamespaceId, name: &str) -> Option<ScriptRecord>;
                fn scripts(namespace: NamespaceId, after_name: Option<&str>, limit: u32) -> Vec<ScriptRecord>;
                fn script_version(id: ScriptId, version: i64) -> Option<(ScriptVersion, String)>;
                fn script_versions(id: ScriptId, before: Option<i64>, limit: u32) -> Vec<ScriptVersion>;
                fn save_script(change: ScriptChange<'_>) -> ScriptSaved;
                fn delete_script(namespace: NamespaceId, name: &str, expected_version: Option<i64>) -> ScriptDeleted;
                fn jobs_with_script(namespace: NamespaceId, name: &str, within: Option<&[AppId]>, after_name: Option<&str>, limit: u32) -> Vec<String>;
            } also {});
            $crate::delegate_store!(@$wrapper, Changes {
                fn snapshots_after(after: RunId, limit: u32) -> Vec<RunSnapshot>;
                fn current_snapshots(ids: &[RunId]) -> Vec<RunSnapshot>;
                fn snapshots_of_lease(owner: LeaseToken, limit: u32) -> Vec<RunSnapshot>;
                fn jobs_saved(since: Timestamp, limit: u32) -> Vec<SavedJob>;
                fn executor_names(ids: &[ExecutorId]) -> Vec<(ExecutorId, NamespaceId, String)>;
            } also {});
            $crate::delegate_store!(@$wrapper, Upkeep {
                fn begin_pass(task: &str, period: Duration) -> bool;
                fn purge(finished_before: Timestamp, after: RunId, limit: u32) -> PurgeStep;
            } also {});
            $crate::delegate_store!(@$wrapper, Heal {
                fn stuck_jobs(limit: u32) -> Vec<StuckJob>;
                fn heal_job(stuck_job: StuckJob, next_fire_at: Option<Timestamp>) -> bool;
                fn free_homeless(limit: u32) -> u64;
            } also {});
            $crate::delegate_store!(@$wrapper, Stats {
                fn roll_up(before: Timestamp, limit: u32) -> u64;
                fn job_stats(job: JobId, from: Timestamp, to: Timestamp) -> Vec<JobStat>;
                fn forget_stats(before: Timestamp, limit: u32) -> u64;
            } also {});
            $crate::delegate_store!(@$wrapper, Rollups {
                fn points(query: &PointQuery<'_>) -> Vec<StatPoint>;
                fn forget_points(kind: PointKind, step: Step, before: Timestamp, limit: u32) -> u64;
                fn failing_jobs(namespace: NamespaceId, within: Option<&[AppId]>, limit: u32) -> Vec<NewestOutcomes>;
                fn unsuccessful_runs(namespace: NamespaceId, since: RunId, row_count: u32) -> UnsuccessfulCounts;
                fn chart_runs(jobs: &[JobId], from: Timestamp, to: Timestamp, limit: u32) -> Vec<ChartRun>;
                fn chart_runs_of_namespace(namespace: NamespaceId, ids: (RunId, RunId), limit: u32) -> Vec<ChartRun>;
                fn open_chart_runs(namespace: NamespaceId, status: RunStatus, limit: u32) -> Vec<ChartRun>;
                fn open_jobs(query: OpenQuery) -> Vec<OpenJob>;
                fn job_activity(jobs: &[JobId], since: Timestamp) -> Vec<JobActivity>;
                fn coming_jobs(namespace: NamespaceId, to: Timestamp, limit: u32) -> Vec<ComingJob>;
                fn idle_jobs(namespace: NamespaceId, before: Timestamp, limit: u32) -> Vec<(JobId, i64, Timestamp)>;
            } also {});
            $crate::delegate_store!(@$wrapper, Reports {
                fn failure_messages(query: &FailureQuery<'_>) -> Vec<FailureMessage>;
                fn forget_failure_stats(before: Timestamp, limit: u32) -> u64;
                fn report_schedule(namespace: NamespaceId) -> Option<ScheduledReport>;
                fn save_report_schedule(change: ReportChange<'_>) -> ReportSaved;
                fn delete_report_schedule(namespace: NamespaceId, expected_version: Option<i64>) -> ReportDeleted;
                fn due_reports(now: Timestamp, limit: u32) -> Vec<ScheduledReport>;
                fn write_report(write: &ReportWrite<'_>) -> bool;
            } also {});
            $crate::delegate_store!(@$wrapper, XxlExecutors {
                fn register_xxl(executor: &XxlExecutor) -> ExecutorId;
                fn unregister_xxl(app: AppId, address: &str, now: Timestamp) -> bool;
                fn register_xxl_by_hand(executor: &XxlExecutor, now: Timestamp) -> ExecutorId;
                fn unregister_xxl_by_hand(app: AppId, address: &str) -> bool;
                fn xxl_registered_by_hand(app: Option<AppId>, limit: u32) -> Vec<XxlExecutor>;
                fn xxl_executors(since: Timestamp, limit: u32) -> Vec<XxlExecutor>;
                fn xxl_executors_with_unsettled_ends(before: Timestamp, limit: u32) -> Vec<XxlExecutor>;
                fn send_xxl(token: LeaseToken, runs: &[NewXxlRun], now: Timestamp) -> Option<Vec<XxlRun>>;
                fn unsettled_xxl(executor: ExecutorId, limit: u32) -> Vec<XxlRun>;
                fn report_xxl(app: AppId, reports: &[XxlReport], now: Timestamp) -> XxlReportResults;
                fn settle_xxl(settlements: &[XxlSettlement], now: Timestamp) -> ();
                fn note_xxl_log(log_id: i64, next_line: i64) -> ();
                fn forget_xxl(before: Timestamp, limit: u32) -> u64;
            } also {});
            $crate::delegate_store!(@$wrapper, ShadowFires {
                fn add_shadow_fires(namespace: NamespaceId, source: &str, fires: &[ShadowFire]) -> u64;
                fn shadow_fires(namespace_and_source: (NamespaceId, &str), job: JobId, range: (Timestamp, Timestamp), limit: u32) -> Vec<OldFire>;
                fn shadow_span(namespace: NamespaceId, source: &str) -> Option<ShadowSpan>;
                fn forget_shadow_fires(before: Timestamp, limit: u32) -> u64;
            } also {});
            $crate::delegate_store!(@$wrapper, Pumps {
                fn pump_jobs() -> Vec<PumpJob>;
                fn pump_roots(job: JobId, now: Timestamp, limit: u32) -> Vec<Run>;
                fn pump_items(job: JobId) -> Vec<Item>;
                fn forget_pump(job: JobId, version: i64) -> ();
            } also { $($own_pumps)* });
        };
    };
    (@$wrapper:ty, $trait:ident {
        $(fn $name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)*
    } also { $($rest:tt)* }) => {
        #[$crate::async_trait]
        impl $crate::$trait for $wrapper {
            $(async fn $name(&self, $($arg: $kind),*) -> $crate::Result<$answer> {
                self.call(stringify!($name), $crate::$trait::$name(self.inner(), $($arg),*)).await
            })*
            $($rest)*
        }
    };
}
