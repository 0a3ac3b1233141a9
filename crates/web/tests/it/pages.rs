//! The console's pages from outside: who may see them, what they contain, and that injected text is never executed.

use axum::body::Body;
use rondel_core::outcome::Outcome;
use rondel_core::{RunId, Timestamp};
use rondel_store::logs::{LogChunk, LogLine};
use rondel_web::{Access, route_table};
use serde_json::json;

use crate::harness::Server;
use crate::visitor::{Visitor, location};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
    connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The paths of all pages, for an existing job and an existing run.
fn pages(run: RunId) -> Vec<String> {
    let gets =
        route_table().into_iter().filter(|route| matches!(route.access, Access::SignedIn(_)) && route.method == "GET");
    gets.map(|route| route.path.replace("{name}", "there").replace("{id}", &run.to_string())).collect()
}

#[tokio::test]
async fn without_a_session_nothing_is_shown_or_done() {
    let server = Server::start().await;
    server.job("there").await;
    let run = server.trigger("there").await;
    let mut visitor = Visitor::new(&server);
    for cookie in
        ["", "rondel_session=", "rondel_session=rondel_00", &format!("rondel_session={}", server.admin.reveal())]
    {
        visitor.cookie = cookie.to_owned();
        for path in pages(run) {
            assert!(location(&visitor.get(&path).await).starts_with("/sign-in?next="), "{path}");
            let fragment = visitor.request("GET", &path).header("hx-request", "true").body(Body::empty()).unwrap();
            assert_eq!(server.send(fragment).await.status, 401, "{path}");
        }
        for path in
            ["/jobs", "/jobs/there/pause", "/jobs/there/delete", "/jobs/there/runs", &format!("/runs/{run}/cancel")]
        {
            let answer = visitor.post(path, "").await;
            assert!(answer.status == 401 && answer.text().contains("href=\"/sign-in\""), "{path}: {}", answer.text());
        }
    }
    let answer = visitor.get("/sign-in?next=/jobs").await;
    assert_eq!(answer.status, 401);
    assert!(answer.text().contains("rondel sign-in-link"));
    let long_path = format!("/sign-in?next=/runs%3Fq%3D{}", "a".repeat(600));
    assert_eq!(visitor.get(&long_path).await.status, 401, "scripts detect by the status that the session has ended");
    assert_eq!(server.get("/jobs").await.status, 303, "a token opens no page");
    assert_eq!(server.get("/api/v1/jobs/there").await.expect(200)["enabled"], true);
}

#[tokio::test]
async fn a_link_is_looked_at_often_and_used_once() {
    let server = Server::start().await;
    let visitor = Visitor::new(&server);
    let link = server.bare("POST", "/api/v1/sign-in-links").await.expect(201);
    let path = link["path"].as_str().unwrap();
    let form = path.strip_prefix("/sign-in?").unwrap();
    for _ in 0..2 {
        assert_eq!(visitor.get(path).await.status, 200);
    }
    assert_eq!(location(&visitor.post("/sign-in", &format!("{form}&next=//evil")).await), "/");
    for answer in
        [visitor.get(path).await, visitor.post("/sign-in", form).await, visitor.get("/sign-in?token=%00").await]
    {
        assert_eq!(answer.status, 410);
        assert!(answer.text().contains("is no longer valid"), "{}", answer.text());
    }
    let signed_in = Visitor::signed_in(&server).await;
    assert_eq!(signed_in.get("/jobs").await.status, 200);
    assert_eq!(location(&signed_in.post("/sign-out", "").await), "/sign-in");
    assert!(location(&signed_in.get("/jobs").await).starts_with("/sign-in"));
}

#[tokio::test]
async fn other_sites_change_nothing() {
    let server = Server::start().await;
    server.job("there").await;
    let visitor = Visitor::signed_in(&server).await;
    for (name, value) in [("origin", "http://evil"), ("origin", "null"), ("sec-fetch-site", "cross-site")] {
        for path in ["/jobs/there/pause", "/jobs/there/delete", "/jobs", "/sign-in", "/sign-out", "/preferences"] {
            let request = visitor.request("POST", path).header("content-type", "application/x-www-form-urlencoded");
            let answer = server.send(request.header(name, value).body(Body::from("lang=zh")).unwrap()).await;
            assert_eq!(answer.status, 403, "{name} {value} {path}");
        }
    }
    assert_eq!(visitor.get("/jobs/there").await.status, 200);
}

#[tokio::test]
async fn every_page_has_a_strict_policy() {
    let server = Server::start().await;
    server.job("there").await;
    let run = server.trigger("there").await;
    let visitor = Visitor::signed_in(&server).await;
    for path in pages(run).into_iter().chain(["/nosuch".to_owned(), "/sign-in?token=x".to_owned()]) {
        let answer = visitor.get(&path).await;
        assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(answer.headers["cache-control"], "no-store", "{path}");
        let is_html =
            answer.headers.get("content-type").is_some_and(|value| value.to_str().unwrap().starts_with("text/html"));
        if is_html {
            assert_eq!(answer.headers["content-security-policy"], POLICY, "{path}");
            let text = answer.text();
            for forbidden in ["style=", "<style", "onclick", "javascript:", "http://", "https://"] {
                // These pages show URLs in fields and in commands. They still must not load anything from them.
                let is_shown =
                    matches!(path.as_str(), "/executors/new" | "/settings/webhooks") && forbidden.starts_with("http");
                let places = if is_shown { &["href=\"", "src=\"", "action=\"", "url("][..] } else { &[""] };
                for place in places {
                    assert!(!text.contains(&format!("{place}{forbidden}")), "{path} has {place}{forbidden}");
                }
            }
            assert!(text.matches("<script").count() == text.matches("<script src=\"/static/").count(), "{path}");
        } else {
            assert!(
                answer.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"),
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn assets_are_cached_for_ever_under_their_hash() {
    let server = Server::start().await;
    let visitor = Visitor::new(&server);
    let page = visitor.get("/sign-in").await.text();
    let files: Vec<&str> = page.split('"').filter(|part| part.starts_with("/static/")).collect();
    assert!(files.len() >= 4, "{page}");
    for file in files {
        let answer = visitor.get(file).await;
        assert_eq!(answer.status, 200, "{file}");
        assert_eq!(answer.headers["cache-control"], "public, max-age=31536000, immutable");
    }
    for file in ["/static/console.css", "/static/..%2fconsole.css", "/static/%ff", "/static/console.000000000000.css"] {
        assert_eq!(visitor.get(file).await.status, 404, "{file}");
    }
}

#[tokio::test]
async fn markup_comes_back_as_text() {
    let server = Server::start().await;
    let evil = "<script>alert(1)</script><img src=x onerror=alert(1)>";
    let job = json!({"name": "there", "app": "app", "handler": "handler", "description": evil, "params": {"a": evil}});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let run = server.trigger("there").await;
    let line = |text: &str| LogLine {
        at: Timestamp::from_secs(1_800_000_000),
        level: "<b>".to_owned(),
        text: text.to_owned(),
    };
    let lines = vec![line(evil), line("\u{1b}[31mred\u{1b}[0m \u{7}\u{202e}"), line("'\"&")];
    server.engine.store().append_logs(&[LogChunk { run, attempt: 1, sequence: 0, lines }]).await.unwrap();
    server.finish(run, Outcome::Failed { retryable: false }).await;
    let visitor = Visitor::signed_in(&server).await;
    for path in pages(run) {
        let text = visitor.get(&path).await;
        if [".txt", ".csv", ".jsonl", ".ndjson"].iter().any(|ending| path.ends_with(ending)) {
            assert!(!text.headers["content-type"].to_str().unwrap().contains("html"), "{path}");
            assert!(text.headers["content-disposition"].to_str().unwrap().starts_with("attachment"));
            continue;
        }
        let text = text.text();
        assert!(
            !text.contains("<script>alert") && !text.contains("<img src=x") && !text.contains("<b>done"),
            "{path}: {text}"
        );
    }
    let text = visitor.get(&format!("/runs/{run}")).await.text();
    assert!(text.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{text}");
    for part in ["each in turn", "&#60;b&#62;a", "z (full)", "Waited for its turn"] {
        assert!(text.contains(part), "how it came to its executor: {part} is not in {text}");
    }
    assert!(
        text.contains("<span class=\"a31\">red</span> <span class=\"ctl\">^G</span><span class=\"ctl\">U+202E</span>")
    );
    let form = "name=%3Cscript%3Ealert(1)%3C/script%3E&app=%22%3E&handler=x&kind=cron&cron=%3Cb%3E&retry_max=0&retry_backoff=1s";
    let answer = visitor.post("/jobs", form).await;
    assert_eq!(answer.status, 422);
    assert!(!answer.text().contains("<script>alert") && !answer.text().contains("<b>\""), "{}", answer.text());
}

#[tokio::test]
async fn a_form_keeps_its_input_and_shows_errors() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let form =
        "name=Bad&app=a&handler=&kind=cron&cron=61+*+*+*+*+%3F&time_zone=UTC&params=%7B&retry_max=x&retry_backoff=1s";
    let answer = visitor.post("/jobs", form).await;
    assert_eq!(answer.status, 422);
    let text = answer.text();
    for field in ["name", "handler", "cron", "params", "retry_max"] {
        assert!(text.contains(&format!("id=\"error-{field}\"")), "{field}: {text}");
    }
    assert!(text.contains("value=\"61 * * * * ?\"") && text.contains("value=\"Bad\""), "{text}");
    let good =
        "name=good&app=a&handler=h&kind=every&every=30s&params=&retry_max=2&retry_backoff=1s&enabled=yes&timeout=5s";
    assert_eq!(location(&visitor.post("/jobs", good).await), "/jobs/good");
    assert_eq!(visitor.post("/jobs", good).await.status, 422, "the name is taken");
    let job = server.get("/api/v1/jobs/good").await.expect(200);
    assert_eq!(
        (&job["schedule"]["every"], &job["retry"]["max"], &job["timeout"]),
        (&json!("30s"), &json!(2), &json!("5s"))
    );
    assert_eq!(location(&visitor.post("/jobs/good/pause", "back=/jobs").await), "/jobs");
    assert_eq!(server.get("/api/v1/jobs/good").await.expect(200)["enabled"], false);
    let run = location(&visitor.post("/jobs/good/runs", "params=%7B%22x%22%3A1%7D").await);
    let run = server.get(&format!("/api/v1{run}")).await.expect(200);
    assert_eq!((&run["params"], &run["trigger"]), (&json!({"x": 1}), &json!("manual")));
    assert_eq!(visitor.post("/jobs/good/runs", "params=%7B").await.status, 422);
    assert_eq!(location(&visitor.post("/jobs/good/delete", "").await), "/jobs");
    assert_eq!(visitor.get("/jobs/good").await.status, 404);
}

#[tokio::test]
async fn problems_are_pages_in_the_reader_s_language() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    for (path, status, en, zh) in [
        ("/runs/1", 404, "There is no such run", "没有这条运行记录"),
        ("/runs/x%00", 404, "There is no such run", "没有这条运行记录"),
        ("/jobs/%3Cb%3E", 404, "There is no such job", "没有这个任务"),
        ("/runs?status=nosuch", 422, "Invalid filter", "筛选条件无效"),
        ("/runs?colour=red", 422, "Invalid filter", "筛选条件无效"),
        ("/runs?cursor=x", 422, "Invalid filter", "筛选条件无效"),
        ("/nosuch", 404, "Page not found", "找不到页面"),
        ("/jobs/a/pause", 405, "Page not found", "找不到页面"),
    ] {
        for (language, title) in [("en", en), ("zh-CN,zh;q=0.9", zh)] {
            visitor.language = language;
            let answer = visitor.get(path).await;
            assert_eq!(answer.status, status, "{path}");
            assert!(answer.text().contains(&format!("<h1>{title}</h1>")), "{path}: {}", answer.text());
            assert!(!answer.text().contains("<script>"), "{path}");
        }
    }
    visitor.language = "de";
    assert!(visitor.get("/runs?lang=zh").await.text().contains("<html lang=\"zh-CN\" data-theme=\"auto\">"));
    let kept = visitor.post("/preferences", "theme=dark&back=/runs").await;
    assert!(kept.headers["set-cookie"].to_str().unwrap().starts_with("rondel_theme=dark; "));
    visitor.cookie.push_str("; rondel_theme=dark; rondel_lang=zh");
    assert!(visitor.get("/runs").await.text().contains("<html lang=\"zh-CN\" data-theme=\"dark\">"));
}
