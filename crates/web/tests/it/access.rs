//! A caller without the permission cannot learn anything from answers.

use axum::body::Body;
use axum::http::Request;
use rondel_web::{Access, WebConfig, route_table};

use crate::harness::{Answer, Server};

async fn call(server: &Server, method: &str, path: &str, token: Option<&str>) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("x-request-id", "same");
    if let Some(token) = token {
        request = request.header("authorization", token);
    }
    server.send(request.body(Body::from("{not json")).unwrap()).await
}

fn path_with_names(path: &str, name: &str) -> String {
    path.replace("{name}", name).replace("{app}", name).replace("{user}", name).replace("{id}", "1")
}

/// Calls of every route, with the name of an existing object, of a missing one and with an invalid one. Also calls of paths that are no
/// routes.
fn all_calls() -> Vec<(String, String)> {
    let mut calls = Vec::new();
    for route in route_table().iter().filter(|route| matches!(route.access, Access::Needs(_))) {
        for name in ["there", "nosuch", "%ff"] {
            let path = path_with_names(route.path, name);
            calls.push((route.method.to_string(), path.clone()));
            calls.push((route.method.to_string(), format!("{path}?namespace=nosuch&limit=x")));
        }
        calls.push(("OPTIONS".to_owned(), path_with_names(route.path, "there")));
    }
    for path in ["/api", "/api/", "/api/v1", "/api/v2/jobs", "/api/v1/jobs/there/nosuch", "/api/v1/runs/1/logs/x"] {
        calls.push(("GET".to_owned(), path.to_owned()));
    }
    calls
}

#[tokio::test]
async fn without_a_good_token_everything_is_the_same() {
    let server = Server::start().await;
    server.job("there").await;
    let unknown = format!("Bearer rondel_{}", "0".repeat(64));
    let basic = format!("Basic {}", server.admin.reveal());
    let executor = format!("Bearer {}", server.executor.reveal());
    for (token, status) in [
        (None, 401),
        (Some(unknown.as_str()), 401),
        (Some("Bearer "), 401),
        (Some(basic.as_str()), 401),
        (Some(executor.as_str()), 403),
    ] {
        let expected = call(&server, "GET", "/api/v1/jobs", token).await;
        assert_eq!(expected.status, status, "{token:?}");
        for (method, path) in all_calls() {
            let answer = call(&server, &method, &path, token).await;
            assert_eq!(answer.status, status, "{method} {path}");
            assert_eq!(answer.bytes, expected.bytes, "{method} {path}");
            let names = |answer: &Answer| {
                let mut names: Vec<_> = answer.headers.keys().map(ToString::to_string).collect();
                // `Allow` may differ: it shows only the route table, which is public.
                names.retain(|name| name != "allow");
                names.sort();
                names
            };
            assert_eq!(names(&answer), names(&expected), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn open_routes_are_these() {
    let server = Server::start().await;
    let table = route_table();
    let open: Vec<_> = table.iter().filter(|route| route.access == Access::Open).map(|route| route.path).collect();
    let entries =
        ["/set-up", "/set-up", "/sign-in", "/sign-in", "/sign-in/oidc", "/sign-in/oidc/callback", "/sign-out"];
    assert_eq!(open, [&["/livez", "/readyz"], &entries[..], &["/preferences", "/static/{file}"]].concat());
    for path in ["/livez", "/readyz", "/sign-in"] {
        assert_eq!(call(&server, "GET", path, None).await.status, 200, "{path}");
    }
    assert_eq!(call(&server, "GET", "/nosuch", None).await.status, 404);
    assert_eq!(call(&server, "POST", "/livez", None).await.status, 405);
}

#[tokio::test]
async fn answers_are_hardened() {
    let server = Server::start().await;
    for path in ["/api/v1/jobs", "/api/v1/nosuch", "/livez", "/"] {
        let answer = server.get(path).await;
        assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(answer.headers["cache-control"], "no-store", "{path}");
        assert!(answer.headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'"), "{path}");
        assert!(!answer.headers.contains_key("server"), "{path}");
        assert!(!answer.headers["x-request-id"].is_empty(), "{path}");
    }
    let request = server.request("GET", "/api/v1/jobs").header("x-request-id", "a b<script>");
    let answer = server.send(request.body(Body::empty()).unwrap()).await;
    assert_ne!(answer.headers["x-request-id"], "a b<script>");
}

#[tokio::test]
async fn two_authorization_headers_are_refused() {
    let server = Server::start().await;
    for path in ["/api/v1/me", "/api/v1/nosuch"] {
        let request = server.request("GET", path).header("authorization", "Bearer rondel_other");
        let refusal = server.send(request.body(Body::empty()).unwrap()).await.expect(400);
        assert_eq!(refusal["code"], "invalid_header");
        assert!(refusal["detail"].as_str().unwrap().contains("Authorization was sent 2 times"), "{refusal}");
    }
    assert_eq!(server.get("/api/v1/me").await.expect(200)["namespace"], "default");
}

#[tokio::test]
async fn forms_come_from_the_advertised_origin_alone() {
    let advertised = Some("http://jobs.example.com".to_owned());
    let server = Server::start_with(WebConfig { advertised, ..WebConfig::default() }).await;
    for (origin, host, status) in [
        ("http://jobs.example.com", "10.0.0.7:8080", 422),
        ("http://rebound.example.net", "rebound.example.net", 403),
        ("https://jobs.example.com", "jobs.example.com", 403),
        ("http://jobs.example.com:8080", "jobs.example.com:8080", 403),
    ] {
        for path in ["/preferences", "/account/password"] {
            let request = Request::post(path).header("host", host).header("origin", origin);
            let request = request.header("content-type", "application/x-www-form-urlencoded");
            let answer = server.send(request.body(Body::from("a=b")).unwrap()).await;
            let expected = if path == "/preferences" || status == 403 { status } else { 401 };
            assert_eq!(answer.status, expected, "{path} {origin}: {}", answer.text());
        }
    }
}
