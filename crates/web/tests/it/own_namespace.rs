//! A page in another namespace leads on within that namespace: by its links, its forms and the redirects after them.

use rondel_core::RunId;
use rondel_web::{Access, route_table};
use serde_json::json;

use crate::harness::Server;
use crate::visitor::{Visitor, location};

/// What belongs to no namespace.
const WITHOUT: [&str; 3] = ["/static/", "/sign-out", "/preferences"];

/// A job, a run and a calendar called `vault-job`, in `default` and in `ops`; the run in `ops`.
async fn twins(server: &Server) -> RunId {
    server.with_body("POST", "/api/v1/namespaces", json!({"name": "ops"})).await.expect(201);
    let mut run = None;
    for namespace in ["default", "ops"] {
        let job = json!({"name": "vault-job", "app": "app", "handler": "handler", "overrides": "all"});
        server.with_body("POST", &format!("/api/v1/jobs?namespace={namespace}"), job).await.expect(201);
        let calendar = json!({"rule": {"weekdays": ["mon"]}});
        let path = format!("/api/v1/calendars/vault-job?namespace={namespace}");
        let made = server.with_body("PUT", &path, calendar).await;
        assert!(made.status.is_success(), "{}", made.text());
        let made = server.bare("POST", &format!("/api/v1/jobs/vault-job/runs?namespace={namespace}")).await.expect(201);
        run = made["id"].as_str().and_then(|id| id.parse().ok());
    }
    run.unwrap()
}

/// The tags of a page that lead on without the namespace.
fn strays(html: &str) -> Vec<&str> {
    let tags: Vec<&str> = html.split('<').collect();
    let hidden = "input type=\"hidden\" name=\"namespace\" value=\"ops\">";
    let is_stray = |tag: &str, next: &str| {
        let addresses = [" href=\"/", " action=\"/", " hx-get=\"/", " hx-post=\"/"].into_iter().filter_map(|name| {
            let (_, rest) = tag.split_once(name)?;
            Some(format!("/{}", rest.split('"').next().unwrap_or_default()))
        });
        let mut addresses = addresses.filter(|address| !WITHOUT.iter().any(|without| address.starts_with(without)));
        let is_sent_by_get = tag.starts_with("form") && !tag.contains("method=\"post\"");
        addresses.any(|address| !address.contains("namespace=ops")) || (is_sent_by_get && !next.starts_with(hidden))
    };
    tags.windows(2).filter(|pair| is_stray(pair[0], pair[1])).map(|pair| pair[0]).collect()
}

#[tokio::test]
async fn every_link_and_form_of_a_page_keeps_its_namespace() {
    let server = Server::start().await;
    let run = twins(&server).await;
    let visitor = Visitor::signed_in(&server).await;
    let is_page = |access| matches!(access, Access::SignedIn(_));
    for route in route_table().into_iter().filter(|route| is_page(route.access) && route.method == "GET") {
        let path = route.path.replace("{name}", "vault-job").replace("{id}", &run.to_string());
        let answer = visitor.get(&format!("{path}?namespace=ops")).await;
        if answer.status == 303 {
            assert!(location(&answer).contains("namespace=ops"), "{path}");
            continue;
        }
        if path != "/openapi.json" && path != "/schedule-preview" {
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
        let html = answer.text();
        // The choice of a namespace leads to the others too.
        let others: &[&str] = if path == "/namespaces" { &["a href=\"/jobs?namespace=default\">"] } else { &[] };
        assert_eq!(strays(&html), others, "{path}");
    }
    let missing = visitor.get("/jobs/nowhere?namespace=ops").await;
    assert_eq!(missing.status, 404);
    assert_eq!(strays(&missing.text()), Vec::<&str>::new(), "the page of a problem");
}

#[tokio::test]
async fn forms_of_a_page_act_in_its_namespace() {
    let server = Server::start().await;
    twins(&server).await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/jobs/vault-job?namespace=ops").await.text();
    let action = |end: &str| {
        let found = page.split(" action=\"").skip(1).filter_map(|rest| rest.split('"').next());
        found.filter(|action| action.contains(end)).map(str::to_owned).next().unwrap_or_else(|| panic!("{end}: {page}"))
    };
    let to = location(&visitor.post(&action("/pause"), "").await);
    assert_eq!(to, "/jobs/vault-job?namespace=ops");
    let job = async |namespace: &str| server.get(&format!("/api/v1/jobs/vault-job?namespace={namespace}")).await;
    assert_eq!(job("ops").await.expect(200)["enabled"], false);
    assert_eq!(job("default").await.expect(200)["enabled"], true);
    let run = location(&visitor.post(&action("/runs"), "").await);
    assert_eq!(visitor.get(&run).await.status, 200, "{run}");
    assert_eq!(location(&visitor.post(&action("/delete"), "").await), "/jobs?namespace=ops");
    job("ops").await.expect(404);
    job("default").await.expect(200);
}

/// The namespace in the header of a page.
fn shown(html: &str) -> Option<&str> {
    let (_, rest) = html.split_once("<a class=\"where\" href=\"/namespaces")?;
    rest.split_once("<b>")?.1.split('<').next()
}

#[tokio::test]
async fn every_page_shows_its_namespace_and_leads_to_the_others() {
    let server = Server::start().await;
    let run = twins(&server).await;
    let visitor = Visitor::signed_in(&server).await;
    let is_page = |access| matches!(access, Access::SignedIn(_));
    let mut count = 0;
    for route in route_table().into_iter().filter(|route| is_page(route.access) && route.method == "GET") {
        let path = route.path.replace("{name}", "vault-job").replace("{id}", &run.to_string());
        for (namespace, query) in [("ops", "?namespace=ops"), ("default", "")] {
            let html = visitor.get(&format!("{path}{query}")).await.text();
            if html.contains("<header") {
                assert_eq!(shown(&html), Some(namespace), "{path}{query}");
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count} pages");
    for (path, namespace) in [
        ("/jobs/nowhere?namespace=ops", Some("ops")),
        ("/jobs/nowhere", Some("default")),
        ("/jobs?namespace=nowhere", None),
        ("/sign-in", None),
    ] {
        assert_eq!(shown(&visitor.get(path).await.text()), namespace, "{path}");
    }
    let choice = visitor.get("/namespaces?namespace=ops").await.text();
    assert!(choice.contains("href=\"/jobs?namespace=default\"><span"), "{choice}");
    assert!(choice.contains("href=\"/jobs?namespace=ops\" aria-current=\"true\"><span"), "{choice}");
}

#[tokio::test]
async fn the_choice_has_only_namespaces_that_the_caller_may_see() {
    let server = Server::start().await;
    twins(&server).await;
    let token = json!({"kind": "api", "name": "only-ops", "grants": [{"role": "viewer", "namespace": "ops"}]});
    let token = server.with_body("POST", "/api/v1/tokens", token).await.expect(201);
    let request = http::Request::builder().method("POST").uri("/api/v1/sign-in-links");
    let request = request.header("authorization", format!("Bearer {}", token["token"].as_str().unwrap()));
    let link = server.send(request.body(axum::body::Body::empty()).unwrap()).await.expect(201);
    let form = link["path"].as_str().unwrap().strip_prefix("/sign-in?").unwrap().to_owned();
    let mut visitor = Visitor::new(&server);
    let answer = visitor.post("/sign-in", &form).await;
    visitor.cookie = answer.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    for path in ["/namespaces", "/account"] {
        let html = visitor.get(path).await.text();
        assert_eq!(shown(&html), Some("ops"), "{path}");
    }
    assert!(!visitor.get("/namespaces").await.text().contains("default"));
}
