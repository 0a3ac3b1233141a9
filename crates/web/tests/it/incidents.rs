//! Vulnerabilities that other schedulers have had, each tried here. Each test is named after the affected product and its advisory. The
//! table of all of them is in `docs/SECURITY.md`; those that need a complete system are tried in `tests/it/incidents.rs`.

use axum::body::Body;
use axum::http::Request;
use rondel_core::outcome::Outcome;
use rondel_store::logs::{LogChunk, LogLine};
use rondel_web::{Access, route_table};
use serde_json::json;

use crate::harness::Server;
use crate::visitor::{Visitor, location};

/// XXL-JOB before 2.2.0, `PowerJob` CVE-2023-29922 and CVE-2025-11580, Airflow CVE-2020-13927: an endpoint that checks no credentials.
#[test]
fn airflow_cve_2020_13927_every_entry_point_needs_an_account() {
    let open: Vec<_> =
        route_table().into_iter().filter(|route| route.access == Access::Open).map(|route| route.path).collect();
    let meant = [
        "/livez",
        "/readyz",
        "/set-up",
        "/set-up",
        "/sign-in",
        "/sign-in",
        "/sign-in/oidc",
        "/sign-in/oidc/callback",
        "/sign-out",
        "/preferences",
        "/static/{file}",
    ];
    assert_eq!(open, meant);
}

/// `PowerJob` CVE-2023-29922 and CVE-2023-37754, Dkron without its proxy: users, apps and jobs can be created without authentication.
#[tokio::test]
async fn powerjob_cve_2023_29922_no_token_no_new_users_apps_or_jobs() {
    let server = Server::start().await;
    for (path, body) in [
        ("/api/v1/users", json!({"name": "evil", "password": "correct horse", "grants": [{"role": "admin"}]})),
        ("/api/v1/apps", json!({"name": "evil"})),
        ("/api/v1/jobs", json!({"name": "evil", "app": "evil", "handler": "shell", "params": {"argv": ["true"]}})),
        ("/api/v1/tokens", json!({"kind": "api", "name": "evil", "grants": [{"role": "admin"}]})),
    ] {
        for authorization in ["", "Bearer", "Bearer ", "Basic YWRtaW46YWRtaW4=", "Bearer undefined"] {
            let request = Request::builder().method("POST").uri(path).header("content-type", "application/json");
            let request = request.header("authorization", authorization).body(Body::from(body.to_string())).unwrap();
            assert_eq!(server.send(request).await.status, 401, "{path} {authorization}");
        }
    }
    for list in ["/api/v1/users", "/api/v1/apps", "/api/v1/jobs"] {
        assert_eq!(server.get(list).await.expect(200)["items"], json!([]), "{list}");
    }
}

/// `DolphinScheduler` CVE-2026-47340, Rundeck CVE-2021-41111: a user can read where the alerts of others are sent, and the secret for
/// that.
#[tokio::test]
async fn dolphinscheduler_cve_2026_47340_the_webhook_of_others_is_not_read() {
    let server = Server::start().await;
    server.with_body("POST", "/api/v1/namespaces", json!({"name": "elsewhere"})).await.expect(201);
    let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/failure-webhook");
    for namespace in ["default", "elsewhere"] {
        let url = json!({"url": "https://example.com/secret-path"});
        server.with_body("PUT", &path(namespace), url).await.expect(201);
    }
    let token = async |role: &str| {
        let grants = json!([{"role": role, "namespace": "default"}]);
        let body = json!({"kind": "api", "name": format!("a-{role}"), "grants": grants});
        let created = server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
        created["token"].as_str().unwrap().to_owned()
    };
    let (admin, editor) = (token("admin").await, token("editor").await);
    for (bearer, namespace, status) in
        [(&admin, "elsewhere", 404), (&editor, "elsewhere", 403), (&editor, "default", 403)]
    {
        for method in ["GET", "PUT", "DELETE"] {
            let request =
                Request::builder().method(method).uri(path(namespace)).header("content-type", "application/json");
            let request = request.header("authorization", format!("Bearer {bearer}"));
            let url = json!({"url": "https://example.org"}).to_string();
            let answer = server.send(request.body(body_of(method, url)).unwrap()).await;
            assert_eq!(answer.status, status, "{method} {namespace}");
            assert!(!answer.text().contains("secret-path"), "{}", answer.text());
        }
    }
    assert_eq!(server.get(&path("elsewhere")).await.expect(200)["url"], "https://example.com/secret-path");
}

/// The body of a request. That of a DELETE is empty, because the server refuses any other.
fn body_of(method: &str, document: String) -> Body {
    if method == "DELETE" { Body::empty() } else { Body::from(document) }
}

/// Rundeck CVE-2021-41112: a user without the permission can change a calendar that jobs of others use.
#[tokio::test]
async fn rundeck_cve_2021_41112_calendars_are_changed_by_editors_of_the_namespace_alone() {
    let server = Server::start().await;
    let rule = json!({"rule": {"weekdays": ["mon"]}});
    server.with_body("PUT", "/api/v1/calendars/cal", &rule).await.expect(201);
    server.with_body("POST", "/api/v1/apps", json!({"name": "mine"})).await.expect(201);
    let grants = json!([{"role": "admin", "namespace": "default", "app": "mine"}]);
    let body = json!({"kind": "api", "name": "scoped", "grants": grants});
    let created = server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
    let bearer = format!("Bearer {}", created["token"].as_str().unwrap());
    for (method, path) in [("PUT", ""), ("DELETE", ""), ("POST", "/import?format=csv")] {
        let request = Request::builder().method(method).uri(format!("/api/v1/calendars/cal{path}"));
        let request = request.header("authorization", &bearer).header("content-type", "application/json");
        let rule = json!({"rule": {"weekdays": ["tue"]}}).to_string();
        let answer = server.send(request.body(body_of(method, rule)).unwrap());
        assert_eq!(answer.await.status, 403, "{method}");
    }
    assert_eq!(server.get("/api/v1/calendars/cal").await.expect(200)["version"], 1);
}

/// Rundeck CVE-2021-39132, hessian and Groovy in XXL-JOB: a document that creates objects, or that expands when it is parsed.
#[tokio::test]
async fn rundeck_cve_2021_39132_yaml_is_data() {
    let server = Server::start().await;
    let apply = async |text: String| {
        let request = server.request("POST", "/api/v1/jobs/apply").header("content-type", "application/yaml");
        server.send(request.body(Body::from(text)).unwrap()).await
    };
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in
        ["b", "c", "d", "e", "f", "g", "h", "i"].into_iter().zip(["a", "b", "c", "d", "e", "f", "g", "h"])
    {
        bomb.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 9].join(", ")));
    }
    for text in [
        "name: !!javax.script.ScriptEngineManager [!!java.net.URLClassLoader [[]]]\napp: a\nhandler: h\n".to_owned(),
        "!!python/object/apply:os.system [\"touch /tmp/evil\"]\n".to_owned(),
        "name: a\napp: a\nhandler: h\nparams: !ruby/object:Gem::Installer {i: x}\n".to_owned(),
        bomb,
        format!("name: a\napp: a\nhandler: h\nparams: {}1{}\n", "[".repeat(50_000), "]".repeat(50_000)),
    ] {
        let answer = apply(text.clone()).await;
        assert!(
            matches!(answer.status.as_u16(), 400 | 413 | 422),
            "{}: {}",
            answer.status,
            &text[..text.len().min(90)]
        );
    }
    assert_eq!(server.get("/api/v1/jobs").await.expect(200)["items"], json!([]));
}

/// Quartz CVE-2019-13990: an XML entity that makes the server read other files.
#[tokio::test]
async fn quartz_cve_2019_13990_no_xml_is_read() {
    let server = Server::start().await;
    let xml = "<?xml version=\"1.0\"?><!DOCTYPE x [<!ENTITY e SYSTEM \"file:///etc/passwd\">]><job-scheduling-data>&e;</job-scheduling-data>";
    for path in ["/api/v1/jobs", "/api/v1/jobs/apply", "/api/v1/schedules/preview"] {
        for kind in ["application/xml", "text/xml", "application/json", "application/yaml"] {
            let request = server.request("POST", path).header("content-type", kind);
            let answer = server.send(request.body(Body::from(xml)).unwrap()).await;
            assert!(matches!(answer.status.as_u16(), 400 | 415 | 422), "{path} {kind}: {}", answer.status);
            assert!(!answer.text().contains("root:"), "{}", answer.text());
        }
    }
}

/// XXL-JOB CVE-2024-3366 (`FreeMarker`) and CVE-2022-43402 (Groovy): the server executes text of users as a program.
#[tokio::test]
async fn xxl_job_cve_2024_3366_text_of_users_is_no_template() {
    let server = Server::start().await;
    let (expression, product) = ("7654321*9876543", 7_654_321_u64 * 9_876_543);
    let text = format!(
        "${{{expression}}} {{{{{expression}}}}} #{{{expression}}} <%= {expression} %> \
         <#assign x={expression}>${{x}} {{% print({expression}) %}} {{{{secret.HOME}}}}"
    );
    let body = json!({"name": "a", "app": "app", "handler": "h", "description": text, "params": {"text": text}});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let run = server.trigger("a").await;
    let visitor = Visitor::signed_in(&server).await;
    for path in ["/jobs/a".to_owned(), "/jobs/a/edit".to_owned(), "/jobs".to_owned(), format!("/runs/{run}")] {
        let page = visitor.get(&path).await.text();
        assert!(!page.contains(&product.to_string()), "{path}");
    }
    let job = server.get("/api/v1/jobs/a").await.expect(200);
    assert_eq!((&job["description"], &job["params"]["text"]), (&json!(text), &json!(text)));
}

/// Cronicle #755, resque-scheduler CVE-2022-44303: text of the request is reflected in the page as markup.
#[tokio::test]
async fn cronicle_755_input_comes_back_as_text() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let evil = "%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E";
    for path in [
        format!("/jobs?q={evil}"),
        format!("/jobs/{evil}"),
        format!("/runs?job={evil}"),
        format!("/runs/{evil}"),
        format!("/calendars/{evil}"),
        format!("/sign-in?next={evil}"),
        format!("/set-up?token={evil}"),
        format!("/nowhere/{evil}"),
        format!("/schedule-preview?kind=cron&cron={evil}"),
    ] {
        let answer = visitor.get(&path).await;
        assert!(answer.status.as_u16() < 500 && !answer.text().contains("<script>alert"), "{path}: {}", answer.text());
    }
}

/// XXL-JOB #3360 and #3964: output of jobs (logs, messages, results, names of executors) is executed in the browser of the reader.
#[tokio::test]
async fn xxl_job_3360_output_of_jobs_is_text() {
    let server = Server::start().await;
    let evil = "<script>alert(1)</script><img src=x onerror=alert(2)>";
    let body = json!({"name": "a", "app": "app", "handler": "h", "description": evil, "params": {"<script>alert(3)</script>": evil}});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let run = server.trigger("a").await;
    let line =
        LogLine { at: server.engine.now(), level: "info".to_owned(), text: format!("\u{1b}[31m{evil}\u{1b}[0m") };
    let chunk = LogChunk { run, attempt: 1, sequence: 0, lines: vec![line] };
    server.engine.store().append_logs(&[chunk]).await.unwrap();
    server.finish(run, Outcome::Failed { retryable: false }).await;
    let visitor = Visitor::signed_in(&server).await;
    for path in [
        "/jobs".to_owned(),
        "/jobs/a".to_owned(),
        "/jobs/a/edit".to_owned(),
        format!("/runs/{run}"),
        format!("/runs/{run}/log"),
        "/runs".to_owned(),
    ] {
        let answer = visitor.get(&path).await;
        let page = answer.text();
        assert!(!page.contains("<script>alert") && !page.contains("<img src=x"), "{path}: {page}");
        assert!(answer.headers["content-security-policy"].to_str().unwrap().contains("script-src 'self'"), "{path}");
    }
}

/// Temporal CVE-2023-3485: a token that names no namespace is treated as one of the default namespace.
#[tokio::test]
async fn temporal_cve_2023_3485_a_token_of_one_namespace_means_no_other() {
    let server = Server::start().await;
    server.job("theirs").await;
    server.with_body("POST", "/api/v1/namespaces", json!({"name": "elsewhere"})).await.expect(201);
    let grants = json!([{"role": "admin", "namespace": "elsewhere"}]);
    let body = json!({"kind": "api", "name": "scoped", "grants": grants});
    let created = server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
    let bearer = format!("Bearer {}", created["token"].as_str().unwrap());
    for (path, status) in [
        ("/api/v1/jobs/theirs", 404),
        ("/api/v1/jobs/theirs?namespace=", 404),
        ("/api/v1/jobs/theirs?namespace=default", 404),
        ("/api/v1/jobs", 200),
    ] {
        let request = Request::builder().uri(path).header("authorization", &bearer).body(Body::empty()).unwrap();
        let answer = server.send(request).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(!answer.text().contains("handler"), "{}", answer.text());
    }
}

/// XXL-JOB: every installation has the same default token, and an administrator with a known password.
#[tokio::test]
async fn xxl_job_default_token_no_password_and_no_token_is_there_from_the_start() {
    let server = Server::start().await;
    let users = server.get("/api/v1/users").await.expect(200);
    assert_eq!(users["items"], json!([]));
    let visitor = Visitor::new(&server);
    for (name, password) in [("admin", "123456"), ("admin", "admin"), ("admin", ""), ("root", "root"), ("", "")] {
        let answer = visitor.post("/sign-in", &format!("name={name}&password={password}")).await;
        assert!(matches!(answer.status.as_u16(), 401 | 429), "{name}: {}", answer.status);
    }
    for token in ["default_token", "", "null", "rondel_"] {
        let request = Request::builder().uri("/api/v1/jobs").header("authorization", format!("Bearer {token}"));
        assert_eq!(server.send(request.body(Body::empty()).unwrap()).await.status, 401, "{token}");
    }
}

/// XXL-JOB GHSA-v3c9 and GHSA-pv4m, Rundeck CVE-2021-39133: another site creates an administrator by a forged request.
#[tokio::test]
async fn xxl_job_ghsa_v3c9_another_site_changes_nothing() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    for route in route_table() {
        if !matches!(route.access, Access::SignedIn(_)) || route.method != "POST" {
            continue;
        }
        let path = route.path.replace("{name}", "a").replace("{id}", "1").replace("{user}", "b");
        for (header, value) in [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site"), ("origin", "null")]
        {
            let request = visitor.request("POST", &path).header(header, value);
            let request = request.header("content-type", "application/x-www-form-urlencoded");
            let answer = server.send(request.body(Body::from("name=evil&grants=admin")).unwrap()).await;
            assert_eq!(answer.status, 403, "{path} {header}: {value}");
        }
    }
    assert_eq!(server.get("/api/v1/users").await.expect(200)["items"], json!([]));
    // A cookie does not authenticate calls of the API: browsers send it with forms of other sites, too.
    let request = visitor.request("POST", "/api/v1/users").header("content-type", "application/json");
    assert_eq!(server.send(request.body(Body::from("{\"name\":\"evil\"}")).unwrap()).await.status, 401);
}

/// XXL-JOB CVE-2020-23814 and #3360: text that a user typed in is executed in the browser of the reader.
#[tokio::test]
async fn xxl_job_cve_2020_23814_names_of_users_and_tokens_are_text() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let evil = "<script>alert(1)</script>\"'";
    let body = json!({"name": "eve", "display_name": evil, "password": "correct horse", "grants": [{"role": "admin"}]});
    server.with_body("POST", "/api/v1/users", body).await.expect(201);
    let refusal = server.with_body("POST", "/api/v1/users", json!({"name": evil})).await;
    assert_eq!(refusal.status, 422);
    let page = visitor.get("/users").await.text();
    assert!(!page.contains("<script>alert") && page.contains("&#60;script&#62;"), "{page}");
    let mut eve = Visitor::new(&server);
    let entered = eve.post("/sign-in", "name=eve&password=correct+horse").await;
    assert_eq!(location(&entered), "/");
    eve.cookie = entered.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let created =
        eve.post("/account/tokens", &format!("name={}&grants=viewer", "%3Cimg+src%3Dx+onerror%3Dalert(1)%3E")).await;
    assert!(!created.text().contains("<img src=x"), "{}", created.text());
    let wrong = Visitor::new(&server).post("/sign-in", "name=%22%3E%3Cscript%3E&password=x").await.text();
    assert!(!wrong.contains("\"><script>"), "{wrong}");
    // A name that looks like another one, because it reverses the direction of text.
    let turned = json!({"name": "mallory", "display_name": "ann\u{202e}gpj.exe"});
    assert_eq!(server.with_body("POST", "/api/v1/users", turned).await.status, 422);
}

/// XXL-JOB CVE-2022-36157 and CVE-2025-9264, `DolphinScheduler` CVE-2026-41280: objects of another user can be accessed by their ids.
#[tokio::test]
async fn xxl_job_cve_2022_36157_foreign_objects_are_not_found() {
    let server = Server::start().await;
    server.job("theirs").await;
    let run = server.trigger("theirs").await;
    server.with_body("POST", "/api/v1/apps", json!({"name": "mine"})).await;
    let grant = json!({"role": "admin", "namespace": "default", "app": "mine"});
    let body = json!({"kind": "api", "name": "scoped", "grants": [grant]});
    let token =
        server.with_body("POST", "/api/v1/tokens", body).await.expect(201)["token"].as_str().unwrap().to_owned();
    let ask = async |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
        server.send(request.header("x-request-id", "same").body(Body::empty()).unwrap()).await
    };
    for (method, theirs, absent_path) in [
        ("GET", "/api/v1/jobs/theirs".to_owned(), "/api/v1/jobs/missing".to_owned()),
        ("DELETE", "/api/v1/jobs/theirs".to_owned(), "/api/v1/jobs/missing".to_owned()),
        ("POST", "/api/v1/jobs/theirs/runs".to_owned(), "/api/v1/jobs/missing/runs".to_owned()),
        ("GET", format!("/api/v1/runs/{run}"), "/api/v1/runs/77".to_owned()),
        ("GET", format!("/api/v1/runs/{run}/logs"), "/api/v1/runs/77/logs".to_owned()),
        ("POST", format!("/api/v1/runs/{run}/cancel"), "/api/v1/runs/77/cancel".to_owned()),
    ] {
        let (found, absent) = (ask(method, &theirs).await, ask(method, &absent_path).await);
        assert_eq!((found.status.as_u16(), absent.status.as_u16()), (404, 404), "{theirs}");
        let plain = |text: String| {
            let text = text.replace(&run.to_string(), "#").replace("77", "#");
            text.replace("theirs", "#").replace("missing", "#")
        };
        assert_eq!(plain(found.text()), plain(absent.text()));
    }
    for list in ["/api/v1/jobs", "/api/v1/runs", "/api/v1/executors"] {
        assert_eq!(ask("GET", list).await.expect(200)["items"], json!([]), "{list}");
    }
    let apps = ask("GET", "/api/v1/apps").await.expect(200);
    assert_eq!(apps["items"].as_array().unwrap().len(), 1);
    assert_eq!(ask("GET", "/api/v1/namespaces").await.expect(200)["items"].as_array().unwrap().len(), 1);
    let denied = server.get("/api/v1/audit?verdict=denied&actor=token:scoped&limit=200").await.expect(200);
    assert_eq!(denied["items"].as_array().unwrap().len(), 6, "each attempt is written down");
}

/// `PowerJob` CVE-2024-44546 and similar ones: text of users becomes part of an SQL statement.
#[tokio::test]
async fn powerjob_cve_2024_44546_text_stays_text_in_filters() {
    let server = Server::start().await;
    for text in ["'%20OR%201=1--", "%00", "%22;DROP%20TABLE%20audit", "%25"] {
        for path in ["/api/v1/audit?actor=", "/api/v1/audit?object=", "/api/v1/users/", "/api/v1/tokens/"] {
            let answer = server.get(&format!("{path}{text}")).await;
            assert!(matches!(answer.status.as_u16(), 200 | 404 | 405 | 422), "{path}{text}: {}", answer.status);
        }
    }
}

/// XXL-JOB CVE-2024-42681 and CVE-2023-33779: a caller with few rights can gain more.
#[tokio::test]
async fn xxl_job_cve_2024_42681_no_token_gets_more_than_its_maker_has() {
    let server = Server::start().await;
    server.with_body("POST", "/api/v1/apps", json!({"name": "mine"})).await;
    server.with_body("POST", "/api/v1/apps", json!({"name": "theirs"})).await;
    let token = async |grants: serde_json::Value, bearer: &str| {
        let body = json!({"kind": if grants[0]["role"] == "executor" { "executor" } else { "api" }, "name": "t", "grants": grants});
        let request =
            Request::builder().method("POST").uri("/api/v1/tokens").header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {bearer}"));
        server.send(request.body(Body::from(body.to_string())).unwrap()).await
    };
    let mine = |role: &str| json!([{"role": role, "namespace": "default", "app": "mine"}]);
    let editor = token(mine("editor"), server.admin.reveal()).await.expect(201)["token"].as_str().unwrap().to_owned();
    assert_eq!(token(mine("viewer"), &editor).await.status, 201);
    for more in [
        mine("admin"),
        mine("executor"),
        json!([{"role": "viewer"}]),
        json!([{"role": "viewer", "namespace": "default"}]),
        json!([{"role": "viewer", "namespace": "default", "app": "theirs"}]),
    ] {
        assert_eq!(token(more.clone(), &editor).await.status, 403, "{more}");
    }
}
