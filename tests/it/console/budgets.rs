//! The size of pages: the compressed bytes of a first visit with everything that it loads. With `TEST_BUDGET_DATABASE` (`tests/budgets`
//! sets it), also how long the server takes for each page and part, on a database with many jobs and runs.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use reqwest::Client;
use reqwest::header::{ACCEPT_ENCODING, CACHE_CONTROL, COOKIE, LOCATION, SET_COOKIE};
use rondel_tests::{Agent, Api, Backend, Dev, ScratchDb, Server, variable};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::alerts::watch_failures;
use super::old_scheduler::observe_fires;
use super::pages::{Screen, Subjects, save_script, screens};
use super::{furnish, print};

/// Maximum number of bytes that a first visit loads.
const VISIT_BYTES_MAX: usize = 60_000;
/// How often each page is requested in the long form.
const ROUND_COUNT: usize = 40;
/// How long to wait before the measurement: a server that starts takes over the jobs of the previous one, and creates
/// the runs that were missed.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// A signed-in client that does not decompress what the server sends.
struct Visitor {
    client: Client,
    url: String,
    cookie: String,
}

/// An answer of the server.
struct Page {
    status: u16,
    took: Duration,
    bytes: usize,
    text: Vec<u8>,
    is_kept: bool,
}

impl Visitor {
    async fn new(api: &Api, url: &str) -> Self {
        let client =
            Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().expect("make a client");
        let link = api.post("/api/v1/sign-in-links", json!({})).await.expect(201);
        let token = link["path"].as_str().and_then(|path| path.split_once("token=")).expect("a token").1.to_owned();
        let form = format!("token={token}&next=/");
        let entered = client
            .post(format!("{url}/sign-in"))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("origin", url)
            .body(form)
            .send()
            .await
            .expect("sign in");
        let cookies = entered.headers().get_all(SET_COOKIE).iter().filter_map(|value| value.to_str().ok());
        let cookies: Vec<&str> = cookies.filter_map(|cookie| cookie.split(';').next()).collect();
        assert!(!cookies.is_empty(), "signed in: {}", entered.status());
        Self { client, url: url.to_owned(), cookie: cookies.join("; ") }
    }

    async fn get(&self, path: &str, coding: &str) -> Page {
        let mut path = path.to_owned();
        loop {
            let request = self
                .client
                .get(format!("{}{path}", self.url))
                .header(COOKIE, &self.cookie)
                .header(ACCEPT_ENCODING, coding);
            let began_at = Instant::now();
            let answer = request.header("accept", "text/html").send().await.expect("ask for a page");
            let status = answer.status().as_u16();
            if let (303 | 307 | 308, Some(to)) = (status, answer.headers().get(LOCATION)) {
                path = to.to_str().expect("an address").to_owned();
                continue;
            }
            let is_kept =
                answer.headers().get(CACHE_CONTROL).is_some_and(|value| value.as_bytes().ends_with(b"immutable"));
            let text = answer.bytes().await.expect("read a page").to_vec();
            return Page { status, took: began_at.elapsed(), bytes: text.len(), text, is_kept };
        }
    }
}

/// The values of an attribute.
fn values(text: &str, attribute: &str) -> BTreeSet<String> {
    let start = format!(" {attribute}=\"");
    let parts = text.split(start.as_str()).skip(1);
    parts.filter_map(|part| part.split('"').next()).map(|value| value.replace("&amp;", "&")).collect()
}

/// The bytes of a page, of the parts that it loads immediately, and of its assets.
async fn visit(visitor: &Visitor, screen: &Screen) -> (usize, usize) {
    let page = visitor.get(&screen.path, "br").await;
    assert_eq!(page.status, 200, "{}", screen.path);
    let html = String::from_utf8(visitor.get(&screen.path, "identity").await.text).expect("text");
    let mut assets: BTreeSet<String> = values(&html, "href").union(&values(&html, "src")).cloned().collect();
    assets.retain(|asset| asset.starts_with("/static/"));
    let (mut more, mut font_count) = (0, 0);
    for asset in &assets {
        let got = visitor.get(asset, "br").await;
        assert!(got.status == 200 && got.is_kept, "{asset}");
        more += got.bytes;
        if asset.ends_with(".css") {
            // Counts only the font that every page needs.
            let sheet = String::from_utf8(visitor.get(asset, "identity").await.text).expect("text");
            let font = sheet
                .split("url(\"")
                .skip(1)
                .filter_map(|part| part.split('"').next())
                .find(|path| path.contains("basic"));
            if let Some(font) = font {
                more += visitor.get(font, "br").await.bytes;
                font_count += 1;
            }
        }
    }
    // A part of a page names no style sheet, and therefore no font.
    assert_eq!(font_count, usize::from(!assets.is_empty()), "one sheet of {} names the font", screen.path);
    let mut parts = 0;
    for element in html.split('<').filter(|element| element.contains("hx-trigger=\"load")) {
        for part in values(&format!(" {element}"), "hx-get") {
            parts += visitor.get(&part, "br").await.bytes;
        }
    }
    (page.bytes + parts, more)
}

#[tokio::test]
async fn no_first_visit_loads_more_than_its_budget() {
    let mut dev = Dev::start().await;
    let api = dev.api();
    furnish(&api).await;
    save_script(&api).await;
    let visitor = Visitor::new(&api, dev.url()).await;
    let mut heavy = Vec::new();
    for screen in screens(&Subjects::of_furnished(&api).await) {
        let (page, assets) = visit(&visitor, &screen).await;
        print(&format!("{:<20} {page:>7} + {assets} bytes", screen.name));
        if page + assets > VISIT_BYTES_MAX {
            heavy.push(format!("{}: {page} + {assets}", screen.name));
        }
    }
    assert_eq!(heavy, [""; 0], "pages above {VISIT_BYTES_MAX} bytes");
    assert!(dev.stop().await.success());
}

/// The long form: prints a row for each page.
#[tokio::test]
async fn pages_are_fast_on_a_large_database() {
    let Some(url) = variable("TEST_BUDGET_DATABASE") else { return };
    let backend = if url.starts_with("postgres") { Backend::Postgres } else { Backend::Sqlite };
    let db = ScratchDb::given(backend, &url);
    // The same key in each run of this command: the database has secrets from earlier runs.
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("secret.key");
    std::fs::write(&key, "5e".repeat(32)).expect("write the key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("close the key");
    let mut server = Server::start_with(&db, &["--secret-key-file", key.to_str().expect("a path")]).await;
    let api = server.api();
    let _agent = Agent::start_named(&server, "orders", "orders-w1", &[]).await;
    let subjects = subjects(&api).await;
    let visitor = Visitor::new(&api, server.url()).await;
    let mut paths: Vec<(String, String)> =
        screens(&subjects).into_iter().map(|screen| (screen.name.to_owned(), screen.path)).collect();
    paths.extend(parts(&subjects));
    if let Some(only) = variable("TEST_BUDGET_ONLY") {
        paths.retain(|(name, _)| only.split_whitespace().any(|one| one == name));
    }
    tokio::time::sleep(SETTLED_AFTER).await;
    print("| page | p50, ms | p95, ms | page, KB | first visit, KB |\n|---|---|---|---|---|");
    for (name, path) in paths {
        // The first answer fills caches, of the database among them.
        let first = visitor.get(&path, "br").await;
        let mut took = Vec::new();
        for _ in 0..ROUND_COUNT {
            let page = visitor.get(&path, "br").await;
            assert_eq!((page.status, first.status), (200, 200), "{path}");
            took.push(page.took);
        }
        took.sort_unstable();
        let at = |part: usize| took[(took.len() * part / 100).min(took.len() - 1)].as_secs_f64() * 1_000.0;
        let screen = Screen { name: "page", path: path.clone(), is_main: false };
        let (page, assets) = if path.contains("export") { (first.bytes, 0) } else { visit(&visitor, &screen).await };
        let kilobytes = |bytes: usize| f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)) / 1_000.0;
        print(&format!(
            "| {name} `{path}` | {:.1} | {:.1} | {:.1} | {:.1} |",
            at(50),
            at(95),
            kilobytes(first.bytes),
            kilobytes(page + assets)
        ));
    }
    assert!(server.stop().await.success());
}

/// Jobs and runs of the history, for the pages that show one object. Objects that the history lacks are created once.
async fn subjects(api: &Api) -> Subjects {
    let failed = api.get("/api/v1/runs?status=failed&limit=1").await.expect(200)["items"][0].clone();
    let name = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let job = name(&failed["job"]);
    if api.get(&format!("/api/v1/jobs/{job}")).await.expect(200)["version"] == 1 {
        api.patch(&format!("/api/v1/jobs/{job}"), json!({"description": "changed"})).await.expect(200);
    }
    let sharded = api.get("/api/v1/runs?status=succeeded&limit=200").await.expect(200);
    let items = sharded["items"].as_array().cloned().unwrap_or_default();
    let whole = items.iter().find(|run| run["shard_index"].is_null()).unwrap_or(&failed);
    let status = api.post("/api/v1/namespaces", json!({"name": "empty"})).await.status;
    assert!(matches!(status, 200 | 201 | 409), "the namespace: {status}");
    api.put("/api/v1/calendars/holidays", json!({"rule": {"weekdays": ["sat", "sun"]}})).await;
    save_script(api).await;
    watch_failures(api, &job).await;
    observe_fires(api, "orders").await;
    let incidents = api.get("/api/v1/incidents").await.expect(200);
    Subjects {
        job,
        at: "02:30".to_owned(),
        run: name(&failed["id"]),
        broadcast_root: name(&whole["id"]),
        executor: "orders-w1?app=orders".to_owned(),
        live: None,
        empty: "empty",
        announced: None,
        incident: incidents["items"][0]["id"].as_str().map(str::to_owned),
    }
}

/// The parts that pages load later, and filters that search.
fn parts(of: &Subjects) -> Vec<(String, String)> {
    let parts = [
        ("suggestions of jobs", "/suggest/jobs?q=app:or".to_owned()),
        ("suggestions of runs", "/suggest/runs?q=app:or".to_owned()),
        ("palette", "/palette?q=0007".to_owned()),
        ("preview", "/schedule-preview?kind=cron&cron=0+0+3+*+*+%3F&time_zone=UTC".to_owned()),
        ("log", format!("/runs/{}/log", of.run)),
        ("search in the log", format!("/runs/{}/log/search?contains=error", of.run)),
        ("runs of an app", "/runs?q=status:failed%20app:orders%20since:8h".to_owned()),
        ("runs with a text", "/runs?q=refused".to_owned()),
        ("runs of nothing", "/runs?status=running".to_owned()),
        ("runs, slowest", "/runs?q=since:1d&sort=longest".to_owned()),
        ("runs, latest", "/runs?q=since:1d&sort=latest".to_owned()),
        ("jobs with a problem", "/jobs?q=is:failing".to_owned()),
        ("jobs, trouble first", "/jobs?sort=trouble".to_owned()),
    ];
    parts.into_iter().map(|(name, path)| (name.to_owned(), path)).collect()
}
