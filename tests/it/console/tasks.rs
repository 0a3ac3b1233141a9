//! The tasks that users have in the console, done in a browser, once with the mouse and once with keys only. The number of interactions
//! of each task is asserted. The history is that of `rondel bench seed`.

use std::time::Duration;

use rondel_tests::{Agent, Api, Dev, left_out_without, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::browser::{Browser, program};
use super::hand::Hand;
use super::log::{LOADED, LOADED_BYTES_MAX, long_run};
use super::sign_in;

const JOB_COUNT: u32 = 60;
const RUN_COUNT: u32 = 6_000;
/// The executor that is drained.
const DRAINED: &str = "w7";
const LIVE: &str = "for i in $(seq 1 2000); do echo \"tick $i\"; sleep 0.2; done";

/// The server, and the objects that the tasks use.
struct Fixture {
    api: Api,
    url: String,
    /// A job whose handler no executor has, and one of its fires, which was skipped.
    unserved: String,
    fire_at: String,
    /// An app with runs that failed in the last eight hours.
    app: String,
    /// A run that writes its log now.
    live: String,
    /// The run on the executor that is drained lasts until this folder has a file `go`.
    gate: TempDir,
}

#[tokio::test]
async fn each_task_takes_few_interactions() {
    let Some(program) = program() else { return left_out_without("chromium", "the tasks of the console") };
    let mut dev = Dev::start_seeded(JOB_COUNT, RUN_COUNT).await;
    let mut browser = Browser::start(&program).await;
    sign_in(&mut dev, &mut browser).await;
    let fixture = Fixture::new(dev.api(), dev.url().to_owned()).await;
    long_run(&fixture.api).await;
    let mut agent = Agent::start_for_dev(&dev, "depot", DRAINED).await;
    for is_by_keys in [false, true] {
        let mut hand = Hand::new(&mut browser, is_by_keys);
        fixture.find_why_a_run_did_not_happen(&mut hand).await;
        fixture.find_failures_and_retry_them(&mut hand).await;
        fixture.follow_a_live_log(&mut hand).await;
        fixture.find_the_first_error(&mut hand).await;
        fixture.restore_a_version(&mut hand, if is_by_keys { "orders.by-keys" } else { "orders.by-mouse" }).await;
        fixture.pause_an_app(&mut hand).await;
        fixture.see_the_herd(&mut hand).await;
        fixture.invite_a_user(&mut hand, if is_by_keys { "jonas" } else { "maria" }).await;
        fixture.drain_an_executor(&mut hand).await;
    }
    assert_eq!(browser.errors().await, [""; 0], "errors of the browser");
    fixture.api.post(&format!("/api/v1/runs/{}/cancel", fixture.live), json!({})).await.expect(202);
    assert!(agent.stop().await.success());
    assert!(dev.stop().await.success());
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| unreachable!("{value} is a text")).to_owned()
}

impl Fixture {
    async fn new(api: Api, url: String) -> Self {
        let unserved = api.get("/api/v1/jobs?q=0007").await.expect(200);
        let unserved = text(&unserved["items"][0]["name"]);
        let skipped = api.get(&format!("/api/v1/runs?job={unserved}&status=skipped&limit=1")).await.expect(200);
        let fire_at = text(&skipped["items"][0]["fire_at"]);
        let failed = api.get("/api/v1/runs?q=status:failed%20since:8h&limit=1").await.expect(200);
        let job = text(&failed["items"][0]["job"]);
        let app = text(&api.get(&format!("/api/v1/jobs/{job}")).await.expect(200)["app"]);
        let tail =
            json!({"name": "live.tail", "app": "demo", "handler": "shell", "params": {"argv": ["sh", "-c", LIVE]}});
        api.post("/api/v1/jobs", tail).await.expect(201);
        let live = text(&api.post("/api/v1/jobs/live.tail/runs", json!({})).await.expect(201)["id"]);
        let gate = tempfile::Builder::new().prefix("rondel-gate-").tempdir().expect("make a folder");
        let wait = format!("while [ ! -e '{}' ]; do sleep 0.1; done", gate.path().join("go").display());
        let held =
            json!({"name": "depot.count", "app": "depot", "handler": "shell", "params": {"argv": ["sh", "-c", wait]}});
        api.post("/api/v1/jobs", held).await.expect(201);
        Self { api, url, unserved, fire_at, app, live, gate }
    }

    fn now(&self) -> String {
        format!("{}/n/default/", self.url)
    }

    async fn find_why_a_run_did_not_happen(&self, hand: &mut Hand<'_>) {
        hand.begin(&self.now()).await;
        hand.open_palette().await;
        hand.open_hit(&self.unserved, &format!("/n/default/jobs/{}", self.unserved)).await;
        hand.enter("#why [name=at]", &self.fire_at.replace('T', " ")[..16]).await;
        hand.browser
            .until("the reason is named", "document.querySelector('.answer')?.textContent.includes('no executor of')")
            .await;
        hand.assert_took("why a run did not happen", 3);
    }

    async fn find_failures_and_retry_them(&self, hand: &mut Hand<'_>) {
        hand.begin(&self.now()).await;
        hand.go("r").await;
        hand.enter("#filter", &format!("status:failed app:{} since:8h", self.app)).await;
        let rows = "[...document.querySelectorAll('main tbody tr')]";
        hand.browser
            .until(
                "only failures are shown",
                &format!("{rows}.length && {rows}.every(row => row.querySelector('.s-failed'))"),
            )
            .await;
        hand.assert_took("the failing runs of an app", 3);
        hand.follow(".bulk-bar button[value=retry]").await;
        hand.follow("main form[action$='/runs:bulk'] button.primary").await;
        hand.browser
            .until("they were started again", "/started again/.test(document.querySelector('h1').textContent)")
            .await;
        hand.assert_took("retry all of them", 2);
    }

    async fn follow_a_live_log(&self, hand: &mut Hand<'_>) {
        hand.begin(&self.now()).await;
        hand.follow("#health a[href*='status=running']").await;
        hand.follow(&format!("main a.name[href='/n/default/runs/{}']", self.live)).await;
        let lines = "document.querySelectorAll('#log .l').length";
        hand.browser.until("the log is there", &format!("{lines} > 2")).await;
        let first = hand.browser.eval(lines).await;
        hand.browser.until("it grows", &format!("{lines} > {first} + 2")).await;
        let is_at_end =
            "(log => log.scrollHeight - log.scrollTop - log.clientHeight < 40)(document.querySelector('#log'))";
        hand.browser.until("its end is shown", is_at_end).await;
        hand.assert_took("follow a live log", 2);
    }

    async fn find_the_first_error(&self, hand: &mut Hand<'_>) {
        hand.begin(&format!("{}/n/default/jobs/import.rows", self.url)).await;
        hand.follow(".tile a.cell[href*='/runs/']").await;
        let counted = "document.querySelector('[data-severity=error] b')?.textContent === '3'";
        hand.browser.until("errors are counted", counted).await;
        hand.click("[data-severity=error]").await;
        hand.browser.until("the first error is shown", "document.querySelector('.l.at')?.id === 'L5000'").await;
        let loaded = hand.browser.eval(LOADED).await.as_u64().unwrap_or(u64::MAX);
        assert!(loaded < LOADED_BYTES_MAX, "{loaded} bytes");
        hand.assert_took("the first error of 60,000 lines", 2);
    }

    async fn restore_a_version(&self, hand: &mut Hand<'_>, name: &str) {
        let job = json!({"name": name, "app": "demo", "handler": "shell", "params": {"argv": ["true"]}, "description": "first"});
        self.api.post("/api/v1/jobs", job).await.expect(201);
        for description in ["second", "third"] {
            self.api.patch(&format!("/api/v1/jobs/{name}"), json!({ "description": description })).await.expect(200);
        }
        hand.begin(&format!("{}/n/default/jobs/{name}", self.url)).await;
        hand.follow("#job-activity section a[href$='/versions']").await;
        hand.follow("a.button[href$='/versions?from=1&to=3']").await;
        hand.browser
            .until(
                "the two are compared",
                "document.querySelector('#comparison .change-list ins')?.textContent.includes('third')",
            )
            .await;
        hand.follow("#restore").await;
        hand.assert_took("compare two versions and restore one", 3);
        assert_eq!(self.api.get(&format!("/api/v1/jobs/{name}")).await.expect(200)["description"], "first");
    }

    async fn pause_an_app(&self, hand: &mut Hand<'_>) {
        let paused = format!("/api/v1/jobs?q=app:{}%20is:paused", self.app);
        let count = async || self.api.get(&paused).await.expect(200)["items"].as_array().map_or(0, Vec::len);
        let before = count().await;
        hand.begin(&self.now()).await;
        hand.go("j").await;
        hand.follow(".sorts a[href$='sort=app']").await;
        hand.follow(&format!("#app-{} button[value=pause]", self.app)).await;
        hand.assert_took("pause all jobs of an app", 3);
        assert!(count().await > before, "jobs of {} are paused", self.app);
        hand.follow("main form input[value=resume] ~ button").await;
        assert_eq!(count().await, before, "Undo takes it back");
    }

    async fn see_the_herd(&self, hand: &mut Hand<'_>) {
        hand.begin(&self.now()).await;
        hand.go("t").await;
        hand.browser
            .until("what is ahead is drawn", "document.querySelectorAll('#ahead .density rect').length > 20")
            .await;
        let peak = hand.browser.eval("document.querySelector('#ahead .peak').textContent").await;
        assert!(text(&peak).contains("jobs fire at the same instant"), "{peak}");
        hand.assert_took("what fires next, and where the herd is", 1);
    }

    async fn invite_a_user(&self, hand: &mut Hand<'_>, name: &str) {
        hand.begin(&self.now()).await;
        hand.open_palette().await;
        hand.open_hit("users", "/n/default/users").await;
        hand.choose("form.invite [name='grant.0.role']", "operator").await;
        hand.enter("form.invite [name=name]", name).await;
        hand.browser
            .until("there is a link", "document.querySelector('#made pre')?.textContent.includes('/sign-in?token=')")
            .await;
        hand.assert_took("invite a user with a role", 4);
        let user = self.api.get(&format!("/api/v1/users/{name}")).await.expect(200);
        assert_eq!(user["grants"][0]["role"], "operator", "{user}");
    }

    /// The page shows the draining executor while it has a run and, without a reload, once it has none.
    async fn drain_an_executor(&self, hand: &mut Hand<'_>) {
        let state = format!("/api/v1/executors/{DRAINED}/state");
        self.api.put(&state, json!({"app": "depot", "state": "active"})).await.expect(200);
        let run = text(&self.api.post("/api/v1/jobs/depot.count/runs", json!({})).await.expect(201)["id"]);
        let is_running = async || {
            let run = self.api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
            if run["status"] == "running" { Ok(()) } else { Err(run) }
        };
        wait_until(Duration::from_secs(20), "the executor has the run", is_running).await;
        hand.begin(&self.now()).await;
        hand.go("e").await;
        hand.browser.eval("window.isTheSame = true").await;
        hand.click(&format!("form[action$='/executors/{DRAINED}/drain?app=depot'] button")).await;
        hand.browser
            .until("it is reported", "document.querySelector('.toast')?.textContent.includes('w7 drains')")
            .await;
        let left = format!(
            "[...document.querySelectorAll('tr')].find(row => row.querySelector('a.name')?.textContent === '{DRAINED}')\
             ?.querySelector('.fl-left')"
        );
        hand.browser.until("it counts down", &format!("{left}?.textContent === '1 run left'")).await;
        std::fs::write(self.gate.path().join("go"), "").expect("open the gate");
        hand.browser.until("it is empty", &format!("{left}?.matches('.done')")).await;
        let words = hand.browser.eval(&format!("{left}.textContent")).await;
        assert_eq!(text(&words), "Empty: safe to stop");
        assert_eq!(hand.browser.eval("window.isTheSame").await, true, "the page was loaded again");
        hand.assert_took("drain an executor and watch it empty", 3);
        std::fs::remove_file(self.gate.path().join("go")).expect("close the gate");
        let run = self.api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
        assert_eq!((&run["status"], &run["executor"]), (&json!("succeeded"), &json!(DRAINED)), "its run went on");
    }
}
