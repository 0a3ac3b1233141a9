//! Orders of the job list that need more than the definitions: by next fire, and by duration. The sort keys of a namespace are read
//! together and cached for a while, so that paging through ten thousand jobs does not read them for each page.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rondel_admin::Engine;
use rondel_core::sketch::{Sketch, Step};
use rondel_core::{JobId, NamespaceId, Timestamp};
use rondel_store::StoreError;
use rondel_store::rollups::{PointDetail, PointKind, PointQuery};

use crate::job_board::{Board, BoardEntry, JobOrder};

/// How long the sort keys of a namespace are cached.
const CACHE_LIFETIME: Duration = Duration::from_secs(30);
/// How many sets of sort keys are cached; a namespace can have one for each of two orders.
const CACHED_COUNT_MAX: usize = 32;
/// Maximum number of jobs whose next fires are read.
const NEXT_FIRE_COUNT_MAX: u32 = 50_000;
/// The length of a day (UTC). Jobs are sorted by their durations since the beginning of the previous day.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of points in one read. A point has the durations of one job on one day: 512 jobs have about two points each.
const POINT_COUNT_MAX: u32 = 2_048;
/// The quantile that jobs are sorted by, in thousandths.
const P95: u32 = 950;

/// The sort key of each job of a namespace.
type Ranks = Arc<HashMap<JobId, i64>>;

/// The most recently read sort keys.
#[derive(Debug, Default)]
pub(crate) struct JobRanks(Mutex<Vec<CachedRanks>>);

#[derive(Clone, Debug)]
struct CachedRanks {
    namespace: NamespaceId,
    order: JobOrder,
    read_at: Timestamp,
    ranks: Ranks,
}

impl JobRanks {
    /// Sorts jobs by next fire or by duration; they must already be in the order of their names. For other orders, leaves them as they are.
    /// Jobs without a sort key come last.
    pub(crate) async fn sort(
        &self,
        engine: &Engine,
        (namespace, board): (NamespaceId, &Board),
        order: JobOrder,
        entries: &mut [Arc<BoardEntry>],
    ) -> Result<(), StoreError> {
        match order {
            JobOrder::Name | JobOrder::App | JobOrder::Trouble => {}
            JobOrder::NextFire => {
                let ranks = self.ranks(engine, (namespace, board), order).await?;
                entries.sort_by_key(|entry| ranks.get(&entry.id).copied().unwrap_or(i64::MAX));
            }
            JobOrder::Longest => {
                let ranks = self.ranks(engine, (namespace, board), order).await?;
                entries.sort_by_key(|entry| Reverse(ranks.get(&entry.id).copied().unwrap_or(-1)));
            }
        }
        Ok(())
    }

    async fn ranks(
        &self,
        engine: &Engine,
        (namespace, board): (NamespaceId, &Board),
        order: JobOrder,
    ) -> Result<Ranks, StoreError> {
        let now = engine.now();
        let is_of_order = |cached: &CachedRanks| cached.namespace == namespace && cached.order == order;
        let is_fresh = |cached: &&CachedRanks| {
            is_of_order(cached) && cached.read_at <= now && cached.read_at + CACHE_LIFETIME > now
        };
        if let Some(cached) = self.lock().iter().find(is_fresh) {
            return Ok(Arc::clone(&cached.ranks));
        }
        let ranks = Arc::new(match order {
            JobOrder::Longest => long_durations(engine, board, now).await?,
            _ => next_fires(engine, namespace).await?,
        });
        let mut cache = self.lock();
        cache.retain(|cached| !is_of_order(cached));
        cache.push(CachedRanks { namespace, order, read_at: now, ranks: Arc::clone(&ranks) });
        if cache.len() > CACHED_COUNT_MAX {
            cache.remove(0);
        }
        Ok(ranks)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<CachedRanks>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn next_fires(engine: &Engine, namespace: NamespaceId) -> Result<HashMap<JobId, i64>, StoreError> {
    let coming_jobs = engine.store().coming_jobs(namespace, Timestamp::MAX, NEXT_FIRE_COUNT_MAX).await?;
    Ok(coming_jobs.into_iter().map(|job| (job.job, job.next_fire_at.as_millis())).collect())
}

async fn long_durations(engine: &Engine, board: &Board, now: Timestamp) -> Result<HashMap<JobId, i64>, StoreError> {
    let job_ids = board.ids();
    let mut sketches: HashMap<i64, Sketch> = HashMap::new();
    let day = i64::try_from(DAY.as_millis()).unwrap_or(i64::MAX);
    let from = Timestamp::from_millis((now.as_millis() / day - 1).max(0) * day);
    for job_ids in job_ids.chunks(512) {
        let query = PointQuery {
            kind: PointKind::Job,
            owners: job_ids,
            step: Step::Day,
            from,
            to: Timestamp::MAX,
            limit: POINT_COUNT_MAX,
            detail: PointDetail::Whole,
        };
        for point in engine.store().points(&query).await? {
            sketches.entry(point.owner).or_default().merge(&point.durations);
        }
    }
    let millis = |length: Duration| i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
    let rank = |(owner, sketch): (i64, Sketch)| Some((JobId::new(owner), millis(sketch.quantile(P95)?)));
    Ok(sketches.into_iter().filter_map(rank).collect())
}
