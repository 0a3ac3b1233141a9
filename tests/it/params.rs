//! Parameters checked against the declarations of handlers, with executors that connect and disconnect.

use std::time::Duration;

use rondel::{Builder, Executor, ExecutorError, Params};
use rondel_tests::{Api, Backend, Server, rondel, scratch, wait_until};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::overrides::Browser;

const LIMIT: Duration = Duration::from_secs(20);
const HANDLERS: &str = "/api/v1/apps/billing/handlers";

#[derive(serde::Deserialize, rondel::schemars::JsonSchema)]
#[schemars(crate = "rondel::schemars")]
#[expect(dead_code, reason = "only its schema is looked at")]
struct Import {
    table: String,
    #[serde(default)]
    rows: u32,
}

/// The parameters of the handler in the next build.
#[derive(serde::Deserialize, rondel::schemars::JsonSchema)]
#[schemars(crate = "rondel::schemars")]
#[expect(dead_code, reason = "only its schema is looked at")]
struct ImportOf {
    source: String,
}

/// An executor that runs until it is stopped.
struct RunningExecutor {
    stop: oneshot::Sender<()>,
    task: JoinSet<Result<(), ExecutorError>>,
}

impl RunningExecutor {
    fn start(server: &Server, name: &str, build: impl FnOnce(Builder) -> Builder) -> Self {
        let builder = Executor::builder("billing").server(server.url()).token_file(server.token_file()).name(name);
        let (stop, stopped) = oneshot::channel::<()>();
        let mut task = JoinSet::new();
        task.spawn(build(builder).run_until(stopped));
        Self { stop, task }
    }

    async fn stop(mut self) {
        drop(self.stop);
        self.task.join_next().await.expect("one task").expect("no panic").expect("no error");
    }
}

fn with_old_params(builder: Builder) -> Builder {
    builder.handler("import", async |Params(_): Params<Import>| {}).handler("plain", async || {})
}

fn with_new_params(builder: Builder) -> Builder {
    builder.handler("import", async |Params(_): Params<ImportOf>| {})
}

/// Waits until this many executors have the handler `import`, and returns the handler.
async fn import(api: &Api, count: usize) -> Value {
    wait_until(LIMIT, "executors are online", async || {
        let items = api.get(HANDLERS).await.expect(200)["items"].clone();
        let found = items.as_array().and_then(|all| all.iter().find(|one| one["name"] == "import")).cloned();
        let has_all = |one: &Value| one["executors"].as_array().is_some_and(|all| all.len() == count);
        if found.as_ref().is_some_and(has_all) { Ok(found.unwrap_or_default()) } else { Err(items) }
    })
    .await
}

fn job(name: &str, change: &Value) -> Value {
    let mut job = json!({"name": name, "app": "billing", "handler": "import"});
    job.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
    job
}

/// A page of the console, for a user who signed in by a link.
async fn page(server: &Server, path: &str) -> String {
    Browser::sign_in(server, &server.api()).await.get(path).await
}

/// The pointers of a refusal, and the message for the first of them.
fn error_of(problem: &Value) -> (Vec<&str>, &str) {
    let errors = problem["errors"].as_array().expect("errors");
    let pointers = errors.iter().filter_map(|error| error["pointer"].as_str()).collect();
    (pointers, errors[0]["message"].as_str().expect("a sentence"))
}

#[tokio::test]
async fn parameters_that_do_not_fit_are_refused_before_the_run() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    // No executor is connected: the job is saved, with a warning.
    let early = api.post("/api/v1/jobs", job("early", &json!({"params": {"rows": "x"}}))).await.expect(201);
    assert_eq!(early["warnings"], json!(["no executor of app billing that is online has a handler import"]));
    assert_eq!(api.get(HANDLERS).await.expect(200)["items"], json!([]));
    assert_eq!(api.get("/api/v1/apps/nowhere/handlers").await.expect(404)["code"], "app_not_found");

    let one = RunningExecutor::start(&server, "one", with_old_params);
    let shown = import(&api, 1).await;
    assert_eq!(shown["executors"], json!(["one"]));
    assert_eq!(shown["params_schema"]["properties"]["table"]["type"], "string", "{shown:#}");

    // Wrong parameters in a definition are refused.
    let hourly = json!({"every": "1h"});
    for (change, pointers, words) in [
        (json!({"params": {"table": "t", "rows": -1}}), vec!["/params/rows"], "-1 is less than the minimum of 0"),
        (json!({"params": {"table": 7}}), vec!["/params/table"], "7 is not of type \"string\""),
        (json!({"schedule": hourly}), vec!["/params/table"], "is missing"),
        (json!({"params": []}), vec!["/params"], "[] is not of type \"object\""),
    ] {
        let refused = api.post("/api/v1/jobs", job("bad", &change)).await.expect(422);
        let (found, message) = error_of(&refused);
        assert!(found == pointers && message.contains(words), "{refused:#}");
    }
    assert_eq!(api.get("/api/v1/jobs/bad").await.status, 404, "something was saved");
    for (name, change) in [
        ("good", json!({"params": {"table": "t", "rows": 1}, "schedule": hourly})),
        ("declared-later", json!({})),
        ("secret", json!({"params": {"table": "{{secret.table}}", "rows": "{{secret.rows}}"}})),
        ("follower", json!({"params": {"table": "t", "parents": 1}, "schedule": {"after": ["good"]}})),
        ("plain", json!({"handler": "plain", "params": 7})),
    ] {
        assert_eq!(api.post("/api/v1/jobs", job(name, &change)).await.expect(201)["warnings"], json!([]), "{name}");
    }
    let edit = api.patch("/api/v1/jobs/good", json!({"params": {"rows": []}})).await.expect(422);
    assert_eq!(error_of(&edit).0, ["/params/rows"]);

    // Its page draws the fields, which work without a script.
    let page = page(&server, "/jobs/good").await;
    for field in [r#"name="param.text.table""#, r#"<input type="number" step="1" name="param.json.rows" value="1">"#] {
        assert!(page.contains(field), "{page}");
    }

    let form = self::page(&server, "/jobs/good/edit").await;
    for part in [r#"name="params_by" value="fields" checked"#, r#"name="param.text.table""#] {
        assert!(form.contains(part), "{part}: {form}");
    }
    assert!(self::page(&server, "/executors").await.contains("import"));

    // Wrong parameters of a run are refused.
    let refused = api.post("/api/v1/jobs/declared-later/runs", json!({"params": {"rows": 1}})).await.expect(422);
    assert_eq!(error_of(&refused).0, ["/params/table"]);
    assert!(api.runs("declared-later").await.is_empty());
    api.post("/api/v1/jobs/declared-later/runs", json!({"params": {"table": "t"}})).await.expect(201);

    // A job that was saved before its handler was declared can still be paused, and its other fields edited.
    api.post("/api/v1/jobs/early/pause", json!({})).await.expect(200);
    api.patch("/api/v1/jobs/early", json!({"description": "d"})).await.expect(200);

    // Two builds disagree: parameters are not checked until one of the two is gone.
    let two = RunningExecutor::start(&server, "two", with_new_params);
    assert_eq!(import(&api, 2).await["params_schema"], json!(null));
    api.post("/api/v1/jobs", job("between", &json!({"params": {"source": "s"}}))).await.expect(201);
    one.stop().await;
    assert!(import(&api, 1).await["params_schema"]["properties"]["source"].is_object());
    let refused = api.post("/api/v1/jobs", job("late", &json!({"params": {"table": "t"}}))).await.expect(422);
    assert_eq!(error_of(&refused).0, ["/params/source"]);
    let warned = api.post("/api/v1/jobs", job("gone", &json!({"handler": "plain"}))).await.expect(201);
    assert_eq!(warned["warnings"].as_array().map(Vec::len), Some(1), "{warned}");
    two.stop().await;
}

/// The refused form names an app that its sender may not edit, and whose handler declares its parameters.
#[tokio::test]
async fn the_audit_entry_of_a_refused_form_names_its_job() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    api.post("/api/v1/apps", json!({"name": "billing"})).await.expect(201);
    api.post("/api/v1/jobs", json!({"name": "own", "app": "mine", "handler": "h"})).await.expect(201);
    let executor = RunningExecutor::start(&server, "one", with_old_params);
    import(&api, 1).await;
    let grants = json!([{"role": "editor", "namespace": "default", "app": "mine"}]);
    let token = json!({"kind": "api", "name": "scoped", "grants": grants});
    let token = api.post("/api/v1/tokens", token).await.expect(201);
    let scoped = Api::new(server.url(), token["token"].as_str().expect("a secret"));
    let browser = Browser::sign_in(&server, &scoped).await;
    // A form without a version is a conflict.
    let form = "name=own&app=billing&handler=import&kind=none&retry_max=0&retry_backoff=10s";
    let (status, _, page) = browser.post("/n/default/jobs/own/edit", form).await;
    assert_eq!(status, 409);
    assert!(page.contains("value=\"billing\"") && !page.contains("param.text.table"), "{page}");
    let log = api.get("/api/v1/audit?action=job.change&limit=1").await.expect(200);
    let entry = &log["items"][0];
    assert_eq!((&entry["object"], &entry["verdict"]), (&json!("own"), &json!("failed")), "{log:#}");
    executor.stop().await;
}

#[tokio::test]
async fn the_command_line_shows_handlers_and_warns() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    server.api().post("/api/v1/apps", json!({"name": "billing"})).await.expect(201);
    let one = RunningExecutor::start(&server, "one", with_old_params);
    import(&server.api(), 1).await;
    let token = server.token_file().display().to_string();
    let run = async |args: &[&str]| {
        let place = ["--server", server.url(), "--token-file", &token];
        rondel(&[&args[..1], &place, &args[1..]].concat(), &[]).await
    };
    let shown = run(&["app", "handlers", "billing"]).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = shown.stdout.lines().map(words).collect();
    assert_eq!(lines[1..], [words("import 1 table [rows]"), words("plain 1")], "{shown:?}");

    let warned = run(&["job", "create", "--name", "j", "--app", "billing", "--handler", "nobodys"]).await;
    let warning = "warning: no executor of app billing that is online has a handler nobodys";
    assert!(warned.code == Some(0) && warned.stderr.contains(warning), "{warned:?}");
    let refused =
        ["job", "create", "--name", "k", "--app", "billing", "--handler", "import", "--params", "{\"table\":1}"];
    let refused = run(&refused).await;
    assert!(refused.code == Some(2) && refused.stderr.contains("/params/table: 1 is not of type"), "{refused:?}");
    one.stop().await;
}
