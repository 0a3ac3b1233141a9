//! The list of executors: its pages, and the switches.

use rondel_core::homes::Switch;
use rondel_core::{AppId, ExecutorId, NamespaceId};
use rondel_store::cluster::ExecutorRecord;
use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::Visitor;

const DEFAULT_NAMESPACE: NamespaceId = NamespaceId::new(1);

/// Creates the executors `a000` to `a124` of one app and `b000` to `b004` of another. This node reports that it hears them.
async fn with_executors() -> Server {
    let server = Server::start().await;
    let (engine, now) = (&server.engine, server.engine.now());
    for (app, count) in [("a", 125), ("b", 5)] {
        let app_id =
            engine.store().ensure_app(AppId::new(engine.new_id()), DEFAULT_NAMESPACE, app, now).await.unwrap().id;
        for number in 0..count {
            save_executor(&server, app_id, format!("{app}{number:03}")).await;
        }
    }
    server
}

async fn save_executor(server: &Server, app: AppId, name: String) {
    let (engine, now) = (&server.engine, server.engine.now());
    let record = ExecutorRecord {
        id: ExecutorId::new(engine.new_id()),
        namespace: DEFAULT_NAMESPACE,
        app,
        name,
        predecessor: None,
        sdk_version: "1".to_owned(),
        labels: "{}".to_owned(),
        weight: 1,
        slots: 1,
        handlers: json!((0..40).map(|handler| format!("h{handler}")).collect::<Vec<_>>()).to_string(),
        secret_hash: None,
        first_seen_at: now,
        last_seen_at: now,
    };
    assert!(engine.store().open_session(engine.token(), &record, None).await.unwrap().is_some());
}

fn names(page: &Value) -> Vec<String> {
    page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_list_has_pages() {
    let server = with_executors().await;
    let first = server.get("/api/v1/executors").await.expect(200);
    assert_eq!(first["items"].as_array().unwrap().len(), 50);
    let (mut all, mut cursor) = (names(&first), first["next_cursor"].clone());
    while let Some(next) = cursor.as_str() {
        let page = server.get(&format!("/api/v1/executors?limit=50&cursor={next}")).await.expect(200);
        all.extend(names(&page));
        cursor = page["next_cursor"].clone();
    }
    let wanted: Vec<String> = (0..125).map(|n| format!("a{n:03}")).chain((0..5).map(|n| format!("b{n:03}"))).collect();
    assert_eq!(all, wanted);
    let whole = server.get("/api/v1/executors?limit=200").await.expect(200);
    assert_eq!((names(&whole), &whole["next_cursor"]), (wanted, &json!(null)));
    for bad in ["limit=0", "limit=201", "cursor=x", "app=a"] {
        server.get(&format!("/api/v1/executors?{bad}")).await.expect(422);
    }
}

#[tokio::test]
async fn the_page_of_the_console_has_pages_and_shows_some_handlers_of_many() {
    let server = with_executors().await;
    let visitor = Visitor::signed_in(&server).await;
    let first = visitor.get("/executors").await.text();
    assert!(first.contains("a000") && first.contains("a049") && !first.contains("a050"), "{first}");
    assert!(first.contains("h29") && !first.contains("h30<") && first.contains("+10"), "{first}");
    let next = first.split("href=\"/executors?").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let second = visitor.get(&format!("/executors?{}", next.replace("&amp;", "&"))).await.text();
    assert!(second.contains("a050") && !second.contains("a049"), "{second}");
}

/// If two executors have the same name, the second one is listed with a suffix.
#[tokio::test]
async fn an_executor_whose_name_another_one_has_has_a_page() {
    let server = Server::start().await;
    let (engine, now) = (&server.engine, server.engine.now());
    let app = engine.store().ensure_app(AppId::new(engine.new_id()), DEFAULT_NAMESPACE, "a", now).await.unwrap().id;
    for name in ["w1", "w1~00ab12"] {
        save_executor(&server, app, name.to_owned()).await;
    }
    let visitor = Visitor::signed_in(&server).await;
    let list = visitor.get("/executors").await.text();
    assert!(list.contains("href=\"/executors/w1~00ab12?app=a\""), "{list}");
    assert!(list.contains("data-live=\"run executor node\""), "the servers are on the page, too: {list}");
    let page = visitor.get("/executors/w1~00ab12?app=a").await;
    assert_eq!(page.status, 200, "{}", page.text());
    assert!(page.text().contains("<h1>w1~00ab12</h1>"), "{}", page.text());
    for missing in ["/executors/w2~00ab12?app=a", "/executors/~00ab12?app=a"] {
        assert_eq!(visitor.get(missing).await.status, 404, "{missing}");
    }
}

/// An app is shown on the page with its executors. An app without executors is shown where its name belongs in the order.
#[tokio::test]
async fn an_app_that_drains_is_shown_on_the_page_of_its_executors() {
    let server = with_executors().await;
    let (engine, now) = (&server.engine, server.engine.now());
    engine.store().ensure_app(AppId::new(engine.new_id()), DEFAULT_NAMESPACE, "aa", now).await.unwrap();
    let visitor = Visitor::signed_in(&server).await;
    assert_eq!(visitor.post("/apps/b/state", "state=draining&back=/executors").await.status, 303);
    let (mut path, mut pages) = ("/executors".to_owned(), Vec::new());
    for _ in 0..3 {
        let page = visitor.get(&path).await.text();
        let next = page.split("href=\"/executors?").nth(1).and_then(|rest| rest.split('"').next());
        path = format!("/executors?{}", next.unwrap_or_default().replace("&amp;", "&"));
        pages.push(page);
    }
    let counts: Vec<usize> =
        pages.iter().map(|page| page.matches("No executor of this app was online").count()).collect();
    assert_eq!(counts, [0, 0, 1], "{}", pages[0]);
    assert!(!pages[0].contains("<h2>b</h2>") && pages[2].contains("<h2>b</h2>") && pages[2].contains("b004"));
}

/// An executor's switch belongs to its name. Setting it again is no error, and it remains after the executor has gone.
#[tokio::test]
async fn executors_are_switched_by_name_and_listed_for_it() {
    let server = with_executors().await;
    let set =
        async |name: &str, body: Value| server.with_body("PUT", &format!("/api/v1/executors/{name}/state"), body).await;
    for (state, expected) in
        [("draining", "draining"), ("draining", "draining"), ("stopped", "stopped"), ("active", "active")]
    {
        let executor = set("a007", json!({"state": state})).await.expect(200);
        assert_eq!((&executor["name"], &executor["app"]), (&json!("a007"), &json!("a")));
        assert_eq!((&executor["state"], &executor["run_count"]), (&json!(expected), &json!(0)));
        assert_eq!(executor["state_since"].is_null(), state == "active");
    }
    set("a007", json!({"app": "b", "state": "draining"})).await.expect(404);
    set("a999", json!({"state": "draining"})).await.expect(404);
    set("a007", json!({"state": "off"})).await.expect(422);
    let audit = server.get("/api/v1/audit").await.expect(200);
    let changes: Vec<(&Value, &Value)> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["object"] == "a007")
        .map(|entry| (&entry["changes"], &entry["action"]))
        .collect();
    assert!(!changes.is_empty(), "{audit}");
    // An executor that has not been heard from for a long time is listed because of its switch, and can be activated.
    let (engine, now) = (&server.engine, server.engine.now());
    let app = engine.store().app(DEFAULT_NAMESPACE, "b").await.unwrap().unwrap().id;
    engine.store().set_executor_switch(app, "gone", Switch::Draining, now).await.unwrap();
    let listed = server.get("/api/v1/executors?limit=200").await.expect(200);
    let gone = listed["items"].as_array().unwrap().iter().find(|item| item["name"] == "gone").expect("it is listed");
    assert_eq!((&gone["status"], &gone["state"], &gone["app"]), (&json!("offline"), &json!("draining"), &json!("b")));
    set("gone", json!({"state": "active"})).await.expect(200);
    set("gone", json!({"state": "active"})).await.expect(404);
    // If two apps have an executor with this name, the request must name the app.
    engine.store().set_executor_switch(app, "a007", Switch::Draining, now).await.unwrap();
    let refusal = set("a007", json!({"state": "stopped"})).await.expect(422);
    assert!(refusal.to_string().contains("executors of a, b have this name"), "{refusal}");
    set("a007", json!({"app": "b", "state": "active"})).await.expect(200);
}

#[tokio::test]
async fn the_console_drains_an_executor_with_a_countdown_and_takes_it_back() {
    let server = with_executors().await;
    let visitor = Visitor::signed_in(&server).await;
    let text = visitor.get("/executors").await.text();
    assert!(text.contains("action=\"/executors/a001/drain?app=a\""), "{text}");
    assert_eq!(visitor.post("/executors/a001/drain?app=a", "back=/executors").await.status, 303);
    let text = visitor.get("/executors").await.text();
    assert!(text.contains("No run left; waiting for all servers") && text.contains("data-live-every"), "{text}");
    let app = server.engine.store().app(DEFAULT_NAMESPACE, "a").await.unwrap().unwrap().id;
    // The switch was set some time ago, so no server can still send the executor a run.
    let store = server.engine.store();
    store.set_executor_switch(app, "a001", Switch::Active, server.engine.now()).await.unwrap();
    let earlier = server.engine.now() - std::time::Duration::from_secs(10);
    store.set_executor_switch(app, "a001", Switch::Draining, earlier).await.unwrap();
    let text = visitor.get("/executors/a001?app=a").await.text();
    assert!(text.contains("Empty: safe to stop") && text.contains("/executors/a001/activate?app=a"), "{text}");
    let request = visitor.request("POST", "/executors/a001/activate?app=a").header("hx-request", "true");
    let request = request.header("content-type", "application/x-www-form-urlencoded").header("origin", "http://here");
    let part = server.send(request.body(axum::body::Body::empty()).unwrap()).await.text();
    assert!(part.contains("a001 gets new runs again") && part.contains("/executors/a001/drain?app=a"), "{part}");
    assert_eq!(visitor.post("/executors/none/drain", "").await.status, 404);
}

/// A caller may name the executor of a run. The name is refused if the run could never start on that executor, with a message about what
/// would be valid.
#[tokio::test]
async fn a_run_is_triggered_for_one_executor() {
    let server = with_executors().await;
    let job = json!({"name": "report", "app": "b", "handler": "h7"});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let trigger = async |executor: &str| {
        server.with_body("POST", "/api/v1/jobs/report/runs", json!({"executor": executor})).await
    };
    let run = trigger("b003").await.expect(201);
    assert_eq!((&run["only_executor"], &run["executor"]), (&json!("b003"), &json!(null)));
    let location = format!("/api/v1/runs/{}", run["id"].as_str().unwrap());
    assert_eq!(server.get(&location).await.expect(200)["only_executor"], "b003");
    let any = server.bare("POST", "/api/v1/jobs/report/runs").await.expect(201);
    assert_eq!(any.get("only_executor"), None);

    let complaint = async |executor: &str| {
        let problem = trigger(executor).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], "/executor");
        problem["errors"][0]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        complaint("b005").await,
        "app b has no executor \"b005\"; it has b000, b001, b002, b003, b004",
        "and a005 is of another app"
    );
    assert!(complaint("<script>").await.contains("no executor \"<script>\""));
    let (engine, now) = (&server.engine, server.engine.now());
    let app = engine.store().app(DEFAULT_NAMESPACE, "b").await.unwrap().unwrap().id;
    for switch in [Switch::Draining, Switch::Stopped] {
        engine.store().set_executor_switch(app, "b001", switch, now).await.unwrap();
        let expected = format!("executor \"b001\" is switched to {switch}: activate it first, or name another one");
        assert_eq!(complaint("b001").await, expected);
    }
    let job = json!({"name": "other", "app": "b", "handler": "missing", "select": {"executors": ["b002"]}});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let refusal = server.with_body("POST", "/api/v1/jobs/other/runs", json!({"executor": "b000"})).await.expect(422);
    assert_eq!(refusal["errors"][0]["message"], "executor \"b000\" does not have handler \"missing\"");
    let job = json!({"name": "picky", "app": "b", "handler": "h1", "select": {"executors": ["b002"]}});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let refusal = server.with_body("POST", "/api/v1/jobs/picky/runs", json!({"executor": "b000"})).await.expect(422);
    assert!(refusal["errors"][0]["message"].as_str().unwrap().contains("(select)"), "{refusal}");

    // A repeat keeps the chosen executor. The console shows it, and its form accepts an executor.
    let id = run["id"].as_str().unwrap().parse().unwrap();
    server.finish(id, rondel_core::outcome::Outcome::Succeeded).await;
    let again = server.bare("POST", &format!("{location}/retry")).await.expect(201);
    assert_eq!(again["only_executor"], "b003");
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get(&format!("/runs/{}", run["id"].as_str().unwrap())).await.text();
    assert!(page.contains("id=\"only-executor\">b003<"), "{page}");
    let posted = visitor.post("/jobs/report/runs", "executor=b002").await;
    let location = crate::visitor::location(&posted);
    let page = visitor.get(&location).await.text();
    assert!(page.contains("id=\"only-executor\">b002<"), "{page}");
    let page = visitor.post("/jobs/report/runs", "executor=nosuch").await.text();
    assert!(page.contains("has no executor"), "{page}");
}
