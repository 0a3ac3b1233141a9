//! Chinese pages contain no English except for names and code: renders every page in Chinese, and searches its text for ASCII words.

use std::collections::BTreeSet;

use rondel_core::outcome::Outcome;
use rondel_web::{Access, route_table};
use serde_json::json;

use crate::harness::Server;
use crate::visitor::Visitor;

/// Names of products, languages and the like, which have no Chinese form.
const PRODUCT_NAMES: [&str; 86] = [
    "Java",
    "Go",
    "Python",
    "script",
    "sign",
    "php",
    "powershell",
    "python",
    "Rondel",
    "Standard",
    "Webhooks",
    "Events",
    "Lark",
    "ID",
    "RFC",
    "MiB",
    "SQLite",
    "iCalendar",
    "English",
    "UTC",
    "API",
    "JSON",
    "YAML",
    "OpenAPI",
    "OpenID",
    "Connect",
    "TLS",
    "URL",
    "CSV",
    "ICS",
    "cron",
    "Cron",
    "Quartz",
    "Unix",
    "SDK",
    "HTTP",
    "Docker",
    "Rust",
    "curl",
    "Authorization",
    "Bearer",
    "rondel",
    "server",
    "check",
    "config",
    "GET",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "Ctrl",
    "Alt",
    "Shift",
    "Esc",
    "Enter",
    "ms",
    "there",
    "daily",
    "app",
    "handler",
    "default",
    "admin",
    "work",
    "noon",
    "ann",
    "node",
    "shell",
    "argv",
    "zone",
    "eu",
    "gpu",
    "none",
    "ssd",
    "old",
    "in",
    "id",
    "http",
    "Jinja",
    "Microsoft",
    "PagerDuty",
    "SMTP",
    "STARTTLS",
    "Slack",
    "Teams",
    "Webhook",
    "ntfy",
];
/// Words of the API: fields and values of definitions, keys of filters, nouns of paths, and the answers of the handler.
const API_WORDS: [&str; 61] = [
    "LFU",
    "LRU",
    "all",
    "day",
    "done",
    "backoff",
    "cluster",
    "keep",
    "max",
    "newest",
    "null",
    "policy",
    "round",
    "run",
    "scope",
    "serial",
    "skip",
    "tolerance",
    "true",
    "params",
    "pump",
    "is",
    "job",
    "label",
    "duration",
    "executor",
    "late",
    "since",
    "status",
    "trigger",
    "until",
    "apps",
    "audit",
    "calendars",
    "channels",
    "incidents",
    "misfire",
    "maintenance",
    "silences",
    "reports",
    "shadow",
    "count",
    "env",
    "file",
    "summary",
    "url",
    "events",
    "executors",
    "fires",
    "jobs",
    "me",
    "namespaces",
    "nodes",
    "runs",
    "schedules",
    "scripts",
    "sessions",
    "stats",
    "timeline",
    "tokens",
    "users",
];
/// Elements whose content is code or invisible.
const CODE_ELEMENTS: [&str; 8] = ["code", "pre", "script", "textarea", "datalist", "time", "kbd", "samp"];
const VOID_ELEMENTS: [&str; 7] = ["input", "br", "meta", "link", "img", "hr", "path"];

/// The text of a page, without code and without parts that are marked as English.
fn text(html: &str) -> String {
    let mut open: Vec<(String, bool)> = Vec::new();
    let mut shown = String::new();
    let body = html.split_once("<body").map_or(html, |(_, body)| body);
    for part in body.split('<').skip(1) {
        let (tag, after) = part.split_once('>').unwrap_or((part, ""));
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default().to_owned();
        if tag.starts_with('/') {
            if let Some(place) = open.iter().rposition(|(open_name, _)| *open_name == name) {
                open.truncate(place);
            }
        } else if !VOID_ELEMENTS.contains(&name.as_str()) && !tag.ends_with('/') {
            let hides = CODE_ELEMENTS.contains(&name.as_str()) || tag.contains(" lang=\"en\"");
            open.push((name, hides));
        }
        let is_hidden = open.iter().any(|(_, hides)| *hides);
        if !is_hidden {
            for attribute in ["aria-label", "alt"] {
                let value = tag.split_once(&format!(" {attribute}=\"")).and_then(|(_, rest)| rest.split('"').next());
                shown.push_str(value.unwrap_or_default());
                shown.push('\n');
            }
            shown.push_str(after);
            shown.push('\n');
        }
    }
    ["&#34;", "&#38;", "&#39;", "&#60;", "&#62;", "&amp;", "&nbsp;"]
        .iter()
        .fold(shown, |shown, entity| shown.replace(entity, " "))
}

/// Words of ASCII letters that are not names. Single letters (units) and codes such as `w2` or `a.b` are not counted as words.
fn english(text: &str) -> BTreeSet<&str> {
    let is_part =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '=' | '@' | ':' | '$' | '+' | '~');
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_matches(['.', '-', ':', '/', '+']));
    let is_word = |word: &&str| word.len() > 1 && word.chars().all(|c| c.is_ascii_alphabetic());
    words.filter(is_word).filter(|word| !PRODUCT_NAMES.contains(word) && !API_WORDS.contains(word)).collect()
}

#[tokio::test]
async fn no_page_in_chinese_holds_english() {
    let server = Server::start().await;
    server.with_body("PUT", "/api/v1/calendars/there", json!({"rule": {"weekdays": ["mon"]}})).await.expect(201);
    let script = json!({"language": "shell", "source": "1\n", "note": "1"});
    server.with_body("PUT", "/api/v1/scripts/there", script).await.expect(201);
    server.with_body("PUT", "/api/v1/scripts/there", json!({"language": "shell", "source": "2\n"})).await.expect(200);
    server.job("there").await;
    server
        .with_body("PATCH", "/api/v1/jobs/there", json!({"handler": "shell", "params": {"argv": ["true"]}}))
        .await
        .expect(200);
    server.with_body("POST", "/api/v1/users", json!({"name": "ann", "grants": [{"role": "viewer"}]})).await.expect(201);
    let daily = json!({"name": "daily", "app": "app", "handler": "handler", "schedule": {"cron": "0 30 2 * * ?"}});
    server.with_body("POST", "/api/v1/jobs", daily).await.expect(201);
    let pump = json!({"name": "noon", "app": "app", "handler": "handler", "schedule": {"cron": "0 0 12 * * ?"},
        "pump": {"items": {"count": 2}, "groups": 1, "until": "empty"}});
    server.with_body("POST", "/api/v1/jobs", pump).await.expect(201);
    let run = server.trigger("there").await;
    server.finish(run, Outcome::Failed { retryable: true }).await;
    let mut visitor = Visitor::signed_in(&server).await;
    visitor.language = "zh";
    let mut found = Vec::new();
    let gets =
        route_table().into_iter().filter(|route| matches!(route.access, Access::SignedIn(_)) && route.method == "GET");
    let mut paths: Vec<String> =
        gets.map(|route| route.path.replace("{name}", "there").replace("{id}", &run.to_string())).collect();
    paths.extend(
        ["/why?job=daily&at=02:30", "/why?job=there", "/why?job=none", "/jobs/there/versions?from=1&to=2"]
            .map(str::to_owned),
    );
    paths.extend(
        [
            "/jobs/daily",
            "/jobs/daily/edit",
            "/jobs/noon",
            "/jobs/noon/edit",
            "/jobs/noon/pump",
            "/activity?actor=none",
            "/activity?from=none",
            "/runs?status=failed",
        ]
        .map(str::to_owned),
    );
    let document: serde_json::Value = serde_json::from_str(rondel_web::openapi()).unwrap();
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|methods| methods.as_object().unwrap().values());
    paths.extend(operations.filter_map(|item| Some(format!("/api-docs?op={}", item["operationId"].as_str()?))));
    for path in paths {
        if matches!(path.as_str(), "/live" | "/activity.ndjson" | "/openapi.json") {
            continue;
        }
        let answer = visitor.get(&path).await;
        let kind = answer.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/html") || answer.status == 303 {
            continue;
        }
        let page = text(&answer.text());
        let words = english(&page);
        if !words.is_empty() {
            found.push(format!("{path}: {}", words.into_iter().collect::<Vec<_>>().join(" ")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[tokio::test]
async fn errors_of_fields_are_in_chinese() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    visitor.language = "zh";
    let form = "name=Bad&app=a&handler=x%20y&kind=every&every=10ms&retry_max=1&retry_backoff=never&priority=99";
    let page = visitor.post("/jobs", form).await.text();
    for expected in ["不是有效的名称", "不是有效的处理器名", "不是从 1s 起的整秒数", "不是时长", "优先级"]
    {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert!(!page.contains("is not a"), "{page}");
    let problem = visitor.get("/activity?limit=x").await.text();
    assert!(!problem.contains("expected a"), "{problem}");
}

#[tokio::test]
async fn refusals_of_bulk_actions_are_in_chinese() {
    let server = Server::start().await;
    server.job("there").await;
    let run = server.trigger("there").await;
    server.finish(run, Outcome::Failed { retryable: true }).await;
    server.bare("DELETE", "/api/v1/jobs/there").await.expect(204);
    let mut visitor = Visitor::signed_in(&server).await;
    visitor.language = "zh";
    let page = visitor.post("/runs:bulk", &format!("do=retry&run={run}&expected=1")).await.text();
    assert!(page.contains("该运行的任务已被删除") && !page.contains("was deleted"), "{page}");
}

#[tokio::test]
async fn refusals_of_tokens_are_in_chinese() {
    let server = Server::start().await;
    let mut visitor = Visitor::signed_in(&server).await;
    visitor.language = "zh";
    let page = visitor.post("/account/tokens", "name=ci&kind=api").await.text();
    assert!(page.contains("没有角色的令牌什么也做不了") && !page.contains("without a role"), "{page}");
    let page = visitor.post("/account/tokens", "name=ci&grants=viewer&expires_in=soon").await.text();
    assert!(page.contains("有效期：&#34;soon&#34;"), "{page}");
}

#[test]
fn names_and_code_are_no_english() {
    let page = text(
        "<body class=\"x\"><p>任务 <code>job list</code> there</p><p lang=\"en\">no such <b>job</b></p><br><p>Save</p>",
    );
    assert_eq!(english(&page).into_iter().collect::<Vec<_>>(), ["Save"]);
    assert!(english("w2 a.b app:orders 5 min").contains("min"));
}
