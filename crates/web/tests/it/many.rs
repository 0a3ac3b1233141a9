//! More jobs and runs than one request or one filter can handle.

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::jobs::{self, RunRequest};
use rondel_core::alert::{Subject, SubjectKind};
use rondel_core::outcome::Outcome;
use rondel_core::run::RunJob;
use rondel_core::{NamespaceId, Run, RunId, RunStatus, Trigger};
use rondel_store::catalog::JobRecord;
use rondel_store::{MemStore, Result, Store};
use rondel_web::WebConfig;
use serde_json::{Value, json};

use crate::alerts::{create_failed_run_rule, firing_incident, write};
use crate::harness::{Server, clock};
use crate::visitor::Visitor;

const FAILED: Outcome = Outcome::Failed { retryable: false };
/// One more than a request can change.
const EXCESSIVE_COUNT: usize = 501;

async fn make_job(server: &Server, name: &str) -> JobRecord {
    let spec = serde_json::from_value(json!({"name": name, "app": "app", "handler": "h"})).unwrap();
    jobs::create(&server.engine, NamespaceId::new(1), spec, "test").await.unwrap()
}

async fn make_jobs(server: &Server, count: usize) {
    for number in 0..count {
        make_job(server, &format!("test-{number:03}")).await;
    }
}

async fn bulk(server: &Server, of: &str, body: &Value) -> Value {
    server.with_body("POST", &format!("/api/v1/{of}:bulk"), body).await.expect(200)
}

#[tokio::test]
async fn a_retry_of_many_runs_goes_on_with_the_rest() {
    let server = Server::start().await;
    let record = make_job(&server, "a").await;
    let mut oldest = None;
    for _ in 0..EXCESSIVE_COUNT {
        let run = jobs::request_run(&server.engine, &record, RunRequest::by(Trigger::Api)).await.unwrap();
        server.finish(run.id, FAILED).await;
        oldest.get_or_insert(run.id);
    }
    let retry = |after: &Value| json!({"action": "retry", "q": "status:failed", "after": after});
    let first = bulk(&server, "runs", &retry(&Value::Null)).await;
    assert_eq!((&first["done"], &first["has_more"]), (&json!(500), &json!(true)));
    let rest = bulk(&server, "runs", &retry(&first["after"])).await;
    assert_eq!((&rest["done"], &rest["has_more"], &rest["after"]), (&json!(1), &json!(false), &Value::Null));
    let created = server.get(&format!("/api/v1/runs/{}", rest["made"][0].as_str().unwrap())).await.expect(200);
    assert_eq!(created["parent"], oldest.unwrap().to_string());
    let with_ids = json!({"action": "retry", "ids": [], "after": first["after"]});
    server.with_body("POST", "/api/v1/runs:bulk", with_ids).await.expect(422);

    let visitor = Visitor::signed_in(&server).await;
    let after = first["after"].as_str().unwrap();
    let asked = visitor.post("/runs:bulk", "do=retry&scope=all&q=status:failed&back=/runs").await.text();
    assert!(asked.contains("Run 500 runs again?"), "{asked}");
    let done = visitor.post("/runs:bulk", "do=retry&scope=all&q=status:failed&back=/runs&expected=500").await.text();
    let next = format!("name=\"after\" value=\"{after}\"");
    assert!(done.contains(&next) && done.contains("Continue with the rest"), "{done}");
    let rest = format!("do=retry&scope=all&q=status:failed&back=/runs&after={after}");
    let rest = visitor.post("/runs:bulk", &rest).await.text();
    assert!(rest.contains("Run 1 run again?") && rest.contains(&next), "{rest}");
}

/// Stores a run that began half a minute late.
async fn add_late_run(server: &Server, job: &JobRecord) {
    let (id, now, token) = (server.engine.new_id(), server.engine.now(), server.engine.token());
    let run_job = RunJob { namespace: job.namespace, job: job.id, job_version: job.version, app: job.app };
    let planned_at = now - Duration::from_secs(60);
    let run = Run::new(RunId::new(id), run_job, planned_at, Trigger::Api, (token.node, token.epoch));
    let (status, started_at) = (RunStatus::Succeeded, Some(now - Duration::from_secs(30)));
    let run = Run { cause: id, status, started_at, finished_at: Some(now), ..run };
    server.engine.store().request_run(token, run).await.unwrap();
}

#[tokio::test]
async fn a_late_job_is_found_although_another_has_a_thousand_newer_late_runs() {
    let server = Server::start().await;
    let (rare, frequent) = (make_job(&server, "rare").await, make_job(&server, "frequent").await);
    make_job(&server, "prompt").await;
    add_late_run(&server, &rare).await;
    for _ in 0..1_000 {
        add_late_run(&server, &frequent).await;
    }
    let found = server.get("/api/v1/jobs?q=is:late").await.expect(200);
    let names: Vec<&str> = found["items"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["frequent", "rare"]);
}

#[tokio::test]
async fn a_change_of_many_jobs_reaches_them_all() {
    let server = Server::start().await;
    make_jobs(&server, EXCESSIVE_COUNT).await;
    let pause = json!({"action": "pause", "q": "job:test-*"});
    let first = bulk(&server, "jobs", &pause).await;
    assert_eq!((first["jobs"].as_array().unwrap().len(), &first["has_more"]), (500, &json!(true)));
    assert_eq!(first["after"], "test-499");
    let again = bulk(&server, "jobs", &pause).await;
    assert_eq!((&again["jobs"], &again["has_more"]), (&json!(["test-500"]), &json!(false)));
    let run = |after: &Value| json!({"action": "run", "q": "job:test-*", "dry_run": true, "after": after});
    let first = bulk(&server, "jobs", &run(&Value::Null)).await;
    assert_eq!((&first["matched"], &first["after"]), (&json!(500), &json!("test-499")));
    let rest = bulk(&server, "jobs", &run(&first["after"])).await;
    assert_eq!((&rest["jobs"], &rest["has_more"], &rest["after"]), (&json!(["test-500"]), &json!(false), &Value::Null));

    let visitor = Visitor::signed_in(&server).await;
    let done = visitor.post("/jobs:bulk", "do=resume&scope=all&q=job:test-*&back=/jobs&expected=500").await.text();
    assert!(done.contains("name=\"after\" value=\"test-499\""), "{done}");
    let rest = visitor.post("/jobs:bulk", "do=resume&scope=all&q=job:test-*&back=/jobs&after=test-499").await.text();
    assert!(rest.contains("Resume 1 job?"), "{rest}");
}

/// A store that takes long to store a requested run.
#[derive(Debug)]
struct SlowRunStore {
    inner: MemStore,
    delay: Duration,
}

impl SlowRunStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "request_run" {
            tokio::time::sleep(self.delay).await;
        }
        effect.await
    }
}

rondel_store::delegate_store!(SlowRunStore);

async fn slow_server(delay: Duration) -> Server {
    let store = Arc::new(SlowRunStore { inner: MemStore::new(Arc::new(clock)), delay });
    let config = WebConfig { request_timeout: Duration::from_secs(9), ..WebConfig::default() };
    Server::start_on(store as Arc<dyn Store>, config).await
}

/// The server stops early: at the timeout, the request would be cut off without an answer about what it has done.
#[tokio::test]
async fn a_slow_change_of_many_jobs_names_those_that_it_did_not_reach() {
    let server = slow_server(Duration::from_secs(1)).await;
    make_jobs(&server, 80).await;
    let done = bulk(&server, "jobs", &json!({"action": "run", "q": "job:test-*"})).await;
    let (created_count, problems) = (done["runs"].as_array().unwrap().len(), done["problems"].as_array().unwrap());
    assert!(created_count >= 8 && !problems.is_empty() && created_count + problems.len() == 80, "{done}");
    assert!(problems.iter().all(|problem| problem["code"] == "timed_out"), "{done}");
    let runs = server.get("/api/v1/runs?limit=200").await.expect(200);
    assert_eq!(runs["items"].as_array().unwrap().len(), created_count, "{runs}");
}

/// A single job can take longer than the timeout of the request.
#[tokio::test]
async fn a_change_of_many_jobs_that_gets_no_answer_names_them() {
    let server = slow_server(Duration::from_secs(60)).await;
    make_jobs(&server, 9).await;
    let done = bulk(&server, "jobs", &json!({"action": "run", "q": "job:test-*"})).await;
    let problems = done["problems"].as_array().unwrap();
    assert!(problems.len() == 9 && problems.iter().all(|problem| problem["code"] == "timed_out"), "{done}");
    assert!(problems[0]["message"].as_str().unwrap().contains("may have taken effect"), "{done}");
    assert!(problems[8]["message"].as_str().unwrap().contains("nothing was done"), "{done}");
}

/// An action never applies to only a part of the jobs or runs that a request names.
#[tokio::test]
async fn an_action_on_too_many_names_is_refused() {
    let server = Server::start().await;
    make_job(&server, "test-000").await;
    let names: Vec<String> = (0..EXCESSIVE_COUNT).map(|number| format!("test-{number:03}")).collect();
    let refusal = server.with_body("POST", "/api/v1/jobs:bulk", json!({"action": "pause", "names": names})).await;
    assert_eq!(refusal.expect(422)["errors"][0]["pointer"], "/names");

    let visitor = Visitor::signed_in(&server).await;
    let jobs = format!("do=pause&back=/jobs&expected={EXCESSIVE_COUNT}&job={}", names.join("&job="));
    let page = visitor.post("/jobs:bulk", &jobs).await;
    assert_eq!(page.status, 422, "{}", page.text());
    assert!(page.text().contains("501 jobs; at most 500 at once"), "{}", page.text());
    assert_eq!(server.get("/api/v1/jobs/test-000").await.expect(200)["enabled"], true);
    let ids: Vec<String> = (1..=EXCESSIVE_COUNT).map(|id| id.to_string()).collect();
    let page = visitor.post("/runs:bulk", &format!("do=cancel&back=/runs&run={}", ids.join("&run="))).await;
    assert_eq!(page.status, 422, "{}", page.text());
    assert!(page.text().contains("501 runs; at most 500 at once"), "{}", page.text());
}

/// The parent comes before the job that follows it, both by name and in the request. A job that follows it from outside keeps it.
#[tokio::test]
async fn a_chain_of_jobs_is_deleted_with_one_request() {
    let server = Server::start().await;
    for (name, parent) in [("a", None), ("b", Some("a")), ("c", Some("b")), ("kept", None), ("outside", Some("kept"))] {
        let schedule = parent.map(|parent| json!({"after": [parent]}));
        let job = json!({"name": name, "app": "app", "handler": "h", "schedule": schedule});
        server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    }
    let names = ["a", "b", "c", "kept"];
    let done = bulk(&server, "jobs", &json!({"action": "delete", "names": names})).await;
    assert_eq!(done["jobs"], json!(["a", "b", "c"]), "{done}");
    assert_eq!((&done["problems"][0]["job"], &done["problems"][1]), (&json!("kept"), &Value::Null), "{done}");
}

/// A pattern must cover all jobs that match. Otherwise an action on all other jobs (`-job:…`) would include some of them.
#[tokio::test]
async fn a_filter_of_runs_knows_all_jobs_that_match() {
    let server = Server::start().await;
    make_jobs(&server, 520).await;
    make_job(&server, "other").await;
    for job in ["test-000", "test-519", "other"] {
        server.trigger(job).await;
    }
    for (q, count) in [("job:test-*", 2), ("-job:test-*", 1), ("test", 2), ("-test", 1)] {
        let found = server.get(&format!("/api/v1/runs?q={q}")).await.expect(200);
        assert_eq!(found["items"].as_array().unwrap().len(), count, "{q}: {found}");
    }
    let cancelled = bulk(&server, "runs", &json!({"action": "cancel", "q": "-job:test-*"})).await;
    assert_eq!(cancelled["done"], 1, "{cancelled}");
}

/// Otherwise an action on all jobs that are not failing would include some that are.
#[tokio::test]
async fn a_filter_knows_all_failing_jobs() {
    let server = Server::start().await;
    for number in 0..1_001 {
        let record = make_job(&server, &format!("test-{number:04}")).await;
        let run = jobs::request_run(&server.engine, &record, RunRequest::by(Trigger::Api)).await.unwrap();
        server.finish(run.id, FAILED).await;
    }
    make_job(&server, "other").await;
    server.count_runs().await;
    let found = server.get("/api/v1/jobs?q=-is:failing").await.expect(200);
    let names: Vec<_> = found["items"].as_array().unwrap().iter().map(|job| &job["name"]).collect();
    assert_eq!(names, [&json!("other")], "{found}");
}

/// The pages show 100 open incidents. That must not look like the number of all.
#[tokio::test]
async fn a_page_states_that_it_shows_only_the_newest_open_incidents() {
    let server = Server::start().await;
    let rule = create_failed_run_rule(&server).await;
    let record = |number: i64| {
        let (kind, name) = (SubjectKind::Job, format!("subject-{number}"));
        let subject = Subject { kind, id: number, name, app: Some("app".to_owned()) };
        firing_incident(&server, (rule.0, &rule.1), subject, None)
    };
    let visitor = Visitor::signed_in(&server).await;
    write(&server, &(1..=100).map(record).collect::<Vec<_>>()).await;
    let (alerts, now) = (visitor.get("/alerts").await.text(), visitor.get("/").await.text());
    assert!(alerts.contains(">100</span>") && !alerts.contains("Only the newest"), "{alerts}");
    assert!(now.contains("alerts <b>100</b>"), "{now}");
    write(&server, &[record(101)]).await;
    let (alerts, now) = (visitor.get("/alerts").await.text(), visitor.get("/").await.text());
    assert!(alerts.contains(">100+</span>") && alerts.contains("Only the newest 100 open incidents"), "{alerts}");
    assert!(alerts.contains("\"/jobs/subject-101\"") && !alerts.contains("\"/jobs/subject-1\""), "{alerts}");
    assert!(now.contains("alerts <b>100+</b>"), "{now}");
}
