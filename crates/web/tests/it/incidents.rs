//! The kinds of holes that schedulers have had, each tried here: by the names of those who had them.

use axum::body::Body;
use axum::http::Request;
use rondel_web::{Access, route_table};
use serde_json::json;

use crate::harness::Server;
use crate::visitor::{Visitor, location};

/// XXL-JOB before 2.2.0, `PowerJob` CVE-2023-29922 and CVE-2025-11580, Airflow CVE-2020-13927: a way in that asks nobody.
#[test]
fn no_way_in_without_asking_who() {
    let open: Vec<_> =
        route_table().into_iter().filter(|route| route.access == Access::Open).map(|route| route.path).collect();
    let meant = [
        "/livez",
        "/readyz",
        "/set-up",
        "/set-up",
        "/sign-in",
        "/sign-in",
        "/sign-out",
        "/preferences",
        "/static/{file}",
    ];
    assert_eq!(open, meant);
}

/// XXL-JOB: a token that is the same everywhere, an administrator whose password is known.
#[tokio::test]
async fn no_password_and_no_token_is_there_from_the_start() {
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

/// XXL-JOB GHSA-v3c9 and GHSA-pv4m, Rundeck CVE-2021-39133: another site makes an administrator.
#[tokio::test]
async fn another_site_changes_nothing() {
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
    // A cookie alone does not open the API: forms of other sites could send it there.
    let request = visitor.request("POST", "/api/v1/users").header("content-type", "application/json");
    assert_eq!(server.send(request.body(Body::from("{\"name\":\"evil\"}")).unwrap()).await.status, 401);
}

/// XXL-JOB CVE-2020-23814 and #3360: what was typed in is run in the browser of whoever looks at it.
#[tokio::test]
async fn names_of_users_and_tokens_are_text() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let evil = "<script>alert(1)</script>\"'";
    let body = json!({"name": "eve", "display_name": evil, "password": "correct horse", "grants": [{"role": "admin"}]});
    server.with_body("POST", "/api/v1/users", body).await.expect(201);
    let refused = server.with_body("POST", "/api/v1/users", json!({"name": evil})).await;
    assert_eq!(refused.status, 422);
    let page = visitor.get("/users").await.text();
    assert!(!page.contains("<script>alert") && page.contains("&#60;script&#62;"), "{page}");
    let mut eve = Visitor::new(&server);
    let entered = eve.post("/sign-in", "name=eve&password=correct+horse").await;
    assert_eq!(location(&entered), "/");
    eve.cookie = entered.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let made =
        eve.post("/account/tokens", &format!("name={}&grants=viewer", "%3Cimg+src%3Dx+onerror%3Dalert(1)%3E")).await;
    assert!(!made.text().contains("<img src=x"), "{}", made.text());
    let wrong = Visitor::new(&server).post("/sign-in", "name=%22%3E%3Cscript%3E&password=x").await.text();
    assert!(!wrong.contains("\"><script>"), "{wrong}");
    // Names that look like others by turning the direction of text.
    let turned = json!({"name": "mallory", "display_name": "ann\u{202e}gpj.exe"});
    assert_eq!(server.with_body("POST", "/api/v1/users", turned).await.status, 422);
}

/// XXL-JOB CVE-2022-36157 and CVE-2025-9264, `DolphinScheduler` CVE-2026-41280: what is somebody else's, by its number.
#[tokio::test]
async fn what_is_foreign_is_as_if_it_were_not() {
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
    for (method, theirs, nobodys) in [
        ("GET", "/api/v1/jobs/theirs".to_owned(), "/api/v1/jobs/nobody".to_owned()),
        ("DELETE", "/api/v1/jobs/theirs".to_owned(), "/api/v1/jobs/nobody".to_owned()),
        ("POST", "/api/v1/jobs/theirs/runs".to_owned(), "/api/v1/jobs/nobody/runs".to_owned()),
        ("GET", format!("/api/v1/runs/{run}"), "/api/v1/runs/77".to_owned()),
        ("GET", format!("/api/v1/runs/{run}/logs"), "/api/v1/runs/77/logs".to_owned()),
        ("POST", format!("/api/v1/runs/{run}/cancel"), "/api/v1/runs/77/cancel".to_owned()),
    ] {
        let (found, absent) = (ask(method, &theirs).await, ask(method, &nobodys).await);
        assert_eq!((found.status.as_u16(), absent.status.as_u16()), (404, 404), "{theirs}");
        let plain = |text: String| {
            let text = text.replace(&run.to_string(), "#").replace("77", "#");
            text.replace("theirs", "#").replace("nobody", "#")
        };
        assert_eq!(plain(found.text()), plain(absent.text()));
    }
    for list in ["/api/v1/jobs", "/api/v1/runs", "/api/v1/executors"] {
        assert_eq!(ask("GET", list).await.expect(200)["items"], json!([]), "{list}");
    }
    let apps = ask("GET", "/api/v1/apps").await.expect(200);
    assert_eq!(apps["items"].as_array().unwrap().len(), 1);
    assert_eq!(ask("GET", "/api/v1/namespaces").await.expect(200)["items"].as_array().unwrap().len(), 1);
    let denied = server.get("/api/v1/audit?verdict=denied&actor=scoped&limit=200").await.expect(200);
    assert_eq!(denied["items"].as_array().unwrap().len(), 6, "each attempt is written down");
}

/// `PowerJob` CVE-2024-44546 and its kin: text that becomes a part of a statement.
#[tokio::test]
async fn text_stays_text_in_filters() {
    let server = Server::start().await;
    for text in ["'%20OR%201=1--", "%00", "%22;DROP%20TABLE%20audit", "%25"] {
        for path in ["/api/v1/audit?actor=", "/api/v1/audit?object=", "/api/v1/users/", "/api/v1/tokens/"] {
            let answer = server.get(&format!("{path}{text}")).await;
            assert!(matches!(answer.status.as_u16(), 200 | 404 | 405 | 422), "{path}{text}: {}", answer.status);
        }
    }
}

/// A token gives away no more than its maker has.
#[tokio::test]
async fn nobody_raises_themselves() {
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
