//! Executors that are registered by hand: the server calls their `/beat`, and they are online as long as they answer.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rondel_tests::{Api, Backend, ScratchDb, Server, rondel, scratch, wait_until};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::stand_in::{Dialect, StandIn, hold_port};
use super::{job, online, server, start, token, wait_for_status};
use crate::on_each_database;

/// An executor counts as online for half a minute after its last answer.
const LIMIT: Duration = Duration::from_secs(150);

async fn executors_by_hand_get_runs_while_they_answer(db: ScratchDb) {
    let mut server = server(&db, &[]).await;
    let api = server.api();
    job(&api, ("echo", "demo", "echo"), json!({})).await;
    let secret = token(&api, "demo").await;
    let executor = StandIn::start(Dialect::Go, server.url(), ("demo", &secret)).await;
    let address = executor.address().to_owned();
    let added = json!({"address": format!("{address}/"), "token": secret});
    for _ in 0..2 {
        let added = api.post("/api/v1/apps/demo/addresses", added.clone()).await.expect(201);
        assert_eq!(added["address"], address.as_str(), "{added}");
    }
    // It never registers itself, and its entry does not expire.
    let listed = online(&api, "demo", 1).await;
    let found = api.get("/api/v1/apps/demo/addresses").await.expect(200);
    let first = &found["items"][0];
    assert_eq!((&first["executor"], &first["online"]), (&listed[0]["name"], &json!(true)), "{found}");
    assert!(first["last_registered_at"].is_null() && found["items"].as_array().is_some_and(|all| all.len() == 1));
    assert!(!executor.calls("beat").is_empty(), "it was asked before anything was sent to it");
    let run = start(&api, "echo", json!("x")).await;
    wait_for_status(&api, &run, "succeeded").await;

    server.kill().await;
    server.restart().await;
    let api = server.api();
    online(&api, "demo", 1).await;
    let run = start(&api, "echo", json!("y")).await;
    wait_for_status(&api, &run, "succeeded").await;
    assert_eq!(executor.calls("run").len(), 2);

    let port = executor.port();
    executor.die().await;
    let held = hold_port(port);
    wait_until(LIMIT, "the server notices that it is gone", async || {
        let found = api.get("/api/v1/apps/demo/addresses").await.expect(200);
        if found["items"][0]["online"] == false { Ok(()) } else { Err(found) }
    })
    .await;
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("its port");
    drop(held);
    let two = StandIn::start_at(listener, Dialect::Go, server.url(), ("demo", &secret));
    online(&api, "demo", 1).await;
    let run = start(&api, "echo", json!("z")).await;
    wait_for_status(&api, &run, "succeeded").await;
    assert_eq!(two.calls("run").len(), 1);

    for _ in 0..2 {
        api.delete(&address_path(&address)).await.expect(204);
    }
    online(&api, "demo", 0).await;
    assert_eq!(api.get("/api/v1/apps/demo/addresses").await.expect(200)["items"], json!([]));
}
on_each_database!(executors_by_hand_get_runs_while_they_answer);

/// The status of the executors of the app.
pub(super) async fn statuses(api: &Api) -> Vec<String> {
    let all = api.get("/api/v1/executors").await.expect(200);
    let its = all["items"].as_array().expect("a list").iter().filter(|executor| executor["app"] == "demo");
    its.filter_map(|executor| executor["status"].as_str().map(str::to_owned)).collect()
}

/// Registers an executor of app demo by hand, and waits until it is online. Returns it and its address.
async fn registered_by_hand(server: &Server) -> (StandIn, String) {
    let api = server.api();
    let secret = token(&api, "demo").await;
    let executor = StandIn::start(Dialect::Core34, server.url(), ("demo", &secret)).await;
    let address = executor.address().trim_end_matches('/').to_owned();
    api.post("/api/v1/apps/demo/addresses", json!({"address": address, "token": secret})).await.expect(201);
    online(&api, "demo", 1).await;
    (executor, address)
}

/// Registers an executor of app demo by hand, and gives it a run of job sleep. Returns it, its address and the run.
async fn registered_with_run(server: &Server) -> (StandIn, String, String) {
    let api = server.api();
    job(&api, ("sleep", "demo", "sleep"), json!({"retry": {"max": 1, "backoff": "1s"}})).await;
    let (executor, address) = registered_by_hand(server).await;
    let run = start(&api, "sleep", Value::Null).await;
    wait_for_status(&api, &run, "running").await;
    (executor, address, run)
}

/// The path of the address in the API, to remove it.
fn address_path(address: &str) -> String {
    format!("/api/v1/apps/demo/addresses?address={}", address.replace(':', "%3A").replace('/', "%2F"))
}

/// Revokes the token of the executors.
async fn revoke_token(api: &Api) {
    let tokens = api.get("/api/v1/tokens?all=true").await.expect(200);
    let its = tokens["items"].as_array().expect("a list").iter().find(|token| token["kind"] == "xxl");
    let id = its.and_then(|token| token["id"].as_str()).expect("its token");
    api.delete(&format!("/api/v1/tokens/{id}")).await.expect(204);
}

/// Kills the server and starts it again, and waits until it has a stream to the executor, which gets no more runs.
async fn restart_with_stream(server: &mut Server) {
    server.kill().await;
    server.restart().await;
    let api = server.api();
    wait_until(LIMIT, "the server has a stream to it", async || {
        let found = statuses(&api).await;
        if found == ["draining"] { Ok(()) } else { Err(found) }
    })
    .await;
}

/// A run continues when the address of its executor is removed. A late callback is its verdict then, too.
#[tokio::test]
async fn a_removed_executor_finishes_its_runs() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db, &["--xxl-callback-timeout", "2s"]).await;
    let api = server.api();
    for handler in ["mute", "sleep"] {
        job(&api, (handler, "demo", handler), json!({})).await;
    }
    let (executor, address) = registered_by_hand(&server).await;
    let mute = start(&api, "mute", Value::Null).await;
    wait_for_status(&api, &mute, "unknown").await;
    let run = start(&api, "sleep", Value::Null).await;
    wait_for_status(&api, &run, "running").await;
    let sent: Vec<i64> = executor.calls("run").iter().filter_map(|call| call["logId"].as_i64()).collect();
    assert_eq!(sent.len(), 2, "{sent:?}");

    api.delete(&address_path(&address)).await.expect(204);
    let left = wait_until(LIMIT, "it gets no more runs", async || {
        let found = statuses(&api).await;
        if found.iter().any(|status| status == "online") { Err(found) } else { Ok(found) }
    })
    .await;
    assert_eq!(left, ["draining"], "it has a run");
    executor.finish(sent[1], 200, "good").await;
    let ended_run = wait_for_status(&api, &run, "succeeded").await;
    assert_eq!(ended_run["attempt"], 1, "{ended_run:#}");

    wait_until(LIMIT, "it is gone", async || {
        let found = statuses(&api).await;
        if found.iter().all(|status| status == "offline") { Ok(()) } else { Err(found) }
    })
    .await;
    executor.finish(sent[0], 200, "at last").await;
    wait_for_status(&api, &mute, "succeeded").await;
}

/// After a restart, the server has no stream to an executor that was removed. The runs that it has are not sent again while it answers.
#[tokio::test]
async fn a_removed_executor_keeps_its_runs_over_a_restart() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let mut server = server(&db, &[]).await;
    let (executor, address, run) = registered_with_run(&server).await;
    server.api().delete(&address_path(&address)).await.expect(204);

    restart_with_stream(&mut server).await;
    let api = server.api();
    let sent = executor.calls("run");
    assert_eq!(sent.len(), 1, "{sent:?}");
    executor.finish(sent[0]["logId"].as_i64().expect("a log id"), 200, "good").await;
    let ended_run = wait_for_status(&api, &run, "succeeded").await;
    assert_eq!(ended_run["attempt"], 1, "{ended_run:#}");
}

/// An executor whose token was revoked still answers, but its callbacks would be refused.
#[tokio::test]
async fn an_executor_whose_token_has_ended_gets_no_runs() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db, &[]).await;
    let api = server.api();
    job(&api, ("echo", "demo", "echo"), json!({"queue_timeout": "1s"})).await;
    let (executor, _) = registered_by_hand(&server).await;

    revoke_token(&api).await;
    wait_until(LIMIT, "it is not available", async || {
        let found = api.get("/api/v1/apps/demo/addresses").await.expect(200);
        if found["items"][0]["online"] == false { Ok(()) } else { Err(found) }
    })
    .await;
    let found = api.get("/api/v1/apps/demo/addresses").await.expect(200);
    assert_eq!(found["items"][0]["token_ended"], true, "{found}");
    let run = start(&api, "echo", json!("x")).await;
    let ended_run = wait_for_status(&api, &run, "skipped").await;
    assert_eq!((&ended_run["reason"], executor.calls("run").len()), (&json!("no_executor"), 0), "{ended_run:#}");
}

/// After a restart, the server has no stream to an executor whose token has ended. The runs that it has are not sent again while it answers.
#[tokio::test]
async fn an_executor_whose_token_has_ended_keeps_its_runs_over_a_restart() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let mut server = server(&db, &[]).await;
    let (executor, _, run) = registered_with_run(&server).await;
    revoke_token(&server.api()).await;

    restart_with_stream(&mut server).await;
    let api = server.api();
    let found = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
    assert_eq!((&found["status"], &found["attempt"]), (&json!("running"), &json!(1)), "{found:#}");
    assert_eq!(executor.calls("run").len(), 1);
}

#[tokio::test]
async fn bad_addresses_are_refused_in_words() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db, &[]).await;
    let api = server.api();
    for app in ["demo", "other"] {
        job(&api, (app, app, "echo"), json!({})).await;
    }
    let (own, others) = (token(&api, "demo").await, token(&api, "other").await);
    let grants = json!([{"role": "executor", "namespace": "default", "app": "demo"}]);
    let gateway = json!({"kind": "executor", "name": "gateway", "grants": grants});
    let gateway = api.post("/api/v1/tokens", gateway).await.expect(201)["token"].clone();
    api.post("/api/v1/namespaces", json!({"name": "gone"})).await.expect(201);
    let grants = json!([{"role": "executor", "namespace": "gone", "app": "demo"}]);
    let without_namespace = json!({"kind": "xxl", "name": "gone", "grants": grants});
    let without_namespace = api.post("/api/v1/tokens", without_namespace).await.expect(201)["token"].clone();
    api.delete("/api/v1/namespaces/gone").await.expect(204);
    let good = "http://127.0.0.1:9/";
    for (address, token, pointer, words) in [
        ("127.0.0.1:9999", json!(own), "/address", "\"127.0.0.1:9999\" is not an address; write it as http://"),
        ("localhost:9999", json!(own), "/address", "\"localhost:9999\" is not an address of HTTP; write it as http://"),
        ("http://10.0.0.5:9999/", json!(own), "/address", "which the setting xxl_networks does not name"),
        ("http://1.1.1.1/", json!(own), "/address", "which the setting xxl_networks does not name"),
        ("http://169.254.169.254/", json!(own), "/address", "metadata address"),
        ("http://u:p@127.0.0.1/", json!(own), "/address", "has more than a host, a port and a path"),
        (good, json!("default_token"), "/token", "rondel token create NAME --kind xxl"),
        (good, json!(others), "/token", "is not a valid one of kind xxl for app demo"),
        (good, gateway, "/token", "is not a valid one of kind xxl for app demo"),
        (good, without_namespace, "/token", "is not a valid one of kind xxl for app demo"),
    ] {
        let body = json!({"address": address, "token": token});
        let refusal = api.post("/api/v1/apps/demo/addresses", body).await.expect(422);
        let first = &refusal["errors"][0];
        let message = first["message"].as_str().unwrap_or_default();
        assert!(first["pointer"] == pointer && message.contains(words), "{address}: {refusal}");
        assert!(!refusal.to_string().contains(&others) && !refusal.to_string().contains(&own), "{refusal}");
    }
    let body = json!({"address": good, "token": own});
    api.post("/api/v1/apps/nosuch/addresses", body).await.expect(404);
    assert_eq!(api.get("/api/v1/apps/demo/addresses").await.expect(200)["items"], json!([]));

    let file = server.data_folder().join("executor.token");
    std::fs::write(&file, &own).expect("write a token");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    let file = file.display().to_string();
    let command = async |args: &[&str]| {
        let token = server.token_file().display().to_string();
        let output = rondel(&[args, &["--server", server.url(), "--token-file", &token]].concat(), &[]).await;
        assert_eq!(output.code, Some(0), "{args:?}: {}{}", output.stdout, output.stderr);
        output.stdout
    };
    command(&["app", "address", "add", "demo", good, "--executor-token-file", &file]).await;
    let listed = command(&["app", "address", "list", "demo"]).await;
    assert!(listed.contains("http://127.0.0.1:9 ") && listed.contains("offline"), "{listed}");
    command(&["app", "address", "remove", "demo", good]).await;
    assert_eq!(command(&["app", "address", "list", "demo", "-o", "name"]).await.trim(), "");
    let without: Value = api.delete("/api/v1/apps/demo/addresses").await.expect(422);
    assert!(without.to_string().contains("write it as http://10.0.0.5:9999/"), "{without}");
}
