//! What really happened to the items of pump jobs: rows and their executions as the handlers saw them, and owners as
//! the store wrote them.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel::table::RunKey;
use rondel_core::JobId;
use rondel_core::pump::Owner;

use crate::rng::{SeededRng, mix};

/// Salt that keeps the draw of rows independent of other draws of the same seed.
const ROW_SALT: u64 = 0x0000_5035_0000_7215;

/// An item of a job.
pub(crate) type ItemKey = (JobId, String);

/// A row of an item, as it is in the store of the pump's user. Times are in milliseconds since the world began.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// When a select can return it for the first time.
    pub(crate) arrives_ms: u64,
    /// How long an execution takes.
    pub(crate) length: Duration,
    /// Executions that fail before one succeeds.
    pub(crate) failures_left: u32,
    /// By how much the first execution takes longer, because it hangs.
    pub(crate) hang_time: Duration,
    /// When an execution succeeded; `None` while none has.
    pub(crate) done_ms: Option<u64>,
    /// Executions that failed so far.
    pub(crate) failed_count: u32,
}

impl Row {
    /// Whether it has failed so often that a group may have given it up.
    pub(crate) const fn is_given_up(&self) -> bool {
        self.failed_count > ROW_RETRY_MAX
    }
}

/// How often a group retries a row, by the jobs' definitions.
pub(crate) const ROW_RETRY_MAX: u32 = 3;

/// One call of `execute`. Times are in milliseconds since the world began.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    pub(crate) item_key: ItemKey,
    pub(crate) epoch: i64,
    pub(crate) owner: Owner,
    pub(crate) executor: usize,
    pub(crate) incarnation: i64,
    /// The indexes of the rows among those of the item.
    pub(crate) row_indexes: Vec<usize>,
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: Option<u64>,
    /// Whether the rows were done successfully.
    pub(crate) is_done: bool,
}

/// How an owner lost an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossCause {
    /// It released the item, as it was asked to.
    Released,
    /// Its attempt had ended.
    Freed,
    /// It did not release the item in time.
    Fenced,
}

/// An owner of an item in the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenure {
    pub(crate) owner: Owner,
    /// When it lost the item, in milliseconds since the world began, and how; `None` while it owns the item.
    pub(crate) loss: Option<(u64, LossCause)>,
}

/// An item as an executor holds it now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) epoch: i64,
    pub(crate) owner: Owner,
}

#[derive(Debug, Default)]
pub(crate) struct PumpTruth {
    seed: u64,
    /// Rows arrive until this time.
    arrive_until_ms: u64,
    rows: BTreeMap<ItemKey, Vec<Row>>,
    /// Jobs whose rows all exist from the beginning, because no root run would begin for rows that arrive later.
    pub(crate) jobs_without_arrivals: Vec<JobId>,
    pub(crate) executions: Vec<Execution>,
    /// The owners of items in the store, by item and epoch.
    pub(crate) tenures: BTreeMap<(ItemKey, i64), Tenure>,
    /// The group that was last ordered to hold each item.
    pub(crate) holds: BTreeMap<ItemKey, Hold>,
    /// The names of the items of each version of a pump job.
    pub(crate) item_names: BTreeMap<(JobId, i64), Vec<String>>,
    /// How many changes of items each job has had, reports not included.
    pub(crate) deal_counts: BTreeMap<JobId, usize>,
    pub(crate) violations: Vec<String>,
}

impl PumpTruth {
    pub(crate) fn begin(&mut self, seed: u64, arrive_until_ms: u64) {
        (self.seed, self.arrive_until_ms) = (mix(seed ^ ROW_SALT), arrive_until_ms);
    }

    pub(crate) fn violate(&mut self, rule: &str, description: &str) {
        if self.violations.len() < 50 {
            self.violations.push(format!("{rule}: {description}"));
        }
    }

    /// The rows of an item, drawn on first use.
    pub(crate) fn rows(&mut self, item_key: &ItemKey) -> &mut Vec<Row> {
        let until_ms = if self.jobs_without_arrivals.contains(&item_key.0) { 0 } else { self.arrive_until_ms };
        let seed = self.seed;
        self.rows.entry(item_key.clone()).or_insert_with(|| {
            let name_hash = item_key.1.bytes().fold(0_u64, |sum, byte| mix(sum ^ u64::from(byte)));
            let mut rng = SeededRng::new(mix(seed ^ mix(item_key.0.get().unsigned_abs())) ^ name_hash);
            (0..rng.below(16)).map(|_| row(&mut rng, until_ms)).collect()
        })
    }

    /// The rows of an item that have arrived and are not done.
    pub(crate) fn open_rows(&mut self, item_key: &ItemKey, now_ms: u64) -> Vec<usize> {
        let is_open = |row: &Row| row.arrives_ms <= now_ms && row.done_ms.is_none();
        self.rows(item_key).iter().enumerate().filter(|(_, row)| is_open(row)).map(|(key, _)| key).collect()
    }

    /// The rows of an item, if they were drawn before.
    pub(crate) fn known_rows(&self, item_key: &ItemKey) -> &[Row] {
        self.rows.get(item_key).map_or(&[], Vec::as_slice)
    }

    /// The names of the items of a version of a pump job.
    pub(crate) fn item_names(&self, job: JobId, version: i64) -> &[String] {
        self.item_names.get(&(job, version)).map_or(&[], Vec::as_slice)
    }

    /// The highest epoch under which the item ever had an owner; 0 for none.
    pub(crate) fn highest_epoch(&self, item_key: &ItemKey) -> i64 {
        let item_range = (item_key.clone(), i64::MIN)..=(item_key.clone(), i64::MAX);
        self.tenures.range(item_range).next_back().map_or(0, |((_, epoch), _)| *epoch)
    }

    pub(crate) fn record_loss(&mut self, key: &(ItemKey, i64), at_ms: u64, cause: LossCause) {
        if let Some(tenure) = self.tenures.get_mut(key) {
            tenure.loss.get_or_insert((at_ms, cause));
        }
    }

    /// Ends all executions of a process that has ended.
    pub(crate) fn end_executions(&mut self, incarnation: i64, at_ms: u64) {
        let is_affected =
            |execution: &&mut Execution| execution.incarnation == incarnation && execution.ended_ms.is_none();
        self.executions.iter_mut().filter(is_affected).for_each(|execution| execution.ended_ms = Some(at_ms));
    }
}

fn row(rng: &mut SeededRng, until_ms: u64) -> Row {
    let length = match rng.below(10) {
        0..=6 => rng.millis(1, 80),
        7 | 8 => rng.millis(80, 900),
        _ => rng.millis(900, 3_000),
    };
    let failures_left = if rng.happens(150_000) { u32::try_from(rng.between(1, 2)).unwrap_or(1) } else { 0 };
    let hang_time = if rng.happens(40_000) { rng.millis(5_000, 25_000) } else { Duration::ZERO };
    Row { arrives_ms: rng.between(0, until_ms), length, failures_left, hang_time, done_ms: None, failed_count: 0 }
}

/// The owner of the items of a run and attempt.
pub(crate) const fn owner_of(key: RunKey) -> Owner {
    Owner { run: key.run, attempt: key.attempt }
}
