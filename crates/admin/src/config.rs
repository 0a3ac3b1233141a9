//! The settings of the engine.

use std::time::Duration;

use rondel_core::homes::ClaimStrategy;
use rondel_core::outgoing::AllowedAddresses;

use crate::channels::SecretSources;
use crate::clock::BootClock;
use crate::host::watched::WatchedHost;

/// Settings of one node's engine. The defaults are meant to suit most clusters; the command line checks the values that it gets.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The node's name: the same at each start, and unique in the cluster.
    pub node_name: String,
    /// The URL at which executors that are connected to another node, and links in messages, reach this node; `None` if it has none.
    pub advertise_url: Option<String>,
    /// How long the lease of the node holds in the store. The node itself acts for nine tenths of this after it sent a renewal.
    pub lease: Duration,
    /// How often the lease is renewed; at most a quarter of `lease`.
    pub beat: Duration,
    /// How jobs without a live home are shared among the nodes; must be the same on all nodes.
    pub claim_strategy: ClaimStrategy,
    /// The weight of this node, for the strategy that shares jobs by weight.
    pub node_weight: u32,
    /// How often the node looks for due jobs.
    pub scan_period: Duration,
    /// How far ahead the fires of a claimed job are planned and claimed. Fires that have been due for longer than this belong to the backlog.
    pub look_ahead: Duration,
    /// A job is claimed once its next fire is at most this far ahead.
    pub claim_ahead: Duration,
    /// Maximum number of jobs of each group that one scan claims. There are three groups: jobs that are due soon, jobs that became due
    /// lately, and jobs of dense instants. If a group has more jobs, the next scan follows immediately.
    pub claim_budget: u32,
    /// Maximum number of jobs of the backlog that one scan claims. Before these jobs, the scan claims the jobs that are due soon and those that
    /// became due lately.
    pub backlog_budget: u32,
    /// Maximum number of due jobs that one statement reads.
    pub claim_page: u32,
    /// Maximum number of jobs claimed in one transaction.
    pub claim_jobs: usize,
    /// A transaction claims no more jobs once it has this many runs.
    pub claim_runs: usize,
    /// Maximum number of waiting runs that one statement takes.
    pub waiting_page: u32,
    /// An instant is dense if it is the next fire of at least this many jobs. The fires of a dense instant are claimed earlier.
    pub dense_from: u32,
    /// How far ahead the node looks for dense instants.
    pub dense_look_ahead: Duration,
    /// How often the node looks for dense instants.
    pub dense_period: Duration,
    /// Assumed number of jobs that a server claims per second. It decides how early the fires of a dense instant are claimed.
    pub claim_pace: u32,
    /// Maximum number of kinds of waiting runs that are offered to a free executor without success before the search stops. The next search
    /// continues after these kinds. An executor that is unsuitable for one run of a kind is unsuitable for every run of the kind.
    pub refused_kinds_max: usize,
    /// How long before its instant a run may be sent to an executor, which then starts it on time. Less than a second, because an edit does
    /// not change runs that are due within a second. If this is zero, each trigger is sent at its instant.
    pub send_ahead: Duration,
    /// Maximum number of jobs that one look checks for runs to be moved to another node because no executor here suits them. The next look
    /// continues after these jobs.
    pub seek_jobs: usize,
    /// Approximate maximum number of open runs in memory. The less room is left, the fewer runs each job, app and namespace may have in
    /// memory. Other runs stay in the store, and are taken up in their order.
    pub open_runs_max: usize,
    /// After a scan that read the whole backlog and found nothing overdue, the whole backlog is read again after this many times the
    /// duration of that reading. Scans before that time begin where that reading ended.
    pub whole_backlog_wait_factor: u32,
    /// Longest time until the whole backlog is read again.
    pub whole_backlog_within: Duration,
    /// Some runs stay in the store because memory has no room for them. One look checks at most this many of their jobs for room.
    pub take_up_looks: usize,
    /// Maximum number of jobs whose runs one look takes up, among the jobs that have room.
    pub take_up_jobs: usize,
    /// Maximum number of runs of one job that one look takes up.
    pub take_up_page: u32,
    /// Maximum number of open runs of ended leases that one transaction adopts, unless one job has more.
    pub adopt_page: u32,
    /// Maximum number of jobs with open runs of ended leases that are looked up together.
    pub adopt_jobs_max: u32,
    /// Maximum number of keys of this node's open runs that one statement reads, to find runs that are not in memory.
    pub stray_page: u32,
    /// Maximum number of statements with [`stray_page`](Self::stray_page) keys per look.
    pub stray_pages: u32,
    /// Each look for runs that are not in memory starts with the runs that came due within this time.
    pub stray_recent: Duration,
    /// Number of lanes that write claims and results concurrently; SQLite always uses one.
    pub lanes: usize,
    /// How long results are collected before they are written in one transaction.
    pub result_linger: Duration,
    /// Maximum number of results in one transaction.
    pub result_batch: usize,
    /// How often executors send heartbeats.
    pub heartbeat: Duration,
    /// An executor that gets no answer from any node for this long stops the runs of jobs with `on_silence: stop`.
    pub silence: Duration,
    /// The runs of an executor that sends nothing for this long are given up. Must be longer than the sum of `silence` and a handler's
    /// grace.
    pub lost_after: Duration,
    /// Some runs continue while their executor hears no server. Such a run keeps its place in its job's order until its executor has been silent
    /// for this long. Must be at least [`lost_after`](Self::lost_after). The executor itself stops the run earlier, by `lost_after` minus
    /// `silence`.
    pub continue_max: Duration,
    /// The delay between the deadline of a run and the request to its executor to stop it. Must be longer than a handler's grace plus the
    /// transfer of a result.
    pub overdue_ask: Duration,
    /// The delay between the deadline of a run and the time at which the run is given up.
    pub overdue_timeout: Duration,
    /// How long a connected executor may leave a trigger unanswered before the server asks the executor which runs it has.
    pub answer_within: Duration,
    /// Maximum number of open runs of a job that are checked when the job is paused or deleted.
    pub end_queued_max: u32,
    /// Longest time that the answer to a pause or a deletion of a job waits for the owners to end the job's runs.
    pub end_queued_wait: Duration,
    /// Maximum number of runs that one statement reads, when the node looks for its own runs that are to end, and for other nodes' runs to whose
    /// executors it sends cancel requests.
    pub end_request_page: u32,
    /// How long runs and their attempts are kept after the verdict.
    pub retention: Duration,
    /// How many versions of a script are kept in addition to the versions that jobs use.
    pub script_versions: u32,
    /// How often alert rules that are due are evaluated.
    pub alert_rules_period: Duration,
    /// How long logs are kept after the start of their run; a log is deleted together with its run at the latest.
    pub log_retention: Duration,
    /// Maximum stored size of the logs of a namespace, in bytes; the oldest logs are deleted first. 0 for no limit.
    pub log_size_max: u64,
    /// Whether fires are exported as spans of traces.
    pub traces: bool,
    /// Maximum number of jobs with their own metrics; 0 for none.
    pub metrics_job_max: usize,
    /// Keys of the job labels by which runs are counted separately.
    pub metrics_labels: Vec<String>,
    /// Which certificate an executor must present in addition to its token.
    pub executor_certificates: Certificates,
    /// Maximum number of open streams of executors with the same token.
    pub executor_streams_per_token: usize,
    /// Maximum number of open streams of executors at the same address.
    pub executor_streams_per_address: usize,
    /// How often the tokens of connected executors are checked again.
    pub token_recheck: Duration,
    /// Non-public addresses that webhooks may call.
    pub outgoing_allow: AllowedAddresses,
    /// The networks in which XXL-JOB executors are called; empty if XXL-JOB is not served.
    pub xxl_networks: AllowedAddresses,
    /// How often the node looks for due alert messages.
    pub alert_period: Duration,
    /// Maximum number of channels served concurrently.
    pub alert_concurrency: usize,
    /// The files and variables that channel secrets may refer to.
    pub alert_secrets: SecretSources,
    /// The URL that is called as long as this server schedules; `None` for no calls.
    pub watchdog_url: Option<String>,
    /// How often `watchdog_url` is called.
    pub watchdog_period: Duration,
    /// The disks and the certificate that the server measures on its host.
    pub host: WatchedHost,
    /// The version of this server, as it is shown and stored.
    pub server_version: String,
    /// The clock by which the node measures its lease.
    pub boot: BootClock,
}

impl EngineConfig {
    /// Minimum delay between saving a maintenance window and its start. A node reads the windows just before it claims fires, and claims at most
    /// `look_ahead` or `dense_look_ahead` ahead. With this delay, every node that claims a fire inside the window has read the window. The delay
    /// includes 10 s for saving the window, which is more than `SAVE_TIMEOUT` in `rules/maintenance.rs`.
    #[must_use]
    pub fn maintenance_lead(&self) -> Duration {
        self.dense_look_ahead.max(self.look_ahead) + Duration::from_secs(10)
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            node_name: "node".to_owned(),
            advertise_url: None,
            lease: Duration::from_secs(5),
            beat: Duration::from_secs(1),
            claim_strategy: ClaimStrategy::Default,
            node_weight: 1,
            scan_period: Duration::from_secs(1),
            look_ahead: Duration::from_secs(5),
            claim_ahead: Duration::from_secs(3),
            claim_budget: 2_000,
            backlog_budget: 2_000,
            claim_page: 5_000,
            claim_jobs: 500,
            claim_runs: 1_000,
            waiting_page: 1_000,
            dense_from: 2_000,
            dense_look_ahead: Duration::from_secs(60),
            dense_period: Duration::from_secs(5),
            claim_pace: 2_000,
            refused_kinds_max: 200,
            send_ahead: Duration::from_millis(500),
            seek_jobs: 500,
            open_runs_max: 200_000,
            whole_backlog_wait_factor: 20,
            whole_backlog_within: Duration::from_secs(60),
            take_up_looks: 10_000,
            take_up_jobs: 100,
            take_up_page: 500,
            adopt_page: 1_000,
            adopt_jobs_max: 100_000,
            stray_page: 1_000,
            stray_pages: 10,
            stray_recent: Duration::from_secs(5),
            lanes: 2,
            result_linger: Duration::from_millis(3),
            result_batch: 500,
            heartbeat: Duration::from_secs(2),
            silence: Duration::from_secs(15),
            lost_after: Duration::from_secs(30),
            continue_max: Duration::from_secs(120),
            overdue_ask: Duration::from_secs(20),
            overdue_timeout: Duration::from_secs(60),
            answer_within: Duration::from_secs(15),
            end_queued_max: 10_000,
            end_queued_wait: Duration::from_secs(3),
            end_request_page: 1_000,
            retention: Duration::from_secs(30 * 24 * 3600),
            script_versions: rondel_core::script::KEPT_VERSIONS,
            alert_rules_period: Duration::from_secs(2),
            log_retention: Duration::from_secs(30 * 24 * 3600),
            log_size_max: 10 << 30,
            traces: false,
            metrics_job_max: 0,
            metrics_labels: Vec::new(),
            executor_certificates: Certificates::default(),
            executor_streams_per_token: 2_000,
            executor_streams_per_address: 2_000,
            token_recheck: Duration::from_secs(60),
            outgoing_allow: AllowedAddresses::default(),
            xxl_networks: AllowedAddresses::default(),
            alert_period: Duration::from_secs(1),
            alert_concurrency: 32,
            alert_secrets: SecretSources::default(),
            watchdog_url: None,
            watchdog_period: Duration::from_secs(30),
            host: WatchedHost::default(),
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            boot: BootClock::Host,
        }
    }
}

/// Which certificate an executor must present in addition to its token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Certificates {
    /// Certificates are not checked.
    #[default]
    Ignored,
    /// A certificate signed by the configured authority.
    Required,
    /// A certificate for the executor's app and name.
    Named,
}
