//! Jobs that code declares: an executor registers them when it starts, a redeploy changes them, and edits of users
//! are kept.

use std::time::Duration;

use rondel::{Builder, Declaration, Executor, ExecutorError, JobHandler};
use rondel_tests::{Api, ScratchDb, Server, wait_until};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::on_each_database;

const LIMIT: Duration = Duration::from_secs(20);
/// A set of declarations is valid for 30 s after its last executor.
const GONE_LIMIT: Duration = Duration::from_secs(60);

/// A job in the code of the app.
struct DeclaredJob(Declaration);

impl rondel::Job for DeclaredJob {
    fn declaration(&self) -> Declaration {
        self.0.clone()
    }

    fn handler(&self) -> JobHandler {
        JobHandler::of(|| async {})
    }
}

/// A deployed build.
struct Build {
    stop: oneshot::Sender<()>,
    task: JoinSet<Result<(), ExecutorError>>,
}

impl Build {
    fn start(server: &Server, name: &str, jobs: &[Declaration]) -> Self {
        let mut builder: Builder =
            Executor::builder("billing").server(server.url()).token_file(server.token_file()).name(name);
        for job in jobs {
            builder = builder.job(DeclaredJob(job.clone()));
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let mut task = JoinSet::new();
        task.spawn(builder.run_until(stopped));
        Self { stop, task }
    }

    async fn stop(mut self) {
        drop(self.stop);
        self.task.join_next().await.expect("one task").expect("no panic").expect("no error");
    }
}

fn close(cron: &str) -> Declaration {
    Declaration::new("close").cron(cron)
}

async fn until(api: &Api, description: &str, limit: Duration, holds: impl Fn(&Value) -> bool) -> Value {
    let name = description.split(' ').next().unwrap_or_default().to_owned();
    wait_until(limit, description, async || {
        let job = api.get(&format!("/api/v1/jobs/{name}")).await.body;
        if holds(&job) { Ok(job) } else { Err(job) }
    })
    .await
}

async fn declared_jobs_follow_the_code_until_a_user_edits_them(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let (early, late) = ("0 0 2 * * ?", "0 0 4 * * ?");
    let mail = Declaration::new("mail").every("1h");
    // A refused declaration does not affect the others. The name `taken` belongs to another app.
    api.post("/api/v1/jobs", json!({"name": "taken", "app": "other", "handler": "h"})).await.expect(201);
    let first = Build::start(&server, "one", &[mail.clone(), Declaration::new("taken"), close(early)]);
    let job = until(&api, "close is there", LIMIT, |job| job["declared"].is_object()).await;
    assert_eq!((&job["app"], &job["schedule"]["cron"]), (&json!("billing"), &json!(early)));
    assert_eq!((&job["declared"]["drift"], &job["declared"]["undeclared_at"]), (&json!([]), &json!(null)));
    until(&api, "mail is there", LIMIT, |job| job["declared"].is_object()).await;
    assert_eq!(api.get("/api/v1/jobs/taken").await.expect(200)["app"], "other");
    let problems = wait_until(LIMIT, "the problem is listed", async || {
        let problems = api.get("/api/v1/apps/billing/declaration-problems").await.expect(200)["items"].clone();
        if problems.as_array().is_some_and(|all| !all.is_empty()) { Ok(problems) } else { Err(problems) }
    })
    .await;
    assert_eq!((&problems[0]["job"], problems.as_array().map(Vec::len)), (&json!("taken"), Some(1)), "{problems:#}");

    // The next build changes one job and drops another, while the old build still runs: no flapping.
    let second = Build::start(&server, "two", &[close(late)]);
    let job = until(&api, "close has changed", LIMIT, |job| job["schedule"]["cron"] == late).await;
    let version = job["version"].clone();
    let audit = api.get("/api/v1/audit?action=job.change&object=close").await.expect(200);
    let entry = &audit["items"][0];
    assert_eq!((&entry["actor"], &entry["means"]), (&json!("code: billing"), &json!("executor")), "{audit:#}");
    assert_eq!((&entry["verdict"], &entry["after"]["changed"]), (&json!("allowed"), &json!(["schedule"])), "{audit:#}");
    let made = api.get("/api/v1/audit?action=job.create&object=mail").await.expect(200);
    assert_eq!(
        (&made["items"][0]["actor"], &made["items"][0]["after"]["version"]),
        (&json!("code: billing"), &json!(1))
    );
    first.stop().await;
    let again = Build::start(&server, "one", &[mail.clone(), close(early)]);
    until(&api, "mail is declared by the old build too", LIMIT, |job| job["declared"]["undeclared_at"].is_null()).await;
    wait_until(LIMIT, "the old build is connected again", async || {
        let executors = api.get("/api/v1/executors").await.expect(200);
        let online = |one: &Value| one["status"] == "online";
        let count = executors["items"].as_array().map_or(0, |all| all.iter().filter(|one| online(one)).count());
        if count == 2 { Ok(()) } else { Err(executors) }
    })
    .await;
    // Nothing must change, so there is no condition to wait for. This is longer than the server's period for comparing
    // declarations.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(api.get("/api/v1/jobs/close").await.expect(200)["version"], version, "it went back");
    again.stop().await;

    // The edits of users stay, also across a redeploy, and are shown.
    api.patch("/api/v1/jobs/close", json!({"timeout": "7m"})).await.expect(200);
    second.stop().await;
    let third = Build::start(&server, "three", &[close("0 0 5 * * ?")]);
    let job =
        until(&api, "close drifts", LIMIT, |job| job["declared"]["drift"] == json!(["schedule", "timeout"])).await;
    assert_eq!((&job["schedule"]["cron"], &job["timeout"]), (&json!(late), &json!("7m")));
    let renamed = api.patch("/api/v1/jobs/close", json!({"name": "other"})).await;
    assert_eq!((renamed.status, &renamed.body["errors"][0]["pointer"]), (422, &json!("/name")), "{}", renamed.body);

    let job = api.post("/api/v1/jobs/close/reset", json!({})).await.expect(200);
    assert_eq!((&job["schedule"]["cron"], &job["declared"]["drift"]), (&json!("0 0 5 * * ?"), &json!([])));
    assert_eq!(job["timeout"], json!(null));
    let refusal = api.post("/api/v1/jobs/taken/reset", json!({})).await;
    assert_eq!((refusal.status, &refusal.body["code"]), (409, &json!("job_not_declared")));

    // The other job is no longer declared: it stays active and is marked as such; declared again, it is not marked.
    let gone = |job: &Value| job["declared"]["undeclared_at"].is_string();
    let job = until(&api, "mail is not declared any more", GONE_LIMIT, gone).await;
    assert_eq!((&job["enabled"], &job["schedule"]["every"]), (&json!(true), &json!("1h")));
    let fourth = Build::start(&server, "four", &[mail, close("0 0 5 * * ?")]);
    until(&api, "mail is declared again", LIMIT, |job| job["declared"]["undeclared_at"].is_null()).await;
    third.stop().await;
    fourth.stop().await;
}
on_each_database!(declared_jobs_follow_the_code_until_a_user_edits_them);

/// A parent is saved before its children, in whichever order the code declares them.
async fn declared_parents_are_saved_before_their_children(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let jobs = [
        Declaration::new("report").after(["book", "check"]),
        Declaration::new("check").after(["book"]),
        Declaration::new("book").every("1h"),
    ];
    let build = Build::start(&server, "one", &jobs);
    for (name, parents) in [("report", json!(["book", "check"])), ("check", json!(["book"]))] {
        let job = until(&api, &format!("{name} is there"), LIMIT, |job| job["declared"].is_object()).await;
        assert_eq!(job["schedule"]["after"], parents, "{job:#}");
    }
    let problems = api.get("/api/v1/apps/billing/declaration-problems").await.expect(200);
    assert_eq!(problems["items"], json!([]));
    // The first fire of the interval may have ended before the children existed.
    api.post("/api/v1/jobs/book/runs", json!({})).await.expect(201);
    wait_until(LIMIT, "all three have run", async || {
        let runs = [api.runs("book").await, api.runs("check").await, api.runs("report").await];
        let is_done = |runs: &Vec<Value>| runs.iter().any(|run| run["status"] == "succeeded");
        if runs.iter().all(is_done) { Ok(()) } else { Err(runs) }
    })
    .await;
    build.stop().await;
}
on_each_database!(declared_parents_are_saved_before_their_children);
