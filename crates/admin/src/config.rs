//! The engine's numbers.

use std::time::Duration;

use rondel_core::homes::ClaimStrategy;
use rondel_core::outgoing::AllowedAddresses;

use crate::channels::SecretSources;
use crate::clock::Boot;
use crate::host::watched::WatchedHost;

/// How the engine of one node works. The defaults are meant to be right; the command line checks what it is given.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The node's name: the same at each of its starts, different from every other node's.
    pub node_name: String,
    /// The URL at which executors that are connected to another node reach this one.
    pub advertise_url: Option<String>,
    /// How long the node may act after a renewal of its lease was sent.
    pub lease: Duration,
    /// How often the lease is renewed; at most a quarter of it.
    pub beat: Duration,
    /// How jobs without a live home are shared among the nodes; must be the same on all of them.
    pub claim_strategy: ClaimStrategy,
    /// The weight of this node, for the strategy that shares by weight.
    pub node_weight: u32,
    /// How often due jobs are looked for.
    pub scan_period: Duration,
    /// How far ahead fires are claimed.
    pub look_ahead: Duration,
    /// How near a job's next fire must be for the job to be picked.
    pub near: Duration,
    /// How many jobs one scan takes of each of these: those due soon, those that became due lately, and those of dense instants.
    /// Where there are more, the next scan follows at once.
    pub claim_budget: u32,
    /// How many overdue jobs one scan takes, after everything that is due now.
    pub backlog_budget: u32,
    /// Due jobs that one statement reads.
    pub claim_page: u32,
    /// Jobs that one transaction claims, and the runs after which it is closed early.
    pub claim_jobs: usize,
    pub claim_runs: usize,
    /// Waiting runs that one statement takes.
    pub waiting_page: u32,
    /// From how many jobs that fire next at one instant on that instant is dense: its fires are claimed earlier.
    pub dense_from: u32,
    /// How far ahead dense instants are looked for, and how often.
    pub dense_look_ahead: Duration,
    pub dense_period: Duration,
    /// How many jobs a server claims in a second, as far as is assumed: from when on the fires of a dense instant are claimed.
    pub claim_pace: u32,
    /// How many kinds of waiting runs that cannot be placed are looked past when an executor has room; the next look goes on
    /// behind them.
    pub look_past: usize,
    /// Jobs without a fit executor here for which one look asks at other nodes; the next look goes on behind them.
    pub seek_jobs: usize,
    /// About how many open runs are in memory at most. The less is free, the less each job, app and namespace may take; what has no
    /// room is left in the store, and taken up in its order.
    pub open_runs_max: usize,
    /// After how many times as long as it took the whole backlog is read again where nothing was overdue. Until then a scan begins
    /// where the last whole reading ended.
    pub whole_backlog_share: u32,
    /// After how long it is read again at the latest.
    pub whole_backlog_within: Duration,
    /// How many jobs with runs that are left in the store one look goes through, to find those that have room, how many of these it
    /// takes up, and how many runs of each at once.
    pub take_up_looks: usize,
    pub take_up_jobs: usize,
    pub take_up_page: u32,
    /// About how many open runs of leases that are over one transaction takes over.
    pub adopt_page: u32,
    /// How many keys of own open runs one statement reads, to find those that are not in memory …
    pub sweep_page: u32,
    /// … and how many such statements one look makes.
    pub sweep_pages: u32,
    /// What came due in the last so long is looked at first, with each look.
    pub sweep_recent: Duration,
    /// In how many lanes claims and results are written at the same time; SQLite always uses one.
    pub lanes: usize,
    /// How long results are gathered into one transaction.
    pub result_linger: Duration,
    /// The most results in one transaction.
    pub result_batch: usize,
    /// How often executors report.
    pub heartbeat: Duration,
    /// After how long without an answer from any node an executor stops what must not run twice.
    pub silence: Duration,
    /// After how long without a sign of an executor its runs are given up; longer than the silence and a grace.
    pub lost_after: Duration,
    /// How long an executor may have been silent while a run of its that goes on in silence keeps its place in its job's
    /// order; at least [`lost_after`](Self::lost_after). The executor stops it sooner, by as much as `lost_after` is longer
    /// than the silence.
    pub continue_max: Duration,
    /// How long after a run's deadline its executor is asked to stop it: longer than a handler's grace, and a result's way.
    pub overdue_ask: Duration,
    /// How long after the deadline it is given up.
    pub overdue_timeout: Duration,
    /// How long an executor that is heard may leave a trigger unanswered before it is asked what it has in hand.
    pub answer_within: Duration,
    /// How many open runs of a job are looked at when it is paused or deleted …
    pub queued_max: u32,
    /// … how long the answer waits for their owners to end them, and how many of them an owner reads with one statement.
    pub queued_wait: Duration,
    pub drop_page: u32,
    /// How long runs are kept after their verdict, with their attempts and logs.
    pub retention: Duration,
    /// How many versions of a script are kept beside those that jobs name.
    pub script_versions: u32,
    /// How often what is due of the rules of alerts is looked at.
    pub alert_rules_period: Duration,
    /// How long logs are kept after their run began; they go with their run at the latest.
    pub log_retention: Duration,
    /// How many bytes the logs of a namespace may take, as they are stored; the oldest go first. 0 for no limit.
    pub log_size_max: u64,
    /// Whether fires are spans of traces, which are exported.
    pub traces: bool,
    /// How many jobs have metrics of their own; 0 for none.
    pub metrics_job_max: usize,
    /// The keys of jobs' labels by which runs are counted apart.
    pub metrics_labels: Vec<String>,
    /// What is asked of executors beside a token.
    pub executor_certificates: Certificates,
    /// How many streams executors with one token have open at the same time.
    pub executor_streams_per_token: usize,
    /// How many streams executors at one address have open at the same time.
    pub executor_streams_per_address: usize,
    /// How often the tokens of executors that are connected are looked at again.
    pub token_recheck: Duration,
    /// Where webhooks may be beside the public internet.
    pub outgoing_allow: AllowedAddresses,
    /// The networks in which executors of XXL-JOB are called; none where they are not served.
    pub xxl_networks: AllowedAddresses,
    /// How often messages of alerts that are due are looked for, and how many channels are sent to at the same time.
    pub alert_period: Duration,
    pub alert_concurrency: usize,
    /// What secrets of channels may refer to.
    pub alert_secrets: SecretSources,
    /// What is called as long as this server schedules, and how often.
    pub watchdog_url: Option<String>,
    pub watchdog_period: Duration,
    /// What the server looks at on its host.
    pub host: WatchedHost,
    /// Version that is shown and stored.
    pub server_version: String,
    /// The clock that the node's lease is judged by.
    pub boot: Boot,
}

impl EngineConfig {
    /// How far ahead a maintenance window begins at least: a fire inside of it can then be claimed only by a node that knows the
    /// window. Fires are claimed so far ahead, by windows that were read a moment ago; the rest is for saving the window.
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
            near: Duration::from_secs(3),
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
            look_past: 200,
            seek_jobs: 500,
            open_runs_max: 200_000,
            whole_backlog_share: 20,
            whole_backlog_within: Duration::from_secs(60),
            take_up_looks: 10_000,
            take_up_jobs: 100,
            take_up_page: 500,
            adopt_page: 1_000,
            sweep_page: 1_000,
            sweep_pages: 10,
            sweep_recent: Duration::from_secs(5),
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
            queued_max: 10_000,
            queued_wait: Duration::from_secs(3),
            drop_page: 1_000,
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
            boot: Boot::Host,
        }
    }
}

/// What is asked of executors beside a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Certificates {
    /// Nothing.
    #[default]
    Ignored,
    /// A certificate that is signed as it must be.
    Required,
    /// One that is made out to the executor's app and to its name.
    Named,
}
