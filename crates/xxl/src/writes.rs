//! Batches the concurrent writes of links into one transaction: hundreds of executors with a few runs each would otherwise need hundreds of
//! transactions a second. While one transaction runs, the next batch collects.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;

use rondel_admin::{Engine, Lifecycle, Until};
use rondel_core::AppId;
use rondel_store::LeaseToken;
use rondel_store::xxl::{NewXxlRun, XXL_BATCH_MAX, XxlReport, XxlReportResults, XxlRun, XxlSettlement};
use tokio::sync::{mpsc, oneshot};

use crate::lines::LineLimit;

/// Maximum number of waiting writes per kind.
const WAITING_MAX: usize = 1_024;

/// A write and the channel for its answer. The answer is `None` if the store failed.
#[derive(Debug)]
struct PendingWrite<I, O> {
    input: I,
    /// How many rows it writes.
    len: usize,
    answer_sender: oneshot::Sender<Option<O>>,
}

type PendingSend = PendingWrite<(LeaseToken, Vec<NewXxlRun>), Vec<XxlRun>>;
type PendingReport = PendingWrite<(AppId, Vec<XxlReport>), XxlReportResults>;
type PendingSettle = PendingWrite<Vec<XxlSettlement>, ()>;

/// The senders of the queues of writes, for the callers.
#[derive(Debug)]
pub(crate) struct Writes {
    send_queue: mpsc::Sender<PendingSend>,
    report_queue: mpsc::Sender<PendingReport>,
    settlement_queue: mpsc::Sender<PendingSettle>,
}

/// The receivers of the queues of writes, for the loops that write.
pub(crate) struct WriteReceivers {
    sends: mpsc::Receiver<PendingSend>,
    reports: mpsc::Receiver<PendingReport>,
    settlements: mpsc::Receiver<PendingSettle>,
}

impl Writes {
    pub(crate) fn new() -> (Self, WriteReceivers) {
        let (send_queue, sends) = mpsc::channel(WAITING_MAX);
        let (report_queue, reports) = mpsc::channel(WAITING_MAX);
        let (settlement_queue, settlements) = mpsc::channel(WAITING_MAX);
        (Self { send_queue, report_queue, settlement_queue }, WriteReceivers { sends, reports, settlements })
    }

    /// Assigns numbers to attempts: see [`rondel_store::XxlExecutors::send_xxl`]. Returns no rows if the lease does not hold, and `None` if
    /// the store failed.
    pub(crate) async fn send(&self, token: LeaseToken, runs: Vec<NewXxlRun>) -> Option<Vec<XxlRun>> {
        let len = runs.len();
        submit(&self.send_queue, (token, runs), len).await
    }

    /// Stores ends of attempts: see [`rondel_store::XxlExecutors::report_xxl`]. `None` if the store failed.
    pub(crate) async fn report(&self, app: AppId, reports: Vec<XxlReport>) -> Option<XxlReportResults> {
        let len = reports.len();
        submit(&self.report_queue, (app, reports), len).await
    }

    /// Records that attempts have their verdicts, or never began: see [`rondel_store::XxlExecutors::settle_xxl`]. False if the store failed.
    pub(crate) async fn settle(&self, settlements: Vec<XxlSettlement>) -> bool {
        let len = settlements.len();
        len == 0 || submit(&self.settlement_queue, settlements, len).await.is_some()
    }
}

async fn submit<I, O>(queue: &mpsc::Sender<PendingWrite<I, O>>, input: I, len: usize) -> Option<O> {
    let (answer_sender, receiver) = oneshot::channel();
    queue.send(PendingWrite { input, len, answer_sender }).await.ok()?;
    receiver.await.ok().flatten()
}

/// Waits for a write, and takes further waiting writes, the oldest first, until the rows fill one transaction; `None` if no sender is left.
async fn gather<I, O>(receiver: &mut mpsc::Receiver<PendingWrite<I, O>>) -> Option<Vec<PendingWrite<I, O>>> {
    let first_write = receiver.recv().await?;
    let mut len = first_write.len;
    let mut batch = vec![first_write];
    while len < XXL_BATCH_MAX
        && let Ok(next_write) = receiver.try_recv()
    {
        len += next_write.len;
        batch.push(next_write);
    }
    Some(batch)
}

/// Rows for one transaction, and the writes to answer.
struct KeyedBatch<K, T, O> {
    key: K,
    rows: Vec<T>,
    pending_writes: Vec<PendingWrite<(), O>>,
}

/// Groups a batch by key, keeping the order.
fn group_by_key<K: PartialEq, T, O>(batch: Vec<PendingWrite<(K, Vec<T>), O>>) -> Vec<KeyedBatch<K, T, O>> {
    let mut batches: Vec<KeyedBatch<K, T, O>> = Vec::new();
    for PendingWrite { input: (key, rows), len, answer_sender } in batch {
        let write = PendingWrite { input: (), len, answer_sender };
        match batches.iter_mut().find(|keyed_batch| keyed_batch.key == key) {
            Some(keyed_batch) => {
                keyed_batch.rows.extend(rows);
                keyed_batch.pending_writes.push(write);
            }
            None => batches.push(KeyedBatch { key, rows, pending_writes: vec![write] }),
        }
    }
    batches
}

impl WriteReceivers {
    /// Starts the loops; they end with the lifecycle.
    pub(crate) fn start(self, engine: &Engine, log_limit: &Arc<LineLimit>, lifecycle: &Lifecycle) {
        let Self { sends, reports, settlements } = self;
        let writer = || Writer { engine: engine.clone(), log_limit: Arc::clone(log_limit) };
        let spawn = |task: Pin<Box<dyn Future<Output = ()> + Send>>| {
            let stop = lifecycle.hard.clone();
            lifecycle.spawn("xxl writes", Until::Done, async move {
                stop.run_until_cancelled(task).await;
            });
        };
        spawn(Box::pin(writer().send_all(sends)));
        spawn(Box::pin(writer().report_all(reports)));
        spawn(Box::pin(writer().settle_all(settlements)));
    }
}

/// The state of one loop.
struct Writer {
    engine: Engine,
    log_limit: Arc<LineLimit>,
}

impl Writer {
    async fn send_all(self, mut receiver: mpsc::Receiver<PendingSend>) {
        while let Some(batch) = gather(&mut receiver).await {
            for KeyedBatch { key: token, rows: runs, pending_writes } in group_by_key(batch) {
                let send_result = self.engine.store().send_xxl(token, &runs, self.engine.now()).await;
                let rows =
                    send_result.inspect_err(|error| self.log_limit.log_store_failure("number attempts", error)).ok();
                let mut rows = rows.map(|rows| rows.unwrap_or_default().into_iter());
                for write in pending_writes {
                    write.answer_sender.send(rows.as_mut().map(|rows| rows.by_ref().take(write.len).collect())).ok();
                }
            }
        }
    }

    async fn report_all(self, mut receiver: mpsc::Receiver<PendingReport>) {
        while let Some(batch) = gather(&mut receiver).await {
            for KeyedBatch { key: app, rows: reports, pending_writes } in group_by_key(batch) {
                let results = self.engine.store().report_xxl(app, &reports, self.engine.now()).await;
                let results =
                    results.inspect_err(|error| self.log_limit.log_store_failure("store ends of attempts", error)).ok();
                let runs: HashMap<i64, &XxlRun> =
                    results.iter().flat_map(|results| &results.runs).map(|run| (run.log_id, run)).collect();
                let mut first_row = 0;
                for write in pending_writes {
                    let range = first_row..first_row + write.len;
                    first_row = range.end;
                    let write_results = results.as_ref().map(|results| XxlReportResults {
                        runs: runs_of(&reports[range.clone()], &runs),
                        outcomes: results.outcomes[range].to_vec(),
                    });
                    write.answer_sender.send(write_results).ok();
                }
            }
        }
    }

    async fn settle_all(self, mut receiver: mpsc::Receiver<PendingSettle>) {
        while let Some(batch) = gather(&mut receiver).await {
            let settlements: Vec<XxlSettlement> = batch.iter().flat_map(|write| write.input.iter().copied()).collect();
            let settle_result = self.engine.store().settle_xxl(&settlements, self.engine.now()).await;
            let settle_result =
                settle_result.inspect_err(|error| self.log_limit.log_store_failure("settle attempts", error)).ok();
            for write in batch {
                write.answer_sender.send(settle_result).ok();
            }
        }
    }
}

/// The runs of these reports, each once.
fn runs_of(reports: &[XxlReport], runs: &HashMap<i64, &XxlRun>) -> Vec<XxlRun> {
    let ids: BTreeSet<i64> = reports.iter().map(|report| report.log_id).collect();
    ids.iter().filter_map(|id| runs.get(id)).map(|run| (*run).clone()).collect()
}
