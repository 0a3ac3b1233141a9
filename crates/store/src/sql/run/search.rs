//! Searches runs. A statement scans a bounded part of one index, and leaves out most of the runs that do not match. [`RunSearch::admits`]
//! checks each run that is read.

use async_trait::async_trait;
use rondel_core::filter::Pattern;
use rondel_core::{IdGen, NamespaceId, RunId, RunStatus, Timestamp, Trigger};

use crate::ledger::{FoundRuns, RunOrder, RunPlace, RunSearch, millis_of};
use crate::sql::SqlStore;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::rows::{self, run_columns};
use crate::{Result, SearchRuns};

/// Maximum number of rows that one statement returns if few of them pass [`RunSearch::admits`], unless the page is longer.
const READ_COUNT_MAX: u32 = 2000;

macro_rules! duration {
    () => {
        "(CASE WHEN started_at_ms IS NULL THEN -1 ELSE COALESCE(finished_at_ms, ?) - started_at_ms END)"
    };
}
macro_rules! lateness {
    () => {
        "(CASE WHEN started_at_ms IS NULL OR attempt <> 1 OR trigger_kind IN ('parent', 'backfill') THEN -1 \
         ELSE started_at_ms - fire_at_ms END)"
    };
}
/// The range of ids is repeated here, because planners do not infer that the range of the runs' ids also holds for this list.
macro_rules! listed {
    ($table:literal, $id:literal) => {
        concat!(
            "run.id IN (SELECT ",
            $table,
            ".",
            $id,
            " FROM ",
            $table,
            " WHERE ",
            $table,
            ".namespace_id = ? AND ",
            $table,
            ".",
            $id,
            " >= ? AND ",
            $table,
            ".",
            $id,
            " < ?) AND "
        )
    };
}
macro_rules! of_open {
    () => {
        listed!("open_run", "id")
    };
}
macro_rules! of_unsuccessful {
    () => {
        listed!("unsuccessful_run", "id")
    };
}
macro_rules! of_dead {
    () => {
        listed!("dead_letter", "run_id")
    };
}
macro_rules! of_all {
    () => {
        "namespace_id = ? AND "
    };
}
macro_rules! of_job {
    () => {
        "job_id = ? AND "
    };
}
macro_rules! search {
    ($base:ident, $id:literal, $($order:tt)+) => {
        Statement {
            name: "search_runs",
            text: concat!(
                "SELECT ",
                run_columns!(),
                " FROM run WHERE ",
                $base!(),
                $id,
                " >= ? AND ",
                $id,
                " < ? AND fire_at_ms >= ? AND fire_at_ms <= ? AND (+fire_at_ms >= ? OR +id >= ?) \
                 AND status IN (?, ?, ?, ?, ?, ?, ?, ?, ?) AND trigger_kind IN (?, ?, ?, ?, ?, ?, ?, ?) AND ",
                duration!(),
                " BETWEEN ? AND ? AND ",
                lateness!(),
                " BETWEEN ? AND ? AND COALESCE(executor, '') LIKE ? ESCAPE '!' \
                 AND (CASE ? WHEN 1 THEN app_id WHEN 2 THEN job_id WHEN 3 THEN job_id ELSE 0 END {in_list} \
                 OR (? = 3 AND {lower:message} LIKE ? ESCAPE '!')) ",
                $($order)+
            ),
        }
    };
}
/// The statements for one index: each order, forwards and backwards. The plus sign prevents planners from using an index of the column.
macro_rules! searches {
    ($base:ident, $id:literal) => {
        [
            search!($base, $id, "ORDER BY id DESC LIMIT ?"),
            search!($base, $id, "ORDER BY id LIMIT ?"),
            search!(
                $base,
                $id,
                "AND (",
                duration!(),
                " < ? OR (",
                duration!(),
                " = ? AND +id < ?)) ORDER BY ",
                duration!(),
                " DESC, id DESC LIMIT ?"
            ),
            search!(
                $base,
                $id,
                "AND (",
                duration!(),
                " > ? OR (",
                duration!(),
                " = ? AND +id > ?)) ORDER BY ",
                duration!(),
                ", id LIMIT ?"
            ),
            search!(
                $base,
                $id,
                "AND (",
                lateness!(),
                " < ? OR (",
                lateness!(),
                " = ? AND +id < ?)) ORDER BY ",
                lateness!(),
                " DESC, id DESC LIMIT ?"
            ),
            search!(
                $base,
                $id,
                "AND (",
                lateness!(),
                " > ? OR (",
                lateness!(),
                " = ? AND +id > ?)) ORDER BY ",
                lateness!(),
                ", id LIMIT ?"
            ),
        ]
    };
}

pub(in crate::sql) static SEARCH_ALL_RUNS: [Statement; 6] = searches!(of_all, "id");
pub(in crate::sql) static SEARCH_OPEN_RUNS: [Statement; 6] = searches!(of_open, "id");
pub(in crate::sql) static SEARCH_UNSUCCESSFUL_RUNS: [Statement; 6] = searches!(of_unsuccessful, "id");
pub(in crate::sql) static SEARCH_DEAD_LETTERS: [Statement; 6] = searches!(of_dead, "id");
pub(in crate::sql) static SEARCH_RUNS_OF_JOB: [Statement; 6] = searches!(of_job, "+id");

/// The last row of a table that a bounded index scan reads: backwards from an id, and forwards from an id.
macro_rules! scan_ends {
    ($name:literal, $table:literal, $id:literal) => {
        [
            Statement {
                name: concat!("find_end_of_", $name),
                text: concat!(
                    "SELECT ",
                    $id,
                    " FROM ",
                    $table,
                    " WHERE namespace_id = ? AND ",
                    $id,
                    " < ? ORDER BY ",
                    $id,
                    " DESC LIMIT 1 OFFSET ?"
                ),
            },
            Statement {
                name: concat!("find_end_of_", $name, "_up"),
                text: concat!(
                    "SELECT ",
                    $id,
                    " FROM ",
                    $table,
                    " WHERE namespace_id = ? AND ",
                    $id,
                    " > ? ORDER BY ",
                    $id,
                    " LIMIT 1 OFFSET ?"
                ),
            },
        ]
    };
}
pub(in crate::sql) static FIND_END_OF_ALL: [Statement; 2] = scan_ends!("search", "run", "id");
static FIND_END_OF_OPEN_RUNS: [Statement; 2] = scan_ends!("open", "open_run", "id");
static FIND_END_OF_UNSUCCESSFUL_RUNS: [Statement; 2] = scan_ends!("unsuccessful", "unsuccessful_run", "id");
pub(in crate::sql) static FIND_END_OF_DEAD_LETTERS: [Statement; 2] = scan_ends!("dead", "dead_letter", "run_id");
pub(in crate::sql) static FIND_END_OF_JOB: Statement = Statement {
    name: "find_end_of_search_in_job",
    text: "SELECT fire_at_ms, id FROM run WHERE job_id = ? AND fire_at_ms <= ? ORDER BY fire_at_ms DESC LIMIT 1 OFFSET ?",
};

/// The index that a search scans.
#[derive(Clone, Copy)]
enum ScannedIndex {
    All(NamespaceId),
    Open(NamespaceId),
    Unsuccessful(NamespaceId),
    Dead(NamespaceId),
    Job(i64),
}

/// The part of an index that a search may read.
struct SearchRange {
    /// The first id is included, the second is not.
    ids: (i64, i64),
    /// The first planned instant that is read, in milliseconds.
    fires_from: i64,
    /// The run at which the bound ends the scan; `None` if the scan ends before the bound.
    stopped_at: Option<RunId>,
}

impl ScannedIndex {
    fn new(namespace: NamespaceId, search: &RunSearch) -> Self {
        match search.job_by_fires() {
            Some(job) => Self::Job(job.get()),
            None if search.is_dead => Self::Dead(namespace),
            None if search.is_of_open() => Self::Open(namespace),
            None if search.is_of_unsuccessful() => Self::Unsuccessful(namespace),
            None => Self::All(namespace),
        }
    }

    fn key(self) -> i64 {
        match self {
            Self::All(namespace) | Self::Open(namespace) | Self::Unsuccessful(namespace) | Self::Dead(namespace) => {
                namespace.get()
            }
            Self::Job(job) => job,
        }
    }

    fn statement(self, search: &RunSearch) -> &'static Statement {
        let statements = match self {
            Self::All(_) => &SEARCH_ALL_RUNS,
            Self::Open(_) => &SEARCH_OPEN_RUNS,
            Self::Unsuccessful(_) => &SEARCH_UNSUCCESSFUL_RUNS,
            Self::Dead(_) => &SEARCH_DEAD_LETTERS,
            Self::Job(_) => &SEARCH_RUNS_OF_JOB,
        };
        let order_index = match search.order {
            RunOrder::Newest => 0,
            RunOrder::Longest => 2,
            RunOrder::Latest => 4,
        };
        &statements[order_index + usize::from(search.is_backward)]
    }

    /// The statements that find the end of the scan: backwards from an id, and forwards from an id.
    fn end_statements(self) -> Option<&'static [Statement; 2]> {
        match self {
            Self::All(_) => Some(&FIND_END_OF_ALL),
            Self::Open(_) => Some(&FIND_END_OF_OPEN_RUNS),
            Self::Unsuccessful(_) => Some(&FIND_END_OF_UNSUCCESSFUL_RUNS),
            Self::Dead(_) => Some(&FIND_END_OF_DEAD_LETTERS),
            Self::Job(_) => None,
        }
    }
}

/// The terms of a search that need more than a column comparison: a list, and texts.
struct Terms {
    /// The meaning of `ids`: 1 apps, 2 jobs, 3 jobs whose names contain a searched text, 0 none of these.
    id_kind: i64,
    /// Never empty, because a list in SQL has at least one value.
    ids: Vec<i64>,
    /// A `LIKE` pattern for the message of the run.
    message: String,
    /// A `LIKE` pattern for the name of the executor.
    executor: String,
}

impl Terms {
    fn new(search: &RunSearch) -> Self {
        let text = search.texts.iter().find(|text| !text.is_not && text.jobs.len() <= CHUNK_MAX);
        // A caller who may not view all jobs sees messages in another form than the stored one, so the database cannot search for the text.
        let text = text.filter(|_| search.visible_jobs.is_none());
        let apps = search.apps.as_deref().filter(|apps| (1..=CHUNK_MAX).contains(&apps.len()));
        let jobs = search.jobs.as_deref().filter(|jobs| (1..=CHUNK_MAX).contains(&jobs.len()));
        let jobs = jobs.filter(|_| search.job_by_fires().is_none());
        let (id_kind, ids): (i64, Vec<i64>) = match (text, jobs, apps) {
            (Some(text), ..) => (3, text.jobs.iter().map(|job| job.get()).collect()),
            (None, Some(jobs), _) => (2, jobs.iter().map(|job| job.get()).collect()),
            (None, None, Some(apps)) => (1, apps.iter().map(|app| app.get()).collect()),
            (None, None, None) => (0, vec![0]),
        };
        // A list must not be empty. No job has this id.
        let ids = if ids.is_empty() { vec![-1] } else { ids };
        let message = text.map_or_else(|| "%".to_owned(), |text| format!("%{}%", like_pattern(&text.text)));
        let executor = match &search.executors.any[..] {
            [Pattern(name)] => name.split('*').map(like_pattern).collect::<Vec<_>>().join("%"),
            _ => "%".to_owned(),
        };
        Self { id_kind, ids, message, executor }
    }
}

/// A text as part of a `LIKE` pattern. The databases differ in which letters outside of ASCII they treat as equal, so such letters match
/// any text.
fn like_pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '%' | '_' | '!' => pattern.extend(['!', c]),
            c if c.is_ascii() => pattern.push(c),
            _ => pattern.push('%'),
        }
    }
    pattern
}

#[async_trait]
impl SearchRuns for SqlStore {
    async fn search_runs(&self, namespace: NamespaceId, search: &RunSearch) -> Result<FoundRuns> {
        let is_empty = |len: Option<usize>| len == Some(0);
        if is_empty(search.apps.as_ref().map(Vec::len)) || is_empty(search.jobs.as_ref().map(Vec::len)) {
            return Ok(FoundRuns::default());
        }
        let index = self.scanned_index(namespace, search).await?;
        let terms = Terms::new(search);
        let range = self.search_range(index, search).await?;
        let limit = usize::try_from(search.limit).unwrap_or(usize::MAX);
        let (mut runs, mut from, mut count) = (Vec::new(), search.from, search.limit.max(1));
        while runs.len() < limit {
            let read_runs = rows::runs(&self.rows(query(index, &range, search, (&terms, from, count))).await?)?;
            let is_last_page = read_runs.len() < usize::try_from(count).unwrap_or(usize::MAX);
            from = read_runs.last().map(|run| search.place(run)).or(from);
            runs.extend(read_runs.into_iter().filter(|run| run.namespace == namespace && search.admits(run)));
            if is_last_page {
                break;
            }
            count = count.saturating_mul(4).min(READ_COUNT_MAX.max(search.limit));
        }
        let is_full = runs.len() >= limit;
        runs.truncate(limit);
        if search.is_backward {
            runs.reverse();
        }
        Ok(FoundRuns { runs, stopped_at: range.stopped_at.filter(|_| !is_full || search.order != RunOrder::Newest) })
    }
}

impl SqlStore {
    /// The index that a search scans. If a search in one job would scan the open or unsuccessful runs of the namespace, and the job has
    /// fewer runs than the bound, the runs of the job are scanned instead, because other jobs may have many more such runs.
    async fn scanned_index(&self, namespace: NamespaceId, search: &RunSearch) -> Result<ScannedIndex> {
        let index = ScannedIndex::new(namespace, search);
        let (ScannedIndex::Open(_) | ScannedIndex::Unsuccessful(_), Some([job])) = (index, search.jobs.as_deref())
        else {
            return Ok(index);
        };
        let job_index = ScannedIndex::Job(job.get());
        let is_within_bound = self.search_range(job_index, search).await?.stopped_at.is_none();
        Ok(if is_within_bound { job_index } else { index })
    }

    /// The part of the index that a search reads: the range that it selects, limited by the bound.
    async fn search_range(&self, index: ScannedIndex, search: &RunSearch) -> Result<SearchRange> {
        let (first, end) = search.ids();
        let from_id = search.from.filter(|_| search.order == RunOrder::Newest).map(|from| from.id.get());
        let ids = match (from_id, search.is_backward) {
            (None, _) => (first, end),
            (Some(id), false) => (first, end.min(id)),
            (Some(id), true) => (first.max(id.saturating_add(1)), end),
        };
        let mut range = SearchRange { ids, fires_from: i64::MIN, stopped_at: None };
        let row_limit = i64::from(search.row_limit.max(1)) - 1;
        let scans_forwards = search.is_backward && from_id.is_some();
        let Some([backward_statement, forward_statement]) = index.end_statements() else {
            let query = Query::new(&FIND_END_OF_JOB).int(index.key()).int(search.last_fire_ms()).int(row_limit);
            let last_row = self.row(query).await?;
            if let Some(last_row) = last_row {
                let mut columns = Reader::new(&last_row, "run");
                range.fires_from = columns.int("fire_at_ms")?;
                range.stopped_at = Some(RunId::new(columns.int("id")?));
            }
            return Ok(range);
        };
        let end_query = match scans_forwards {
            true => Query::new(forward_statement).int(index.key()).int(ids.0 - 1).int(row_limit),
            false => Query::new(backward_statement).int(index.key()).int(ids.1).int(row_limit),
        };
        let Some(last_row) = self.row(end_query).await? else { return Ok(range) };
        let last_id = Reader::new(&last_row, "run").int("id")?;
        if scans_forwards && last_id < ids.1 {
            range.ids.1 = last_id.saturating_add(1);
            range.stopped_at = Some(RunId::new(last_id));
        } else if !scans_forwards && last_id > ids.0 {
            range.ids.0 = last_id;
            range.stopped_at = Some(RunId::new(last_id));
        }
        Ok(range)
    }
}

fn query(
    index: ScannedIndex,
    range: &SearchRange,
    search: &RunSearch,
    (terms, from, count): (&Terms, Option<RunPlace>, u32),
) -> Query {
    let (mut first, mut end) = range.ids;
    if let Some(from) = from.filter(|_| search.order == RunOrder::Newest) {
        if search.is_backward {
            first = first.max(from.id.get().saturating_add(1));
        } else {
            end = end.min(from.id.get());
        }
    }
    let since = search.since.map_or(i64::MIN, Timestamp::as_millis);
    let mut query = Query::new(index.statement(search)).int(index.key());
    if matches!(index, ScannedIndex::Open(_) | ScannedIndex::Unsuccessful(_) | ScannedIndex::Dead(_)) {
        query = query.int(first).int(end);
    }
    query = query.int(first).int(end).int(range.fires_from).int(search.last_fire_ms()).int(since);
    query = query.int(search.since.map_or(0, IdGen::first_at));
    let statuses = if search.statuses.is_empty() { RunStatus::ALL } else { &search.statuses };
    query = statuses.iter().cycle().take(RunStatus::ALL.len()).fold(query, |query, status| query.text(status.as_str()));
    let triggers = if search.triggers.is_empty() { Trigger::ALL } else { &search.triggers };
    query = triggers.iter().cycle().take(Trigger::ALL.len()).fold(query, |query, trigger| query.text(trigger.as_str()));
    let (duration_range, lateness_range) = (millis_of(search.duration), millis_of(search.late));
    query = query
        .at(search.now)
        .int(duration_range.0)
        .int(duration_range.1)
        .int(lateness_range.0)
        .int(lateness_range.1)
        .text(&terms.executor);
    query = query.int(terms.id_kind).list(terms.ids.iter().copied()).int(terms.id_kind).text(&terms.message);
    let start_value = if search.is_backward { -2 } else { i64::MAX };
    let from = from.unwrap_or(RunPlace { value: start_value, id: RunId::new(start_value) });
    query = match search.order {
        RunOrder::Newest => query,
        RunOrder::Longest => {
            query.at(search.now).int(from.value).at(search.now).int(from.value).int(from.id.get()).at(search.now)
        }
        RunOrder::Latest => query.int(from.value).int(from.value).int(from.id.get()),
    };
    query.int(count.into())
}
