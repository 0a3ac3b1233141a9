//! `rondel why NAME`, without an instant: its answers in twelve situations, in both languages.

use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, ScratchDb, Server, rondel, scratch, wait_until, wall_clock_ms};
use serde_json::{Value, json};

use crate::on_each_database;
use crate::verdicts::{trigger, wait_for_verdict};

const LIMIT: Duration = Duration::from_secs(40);

/// Whether a text has these parts in this order. The instants and lengths of time between them differ.
pub(crate) fn has_parts(text: &str, pattern: &str) -> bool {
    let mut rest = text;
    pattern.split('*').all(|part| {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        true
    })
}

pub(crate) struct Fixture<'a> {
    pub(crate) server: &'a Server,
    pub(crate) api: Api,
}

impl Fixture<'_> {
    pub(crate) async fn job(&self, job: Value) {
        self.api.post("/api/v1/jobs", job).await.expect(201);
    }

    /// Waits until the command gives this answer in both languages.
    pub(crate) async fn expect_why(&self, job: &str, en: &str, zh: &str) {
        for (lang, pattern) in [("en", en), ("zh", zh)] {
            let (url, token) = (self.server.url(), self.server.token_file());
            let token = token.display().to_string();
            let args = ["why", job, "--lang", lang, "--server", url, "--token-file", &token];
            wait_until(LIMIT, &format!("the answer about {job} in {lang}: {pattern}"), async || {
                let answer = rondel(&args, &[]).await;
                if has_parts(&answer.stdout, pattern) { Ok(()) } else { Err(answer.stdout + &answer.stderr) }
            })
            .await;
        }
    }
}

pub(crate) fn shell(name: &str, app: &str, script: &str) -> Value {
    json!({"name": name, "app": app, "handler": "shell", "params": {"argv": ["sh", "-c", script]}})
}

pub(crate) fn with(mut job: Value, extra_fields: &Value) -> Value {
    job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
    job
}

/// A cron of one instant of each day, some seconds from now.
pub(crate) fn cron_in(seconds: i64) -> String {
    let second = wall_clock_ms() / 1_000 + seconds;
    format!("{} {} {} * * ?", second % 60, second / 60 % 60, second / 3_600 % 24)
}

/// Waits until a fire at this instant is later than a tolerance of one second.
pub(crate) async fn past(due_ms: i64) {
    wait_until(LIMIT, "the fire is missed", async || {
        let left = due_ms + 1_500 - wall_clock_ms();
        if left <= 0 { Ok(()) } else { Err(left) }
    })
    .await;
}

/// Answers that follow from the definition alone.
async fn check_planned(fixture: &Fixture<'_>) {
    fixture.job(shell("never", "files", "true")).await;
    fixture
        .expect_why(
            "never",
            "It has not run so far: the job has no schedule and runs only when it is triggered.",
            "至今没有执行过：任务没有调度，只在被触发时执行。",
        )
        .await;
    fixture.job(with(shell("paused", "files", "true"), &json!({"schedule": {"every": "1s"}, "enabled": false}))).await;
    fixture
        .expect_why(
            "paused",
            "Last fire * UTC: It did not run: the job was paused.",
            "最近一次触发 * UTC：没有执行：当时任务已暂停。",
        )
        .await;
    let calendar = json!({"rule": {"days": ["2001-01-01"]}});
    fixture.api.put("/api/v1/calendars/never-open", calendar).await.expect(201);
    let closed = json!({"schedule": {"cron": "* * * * * ?"}, "calendar": {"name": "never-open", "rule": "only"}});
    fixture.job(with(shell("closed", "files", "true"), &closed)).await;
    fixture
        .expect_why(
            "closed",
            "Last fire * UTC: It did not run: the calendar \"never-open\" removes this fire",
            "最近一次触发 * UTC：没有执行：日历 \"never-open\" 排除了这次触发",
        )
        .await;
}

/// Answers about a run that no executor takes.
async fn check_unserved(fixture: &Fixture<'_>, agent: &str) {
    let second = json!({"queue_timeout": "1s"});
    fixture.job(with(shell("unserved", "empty", "true"), &second)).await;
    fixture.job(json!({"name": "nothing", "app": "files", "handler": "no.such.handler", "queue_timeout": "1s"})).await;
    let elsewhere = json!({"queue_timeout": "1s", "select": {"labels": ["zone=moon"]}});
    fixture.job(with(shell("elsewhere", "files", "true"), &elsewhere)).await;
    for job in ["unserved", "nothing", "elsewhere"] {
        let run = wait_for_verdict(&fixture.api, &trigger(&fixture.api, job).await).await;
        assert_eq!(run["reason"], "no_executor", "{run:#}");
    }
    fixture
        .expect_why(
            "unserved",
            "Last fire * UTC: It did not run: no executor of app empty was online for *s.",
            "最近一次触发 * UTC：没有执行：*内应用 empty 没有在线的执行器。",
        )
        .await;
    let (en, zh) = (
        format!(
            "It did not run: no executor of app files had handler \"no.such.handler\" for *({agent} online without it)."
        ),
        format!("没有执行：*内应用 files 没有执行器具有处理器 \"no.such.handler\"（{agent} 在线但没有它）。"),
    );
    fixture.expect_why("nothing", &en, &zh).await;
    let (en, zh) = (
        format!(
            "It did not run: no executor of app files could take it for *: {agent} does not meet label condition zone=moon."
        ),
        format!("没有执行：*内应用 files 没有执行器可以接收它：{agent} 不满足标签条件 zone=moon。"),
    );
    fixture.expect_why("elsewhere", &en, &zh).await;
}

/// Answers about a run that waits.
async fn check_waiting(fixture: &Fixture<'_>, agent: &str) {
    fixture.job(with(shell("serial", "files", "sleep 60"), &json!({"overlap": {"policy": "serial"}}))).await;
    let first = trigger(&fixture.api, "serial").await;
    trigger(&fixture.api, "serial").await;
    let (en, zh) = (
        format!(
            "Open run of * UTC: It has not begun yet: it has been due for *, since *, and waits behind run {first} of the job."
        ),
        format!("未结束的运行 * UTC：尚未开始：*已到期 *，正在等待该任务的运行 {first} 结束。"),
    );
    fixture.expect_why("serial", &en, &zh).await;
    // The executor has one slot, and takes a few more runs ahead.
    fixture.job(with(shell("many", "files", "sleep 60"), &json!({"overlap": {"policy": "allow"}}))).await;
    for _ in 0..12 {
        trigger(&fixture.api, "many").await;
    }
    let (en, zh) = (
        format!("Open run of * UTC: It has not begun yet: *, and waits for a free slot on {agent}."),
        format!("未结束的运行 * UTC：尚未开始：*，正在等待 {agent} 上的空闲槽位。"),
    );
    fixture.expect_why("many", &en, &zh).await;
    for job in ["serial", "many"] {
        fixture.api.post(&format!("/api/v1/jobs/{job}/cancel"), json!({})).await.expect(202);
    }
}

/// Answers about a run that did not go as planned.
async fn check_ended(fixture: &Fixture<'_>) {
    let api = &fixture.api;
    fixture.job(shell("late", "tardy", "true")).await;
    let run = trigger(api, "late").await;
    wait_until(LIMIT, "what the run waits for is known", async || {
        let run = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
        if run["detail"]["waits_for"] == "executor" { Ok(()) } else { Err(run) }
    })
    .await;
    let _tardy = Agent::start(fixture.server, "tardy").await;
    wait_for_verdict(api, &run).await;
    fixture
        .expect_why(
            "late",
            "Last fire * UTC: It ran at * UTC on tardy-*, *s late (waited *s for an executor of app tardy (none online)), succeeded.",
            "最近一次触发 * UTC：已于 * UTC 执行（执行器 tardy-*），晚了 *秒（等待应用 tardy 的执行器（没有在线的执行器）用了 *秒），成功。",
        )
        .await;
    fixture.job(with(shell("again", "tardy", "exit 3"), &json!({"retry": {"max": 1, "backoff": "100ms"}}))).await;
    wait_for_verdict(api, &trigger(api, "again").await).await;
    fixture
        .expect_why(
            "again",
            "Last fire * UTC: It ran at * UTC on tardy-*, failed on attempt 2: exit code 3.",
            "最近一次触发 * UTC：已于 * UTC 执行（执行器 tardy-*），失败（第 2 次尝试）：退出码 3。",
        )
        .await;
    let data = tempfile::tempdir().expect("make a folder");
    let folder = data.path().display().to_string();
    fixture.job(with(shell("lost", "fragile", "sleep 60"), &json!({"delivery": "at_most_once"}))).await;
    let mut fragile = Agent::start_named(fixture.server, "fragile", "w1", &["--data-dir", &folder]).await;
    let run = trigger(api, "lost").await;
    wait_until(LIMIT, "the run is running", async || {
        let run = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
        if run["status"] == "running" { Ok(()) } else { Err(run) }
    })
    .await;
    fragile.kill().await;
    // The new process names the previous one, so the server need not wait for the silence of the previous one.
    let _fragile = Agent::start_named(fixture.server, "fragile", "w1", &["--data-dir", &folder]).await;
    wait_for_verdict(api, &run).await;
    fixture
        .expect_why(
            "lost",
            "Last fire * UTC: It ran at * UTC on w1, and its outcome is unknown: executor w1 was lost while it had the run.",
            "最近一次触发 * UTC：已于 * UTC 执行（执行器 w1），结果未知：执行器 w1 在持有它时失联。",
        )
        .await;
}

/// An executor takes more runs than it has slots. A run in its queue has not begun, and every server shows this.
async fn runs_in_an_executors_queue_are_not_running(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let fixture = Fixture { server: &server, api: server.api() };
    fixture.job(with(shell("long", "files", "sleep 600"), &json!({"delivery": "at_most_once"}))).await;
    fixture.job(shell("second", "files", "sleep 600")).await;
    let agent = Agent::start_with(&server, "files", &["--slots", "1"]).await;
    let first = trigger(&fixture.api, "long").await;
    let state = async |run: &str, status: &str, waits_for: Value| {
        let api = server.api();
        wait_until(LIMIT, &format!("run {run} is {status}"), async || {
            let run = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
            if run["status"] == status && run["detail"]["waits_for"] == waits_for { Ok(run) } else { Err(run) }
        })
        .await
    };
    state(&first, "running", Value::Null).await;
    let second = trigger(&fixture.api, "second").await;
    let queued = state(&second, "pending", json!("slot")).await;
    assert_eq!((&queued["started_at"], &queued["executor"]), (&Value::Null, &json!(agent.name())), "{queued:#}");
    let (en, zh) = (
        format!("Open run of * UTC: It has not begun yet: *, and waits for a free slot on {}.", agent.name()),
        format!("未结束的运行 * UTC：尚未开始：*，正在等待 {} 上的空闲槽位。", agent.name()),
    );
    fixture.expect_why("second", &en, &zh).await;

    // The next server learns from the executor which of its runs has begun.
    server.kill().await;
    server.restart().await;
    let fixture = Fixture { server: &server, api: server.api() };
    let state = async |run: &str, status: &str| {
        wait_until(LIMIT, &format!("run {run} is {status}"), async || {
            let run = fixture.api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
            if run["status"] == status { Ok(run) } else { Err(run) }
        })
        .await
    };
    let adopted = state(&second, "pending").await;
    assert_eq!((&adopted["started_at"], &adopted["attempt"]), (&Value::Null, &json!(1)), "{adopted:#}");
    fixture.expect_why("second", &en, &zh).await;
    assert!(state(&first, "running").await["started_at"].is_string());

    fixture.api.post(&format!("/api/v1/runs/{first}/cancel"), json!({})).await.expect(202);
    let begun = state(&second, "running").await;
    let freed = wait_for_verdict(&fixture.api, &first).await;
    let second_of = |run: &Value, what: &str| run[what].as_str().map(|at| at[..19].to_owned());
    let (started_at, freed_at) = (second_of(&begun, "started_at"), second_of(&freed, "finished_at"));
    assert!(started_at.is_some() && started_at >= freed_at, "it began when the slot was free: {begun:#} {freed:#}");
    fixture.api.post(&format!("/api/v1/runs/{second}/cancel"), json!({})).await.expect(202);
    let ended_run = wait_for_verdict(&fixture.api, &second).await;
    assert_eq!((&ended_run["started_at"], &ended_run["attempt"]), (&begun["started_at"], &json!(1)), "{ended_run:#}");
}
on_each_database!(runs_in_an_executors_queue_are_not_running);

/// A run that waits for its next attempt has no executor: the previous executor is shown only with the previous attempt.
#[tokio::test]
async fn a_run_between_attempts_names_no_executor() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let fixture = Fixture { server: &server, api: server.api() };
    fixture.job(with(shell("again", "files", "exit 3"), &json!({"retry": {"max": 1, "backoff": "1h"}}))).await;
    let agent = Agent::start(&server, "files").await;
    let run = trigger(&fixture.api, "again").await;
    let waiting = wait_until(LIMIT, "it waits for its second attempt", async || {
        let run = fixture.api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
        if run["status"] == "waiting" { Ok(run) } else { Err(run) }
    })
    .await;
    let attempts = (&waiting["attempts"][0]["executor"], &waiting["attempts"][1]["executor"]);
    assert_eq!(attempts, (&json!(agent.name()), &Value::Null), "{waiting:#}");
    assert_eq!(waiting["executor"], Value::Null, "{waiting:#}");
    let token = server.token_file().display().to_string();
    let args = ["run", "list", "--columns", "id,executor", "--server", server.url(), "--token-file", &token];
    let listed = rondel(&args, &[]).await;
    assert!(listed.stdout.contains(&run) && !listed.stdout.contains(agent.name()), "{listed:?}");
}

async fn twelve_reasons_are_explained(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let mut missed = shell("missed", "files", "true");
    missed = with(missed, &json!({"misfire": {"policy": "skip", "tolerance": "1s"}}));
    let due_ms = wall_clock_ms() + 8_000;
    missed = with(missed, &json!({"schedule": {"cron": cron_in(8)}}));
    server.api().post("/api/v1/jobs", missed).await.expect(201);
    server.stop().await;
    past(due_ms).await;
    server.restart().await;
    let agent = Agent::start_with(&server, "files", &["--slots", "1"]).await;
    let fixture = Fixture { server: &server, api: server.api() };
    fixture
        .expect_why(
            "missed",
            "Last fire * UTC: It did not run: its instant passed while no server was at work, and the job's misfire policy skips it.",
            "最近一次触发 * UTC：没有执行：到期时没有服务器在工作，按任务的错过策略跳过。",
        )
        .await;
    check_planned(&fixture).await;
    check_unserved(&fixture, agent.name()).await;
    check_waiting(&fixture, agent.name()).await;
    check_ended(&fixture).await;
}
on_each_database!(twelve_reasons_are_explained);

/// A run that a policy, a handler or a full executor skips is explained by the other run, by the handler's words, or by the
/// executor.
async fn runs_skipped_by_policies_and_handlers_are_explained(db: ScratchDb) {
    let server = Server::start(&db).await;
    let fixture = Fixture { server: &server, api: server.api() };
    let api = &fixture.api;
    fixture.job(shell("skips", "files", "echo nothing to do >&2; exit 77")).await;
    let agent = Agent::start_with(&server, "files", &["--slots", "1"]).await;
    // A run of the previous job has the slot.
    let is_queued_there = async |run: &str| {
        wait_until(LIMIT, "the run is in the executor's queue", async || {
            let run = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
            let is_there = run["status"] == "pending" && run["executor"] == agent.name();
            if is_there && run["detail"]["waits_for"] == "slot" { Ok(()) } else { Err(run) }
        })
        .await;
    };
    let run = wait_for_verdict(api, &trigger(api, "skips").await).await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("skipped"), &json!("handler")), "{run:#}");
    let zh = "，处理器跳过了它：退出码 77：“nothing to do”。";
    fixture.expect_why("skips", ", and the handler skipped it: exit code 77: nothing to do.", zh).await;

    fixture.job(with(shell("discards", "files", "sleep 60"), &json!({"overlap": {"policy": "discard"}}))).await;
    let first = trigger(api, "discards").await;
    let run = wait_for_verdict(api, &trigger(api, "discards").await).await;
    assert_eq!((&run["reason"], &run["detail"]["run"]), (&json!("overlap"), &json!(first)), "{run:#}");
    let sentence = format!("Skipped: run {first} had not ended, and the job's overlap policy skips overlapping runs.");
    assert_eq!(run["why"]["en"], sentence, "{run:#}");

    fixture.job(with(shell("covers", "files", "sleep 60"), &json!({"overlap": {"policy": "cover"}}))).await;
    let first = trigger(api, "covers").await;
    is_queued_there(&first).await;
    trigger(api, "covers").await;
    let run = wait_for_verdict(api, &first).await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("cancelled"), &json!("covered")), "{run:#}");

    fixture.job(with(shell("fills", "files", "sleep 60"), &json!({"overlap": {"policy": "allow"}}))).await;
    for _ in 0..10 {
        trigger(api, "fills").await;
    }
    let brief = json!({"queue_timeout": "2s", "priority": 0});
    fixture.job(with(shell("expires", "files", "true"), &brief)).await;
    let run = wait_for_verdict(api, &trigger(api, "expires").await).await;
    assert_eq!((&run["status"], &run["reason"]), (&json!("skipped"), &json!("expired")), "{run:#}");
    let full = json!([{"executor": agent.name(), "kind": "full"}]);
    assert_eq!(run["detail"]["obstacles"], full, "{run:#}");
}
on_each_database!(runs_skipped_by_policies_and_handlers_are_explained);
