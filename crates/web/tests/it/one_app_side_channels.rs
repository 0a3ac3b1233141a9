//! A caller with a role on only one app tries to learn about other apps indirectly: through jobs that moved, through jobs that follow
//! from others, through names of apps, and through stored answers. The caller also tries to hide entries of the audit log, to
//! act under another name, and to exhaust limits.

use axum::body::Body;
use axum::http::Request;
use rondel_admin::auth::Token;
use rondel_core::access::{Grant, Role};
use rondel_core::outcome::Outcome;
use rondel_core::{NamespaceId, RunId};
use rondel_store::access::{AccountChange, TokenKind, TokenRecord};
use serde_json::{Value, json};

use crate::alerts::wait_for_incident;
use crate::harness::Server;
use crate::one_app_role::{ScopedCaller, follows, job};
use crate::visitor::Visitor;

#[tokio::test]
async fn a_moved_job_neither_shows_nor_gives_away_runs_of_its_old_app() {
    let server = Server::start().await;
    job(&server, "moving", "theirs", json!({})).await;
    let ended: RunId = server.trigger("moving").await;
    server.finish(ended, Outcome::Succeeded).await;
    let open: RunId = server.trigger("moving").await;
    let scoped = ScopedCaller::new(&server, "editor").await;
    server.with_body("PATCH", "/api/v1/jobs/moving", json!({"app": "mine"})).await.expect(200);

    for path in ["why", "fires", "stats"] {
        let text = scoped.get(&format!("/api/v1/jobs/moving/{path}")).await.text();
        assert!(!text.contains(&open.to_string()) && !text.contains(&ended.to_string()), "{path}: {text}");
    }
    let counted = |stats: Value| {
        let hours = stats["items"].as_array().unwrap().clone();
        hours.iter().map(|hour| hour["run_count"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(counted(scoped.get("/api/v1/jobs/moving/stats").await.expect(200)), 0);
    let page = scoped.visitor().await.get("/jobs/moving/fires?at=").await.text();
    assert!(!page.contains(&open.to_string()), "{page}");
    assert!(server.get("/api/v1/jobs/moving/why").await.text().contains(&open.to_string()));

    let own: RunId = server.trigger("moving").await;
    assert_eq!(scoped.ask("POST", "/api/v1/jobs/moving/cancel", json!({})).await.expect(202)["asked"], 1);
    let by =
        async |run: RunId| server.get(&format!("/api/v1/runs/{run}")).await.expect(200)["cancel_requested_by"].clone();
    assert!(by(own).await.is_string() && by(open).await.is_null());
    assert_eq!(server.with_body("POST", "/api/v1/jobs/moving/cancel", json!({})).await.expect(202)["asked"], 1);
}

/// The caller did not ask for the hidden run, so the audit log has no refusal.
#[tokio::test]
async fn the_page_of_a_run_from_before_a_move_is_not_recorded_as_a_refusal() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "viewer").await;
    job(&server, "moving", "mine", json!({})).await;
    let own = server.trigger("moving").await;
    server.with_body("PATCH", "/api/v1/jobs/moving", json!({"app": "theirs"})).await.expect(200);
    let next = server.trigger("moving").await;
    let path = format!("/runs/{own}");
    let page = scoped.visitor().await.get(&path).await;
    assert!(page.status == 200 && !page.text().contains(&next.to_string()), "{}", page.text());
    let page = Visitor::signed_in(&server).await.get(&path).await;
    assert!(page.text().contains(&format!("href=\"/runs/{next}\"")), "{}", page.text());
    let denied = server.get("/api/v1/audit?verdict=denied").await.expect(200);
    assert_eq!(denied["items"], json!([]));
}

#[tokio::test]
async fn a_retry_of_many_runs_is_recorded_although_the_job_of_one_moved_away() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "operator").await;
    let mut ids = Vec::new();
    for name in ["staying", "moving"] {
        job(&server, name, "mine", json!({})).await;
        let run = server.trigger(name).await;
        server.fail(run, "failed").await;
        ids.push(run.to_string());
    }
    server.with_body("PATCH", "/api/v1/jobs/moving", json!({"app": "theirs"})).await.expect(200);
    let retry = json!({"action": "retry", "ids": ids});
    let done = scoped.ask("POST", "/api/v1/runs:bulk", retry).await.expect(200);
    assert_eq!((&done["done"], done["problems"].as_array().map(Vec::len)), (&json!(1), Some(1)), "{done}");
    let entries = server.get("/api/v1/audit?action=run.bulk&limit=1").await.expect(200);
    let entry = &entries["items"][0];
    assert_eq!((&entry["verdict"], &entry["after"]["done"]), (&json!("allowed"), &json!(1)), "{entry}");

    // A retry that is refused for every run is a refusal, and one that fails for every run a failure.
    let newest_entry = async || {
        let entries = server.get("/api/v1/audit?action=run.bulk&limit=1").await.expect(200);
        (entries["items"][0]["verdict"].clone(), entries["items"][0]["after"]["problems"].clone())
    };
    let retry = json!({"action": "retry", "ids": [ids[1]]});
    assert_eq!(scoped.ask("POST", "/api/v1/runs:bulk", retry.clone()).await.expect(200)["done"], 0);
    assert_eq!(newest_entry().await, (json!("denied"), json!(1)));
    server.bare("DELETE", "/api/v1/jobs/moving").await.expect(204);
    assert_eq!(server.with_body("POST", "/api/v1/runs:bulk", &retry).await.expect(200)["done"], 0);
    assert_eq!(newest_entry().await, (json!("failed"), json!(1)));
}

/// The answer does not reveal that a hidden job or run exists, but the audit log has the refusal, as after a request for that one only.
#[tokio::test]
async fn actions_on_many_hidden_jobs_or_runs_are_recorded_as_refusals() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "operator").await;
    job(&server, "hidden", "theirs", json!({})).await;
    job(&server, "own", "mine", json!({})).await;
    let (hidden_run, own_run) = (server.trigger("hidden").await.to_string(), server.trigger("own").await.to_string());
    let newest_verdict = async |action: &str| {
        let entries = server.get(&format!("/api/v1/audit?action={action}&limit=1")).await.expect(200);
        entries["items"][0]["verdict"].clone()
    };
    let cases =
        [(json!(["hidden", "nosuch"]), "denied"), (json!(["nosuch"]), "failed"), (json!(["hidden", "own"]), "allowed")];
    for (names, verdict) in cases {
        let pause = json!({"action": "pause", "names": names});
        scoped.ask("POST", "/api/v1/jobs:bulk", pause).await.expect(200);
        assert_eq!(newest_verdict("job.bulk").await, verdict, "{names}");
    }
    for (ids, verdict) in [(json!([hidden_run]), "denied"), (json!([hidden_run, own_run]), "allowed")] {
        let cancel = json!({"action": "cancel", "ids": ids});
        scoped.ask("POST", "/api/v1/runs:bulk", cancel).await.expect(200);
        assert_eq!(newest_verdict("run.bulk").await, verdict, "{ids}");
    }
    let visitor = scoped.visitor().await;
    visitor.post("/jobs:bulk", "do=pause&job=hidden&expected=1").await;
    assert_eq!(newest_verdict("job.bulk").await, "denied");
    visitor.post("/runs:bulk", &format!("do=cancel&run={hidden_run}&expected=1")).await;
    assert_eq!(newest_verdict("run.bulk").await, "denied");
}

#[tokio::test]
async fn the_picker_of_roles_offers_no_app_that_the_caller_does_not_see() {
    let server = Server::start().await;
    let visitor = ScopedCaller::new(&server, "operator").await.visitor().await;
    for path in ["/account", "/settings/tokens"] {
        let page = visitor.get(path).await.text();
        assert!(page.contains("value=\"default/mine\"") && !page.contains("theirs"), "{path}: {page}");
    }
}

#[tokio::test]
async fn params_from_parents_are_for_callers_who_may_see_the_parents() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "editor").await;
    job(&server, "pay-parent", "theirs", json!({"params": {"password": "hunter2"}})).await;
    job(&server, "follower", "mine", json!({"schedule": {"after": ["pay-parent"]}, "overrides": "all"})).await;
    let parent: RunId = server.trigger("pay-parent").await;
    // The dispatcher adds parameters of this form when it sends a run that follows from another one.
    let passed =
        json!({"run_id": parent, "status": "succeeded", "result": {"card": "4111"}, "params": {"password": "hunter2"}});
    let params = json!({"params": {"own": "mine", "parents": {"pay-parent": passed}}});
    let run = server.with_body("POST", "/api/v1/jobs/follower/runs", params).await.expect(201)["id"].clone();
    let path = format!("runs/{}", run.as_str().unwrap());
    let visitor = scoped.visitor().await;
    for text in [scoped.get(&format!("/api/v1/{path}")).await.text(), visitor.get(&format!("/{path}")).await.text()] {
        assert!(text.contains("own"), "{text}");
        for word in ["hunter2", "4111", "pay-parent"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }
    let whole = server.get(&format!("/api/v1/{path}")).await.expect(200);
    assert_eq!(whole["params"]["parents"]["pay-parent"]["params"]["password"], "hunter2");

    server.finish(parent, Outcome::Failed { retryable: false }).await;
    for path in ["/api/v1/runs?job=follower", "/api/v1/jobs/follower/why", "/api/v1/jobs/follower/fires"] {
        let text = scoped.get(path).await.text();
        assert!(!text.contains("pay-parent"), "{path}: {text}");
    }
    let page = visitor.get("/runs").await.text();
    assert!(page.contains("follower") && !page.contains("pay-parent"), "{page}");
    // A caller who may not see the parent may not change the job either: the next run would pass the parent's data to the new definition.
    for change in [json!({"params": {"argv": ["env"]}}), json!({"description": "x"})] {
        let refusal = scoped.ask("PATCH", "/api/v1/jobs/follower", change).await.expect(422).to_string();
        assert!(refusal.contains("\"/schedule\""), "{refusal}");
    }
    let label = json!({"action": "label", "label": "team=pay", "names": ["follower"]});
    let done = scoped.ask("POST", "/api/v1/jobs:bulk", label).await.expect(200);
    assert_eq!((&done["jobs"], &done["problems"][0]["code"]), (&json!([]), &json!("invalid_body")), "{done}");
    scoped.ask("PATCH", "/api/v1/jobs/follower", json!({"enabled": false})).await.expect(200);
    scoped.ask("PATCH", "/api/v1/jobs/follower", json!({"enabled": true})).await.expect(200);
    let all = server.get("/api/v1/runs?job=follower&status=skipped").await.text();
    assert!(all.contains("parent job pay-parent ended as failed"), "{all}");
    let own = scoped.get("/api/v1/runs?job=follower&status=skipped").await.text();
    assert!(own.contains("a parent job did not end"), "{own}");
}

/// The server writes names of other jobs into messages: the name of the parent because of which a run was skipped, or of the child
/// because of which a run failed.
#[tokio::test]
async fn a_name_in_a_message_is_not_found_out_by_searches_reports_or_incidents() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "viewer").await;
    job(&server, "vault-2", "theirs", json!({})).await;
    job(&server, "follower", "mine", follows("vault-2")).await;
    job(&server, "patient", "mine", json!({})).await;
    server.with_body("PUT", "/api/v1/alert-rules/failing", json!({"condition": {"failed": {}}})).await.expect(201);
    server.fail(server.trigger("vault-2").await, "no key").await;
    server.fail(server.trigger("patient").await, "vault-2 failed").await;

    let count = |page: Value| page["items"].as_array().map(Vec::len);
    for (q, of_all, of_own) in [
        ("job:follower%20vault", 1, 0),
        ("job:follower%20%22a%20parent%20job%22", 0, 1),
        ("job:patient%20vault", 1, 0),
        ("job:patient%20-vault", 0, 1),
        ("job:patient%20%22a%20child%22", 0, 1),
    ] {
        let path = format!("/api/v1/runs?q={q}");
        assert_eq!(count(server.get(&path).await.expect(200)), Some(of_all), "{q}");
        assert_eq!(count(scoped.get(&path).await.expect(200)), Some(of_own), "{q}");
    }

    server.count_runs().await;
    let all = server.get("/api/v1/reports").await.expect(200)["failures"].to_string();
    assert!(all.contains("vault-# failed"), "{all}");
    let own = scoped.get("/api/v1/reports").await.expect(200);
    assert_eq!(own["failures"][0]["message"], "a child failed", "{own:#}");

    let incident = wait_for_incident(&server, "patient").await;
    assert_eq!(incident["samples"][0]["message"], "vault-2 failed", "{incident:#}");
    let own = scoped.get("/api/v1/incidents?job=patient").await.expect(200);
    assert_eq!(own["items"][0]["samples"][0]["message"], "a child failed", "{own:#}");
    let id = incident["id"].as_str().unwrap();
    let own = scoped.get(&format!("/api/v1/incidents/{id}")).await.text();
    assert!(own.contains("a child failed") && !own.contains("vault"), "{own}");
    let visitor = scoped.visitor().await;
    for path in ["/alerts", &format!("/alerts/incidents/{id}"), "/jobs/patient", "/reports"] {
        let page = visitor.get(path).await.text();
        assert!(page.contains("patient") && !page.contains("vault"), "{path}: {page}");
    }
}

#[tokio::test]
async fn a_follower_of_another_app_holds_no_job_fast() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "editor").await;
    job(&server, "parent", "mine", json!({})).await;
    job(&server, "secret-child", "theirs", follows("parent")).await;
    let refusal = scoped.ask("DELETE", "/api/v1/jobs/parent", Value::Null).await.expect(409).to_string();
    assert!(!refusal.contains("secret") && refusal.contains("force"), "{refusal}");
    scoped.ask("DELETE", "/api/v1/jobs/secret-child?force=true", Value::Null).await.expect(404);
    scoped.ask("DELETE", "/api/v1/jobs/parent?force=true", Value::Null).await.expect(204);
    server.get("/api/v1/jobs/parent").await.expect(404);
    server.get("/api/v1/jobs/secret-child").await.expect(200);
}

#[tokio::test]
async fn tokens_of_one_line_are_one_caller_and_have_names_of_their_own() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "editor").await;
    let new_token = |name: &str| json!({"kind": "api", "name": name, "grants": [{"role": "viewer", "namespace": "default", "app": "mine"}]});
    for name in ["admin", "ADMIN", "a\u{202e}b", "a\u{1b}[2J", "a\nb"] {
        scoped.ask("POST", "/api/v1/tokens", new_token(name)).await.expect(422);
    }
    let child = scoped.ask("POST", "/api/v1/tokens", new_token("child")).await.expect(201);
    let bearer = format!("Bearer {}", child["token"].as_str().unwrap());
    for _ in 1..199 {
        scoped.ask("POST", "/api/v1/tokens", new_token("child")).await.expect(201);
    }
    // The first token of the line counts too, so this would be the 201st.
    let refusal = scoped.ask("POST", "/api/v1/tokens", new_token("child")).await;
    assert_eq!(refusal.expect(409)["code"], "too_many_tokens");
    let request = Request::builder().method("POST").uri("/api/v1/tokens").header("authorization", bearer);
    let request =
        request.header("content-type", "application/json").body(Body::from(new_token("grandchild").to_string()));
    assert_eq!(server.send(request.unwrap()).await.expect(409)["code"], "too_many_tokens");
    assert_eq!(server.with_body("POST", "/api/v1/tokens", new_token("another line")).await.status, 201);

    job(&server, "there", "mine", json!({})).await;
    scoped.ask("PATCH", "/api/v1/jobs/there", json!({"description": "x"})).await.expect(200);
    let entries = server.get("/api/v1/audit?action=job.change&limit=1").await.expect(200);
    assert_eq!(entries["items"][0]["token_id"], scoped.token.as_str());
}

#[tokio::test]
async fn tokens_do_not_reveal_which_apps_exist() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "viewer").await;
    let ask = async |app: &str| {
        let grants = json!([{"role": "viewer", "namespace": "default", "app": app}]);
        let body = json!({"kind": "api", "name": "one", "grants": grants});
        let answer = scoped.ask("POST", "/api/v1/tokens", body).await;
        (answer.status, answer.json()["detail"].as_str().unwrap().replace(app, ""))
    };
    let (hidden, missing) = (ask("theirs").await, ask("nonono").await);
    assert_eq!((hidden.0.as_u16(), &hidden), (403, &missing));
}

#[tokio::test]
async fn padding_hides_no_job_of_a_list_from_the_audit_log() {
    let server = Server::start().await;
    let mut jobs: Vec<Value> = (0..80)
        .map(|n| json!({"name": format!("pad-{n}"), "app": "a", "handler": "h", "description": "x".repeat(990)}))
        .collect();
    jobs.push(json!({"name": "evil", "app": "a", "handler": "shell", "params": {"argv": ["true"]}}));
    server.with_body("POST", "/api/v1/jobs/apply", Value::from(jobs)).await.expect(200);
    let entries = server.get("/api/v1/audit?limit=1").await.expect(200);
    let after = entries["items"][0]["after"].as_object().unwrap().clone();
    assert_eq!(after.len(), 81, "{entries:#}");
    // The definition of a new job is not in the entry, but in the first version of the job.
    assert_eq!(after["evil"]["action"], "created", "{entries:#}");
}

#[tokio::test]
async fn a_kept_answer_is_not_given_to_roles_that_were_lost() {
    let server = Server::start().await;
    for app in ["mine", "theirs"] {
        server.with_body("POST", "/api/v1/apps", json!({"name": app})).await.expect(201);
    }
    job(&server, "there", "mine", json!({"params": {"password": "hunter2"}})).await;
    server
        .with_body("POST", "/api/v1/users", json!({"name": "ann", "grants": [{"role": "operator"}]}))
        .await
        .expect(201);
    let store = server.engine.store();
    let ann = store.account_by_name("ann").await.unwrap().unwrap().id;
    let token = Token::generate();
    let record = token.record(server.engine.new_id(), TokenKind::Api, server.engine.now());
    let grants = vec![Grant::everywhere(Role::Operator)];
    store.add_token(&TokenRecord { name: "one".to_owned(), owner: Some(ann), grants, ..record }).await.unwrap();
    let ask = async || {
        let request = Request::builder().method("POST").uri("/api/v1/jobs/there/runs").header("idempotency-key", "k");
        let request = request.header("authorization", format!("Bearer {}", token.reveal()));
        server.send(request.body(Body::empty()).unwrap()).await
    };
    let first = ask().await.expect(201);
    assert_eq!(ask().await.expect(201)["id"], first["id"]);
    let theirs = store.app(NamespaceId::new(1), "theirs").await.unwrap().unwrap();
    let grants = vec![Grant { role: Role::Operator, namespace: Some(NamespaceId::new(1)), app: Some(theirs.id) }];
    store.change_account(ann, &AccountChange { grants: Some(grants), ..AccountChange::default() }).await.unwrap();
    let again = ask().await;
    assert!(
        again.status.is_client_error() && !again.text().contains(first["id"].as_str().unwrap()),
        "{}",
        again.text()
    );
}

#[tokio::test]
async fn a_typed_name_is_not_recorded_as_the_actor() {
    let server = Server::start().await;
    let visitor = Visitor::new(&server);
    assert_eq!(visitor.post("/sign-in", "name=paula%1B&password=wrong&next=/").await.status, 401);
    let entries = server.get("/api/v1/audit?action=session.create").await.expect(200);
    assert_eq!(entries["items"][0]["actor"], "typed:paula\u{fffd}");
}

#[tokio::test]
async fn a_report_has_no_failures_from_before_a_job_moved_to_the_app() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "viewer").await;
    job(&server, "moved", "theirs", json!({"labels": {"team": "pay"}})).await;
    server.fail(server.trigger("moved").await, "no key for the vault").await;
    server.count_runs().await;
    server.with_body("PATCH", "/api/v1/jobs/moved", json!({"app": "mine"})).await.expect(200);
    for query in ["by=job&job=moved", "by=job", "by=label&label=team", "by=app", "by=namespace"] {
        let path = format!("/api/v1/reports?{query}");
        assert_eq!(scoped.get(&path).await.expect(200)["failures"], json!([]), "{query}");
        let whole = server.get(&path).await.expect(200);
        assert_eq!(whole["failures"][0]["message"], "no key for the vault", "{query}");
    }
}
