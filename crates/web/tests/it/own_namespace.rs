//! A page keeps its namespace: in its links, in its forms, and in the redirects after forms.

use rondel_core::RunId;
use rondel_web::{Access, route_table};
use serde_json::json;

use crate::harness::Server;
use crate::visitor::{Visitor, location};

/// Paths that belong to no namespace.
const PATHS_WITHOUT_NAMESPACE: [&str; 3] = ["/static/", "/sign-out", "/preferences"];
/// The attributes that contain URLs.
const URL_ATTRIBUTES: [&str; 8] = [
    " href=\"/",
    " action=\"/",
    " formaction=\"/",
    " hx-get=\"/",
    " hx-post=\"/",
    " data-load=\"/",
    " data-href=\"/",
    " data-stream=\"/",
];

/// Creates a job, a calendar, a script and a run named `vault-job` in each of the namespaces `default` and `ops`. Returns the run in
/// `ops`.
async fn create_in_both_namespaces(server: &Server) -> RunId {
    server.with_body("POST", "/api/v1/namespaces", json!({"name": "ops"})).await.expect(201);
    let mut run = None;
    for namespace in ["default", "ops"] {
        let job = json!({"name": "vault-job", "app": "app", "handler": "handler", "overrides": "all"});
        server.with_body("POST", &format!("/api/v1/jobs?namespace={namespace}"), job).await.expect(201);
        let calendar = json!({"rule": {"weekdays": ["mon"]}});
        let path = format!("/api/v1/calendars/vault-job?namespace={namespace}");
        let created = server.with_body("PUT", &path, calendar).await;
        assert!(created.status.is_success(), "{}", created.text());
        let script = json!({"language": "shell", "source": "date"});
        let path = format!("/api/v1/scripts/vault-job?namespace={namespace}");
        let created = server.with_body("PUT", &path, script).await;
        assert!(created.status.is_success(), "{}", created.text());
        let created =
            server.bare("POST", &format!("/api/v1/jobs/vault-job/runs?namespace={namespace}")).await.expect(201);
        run = created["id"].as_str().and_then(|id| id.parse().ok());
    }
    run.unwrap()
}

/// The tags of a page with a URL that lacks the namespace.
fn tags_without_namespace(html: &str) -> Vec<&str> {
    let is_stray = |tag: &&str| {
        let addresses = URL_ATTRIBUTES.into_iter().filter_map(|name| {
            let (_, rest) = tag.split_once(name)?;
            Some(format!("/{}", rest.split('"').next().unwrap_or_default()))
        });
        let mut addresses =
            addresses.filter(|address| !PATHS_WITHOUT_NAMESPACE.iter().any(|without| address.starts_with(without)));
        addresses.any(|address| !address.starts_with("/n/ops/"))
    };
    html.split('<').filter(is_stray).collect()
}

#[tokio::test]
async fn every_link_and_form_of_a_page_keeps_its_namespace() {
    let server = Server::start().await;
    let run = create_in_both_namespaces(&server).await;
    let visitor = Visitor::signed_in(&server).await;
    let is_page = |access| matches!(access, Access::SignedIn(_));
    for route in route_table().into_iter().filter(|route| is_page(route.access) && route.method == "GET") {
        let path = route.path.replace("{name}", "vault-job").replace("{id}", &run.to_string());
        assert_eq!(location(&visitor.exactly(&format!("{path}?namespace=ops")).await), format!("/n/ops{path}"));
        let answer = visitor.exactly(&format!("/n/ops{path}")).await;
        if answer.status == 303 {
            assert!(location(&answer).starts_with("/n/ops/"), "{path}");
            continue;
        }
        // No executor, channel or rule has this name, and no incident has this id.
        let missing = ["/executors/vault-job", "/alerts/channels/vault-job", "/alerts/rules/vault-job"];
        if missing.contains(&path.as_str()) || path.starts_with("/alerts/incidents/") {
            assert_eq!(answer.status, 404);
        } else if path == "/jobs/vault-job/pump" {
            assert_eq!(answer.status, 409, "it is no pump job");
        } else if path != "/openapi.json" && path != "/schedule-preview" {
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
        let html = answer.text();
        // The page to choose a namespace also links to the other namespace.
        let others: &[&str] = if path == "/namespaces" { &["a href=\"/n/default/jobs\">"] } else { &[] };
        let mut strays = tags_without_namespace(&html);
        // Entries of the audit log link to the namespace in which the action took place.
        if path == "/activity" {
            strays.retain(|tag| !tag.starts_with("a href=\"/n/default/"));
        }
        assert_eq!(strays, others, "{path}");
    }
    let missing = visitor.exactly("/n/ops/jobs/nowhere").await;
    assert_eq!(missing.status, 404);
    assert_eq!(tags_without_namespace(&missing.text()), Vec::<&str>::new(), "the page of a problem");
}

#[tokio::test]
async fn forms_of_a_page_act_in_its_namespace() {
    let server = Server::start().await;
    create_in_both_namespaces(&server).await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.exactly("/n/ops/jobs/vault-job").await.text();
    let action = |end: &str| {
        let found = page.split(" action=\"").skip(1).filter_map(|rest| rest.split('"').next());
        found.filter(|action| action.contains(end)).map(str::to_owned).next().unwrap_or_else(|| panic!("{end}: {page}"))
    };
    let to = location(&visitor.post(&action("/pause"), "").await);
    assert_eq!(to, "/n/ops/jobs/vault-job");
    let job = async |namespace: &str| server.get(&format!("/api/v1/jobs/vault-job?namespace={namespace}")).await;
    assert_eq!(job("ops").await.expect(200)["enabled"], false);
    assert_eq!(job("default").await.expect(200)["enabled"], true);
    let run = location(&visitor.post(&action("/runs"), "").await);
    assert_eq!(visitor.exactly(&run).await.status, 200, "{run}");
    assert_eq!(location(&visitor.post(&action("/delete"), "").await), "/n/ops/jobs");
    job("ops").await.expect(404);
    job("default").await.expect(200);
}

/// The namespace that the header of a page shows.
fn shown_namespace(html: &str) -> Option<&str> {
    let (_, rest) = html.split_once("<details class=\"menu where")?;
    rest.split_once("<b>")?.1.split('<').next()
}

#[tokio::test]
async fn every_page_shows_its_namespace_and_leads_to_the_others() {
    let server = Server::start().await;
    let run = create_in_both_namespaces(&server).await;
    let visitor = Visitor::signed_in(&server).await;
    let is_page = |access| matches!(access, Access::SignedIn(_));
    let mut count = 0;
    for route in route_table().into_iter().filter(|route| is_page(route.access) && route.method == "GET") {
        let path = route.path.replace("{name}", "vault-job").replace("{id}", &run.to_string());
        for (namespace, prefix) in [("ops", "/n/ops"), ("default", "")] {
            let html = visitor.get(&format!("{prefix}{path}")).await.text();
            if html.contains("<header") {
                assert_eq!(shown_namespace(&html), Some(namespace), "{prefix}{path}");
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count} pages");
    for (path, namespace) in [
        ("/n/ops/jobs/nowhere", Some("ops")),
        ("/jobs/nowhere", Some("default")),
        ("/jobs?namespace=nowhere", None),
        ("/n/nowhere/jobs", None),
        ("/n/%3Cb%3E/jobs", None),
        ("/sign-in", None),
    ] {
        assert_eq!(shown_namespace(&visitor.get(path).await.text()), namespace, "{path}");
    }
    for (query, to) in [("", "/jobs"), ("?to=/runs", "/runs"), ("?to=//evil", "/jobs"), ("?to=/account", "/jobs")] {
        let choice = visitor.exactly(&format!("/n/ops/namespaces{query}")).await.text();
        assert!(choice.contains(&format!("href=\"/n/default{to}\"><span")), "{choice}");
        assert!(choice.contains(&format!("href=\"/n/ops{to}\" aria-current=\"true\"><span")), "{choice}");
    }
}

#[tokio::test]
async fn the_choice_has_only_namespaces_that_the_caller_may_see() {
    let server = Server::start().await;
    create_in_both_namespaces(&server).await;
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
        assert_eq!(shown_namespace(&html), Some("ops"), "{path}");
    }
    assert!(!visitor.get("/namespaces").await.text().contains("default"));
}

#[tokio::test]
async fn a_page_without_a_namespace_leads_to_the_one_of_the_caller() {
    let server = Server::start().await;
    create_in_both_namespaces(&server).await;
    let visitor = Visitor::signed_in(&server).await;
    for (old, new) in [
        ("/", "/n/default/"),
        ("/jobs?q=vault", "/n/default/jobs?q=vault"),
        ("/jobs?namespace=ops&q=vault", "/n/ops/jobs?q=vault"),
    ] {
        assert_eq!(location(&visitor.exactly(old).await), new);
    }
    assert_eq!(visitor.exactly("/n/ops/jobs?namespace=default").await.status, 200, "the path wins");
    assert_eq!(visitor.exactly("/n/ops/api/v1/jobs").await.status, 404);
    assert_eq!(visitor.exactly("/n/ops/metrics").await.status, 404);
    let mut stranger = Visitor::new(&server);
    stranger.cookie = String::new();
    let wanted = stranger.exactly("/n/ops/jobs?q=vault").await;
    assert_eq!(location(&wanted), "/sign-in?next=/n/ops/jobs%3Fq%3Dvault");
}

#[tokio::test]
async fn a_job_of_any_namespace_is_reached_by_links_from_the_first_page() {
    let server = Server::start().await;
    create_in_both_namespaces(&server).await;
    let visitor = Visitor::signed_in(&server).await;
    let mut address = location(&visitor.exactly("/").await);
    for wanted in ["/n/default/namespaces", "/n/ops/", "/n/ops/jobs/vault-job"] {
        let mut answer = visitor.exactly(&address).await;
        while answer.status == 303 {
            answer = visitor.exactly(&location(&answer)).await;
        }
        let html = answer.text();
        let mut links = html.split(" href=\"").skip(1).filter_map(|rest| rest.split('"').next());
        address = links.find(|link| link.starts_with(wanted)).unwrap_or_else(|| panic!("{wanted}: {html}")).to_owned();
    }
    assert_eq!(visitor.exactly(&address).await.status, 200);
}
