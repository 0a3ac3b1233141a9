//! Jobs that follow from jobs: a diamond runs its last job once per fire, and circles are refused.

use std::time::Duration;

use rondel_tests::{Agent, ScratchDb, Server, wait_until};
use serde_json::{Value, json};

use crate::journal::{Journal, seconds};
use crate::on_each_database;

/// `a` → `b`, `c` → `d`: `d` runs once per fire of `a`, after both `b` and `c`, and receives their results.
async fn the_last_of_a_diamond_runs_once_per_fire(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    let _agents = [Agent::start(&server, "files").await, Agent::start(&server, "files").await];
    // `a` is paused until all jobs exist: otherwise a fire of `a` could begin before `c` exists, and would have no
    // run of `c`.
    for (name, schedule) in [
        ("a", json!({"every": "2s"})),
        ("b", json!({"after": ["a"]})),
        ("c", json!({"after": ["a"]})),
        ("d", json!({"after": ["b", "c"]})),
    ] {
        let mut job = json!({"name": name, "app": "files", "handler": "shell", "schedule": schedule});
        job["enabled"] = json!(name != "a");
        job["params"] = journal.params(if name == "b" { "sleep 0.3" } else { "" });
        api.post("/api/v1/jobs", job).await.expect(201);
    }
    let circle = json!({"schedule": {"every": null, "after": ["d"]}});
    let circle = api.patch("/api/v1/jobs/a", circle).await.expect(422);
    assert!(circle["errors"][0]["message"].as_str().is_some_and(|text| text.contains("d -> a -> b -> d")), "{circle}");
    let missing = json!({"name": "e", "app": "files", "handler": "shell", "params": {"argv": ["true"]},
        "schedule": {"after": ["missing"]}});
    let missing = api.post("/api/v1/jobs", missing).await.expect(422);
    assert_eq!(missing["errors"][0]["pointer"], "/schedule/after/0", "{missing}");
    api.post("/api/v1/jobs/a/resume", json!({})).await.expect(200);

    let last = wait_until(Duration::from_secs(60), "three fires of d", async || {
        let runs = api.runs("d").await;
        let done: Vec<Value> = runs.iter().filter(|run| run["status"] == "succeeded").cloned().collect();
        if done.len() >= 3 { Ok(done) } else { Err(runs) }
    })
    .await;
    for run in last {
        let fire_at = &run["fire_at"];
        let run = api.get(&format!("/api/v1/runs/{}", run["id"].as_str().expect("an id"))).await.expect(200);
        assert_eq!(run["trigger"], "parent");
        for parent in ["b", "c"] {
            let given = &run["params"]["parents"][parent];
            let id = given["run_id"].as_str().expect("the parent's run");
            let of_parent = api.get(&format!("/api/v1/runs/{id}")).await.expect(200);
            assert_eq!((&of_parent["fire_at"], &of_parent["job"]), (fire_at, &json!(parent)));
            assert_eq!((&given["status"], &given["result"]), (&json!("succeeded"), &of_parent["result"]));
            let [ended, began] =
                [&of_parent["finished_at"], &run["started_at"]].map(|at| seconds(at.as_str().expect("an instant")));
            assert!(ended <= began, "d began before {parent} ended");
        }
    }
    for (fire, lines) in journal.by_fire() {
        assert!(lines.len() <= 4, "something of {fire} ran twice: {lines:?}");
    }
}
on_each_database!(the_last_of_a_diamond_runs_once_per_fire);

/// The server dies between writing the verdicts of a batch and writing the runs that follow. Both are in one transaction:
/// neither is stored then, and later both are.
async fn a_verdict_and_its_children_are_one(db: ScratchDb) {
    let mut server = Server::start_with(&db, &["--failpoint", "finish.settled@2"]).await;
    let data = tempfile::tempdir().expect("make a folder");
    let journal = Journal::new();
    // `a` is paused until `b` exists: otherwise a fire of `a` could begin before, and would have no run of `b`.
    for (name, schedule) in [("a", json!({"every": "1s"})), ("b", json!({"after": ["a"]}))] {
        let job = json!({
            "name": name, "app": "files", "handler": "shell", "params": journal.params(""), "schedule": schedule,
            "misfire": {"policy": "all", "max": 100}, "enabled": name != "a",
        });
        server.api().post("/api/v1/jobs", job).await.expect(201);
    }
    server.api().post("/api/v1/jobs/a/resume", json!({})).await.expect(200);
    let _agent = Agent::start_with(&server, "files", &["--data-dir", &data.path().display().to_string()]).await;
    let ended = server.process().wait(Duration::from_secs(60)).await;
    assert!(!ended.success(), "it aborted at the failpoint: {ended}");
    let server = Server::start_with_data_of(server, &[]).await;
    let api = server.api();
    wait_until(Duration::from_secs(60), "each ended run of a has its child", async || {
        let (parents, children) = (api.runs("a").await, api.runs("b").await);
        let done = |run: &&Value| run["status"] == "succeeded";
        let has_child = |run: &&Value| children.iter().any(|child| child["fire_at"] == run["fire_at"]);
        let ended: Vec<&Value> = parents.iter().filter(done).collect();
        let all = ended.len() >= 5 && ended.iter().all(has_child);
        if all { Ok(()) } else { Err(format!("{parents:#?} {children:#?}")) }
    })
    .await;
}
on_each_database!(a_verdict_and_its_children_are_one);

/// If the runs of a job end with their children, its next run waits for the children of the previous one, even if the server dies
/// meanwhile.
async fn a_run_may_be_over_with_its_children(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let api = server.api();
    let data = tempfile::tempdir().expect("make a folder");
    let (journal, of_child) = (Journal::new(), Journal::new());
    let door = data.path().join("open");
    let wait = format!("while [ ! -e {} ]; do sleep 0.1; done", door.display());
    let parent = json!({"name": "a", "app": "files", "handler": "shell", "params": journal.params(""),
        "over": "children"});
    api.post("/api/v1/jobs", parent).await.expect(201);
    let child = json!({"name": "b", "app": "files", "handler": "shell", "params": of_child.params(&wait),
        "schedule": {"after": ["a"]}, "on_silence": "continue"});
    api.post("/api/v1/jobs", child).await.expect(201);
    let folder = data.path().join("agent");
    let _agent = Agent::start_with(&server, "files", &["--data-dir", &folder.display().to_string()]).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let run = api.post("/api/v1/jobs/a/runs", json!({})).await.expect(201);
        ids.push(run["id"].as_str().expect("an id").to_owned());
    }
    let limit = Duration::from_secs(60);
    wait_until(limit, "the child runs", async || {
        let lines = of_child.lines();
        if lines.len() == 1 { Ok(()) } else { Err(lines) }
    })
    .await;
    let status = async |id: &str| {
        let run = api.get(&format!("/api/v1/runs/{id}")).await.expect(200);
        run["status"].as_str().expect("a status").to_owned()
    };
    assert_eq!(status(&ids[0]).await, "running", "its handler has ended, its child has not");
    server.kill().await;
    server.restart().await;
    wait_until(limit, "the server is back", async || {
        let health = api.get("/readyz").await.status;
        if health == 200 { Ok(()) } else { Err(health) }
    })
    .await;
    assert_eq!((status(&ids[0]).await.as_str(), journal.lines().len()), ("running", 1), "the second one waits");
    std::fs::write(&door, "").expect("write a file");
    wait_until(limit, "both and their children have ended", async || {
        let statuses = [status(&ids[0]).await, status(&ids[1]).await];
        if statuses.iter().all(|status| status == "succeeded") { Ok(()) } else { Err(statuses) }
    })
    .await;
    let second = api.get(&format!("/api/v1/runs/{}", ids[1])).await.expect(200);
    let children = api.runs("b").await;
    let ended = children.iter().map(|run| seconds(run["finished_at"].as_str().expect("it has ended"))).min();
    assert!(ended <= Some(seconds(second["started_at"].as_str().expect("it began"))), "{second:#} {children:#?}");
    assert_eq!((journal.lines().len(), of_child.lines().len()), (2, 2));
}
on_each_database!(a_run_may_be_over_with_its_children);
