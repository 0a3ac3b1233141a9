//! A pump over a table of orders, while executors are added, drained, killed, paused and cut off, and servers are killed: each order is
//! executed exactly once.

use std::process::Command;
use std::time::Duration;

use rondel_tests::{Backend, Process, ScratchDb, Server, Signal, example, scratch, variable, wait_until};
use serde_json::{Value, json};

use super::fixture::{Chance, print, server};
use super::proxy::{Cut, Proxy};

const ITEM_COUNT: usize = 16;
/// Short times, so that one minute contains everything. The rules hold for any length.
const TIMES: [&str; 6] = ["--heartbeat", "500ms", "--silence", "1500ms", "--lost-after", "11500ms"];
const HAND_OVER: &str = "12s";
const ASLEEP: Duration = Duration::from_secs(14);
const LIMIT: Duration = Duration::from_secs(120);

/// One process of the example `orders`, and the proxies between it and the servers.
struct Worker {
    process: Process,
    name: String,
    wakes_at: Option<tokio::time::Instant>,
    proxies: Vec<Proxy>,
}

/// The executors of a test.
struct Fleet<'a> {
    orders: &'a ScratchDb,
    servers: Vec<Server>,
    workers: Vec<Worker>,
    started: usize,
    with_token: bool,
    row_ms: u64,
}

impl Fleet<'_> {
    async fn add(&mut self) {
        self.started += 1;
        let name = format!("w{}", self.started);
        let mut command = Command::new(example("orders"));
        command.args(["--app", "orders", "--name", &name, "--database", self.orders.url(), "--token-file"]);
        command.arg(self.servers[0].token_file()).args(["--row-ms", &self.row_ms.to_string()]);
        let mut proxies = Vec::new();
        for server in &self.servers {
            let proxy = Proxy::start(server.url()).await;
            command.args(["--server", &proxy.url]);
            proxies.push(proxy);
        }
        if self.with_token {
            command.arg("--token");
        }
        let process = Process::start(&format!("orders {name}"), command);
        self.workers.push(Worker { process, name, wakes_at: None, proxies });
    }

    /// Disturbs one of the executors.
    async fn disturb(&mut self, chance: &mut Chance) {
        self.wake();
        let awake: Vec<usize> =
            (0..self.workers.len()).filter(|index| self.workers[*index].wakes_at.is_none()).collect();
        let kind = chance.below(6);
        if awake.len() < 3 || kind == 0 {
            return self.add().await;
        }
        let pick = usize::try_from(chance.below(awake.len() as u64)).expect("small");
        let index = awake[pick];
        print(&format!(
            "{} {}",
            ["", "drain", "kill", "stop", "cut off", "stop"][usize::try_from(kind).expect("small")],
            self.workers[index].name
        ));
        match kind {
            1 => {
                let mut worker = self.workers.remove(index);
                assert!(
                    worker.process.terminate(Duration::from_secs(30)).await.success(),
                    "{}",
                    worker.process.last_words()
                );
                self.add().await;
            }
            2 => {
                self.workers.remove(index).process.kill().await;
                self.add().await;
            }
            4 => {
                self.workers[index].proxies.iter().for_each(|proxy| proxy.cut(Cut::Everything));
                self.workers[index].wakes_at = Some(tokio::time::Instant::now() + ASLEEP);
            }
            _ => {
                self.workers[index].process.signal(Signal::STOP);
                self.workers[index].wakes_at = Some(tokio::time::Instant::now() + ASLEEP);
            }
        }
    }

    /// Continues the executors that have been paused or cut off for long enough.
    fn wake(&mut self) {
        let now = tokio::time::Instant::now();
        for worker in self.workers.iter_mut().filter(|worker| worker.wakes_at.is_some_and(|at| at <= now)) {
            worker.wakes_at = None;
            worker.process.signal(Signal::CONT);
            worker.proxies.iter().for_each(|proxy| proxy.cut(Cut::Nothing));
        }
    }

    async fn kill_a_server(&mut self, chance: &mut Chance, place: &str) {
        let index = usize::try_from(chance.below(2)).expect("small");
        print(&format!("server {index} dies; it comes back and may die at {place}"));
        // The server may just have died at its previous place.
        if self.servers[index].process().has_ended().is_none() {
            self.servers[index].kill().await;
        }
        assert!(self.servers[index].try_restart_with(&["--failpoint", place]).await, "it deals before it listens");
    }

    async fn restart_servers(&mut self) {
        for server in &mut self.servers {
            if server.process().has_ended().is_some() {
                print("a server died at its place");
                server.restart().await;
            }
        }
    }

    async fn wait_until_no_order_is_open(&mut self) {
        wait_until(LIMIT, "all orders are worked off", async || {
            self.restart_servers().await;
            let open = count(self.orders, "orders WHERE NOT done");
            if open == 0 { Ok(()) } else { Err(format!("{open} left")) }
        })
        .await;
    }

    fn wake_all(&mut self) {
        for worker in &mut self.workers {
            worker.wakes_at = worker.wakes_at.map(|_| tokio::time::Instant::now());
        }
        self.wake();
    }
}

/// Creates the table of orders, and the journal of their executions.
fn make_orders(db: &ScratchDb, count: usize) {
    db.sql(&format!(
        "CREATE TABLE orders (id INT PRIMARY KEY, item TEXT NOT NULL, done BOOLEAN NOT NULL DEFAULT false); \
         CREATE INDEX open_orders ON orders (item, id) WHERE NOT done; \
         CREATE TABLE journal (id INT PRIMARY KEY, item TEXT, epoch BIGINT, worker TEXT); \
         CREATE TABLE twice (id INT, item TEXT, epoch BIGINT, worker TEXT); \
         CREATE TABLE item_epoch (item TEXT PRIMARY KEY, epoch BIGINT NOT NULL); \
         INSERT INTO orders SELECT n, n % {ITEM_COUNT} FROM generate_series(1, {count}) AS n; \
         INSERT INTO item_epoch SELECT n, 0 FROM generate_series(0, {ITEM_COUNT} - 1) AS n"
    ));
}

fn count(db: &ScratchDb, what: &str) -> usize {
    db.sql(&format!("SELECT count(*) FROM {what}")).trim().parse().expect("a count")
}

/// The pump over the orders.
fn close_orders(mode: &str, fetch: usize) -> Value {
    json!({
        "name": "close-orders", "app": "orders", "handler": "orders.close", "retry": {"max": 50, "backoff": "1s..2s"},
        "pump": {
            "items": {"count": ITEM_COUNT}, "groups": 8, "threads": 5, "fetch": fetch, "mode": mode, "hand_over": HAND_OVER,
            "until": "empty",
        },
    })
}

async fn is_worked_off_once(mode: &str, with_token: bool) {
    let seconds = variable("TEST_PUMP_SECONDS").and_then(|text| text.parse().ok()).unwrap_or(40_u64);
    let orders_max = variable("TEST_PUMP_ORDERS").and_then(|text| text.parse().ok()).unwrap_or(5_000_usize);
    let (Some(db), Some(orders)) = (scratch(Backend::Postgres).await, scratch(Backend::Postgres).await) else { return };
    let mut chance = Chance::new();
    make_orders(&orders, orders_max);
    let servers = vec![server(&db, &TIMES).await, server(&db, &TIMES).await];
    // Most of the time there are about 30 workers. There is work until the end.
    let row_ms = seconds * 1_000 * 30 / u64::try_from(orders_max).expect("small");
    let mut fleet = Fleet { orders: &orders, servers, workers: Vec::new(), started: 0, with_token, row_ms };
    for _ in 0..4 {
        fleet.add().await;
    }
    fleet.servers[1].api().post("/api/v1/jobs", close_orders(mode, 50)).await.expect(201);
    let began = tokio::time::Instant::now();
    // A server that is killed is restarted to die at one of these places, if it reaches it.
    let mut deaths = vec![(seconds / 4, "change_items.written@3"), (seconds / 2, "change_items.committed@3")];
    while began.elapsed() < Duration::from_secs(seconds) && count(&orders, "orders WHERE NOT done") > 0 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        fleet.disturb(&mut chance).await;
        if deaths.first().is_some_and(|(at, _)| began.elapsed().as_secs() >= *at) {
            let (_, place) = deaths.remove(0);
            fleet.kill_a_server(&mut chance, place).await;
        }
        fleet.restart_servers().await;
        print(&format!("{} s: {} of {orders_max}", began.elapsed().as_secs(), count(&orders, "journal")));
    }
    fleet.wake_all();
    fleet.wait_until_no_order_is_open().await;
    let (journal, twice) = (count(&orders, "journal"), orders.sql("SELECT * FROM twice ORDER BY id"));
    print(&format!("{mode}: {journal} orders, done twice: {:?}, after {} s", twice, began.elapsed().as_secs()));
    assert_eq!((journal, twice.trim()), (orders_max, ""), "each exactly once");
    wait_until(LIMIT, "the pump ends, as it is empty", async || {
        fleet.restart_servers().await;
        let runs = fleet.servers[0].api().runs("close-orders").await;
        let root = runs.iter().find(|run| run["shard_index"].is_null() || run["shard_index"] == -1);
        match root {
            Some(root) if root["status"] == "succeeded" => Ok(()),
            _ => Err(format!("{runs:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn each_order_is_worked_off_once_by_sleepers() {
    is_worked_off_once("sleep", true).await;
}

#[tokio::test]
async fn each_order_is_worked_off_once_by_those_that_do_not_sleep() {
    is_worked_off_once("not_sleep", true).await;
}

/// Pauses an executor in the middle of some orders until another one has executed them. Returns how many orders were
/// executed twice; `None` without PostgreSQL.
async fn done_twice_by_a_sleeper(with_token: bool) -> Option<usize> {
    let (db, orders) = (scratch(Backend::Postgres).await?, scratch(Backend::Postgres).await?);
    make_orders(&orders, 400);
    let servers = vec![server(&db, &TIMES).await];
    let mut fleet = Fleet { orders: &orders, servers, workers: Vec::new(), started: 0, with_token, row_ms: 1_000 };
    fleet.add().await;
    fleet.servers[0].api().post("/api/v1/jobs", close_orders("sleep", 20)).await.expect(201);
    wait_until(LIMIT, "it works", async || {
        let done = count(&orders, "journal");
        if done > 20 { Ok(()) } else { Err(done) }
    })
    .await;
    fleet.workers[0].process.signal(Signal::STOP);
    (fleet.row_ms, fleet.workers[0].wakes_at) = (0, Some(tokio::time::Instant::now()));
    fleet.add().await;
    fleet.wait_until_no_order_is_open().await;
    fleet.wake();
    // If the executor finishes the rows that it had begun, it does so immediately after it wakes.
    tokio::time::sleep(Duration::from_secs(5)).await;
    Some(count(&orders, "twice"))
}

/// No scheduler can keep a process from waking in the middle of a row that another process has executed meanwhile. With the token, the
/// statement of the woken process changes nothing.
#[tokio::test]
async fn a_process_that_wakes_does_its_rows_again_without_a_token_and_not_with_one() {
    let Some(without) = done_twice_by_a_sleeper(false).await else { return };
    let with = done_twice_by_a_sleeper(true).await;
    print(&format!("done twice without a token: {without}, with one: {with:?}"));
    assert!(without > 0 && with == Some(0), "{without}, {with:?}");
}
