//! The page of a run: its timeline, the neighbouring runs, and the available actions.

use std::time::Duration;

use rondel_core::RunId;
use rondel_core::outcome::Outcome;
use serde_json::json;

use crate::harness::Server;
use crate::visitor::{Visitor, location};

const FAILED: Outcome = Outcome::Failed { retryable: false };

async fn run_again(server: &Server, job: &str, params: &str) -> RunId {
    // Runs with the same millisecond would be listed in another order.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let path = format!("/api/v1/jobs/{job}/runs");
    let run = server.with_body("POST", &path, format!("{{\"params\": {params}}}")).await.expect(201);
    run["id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_failed_run_is_compared_with_the_last_good_one() {
    let server = Server::start().await;
    let job = json!({"name": "a", "app": "app", "handler": "handler", "overrides": "all"});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let good = run_again(&server, "a", "{\"day\": \"monday\"}").await;
    server.finish(good, Outcome::Succeeded).await;
    let between = run_again(&server, "a", "{\"day\": \"tuesday\"}").await;
    server.finish(between, FAILED).await;
    let bad = run_again(&server, "a", "{\"day\": \"wednesday\"}").await;
    server.finish(bad, FAILED).await;
    let after = run_again(&server, "a", "{\"day\": \"thursday\"}").await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get(&format!("/runs/{bad}")).await.text();
    assert!(page.contains(&format!("rel=\"prev\" id=\"older\" href=\"/runs/{between}\"")), "{page}");
    assert!(page.contains(&format!("rel=\"next\" id=\"newer\" href=\"/runs/{after}\"")), "{page}");
    let (_, compared) = page.split_once("id=\"compare\" open").expect("a comparison");
    let compared = compared.split("</details>").next().unwrap();
    assert!(compared.contains(&format!("href=\"/runs/{good}\"")), "{compared}");
    assert!(compared.contains("wednesday") && compared.contains("monday"), "{compared}");
    assert!(compared.contains("The same in both: Definition, Executor, Attempts"), "{compared}");
    let first = visitor.get(&format!("/runs/{good}")).await.text();
    assert!(!first.contains("id=\"older\"") && !first.contains("id=\"compare\""), "{first}");
    let last = visitor.get(&format!("/runs/{after}")).await.text();
    assert!(!last.contains("id=\"newer\"") && !last.contains("id=\"compare\""), "nothing to compare while it is open");
}

#[tokio::test]
async fn a_title_is_short_and_actions_are_there_as_commands() {
    let server = Server::start().await;
    server.job("orders.close").await;
    let run = server.trigger("orders.close").await;
    server.finish(run, Outcome::Succeeded).await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get(&format!("/runs/{run}")).await.text();
    let title = page.split_once("<h1>").unwrap().1.split("</h1>").next().unwrap();
    assert!(title.starts_with("#orders.close · <time") && !title.contains(&run.to_string()), "{title}");
    assert!(page.contains(&format!("rondel run retry {run} --namespace default")), "{page}");
    assert!(page.contains(&format!("/api/v1/runs/{run}/retry?namespace=default")), "{page}");
    let part = visitor.get(&format!("/runs/{run}?part=live")).await.text();
    assert!(part.contains("id=\"live\"") && !part.contains("<rondel-log"), "the log is not sent with each look");
}

#[tokio::test]
async fn a_shard_offers_only_possible_actions() {
    let server = Server::start().await;
    let job = json!({"name": "a", "app": "app", "handler": "handler", "shards": 3});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let whole = server.trigger("a").await;
    let shards: Vec<RunId> = shards_of(&server, whole, 3).await;
    for (place, shard) in shards.iter().enumerate() {
        server.finish(*shard, if place == 1 { FAILED } else { Outcome::Succeeded }).await;
    }
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get(&format!("/runs/{whole}")).await.text();
    assert!(page.contains("1 did not succeed"), "{page}");
    for (place, shard) in shards.iter().enumerate() {
        let row = page.split_once(&format!("<a href=\"/runs/{shard}\">")).expect("a bar for each").1;
        assert!(row.starts_with(&format!("{}/3</a>", place + 1)), "{row}");
    }
    let page = visitor.get(&format!("/runs/{}", shards[1])).await.text();
    let (_, form) = page.split_once("<form method=\"post\" action=\"/runs/").unwrap();
    assert!(form.starts_with(&format!("{whole}/retry\"")) && form.contains("Run all shards again"), "{page}");
    let new = location(&visitor.post(&format!("/runs/{whole}/retry"), "").await);
    assert!(new.starts_with("/runs/"), "{new}");
}

/// Only the first shards have a row. The others are small marks, each with the icon of its own status.
#[tokio::test]
async fn shards_without_a_row_show_their_own_status() {
    let server = Server::start().await;
    let job = json!({"name": "a", "app": "app", "handler": "handler", "shards": 70});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let whole = server.trigger("a").await;
    for (place, shard) in shards_of(&server, whole, 70).await.into_iter().enumerate() {
        server.finish(shard, if place < 4 { Outcome::Succeeded } else { FAILED }).await;
    }
    let page = Visitor::signed_in(&server).await.get(&format!("/runs/{whole}")).await.text();
    let (_, marks) = page.split_once("<div class=\"shards\">").expect("small marks");
    let marks = marks.split("</div>").next().unwrap();
    let count = |class: &str| marks.matches(&format!("class=\"{class}\"")).count();
    assert_eq!((count("s-failed"), count("s-succeeded")), (6, 4), "{marks}");
}

/// The run of the child job has the planned instant of the broadcast that it follows. It is not a shard of this broadcast.
#[tokio::test]
async fn a_run_that_follows_a_broadcast_runs_again_alone() {
    let server = Server::start().await;
    let whole_job = json!({"name": "a", "app": "app", "handler": "handler", "shards": 2});
    let child_job = json!({"name": "b", "app": "app", "handler": "handler", "schedule": {"after": ["a"]}});
    for job in [whole_job, child_job] {
        server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    }
    let whole = server.trigger("a").await;
    for shard in shards_of(&server, whole, 2).await {
        server.finish(shard, Outcome::Succeeded).await;
    }
    let runs = server.get("/api/v1/runs?job=b").await.expect(200);
    let run: RunId = runs["items"][0]["id"].as_str().unwrap().parse().unwrap();
    server.finish(run, FAILED).await;
    let job = server.get("/api/v1/jobs/b").await.expect(200);
    assert_eq!((&job["last_run"]["id"], &job["last_run"]["status"]), (&json!(run), &json!("failed")));
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get(&format!("/runs/{run}")).await.text();
    assert!(page.contains(&format!("action=\"/runs/{run}/retry\"")), "{page}");
    assert!(!page.contains(&format!("/runs/{whole}/retry")), "the broadcast succeeded: {page}");
    let again = server.bare("POST", &format!("/api/v1/runs/{run}/retry")).await.expect(201);
    assert_eq!((&again["job"], &again["parent"]), (&json!("b"), &json!(run)));
}

/// The new fire has only the failed shards, with their old numbers. Its root run and its shards are stored immediately.
#[tokio::test]
async fn the_failed_shards_alone_run_again() {
    let server = Server::start().await;
    let job = json!({"name": "a", "app": "app", "handler": "handler", "shards": 3});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let whole = server.trigger("a").await;
    let retry = |run: String, body: serde_json::Value| {
        let server = &server;
        async move { server.with_body("POST", &format!("/api/v1/runs/{run}/retry"), body).await }
    };
    let only_failed = json!({"only": "failed"});
    retry(whole.to_string(), only_failed.clone()).await.expect(409);
    let shards = shards_of(&server, whole, 3).await;
    for (place, shard) in shards.iter().enumerate() {
        server.finish(*shard, if place == 1 { FAILED } else { Outcome::Succeeded }).await;
    }
    let refusal = retry(shards[1].to_string(), only_failed.clone()).await.expect(409);
    let advice = format!("this is one shard of run {whole}: retry that run, all of it or only its failed shards");
    assert!(refusal.to_string().contains(&advice), "{refusal}");
    retry(whole.to_string(), json!({"only": "some"})).await.expect(422);
    let dead = async || server.get("/api/v1/runs?q=is:dead").await.expect(200)["items"].as_array().unwrap().len();
    assert_eq!(dead().await, 1);
    let again = retry(whole.to_string(), only_failed.clone()).await.expect(201);
    assert_eq!(dead().await, 0, "what runs again needs no attention");
    assert_eq!((&again["parent"], &again["status"]), (&json!(whole.to_string()), &json!("running")));
    assert_eq!(again["shards"].as_array().map(Vec::len), Some(1), "{again}");
    assert_eq!((&again["shards"][0]["shard_index"], &again["shards"][0]["shard_total"]), (&json!(1), &json!(3)));
    let shard: RunId = again["shards"][0]["id"].as_str().unwrap().parse().unwrap();
    server.finish(shard, Outcome::Succeeded).await;
    let id = again["id"].as_str().unwrap().to_owned();
    let over = server.get(&format!("/api/v1/runs/{id}")).await.expect(200);
    assert_eq!(over["status"], "succeeded", "it is over with its shards: {over}");
    let refusal = retry(id.clone(), only_failed.clone()).await.expect(422);
    assert!(refusal.to_string().contains("each of its shards succeeded"), "{refusal}");
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get(&format!("/runs/{whole}")).await.text();
    assert!(page.contains("Run 1 failed shard again"), "{page}");
    assert!(location(&visitor.post(&format!("/runs/{whole}/retry-failed"), "").await).starts_with("/runs/"));
    assert!(!visitor.get(&format!("/runs/{id}")).await.text().contains("retry-failed"), "nothing failed there");
}

/// The shards fill more than a page of the job's runs, and are listed before their root run.
#[tokio::test]
async fn the_page_of_a_job_has_its_last_run_however_many_shards_that_has() {
    let server = Server::start().await;
    let job = json!({"name": "a", "app": "app", "handler": "handler", "shards": 70});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let whole = server.trigger("a").await;
    shards_of(&server, whole, 70).await;
    let page = Visitor::signed_in(&server).await.get("/jobs/a").await.text();
    assert!(page.contains(&format!("<p class=\"big\"><a class=\"cell\" href=\"/runs/{whole}\">")), "{page}");
}

/// The shards of the previous fire fill more than a page of the job's runs.
#[tokio::test]
async fn a_run_with_many_shards_has_the_one_before_it_beside_it() {
    let server = Server::start().await;
    let job = json!({"name": "a", "app": "app", "handler": "handler", "shards": 101});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let before = server.trigger("a").await;
    shards_of(&server, before, 101).await;
    // Runs with the same millisecond would be listed in another order.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let run = server.trigger("a").await;
    let page = Visitor::signed_in(&server).await.get(&format!("/runs/{run}")).await.text();
    assert!(page.contains(&format!("rel=\"prev\" id=\"older\" href=\"/runs/{before}\"")), "{page}");
}

/// A shard is repeated by its index. If an edit gave this index another name, the repetition would run another shard, so it is refused.
#[tokio::test]
async fn failed_shards_do_not_run_again_under_other_names() {
    let server = Server::start().await;
    let job = |names: [&str; 3]| {
        let shards = names.map(|name| json!({"name": name}));
        json!({"name": "a", "app": "app", "handler": "handler", "shards": shards})
    };
    server.with_body("POST", "/api/v1/jobs", job(["eu", "us", "rest"])).await.expect(201);
    let whole = server.trigger("a").await;
    for (place, shard) in shards_of(&server, whole, 3).await.into_iter().enumerate() {
        server.finish(shard, if place == 1 { FAILED } else { Outcome::Succeeded }).await;
    }
    let path = format!("/api/v1/runs/{whole}/retry");
    for (names, status) in [(["us", "eu", "rest"], 422), (["ap", "us", "rest"], 201)] {
        server.with_body("PUT", "/api/v1/jobs/a", job(names)).await.expect(200);
        let answer = server.with_body("POST", &path, json!({"only": "failed"})).await.expect(status);
        assert_eq!(answer.to_string().contains("shard 1 has another name"), status == 422, "{answer}");
    }
}

/// A retry of the failed shards does not run beside an open run with the key of the fire, and gets the key otherwise.
#[tokio::test]
async fn failed_shards_run_again_with_the_key_of_their_run() {
    let server = Server::start().await;
    let job = json!({"name": "a", "app": "app", "handler": "handler", "shards": 2});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let send = async |path: &str, body: serde_json::Value| {
        // Otherwise the id of the new run could be one that `shards_of` has given to a shard.
        tokio::time::sleep(Duration::from_millis(5)).await;
        server.with_body("POST", path, body).await
    };
    let trigger = async || send("/api/v1/jobs/a/runs", json!({"key": "order-1"})).await;
    let id_of = |run: &serde_json::Value| -> RunId { run["id"].as_str().unwrap().parse().unwrap() };
    let whole = id_of(&trigger().await.expect(201));
    for (shard, outcome) in shards_of(&server, whole, 2).await.into_iter().zip([FAILED, Outcome::Succeeded]) {
        server.finish(shard, outcome).await;
    }
    let second = id_of(&trigger().await.expect(201));
    let path = format!("/api/v1/runs/{whole}/retry");
    let retry = async || send(&path, json!({"only": "failed"})).await;
    let refusal = retry().await.expect(409);
    assert_eq!(refusal["code"], "trigger_key_in_use");
    assert!(refusal["detail"].as_str().unwrap().contains(&second.to_string()), "{refusal}");
    for shard in shards_of(&server, second, 2).await {
        server.finish(shard, Outcome::Succeeded).await;
    }
    let again = retry().await.expect(201);
    assert_eq!(again["key"], "order-1");
    assert_eq!(trigger().await.expect(409)["code"], "trigger_key_in_use");
    server.finish(again["shards"][0]["id"].as_str().unwrap().parse().unwrap(), Outcome::Succeeded).await;
    trigger().await.expect(201);
}

/// Stores the shards of a broadcast like the dispatcher does.
async fn shards_of(server: &Server, whole: RunId, total: i32) -> Vec<RunId> {
    let store = server.engine.store();
    let root = store.runs(&[whole]).await.unwrap().pop().unwrap();
    let shards: Vec<_> = (0..total)
        .map(|index| rondel_core::Run {
            id: RunId::new(whole.get() + 1 + i64::from(index)),
            shard_index: index,
            shard_total: Some(total),
            parent: Some(whole),
            ..root.clone()
        })
        .collect();
    let ids = shards.iter().map(|shard| shard.id).collect();
    store.expand(server.engine.token(), whole, &shards).await.unwrap();
    ids
}
