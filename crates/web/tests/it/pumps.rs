//! Pump jobs: their items and groups, and the requests that are refused for them.

use std::collections::HashSet;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use rondel_core::outcome::Outcome;
use rondel_core::pump::{Counts, ItemChange, Owner, Progress};
use rondel_core::{ExecutorId, JobId, Run, RunId, Timestamp};
use rondel_store::ledger::RunAtExecutor;
use serde_json::{Value, json};

use crate::harness::Server;
use crate::one_app_role::ScopedCaller;
use crate::visitor::Visitor;

/// The definition of a pump job with two groups and these items.
pub(crate) fn definition(items: &Value) -> Value {
    json!({"name": "orders", "app": "mine", "handler": "orders.close", "pump": {"items": items, "groups": 2}})
}

/// Creates a pump job whose groups are running on an executor. Returns the job and the runs of the groups.
pub(crate) async fn running_pump(server: &Server, items: &Value) -> (JobId, Vec<RunId>) {
    server.with_body("POST", "/api/v1/jobs", definition(items)).await.expect(201);
    let store = server.engine.store();
    let namespace = store.namespace("default").await.unwrap().unwrap();
    let job = store.job(namespace.id, "orders").await.unwrap().unwrap().id;
    let root = wait_until(async || store.pump_roots(job, server.engine.now(), 1).await.unwrap().pop()).await;
    let group = |index: i32| Run {
        id: RunId::new(root.id.get() + 1 + i64::from(index)),
        shard_index: index,
        shard_total: Some(2),
        parent: Some(root.id),
        ..root.clone()
    };
    // Stores the groups like the dispatcher does when an executor is connected.
    let runs = [group(0), group(1)];
    assert!(store.expand(server.engine.token(), root.id, &runs).await.unwrap());
    let groups = runs.map(|run| run.id).to_vec();
    let at = server.engine.now();
    let in_hand = |run: &RunId| RunAtExecutor {
        run: *run,
        attempt: 1,
        executor_id: ExecutorId::new(77),
        executor: "w1".to_owned(),
        at,
    };
    let in_hand: Vec<RunAtExecutor> = groups.iter().map(in_hand).collect();
    store.note_running(server.engine.token(), &in_hand).await.unwrap();
    (job, groups)
}

async fn wait_until<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    unreachable!("it did not come about within 30 s")
}

pub(crate) async fn items_of(server: &Server, query: &str) -> Value {
    server.get(&format!("/api/v1/jobs/orders/items{query}")).await.expect(200)
}

/// Changes items like the pump loop does. Waits first until the loop has stored them.
pub(crate) async fn change(server: &Server, job: JobId, changes: &[(String, ItemChange)]) {
    let names: HashSet<&String> = changes.iter().map(|(name, _)| name).collect();
    let store = server.engine.store();
    wait_until(async || {
        let known = store.pump_items(job).await.unwrap();
        (known.iter().filter(|item| names.contains(&item.name)).count() == names.len()).then_some(())
    })
    .await;
    let changed = store.change_items(server.engine.token(), job, changes, server.engine.now()).await.unwrap();
    assert_eq!(changed.applied_count, changes.len() as u64);
}

pub(crate) fn progress(owner: Owner, epoch: i64, done: i64, oldest_at: Option<Timestamp>) -> ItemChange {
    ItemChange::Report(Progress {
        owner,
        epoch,
        sequence: done,
        counts: Counts { fetches: 3, rows: done + 5, done, failed: 2 },
        per_minute: 120,
        oldest_at,
        is_dry: oldest_at.is_none(),
        checkpoint: Some(r#"{"after":7,"password":"hunter2"}"#.to_owned()),
        is_released: false,
    })
}

pub(crate) fn dealt_item(name: &str, to: Owner) -> (String, ItemChange) {
    (name.to_owned(), ItemChange::Deal { epoch: 0, to })
}

#[tokio::test]
async fn items_have_groups_counts_and_states() {
    let server = Server::start().await;
    let (job, groups) = running_pump(&server, &json!({"count": 3})).await;
    let owner = |index: usize| Owner { run: groups[index], attempt: 1 };
    let oldest_at = server.engine.now() - Duration::from_secs(60);
    let changes = [
        dealt_item("0", owner(0)),
        dealt_item("1", owner(1)),
        ("0".to_owned(), progress(owner(0), 1, 100, Some(oldest_at))),
        ("1".to_owned(), progress(owner(1), 1, 10, None)),
        ("1".to_owned(), ItemChange::AskToRelease { epoch: 1 }),
    ];
    change(&server, job, &changes).await;
    let view = items_of(&server, "").await;
    let root = &view["root"];
    assert_eq!(
        (&root["status"], &root["ends_at"], &root["is_ending"]),
        (&json!("running"), &json!(null), &json!(false))
    );
    let group = &view["groups"][0];
    assert_eq!((&group["index"], &group["executor"], &group["attempt"]), (&json!(0), &json!("w1"), &json!(1)));
    assert_eq!((&group["item_count"], &group["per_minute"]), (&json!(1), &json!(120)));
    let names: Vec<&str> =
        view["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["0", "1", "2"]);
    let first = &view["items"][0];
    assert_eq!((&first["state"], &first["epoch"], &first["group"]), (&json!("dealt"), &json!(1), &json!(0)));
    assert_eq!((&first["run"], &first["executor"]), (&json!(groups[0]), &json!("w1")));
    assert_eq!(
        (&first["fetches"], &first["rows"], &first["done"], &first["failed"]),
        (&json!(3), &json!(105), &json!(100), &json!(2))
    );
    assert!(first["oldest_age_ms"].as_u64().unwrap() >= 60_000, "{first}");
    let second = &view["items"][1];
    assert_eq!(
        (&second["state"], &second["dry"], &second["oldest_age_ms"]),
        (&json!("releasing"), &json!(true), &json!(null))
    );
    assert!(second["asked_at"].is_string());
    let totals = &view["totals"];
    assert_eq!((&totals["dealt"], &totals["releasing"], &totals["done"]), (&json!(1), &json!(1), &json!(110)));
    assert_eq!((&totals["per_minute"], &totals["oldest_at"]), (&json!(240), &first["oldest_at"]));

    let releasing = items_of(&server, "?state=releasing").await;
    assert_eq!((releasing["items"].as_array().unwrap().len(), &releasing["items"][0]["name"]), (1, &json!("1")));
    assert_eq!(releasing["totals"]["dealt"], 1, "totals are of all items");
}

#[tokio::test]
async fn items_come_in_pages_before_they_have_an_owner() {
    let server = Server::start().await;
    server.with_body("POST", "/api/v1/jobs", definition(&json!({"count": 12}))).await.expect(201);
    let (mut names, mut query) = (Vec::new(), "?limit=5".to_owned());
    loop {
        let page = items_of(&server, &query).await;
        names.extend(page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()));
        assert_eq!((&page["totals"]["free"], &page["items"][0]["epoch"]), (&json!(12), &json!(0)));
        let Some(next) = page["next_cursor"].as_str() else { break };
        query = format!("?limit=5&cursor={next}");
    }
    assert_eq!(names, (0..12).map(|number: u32| number.to_string()).collect::<Vec<_>>());
    let page = items_of(&server, "?limit=5").await;
    let other = format!("/api/v1/jobs/orders/items?state=free&cursor={}", page["next_cursor"].as_str().unwrap());
    assert_eq!(server.get(&other).await.expect(422)["code"], "invalid_cursor");
    assert_eq!(server.get("/api/v1/jobs/orders/items?limit=201").await.expect(422)["code"], "invalid_query");
}

#[tokio::test]
async fn a_window_ends_at_an_instant() {
    let server = Server::start().await;
    let mut pump = definition(&json!({"count": 2}));
    pump["pump"]["until"] = json!({"cron": "0 0 6 1 1 ?"});
    server.with_body("POST", "/api/v1/jobs", &pump).await.expect(201);
    let root = wait_until(async || Some(items_of(&server, "").await["root"].clone()).filter(Value::is_object)).await;
    let ends_at = root["ends_at"].as_str().unwrap();
    assert!(ends_at.ends_with("-01-01T06:00:00Z"), "{root}");
    server.bare("POST", &format!("/api/v1/runs/{}/cancel", root["run"].as_str().unwrap())).await.expect(202);
    let ended = wait_until(async || {
        let root = items_of(&server, "").await["root"].clone();
        (root["status"] == "cancelled").then_some(root)
    });
    let ended = ended.await;
    assert_eq!((&ended["ends_at"], &ended["is_ending"]), (&json!(null), &json!(false)));
}

#[tokio::test]
async fn other_jobs_have_no_items() {
    let server = Server::start().await;
    server.job("a").await;
    let refusal = server.get("/api/v1/jobs/a/items").await.expect(409);
    assert_eq!(refusal["code"], "not_a_pump");
    assert_eq!(refusal["detail"], "job \"a\" has no `pump` in its definition, so it has no items");
    assert_eq!(server.get("/api/v1/jobs/nosuch/items").await.expect(404)["code"], "job_not_found");
}

#[tokio::test]
async fn a_checkpoint_is_shown_like_parameters() {
    let server = Server::start().await;
    let (job, groups) = running_pump(&server, &json!({"count": 2})).await;
    let owner = Owner { run: groups[0], attempt: 1 };
    change(&server, job, &[dealt_item("0", owner), ("0".to_owned(), progress(owner, 1, 1, None))]).await;
    for (role, is_shown) in [("viewer", false), ("operator", false), ("editor", true)] {
        let scoped = ScopedCaller::new(&server, role).await;
        let view = scoped.get("/api/v1/jobs/orders/items").await.expect(200);
        let checkpoint = view["items"][0]["checkpoint"].as_str().unwrap();
        assert_eq!(checkpoint.contains("hunter2"), is_shown, "{role}: {checkpoint}");
        assert!(checkpoint.contains("\"after\":7"), "{role}: {checkpoint}");
    }
}

#[tokio::test]
async fn options_that_no_pump_can_have_are_refused() {
    let server = Server::start().await;
    let mut short = definition(&json!({"count": 4}));
    short["pump"]["hand_over"] = json!("25s");
    let refusal = server.with_body("POST", "/api/v1/jobs", &short).await.expect(422);
    assert_eq!(refusal["errors"][0]["pointer"], "/pump/hand_over");
    let message = refusal["errors"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("25s must be longer than 25s"), "{message}");
    let mut patient = definition(&json!({"count": 4}));
    patient["queue_timeout"] = json!("5m");
    let refusal = server.with_body("POST", "/api/v1/jobs", &patient).await.expect(422);
    assert_eq!(refusal["errors"][0]["pointer"], "/queue_timeout");
    server.with_body("POST", "/api/v1/jobs", definition(&json!({"count": 4}))).await.expect(201);
    let refusal = server.with_body("POST", "/api/v1/jobs/orders/runs", json!({"executor": "w1"})).await.expect(422);
    assert_eq!(refusal["errors"][0]["pointer"], "/executor");
    assert!(refusal["detail"].as_str().unwrap().contains("a pump job's groups go to all executors"), "{refusal}");
    let run = server.with_body("POST", "/api/v1/jobs/orders/runs", json!({"params": {"day": 1}})).await.expect(201);
    assert_eq!(run["params"], json!({"day": 1}));
}

#[tokio::test]
async fn a_page_shows_the_owner_of_each_item() {
    let server = Server::start().await;
    let (job, groups) = running_pump(&server, &json!({"count": 3})).await;
    let owner = |index: usize| Owner { run: groups[index], attempt: 1 };
    let oldest_at = server.engine.now() - Duration::from_secs(60);
    let changes = [
        dealt_item("0", owner(0)),
        dealt_item("1", owner(1)),
        ("0".to_owned(), progress(owner(0), 1, 100, Some(oldest_at))),
        ("1".to_owned(), progress(owner(1), 1, 10, None)),
        ("1".to_owned(), ItemChange::AskToRelease { epoch: 1 }),
    ];
    change(&server, job, &changes).await;
    let mut visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/jobs/orders/pump").await.text();
    let row = |name: &str| page.split_once(&format!("id=\"item-{name}\"")).unwrap().1.split_once("</tr>").unwrap().0;
    assert!(
        row("0").contains("with a group")
            && row("0").contains(">100</td>")
            && row("0").contains("data-label=\"Oldest row\""),
        "{page}"
    );
    assert!(row("1").contains("handed over") && row("1").contains("release requested"), "{page}");
    assert!(row("0").contains(&format!("<a href=\"/runs/{}\">1</a>", groups[0])), "{page}");
    assert!(page.contains("<b>110</b> rows done") && page.contains("3 items: <b>1</b> with groups"), "{page}");
    assert!(page.contains("data-live-every=\"5\"") && page.contains("hunter2"), "{page}");
    let releasing = visitor.get("/jobs/orders/pump?state=releasing").await.text();
    assert!(releasing.contains("id=\"item-1\"") && !releasing.contains("id=\"item-0\""), "{releasing}");
    assert!(visitor.get("/jobs/orders/pump?state=free").await.text().contains("id=\"item-2\""));

    let of_job = visitor.get("/jobs/orders").await.text();
    assert!(of_job.contains("hx-get=\"/jobs/orders/pump\""), "{of_job}");
    assert!(of_job.contains("always, from the time it is saved · until it is paused or cancelled"), "{of_job}");
    assert!(of_job.contains("<dt>Workers per group</dt><dd>5</dd>"), "{of_job}");
    visitor.language = "zh";
    let chinese = visitor.get("/jobs/orders/pump").await.text();
    assert!(chinese.contains("正在移交") && !chinese.contains("handed over"), "{chinese}");

    server.job("plain").await;
    assert!(!visitor.get("/jobs/plain").await.text().contains("/jobs/plain/pump"));
    let refusal = visitor.get("/jobs/plain/pump").await;
    assert_eq!(refusal.status, 409);
    assert!(refusal.text().contains("的定义中没有"), "{}", refusal.text());
}

#[tokio::test]
async fn the_runs_of_a_pump_are_named_as_its_root_and_its_groups() {
    let server = Server::start().await;
    let (_, groups) = running_pump(&server, &json!({"count": 3})).await;
    let listed = server.get("/api/v1/runs").await.expect(200);
    let mut parts: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|run| &run["part"]).collect();
    parts.sort_by_key(|part| part.to_string());
    assert_eq!(parts, ["group", "group", "root"]);
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/runs").await.text();
    assert!(page.contains("<span class=\"tag\">root</span>"), "{page}");
    assert!(page.contains("<span class=\"tag\">group</span>"), "{page}");
    let group = visitor.get(&format!("/runs/{}", groups[0])).await.text();
    assert!(group.contains("<dd id=\"part\">group</dd>"), "{group}");
    // A pump's groups are distributed to all suitable executors, so the form does not offer to name one.
    server.job("plain").await;
    let (of_pump, plain) = (visitor.get("/jobs/orders").await.text(), visitor.get("/jobs/plain").await.text());
    for (page, takes_executor) in [(of_pump, false), (plain, true)] {
        assert!(page.contains("name=\"if_open\""), "{page}");
        assert_eq!(page.contains("name=\"executor\""), takes_executor, "{page}");
    }
}

#[tokio::test]
async fn a_page_of_many_items_stays_small() {
    let server = Server::start().await;
    server.with_body("POST", "/api/v1/jobs", definition(&json!({"count": 10_000}))).await.expect(201);
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/jobs/orders/pump").await.text();
    assert_eq!(page.matches("id=\"item-").count(), 100);
    assert!(page.len() < 200_000, "{} bytes", page.len());
    let next = page.split("href=\"").filter_map(|part| part.split_once('"')).map(|(href, _)| href);
    let next =
        next.into_iter().find(|href| href.contains("cursor=")).unwrap().replace("&#38;", "&").replace("&amp;", "&");
    let second = visitor.get(&next).await.text();
    assert!(second.contains("id=\"item-100\"") && second.contains("id=\"item-199\""), "{second}");
    assert!(second.contains("<a class=\"button\" href=\"/jobs/orders/pump\">First page</a>"), "{second}");
}

#[tokio::test]
async fn groups_of_the_app_that_the_job_left_are_not_shown_to_callers_of_its_new_app() {
    let server = Server::start().await;
    let (job, groups) = running_pump(&server, &json!({"count": 3})).await;
    change(&server, job, &[dealt_item("0", Owner { run: groups[0], attempt: 1 })]).await;
    assert!(items_of(&server, "").await.to_string().contains("\"w1\""));
    server.with_body("POST", "/api/v1/apps", json!({"name": "theirs"})).await.expect(201);
    server.with_body("PATCH", "/api/v1/jobs/orders", json!({"app": "theirs"})).await.expect(200);
    let grants = json!([{"role": "viewer", "namespace": "default", "app": "theirs"}]);
    let body = json!({"kind": "api", "name": "reader", "grants": grants});
    let created = server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
    let bearer = format!("Bearer {}", created["token"].as_str().unwrap());
    let request = Request::builder().uri("/api/v1/jobs/orders/items").header("authorization", bearer);
    let view = server.send(request.body(Body::empty()).unwrap()).await.expect(200);
    assert_eq!((&view["groups"], view["items"].as_array().map(Vec::len)), (&json!([]), Some(3)), "{view}");
    assert!(!view.to_string().contains("\"w1\""), "{view}");
}

#[tokio::test]
async fn an_ended_run_has_the_rows_of_all_groups_and_attempts() {
    let server = Server::start().await;
    let (_, groups) = running_pump(&server, &json!({"count": 3})).await;
    let root = server.engine.store().runs(&groups[..1]).await.unwrap()[0].parent.unwrap();
    let rows = async || server.get(&format!("/api/v1/runs/{root}")).await.expect(200)["rows"].clone();
    server.end_group((groups[0], 1), Outcome::Yielded, "fetched 10, done 8, failed 2").await;
    server.end_group((groups[0], 2), Outcome::Succeeded, "fetched 4, done 4, failed 0; 1 selects failed").await;
    assert_eq!(rows().await, Value::Null, "it is not over");
    server.end_group((groups[1], 1), Outcome::Succeeded, "fetched 100, done 97, failed 3").await;
    assert_eq!(rows().await, json!({"fetched": 114, "done": 109, "failed": 5}));
}

#[tokio::test]
async fn a_run_has_the_rows_of_the_attempts_before_one_that_was_lost() {
    let server = Server::start().await;
    let (_, groups) = running_pump(&server, &json!({"count": 3})).await;
    let root = server.engine.store().runs(&groups[..1]).await.unwrap()[0].parent.unwrap();
    server.end_group((groups[0], 1), Outcome::Yielded, "fetched 10, done 8, failed 2").await;
    server.end_group((groups[0], 2), Outcome::Cancelled, "").await;
    server.end_group((groups[1], 1), Outcome::Cancelled, "").await;
    let rows = server.get(&format!("/api/v1/runs/{root}")).await.expect(200)["rows"].clone();
    assert_eq!(rows, json!({"fetched": 10, "done": 8, "failed": 2}));
}
