//! Whole groups, on tokio's paused clock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rondel_core::RunStatus;
use rondel_proto::v1::{self, PumpItem, PumpOrder, PumpProgress, Trigger};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::attempt::{self, EndedAttempt};
use crate::handler::JobHandler;
use crate::job_error::JobError;
use crate::run::{RunContext, StopCause};
use crate::setup::{Setup, States, Timing};
use crate::shard;
use crate::table::TableLog as _;

const SECOND: Duration = Duration::from_secs(1);

type Log<T> = Arc<Mutex<Vec<T>>>;
type Work = Arc<dyn Fn(u32) -> Duration + Send + Sync>;

/// Rows in memory, each a number. The test decides how long each row takes and whether it fails.
#[derive(Clone)]
struct Rows {
    open: Arc<Mutex<BTreeMap<u32, String>>>,
    takes: Work,
    fails: Arc<dyn Fn(u32) -> Result<(), JobError> + Send + Sync>,
    select_takes: Duration,
    /// The rows of each execution, with its start and its epoch.
    calls: Log<(Instant, Vec<u32>, i64)>,
    selects: Log<(Instant, Vec<String>)>,
    /// The highest number of executions at the same time.
    executing_max: Arc<AtomicUsize>,
    /// The number of executions in progress.
    executing: Arc<AtomicUsize>,
}

impl Rows {
    fn new(count: u32) -> Self {
        Self {
            open: Arc::new(Mutex::new((1..=count).map(|row| (row, "a".to_owned())).collect())),
            takes: Arc::new(|_| SECOND),
            fails: Arc::new(|_| Ok(())),
            select_takes: Duration::ZERO,
            calls: Arc::default(),
            selects: Arc::default(),
            executing_max: Arc::default(),
            executing: Arc::default(),
        }
    }

    fn taking(mut self, takes: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        self.takes = Arc::new(takes);
        self
    }

    fn failing(mut self, fails: impl Fn(u32) -> Result<(), JobError> + Send + Sync + 'static) -> Self {
        self.fails = Arc::new(fails);
        self
    }

    fn calls(&self) -> Vec<Vec<u32>> {
        self.calls.lock().unwrap().iter().map(|(_, rows, _)| rows.clone()).collect()
    }
}

impl Pump for Rows {
    type Row = (String, u32);
    type Error = JobError;

    async fn select(&self, _: &PumpContext, items: &[Item], limit: usize) -> Result<Vec<Self::Row>, JobError> {
        let names: Vec<String> = items.iter().map(|item| item.name.clone()).collect();
        self.selects.lock().unwrap().push((Instant::now(), names.clone()));
        sleep(self.select_takes).await;
        let open = self.open.lock().unwrap();
        let ours = open.iter().filter(|(_, item)| names.contains(item));
        Ok(ours.take(limit).map(|(row, item)| (item.clone(), *row)).collect())
    }

    async fn execute(&self, cx: &PumpContext, rows: Vec<Self::Row>) -> Result<(), JobError> {
        let numbers: Vec<u32> = rows.iter().map(|(_, row)| *row).collect();
        self.calls.lock().unwrap().push((Instant::now(), numbers.clone(), cx.epoch(&rows[0].0)));
        let now = self.executing.fetch_add(1, Ordering::SeqCst) + 1;
        self.executing_max.fetch_max(now, Ordering::SeqCst);
        sleep((self.takes)(numbers[0])).await;
        self.executing.fetch_sub(1, Ordering::SeqCst);
        for number in &numbers {
            (self.fails)(*number)?;
        }
        self.open.lock().unwrap().retain(|row, _| !numbers.contains(row));
        cx.checkpoint("a", numbers[0].to_string())?;
        Ok(())
    }

    fn item(row: &Self::Row) -> String {
        row.0.clone()
    }

    fn key(row: &Self::Row) -> String {
        row.1.to_string()
    }
}

fn limits() -> v1::Pump {
    v1::Pump {
        threads: 2,
        fetch: 100,
        batch: 1,
        idle_ms: 500,
        hand_over_ms: 40_000,
        row_backoff_ms: 1_000,
        row_backoff_max_ms: 8_000,
        ..v1::Pump::default()
    }
}

/// A group that runs in a task next to the test.
struct Running {
    run: RunContext,
    task: tokio::task::JoinSet<EndedAttempt>,
    handle: tokio::task::AbortHandle,
    number: i64,
}

impl Running {
    fn start(rows: &Rows, pump: v1::Pump) -> Self {
        let trigger = Trigger {
            run_id: 7,
            attempt: 1,
            handler: "rows".to_owned(),
            shard_index: 2,
            shard_total: 3,
            pump: Some(pump),
            ..Trigger::default()
        };
        let setup = Setup::new(States::default(), Timing::default());
        let run = RunContext::new(&Arc::new(setup), trigger, 0);
        let handler = JobHandler::of_pump(PumpHandler::new(rows.clone()));
        let (mut task, own) = (tokio::task::JoinSet::new(), run.clone());
        let handle = task.spawn(async move { attempt::execute(&own, handler).await });
        Self { run, task, handle, number: 0 }
    }

    /// A group that holds the item `a` at epoch 5.
    fn holding(rows: &Rows, pump: v1::Pump) -> Self {
        let mut running = Self::start(rows, pump);
        running.order(vec![item("a")]);
        running
    }

    fn order(&mut self, items: Vec<PumpItem>) {
        self.send(items, false);
    }

    fn send(&mut self, items: Vec<PumpItem>, yields: bool) {
        self.number += 1;
        let order = PumpOrder { run_id: 7, attempt: 1, term: 1, number: self.number, items, r#yield: yields };
        self.run.order_mailbox().unwrap().put(order);
    }

    /// The last report of the item.
    fn progress(&self) -> PumpProgress {
        let report = self.run.setup().pump_reports.get(self.run.key());
        report.and_then(|report| report.items.into_iter().next()).unwrap_or_default()
    }

    async fn wait_for_end(&mut self) -> (RunStatus, bool, String) {
        let ended = timeout(SECOND * 600, self.task.join_next()).await.expect("in time").unwrap().unwrap();
        let ending = ended.ending;
        assert!(ending.result.is_some(), "{ending:?}");
        (ending.status, ending.is_yielded, ending.message)
    }

    fn has_ended(&self) -> bool {
        self.handle.is_finished()
    }

    fn log(&self) -> String {
        self.run.log().close();
        self.run.log().lines().iter().map(|line| format!("{} {}\n", line.level, line.text)).collect()
    }
}

fn item(name: &str) -> PumpItem {
    PumpItem { name: name.to_owned(), epoch: 5, ..PumpItem::default() }
}

fn released(name: &str) -> PumpItem {
    PumpItem { release: true, ..item(name) }
}

const YIELDED: fn(&str) -> (RunStatus, bool, String) = |message| (RunStatus::Cancelled, true, message.to_owned());

#[tokio::test(start_paused = true)]
async fn workers_share_the_rows_and_the_last_that_runs_dry_fetches() {
    let rows = Rows::new(5).taking(|row| if row == 1 { SECOND * 10 } else { SECOND });
    let mut running = Running::holding(&rows, limits());
    sleep(SECOND * 9).await;
    assert_eq!(rows.calls(), [[1], [2], [3], [4], [5]]);
    assert_eq!((rows.executing_max.load(Ordering::SeqCst), rows.selects.lock().unwrap().len()), (2, 1));
    let progress = running.progress();
    assert_eq!((progress.rows, progress.done, progress.dry, progress.checkpoint.as_str()), (5, 4, false, "5"));
    assert!(progress.oldest_at_ms > 0);
    sleep(SECOND * 3).await;
    let progress = running.progress();
    assert_eq!((progress.done, progress.per_minute, progress.dry), (5, 5, true));
    let selects = rows.selects.lock().unwrap().clone();
    assert_eq!(selects[2].0 - selects[1].0, Duration::from_millis(500), "idle");
    assert!(rows.calls.lock().unwrap().iter().all(|(_, _, epoch)| *epoch == 5));
    running.send(vec![released("a")], true);
    assert_eq!(running.wait_for_end().await, YIELDED("fetched 5, done 5, failed 0"));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_runs_dry_fetches_beside_the_others() {
    let rows = Rows::new(5).taking(|row| if row == 1 { SECOND * 10 } else { SECOND });
    let running = Running::holding(&rows, v1::Pump { not_sleep: true, ..limits() });
    sleep(SECOND * 9).await;
    // Row 1 is still in execution. The selects return it again, but it is not executed twice, and the selects do not
    // spin.
    assert_eq!(rows.calls(), [[1], [2], [3], [4], [5]]);
    let selects = rows.selects.lock().unwrap().len();
    assert!((8..20).contains(&selects), "{selects}");
    assert!(!running.progress().dry);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_one_call_and_fails_as_one() {
    let rows = Rows::new(5).failing(|row| if row == 4 { Err(JobError::failed("no such order")) } else { Ok(()) });
    let mut running = Running::holding(&rows, v1::Pump { batch: 3, row_retry_max: 1, ..limits() });
    sleep(SECOND * 4).await;
    assert_eq!(rows.calls()[..3], [vec![1, 2, 3], vec![4, 5], vec![4, 5]]);
    let at: Vec<Instant> = rows.calls.lock().unwrap().iter().map(|(at, ..)| *at).collect();
    assert_eq!(at[2] - at[1], SECOND * 2, "a second of work and one of wait");
    running.send(vec![item("a")], true);
    assert_eq!(running.wait_for_end().await, YIELDED("fetched 5, done 3, failed 4; failed for good: 4, 5"));
    let log = running.log();
    assert!(log.contains("warn rows 4, 5 of item a failed: no such order; tried again in 1s\n"), "{log}");
    assert!(log.contains("warn rows 4, 5 of item a failed: no such order\n"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_the_row_and_the_group_continues() {
    let rows = Rows::new(3).failing(|row| if row == 2 { panic!("row {row}") } else { Ok(()) });
    let mut running = Running::holding(&rows, v1::Pump { row_backoff_ms: 60_000, ..limits() });
    sleep(SECOND * 3).await;
    running.send(vec![item("a")], true);
    assert_eq!(running.wait_for_end().await, YIELDED("fetched 3, done 2, failed 1; failed for good: 2"));
    assert!(running.log().contains("warn row 2 of item a failed: panicked: row 2\n"));
}

struct Broken;

impl Pump for Broken {
    type Row = ();
    type Error = std::io::Error;

    async fn select(&self, cx: &PumpContext, _: &[Item], _: usize) -> Result<Vec<()>, std::io::Error> {
        assert_eq!((cx.group(), cx.groups(), shard::index()), (2, 3, 2));
        tracing::info!("selecting");
        match crate::run::current().map(|run| run.attempt()) {
            Some(1) => panic!("no connection"),
            _ => Err(std::io::Error::other("no database")),
        }
    }

    async fn execute(&self, _: &PumpContext, _: Vec<()>) -> Result<(), std::io::Error> {
        Ok(())
    }

    fn item((): &()) -> String {
        String::new()
    }

    fn key((): &()) -> String {
        String::new()
    }
}

#[tokio::test(start_paused = true)]
async fn a_select_that_panics_is_tried_again_later_and_later() {
    let outcome =
        TestPump::of(Broken).item("a", 1).group(2, 3).row_retry(0, SECOND).time_limit(SECOND * 10).run().await;
    assert!(!outcome.is_complete());
    assert_eq!(outcome.message(), "fetched 0, done 0, failed 0; 4 selects failed, and the last one did");
    assert_eq!(outcome.released().collect::<Vec<_>>(), ["a"]);
    let waits: Vec<&str> = outcome.log().lines().filter_map(|line| line.strip_prefix("error ")).collect();
    assert_eq!(
        waits[..2],
        [
            "select failed: panicked: no connection; tried again in 1s",
            "select failed: panicked: no connection; tried again in 2s"
        ]
    );
    assert_eq!(outcome.log().matches("info selecting").count(), 4, "{}", outcome.log());
}

#[tokio::test(start_paused = true)]
async fn an_item_that_is_asked_back_is_worked_off_and_released_at_once() {
    let rows = Rows::new(3).taking(|_| SECOND * 3);
    let mut running = Running::holding(&rows, limits());
    sleep(SECOND).await;
    running.order(vec![released("a")]);
    sleep(SECOND * 4).await;
    assert!(!running.progress().released);
    sleep(SECOND + Duration::from_millis(1)).await;
    let progress = running.progress();
    assert_eq!((progress.released, progress.done, progress.checkpoint.as_str()), (true, 3, "3"));
    assert_eq!(rows.selects.lock().unwrap().len(), 1);
    assert!(!running.has_ended(), "it may get other items");
}

#[tokio::test(start_paused = true)]
async fn rows_that_hang_are_aborted_before_the_hand_over_ends() {
    let rows = Rows::new(3).taking(|_| SECOND * 3_600);
    let mut running = Running::holding(&rows, limits());
    sleep(SECOND).await;
    running.order(vec![released("a")]);
    sleep(SECOND * 35).await;
    assert!(!running.progress().released);
    sleep(SECOND + Duration::from_millis(1)).await;
    let progress = running.progress();
    assert_eq!((progress.released, progress.rows, progress.done, progress.failed), (true, 3, 0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_select_that_hangs_does_not_keep_its_item() {
    let rows = Rows { select_takes: SECOND * 3_600, ..Rows::new(3) };
    let mut running = Running::holding(&rows, limits());
    sleep(SECOND).await;
    running.order(vec![released("a")]);
    sleep(SECOND * 36 + Duration::from_millis(1)).await;
    assert!(running.progress().released);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_group_finishes_its_executions() {
    let rows = Rows::new(9).taking(|_| SECOND * 20);
    let mut running = Running::holding(&rows, limits());
    sleep(SECOND).await;
    running.run.stop(StopCause::Cancelled { by: "bob".to_owned() });
    let ended = running.wait_for_end().await;
    assert_eq!(ended, (RunStatus::Cancelled, false, "fetched 9, done 2, failed 0".to_owned()));
    assert!(running.progress().released);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_group_aborts_executions_that_take_too_long() {
    let rows = Rows::new(9).taking(|_| SECOND * 3_600);
    let mut running = Running::holding(&rows, limits());
    sleep(SECOND).await;
    let asked = Instant::now();
    running.run.stop(StopCause::Cancelled { by: "bob".to_owned() });
    let early = running.run.should_end(asked + SECOND * 29);
    assert!(!early && running.run.should_end(asked + SECOND * 31), "the ordinary grace follows after that");
    let ended = running.wait_for_end().await;
    assert_eq!(ended, (RunStatus::Cancelled, false, "fetched 9, done 0, failed 2".to_owned()));
    assert_eq!(asked.elapsed().as_secs(), 36);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_hears_no_server_starts_no_row_and_ends_within_the_grace() {
    let rows = Rows::new(9).taking(|row| if row == 1 { SECOND * 3_600 } else { SECOND * 2 });
    let mut running = Running::holding(&rows, limits());
    sleep(SECOND).await;
    let asked = Instant::now();
    running.run.stop(StopCause::Silence { length: SECOND * 15 });
    let (status, is_yielded, message) = running.wait_for_end().await;
    assert_eq!((status, is_yielded), (RunStatus::Failed, false));
    assert_eq!(message, "stopped: no server answered for 15s; fetched 9, done 1, failed 1");
    assert_eq!((rows.calls().len(), asked.elapsed().as_secs()), (2, 9));
}

/// The process was paused, so nothing has noticed the silence yet.
#[tokio::test]
async fn a_row_is_not_started_after_too_long_a_silence() {
    let rows = Rows::new(9).taking(|_| Duration::from_millis(200));
    let mut running = Running::start(&rows, v1::Pump { threads: 1, ..limits() });
    let silence = &running.run.setup().silence;
    silence.record_welcome(100, crate::host::uptime(), crate::host::uptime());
    running.order(vec![item("a")]);
    let (status, _, message) = running.wait_for_end().await;
    assert_eq!(status, RunStatus::Failed);
    assert_eq!(message, "stopped: no server answered for 100ms; fetched 9, done 1, failed 0");
    assert_eq!(rows.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_executor_drains_gives_its_items_back() {
    let rows = Rows::new(9).taking(|_| SECOND * 30);
    let mut running = Running::holding(&rows, limits());
    sleep(SECOND).await;
    running.run.order_mailbox().unwrap().leave();
    assert_eq!(running.wait_for_end().await, YIELDED("fetched 9, done 2, failed 0"));
    assert!(running.progress().released);
    // A group without items whose handler has not begun yet ends, too.
    let mut empty = Running::start(&rows, limits());
    empty.run.order_mailbox().unwrap().leave();
    assert_eq!(empty.wait_for_end().await, YIELDED("fetched 0, done 0, failed 0"));
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_drain_a_group_has_the_ordinary_grace() {
    let rows = Rows::new(9).taking(|_| SECOND * 3_600);
    let mut running = Running::holding(&rows, limits());
    sleep(SECOND).await;
    running.run.order_mailbox().unwrap().leave();
    sleep(SECOND * 60).await;
    assert!(!running.has_ended());
    running.run.stop(StopCause::Drained);
    let stopped = Instant::now();
    assert_eq!(running.wait_for_end().await, YIELDED("fetched 9, done 0, failed 2"));
    assert_eq!(stopped.elapsed().as_secs(), 9);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_its_executor_stops_before_it_begins_yields() {
    let mut running = Running::start(&Rows::new(9), limits());
    running.run.stop(StopCause::Drained);
    let ending = running.task.join_next().await.unwrap().unwrap().ending;
    assert_eq!((ending.is_yielded, ending.message.as_str()), (true, "stopped: the executor is shutting down"));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_item_is_aborted_at_once() {
    let rows = Rows::new(9).taking(|_| SECOND * 3_600);
    let mut running = Running::holding(&rows, limits());
    sleep(SECOND).await;
    running.order(vec![item("b")]);
    sleep(SECOND).await;
    assert_eq!(running.progress().name, "b");
    let selects = rows.selects.lock().unwrap().clone();
    assert_eq!(selects.last().unwrap().1, ["b"], "the workers are free again");
}

#[tokio::test(start_paused = true)]
async fn a_test_ends_after_rows_or_when_all_is_dry() {
    let outcome = TestPump::of(Rows::new(20)).item("a", 1).threads(1).until_rows(3).run().await;
    assert!(outcome.is_complete());
    assert_eq!((outcome.fetched(), outcome.done(), outcome.checkpoint("a")), (20, 3, "3"));
    let outcome = TestPump::of(Rows::new(20)).item("a", 1).item("b", 1).fetch(7).time_limit(SECOND * 60).run().await;
    assert_eq!((outcome.done(), outcome.released().collect::<Vec<_>>()), (20, vec!["a", "b"]));
    assert_eq!(outcome.status(), RunStatus::Cancelled);
}

#[tokio::test]
async fn a_pump_and_its_trigger_go_together() {
    let ends = async |handler: JobHandler, pump: Option<v1::Pump>| {
        let trigger = Trigger { run_id: 1, attempt: 1, handler: "close".to_owned(), pump, ..Trigger::default() };
        let run = RunContext::new(&Arc::new(Setup::new(States::default(), Timing::default())), trigger, 0);
        let ending = attempt::execute(&run, handler).await.ending;
        assert_eq!((ending.status, ending.retryable), (RunStatus::Failed, false));
        ending.message
    };
    let ordinary = ends(JobHandler::of(async || {}), Some(limits())).await;
    assert!(ordinary.starts_with("handler \"close\" is not a pump"), "{ordinary}");
    let pump = ends(JobHandler::of_pump(PumpHandler::new(Broken)), None).await;
    assert!(pump.starts_with("handler \"close\" is a pump, but the job has no"), "{pump}");
}

#[test]
fn a_pump_job_can_be_declared_in_code() {
    let pump = serde_json::json!({"items": {"count": 16}, "groups": 4, "threads": 8});
    let declared =
        crate::Declaration::new("orders.close").option("pump", pump.clone()).into_spec_json("billing").unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&declared).unwrap()["pump"], pump);
    let wrong = crate::Declaration::new("a").option("pump", serde_json::json!({"items": {"count": 1}, "groups": 2}));
    assert!(wrong.into_spec_json("billing").unwrap_err().to_string().contains("/pump/groups"));
}
