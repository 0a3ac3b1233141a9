//! Which executor gets a run: every router with five executors, shards, retries, and two servers that route
//! concurrently.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, Process, ScratchDb, Server, Signal, example, scratch, wait_until};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

/// Makes a job that runs a shell script.
async fn job(api: &Api, name: &str, script: &str, extra_fields: Value) {
    let mut job = json!({"name": name, "app": "crew", "handler": "shell", "params": {"argv": ["sh", "-c", script]}});
    job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
    api.post("/api/v1/jobs", job).await.expect(201);
}

async fn trigger(api: &Api, job: &str) -> String {
    let run = api.post(&format!("/api/v1/jobs/{job}/runs"), json!({})).await.expect(201);
    run["id"].as_str().expect("an id").to_owned()
}

async fn wait_for_verdict(api: &Api, run: &str) -> Value {
    let path = format!("/api/v1/runs/{run}");
    wait_until(LIMIT, "the run has a verdict", async || {
        let run = api.get(&path).await.expect(200);
        let is_open = ["pending", "waiting", "running"].iter().any(|open| run["status"] == *open);
        if is_open { Err(run) } else { Ok(run) }
    })
    .await
}

/// Triggers this many runs and waits for their ends. Returns how many each executor had.
async fn shares(api: &Api, job: &str, count: usize) -> BTreeMap<String, usize> {
    let mut runs = Vec::new();
    for _ in 0..count {
        runs.push(trigger(api, job).await);
    }
    let mut shares = BTreeMap::new();
    for run in runs {
        let run = wait_for_verdict(api, &run).await;
        assert_eq!(run["status"], "succeeded", "{run:#}");
        *shares.entry(text(&run["executor"])).or_insert(0) += 1;
    }
    shares
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn names(shares: &BTreeMap<String, usize>) -> Vec<&str> {
    shares.keys().map(String::as_str).collect()
}

fn is_even(shares: &BTreeMap<String, usize>, executors: usize) -> bool {
    let least = if shares.len() == executors { shares.values().min().copied().unwrap_or(0) } else { 0 };
    shares.values().max().copied().unwrap_or(0) - least <= 1
}

/// Five agents, `e1` to `e5`; the odd ones are in the zone `eu`, and `e1` has no weight.
async fn five(servers: &[&Server]) -> Vec<Agent> {
    let others: Vec<&str> = servers[1..].iter().flat_map(|server| ["--server", server.url()]).collect();
    let mut agents = Vec::new();
    for number in 1..=5 {
        let zone = if number % 2 == 1 { "zone=eu" } else { "zone=us" };
        let weight = if number == 1 { "0" } else { "3" };
        let args = [&["--label", zone, "--weight", weight], &others[..]].concat();
        agents.push(Agent::start_named(servers[0], "crew", &format!("e{number}"), &args).await);
    }
    agents
}

async fn server(db: &ScratchDb) -> Server {
    let server = Server::start(db).await;
    server.api().post("/api/v1/apps", json!({"name": "crew"})).await.expect(201);
    server
}

#[tokio::test]
async fn each_router_over_five_executors() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db).await;
    let api = server.api();
    let _agents = five(&[&server]).await;
    for (route, expected) in [("first", "e1"), ("last", "e5"), ("failover", "e1"), ("busyover", "e1")] {
        job(&api, route, "true", json!({"route": route})).await;
        assert_eq!(names(&shares(&api, route, 3).await), [expected], "{route}");
    }
    for route in ["round", "lfu", "lru"] {
        job(&api, route, "true", json!({"route": route})).await;
        let shares = shares(&api, route, 12).await;
        assert!(is_even(&shares, 5), "{route}: {shares:?}");
    }
    job(&api, "random", "true", json!({"route": "random", "overlap": {"policy": "allow"}})).await;
    assert!(shares(&api, "random", 20).await.len() > 1, "twenty runs of a random router all went to one executor");
    job(&api, "weight", "true", json!({"route": "weight", "overlap": {"policy": "allow"}})).await;
    let by_weight = shares(&api, "weight", 20).await;
    assert!(by_weight.len() > 1 && !by_weight.contains_key("e1"), "e1 has no weight: {by_weight:?}");
    let mut hashed = BTreeSet::new();
    for number in 0..8 {
        let name = format!("hash-{number}");
        job(&api, &name, "true", json!({"route": "consistent_hash"})).await;
        let shares = shares(&api, &name, 3).await;
        assert_eq!(shares.len(), 1, "{name}: {shares:?}");
        hashed.extend(shares.into_keys());
    }
    assert!(hashed.len() > 1, "eight jobs all hash to {hashed:?}");
    // An executor with a run of the job is skipped; when all have one, the sixth run waits.
    for route in ["least_active", "busyover"] {
        let name = format!("{route}-long");
        job(&api, &name, "sleep 2", json!({"route": route, "overlap": {"policy": "allow"}})).await;
        let spread = shares(&api, &name, 5).await;
        assert_eq!(spread.len(), 5, "{route}: {spread:?}");
    }
    job(&api, "full", "sleep 1", json!({"route": "busyover", "overlap": {"policy": "allow"}})).await;
    let six = shares(&api, "full", 6).await;
    assert_eq!((six.len(), six.values().max()), (5, Some(&2)), "{six:?}");
}

#[tokio::test]
async fn labels_and_names_select_executors() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db).await;
    let api = server.api();
    let _agents = five(&[&server]).await;
    job(&api, "eu", "true", json!({"select": {"labels": ["zone=eu"]}})).await;
    assert_eq!(names(&shares(&api, "eu", 6).await), ["e1", "e3", "e5"]);
    job(&api, "named", "true", json!({"select": {"labels": ["zone!=eu"], "executors": ["e1", "e2"]}})).await;
    assert_eq!(names(&shares(&api, "named", 3).await), ["e2"]);
    job(&api, "all-eu", "true", json!({"route": "broadcast", "select": {"labels": ["zone=eu"]}})).await;
    let whole = wait_for_verdict(&api, &trigger(&api, "all-eu").await).await;
    let had_it: Vec<String> =
        whole["shards"].as_array().expect("shards").iter().map(|run| text(&run["executor"])).collect();
    assert_eq!(had_it, ["e1", "e3", "e5"], "{whole:#}");
    job(&api, "unserved", "true", json!({"select": {"labels": ["gpu"]}, "queue_timeout": "1s"})).await;
    let run = wait_for_verdict(&api, &trigger(&api, "unserved").await).await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("skipped"), &json!("no_executor")), "{run:#}");
    assert_eq!(run["trace"]["of"], json!([]), "{run:#}");
}

/// An executor that no longer answers is skipped, although its stream is open.
#[tokio::test]
async fn failover_skips_a_silent_executor() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db).await;
    let api = server.api();
    let mut agents = five(&[&server]).await;
    job(&api, "over", "true", json!({"route": "failover"})).await;
    agents[0].process().signal(Signal::STOP);
    // The executor must be silent for a while: one that was heard within the last second is not asked.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let run = wait_for_verdict(&api, &trigger(&api, "over").await).await;
    assert_eq!((&run["status"], &run["trace"]["route"]), (&json!("succeeded"), &json!("failover")), "{run:#}");
    // On a busy machine, others may be too slow for the probe as well: the first one that answered has the run.
    let refusals = run["trace"]["refused"].as_object().expect("who was passed by");
    assert_eq!(refusals.get("e1"), Some(&json!("silent")), "{run:#}");
    let first = ["e2", "e3", "e4", "e5"].into_iter().find(|name| !refusals.contains_key(*name));
    assert_eq!(run["executor"].as_str(), first, "{run:#}");
    agents[0].process().signal(Signal::CONT);
}

#[tokio::test]
async fn shards_are_dealt_and_only_failed_ones_are_tried_again_elsewhere() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db).await;
    let api = server.api();
    let _agents = five(&[&server]).await;
    // The second shard fails the first time.
    let script = r#"[ "$RONDEL_SHARD_INDEX.$RONDEL_ATTEMPT" != 1.1 ]"#;
    let retry = json!({"max": 1, "backoff": "100ms"});
    for route in ["first", "round", "random", "busyover"] {
        let name = format!("cut-{route}");
        job(&api, &name, script, json!({"route": route, "shards": 7, "retry": retry})).await;
        let whole = wait_for_verdict(&api, &trigger(&api, &name).await).await;
        assert_eq!((&whole["status"], &whole["shard_total"]), (&json!("succeeded"), &json!(7)), "{whole:#}");
        let shards = whole["shards"].as_array().expect("shards");
        let parts: Vec<(i64, i64)> = shards
            .iter()
            .map(|run| (run["shard_index"].as_i64().expect("an index"), run["attempt"].as_i64().expect("a number")))
            .collect();
        assert_eq!(parts, [(0, 1), (1, 2), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)], "{route}");
        let again = api.get(&format!("/api/v1/runs/{}", text(&shards[1]["id"]))).await.expect(200);
        let attempts = again["attempts"].as_array().expect("attempts");
        assert_ne!(attempts[0]["executor"], attempts[1]["executor"], "{again:#}");
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        for run in shards.iter().filter(|run| run["attempt"] == 1) {
            *first.entry(text(&run["executor"])).or_insert(0) += 1;
        }
        *first.entry(text(&attempts[0]["executor"])).or_insert(0) += 1;
        assert!(is_even(&first, 5) || route == "busyover", "{route}: {first:?}");
    }
}

#[tokio::test]
async fn a_run_keeps_how_it_came_to_its_executor() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db).await;
    let api = server.api();
    let _agent = Agent::start_named(&server, "crew", "only", &[]).await;
    // Longer than a busy machine takes for the second call.
    job(&api, "waits", "sleep 3", json!({"route": "lru"})).await;
    let (first, second) = (trigger(&api, "waits").await, trigger(&api, "waits").await);
    let first = wait_for_verdict(&api, &first).await;
    assert_eq!((&first["trace"]["route"], &first["trace"]["of"]), (&json!("lru"), &json!(["only"])), "{first:#}");
    let second = wait_for_verdict(&api, &second).await;
    assert!(second["trace"]["waited"]["turn"].as_i64() > Some(500), "{second:#}");
    let token_file = server.token_file().display().to_string();
    let args =
        ["run", "get", second["id"].as_str().expect("an id"), "--server", server.url(), "--token-file", &token_file];
    let shown = rondel_tests::rondel(&args, &[]).await;
    assert!(shown.stdout.contains("lru; only only eligible; queued "), "{shown:?}");
}

/// Two servers on one database, five executors with a stream to both: each server distributes the runs of its own jobs
/// evenly.
#[tokio::test]
async fn two_servers_route_evenly_side_by_side() {
    let Some(db) = scratch(Backend::Postgres).await else { return };
    let (one, other) = (server(&db).await, Server::start(&db).await);
    let _agents = five(&[&one, &other]).await;
    let (one, other) = (one.api(), other.api());
    for api in [&one, &other] {
        wait_until(LIMIT, "every agent has a stream to this server", async || {
            let online = api.get("/api/v1/executors").await.expect(200);
            let all_here = (1..=5).all(|number| online.to_string().contains(&format!("\"e{number}\"")));
            if all_here { Ok(()) } else { Err(online) }
        })
        .await;
    }
    for route in ["round", "lfu", "lru"] {
        for (side, api) in [("one", &one), ("other", &other)] {
            let name = format!("{route}-{side}");
            job(api, &name, "true", json!({"route": route})).await;
            // The first server that is asked becomes the home.
            let shares = shares(api, &name, 13).await;
            assert!(is_even(&shares, 5), "{name}: {shares:?}");
        }
    }
}

/// Four executors of the SDK, one of which dies in the middle: its shard, and no other, runs again elsewhere.
#[tokio::test]
async fn a_broadcast_outlives_one_of_its_executors() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db).await;
    let api = server.api();
    let folder = tempfile::tempdir().expect("make a folder");
    let journal = folder.path().join("journal");
    let mut crew: Vec<Process> = (1..=4)
        .map(|number| {
            let name = format!("s{number}");
            let mut command = std::process::Command::new(example("journal"));
            command.arg(server.url()).arg(server.token_file()).args(["crew", &name]).arg(&journal);
            Process::start(&name, command)
        })
        .collect();
    wait_until(LIMIT, "four executors are online", async || {
        let online = api.get("/api/v1/executors").await.expect(200);
        if (1..=4).all(|number| online.to_string().contains(&format!("\"s{number}\""))) { Ok(()) } else { Err(online) }
    })
    .await;
    let all =
        json!({"name": "all", "app": "crew", "handler": "append", "params": {"sleep_ms": 5_000}, "route": "broadcast"});
    api.post("/api/v1/jobs", all).await.expect(201);
    let whole = trigger(&api, "all").await;
    // The columns: run, attempt, planned, started, index, total. The last two are the values in a task that the
    // handler spawned.
    let lines = || -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(&journal).unwrap_or_default();
        text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    };
    wait_until(LIMIT, "all four have begun", async || if lines().len() == 4 { Ok(()) } else { Err(lines()) }).await;
    crew[1].kill().await;
    let whole = wait_for_verdict(&api, &whole).await;
    assert_eq!(whole["status"], "succeeded", "{whole:#}");
    let shards: Vec<(i64, i64, String)> = whole["shards"]
        .as_array()
        .expect("shards")
        .iter()
        .map(|run| {
            (
                run["shard_index"].as_i64().expect("an index"),
                run["attempt"].as_i64().expect("a number"),
                text(&run["executor"]),
            )
        })
        .collect();
    let attempts: Vec<i64> = shards.iter().map(|(_, attempt, _)| *attempt).collect();
    assert_eq!(attempts, [1, 2, 1, 1], "{whole:#}");
    assert_ne!(shards[1].2, "s2", "{whole:#}");
    let mut seen: Vec<(String, String)> =
        lines().iter().map(|line| (format!("{}/{}", line[4], line[5]), line[1].clone())).collect();
    seen.sort();
    let expected = [("0/4", "1"), ("1/4", "1"), ("1/4", "2"), ("2/4", "1"), ("3/4", "1")];
    assert_eq!(seen, expected.map(|(part, attempt)| (part.to_owned(), attempt.to_owned())));
}
