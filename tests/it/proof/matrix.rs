//! The kill matrix: at each failpoint a process dies under load, repeatedly, and the checker finds nothing wrong.
//!
//! A series of deaths takes place in one system: a server that died is restarted with the next failpoint armed. If there
//! are two servers, the other one takes over meanwhile. After [`DEATHS_PER_SERIES`] deaths the series ends, and the checker judges it.
//! Failpoints (places) that a series did not reach are tried again in a further series. `tests/matrix` runs the long form,
//! with several series concurrently and the results as a table.

use std::sync::Arc;
use std::time::Duration;

use rondel_failpoint::points;
use rondel_tests::check::Rules;
use rondel_tests::{Api, Backend, Method, ScratchDb, Server, millis, scratch, variable, wait_until, wall_clock_ms};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};

use super::fixture::{
    Chance, Journal, Worker, job, judge_all, listener, print, record_outcome, rounds, server, server_with_lease,
};
use super::proxy::{Cut, Proxy};

/// The number of deaths in one series.
const DEATHS_PER_SERIES: usize = 24;
/// Deaths of executors at each of their places, in one series.
const EXECUTOR_ROUNDS: usize = 5;
/// How long it may take to reach a place.
const REACH: Duration = Duration::from_secs(20);
/// How often a client makes a call meanwhile.
const CLICK_PERIOD: Duration = Duration::from_millis(120);
/// A short lease: in a cluster, a death takes most of its time until the dead server's lease has ended.
const LEASE: [&str; 4] = ["--lease", "2s", "--beat", "400ms"];
/// How long at-most-once runs wait for an executor that a new lease has not heard. The default of two minutes is longer than the
/// test waits for verdicts.
const PATIENCE: [&str; 2] = ["--continue-max", "30s"];
/// Longer than the lease: by then another server owns the jobs of the dead one.
const BEYOND_LEASE: Duration = Duration::from_secs(4);

/// Places that a series does not reach, and why. Each has a test of its own.
const ELSEWHERE: &[(&str, &str)] = &[
    ("add_link", ACCOUNTS),
    ("add_token", ACCOUNTS),
    ("begin_sign_in", ACCOUNTS),
    ("change_account", ACCOUNTS),
    ("count_attempt", ACCOUNTS),
    ("create_account", ACCOUNTS),
    ("create_first_admin", ACCOUNTS),
    ("delete_account", ACCOUNTS),
    ("delete_namespace", ACCOUNTS),
    ("revoke_token", ACCOUNTS),
    ("rotate_token", ACCOUNTS),
    ("set_password", ACCOUNTS),
    ("take_link", ACCOUNTS),
    ("create_jobs", "only lists of jobs: matrix_upkeep.rs"),
    ("forget_nodes", "only a node that is dead for a week: the same"),
    ("forget_tokens", "as the purge: tokens that ended long ago"),
    ("finish_unwritable", "only a result that the database refuses: the same"),
    ("free_homeless", "only a home that is no node any more: the same"),
    ("heal_job", "only a job whose next fire is missing: the same"),
    ("next_migration", "only a database that lacks several migrations: migrating.rs"),
    ("note_waits", "only a run that waits for longer than a second, and what it waits for decides nothing"),
    ("purge", "old_runs_go_whatever_dies, below: what is purged cannot be judged"),
    ("read_changes", "only a measurement of the database's work: bench.rs of the command line"),
    ("remove_logs", "as the purge"),
    ("roll_up", "as the purge, of which it is the first step: once a minute elsewhere"),
    ("shelve", "only a server that ends in order, whose runs wait for another one in any case"),
    ("delete_channel", CHANNELS),
    ("record_try", CHANNELS),
    ("save_channel", CHANNELS),
    ("write_messages", CHANNELS),
    ("alert_send", CHANNELS),
    ("acknowledge_incident", RULES),
    ("add_maintenance", WINDOWS),
    ("add_silence", RULES),
    ("delete_alert_rule", RULES),
    ("end_maintenance", WINDOWS),
    ("end_silence", RULES),
    ("save_alert_rule", RULES),
    ("write_alerts", RULES),
    ("save_report_schedule", REPORTS),
    ("delete_script", SCRIPTS),
    ("save_script", SCRIPTS),
    ("write_report", REPORTS),
    ("report_xxl", "executors of XXL-JOB only: xxl.rs beside this file"),
    ("send_xxl", "the same"),
    ("change_items", "pump jobs only: pumps.rs beside this file"),
    ("forget_pump", "pump jobs only, once they are none any more: nothing rests on it"),
    ("unmark", "only an at-most-once run that an executor hands back: matrix_upkeep.rs"),
];
const ACCOUNTS: &str = "of users and tokens only, without any run: see matrix_users.rs";
const REPORTS: &str = "of weekly reports only, without any run: see reports.rs";
const SCRIPTS: &str = "of scripts only, without any run: see scripts.rs";
const CHANNELS: &str = "of alerts only, without any run: see channels.rs";
const RULES: &str = "of rules and incidents only: see alert_rules.rs";
const WINDOWS: &str = "of maintenance windows only: see maintenance.rs";
/// Places that only a cluster reaches.
const IN_CLUSTERS: &[&str] = &["free_jobs", "hand_over", "limit_homes", "move_jobs"];
/// Places that a server of a cluster reaches when another one has died or returned.
const OF_SURVIVORS: &[&str] = &["adopt", "fence", "free_jobs", "move_jobs"];
/// Places that a server reaches if it does not hear an executor that the other server hears.
const WITHOUT_EXECUTOR_STREAM: &[&str] = &["hand_over"];
/// Places that a series may not reach in time. The server is then killed at another moment.
const BY_CHANCE: &[&str] = &["free_jobs", "hand_over", "move_jobs"];
/// Places that an executor reaches once for many runs: a quiet second has only a few of them.
const BATCHED: &[&str] = &["executor.accepted", "executor.journaled", "executor.reported", "executor.acknowledged"];
/// A claim strategy by which a server that has returned gets jobs again.
const CLAIM_BY_HASH: [&str; 2] = ["--claim-strategy", "id_hash"];
/// The app of an executor whose connection to the victim server may be cut.
const FAR: &str = "far";

/// The operation of a place: `claim` of `claim.written`.
fn operation(place: &str) -> String {
    place.split('.').next().unwrap_or_default().to_owned()
}

fn server_places(backend: Backend) -> Vec<String> {
    let is_elsewhere = |place: &String| ELSEWHERE.iter().any(|(name, _)| *name == operation(place));
    let is_clusters = |place: &String| backend == Backend::Sqlite && IN_CLUSTERS.contains(&operation(place).as_str());
    let chosen = variable("TEST_MATRIX_PLACES").unwrap_or_default();
    let is_chosen = |place: &String| chosen.is_empty() || chosen.split(',').any(|one| one == place);
    points::server().filter(|place| !is_elsewhere(place) && !is_clusters(place) && is_chosen(place)).collect()
}

/// A system under load, parts of which die.
struct DeathSeries {
    journal: Journal,
    api: Api,
    victim: Server,
    /// The server that takes over, if the database is for several servers.
    other: Option<Server>,
    worker: Worker,
    /// In a cluster: an executor, and the proxy between it and the victim server.
    far: Option<(Worker, Proxy)>,
    chance: Chance,
    clicks: u64,
    last_run: String,
}

impl DeathSeries {
    async fn begin(db: &ScratchDb) -> Self {
        let chance = Chance::new();
        let journal = Journal::new();
        let (victim, other) = match db.backend() {
            Backend::Sqlite => (server_with_lease(db, LEASE, &PATIENCE).await, None),
            Backend::Postgres | Backend::Mysql => {
                let server = async || server_with_lease(db, LEASE, &[CLAIM_BY_HASH, PATIENCE].concat()).await;
                (server().await, Some(server().await))
            }
        };
        let api = victim.api().recording(journal.folder());
        load(&api, other.is_some()).await;
        let servers: Vec<&Server> = [&victim].into_iter().chain(&other).collect();
        let data = journal.folder().join("worker-data");
        let worker = Worker::start(&servers, "worker", &journal, Some(&data), &[]).await;
        let far = match &other {
            Some(other) => {
                let proxy = Proxy::start(victim.url()).await;
                let urls = vec![other.url().to_owned(), proxy.url.clone()];
                let worker = Worker::start_at(other, urls, "far", &journal, None, &["--app", FAR]).await;
                Some((worker, proxy))
            }
            None => None,
        };
        journal.wait_for_starts(150).await;
        Self { journal, api, victim, other, worker, far, chance, clicks: 0, last_run: String::new() }
    }

    async fn victim_is_dead(&mut self) {
        if self.victim.process().has_ended().is_none() {
            self.victim.kill().await;
        }
        self.journal.keep_output("victim", self.victim.process());
    }

    /// Lets the server die at a place. Returns false if it does not reach the place; it is then killed at another one.
    async fn server_dies_at(&mut self, place: &str) -> bool {
        self.victim_is_dead().await;
        let is_of = |operations: &[&str]| operations.contains(&operation(place).as_str());
        // A place of a start, or of the time after another server's death, is reached once.
        let is_rare =
            is_of(&["migrate", "join", "open_session"]) || is_of(OF_SURVIVORS) || is_of(WITHOUT_EXECUTOR_STREAM);
        let armed = format!("{place}@{}", 1 + self.chance.below(if is_rare { 1 } else { 2 }));
        if let Some((_, proxy)) = &self.far {
            proxy.cut(if is_of(WITHOUT_EXECUTOR_STREAM) { Cut::Everything } else { Cut::Nothing });
        }
        if !self.victim.try_restart_with(&["--failpoint", &armed]).await {
            return true;
        }
        if let Some(other) = self.other.as_mut().filter(|_| is_of(OF_SURVIVORS)) {
            other.kill().await;
            self.journal.keep_output("other", other.process());
            tokio::time::sleep(BEYOND_LEASE).await;
            other.restart().await;
        }
        let end = tokio::time::Instant::now() + REACH;
        while tokio::time::Instant::now() < end {
            if self.victim.process().has_ended().is_some() {
                return true;
            }
            self.click().await;
            tokio::time::sleep(CLICK_PERIOD).await;
        }
        false
    }

    async fn worker_dies_at(&mut self, place: &str) -> bool {
        if self.worker.process.has_ended().is_none() {
            self.worker.kill(&self.journal).await;
        }
        let armed = format!("{place}@{}", 1 + self.chance.below(if BATCHED.contains(&place) { 8 } else { 40 }));
        self.worker.restart(&["--failpoint", &armed]);
        let end = tokio::time::Instant::now() + REACH;
        while tokio::time::Instant::now() < end {
            if self.worker.process.has_ended().is_some() {
                self.journal.note_death(self.worker.process.id());
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }

    /// Makes a call as a user does, so that every transaction occurs. The call need not be answered.
    async fn click(&mut self) {
        let number = self.clicks;
        self.clicks += 1;
        let job = format!("/api/v1/jobs/job-{}", number % 7);
        let (method, path, body) = match number % 10 {
            9 => (Method::POST, "/api/v1/apps".to_owned(), json!({"name": format!("app-{number}")})),
            0 => (Method::POST, "/api/v1/jobs/slow/runs".to_owned(), json!({})),
            // Sets a limit with a new key.
            1 if number % 20 == 11 => {
                let job = format!("/api/v1/jobs/limited-{}", number % 100 / 20);
                (Method::PATCH, job, json!({"concurrency": {"key": format!("k{number}"), "max": 1}}))
            }
            1 => (Method::PATCH, job, json!({"description": format!("edit {number}")})),
            2 => (Method::POST, format!("/api/v1/runs/{}/cancel", self.last_run), json!({})),
            3 => (Method::POST, "/api/v1/jobs/slow/runs".to_owned(), json!({})),
            4 => (Method::POST, "/api/v1/jobs/slow/cancel".to_owned(), json!({})),
            5 => (Method::POST, "/api/v1/jobs".to_owned(), unscheduled(&format!("passing-{number}"))),
            6 => (Method::DELETE, format!("/api/v1/jobs/passing-{}", number - 1), Value::Null),
            7 => (Method::PUT, "/api/v1/calendars/passing".to_owned(), json!({"rule": {"days": ["2030-01-01"]}})),
            _ => (Method::DELETE, "/api/v1/calendars/passing".to_owned(), Value::Null),
        };
        let mut request = self.api.request(method, &path);
        if !body.is_null() {
            request = request.json(&body);
        }
        let Ok(answer) = self.api.try_answer(request.timeout(Duration::from_secs(5))).await else { return };
        if path.ends_with("/slow/runs") && answer.status == 201 {
            self.last_run = answer.body["id"].as_str().unwrap_or_default().to_owned();
        }
        if number.is_multiple_of(27) {
            self.put_webhook().await;
        }
    }

    async fn put_webhook(&self) {
        let path = "/api/v1/namespaces/default/failure-webhook";
        let request = self.api.request(Method::PUT, path).json(&json!({"url": listener().await}));
        drop(self.api.try_answer(request.timeout(Duration::from_secs(5))).await);
    }

    /// Restarts all processes, waits until every run has its verdict, and lets the checker judge.
    async fn judge(mut self, what: &str) {
        self.victim_is_dead().await;
        self.victim.restart().await;
        if let Some((_, proxy)) = &self.far {
            proxy.cut(Cut::Nothing);
        }
        if self.worker.process.has_ended().is_none() {
            self.worker.kill(&self.journal).await;
        }
        self.worker.restart(&[]);
        self.journal.wait_for_starts(300).await;
        let api = self.other.as_ref().map_or_else(|| self.api.clone(), Server::api).recording(self.journal.folder());
        let report = judge_all(&api, &self.journal, Rules::default()).await;
        self.journal.keep_output("victim", self.victim.process());
        if let Some(other) = &mut self.other {
            self.journal.keep_output("other", other.process());
        }
        print(&format!("{what}: {report}"));
        report.assert_clean();
    }
}

/// Creates a hundred jobs of all kinds that fire each second. In a cluster, some of them are of the app whose executor
/// one server may not hear.
async fn load(api: &Api, is_cluster: bool) {
    let mut jobs = vec![
        unscheduled("slow"),
        job("fails", json!({"fail": true}), json!({"retry": {"max": 1, "backoff": "500ms"}})),
        job("long", json!({"sleep_ms": 1300}), json!({"schedule": {"every": "2s"}})),
    ];
    // Several of each kind, so that each server of a cluster has one.
    for number in 0..3 {
        jobs.push(job(&format!("everywhere-{number}"), json!({}), json!({"route": "broadcast"})));
        jobs.push(job(&format!("shards-{number}"), json!({}), json!({"shards": 2})));
    }
    jobs.extend((0..5).map(|number| {
        job(&format!("limited-{number}"), json!({}), json!({"concurrency": {"key": format!("k{number}"), "max": 1}}))
    }));
    jobs.extend((0..5).map(|number| job(&format!("logs-{number}"), json!({"log": true}), json!({}))));
    // Jobs that have a home, but no open run most of the time.
    let seldom = |number: u32| json!({"every": format!("{}s", 6 + number)});
    jobs.extend((0..6).map(|number| job(&format!("rare-{number}"), json!({}), json!({"schedule": seldom(number)}))));
    jobs.extend((0..75).map(|number| {
        let delivery = if number % 3 == 0 { "at_most_once" } else { "at_least_once" };
        job(&format!("job-{number}"), json!({"sleep_ms": (number % 5) * 40}), json!({"delivery": delivery}))
    }));
    if is_cluster {
        // Runs that the dead server may have sent stay open until their executor has reported its runs. These jobs fire seldom, so
        // that not every death leaves open runs.
        let far = |number| json!({"app": FAR, "schedule": seldom(number)});
        jobs.extend((0..8).map(|number| job(&format!("far-{number}"), json!({}), far(number))));
    }
    for job in jobs {
        api.post("/api/v1/jobs", job).await.expect(201);
    }
}

fn unscheduled(name: &str) -> Value {
    job(name, json!({"sleep_ms": 1500}), json!({"schedule": null, "overlap": {"policy": "allow"}}))
}

/// Missed places are tried again: a server of a cluster may have no jobs when it should reach one.
async fn servers_die(backend: Backend, places: &[String]) {
    let tries = match backend {
        _ if rounds().is_some() => 5,
        Backend::Sqlite => 2,
        Backend::Postgres | Backend::Mysql => 1,
    };
    let (mut places, mut failed) = (places.to_vec(), 0);
    for _ in 0..tries {
        let (missed, failures) = run_all_series(backend, &places).await;
        (places, failed) = (missed, failed + failures);
    }
    assert_eq!(failed, 0, "some series on {backend} failed; each is shown above");
    places.retain(|place| !BY_CHANCE.contains(&operation(place).as_str()));
    // In a cluster the other server may have all jobs by then. The server then dies at another moment, which is tested
    // too.
    assert!(places.is_empty() || backend != Backend::Sqlite, "on {backend} no server reached {places:?}");
}

/// Several series run concurrently, each with its own database. All of them end before a violation of one is reported.
/// Returns the places that were not reached, and how many series failed.
async fn run_all_series(backend: Backend, places: &[String]) -> (Vec<String>, usize) {
    let lanes = variable("TEST_MATRIX_LANES").and_then(|text| text.parse().ok()).unwrap_or(1);
    let lanes = Arc::new(Semaphore::new(lanes));
    let all = async {
        let mut series = JoinSet::new();
        for part in places.chunks(DEATHS_PER_SERIES) {
            let (lanes, part) = (Arc::clone(&lanes), part.to_vec());
            series.spawn_local(async move {
                let _lane = lanes.acquire().await.expect("it is never closed");
                run_series(backend, &part).await
            });
        }
        let (mut missed, mut failed) = (Vec::new(), 0);
        while let Some(ended) = series.join_next().await {
            match ended {
                Ok(places) => missed.extend(places),
                Err(_) => failed += 1,
            }
        }
        (missed, failed)
    };
    LocalSet::new().run_until(all).await
}

/// Returns the places that were not reached.
async fn run_series(backend: Backend, places: &[String]) -> Vec<String> {
    let Some(db) = scratch(backend).await else { return Vec::new() };
    let mut series = DeathSeries::begin(&db).await;
    let mut deaths = Vec::new();
    for place in places {
        deaths.push((place, series.server_dies_at(place).await));
    }
    series.judge(&format!("{backend}: {}", places.join(", "))).await;
    // The deaths are recorded once the checker has judged them.
    for (place, came) in &deaths {
        record_outcome(backend, place, if *came { "died" } else { "missed" });
    }
    record_outcome(backend, "series", "judged");
    deaths.into_iter().filter(|(_, came)| !came).map(|(place, _)| place.clone()).collect()
}

/// Each place once on `SQLite`, or as often as the long form asks for.
fn part(backend: Backend, part: usize, of: usize) -> Vec<String> {
    let all: Vec<String> = server_places(backend).into_iter().skip(part).step_by(of).collect();
    (0..rounds().unwrap_or(1)).flat_map(|_| all.clone()).collect()
}

#[tokio::test]
async fn servers_die_at_each_place_one_half_on_sqlite() {
    servers_die(Backend::Sqlite, &part(Backend::Sqlite, 0, 2)).await;
}

#[tokio::test]
async fn servers_die_at_each_place_other_half_on_sqlite() {
    servers_die(Backend::Sqlite, &part(Backend::Sqlite, 1, 2)).await;
}

/// Kills servers of a cluster at some places, which differ between runs of the test; in the long form at all places.
async fn cluster_nodes_die(backend: Backend) {
    let mut places = part(backend, 0, 1);
    if rounds().is_none() {
        // Places that need a second death are for the long form.
        places.retain(|place| ![OF_SURVIVORS, WITHOUT_EXECUTOR_STREAM].concat().contains(&operation(place).as_str()));
        let mut chance = Chance::new();
        let always = ["claim.written", "claim.committed", "send.checked", "finish.committed", "mark.committed"];
        let others: Vec<String> = (0..3)
            .filter_map(|_| {
                let index = usize::try_from(chance.below(places.len() as u64)).ok()?;
                Some(places.swap_remove(index))
            })
            .collect();
        places = always.into_iter().map(str::to_owned).chain(others).collect();
    }
    servers_die(backend, &places).await;
}

#[tokio::test]
async fn nodes_die_at_places_and_others_take_over_on_postgres() {
    cluster_nodes_die(Backend::Postgres).await;
}

#[tokio::test]
async fn nodes_die_at_places_and_others_take_over_on_mysql() {
    cluster_nodes_die(Backend::Mysql).await;
}

#[tokio::test]
async fn executors_die_at_each_place() {
    for backend in if rounds().is_some() { &Backend::ALL[..] } else { &[Backend::Sqlite] } {
        let mut left = rounds().unwrap_or(1);
        while left > 0 {
            let Some(db) = scratch(*backend).await else { return };
            let mut series = DeathSeries::begin(&db).await;
            // Only a few rounds per series: jobs whose runs take longer than a second fall behind with each death.
            for _ in 0..left.min(EXECUTOR_ROUNDS) {
                for place in points::executor() {
                    let came = series.worker_dies_at(&place).await;
                    record_outcome(*backend, &place, if came { "died" } else { "missed" });
                    assert!(came, "no executor came by {place}");
                }
            }
            series.judge(&format!("{backend}: executors")).await;
            left = left.saturating_sub(EXECUTOR_ROUNDS);
        }
    }
}

/// The purge may die anywhere: the next one deletes the rest, and no run is deleted in part. The checker cannot judge
/// deleted runs, so this test checks them itself.
#[tokio::test]
async fn old_runs_go_whatever_dies() {
    for _ in 0..rounds().unwrap_or(1) {
        for backend in if rounds().is_some() { &Backend::ALL[..] } else { &[Backend::Sqlite] } {
            old_runs_go(*backend).await;
        }
    }
}

async fn old_runs_go(backend: Backend) {
    let Some(db) = scratch(backend).await else { return };
    let journal = Journal::new();
    let mut victim = server(&db, &["--retention", "3s", "--log-retention", "3s"]).await;
    let api = victim.api();
    api.post("/api/v1/jobs", job("logs", json!({"log": true}), json!({}))).await.expect(201);
    let _worker = Worker::start(&[&victim], "worker", &journal, None, &[]).await;
    let purge = ["purge.deleted", "purge.written", "purge.committed"];
    let others = ["remove_logs.written", "remove_logs.committed", "roll_up.written", "roll_up.committed"];
    for place in purge.into_iter().chain(others) {
        victim.kill().await;
        assert!(victim.try_restart_with(&["--failpoint", place]).await, "it does not come there before it listens");
        let status = victim.process().wait(REACH * 2).await;
        assert!(!status.success(), "{place}: {status}");
        record_outcome(backend, place, "died");
        victim.restart().await;
    }
    journal.wait_for_starts(3).await;
    let limit = Duration::from_secs(30);
    wait_until(limit, "old runs are gone, with their logs", async || {
        let now = wall_clock_ms();
        let runs = api.runs("logs").await;
        let is_old = |run: &&Value| run["fire_at"].as_str().and_then(millis).is_some_and(|at| at < now - 10_000);
        runs.iter().find(is_old).map_or(Ok(()), |run| Err(run.clone()))
    })
    .await;
    // Each run that still exists is complete: a run without its log, or with half of it, would not be.
    for run in api.runs("logs").await.iter().filter(|run| run["status"] == "succeeded") {
        let logs = api.get(&format!("/api/v1/runs/{}/logs", run["id"].as_str().expect("an id"))).await;
        assert!(logs.status == 404 || logs.body["items"].is_array(), "{logs:?}");
    }
}
