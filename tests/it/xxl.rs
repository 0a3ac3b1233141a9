//! Executors that speak XXL-JOB's protocol: a stand-in for each dialect, and pyxxl.

mod by_hand;
mod counted;
mod java;
mod python;
mod restart;
pub(crate) mod stand_in;
mod two_servers;

use std::collections::BTreeSet;
use std::time::Duration;

use rondel_tests::{Api, Backend, ScratchDb, Server, scratch, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use self::stand_in::{DIALECTS, Dialect, StandIn, hold_port};
use crate::on_each_database;

const LIMIT: Duration = Duration::from_secs(60);
const NETWORKS: [&str; 2] = ["--xxl-networks", "127.0.0.0/8"];

async fn server(db: &ScratchDb, extra_args: &[&str]) -> Server {
    Server::start_with(db, &[&NETWORKS, extra_args].concat()).await
}

/// Creates a job without a schedule, and with it the job's app.
async fn job(api: &Api, (name, app, handler): (&str, &str, &str), extra_fields: Value) {
    let mut job = json!({"name": name, "app": app, "handler": handler});
    job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
    api.post("/api/v1/jobs", job).await.expect(201);
}

/// A token for executors of an app.
async fn token(api: &Api, app: &str) -> String {
    let grants = json!([{"role": "executor", "namespace": "default", "app": app}]);
    let body = json!({"kind": "xxl", "name": format!("xxl-{app}"), "grants": grants});
    api.post("/api/v1/tokens", body).await.expect(201)["token"].as_str().expect("a secret").to_owned()
}

async fn online(api: &Api, app: &str, count: usize) -> Vec<Value> {
    wait_until(LIMIT, &format!("{count} executors of {app} are online"), async || {
        let all = api.get("/api/v1/executors").await.expect(200);
        let executors: Vec<Value> = all["items"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(|executor| executor["app"] == app && executor["status"] == "online")
            .cloned()
            .collect();
        if executors.len() == count { Ok(executors) } else { Err(executors) }
    })
    .await
}

async fn start(api: &Api, job: &str, params: Value) -> String {
    let run = api.post(&format!("/api/v1/jobs/{job}/runs"), json!({"params": params})).await.expect(201);
    run["id"].as_str().map_or_else(|| run["id"].to_string(), str::to_owned)
}

async fn run_of(api: &Api, run: &str) -> Value {
    api.get(&format!("/api/v1/runs/{run}")).await.expect(200)
}

/// Waits until the run has this status, and returns the run.
async fn wait_for_status(api: &Api, run: &str, status: &str) -> Value {
    wait_until(LIMIT, &format!("run {run} is {status}"), async || {
        let current_run = run_of(api, run).await;
        if current_run["status"] == status { Ok(current_run) } else { Err(current_run) }
    })
    .await
}

async fn log_of(api: &Api, run: &str) -> String {
    let page = api.get(&format!("/api/v1/runs/{run}/logs?limit=1000")).await.expect(200);
    let lines = page["items"].as_array().expect("a list").iter().filter_map(|line| line["line"].as_str());
    lines.collect::<Vec<_>>().join("\n")
}

async fn wait_for_log(api: &Api, run: &str, text: &str) {
    wait_until(LIMIT, &format!("the log of {run} has {text:?}"), async || {
        let log = log_of(api, run).await;
        if log.contains(text) { Ok(()) } else { Err(log) }
    })
    .await;
}

/// Each dialect, in its own app: results, failures with retries, parameters, scripts, logs, a broadcast.
async fn executors_of_every_dialect_run_jobs(db: ScratchDb) {
    let server = server(&db, &[]).await;
    let api = server.api();
    for dialect in DIALECTS {
        let app = format!("{dialect:?}").to_lowercase();
        let job_name = |name: &str| format!("{app}-{name}");
        job(&api, (&job_name("echo"), &app, "echo"), json!({"timeout": "90s"})).await;
        job(&api, (&job_name("fail"), &app, "fail"), json!({"retry": {"max": 1, "backoff": "1s"}})).await;
        job(&api, (&job_name("late"), &app, "late"), json!({})).await;
        job(&api, (&job_name("none"), &app, "nosuch"), json!({})).await;
        job(&api, (&job_name("shell"), &app, "GLUE_SHELL"), json!({"overrides": "all"})).await;
        job(&api, (&job_name("all"), &app, "echo"), json!({"route": "broadcast"})).await;
        let token = token(&api, &app).await;
        let executor = StandIn::start(dialect, server.url(), (&app, &token)).await;
        executor.register().await;
        executor.register().await;
        let listed = online(&api, &app, 1).await;
        assert!(listed[0]["name"].as_str().is_some_and(|name| name.contains("127.0.0.1")), "{listed:?}");
        let handlers = api.get(&format!("/api/v1/apps/{app}/handlers")).await.expect(200);
        assert_eq!(handlers["items"][0]["name"], "*", "it announces none: {handlers}");

        let run = start(&api, &job_name("echo"), json!("hello \"you\" 你好")).await;
        let ended_run = wait_for_status(&api, &run, "succeeded").await;
        assert_eq!(ended_run["message"], "hello \"you\" 你好 0/1", "{ended_run:#}");
        wait_for_log(&api, &run, "echo of hello \"you\" 你好\ndone").await;
        let request = executor.wait_for("run", 1).await[0].clone();
        let fields: BTreeSet<&str> = request.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(fields.len(), 12, "{request}");
        assert_eq!(
            (&request["executorTimeout"], &request["executorBlockStrategy"]),
            (&json!(90), &json!("SERIAL_EXECUTION"))
        );
        assert!(
            request["logId"].as_i64().is_some_and(|id| (1_000_000_000..i64::from(i32::MAX)).contains(&id)),
            "{request}"
        );
        assert!(
            request["jobId"].as_i64().is_some_and(|id| (1_000_000_000..i64::from(i32::MAX)).contains(&id)),
            "{request}"
        );

        let failed = start(&api, &job_name("fail"), Value::Null).await;
        let ended_run = wait_for_status(&api, &failed, "failed").await;
        assert_eq!(
            (&ended_run["message"], &ended_run["attempt"]),
            (&json!("asked to fail"), &json!(2)),
            "{ended_run:#}"
        );
        wait_for_log(&api, &failed, "at Demo.java:7").await;
        let sent = executor.calls("run");
        let ids: BTreeSet<i64> = sent.iter().filter_map(|call| call["logId"].as_i64()).collect();
        assert_eq!(ids.len(), sent.len(), "no log id is sent twice: {sent:?}");

        let late = start(&api, &job_name("late"), Value::Null).await;
        wait_for_status(&api, &late, "timed_out").await;
        let none = start(&api, &job_name("none"), Value::Null).await;
        let ended_run = wait_for_status(&api, &none, "failed").await;
        assert_eq!(ended_run["message"], "job handler [nosuch] not found.", "{ended_run:#}");
        let shell = start(&api, &job_name("shell"), json!({"source": "echo 1\n", "param": "p"})).await;
        let ended_run = wait_for_status(&api, &shell, "succeeded").await;
        assert_eq!(ended_run["message"], "echo 1 p", "{ended_run:#}");
        let answer = api.post(&format!("/api/v1/jobs/{}/runs", job_name("shell")), json!({"params": "echo 1"})).await;
        let refusal = answer.expect(422);
        let message = refusal["errors"][0]["message"].as_str();
        assert!(message.is_some_and(|text| text.starts_with("GLUE_SHELL needs")), "{refusal:#}");

        let second_executor = StandIn::start(dialect, server.url(), (&app, &token)).await;
        second_executor.register().await;
        online(&api, &app, 2).await;
        let before = (executor.calls("run").len(), second_executor.calls("run").len());
        let all = start(&api, &job_name("all"), json!("x")).await;
        wait_for_status(&api, &all, "succeeded").await;
        let shards: BTreeSet<(i64, i64)> = [(&executor, before.0), (&second_executor, before.1)]
            .into_iter()
            .flat_map(|(executor, before)| executor.calls("run").into_iter().skip(before))
            .filter_map(|call| Some((call["broadcastIndex"].as_i64()?, call["broadcastTotal"].as_i64()?)))
            .collect();
        assert_eq!(shards, BTreeSet::from([(0, 2), (1, 2)]));
        second_executor.sign_off().await;
        online(&api, &app, 1).await;
    }
}
on_each_database!(executors_of_every_dialect_run_jobs);

/// A cancel calls the executor's `/kill`. It prevails over a callback that arrives during this call.
#[tokio::test]
async fn a_run_is_killed() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db, &[]).await;
    let api = server.api();
    job(&api, ("sleep", "demo", "sleep"), json!({})).await;
    let token = token(&api, "demo").await;
    let executor = StandIn::start(Dialect::Core34, server.url(), ("demo", &token)).await;
    executor.register().await;
    online(&api, "demo", 1).await;
    let run = start(&api, "sleep", Value::Null).await;
    let sent = executor.wait_for("run", 1).await[0].clone();
    wait_for_status(&api, &run, "running").await;
    wait_for_log(&api, &run, "sleeping").await;
    api.post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await;
    let killed = executor.wait_for("kill", 1).await[0].clone();
    assert_eq!(killed["jobId"], sent["jobId"]);
    let ended_run = wait_for_status(&api, &run, "cancelled").await;
    assert_eq!(ended_run["attempt"], 1, "{ended_run:#}");
    // The executor no longer has the run, so the next one starts.
    let next = start(&api, "sleep", Value::Null).await;
    let sent = executor.wait_for("run", 2).await[1].clone();
    executor.finish(sent["logId"].as_i64().expect("a log id"), 200, "good").await;
    wait_for_status(&api, &next, "succeeded").await;
}

/// A log that cannot be read at the end of its run is read again.
#[tokio::test]
async fn the_rest_of_a_log_is_read_again() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db, &[]).await;
    let api = server.api();
    job(&api, ("echo", "demo", "echo"), json!({})).await;
    let token = token(&api, "demo").await;
    let executor = StandIn::start(Dialect::Core34, server.url(), ("demo", &token)).await;
    executor.register().await;
    online(&api, "demo", 1).await;
    executor.break_logs(true);
    let run = start(&api, "echo", json!("x")).await;
    wait_for_status(&api, &run, "succeeded").await;
    executor.wait_for("log", 2).await;
    executor.break_logs(false);
    wait_for_log(&api, &run, "echo of x\ndone").await;
}

/// A result is not lost if its server dies and its callback reaches the next server, and no run is sent twice.
async fn a_result_outlives_the_server(db: ScratchDb) {
    let mut server = server(&db, &[]).await;
    let api = server.api();
    let once = json!({"delivery": "at_most_once"});
    job(&api, ("sleep", "demo", "sleep"), once).await;
    job(&api, ("second", "demo", "sleep"), json!({})).await;
    let token = token(&api, "demo").await;
    let executor = StandIn::start(Dialect::Core23, server.url(), ("demo", &token)).await;
    executor.register().await;
    online(&api, "demo", 1).await;
    let run = start(&api, "sleep", Value::Null).await;
    let second = start(&api, "second", Value::Null).await;
    let sent = executor.wait_for("run", 2).await;
    let log_id = |call: &Value| call["logId"].as_i64().expect("a log id");
    wait_for_status(&api, &run, "running").await;
    wait_for_status(&api, &second, "running").await;
    server.kill().await;
    // The run ends while no server runs: the executor repeats the callback until one does.
    tokio::join!(executor.finish(log_id(&sent[0]), 200, "good"), server.restart());
    executor.finish(log_id(&sent[1]), 500, "bad").await;
    let api = server.api();
    let (job_one, job_two) = (wait_for_end(&api, &run).await, wait_for_end(&api, &second).await);
    let mut verdicts = [&job_one, &job_two].map(|run| run["status"].as_str().unwrap_or_default().to_owned());
    verdicts.sort();
    assert_eq!(verdicts, ["failed", "succeeded"], "{job_one:#} {job_two:#}");
    assert_eq!(executor.calls("run").len(), 2, "nothing is sent twice");
    // Repeated and unknown callbacks are answered like any other.
    for log_id in [log_id(&sent[0]), 7] {
        let answer = executor.call("callback", json!([{"logId": log_id, "handleCode": 500}])).await;
        assert_eq!(answer["code"], 200, "{answer}");
    }
    assert_eq!(run_of(&api, &run).await["status"], job_one["status"]);
}
on_each_database!(a_result_outlives_the_server);

/// While no server runs, an executor cannot register. The next server gives an executor with a run the time for a new
/// registration, and the run continues.
async fn a_run_goes_on_after_an_outage_in_which_its_executor_could_not_register(db: ScratchDb) {
    let patience = ["--heartbeat", "1s", "--silence", "3s", "--lost-after", "13s", "--continue-max", "40s"];
    let mut server = server(&db, &patience).await;
    let api = server.api();
    job(&api, ("sleep", "demo", "sleep"), json!({})).await;
    let token = token(&api, "demo").await;
    let executor = StandIn::start(Dialect::Core34, server.url(), ("demo", &token)).await;
    executor.register().await;
    online(&api, "demo", 1).await;
    let run = start(&api, "sleep", Value::Null).await;
    let sent = executor.wait_for("run", 1).await[0].clone();
    wait_for_status(&api, &run, "running").await;
    server.kill().await;
    db.sql("UPDATE xxl_executor SET last_seen_at_ms = last_seen_at_ms - 300000");
    server.restart().await;
    // Longer than the server waits for executors that it does not hear.
    tokio::time::sleep(Duration::from_secs(18)).await;
    let api = server.api();
    let current_run = run_of(&api, &run).await;
    assert_eq!((&current_run["status"], &current_run["attempt"]), (&json!("running"), &json!(1)), "{current_run:#}");
    executor.register().await;
    executor.finish(sent["logId"].as_i64().expect("a log id"), 200, "good").await;
    let ended_run = wait_for_status(&api, &run, "succeeded").await;
    assert_eq!(ended_run["attempt"], 1, "{ended_run:#}");
    assert_eq!(executor.calls("run").len(), 1, "it is not sent again");
}
on_each_database!(a_run_goes_on_after_an_outage_in_which_its_executor_could_not_register);

async fn wait_for_end(api: &Api, run: &str) -> Value {
    wait_until(LIMIT, &format!("run {run} ends"), async || {
        let current_run = run_of(api, run).await;
        let is_over = matches!(
            current_run["status"].as_str(),
            Some("succeeded" | "failed" | "unknown" | "cancelled" | "timed_out")
        );
        if is_over { Ok(current_run) } else { Err(current_run) }
    })
    .await
}

/// An executor never calls back, an answer cannot be parsed, and a connection breaks in the middle of an answer.
#[tokio::test]
async fn a_run_without_a_callback_ends_as_unknown() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db, &["--xxl-callback-timeout", "2s"]).await;
    let api = server.api();
    for handler in ["mute", "garbled", "broken"] {
        job(&api, (handler, "demo", handler), json!({})).await;
    }
    let token = token(&api, "demo").await;
    let executor = StandIn::start(Dialect::Core34, server.url(), ("demo", &token)).await;
    executor.register().await;
    online(&api, "demo", 1).await;
    let mute = start(&api, "mute", Value::Null).await;
    let (garbled, broken) = (start(&api, "garbled", json!("g")).await, start(&api, "broken", json!("b")).await);
    assert_eq!(wait_for_status(&api, &garbled, "succeeded").await["message"], "g");
    assert_eq!(wait_for_status(&api, &broken, "succeeded").await["message"], "b");
    let ended_run = wait_for_status(&api, &mute, "unknown").await;
    let words = ended_run["message"].as_str().unwrap_or_default();
    assert!(words.contains("no longer has the run, and sent no callback for 2 s"), "{ended_run:#}");
    assert_eq!(executor.calls("run").len(), 3, "nothing is sent twice");
    // A callback that comes late is the verdict.
    let sent = executor.calls("run").into_iter().find(|call| call["executorHandler"] == "mute").expect("it was sent");
    executor.finish(sent["logId"].as_i64().expect("a log id"), 200, "at last").await;
    wait_for_status(&api, &mute, "succeeded").await;
}

/// The server does not wait for an executor that died: runs go to the other one, and also to this one once it is back.
#[tokio::test]
async fn runs_go_past_an_executor_that_died() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db, &[]).await;
    let api = server.api();
    job(&api, ("echo", "demo", "echo"), json!({"route": "round"})).await;
    let token = token(&api, "demo").await;
    let executor = StandIn::start(Dialect::Go, server.url(), ("demo", &token)).await;
    let second_executor = StandIn::start(Dialect::Core34, server.url(), ("demo", &token)).await;
    executor.register().await;
    second_executor.register().await;
    online(&api, "demo", 2).await;
    let port = second_executor.port();
    second_executor.die().await;
    let held = hold_port(port);
    for _ in 0..4 {
        let run = start(&api, "echo", json!("x")).await;
        let ended_run = wait_for_status(&api, &run, "succeeded").await;
        assert_eq!(ended_run["attempt"], 1, "it was never sent to the other one: {ended_run:#}");
    }
    assert_eq!(executor.calls("run").len(), 4);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("its port");
    drop(held);
    let second_executor = StandIn::start_at(listener, Dialect::Core34, server.url(), ("demo", &token));
    wait_until(LIMIT, "it gets runs again", async || {
        let run = start(&api, "echo", json!("x")).await;
        wait_for_status(&api, &run, "succeeded").await;
        if second_executor.calls("run").is_empty() { Err(second_executor.calls("beat").len()) } else { Ok(()) }
    })
    .await;
}

/// Invalid calls are answered as executors expect, and change nothing.
#[tokio::test]
async fn bad_calls_are_refused_in_words() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = server(&db, &["--xxl-prefix", "/scheduler"]).await;
    let api = server.api();
    job(&api, ("echo", "demo", "echo"), json!({})).await;
    job(&api, ("other", "other", "sleep"), json!({})).await;
    let (own_token, other_token) = (token(&api, "demo").await, token(&api, "other").await);
    let anonymous = Api::anonymous(server.url());
    let admin = std::fs::read_to_string(server.token_file()).expect("the server wrote its token");
    let grants = json!([{"role": "executor", "namespace": "default", "app": "demo"}]);
    let gateway = json!({"kind": "executor", "name": "gateway", "grants": grants});
    let gateway = api.post("/api/v1/tokens", gateway).await.expect(201)["token"].clone();
    let gateway = gateway.as_str().expect("a secret");
    let registration =
        |app: &str, address: &str| json!({"registryGroup": "EXECUTOR", "registryKey": app, "registryValue": address});
    let valid_registration = registration("demo", "http://127.0.0.1:9/");
    let send_call = async |method: rondel_tests::Method, (path, token): (&str, Option<&str>), body: String| {
        let mut request = anonymous.request(method, path).header("content-type", "application/json").body(body);
        if let Some(token) = token {
            request = request.header("XXL-JOB-ACCESS-TOKEN", token);
        }
        anonymous.answer(request).await
    };
    let post = rondel_tests::Method::POST;
    for (path, token, body, words) in [
        ("registry", None, valid_registration.to_string(), "The access token is wrong."),
        ("registry", Some("default_token"), valid_registration.to_string(), "The access token is wrong."),
        ("registry", Some(admin.trim()), valid_registration.to_string(), "The access token is wrong."),
        (
            "registry",
            Some(gateway),
            valid_registration.to_string(),
            "It is of kind executor: create one with rondel token create --kind xxl",
        ),
        ("registry", Some(own_token.as_str()), String::new(), "requestBody empty"),
        ("registry", Some(&own_token), "{".to_owned(), "the body is not JSON"),
        (
            "registry",
            Some(&own_token),
            registration("other", "http://127.0.0.1:9/").to_string(),
            "registryKey: \"other\" is not the app",
        ),
        (
            "registry",
            Some(&own_token),
            registration("demo", "http://10.0.0.5:9999/").to_string(),
            "10.0.0.5 is a private address",
        ),
        (
            "registry",
            Some(&own_token),
            registration("demo", "http://1.1.1.1/").to_string(),
            "which the setting xxl_networks does not name",
        ),
        ("registry", Some(&own_token), registration("demo", "http://169.254.169.254/").to_string(), "metadata address"),
        ("registry", Some(&own_token), registration("demo", "file:///etc/passwd").to_string(), "registryValue: "),
        ("registry", Some(&own_token), json!({"registryGroup": "EXECUTOR"}).to_string(), "Illegal Argument."),
        ("callback", Some(&own_token), "{}".to_owned(), "callbackList"),
        ("callback", Some(&own_token), r#"[{"logId":"x"}]"#.to_owned(), "callback 0: logId is not a number"),
        ("nosuch", Some(&own_token), valid_registration.to_string(), "uri-mapping(nosuch) not found"),
    ] {
        for prefix in ["/xxl-job-admin/api", "/scheduler/api"] {
            let answer = send_call(post.clone(), (&format!("{prefix}/{path}"), token), body.clone()).await.expect(200);
            let message = answer["msg"].as_str().unwrap_or_default();
            assert!(answer["code"] == 500 && message.contains(words), "{path} {words}: {answer}");
        }
    }
    let address = server.url().trim_start_matches("http://");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("the server listens");
    let head = format!(
        "POST /xxl-job-admin/api/callback HTTP/1.1\r\nHost: a\r\nxxl-job-access-token: {own_token}\r\nContent-Length: 1073741824\r\n\r\n["
    );
    stream.write_all(head.as_bytes()).await.expect("the head is sent");
    let mut refusal = vec![0; 4096];
    let len = stream.read(&mut refusal).await.expect("an answer");
    let refusal = String::from_utf8_lossy(&refusal[..len]).into_owned();
    assert!(refusal.contains("the body has more than 16384 KiB"), "1 GB is refused before it is read: {refusal}");
    for path in ["/xxl-job-admin/jobinfo/trigger", "/scheduler/jobinfo/trigger"] {
        let answer = send_call(post.clone(), (path, Some(&own_token)), String::new()).await.expect(410);
        assert!(answer["msg"].as_str().is_some_and(|text| text.contains("POST /api/v1/jobs/{name}/runs")), "{answer}");
    }
    let answer =
        send_call(rondel_tests::Method::GET, ("/xxl-job-admin/api/registry", Some(&own_token)), String::new()).await;
    assert!(answer.expect(200)["msg"].as_str().is_some_and(|text| text.contains("HttpMethod not support")));
    assert!(online(&api, "demo", 0).await.is_empty());

    // Another app's callback ends no run.
    let executor = StandIn::start(Dialect::Core34, server.url(), ("other", &other_token)).await;
    executor.register().await;
    online(&api, "other", 1).await;
    let run = start(&api, "other", Value::Null).await;
    let log_id = executor.wait_for("run", 1).await[0]["logId"].as_i64().expect("a log id");
    let callback = json!([{"logId": log_id, "handleCode": 500}]).to_string();
    let answer = send_call(post, ("/api/callback", Some(&own_token)), callback).await.expect(200);
    assert_eq!(answer["code"], 200, "{answer}");
    executor.finish(log_id, 200, "good").await;
    wait_for_status(&api, &run, "succeeded").await;
    assert!(executor.address().starts_with("http://127.0.0.1") && executor.name_part().starts_with("127.0.0.1-"));
}

/// Without networks, executors of XXL-JOB are not served: their paths are answered like any unknown path.
#[tokio::test]
async fn the_endpoints_are_off_unless_networks_are_named() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let server = Server::start(&db).await;
    let anonymous = Api::anonymous(server.url());
    anonymous.post("/xxl-job-admin/api/registry", json!({})).await.expect(404);
    anonymous.post("/api/registry", json!({})).await.expect(401);
}
