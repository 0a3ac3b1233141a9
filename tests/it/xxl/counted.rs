//! Calls are counted by their outcome, and logged once for each kind and address.

use std::collections::BTreeMap;

use rondel_tests::{Api, Backend, Method, scratch, wait_until};
use serde_json::{Value, json};

use super::stand_in::{Dialect, StandIn};
use super::{LIMIT, job, online, server, start, token, wait_for_status};

/// The counts, by call and outcome.
async fn counts(api: &Api) -> BTreeMap<String, u64> {
    let text = api.get("/metrics").await.expect(200);
    let lines = text.as_str().expect("a text").lines();
    let of_xxl = lines.filter_map(|line| line.strip_prefix("rondel_xxl_calls_total{")?.split_once("} "));
    let read = of_xxl.map(|(labels, count)| {
        let words: Vec<&str> = labels.split('"').skip(1).step_by(2).collect();
        (words.join(" "), count.parse().expect("a number"))
    });
    read.collect()
}

#[tokio::test]
async fn calls_are_counted_and_logged_once() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let mut server = server(&db, &[]).await;
    let api = server.api();
    for app in ["demo", "other"] {
        job(&api, (app, app, "sleep"), json!({})).await;
    }
    let (own, others) = (token(&api, "demo").await, token(&api, "other").await);
    let anonymous = Api::anonymous(server.url());
    let call = async |method: &str, token: &str, body: String| {
        let request = anonymous.request(Method::POST, &format!("/xxl-job-admin/api/{method}")).body(body);
        anonymous.answer(request.header("xxl-job-access-token", token)).await.expect(200)
    };
    let registration = |app: &str, address: &str| {
        json!({"registryGroup": "EXECUTOR", "registryKey": app, "registryValue": address}).to_string()
    };
    let callback = |log_id: i64| json!([{"logId": log_id, "handleCode": 500}, {"logId": log_id, "handleCode": 500}]);
    let executor = StandIn::start(Dialect::Core34, server.url(), ("other", &others)).await;
    executor.register().await;
    online(&api, "other", 1).await;
    let run = start(&api, "other", Value::Null).await;
    let log_id = executor.wait_for("run", 1).await[0]["logId"].as_i64().expect("a log id");
    for _ in 0..3 {
        call("callback", "default_token", callback(log_id).to_string()).await;
    }
    call("registry", &own, registration("other", "http://127.0.0.1:9/")).await;
    call("registry", &own, registration("demo", "http://10.0.0.5:9999/")).await;
    call("registryRemove", &own, registration("demo", "nowhere")).await;
    call("callback", &own, "{".to_owned()).await;
    call("nosuch", &own, "{}".to_owned()).await;
    call("callback", &own, callback(log_id).to_string()).await;
    call("callback", &own, callback(7).to_string()).await;
    executor.finish(log_id, 200, "good").await;
    wait_for_status(&api, &run, "succeeded").await;
    call("callback", &others, callback(log_id).to_string()).await;
    let expected: BTreeMap<String, u64> = [
        ("registry accepted", 1),
        ("registry wrong_app", 1),
        ("registry forbidden_address", 1),
        ("registry_remove forbidden_address", 1),
        ("callback accepted", 1),
        ("callback repeated", 2),
        ("callback unknown_run", 2),
        ("callback foreign_run", 2),
        ("callback wrong_token", 3),
        ("callback unreadable", 1),
        ("other unknown_call", 1),
    ]
    .into_iter()
    .map(|(labels, count)| (labels.to_owned(), count))
    .collect();
    assert_eq!(counts(&api).await, expected);
    wait_until(LIMIT, "each kind is logged once", async || {
        let log = server.process().stderr();
        let lines = |word: &str| log.lines().filter(|line| line.contains("XXL-JOB") && line.contains(word)).count();
        let found = ["wrong_token", "wrong_app", "unreadable", "foreign_run", "unknown_run", "repeated"].map(lines);
        if found == [1; 6] { Ok(()) } else { Err((found, log.clone())) }
    })
    .await;
}
