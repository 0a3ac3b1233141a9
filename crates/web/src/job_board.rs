//! A few facts about each job of a namespace, cached in memory to filter lists of jobs. A saved definition appears in the cache
//! immediately, the outcome of a run within [`HEALTH_PERIOD`]. Pages use the cache only for filtering: they show the job as the store has
//! it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rondel_admin::shadow::has_shadow_fires;
use rondel_admin::{Engine, jobs};
use rondel_core::filter::{Filter, JobState};
use rondel_core::labels::Labels;
use rondel_core::spec::Mode;
use rondel_core::visibility::VisibleJobs;
use rondel_core::{AppId, JobId, NamespaceId, Timestamp};
use rondel_store::StoreError;
use rondel_store::catalog::{JobQuery, JobRecord, ListedJob, UnreadableJob};
use rondel_store::ledger::{RunSearch, SEARCHED_COUNT_MAX};
use rondel_store::rollups::JobActivity;

use crate::job_filter::labels_match;
use crate::job_states;

/// How many namespaces can have a board at the same time.
const BOARD_COUNT_MAX: usize = 16;
/// Maximum number of jobs on a board. If a namespace has more, those whose names sort first are on the board.
const JOB_COUNT_MAX: u32 = 50_000;
/// A board that does not hold all jobs is read again after this many of its jobs were deleted.
const REFILL_COUNT: usize = 500;
/// How many jobs are read at a time.
const JOB_BATCH_COUNT: u32 = 500;
/// At most this many newly saved jobs are read to update a board. If that many are found, all jobs are read again.
const SAVED_JOB_COUNT_MAX: u32 = 500;
/// How far before the last update to search for saved jobs: a transaction with an earlier instant may commit later.
const SAVE_OVERLAP: Duration = Duration::from_secs(10);
/// How long a board caches facts about runs.
const HEALTH_PERIOD: Duration = Duration::from_secs(10);
/// How many late runs are read at a time.
const LATE_RUN_BATCH_COUNT: u32 = 1000;
/// At most this many batches of late runs are read. One search reads at most `SEARCHED_COUNT_MAX` runs, and even if all of them are late, these
/// batches hold them.
const LATE_BATCH_COUNT_MAX: u32 = SEARCHED_COUNT_MAX / LATE_RUN_BATCH_COUNT;
/// How far back late runs are searched.
const LATE_LOOK_BACK: Duration = Duration::from_secs(3600);
/// A run is late if it begins at least this long after its planned instant.
const LATENESS_MIN: Duration = Duration::from_secs(10);

/// The facts about a job that filters need.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BoardEntry {
    pub(crate) id: JobId,
    pub(crate) name: String,
    pub(crate) app: AppId,
    pub(crate) app_name: String,
    pub(crate) handler: String,
    pub(crate) is_enabled: bool,
    pub(crate) is_shadow: bool,
    /// Whether some fires of the job are in shadow mode: because the job is, or because it was up to an instant.
    pub(crate) has_shadows: bool,
    /// Whether the job has schedules, none of which follows other jobs.
    pub(crate) fires_by_time: bool,
    pub(crate) labels: Labels,
}

impl From<&JobRecord> for BoardEntry {
    fn from(record: &JobRecord) -> Self {
        Self {
            id: record.id,
            name: record.spec.name.clone(),
            app: record.app,
            app_name: record.spec.app.clone(),
            handler: record.spec.handler.clone(),
            is_enabled: record.spec.enabled,
            is_shadow: record.spec.mode == Mode::Shadow,
            has_shadows: has_shadow_fires(&record.spec),
            fires_by_time: record.spec.fires_by_time(),
            labels: record.spec.labels.clone(),
        }
    }
}

impl From<&UnreadableJob> for BoardEntry {
    fn from(job: &UnreadableJob) -> Self {
        Self {
            id: job.id,
            name: job.name.clone(),
            app: job.app,
            app_name: job.app_name.clone(),
            handler: job.handler.clone(),
            is_enabled: true,
            is_shadow: false,
            has_shadows: false,
            fires_by_time: false,
            labels: Labels::default(),
        }
    }
}

impl From<&ListedJob> for BoardEntry {
    fn from(job: &ListedJob) -> Self {
        match job {
            ListedJob::Readable(record) => Self::from(record.as_ref()),
            ListedJob::Unreadable(job) => Self::from(job),
        }
    }
}

/// Which jobs of a namespace are failing or late, by their newest runs.
#[derive(Clone, Debug, Default)]
struct JobHealth {
    failing_jobs: HashSet<JobId>,
    jobs_without_success: HashSet<JobId>,
    late_jobs: HashSet<JobId>,
}

/// The facts about the jobs of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    entries: Arc<BTreeMap<String, Arc<BoardEntry>>>,
    /// Whether the board holds all jobs of the namespace. The number of entries does not show this: jobs may have been deleted since the
    /// read.
    has_all_jobs: bool,
    /// Jobs that were saved up to this instant are on the board.
    saved_to: Timestamp,
    health: Arc<JobHealth>,
    health_at: Timestamp,
    /// The activity from which the states of jobs are folded. It is read only if a filter asks for states.
    activity: Arc<HashMap<JobId, JobActivity>>,
    activity_at: Timestamp,
}

/// The boards of the most recently used namespaces.
#[derive(Debug, Default)]
pub(crate) struct JobBoards(Mutex<Vec<(NamespaceId, Arc<Board>)>>);

impl JobBoards {
    /// The up-to-date board of a namespace.
    pub(crate) async fn board(&self, engine: &Engine, namespace: NamespaceId) -> Result<Arc<Board>, StoreError> {
        let cached_board = self.lock().iter().find(|(id, _)| *id == namespace).map(|(_, board)| Arc::clone(board));
        let now = engine.now();
        let mut board = match cached_board {
            Some(cached_board) => update_board(engine, namespace, cached_board, now).await?,
            None => read_board(engine, namespace, now).await?,
        };
        if now.since(board.health_at) >= HEALTH_PERIOD || board.health_at > now {
            let health = Arc::new(read_health(engine, namespace, now).await?);
            let board_copy = Arc::make_mut(&mut board);
            (board_copy.health, board_copy.health_at) = (health, now);
        }
        self.cache_board(namespace, &board);
        Ok(board)
    }

    /// Like `board`. If the filter asks for states of jobs, the board has the activity of all jobs, read at most [`HEALTH_PERIOD`] ago.
    pub(crate) async fn board_for(
        &self,
        engine: &Engine,
        namespace: NamespaceId,
        filter: &Filter,
    ) -> Result<Arc<Board>, StoreError> {
        let mut board = self.board(engine, namespace).await?;
        let now = engine.now();
        let is_fresh = now.since(board.activity_at) < HEALTH_PERIOD && board.activity_at <= now;
        if filter.needs_folded_states() && !is_fresh {
            let jobs: Vec<JobId> = board.entries.values().map(|entry| entry.id).collect();
            let activity = Arc::new(job_states::read_activity(engine, &jobs).await?);
            let board_copy = Arc::make_mut(&mut board);
            (board_copy.activity, board_copy.activity_at) = (activity, now);
            self.cache_board(namespace, &board);
        }
        Ok(board)
    }

    fn cache_board(&self, namespace: NamespaceId, board: &Arc<Board>) {
        let mut boards = self.lock();
        boards.retain(|(id, _)| *id != namespace);
        boards.push((namespace, Arc::clone(board)));
        if boards.len() > BOARD_COUNT_MAX {
            boards.remove(0);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(NamespaceId, Arc<Board>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read_board(engine: &Engine, namespace: NamespaceId, now: Timestamp) -> Result<Arc<Board>, StoreError> {
    let mut entries = BTreeMap::new();
    let mut query = JobQuery { limit: JOB_BATCH_COUNT, ..JobQuery::default() };
    let has_all_jobs = loop {
        let jobs = engine.store().listed_jobs(namespace, &query).await?;
        let is_last = jobs.len() < usize::try_from(JOB_BATCH_COUNT).unwrap_or(usize::MAX);
        query.after_name = jobs.last().map(|job| job.name().to_owned());
        entries.extend(jobs.iter().map(|job| (job.name().to_owned(), Arc::new(BoardEntry::from(job)))));
        if is_last || entries.len() >= JOB_COUNT_MAX as usize {
            break is_last;
        }
    };
    let never = Timestamp::EPOCH;
    Ok(Arc::new(Board {
        entries: Arc::new(entries),
        has_all_jobs,
        saved_to: now,
        health: Arc::default(),
        health_at: never,
        activity: Arc::default(),
        activity_at: never,
    }))
}

/// Updates a board with the jobs saved since it was read.
async fn update_board(
    engine: &Engine,
    namespace: NamespaceId,
    mut board: Arc<Board>,
    now: Timestamp,
) -> Result<Arc<Board>, StoreError> {
    // An incomplete board from which many jobs were deleted has room for other jobs, so it is read again.
    if !board.has_all_jobs && board.entries.len() + REFILL_COUNT <= JOB_COUNT_MAX as usize {
        return read_board(engine, namespace, now).await;
    }
    let saved_since = board.saved_to.saturating_sub(SAVE_OVERLAP);
    let saved_jobs = engine.store().jobs_saved(saved_since, SAVED_JOB_COUNT_MAX).await?;
    if saved_jobs.len() >= usize::try_from(SAVED_JOB_COUNT_MAX).unwrap_or(usize::MAX) || now < board.saved_to {
        return read_board(engine, namespace, now).await;
    }
    let saved_jobs_here: Vec<_> = saved_jobs.into_iter().filter(|job| job.namespace == namespace).collect();
    let names: Vec<&str> = saved_jobs_here.iter().filter(|job| !job.is_deleted).map(|job| job.name.as_str()).collect();
    let jobs = if names.is_empty() { Vec::new() } else { engine.store().listed_jobs_named(namespace, &names).await? };
    let ids: HashSet<JobId> = saved_jobs_here.iter().map(|job| job.id).collect();
    let board_copy = Arc::make_mut(&mut board);
    if !ids.is_empty() {
        let entries = Arc::make_mut(&mut board_copy.entries);
        entries.retain(|_, entry| !ids.contains(&entry.id));
        entries.extend(jobs.iter().map(|job| (job.name().to_owned(), Arc::new(BoardEntry::from(job)))));
    }
    board_copy.saved_to = now;
    Ok(board)
}

/// Finds failing jobs, by the counts of their ended runs, and jobs with late runs.
async fn read_health(engine: &Engine, namespace: NamespaceId, now: Timestamp) -> Result<JobHealth, StoreError> {
    let store = engine.store();
    let mut health = JobHealth::default();
    // If some were missing, actions on all failing jobs, or on all others, would apply to the wrong jobs.
    for outcomes in store.failing_jobs(namespace, None, JOB_COUNT_MAX).await? {
        health.failing_jobs.insert(outcomes.job);
        if outcomes.succeeded_at.is_none() {
            health.jobs_without_success.insert(outcomes.job);
        }
    }
    let mut late_search = RunSearch::new(now, LATE_RUN_BATCH_COUNT);
    late_search.since = Some(now.saturating_sub(LATE_LOOK_BACK));
    late_search.late.over = Some(rondel_core::filter::Bound { length: LATENESS_MIN, is_inclusive: true });
    for _ in 0..LATE_BATCH_COUNT_MAX {
        let late_runs = store.search_runs(namespace, &late_search).await?.runs;
        health.late_jobs.extend(late_runs.iter().map(|run| run.job));
        if late_runs.len() < LATE_RUN_BATCH_COUNT as usize {
            break;
        }
        late_search.from = late_runs.last().map(|run| late_search.place(run));
    }
    Ok(health)
}

/// How a list of jobs is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum JobOrder {
    #[default]
    Name,
    /// By app, then by name.
    App,
    /// Jobs with problems first.
    Trouble,
    /// Jobs with the earliest next fire first.
    NextFire,
    /// Jobs with the longest durations first, by the 95th percentile.
    Longest,
}

/// Looks up whether an executor offers a handler, and remembers the answers, so that each handler is looked up only once.
pub(crate) struct OfferedHandlers<'e> {
    engine: &'e Engine,
    namespace: NamespaceId,
    /// The answers so far, keyed by app and handler.
    by_handler: HashMap<(String, String), bool>,
}

impl<'e> OfferedHandlers<'e> {
    pub(crate) fn new(engine: &'e Engine, namespace: NamespaceId) -> Self {
        Self { engine, namespace, by_handler: HashMap::new() }
    }

    fn has(&mut self, entry: &BoardEntry) -> bool {
        let key = (entry.app_name.clone(), entry.handler.clone());
        let is_offered = || jobs::is_offered(self.engine, self.namespace, &entry.app_name, &entry.handler);
        *self.by_handler.entry(key).or_insert_with(is_offered)
    }
}

impl Board {
    /// Whether a job is in this state.
    pub(crate) fn is_in_state(&self, state: JobState, entry: &BoardEntry, offers: &mut OfferedHandlers<'_>) -> bool {
        match state {
            JobState::Failing => self.health.failing_jobs.contains(&entry.id),
            JobState::NeverSucceeded => self.health.jobs_without_success.contains(&entry.id),
            JobState::NoExecutor => entry.is_enabled && !offers.has(entry),
            JobState::Paused => !entry.is_enabled,
            JobState::Late => self.health.late_jobs.contains(&entry.id),
            JobState::Shadow => entry.is_shadow,
            JobState::Error | JobState::Running | JobState::Complete | JobState::Waiting => {
                let activity = self.activity.get(&entry.id);
                state.folded() == Some(job_states::fold_state(activity, (entry.is_enabled, entry.fires_by_time)))
            }
        }
    }

    /// The jobs of the visible apps that match the filter, in this order.
    pub(crate) fn matching(
        &self,
        filter: &Filter,
        visible_apps: Option<&[AppId]>,
        order: JobOrder,
        offers: &mut OfferedHandlers<'_>,
    ) -> Vec<Arc<BoardEntry>> {
        let mut matching_entries = Vec::new();
        for entry in self.entries.values() {
            if visible_apps.is_none_or(|visible_apps| visible_apps.contains(&entry.app))
                && self.admits(filter, entry, offers)
            {
                matching_entries.push(Arc::clone(entry));
            }
        }
        match order {
            // The entries are already in the order of their names. The sort keys of `NextFire` and `Longest` are not on the board.
            JobOrder::Name | JobOrder::NextFire | JobOrder::Longest => {}
            JobOrder::App => matching_entries.sort_by(|a, b| (&a.app_name, &a.name).cmp(&(&b.app_name, &b.name))),
            JobOrder::Trouble => matching_entries.sort_by_key(|entry| {
                let states = [JobState::NeverSucceeded, JobState::Failing, JobState::NoExecutor, JobState::Late];
                states.iter().position(|state| self.is_in_state(*state, entry, offers)).unwrap_or(states.len())
            }),
        }
        matching_entries
    }

    /// Whether the board holds all jobs of its namespace.
    pub(crate) const fn has_all_jobs(&self) -> bool {
        self.has_all_jobs
    }

    /// The names of the jobs that a shadow report can contain, sorted; `None` if the board does not hold all jobs.
    pub(crate) fn shadow_names(&self, visible_apps: Option<&[AppId]>) -> Option<Vec<String>> {
        let shadow_entries = self.entries.values().filter(|entry| entry.has_shadows);
        let shadow_entries =
            shadow_entries.filter(|entry| visible_apps.is_none_or(|visible_apps| visible_apps.contains(&entry.app)));
        self.has_all_jobs().then(|| shadow_entries.map(|entry| entry.name.clone()).collect())
    }

    fn admits(&self, filter: &Filter, entry: &BoardEntry, offers: &mut OfferedHandlers<'_>) -> bool {
        let has_text = |text: &str| {
            let text = text.to_lowercase();
            entry.name.contains(&text) || entry.handler.to_lowercase().contains(&text)
        };
        let matches_job = |wanted: &rondel_core::filter::Pattern| {
            let is_part_of_name =
                || wanted.is_name() && !self.entries.contains_key(&wanted.0) && entry.name.contains(&wanted.0);
            wanted.matches(&entry.name) || is_part_of_name()
        };
        let mut is_in = |state: &JobState| self.is_in_state(*state, entry, offers);
        (filter.states.any.is_empty() || filter.states.any.iter().any(&mut is_in))
            && !filter.states.none.iter().any(&mut is_in)
            && filter.apps.admits(|wanted| wanted.matches(&entry.app_name))
            && filter.jobs.admits(matches_job)
            && labels_match(filter, &entry.labels)
            && filter.texts.iter().all(|wanted| has_text(&wanted.text) != wanted.is_not)
    }

    /// Counts these jobs by state, for each state of [`JobState::MARKS`].
    pub(crate) fn count_by_state(
        &self,
        jobs: &[Arc<BoardEntry>],
        offers: &mut OfferedHandlers<'_>,
    ) -> Vec<(JobState, usize)> {
        let mut counts: Vec<(JobState, usize)> = JobState::MARKS.iter().map(|state| (*state, 0)).collect();
        for entry in jobs {
            for (state, count) in &mut counts {
                *count += usize::from(self.is_in_state(*state, entry, offers));
            }
        }
        counts
    }

    /// The ids of all jobs.
    pub(crate) fn ids(&self) -> Vec<i64> {
        self.entries.values().map(|entry| entry.id.get()).collect()
    }

    /// The ids of the jobs whose labels match the filter.
    pub(crate) fn ids_with_matching_labels(&self, filter: &Filter, visible_apps: Option<&[AppId]>) -> Vec<JobId> {
        let is_visible =
            |entry: &&Arc<BoardEntry>| visible_apps.is_none_or(|visible_apps| visible_apps.contains(&entry.app));
        let matching_entries =
            self.entries.values().filter(is_visible).filter(|entry| labels_match(filter, &entry.labels));
        matching_entries.map(|entry| entry.id).collect()
    }

    /// The names of all jobs, divided into those of visible and those of hidden apps.
    pub(crate) fn visible_jobs(&self, visible_apps: &[AppId]) -> VisibleJobs {
        let mut jobs = VisibleJobs::default();
        for entry in self.entries.values() {
            let names =
                if visible_apps.contains(&entry.app) { &mut jobs.visible_names } else { &mut jobs.hidden_names };
            names.insert(entry.name.clone());
        }
        jobs
    }

    /// The jobs of the visible apps whose names pass `accepts`.
    pub(crate) fn entries_named(
        &self,
        accepts: impl Fn(&str) -> bool,
        visible_apps: Option<&[AppId]>,
    ) -> Vec<Arc<BoardEntry>> {
        let is_visible =
            |entry: &&Arc<BoardEntry>| visible_apps.is_none_or(|visible_apps| visible_apps.contains(&entry.app));
        self.entries.values().filter(is_visible).filter(|entry| accepts(&entry.name)).cloned().collect()
    }
}
