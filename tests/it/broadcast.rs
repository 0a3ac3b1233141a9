//! Sharding broadcast: every executor online gets its index and the total, once per fire.

use std::collections::BTreeSet;
use std::time::Duration;

use rondel_tests::{Agent, ScratchDb, Server, wait_until};
use serde_json::json;

use crate::journal::Journal;
use crate::on_each_database;

async fn everyone_online_gets_a_share(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "crew"})).await.expect(201);
    let _two = [Agent::start(&server, "crew").await, Agent::start(&server, "crew").await];
    let journal = Journal::new();
    let job = json!({
        "name": "all", "app": "crew", "handler": "shell", "params": journal.params(""),
        "schedule": {"every": "2s"}, "route": "broadcast",
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    shares(&journal, &["0/2", "1/2"]).await;
    let _third = Agent::start(&server, "crew").await;
    shares(&journal, &["0/3", "1/3", "2/3"]).await;
    for (fire, lines) in journal.by_fire() {
        let shards: BTreeSet<_> = lines.iter().map(|line| line.shard.clone()).collect();
        assert_eq!(shards.len(), lines.len(), "a shard of {fire} ran twice: {lines:?}");
        let executors: BTreeSet<_> = lines.iter().map(|line| line.executor.clone()).collect();
        assert_eq!(executors.len(), lines.len(), "one executor got two shards of {fire}: {lines:?}");
    }
    wait_until(Duration::from_secs(20), "the broadcast's row has its verdict", async || {
        let runs = api.runs("all").await;
        let root = |run: &&serde_json::Value| run["shard_index"].is_null() && run["status"] == "succeeded";
        if runs.iter().any(|run| root(&run)) { Ok(()) } else { Err(runs) }
    })
    .await;
}
on_each_database!(everyone_online_gets_a_share);

async fn shares(journal: &Journal, expected: &[&str]) {
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    wait_until(Duration::from_secs(30), "a fire with these shards", async || {
        let fires = journal.by_fire();
        let has = |lines: &Vec<crate::journal::Line>| {
            lines.iter().map(|line| line.shard.as_str()).collect::<BTreeSet<_>>() == expected
        };
        if fires.values().any(has) { Ok(()) } else { Err(fires) }
    })
    .await;
}

/// The shard that failed runs again alone, with its number; the others do not.
async fn a_failed_shard_runs_again_alone(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    let mark = journal.path().with_extension("mended");
    let script = format!("test \"$RONDEL_SHARD_INDEX\" != 1 || test -e {}", mark.display());
    let job = json!({
        "name": "cut", "app": "files", "handler": "shell", "params": journal.params(&script), "shards": 3,
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    let whole = api.post("/api/v1/jobs/cut/runs", json!({})).await.expect(201);
    let over = async |run: &serde_json::Value, expected: &str| {
        let path = format!("/api/v1/runs/{}", run["id"].as_str().expect("a text"));
        wait_until(Duration::from_secs(20), "the fire is over", async || {
            let run = api.get(&path).await.expect(200);
            if run["status"] == expected { Ok(run) } else { Err(run) }
        })
        .await
    };
    over(&whole, "failed").await;
    std::fs::write(&mark, "").expect("a file");
    let path = format!("/api/v1/runs/{}/retry", whole["id"].as_str().expect("a text"));
    let again = api.post(&path, json!({"only": "failed"})).await.expect(201);
    let again = over(&again, "succeeded").await;
    assert_eq!(again["shards"].as_array().map(Vec::len), Some(1), "{again}");
    let mut shards: Vec<String> = journal.lines().into_iter().map(|line| line.shard).collect();
    shards.sort_unstable();
    assert_eq!(shards, ["0/3", "1/3", "1/3", "2/3"]);
    api.post(
        &path.replace(whole["id"].as_str().expect("a text"), again["id"].as_str().expect("a text")),
        json!({"only": "failed"}),
    )
    .await
    .expect(422);
}
on_each_database!(a_failed_shard_runs_again_alone);

/// The parameters of a named shard override those of its fire, also after an edit of the job. Only the definition contains them.
async fn named_shards_get_parameters_of_their_own(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    let script = format!("echo \"$RONDEL_SHARD_NAME $REGION\" >> {}", journal.path().display());
    let definition = |shards: serde_json::Value| {
        let params = json!({"argv": ["sh", "-c", script], "env": {"REGION": "any"}});
        json!({"name": "regions", "app": "files", "handler": "shell", "params": params, "shards": shards})
    };
    let wrong = json!([{"name": "eu"}, {"name": "us", "params": {"argv": "not a list"}}]);
    let refusal = api.post("/api/v1/jobs", definition(wrong)).await.expect(422);
    assert_eq!(refusal["errors"][0]["pointer"], "/shards/1/params/argv", "{refusal}");
    let own = |region: &str| json!({"env": {"REGION": region}});
    let shards =
        json!([{"name": "eu", "params": own("eu-1")}, {"name": "us", "params": own("us-1")}, {"name": "rest"}]);
    api.post("/api/v1/jobs", definition(shards)).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    let whole = api.post("/api/v1/jobs/regions/runs", json!({})).await.expect(201);
    let path = format!("/api/v1/runs/{}", whole["id"].as_str().expect("a text"));
    let whole = wait_until(Duration::from_secs(20), "the fire is over", async || {
        let run = api.get(&path).await.expect(200);
        if run["status"] == "succeeded" { Ok(run) } else { Err(run) }
    })
    .await;
    let text = std::fs::read_to_string(journal.path()).expect("the journal");
    assert_eq!(text.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["eu eu-1", "us us-1", "rest any"]));
    assert_eq!(whole["part"], "whole");
    for shard in whole["shards"].as_array().expect("shards") {
        let run = api.get(&format!("/api/v1/runs/{}", shard["id"].as_str().expect("a text"))).await.expect(200);
        let (name, region) = match run["shard_index"].as_i64() {
            Some(0) => ("eu", "eu-1"),
            Some(1) => ("us", "us-1"),
            _ => ("rest", "any"),
        };
        assert_eq!((&run["part"], &run["shard_name"]), (&json!("shard"), &json!(name)), "{run}");
        assert_eq!(run["params"]["env"]["REGION"], region, "{run}");
    }
}
on_each_database!(named_shards_get_parameters_of_their_own);
