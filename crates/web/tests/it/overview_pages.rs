//! The landing page, the timeline and the charts of a job, and the same figures through the API.

use std::time::Duration;

use rondel_admin::auth::Token;
use rondel_admin::sign_in::{self, SignInClient, SignInOwner};
use rondel_core::access::{Grant, Role};
use rondel_core::outcome::Outcome;
use rondel_core::{AccountId, ExecutorId, RunId};
use rondel_store::access::{Account, TokenKind, TokenRecord};
use rondel_store::ledger::RunAtExecutor;
use rondel_web::{Access, route_table};
use serde_json::{Value, json};

use crate::harness::Server;
use crate::one_app_role::{ScopedCaller, job};
use crate::visitor::Visitor;

async fn failed(server: &Server, name: &str) -> RunId {
    let run = server.trigger(name).await;
    server.finish(run, Outcome::Failed { retryable: false }).await;
    run
}

#[tokio::test]
async fn an_empty_system_shows_the_first_steps() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    let text = visitor.get("/").await.text();
    assert!(text.contains("id=\"first-steps\"") && text.matches(">rondel job ").count() == 2, "{text}");
    assert!(text.contains("/executors/new?app=demo"), "{text}");
    assert!(!text.contains("id=\"outcomes\""));
    visitor.language = "zh-CN";
    assert!(visitor.get("/").await.text().contains("三步完成第一次运行"));
    server.job("there").await;
    assert!(!visitor.get("/").await.text().contains("id=\"first-steps\""));
}

#[tokio::test]
async fn now_names_a_token_that_ends_soon_and_leads_to_the_list_that_has_it() {
    let server = Server::start().await;
    server.job("there").await;
    let token = json!({"kind": "api", "name": "nightly-ci", "grants": [{"role": "viewer"}], "expires_in": "1d"});
    server.with_body("POST", "/api/v1/tokens", token).await.expect(201);
    let visitor = Visitor::signed_in(&server).await;
    let now = visitor.get("/").await.text();
    assert!(now.contains("<a href=\"/settings/tokens\">nightly-ci</a>"), "{now}");
    assert!(visitor.get("/settings/tokens").await.text().contains("nightly-ci"));
}

#[tokio::test]
async fn now_names_no_token_of_the_account_that_may_do_more_than_the_one_of_the_sign_in() {
    let server = Server::start().await;
    server.job("there").await;
    let (store, at) = (server.engine.store(), server.engine.now());
    let account = Account {
        id: AccountId::new(server.engine.new_id()),
        name: "ann".to_owned(),
        display_name: "Ann".to_owned(),
        password: None,
        disabled: false,
        created_at: at,
        password_changed_at: None,
        provider_linked_at: None,
        grants: vec![Grant::everywhere(Role::Editor)],
    };
    assert!(store.create_account(&account).await.unwrap());
    let token = async |name: &str, role| {
        let record = Token::generate_for(TokenKind::Api).record(server.engine.new_id(), TokenKind::Api, at);
        let (name, grants) = (name.to_owned(), vec![Grant::everywhere(role)]);
        let expires_at = Some(at + Duration::from_secs(24 * 3600));
        let record = TokenRecord { name, owner: Some(account.id), expires_at, grants, ..record };
        assert!(store.add_token(&record).await.unwrap());
        record.id
    };
    token("for-deploys", Role::Editor).await;
    let whose = SignInOwner::Token(token("for-reading", Role::Viewer).await);
    let id = server.engine.new_id();
    let cookie = sign_in::begin(store, id, whose, &SignInClient::default(), at).await.unwrap();
    let mut visitor = Visitor::new(&server);
    visitor.cookie = format!("rondel_session={}", cookie.reveal());
    let now = visitor.get("/").await.text();
    assert!(now.contains("<a href=\"/settings/tokens\">for-reading</a>") && !now.contains("for-deploys"), "{now}");
}

#[tokio::test]
async fn now_names_the_job_that_fails_and_leads_to_its_runs() {
    let server = Server::start().await;
    server.job("fine").await;
    server.job("broken").await;
    let done = server.trigger("fine").await;
    server.finish(done, Outcome::Succeeded).await;
    for _ in 0..3 {
        failed(&server, "broken").await;
    }
    server.count_runs().await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/").await;
    assert_eq!(page.status, 200);
    let text = page.text();
    assert!(text.contains("never succeeded · 3 failures"), "{text}");
    assert!(text.contains("&#60;b&#62;done") || text.contains("&lt;b&gt;done"), "the message is text");
    assert!(text.contains("href=\"/runs?q=since%3A"), "a bar leads to its runs");
    assert!(text.contains("4 runs · 3 failed"), "{text}");
    let looks = text.split("id=\"looks\"").nth(1).and_then(|rest| rest.split("</section>").next()).unwrap();
    assert!(looks.contains("job%3Abroken") && !looks.contains("job%3Afine"), "{looks}");
    assert!(text.contains("id=\"worst\"") && text.contains("href=\"/jobs/broken\">broken</a>"), "its lane is shown");

    let end = server.trigger("broken").await;
    server.finish(end, Outcome::Succeeded).await;
    server.count_runs().await;
    assert!(visitor.get("/").await.text().contains("Nothing needs attention"));
}

#[tokio::test]
async fn the_timeline_has_lanes_of_jobs_apps_and_executors() {
    let server = Server::start().await;
    server.job("alpha").await;
    let every = json!({"name": "beta", "app": "app", "handler": "handler", "schedule": {"every": "30m"}});
    server.with_body("POST", "/api/v1/jobs", every).await.expect(201);
    let run = failed(&server, "alpha").await;
    server.count_runs().await;
    let visitor = Visitor::signed_in(&server).await;
    let text = visitor.get("/timeline").await.text();
    assert!(text.contains(&format!("href=\"/runs/{run}\"")) && text.contains("class=\"o-failed\""), "{text}");
    assert!(text.find(">alpha</a>").unwrap() < text.find(">beta</a>").unwrap(), "the worst comes first");
    assert!(text.matches("class=\"tick\"").count() > 5, "fires ahead");
    assert!(text.contains("id=\"heat\"") && text.contains("hx-get=\"/timeline/ahead\""));
    let text = visitor.get("/timeline?q=bet").await.text();
    assert!(text.contains(">beta</a>") && !text.contains(">alpha</a>"));
    assert!(visitor.get("/timeline?by=app&zoom=1h").await.text().contains(">app</a>"));
    assert_eq!(visitor.get("/timeline?by=executor&zoom=7d").await.status, 200);
    assert_eq!(visitor.get("/timeline?to=2027-01-15T08:00:00Z&zoom=6h&app=app").await.status, 200);
    for bad in ["by=colour", "zoom=9h", "to=then", "q=%3Cb%3E", "to=2300-01-01T00:00:00Z"] {
        assert_eq!(visitor.get(&format!("/timeline?{bad}")).await.status, 422, "{bad}");
    }
    let ahead = visitor.get("/timeline/ahead").await.text();
    assert!(ahead.contains("48 fires") && ahead.contains(">beta</a>"), "{ahead}");
}

#[tokio::test]
async fn a_run_that_began_before_the_timeline_is_drawn_while_it_is_under_way() {
    let server = Server::start().await;
    server.job("stuck").await;
    let run = server.trigger("stuck").await;
    let at = server.engine.now();
    let in_hand = RunAtExecutor { run, attempt: 1, executor_id: ExecutorId::new(77), executor: "one".to_owned(), at };
    server.engine.store().note_running(server.engine.token(), &[in_hand]).await.unwrap();
    let from = at + Duration::from_secs(1);
    let range = format!("from={from}&to={}", from + Duration::from_secs(3_600));
    for (by, name) in [("job", "stuck"), ("executor", "one")] {
        let timeline = server.get(&format!("/api/v1/timeline?by={by}&{range}")).await.expect(200);
        let lane = &timeline["lanes"][0];
        assert_eq!((&lane["name"], &lane["marks"][0]["run"]), (&json!(name), &json!(run)), "{timeline}");
    }
}

#[tokio::test]
async fn the_page_of_a_job_has_its_year_its_durations_and_its_next_fires() {
    let server = Server::start().await;
    let every = json!({"name": "beta", "app": "app", "handler": "handler", "schedule": {"every": "30m"}});
    server.with_body("POST", "/api/v1/jobs", every).await.expect(201);
    let done = server.trigger("beta").await;
    server.finish(done, Outcome::Succeeded).await;
    server.count_runs().await;
    let text = Visitor::signed_in(&server).await.get("/jobs/beta").await.text();
    let charts = text.split("id=\"job-charts\"").nth(1).unwrap();
    assert!(charts.contains("class=\"y-ok\"") && charts.contains("class=\"band\""), "{charts}");
    let next = charts.split("next-ten").nth(1).unwrap().split("</ol>").next().unwrap();
    let at = |text: &str| text.split('"').next().unwrap().parse::<rondel_core::Timestamp>().unwrap();
    let fires: Vec<rondel_core::Timestamp> = next.split("datetime=\"").skip(1).map(at).collect();
    assert_eq!(fires.len(), 10);
    assert!(fires.windows(2).all(|pair| pair[1].since(pair[0]) == Duration::from_secs(1_800)), "{fires:?}");
}

#[tokio::test]
async fn the_page_of_a_job_links_its_parents_and_its_children() {
    let server = Server::start().await;
    let after = |parents: &[&str], on: &str| json!({"schedule": {"after": parents, "on": on}});
    job(&server, "extract", "mine", json!({})).await;
    job(&server, "secret-feed", "theirs", json!({})).await;
    job(&server, "load", "mine", after(&["extract", "secret-feed"], "either")).await;
    job(&server, "report", "mine", after(&["load"], "failure")).await;
    job(&server, "secret-copy", "theirs", after(&["load"], "success")).await;
    let visitor = Visitor::signed_in(&server).await;
    let links = async |visitor: &Visitor<'_>, job: &str| {
        let page = visitor.get(&format!("/jobs/{job}")).await.text();
        page.split("id=\"links\"").nth(1).map(|part| part.split("</section>").next().unwrap().to_owned())
    };
    let of_load = links(&visitor, "load").await.unwrap();
    let (before, behind) = of_load.split_once("<b>load</b>").unwrap();
    assert!(before.contains(">extract</a>") && before.contains(">secret-feed</a>") && before.contains("either way"));
    assert!(behind.contains(">report</a>") && behind.contains(">secret-copy</a>"), "{behind}");
    assert!(links(&visitor, "report").await.unwrap().contains("on failure"));
    job(&server, "alone", "mine", json!({})).await;
    assert_eq!(links(&visitor, "alone").await, None);
    let scoped = ScopedCaller::new(&server, "viewer").await;
    let seen = links(&scoped.visitor().await, "load").await.unwrap();
    assert!(seen.contains(">extract</a>") && seen.contains(">report</a>") && !seen.contains("secret"), "{seen}");
}

#[tokio::test]
async fn the_api_returns_the_data_of_the_pages() {
    let server = Server::start().await;
    server.job("alpha").await;
    let run = failed(&server, "alpha").await;
    server.count_runs().await;
    let stats = server.get("/api/v1/stats").await.expect(200);
    assert_eq!((&stats["step"], &stats["series"][0]["total"]["counts"]), (&json!("15m"), &json!({"failed": 1})));
    assert!(stats["series"][0]["buckets"][0]["duration_ms"]["p95"].is_u64(), "{stats}");
    let by_app = server.get("/api/v1/stats?group=app&step=1h").await.expect(200);
    assert_eq!((&by_app["series"][0]["name"], &by_app["series"][0]["total"]["run_count"]), (&json!("app"), &json!(1)));
    let of_job = server.get("/api/v1/stats?job=alpha&group=job&step=1d").await.expect(200);
    assert_eq!((of_job["series"].as_array().unwrap().len(), &of_job["series"][0]["name"]), (1, &json!("alpha")));
    // Counts of short buckets are not stored this long, so the answer has longer ones.
    for (of, step) in [("", "1h"), ("&group=app", "1h"), ("&job=alpha", "1d")] {
        let stats = server.get(&format!("/api/v1/stats?from=2020-01-01T02:00:00Z&to=2020-01-01T04:00:00Z{of}")).await;
        assert_eq!(stats.expect(200)["step"], step, "{of}");
    }
    for bad in [
        "step=1d",
        "step=2h",
        "group=job",
        "group=x",
        "from=2027-01-15T08:00:00Z&to=2027-01-14T08:00:00Z",
        "job=%3Cb%3E",
    ] {
        server.get(&format!("/api/v1/stats?{bad}")).await.expect(422);
    }
    server.get("/api/v1/stats?app=nosuch").await.expect(404);
    let missing = server.get("/api/v1/stats?job=alpha,nosuch").await.expect(404);
    assert_eq!(missing["detail"], "there is no job \"nosuch\" in namespace default");

    let timeline = server.get("/api/v1/timeline").await.expect(200);
    let lane = &timeline["lanes"][0];
    assert_eq!(
        (&lane["name"], &lane["trouble_count"], &lane["marks"][0]["run"]),
        (&json!("alpha"), &json!(1), &json!(run))
    );
    for bad in ["by=colour", "limit=101", "from=2020-01-01T00:00:00Z"] {
        server.get(&format!("/api/v1/timeline?{bad}")).await.expect(422);
    }
    let fires = server.get("/api/v1/fires").await.expect(200);
    assert_eq!((&fires["count"], &fires["items"]), (&json!(0), &json!([])));
    let every = json!({"name": "beta", "app": "app", "handler": "handler", "schedule": {"every": "1h"}});
    server.with_body("POST", "/api/v1/jobs", every).await.expect(201);
    let fires = server.get("/api/v1/fires?limit=3").await.expect(200);
    assert_eq!((&fires["count"], fires["items"].as_array().unwrap().len()), (&json!(24), 3));
    assert_eq!((&fires["items"][0]["job"], &fires["peak"]["count"]), (&json!("beta"), &json!(1)));
    server.get("/api/v1/fires?to=2030-01-01T00:00:00Z").await.expect(422);
}

#[tokio::test]
async fn a_caller_with_one_app_sees_nothing_of_the_others() {
    let server = Server::start().await;
    job(&server, "secret-job", "theirs", json!({"schedule": {"every": "1h"}})).await;
    job(&server, "own-job", "mine", json!({})).await;
    failed(&server, "secret-job").await;
    failed(&server, "own-job").await;
    server.count_runs().await;
    let scoped = ScopedCaller::new(&server, "viewer").await;
    for path in ["stats?group=app", "timeline", "timeline?by=app", "timeline?by=executor", "fires"] {
        let text = scoped.get(&format!("/api/v1/{path}")).await.text();
        assert!(!text.contains("secret-job") && !text.contains("theirs"), "{path}: {text}");
    }
    let stats: Value = scoped.get("/api/v1/stats").await.expect(200);
    assert_eq!(stats["series"][0]["total"]["run_count"], 1);
    scoped.get("/api/v1/stats?app=theirs").await.expect(404);
    let visitor = scoped.visitor().await;
    for path in ["/", "/timeline", "/timeline?by=app", "/timeline/ahead"] {
        let text = visitor.get(path).await.text();
        assert!(!text.contains("secret-job") && !text.contains("theirs"), "{path}");
    }
    assert!(visitor.get("/").await.text().contains("own-job"));
}

#[tokio::test]
async fn the_next_fire_is_found_behind_many_of_other_apps() {
    let server = Server::start().await;
    for number in 0..41 {
        job(&server, &format!("theirs-{number}"), "theirs", json!({"schedule": {"every": "1h"}})).await;
    }
    job(&server, "own-job", "mine", json!({"schedule": {"cron": "0 0 0 1 1 ?"}})).await;
    let page = ScopedCaller::new(&server, "viewer").await.visitor().await.get("/").await.text();
    assert!(page.contains("next fire <b class=\"rel\" data-at="), "{page}");
}

#[test]
fn the_pages_are_for_viewers() {
    let table = route_table();
    for path in ["/", "/timeline", "/timeline/ahead", "/api/v1/stats", "/api/v1/timeline", "/api/v1/fires"] {
        let route = table.iter().find(|route| route.path == path && route.method == "GET").unwrap();
        assert!(!matches!(route.access, Access::Open), "{path}");
    }
}
