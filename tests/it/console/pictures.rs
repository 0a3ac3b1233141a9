//! Every screen at three widths, in both languages and both themes: none is wider than its window. With `TEST_PICTURES_OUT` (`tests/pictures`
//! sets it) a picture of each is written there, from a system with more jobs, two servers and an agent for each app.

use std::path::PathBuf;
use std::time::Duration;

use rondel_tests::{Agent, Api, Backend, Server, left_out_without, scratch, seed, variable, wait_until};
use serde_json::{Value, json};

use super::browser::{Browser, program};
use super::pages::{Screen, Subjects, newest_run, screens};

const APPS: [&str; 6] = ["orders", "billing", "reports", "archive", "catalog", "mail"];
const JOB: &str = "ledger.nightly-reconciliation-of-all-european-accounts";
/// How much of a long page is in its picture, in pixels.
const HEIGHT_MAX: u32 = 2_400;
const LOG: &str = r#"for i in $(seq 1 24); do echo "INFO  batch $i of 24: $((i * 137 % 900 + 100)) rows read"; sleep 0.05; done
echo "WARN  3 rows have no counterpart"
echo "ERROR connection refused: ledger-db:5432" >&2; exit 3"#;

/// A running system with a history.
struct Stage {
    server: Server,
    /// The rest of it, for as long as pictures are taken.
    _others: (Vec<Server>, Vec<Agent>),
    subjects: Subjects,
}

#[tokio::test]
async fn every_screen_fits_its_window() {
    let Some(program) = program() else { return left_out_without("chromium", "the screens at three widths") };
    let out = variable("TEST_PICTURES_OUT").map(PathBuf::from);
    let backend = if out.is_some() { Backend::Postgres } else { Backend::Sqlite };
    let Some(db) = scratch(backend).await else { return };
    let (jobs, runs) = if out.is_some() { (150, 30_000) } else { (30, 2_000) };
    seed(db.url(), jobs, runs).await;
    let stage = Stage::new(Server::start(&db).await, out.is_some().then_some(&db)).await;
    let mut browser = Browser::start(&program).await;
    let all: [(&str, &str, u32); 12] = [
        ("en", "light", 390),
        ("en", "light", 1_024),
        ("en", "light", 1_440),
        ("en", "dark", 390),
        ("en", "dark", 1_024),
        ("en", "dark", 1_440),
        ("zh", "light", 390),
        ("zh", "light", 1_024),
        ("zh", "light", 1_440),
        ("zh", "dark", 390),
        ("zh", "dark", 1_024),
        ("zh", "dark", 1_440),
    ];
    let some = [("en", "light", 390), ("zh", "dark", 1_024)];
    let looks: &[(&str, &str, u32)] = if out.is_some() { &all } else { &some };
    sign_in(&mut browser, &stage.server).await;
    let mut wide = Vec::new();
    for (lang, theme, width) in looks {
        prefer(&mut browser, stage.server.url(), lang, theme).await;
        browser.size(*width, if *width < 720 { 844 } else { 900 }).await;
        for screen in screens(&stage.subjects) {
            open(&mut browser, stage.server.url(), &screen).await;
            let how = format!("{}-{lang}-{theme}-{width}", screen.name);
            let size = browser.eval("[document.documentElement.scrollWidth, document.documentElement.scrollHeight - document.body.offsetHeight]").await;
            if size[0].as_u64() > Some(u64::from(*width)) || size[1].as_i64() > Some(8) {
                wide.push(format!("{how}: {size}"));
            }
            if let Some(out) = &out {
                browser.shoot_page(&out.join(format!("{how}.png")), HEIGHT_MAX).await;
                if screen.is_main {
                    browser.shoot(&out.join(format!("window-{how}.png"))).await;
                }
            }
        }
    }
    assert_eq!(wide, [""; 0], "pages that are larger than what they show");
    assert_eq!(browser.complaints().await, [""; 0], "complaints of the browser");
}

async fn sign_in(browser: &mut Browser, server: &Server) {
    let link = server.api().post("/api/v1/sign-in-links", json!({})).await.expect(201);
    browser.goto(&format!("{}{}", server.url(), link["path"].as_str().expect("a path"))).await;
    browser.follow("#sign-in").await;
}

async fn prefer(browser: &mut Browser, url: &str, lang: &str, theme: &str) {
    browser.size(1_440, 900).await;
    browser.goto(&format!("{url}/account")).await;
    browser.follow(&format!("button[name=lang][value={lang}]")).await;
    browser.follow(&format!("button[name=theme][value={theme}]")).await;
}

async fn open(browser: &mut Browser, url: &str, screen: &Screen) {
    browser.goto(&format!("{url}{}", screen.path)).await;
    // Parts that are loaded behind the page belong to it.
    browser.until("its parts are there", "!document.querySelector('[hx-trigger=load], .htmx-request')").await;
    browser.until("its font is there", "document.fonts.status === 'loaded'").await;
}

impl Stage {
    async fn new(server: Server, cluster: Option<&rondel_tests::ScratchDb>) -> Self {
        let api = server.api();
        api.post("/api/v1/apps", json!({"name": "ledger"})).await.expect(201);
        let mut agents = vec![Agent::start_named(&server, "ledger", "ledger-w1", &[]).await];
        let mut servers = Vec::new();
        if let Some(db) = cluster {
            servers.push(Server::start(db).await);
            for app in APPS {
                agents.push(Agent::start_named(&server, app, &format!("{app}-w1"), &["--label", "zone=eu"]).await);
            }
        }
        for (app, label) in [("orders", "team=payments"), ("billing", "team=payments"), ("catalog", "team=search")] {
            let bulk = json!({"action": "label", "q": format!("app:{app}"), "label": label});
            api.post("/api/v1/jobs:bulk", bulk).await.expect(200);
        }
        let subjects = furnish(&api).await;
        Self { server, _others: (servers, agents), subjects }
    }
}

/// A job that fails after retries, one with shards, users, a calendar, and a namespace with nothing in it.
async fn furnish(api: &Api) -> Subjects {
    let shell = |script: &str| json!({"argv": ["sh", "-c", script]});
    let jobs = [
        json!({"name": JOB, "app": "ledger", "handler": "shell", "params": shell(LOG), "retry": {"max": 2, "backoff": "500ms"},
            "schedule": {"cron": "0 30 2 ? * MON-FRI", "time_zone": "Europe/Berlin"}, "labels": {"team": "payments", "tier": "critical"},
            "description": "Reconciles the ledger with the bank"}),
        json!({"name": "ledger.export", "app": "ledger", "handler": "shell", "shards": 6, "schedule": {"cron": "0 0 3 * * ?"},
            "params": shell("sleep 0.$RONDEL_SHARD_INDEX; test $RONDEL_SHARD_INDEX != 2")}),
        json!({"name": "ledger.notify", "app": "ledger", "handler": "shell", "params": shell("true"),
            "schedule": {"after": ["ledger.export"], "on": "either"}}),
    ];
    for job in jobs {
        api.post("/api/v1/jobs", job).await.expect(201);
    }
    let change = json!({"description": "Reconciles the ledger of all European accounts with the bank, every working night", "timeout": "20m"});
    api.patch(&format!("/api/v1/jobs/{JOB}"), change).await.expect(200);
    for user in [
        json!({"name": "maria", "display_name": "María Fernández", "grants": [{"role": "operator", "namespace": "default"}]}),
        json!({"name": "li.wei", "display_name": "李伟", "grants": [{"role": "viewer", "namespace": "staging"}]}),
    ] {
        api.post("/api/v1/users", user).await.expect(201);
    }
    let days = json!([{"date": "2027-01-01", "name": "New Year"}, {"date": "2027-02-05..2027-02-12", "name": "春节"}]);
    let rule = json!({"any": [{"days": days}, {"weekdays": ["sat", "sun"]}]});
    api.put("/api/v1/calendars/holidays", json!({ "rule": rule })).await.expect(201);
    api.post("/api/v1/namespaces", json!({"name": "empty"})).await.expect(201);
    for job in [JOB, "ledger.export"] {
        api.post(&format!("/api/v1/jobs/{job}/runs"), json!({})).await.expect(201);
        wait_until(Duration::from_secs(60), "the verdict", async || {
            let runs = api.runs(job).await;
            let is_over = |run: &&Value| run["shard_total"] != 1 || !run["finished_at"].is_null();
            if runs.len() == runs.iter().filter(is_over).count() && runs.iter().any(|run| run["status"] == "failed") {
                Ok(())
            } else {
                Err(runs)
            }
        })
        .await;
    }
    Subjects {
        job: JOB.to_owned(),
        at: "02:30",
        run: newest_run(api, JOB).await,
        whole: newest_run(api, "ledger.export").await,
        executor: "ledger-w1?app=ledger".to_owned(),
        empty: "empty",
    }
}
