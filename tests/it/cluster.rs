//! Several servers on one database: which server claims which job, how jobs move, and what switches do.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, Process, ScratchDb, Server, binary, wait_until};
use serde_json::{Value, json};

use crate::journal::{Journal, check_against_ledger, seconds};
use crate::witness::Witness;

/// Runs a test on each database that servers can share.
macro_rules! on_each_shared_database {
    ($test:ident) => {
        mod $test {
            use rondel_tests::Backend;

            async fn on(backend: Backend) {
                if let Some(db) = rondel_tests::scratch(backend).await {
                    Box::pin(super::$test(db)).await;
                }
            }

            #[tokio::test]
            async fn postgres() {
                on(Backend::Postgres).await;
            }

            #[tokio::test]
            async fn mysql() {
                on(Backend::Mysql).await;
            }
        }
    };
}

const LIMIT: Duration = Duration::from_secs(60);
/// How late a fire may be, in addition to the delays that the machine causes.
const LATE_MS: i64 = 2_000;

/// An agent that is connected to both servers.
async fn agent_of_both(first_server: &Server, second_server: &Server) -> Agent {
    let agent = Agent::start_with(first_server, "files", &["--server", second_server.url()]).await;
    let api = second_server.api();
    wait_until(LIMIT, "the other server lists the agent", async || {
        let executors = api.get("/api/v1/executors").await.expect(200).to_string();
        if executors.contains(agent.name()) { Ok(()) } else { Err(executors) }
    })
    .await;
    agent
}

/// Creates a job that fires each second; its runs write when they began.
async fn create_ticking_job(api: &Api, name: &str, journal: &Journal, extra_fields: Value) {
    let script = format!("echo $RONDEL_JOB $RONDEL_FIRE_AT $(date +%s%3N) >> {}", starts_file(journal).display());
    let mut job = json!({
        "name": name, "app": "files", "handler": "shell", "params": journal.params(&script),
        "schedule": {"every": "1s"}, "misfire": {"policy": "all", "max": 100},
    });
    job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
    api.post("/api/v1/jobs", job).await.expect(201);
}

fn starts_file(journal: &Journal) -> PathBuf {
    journal.path().with_extension("starts")
}

/// How many milliseconds late each run began, and its line of the journal.
fn lateness(journal: &Journal) -> Vec<(i64, String)> {
    let text = std::fs::read_to_string(starts_file(journal)).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.rsplit(' ');
        let begin_ms: i64 = words.next()?.parse().ok()?;
        Some((begin_ms - seconds(words.next()?) * 1000, line.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

async fn wait_for_more_lines(journal: &Journal, count: usize) {
    wait_for_lines(journal, journal.lines().len() + count).await;
}

async fn wait_for_lines(journal: &Journal, count: usize) {
    wait_until(LIMIT, "more lines", async || {
        let line_count = journal.lines().len();
        if line_count >= count { Ok(()) } else { Err(format!("{line_count} of {count}")) }
    })
    .await;
}

async fn node(api: &Api, name: &str) -> Value {
    let nodes = api.get("/api/v1/nodes").await.expect(200);
    let named_node = nodes["items"].as_array().expect("items").iter().find(|node| node["name"] == name);
    assert!(named_node.is_some(), "no node {name} in {nodes:#}");
    named_node.cloned().unwrap_or_default()
}

/// Waits until two nodes see each other, both with this strategy.
async fn wait_until_both_claim_by(api: &Api, strategy: &str) {
    wait_until(LIMIT, "they see each other", async || {
        let nodes = api.get("/api/v1/nodes").await.expect(200);
        let items = nodes["items"].as_array().expect("items").clone();
        let is_reached = items.len() == 2 && items.iter().all(|node| node["claim_strategy"] == strategy);
        if is_reached { Ok(()) } else { Err(nodes) }
    })
    .await;
}

/// How many claims a node has tried, and how many of them it has lost.
async fn claims(api: &Api, name: &str) -> (i64, i64) {
    let node = node(api, name).await;
    (node["claims_tried"].as_i64().expect("a number"), node["claims_lost"].as_i64().expect("a number"))
}

/// Checks that every fire between a job's first and last one has a row and began once.
async fn check_each_fire_once(api: &Api, jobs: &[String], journal: &Journal) {
    let mut all = Vec::new();
    for job in jobs {
        api.post(&format!("/api/v1/jobs/{job}/pause?queued=run"), json!({})).await.expect(200);
    }
    for job in jobs {
        let runs = wait_until(LIMIT, "every run has a verdict", async || {
            let runs = api.runs(job).await;
            let open: Vec<&Value> = runs.iter().filter(|run| run["finished_at"].is_null()).collect();
            if open.is_empty() { Ok(runs.clone()) } else { Err(format!("{open:#?}")) }
        })
        .await;
        let mut fires: Vec<i64> =
            runs.iter().map(|run| seconds(run["fire_at"].as_str().expect("an instant"))).collect();
        fires.sort_unstable();
        let is_whole = fires.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert!(is_whole, "{job} has holes: {fires:?}");
        let failed: Vec<_> =
            runs.iter().filter(|run| run["status"] != "succeeded" && run["reason"] != "paused").collect();
        assert!(failed.is_empty(), "{failed:#?}");
        all.extend(runs);
    }
    check_against_ledger(&journal.lines(), &all);
}

/// Two servers with `id_hash` share the jobs, and rarely try to claim the same one.
async fn jobs_are_shared_out_by_their_hash(db: ScratchDb) {
    let args = |name| ["--claim-strategy", "id_hash", "--node-name", name];
    let first_server = Server::start_with(&db, &args("one")).await;
    let second_server = Server::start_with(&db, &args("two")).await;
    let api = first_server.api();
    wait_until_both_claim_by(&api, "id_hash").await;
    let journal = Journal::new();
    api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    let _agent = agent_of_both(&first_server, &second_server).await;
    let jobs: Vec<String> = (0..40).map(|number| format!("job-{number}")).collect();
    for job in &jobs {
        create_ticking_job(&api, job, &journal, json!({"schedule": {"every": "3s"}})).await;
    }
    // The first server may claim the first fires before it knows of the second server. The jobs are shared again then.
    wait_until(LIMIT, "the other node has its share", async || {
        let tried = claims(&api, "two").await.0;
        if tried >= 10 { Ok(()) } else { Err(tried) }
    })
    .await;
    let difference = |before: (i64, i64), after: (i64, i64)| (after.0 - before.0, after.1 - before.1);
    // While jobs move, a server may try to claim one that has just moved, and one server has more than its share. Therefore
    // the claims are counted again, over a time in which each job is claimed three times, until the shares are even and no
    // claim is lost.
    let is_even = |first: i64, second: i64| first * 4 > first + second && second * 4 > first + second;
    let (mut first_claims, mut second_claims);
    let end = tokio::time::Instant::now() + LIMIT;
    loop {
        let before = (claims(&api, "one").await, claims(&api, "two").await);
        wait_for_more_lines(&journal, 120).await;
        let after = (claims(&api, "one").await, claims(&api, "two").await);
        (first_claims, second_claims) = (difference(before.0, after.0), difference(before.1, after.1));
        let is_settled = first_claims.1 + second_claims.1 == 0 && is_even(first_claims.0, second_claims.0);
        if is_settled || tokio::time::Instant::now() > end {
            break;
        }
    }
    let (tried, lost) = (first_claims.0 + second_claims.0, first_claims.1 + second_claims.1);
    assert!(is_even(first_claims.0, second_claims.0), "shared out evenly: {first_claims:?} {second_claims:?}");
    let skew = node(&api, "one").await["skew_ms"].as_i64().expect("a number");
    assert!(skew.abs() < 2_000, "one machine has one clock: {skew}");
    assert!(lost * 100 < tried, "{lost} of {tried} claims were lost");
}
on_each_shared_database!(jobs_are_shared_out_by_their_hash);

/// With `weight`, a node with weight 0 gets no job as long as another node can have it.
async fn jobs_are_shared_out_by_weight(db: ScratchDb) {
    let args = |name, weight| ["--claim-strategy", "weight", "--node-name", name, "--node-weight", weight];
    let first_server = Server::start_with(&db, &args("one", "0")).await;
    let second_server = Server::start_with(&db, &args("two", "3")).await;
    let api = first_server.api();
    wait_until_both_claim_by(&api, "weight").await;
    let journal = Journal::new();
    api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    let _agent = agent_of_both(&first_server, &second_server).await;
    let jobs: Vec<String> = (0..8).map(|number| format!("job-{number}")).collect();
    for job in &jobs {
        create_ticking_job(&api, job, &journal, json!({})).await;
    }
    // The first server may claim the first fires before it knows of the second server. It gives its jobs away then.
    wait_until(LIMIT, "only the node with weight claims", async || {
        let before = (claims(&api, "one").await.0, claims(&api, "two").await.0);
        wait_for_more_lines(&journal, 40).await;
        let after = (claims(&api, "one").await.0, claims(&api, "two").await.0);
        if after.0 == before.0 && after.1 > before.1 { Ok(()) } else { Err((before, after)) }
    })
    .await;
    check_each_fire_once(&api, &jobs, &journal).await;
}
on_each_shared_database!(jobs_are_shared_out_by_weight);

/// A node that joins gets its share of jobs that fire continuously. No fire is late, lost or run twice because of this.
async fn jobs_move_to_a_node_that_joins(db: ScratchDb) {
    let witness = Witness::start();
    let args = |name| ["--claim-strategy", "least_count", "--node-name", name, "--lease", "2s", "--beat", "500ms"];
    let first_server = Server::start_with(&db, &args("one")).await;
    let api = first_server.api();
    let journal = Journal::new();
    let jobs: Vec<String> = (0..8).map(|number| format!("job-{number}")).collect();
    for job in &jobs {
        create_ticking_job(&api, job, &journal, json!({})).await;
    }
    let first = Agent::start(&first_server, "files").await;
    wait_for_more_lines(&journal, 16).await;
    let second_server = Server::start_with(&db, &args("two")).await;
    let _second = Agent::start(&second_server, "files").await;
    wait_until(LIMIT, "the other node has its share", async || {
        let tried = claims(&api, "two").await.0;
        if tried >= 12 { Ok(()) } else { Err(tried) }
    })
    .await;
    check_each_fire_once(&api, &jobs, &journal).await;
    let limit = LATE_MS + witness.worst_ms();
    let late: Vec<_> = lateness(&journal).into_iter().skip(16).filter(|(late, _)| *late > limit).collect();
    assert!(late.is_empty(), "by more than {limit} ms: {late:#?}");
    drop(first);
}
on_each_shared_database!(jobs_move_to_a_node_that_joins);

/// Each server is stopped and started again, one after the other: no fire is late by more than two seconds.
async fn a_rolling_restart_makes_no_fire_late(db: ScratchDb) {
    let witness = Witness::start();
    let mut first_server = Server::start_with(&db, &["--node-name", "one"]).await;
    let mut second_server = Server::start_with(&db, &["--node-name", "two"]).await;
    let journal = Journal::new();
    let jobs: Vec<String> = (0..10).map(|number| format!("job-{number}")).collect();
    for job in &jobs {
        create_ticking_job(&first_server.api(), job, &journal, json!({})).await;
    }
    let _agent = agent_of_both(&first_server, &second_server).await;
    wait_for_more_lines(&journal, 30).await;
    for round in 0..2 {
        let server = if round == 0 { &mut first_server } else { &mut second_server };
        assert!(server.stop().await.success());
        wait_for_more_lines(&journal, 30).await;
        let server = if round == 0 { &mut first_server } else { &mut second_server };
        server.restart().await;
        wait_for_more_lines(&journal, 30).await;
    }
    check_each_fire_once(&first_server.api(), &jobs, &journal).await;
    let mut late = lateness(&journal);
    late.sort_unstable();
    // Fires before the agent's start are late because they wait for the agent.
    let worst: BTreeMap<i64, &String> = late.iter().rev().take(15).map(|(late, line)| (*late, line)).collect();
    let limit = LATE_MS + witness.worst_ms();
    let too_late = late.iter().filter(|(late, _)| *late > limit).count();
    assert!(too_late <= jobs.len() * 8, "{too_late} of {} by more than {limit} ms: {worst:#?}", late.len());
    let after_begin = lateness(&journal).into_iter().skip(30).filter(|(late, _)| *late > limit).collect::<Vec<_>>();
    assert!(after_begin.is_empty(), "by more than {limit} ms: {after_begin:#?}");
}
on_each_shared_database!(a_rolling_restart_makes_no_fire_late);

/// A node that is drained by its switch gives its jobs away and takes none until it is activated again. A node that is
/// stopped sends its executors away too.
async fn a_node_is_drained_and_stopped_by_its_switch(db: ScratchDb) {
    let witness = Witness::start();
    let first_server = Server::start_with(&db, &["--node-name", "one"]).await;
    let journal = Journal::new();
    let api = first_server.api();
    let jobs: Vec<String> = (0..5).map(|number| format!("job-{number}")).collect();
    for job in &jobs {
        create_ticking_job(&api, job, &journal, json!({})).await;
    }
    let second_server = Server::start_with(&db, &["--node-name", "two"]).await;
    let _agent = agent_of_both(&first_server, &second_server).await;
    wait_for_more_lines(&journal, 15).await;
    assert!(rondel(&first_server, &["node", "drain", "one"]).contains("draining"));
    assert_eq!(node(&second_server.api(), "one").await["state"], "draining");
    wait_until(LIMIT, "one claims nothing and two does", async || {
        let before = claims(&api, "one").await.0;
        let second_claims = claims(&api, "two").await.0;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (after, second_claims_after) = (claims(&api, "one").await.0, claims(&api, "two").await.0);
        if before == after && second_claims_after > second_claims {
            Ok(())
        } else {
            Err((before, after, second_claims, second_claims_after))
        }
    })
    .await;
    assert_eq!(api.get("/readyz").await.expect(503)["checks"]["state"], "draining");
    assert!(rondel(&first_server, &["node", "stop", "one"]).contains("stopped"));
    wait_until(LIMIT, "the executor is gone from one, and stays at two", async || {
        let at = async |server: &Server| {
            let page = server.api().get("/api/v1/executors").await.expect(200);
            page["items"].as_array().expect("items").iter().filter(|executor| executor["online"] != false).count()
        };
        let counts = (at(&first_server).await, at(&second_server).await);
        if counts.1 == 1 { Ok(()) } else { Err(counts) }
    })
    .await;
    wait_for_more_lines(&journal, 10).await;
    assert!(rondel(&first_server, &["node", "activate", "one"]).contains("active"));
    wait_until(LIMIT, "one is ready again", async || {
        let answer = api.get("/readyz").await;
        if answer.status == 200 { Ok(()) } else { Err(answer) }
    })
    .await;
    let problem = api.put("/api/v1/nodes/one/state", json!({"state": "asleep"})).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/state");
    assert_eq!(
        api.put("/api/v1/nodes/three/state", json!({"state": "active"})).await.expect(404)["code"],
        "node_not_found"
    );
    check_each_fire_once(&api, &jobs, &journal).await;
    let limit = LATE_MS + witness.worst_ms();
    let late: Vec<_> = lateness(&journal).into_iter().skip(15).filter(|(late, _)| *late > limit).collect();
    assert!(late.is_empty(), "by more than {limit} ms: {late:#?}");
}
on_each_shared_database!(a_node_is_drained_and_stopped_by_its_switch);

/// While an app drains, none of its runs begins. Runs that wait begin when it is activated. The runs of a stopped app
/// end.
async fn an_app_is_drained_and_stopped_by_its_switch(db: ScratchDb) {
    let server = Server::start(&db).await;
    let journal = Journal::new();
    let api = server.api();
    let job = |name: &str, script: &str| json!({"name": name, "app": "files", "handler": "shell", "params": journal.params(script)});
    api.post("/api/v1/jobs", job("quick", "")).await.expect(201);
    api.post("/api/v1/jobs", job("slow", "sleep 60")).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    api.post("/api/v1/jobs/slow/runs", json!({})).await.expect(201);
    wait_for_lines(&journal, 1).await;

    assert!(rondel(&server, &["app", "drain", "files"]).contains("draining"));
    // The server sees the switch within a beat.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    api.post("/api/v1/jobs/quick/runs", json!({})).await.expect(201);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(journal.lines().len(), 1, "nothing begins while the app drains");
    assert_eq!(api.runs("slow").await[0]["status"], "running");
    api.put("/api/v1/apps/files/state", json!({"state": "active"})).await.expect(200);
    wait_for_lines(&journal, 2).await;

    api.put("/api/v1/apps/files/state", json!({"state": "stopped"})).await.expect(200);
    let ended_run = wait_until(LIMIT, "the running one is cancelled", async || {
        let run = api.runs("slow").await[0].clone();
        if run["status"] == "cancelled" { Ok(run) } else { Err(run) }
    })
    .await;
    assert!(
        ended_run["message"].as_str().is_some_and(|message| message.contains("switch of its app")),
        "{ended_run:#}"
    );
    api.post("/api/v1/jobs/quick/runs", json!({})).await.expect(201);
    wait_until(LIMIT, "due fires are skipped", async || {
        let run = api.runs("quick").await.into_iter().max_by_key(|run| run["id"].to_string()).expect("a run");
        if run["status"] == "skipped" && run["reason"] == "stopped" { Ok(()) } else { Err(run) }
    })
    .await;
    assert_eq!(journal.lines().len(), 2);
    let apps = api.get("/api/v1/apps").await.expect(200);
    assert_eq!(apps["items"][0]["state"], "stopped");
    assert_eq!(
        api.put("/api/v1/apps/none/state", json!({"state": "active"})).await.expect(404)["code"],
        "app_not_found"
    );
}
crate::on_each_database!(an_app_is_drained_and_stopped_by_its_switch);

/// The name of a living server is refused, in one sentence.
async fn a_second_server_of_one_name_is_refused(db: ScratchDb) {
    let _first_server = Server::start_with(&db, &["--node-name", "one"]).await;
    let folder = tempfile::tempdir().expect("make a folder");
    let mut command = Command::new(binary());
    command.args(["server", "--database", db.url(), "--node-name", "one", "--listen", "127.0.0.1:0", "--data-dir"]);
    command.arg(folder.path());
    let mut second = Process::start("a second server", command);
    let exit_status = second.wait(LIMIT).await;
    assert_eq!(exit_status.code(), Some(1), "{}", second.last_words());
    assert!(second.last_words().contains("another server is running as node \"one\""), "{}", second.last_words());
}
on_each_shared_database!(a_second_server_of_one_name_is_refused);

/// The message names the wrong value and the allowed ones.
#[tokio::test]
async fn numbers_that_do_not_fit_are_refused_before_anything_is_opened() {
    for (args, sentence) in [
        (["--lease", "3s"], "must be at least 4 beats of 1s"),
        (["--lease", "2m"], "the longest is 1m"),
        (["--beat", "50ms"], "the minimum is 200ms"),
        (["--silence", "1s"], "three heartbeats"),
        (["--lost-after", "20s"], "must be at least 25s"),
        (["--claim-strategy", "luck"], "default, id_hash, least_count, weight"),
    ] {
        let mut command = Command::new(binary());
        command.args(["server", "check-config", "--database", "sqlite:///nowhere/x.db"]).args(args);
        let output = command.output().expect("run rondel");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(sentence), "{args:?}: {message}");
    }
    assert_eq!(Backend::ALL.len(), 3);
}

/// Runs a client command, and returns its output.
fn rondel(server: &Server, args: &[&str]) -> String {
    let token = std::fs::read_to_string(server.token_file()).expect("the token");
    let mut command = Command::new(binary());
    command.args(args).args(["--server", server.url()]).env("RONDEL_TOKEN", token.trim());
    let output = command.output().expect("run rondel");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
