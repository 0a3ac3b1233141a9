//! Promotions and demotions that fail on the way: each job's outcome names where it runs, and no fire is lost or doubled without a
//! report.

use std::time::Duration;

use http::Method;
use rondel_tests::{Agent, Backend, Finished, ScratchDb, Server, rondel, scratch, wait_until, wall_clock_ms};
use serde_json::{Value, json};

use super::old_scheduler::OldScheduler;
use super::relay::{Act, Relay, Rule};
use super::{LIMIT, create, shadow};
use crate::journal::seconds;

const OFTEN: usize = 1_000;

/// Both schedulers, with a relay in front of Rondel's server.
pub(super) struct Pair {
    pub(super) old: OldScheduler,
    pub(super) server: Server,
    relay: Relay,
    pub(super) source: String,
    _own: ScratchDb,
    _foreign: ScratchDb,
}

impl Pair {
    pub(super) async fn start() -> Option<Self> {
        let foreign = scratch(Backend::Mysql).await?;
        let own_db = scratch(Backend::Sqlite).await?;
        let old = OldScheduler::new(&foreign);
        let server = Server::start(&own_db).await;
        let relay = Relay::start(server.url()).await;
        Some(Self { old, server, relay, source: foreign.url().to_owned(), _own: own_db, _foreign: foreign })
    }

    /// Switches jobs, whether or not an executor is online.
    pub(super) async fn switch(&self, command: &str, jobs: &[&str], extra_args: &[&str]) -> Switched {
        let force: &[&str] = if command == "promote" { &["--force"] } else { &[] };
        self.command(command, jobs, &[extra_args, force].concat()).await
    }

    async fn command(&self, command: &str, jobs: &[&str], extra_args: &[&str]) -> Switched {
        let token = self.server.token_file().display().to_string();
        let args = [&["shadow", command, "--source", &self.source, "-o", "json"], extra_args, jobs].concat();
        let variables = [("RONDEL_SERVER", self.relay.url.as_str()), ("RONDEL_TOKEN_FILE", token.as_str())];
        Switched(rondel(&args, &variables).await)
    }

    pub(super) async fn job(&self, name: &str) -> Value {
        self.server.api().get(&format!("/api/v1/jobs/{name}")).await.expect(200)
    }

    /// The status and the next instant of a job in XXL-JOB.
    pub(super) fn xxl_job_state(&self, job: i64) -> (bool, i64) {
        let row = self.old.sql(&format!("SELECT trigger_status, trigger_next_time FROM xxl_job_info WHERE id = {job}"));
        let (status, next) = row.split_once('\t').expect("two columns");
        (status == "1", next.trim().parse().expect("a number"))
    }
}

#[derive(Debug)]
pub(super) struct Switched(pub(super) Finished);

impl Switched {
    fn item(&self, job: &str) -> Value {
        let answer: Value = serde_json::from_str(&self.0.stdout).expect("JSON");
        let items = answer["items"].as_array().expect("a list");
        items.iter().find(|item| item["job"] == job).expect("the job is listed").clone()
    }

    /// Asserts where a job runs, and a part of its result.
    pub(super) fn check(&self, job: &str, runs: &str, part: &str) {
        let item = self.item(job);
        assert!(item["runs"] == runs && item["result"].as_str().is_some_and(|text| text.contains(part)), "{item}");
    }
}

fn rule(method: Method, part: &'static str, act: Act) -> Rule {
    Rule { method, part, act, count: OFTEN }
}

pub(super) fn now_s() -> i64 {
    wall_clock_ms() / 1_000
}

#[tokio::test]
async fn a_promotion_whose_answer_is_lost_doubles_and_loses_no_job() {
    let Some(pair) = Pair::start().await else { return };
    let schedule = json!({"schedule": {"cron": "0 0 3 * * ?"}});
    create(&pair.server, &[1, 2, 3].map(|number| shadow(number, &schedule))).await;
    let next = now_s() + 3_600;
    pair.old.add(1..=3, 1, next);
    // The edit is saved, and its answer is lost.
    pair.relay.rules(&[rule(Method::PATCH, "job-1", Act::LoseAnswer(504))]);
    let lost = pair.switch("promote", &["job-1"], &["--yes"]).await;
    assert_eq!(lost.0.code, Some(0), "{lost:?}");
    lost.check("job-1", "rondel", "runs here from the seam on");
    assert_eq!(pair.xxl_job_state(1), (false, next * 1_000));
    assert_eq!(seconds(pair.job("job-1").await["mode_from"].as_str().expect("a seam")), next);
    // The edit is not saved, and no answer is certain: the job stays stopped in XXL-JOB, and the same command completes
    // the switch.
    pair.relay.rules(&[rule(Method::PATCH, "job-2", Act::Refuse(503))]);
    let unclear = pair.switch("promote", &["job-2"], &["--yes"]).await;
    assert_eq!(unclear.0.code, Some(1), "{unclear:?}");
    unclear.check("job-2", "not known", "run the command again");
    assert_eq!(pair.xxl_job_state(2), (false, next * 1_000));
    pair.relay.rules(&[]);
    let again = pair.switch("promote", &["job-2"], &["--yes"]).await;
    assert_eq!(again.0.code, Some(0), "{again:?}");
    assert_eq!(seconds(again.item("job-2")["seam"].as_str().expect("a seam")), next, "{again:?}");
    // The edit is refused: the job continues to run in XXL-JOB.
    pair.relay.rules(&[rule(Method::PATCH, "job-3", Act::Refuse(403))]);
    let refused = pair.switch("promote", &["job-3"], &["--yes"]).await;
    assert_eq!(refused.0.code, Some(1), "{refused:?}");
    refused.check("job-3", "xxl-job", "it continues to run there");
    assert_eq!(pair.xxl_job_state(3), (true, next * 1_000));
    assert_eq!(pair.job("job-3").await["mode"], "shadow");
}

#[tokio::test]
async fn a_promotion_that_is_saved_too_slowly_is_named_or_not_begun() {
    let Some(pair) = Pair::start().await else { return };
    let schedule = json!({"schedule": {"every": "1s"}});
    create(&pair.server, &[1, 2].map(|number| shadow(number, &schedule))).await;
    let next = now_s() + 20;
    pair.old.add(1..=1, 1, next);
    pair.relay.rules(&[rule(Method::PATCH, "job-1", Act::Delay(Duration::from_secs(22)))]);
    let late = pair.switch("promote", &["job-1"], &["--yes", "--wait", "1ms"]).await;
    assert_eq!(late.0.code, Some(1), "{late:?}");
    late.check("job-1", "rondel", "ran on neither side");
    let item = late.item("job-1");
    assert_eq!((&item["gap"], &item["done"]), (&json!(true), &json!(true)), "{item}");
    // Reading the job takes 10 s: no instant is far enough ahead.
    let next = now_s() + 25;
    pair.old.add(2..=2, 1, next);
    pair.relay.rules(&[rule(Method::GET, "job-2", Act::Delay(Duration::from_secs(10)))]);
    let slow = pair.switch("promote", &["job-2"], &["--yes", "--wait", "1ms"]).await;
    assert_eq!(slow.0.code, Some(1), "{slow:?}");
    slow.check("job-2", "xxl-job", "never was");
    assert_eq!(pair.xxl_job_state(2), (true, next * 1_000));
    assert_eq!(pair.job("job-2").await["mode"], "shadow");
}

#[tokio::test]
async fn a_failure_of_the_old_database_leaves_an_outcome_for_each_job() {
    let Some(pair) = Pair::start().await else { return };
    let schedule = json!({"schedule": {"cron": "0 0 3 * * ?"}});
    create(&pair.server, &[1, 2, 3, 4].map(|number| shadow(number, &schedule))).await;
    pair.old.add(1..=4, 1, now_s() + 3_600);
    pair.old.sql("UPDATE xxl_job_info SET job_desc = 'held' WHERE id = 2");
    pair.old.sql("ALTER TABLE xxl_job_info ADD CONSTRAINT held CHECK (job_desc <> 'held' OR trigger_status = 1)");
    let names = ["job-1", "job-2", "job-3", "job-4"];
    let promoted = pair.switch("promote", &names, &["--yes"]).await;
    assert_eq!(promoted.0.code, Some(1), "{promoted:?}");
    promoted.check("job-1", "rondel", "runs here from the seam on");
    promoted.check("job-2", "not known", "run the command again");
    promoted.check("job-4", "xxl-job", "nothing was changed");
    pair.old.sql("ALTER TABLE xxl_job_info DROP CONSTRAINT held");
    let again = pair.switch("promote", &names, &["--yes"]).await;
    assert_eq!(again.0.code, Some(0), "{again:?}");
    pair.old.sql("ALTER TABLE xxl_job_info ADD CONSTRAINT held CHECK (job_desc <> 'held' OR trigger_status = 0)");
    let demoted = pair.switch("demote", &names, &["--yes"]).await;
    assert_eq!(demoted.0.code, Some(1), "{demoted:?}");
    demoted.check("job-1", "xxl-job", "runs in XXL-JOB from");
    demoted.check("job-2", "not known", "stopped here at the seam");
    demoted.check("job-4", "rondel", "nothing was changed");
    // A job that cannot be started in XXL-JOB is not given up in Rondel.
    pair.old.sql("DELETE FROM xxl_job_lock");
    let halted = pair.switch("demote", &["job-4"], &["--yes"]).await;
    assert_eq!(halted.0.code, Some(1), "{halted:?}");
    halted.check("job-4", "rondel", "nothing was changed");
    assert!(pair.job("job-4").await["mode"] != "shadow" && !pair.xxl_job_state(4).0);
}

#[tokio::test]
async fn a_demotion_that_cannot_start_the_job_names_it_and_is_finished_later() {
    let Some(pair) = Pair::start().await else { return };
    let active = json!({"schedule": {"every": "2s"}, "mode": "active"});
    create(&pair.server, &[1, 2].map(|number| shadow(number, &active))).await;
    pair.old.add(1..=2, 0, 0);
    // The job is given up, and its first fire cannot be read.
    pair.relay.rules(&[rule(Method::GET, "job-1/fires", Act::Refuse(503))]);
    let halted = pair.switch("demote", &["job-1"], &["--yes"]).await;
    assert_eq!(halted.0.code, Some(1), "{halted:?}");
    halted.check("job-1", "nowhere", "stopped here at the seam, and not started in XXL-JOB");
    assert!(halted.item("job-1")["seam"].is_string(), "{halted:?}");
    assert!(!pair.xxl_job_state(1).0);
    pair.relay.rules(&[]);
    let finished = pair.switch("demote", &["job-1"], &["--yes"]).await;
    finished.check("job-1", "xxl-job", "runs in XXL-JOB from");
    assert!(pair.xxl_job_state(1).0);
    // The first fire has passed by the time it is known. XXL-JOB would drop it silently.
    let late = Rule { count: 1, ..rule(Method::GET, "job-2/fires", Act::Delay(Duration::from_secs(16))) };
    pair.relay.rules(&[late]);
    let delayed = pair.switch("demote", &["job-2"], &["--yes"]).await;
    assert_eq!(delayed.0.code, Some(1), "{delayed:?}");
    delayed.check("job-2", "xxl-job", "ran on neither side");
    let seam = seconds(delayed.item("job-2")["seam"].as_str().expect("a seam"));
    assert!(
        pair.xxl_job_state(2).0 && pair.xxl_job_state(2).1 >= (seam + 4) * 1_000,
        "{:?} {delayed:?}",
        pair.xxl_job_state(2)
    );
}

#[tokio::test]
async fn parents_and_children_are_switched_by_one_command_and_keep_every_fire() {
    let Some(pair) = Pair::start().await else { return };
    let parent = shadow(1, &json!({"schedule": {"every": "1s"}}));
    let child = shadow(2, &json!({"schedule": {"after": ["job-1"]}}));
    let grandchild = shadow(3, &json!({"schedule": {"after": ["job-2"]}}));
    create(&pair.server, &[parent, child, grandchild]).await;
    let _agent = Agent::start_with(&pair.server, "work", &["--slots", "10"]).await;
    pair.old.add(1..=1, 1, now_s() + 3_600);
    pair.old.add(2..=3, 0, 0);
    for (jobs, refused, part) in [
        (&["job-1"][..], "job-1", "its child job-2 is in shadow mode"),
        (&["job-1", "job-2"], "job-2", "its child job-3 is in shadow mode"),
        (&["job-1", "job-2"], "job-1", "its child job-2 is not switched"),
        (&["job-2", "job-3"], "job-2", "follows from job-1"),
    ] {
        for extra_args in [&["--yes"][..], &[]] {
            let alone = pair.switch("promote", jobs, extra_args).await;
            assert!(alone.0.code != Some(0), "{alone:?}");
            alone.check(refused, "xxl-job", part);
        }
    }
    assert!(pair.xxl_job_state(1).0 && pair.job("job-3").await["mode"] == "shadow");
    let seam = now_s() + 20;
    pair.old.sql(&format!("UPDATE xxl_job_info SET trigger_next_time = {seam}000 WHERE id = 1"));
    let names = ["job-1", "job-2", "job-3"];
    let promoted = pair.switch("promote", &names, &["--yes"]).await;
    assert_eq!(promoted.0.code, Some(0), "{promoted:?}");
    names.iter().for_each(|name| promoted.check(name, "rondel", "runs here"));
    wait_for_runs_with_parents(&pair, seam, 3).await;
    let alone = pair.switch("demote", &["job-1"], &["--yes"]).await;
    alone.check("job-1", "rondel", "its child job-2 is active here");
    let demoted = pair.switch("demote", &names, &["--yes"]).await;
    assert_eq!(demoted.0.code, Some(0), "{demoted:?}");
    let end = seconds(demoted.item("job-1")["seam"].as_str().expect("a seam"));
    super::clock_at(end + 2).await;
    wait_for_runs_with_parents(&pair, seam, end - seam - 1).await;
    for name in names {
        demoted.check(name, "xxl-job", "runs in XXL-JOB");
        assert_eq!(pair.job(name).await["mode"], "shadow");
    }
    assert!(pair.xxl_job_state(1).0 && !pair.xxl_job_state(2).0, "only the parent has a schedule there");
}

/// Waits until the three jobs have run this many fires from the seam on, each fire in all three.
async fn wait_for_runs_with_parents(pair: &Pair, seam: i64, count: i64) {
    let api = pair.server.api();
    wait_until(LIMIT, "children of each fire", async || {
        let mut fires = Vec::new();
        for name in ["job-1", "job-2", "job-3"] {
            let runs = api.all("/api/v1/runs", &[("job", name), ("status", "succeeded")]).await;
            let mut of: Vec<i64> = runs.iter().filter_map(|run| Some(seconds(run["fire_at"].as_str()?))).collect();
            of.sort_unstable();
            of.retain(|at| *at < seam + count);
            fires.push(of);
        }
        let expected: Vec<i64> = (seam..seam + count).collect();
        if fires.iter().all(|of| *of == expected) { Ok(()) } else { Err(fires) }
    })
    .await;
}

/// A promotion stops a job in XXL-JOB. It is refused if nothing would run the job in Rondel, or if its number is that of
/// another job in XXL-JOB.
#[tokio::test]
async fn a_job_that_nothing_would_run_here_is_not_promoted() {
    let Some(pair) = Pair::start().await else { return };
    let schedule = json!({"schedule": {"cron": "0 0 3 * * ?"}});
    create(&pair.server, &[1, 2].map(|number| shadow(number, &schedule))).await;
    let next = now_s() + 3_600;
    pair.old.add(1..=2, 1, next);
    for extra_args in [&["--yes"][..], &[]] {
        let unserved = pair.command("promote", &["job-1"], extra_args).await;
        assert!(unserved.0.code != Some(0), "{unserved:?}");
        unserved.check("job-1", "xxl-job", "no executor of app work is online here");
    }
    assert_eq!(pair.xxl_job_state(1), (true, next * 1_000));
    let _agent = Agent::start_with(&pair.server, "work", &[]).await;
    pair.old.sql("UPDATE xxl_job_info SET executor_handler = 'other' WHERE id = 2");
    let promoted = pair.command("promote", &["job-1", "job-2"], &["--yes"]).await;
    assert_eq!(promoted.0.code, Some(1), "{promoted:?}");
    promoted.check("job-1", "rondel", "runs here from the seam on");
    promoted.check("job-2", "xxl-job", "has the handler other");
    assert_eq!((pair.xxl_job_state(1).0, pair.xxl_job_state(2).0), (false, true));
}
