//! Groups of pump jobs, from the trigger to the last report.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rondel::{Item, JobError, Pump, PumpContext, Timing};
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::reply::Kind;
use rondel_proto::v1::result::Status as End;
use rondel_proto::v1::server_message::Body as ToExecutor;
use rondel_proto::v1::{self, Cancel, Cancels, Fence, PumpItem, PumpOrder, PumpOrders, PumpProgress, Trigger};
use serde_json::json;

use super::fake::{EPOCH, FakeServer, NODE, trigger};
use super::{RunningExecutor, builder, quick};

/// Rows in memory: numbers by item.
#[derive(Clone, Default)]
struct Close {
    open: Arc<Mutex<Vec<(String, u64)>>>,
}

impl Close {
    fn of(items: &[&str], count: u64) -> Self {
        let rows = items.iter().flat_map(|item| (0..count).map(|row| ((*item).to_owned(), row)));
        Self { open: Arc::new(Mutex::new(rows.collect())) }
    }
}

#[rondel::pump("orders.close")]
impl Pump for Close {
    type Row = (String, u64);
    type Error = JobError;

    async fn select(&self, _: &PumpContext, items: &[Item], limit: usize) -> Result<Vec<(String, u64)>, JobError> {
        let open = self.open.lock().unwrap();
        let is_ours = |row: &&(String, u64)| items.iter().any(|item| item.name == row.0);
        Ok(open.iter().filter(is_ours).take(limit).cloned().collect())
    }

    async fn execute(&self, cx: &PumpContext, rows: Vec<(String, u64)>) -> Result<(), JobError> {
        let [row] = &rows[..] else { panic!("{rows:?}") };
        tracing::info!("row {} of {}", row.1, row.0);
        if row.1 == 999 {
            std::future::pending::<()>().await;
        }
        self.open.lock().unwrap().retain(|one| one != row);
        cx.checkpoint(&row.0, row.1.to_string())?;
        Ok(())
    }

    fn item(row: &(String, u64)) -> String {
        row.0.clone()
    }

    fn key(row: &(String, u64)) -> String {
        row.1.to_string()
    }
}

fn group(run_id: i64) -> Trigger {
    let pump = v1::Pump { threads: 2, fetch: 10, batch: 1, idle_ms: 20, hand_over_ms: 1_000, ..v1::Pump::default() };
    Trigger { pump: Some(pump), shard_total: 2, ..trigger(run_id, "orders.close") }
}

fn item(name: &str, epoch: i64) -> PumpItem {
    PumpItem { name: name.to_owned(), epoch, ..PumpItem::default() }
}

async fn order(server: &FakeServer, number: i64, items: Vec<PumpItem>, yields: bool) {
    let order = PumpOrder { run_id: 1, attempt: 1, term: 1, number, items, r#yield: yields };
    send(server, EPOCH, order).await;
}

async fn send(server: &FakeServer, node_epoch: i64, order: PumpOrder) {
    server.send(ToExecutor::PumpOrders(PumpOrders { node_id: NODE, node_epoch, orders: vec![order] })).await;
}

/// Waits for a report under this order whose items satisfy `holds`.
async fn report(server: &FakeServer, number: i64, holds: impl Fn(&[PumpProgress]) -> bool) -> Vec<PumpProgress> {
    server
        .find(|body| match body {
            Body::PumpReports(reports) => {
                let mut ours = reports.reports.iter().filter(|report| report.run_id == 1 && report.number == number);
                ours.find(|report| holds(&report.items)).map(|report| report.items.clone())
            }
            _ => None,
        })
        .await
}

#[tokio::test]
async fn a_group_works_gives_back_and_yields() {
    let server = FakeServer::start().await;
    let close = Close::of(&["a", "b", "c"], 12);
    let executor = RunningExecutor::start(builder(&server).pump("orders.close", close.clone()));
    assert_eq!(server.hello(0).await.handlers, ["orders.close"]);
    server.trigger(group(1)).await;
    order(&server, 1, vec![item("a", 4), item("b", 7)], false).await;
    let items = report(&server, 1, |items| items.iter().all(|item| item.dry)).await;
    let counts: Vec<_> = items.iter().map(|item| (item.name.as_str(), item.epoch, item.rows, item.done)).collect();
    assert_eq!(counts, [("a", 4, 12, 12), ("b", 7, 12, 12)]);
    assert_eq!(items[0].checkpoint.parse::<u64>().unwrap() / 2, 5, "{items:?}");
    assert!(close.open.lock().unwrap().iter().all(|(item, _)| item == "c"), "it was not asked for");

    let asked_back = PumpItem { release: true, ..item("b", 7) };
    order(&server, 2, vec![item("a", 4), asked_back], false).await;
    report(&server, 2, |items| items.len() == 2 && items[1].released && !items[0].released).await;
    order(&server, 3, vec![item("a", 4), item("c", 1)], false).await;
    report(&server, 3, |items| items.len() == 2 && items[1].name == "c" && items[1].done == 12).await;
    order(&server, 4, vec![item("a", 4), item("c", 1)], true).await;
    let result = server.result(1).await;
    assert_eq!((result.status(), result.message.as_str()), (End::Yielded, "fetched 36, done 36, failed 0"));
    assert_eq!(result.result, r#"{"done":36,"failed":0,"fetched":36}"#);
    report(&server, 4, |items| items.iter().all(|item| item.released)).await;
    assert!(server.log(1).iter().any(|line| line.text == "row 11 of c"));
    executor.stop().await;
}

#[tokio::test]
async fn orders_of_a_fenced_lease_are_ignored() {
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).named_pump::<Close>());
    server.trigger(group(1)).await;
    server.reply(1, Kind::Accepted).await;
    order(&server, 1, vec![item("a", 1)], false).await;
    report(&server, 1, |items| items.len() == 1).await;
    server.send(ToExecutor::Fence(Fence { node_id: NODE, node_epoch: EPOCH })).await;
    order(&server, 3, Vec::new(), false).await;
    let newer = PumpOrder { run_id: 1, attempt: 1, term: 1, number: 2, items: vec![item("a", 1)], r#yield: false };
    send(&server, EPOCH + 1, newer).await;
    report(&server, 2, |items| items.len() == 1).await;
    executor.stop().await;
}

#[tokio::test]
async fn a_new_stream_has_the_state_of_each_group_before_its_result() {
    let server = FakeServer::start().await;
    server.set_acks(false);
    let executor = RunningExecutor::start(builder(&server).pump("orders.close", Close::of(&["a"], 3)));
    server.trigger(group(1)).await;
    order(&server, 1, vec![item("a", 1)], false).await;
    report(&server, 1, |items| items[0].dry).await;
    server.forget_seen();
    server.disconnect().await;
    server.hello(1).await;
    report(&server, 1, |items| items[0].dry && items[0].done == 3).await;
    order(&server, 2, vec![item("a", 1)], true).await;
    server.result(1).await;
    server.forget_seen();
    server.disconnect().await;
    server.hello(2).await;
    server.result(1).await;
    let seen = server.seen();
    let place = |is: fn(&Body) -> bool| seen.iter().position(is).unwrap();
    let reported = place(|body| matches!(body, Body::PumpReports(all) if all.reports[0].items[0].released));
    assert!(reported < place(|body| matches!(body, Body::Results(_))), "{seen:#?}");
    server.set_acks(true);
    executor.stop().await;
}

#[tokio::test]
async fn a_drain_ends_groups_at_once() {
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).pump("orders.close", Close::of(&["a"], 3)));
    server.trigger(group(1)).await;
    order(&server, 1, vec![item("a", 1)], false).await;
    report(&server, 1, |items| items[0].dry).await;
    executor.stop().await;
    let result = server.result(1).await;
    assert_eq!((result.status(), result.message.as_str()), (End::Yielded, "fetched 3, done 3, failed 0"));
    report(&server, 1, |items| items[0].released).await;
}

/// The hand-over is longer than the ordinary grace, after which a handler that has not returned counts as stuck.
#[tokio::test]
async fn a_cancel_leaves_rows_the_time_of_the_hand_over() {
    let server = FakeServer::start().await;
    let close = Close { open: Arc::new(Mutex::new(vec![("a".to_owned(), 999)])) };
    let timing = Timing { cancel_grace: Duration::from_millis(100), ..quick() };
    let executor = RunningExecutor::start(builder(&server).timing(timing).pump("orders.close", close));
    let mut group = group(1);
    group.pump.as_mut().unwrap().hand_over_ms = 2_500;
    server.trigger(group).await;
    order(&server, 1, vec![item("a", 1)], false).await;
    report(&server, 1, |items| items[0].rows == 1).await;
    let begun = tokio::time::Instant::now();
    let cancels = vec![Cancel { run_id: 1, attempt: 1, by: "bob".to_owned() }];
    server.send(ToExecutor::Cancels(Cancels { cancels })).await;
    let result = server.result(1).await;
    assert_eq!((result.status(), result.message.as_str()), (End::Cancelled, "fetched 1, done 0, failed 1"));
    assert!(begun.elapsed() >= Duration::from_millis(2_200), "{:?}", begun.elapsed());
    executor.stop().await;
}

#[tokio::test]
async fn a_pump_needs_a_job_with_groups() {
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).named_pump::<Close>().handler("plain", async || {}));
    server.trigger(trigger(1, "orders.close")).await;
    server.trigger(Trigger { handler: "plain".to_owned(), params: json!(null).to_string(), ..group(2) }).await;
    for (run_id, part) in [(1, "is a pump, but the job has no"), (2, "is not a pump, but the job has")] {
        let result = server.result(run_id).await;
        assert_eq!((result.status(), result.retryable), (End::Failed, false));
        assert!(result.message.contains(part), "{result:?}");
    }
    executor.stop().await;
}
