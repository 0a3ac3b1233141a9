//! Users, passwords, sign-ins, tokens and the audit log, through the API and the console.

use rondel_admin::sign_in;
use serde_json::{Value, json};

use crate::harness::{Answer, Server};
use crate::visitor::{Visitor, location};

const PASSWORD: &str = "correct horse";

pub(crate) async fn user(server: &Server, name: &str, grants: Value) {
    let body = json!({"name": name, "password": PASSWORD, "grants": grants});
    server.with_body("POST", "/api/v1/users", body).await.expect(201);
}

pub(crate) fn cookie(answer: &Answer) -> String {
    answer.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned()
}

pub(crate) async fn signed_in<'s>(server: &'s Server, name: &str) -> Visitor<'s> {
    let mut visitor = Visitor::new(server);
    let answer = visitor.post("/sign-in", &format!("name={name}&password=correct+horse&next=/jobs")).await;
    assert_eq!(location(&answer), "/jobs", "{}", answer.text());
    visitor.cookie = cookie(&answer);
    visitor
}

#[tokio::test]
async fn the_first_account_is_made_by_a_link_that_works_once() {
    let server = Server::start().await;
    let engine = &server.engine;
    let secret = sign_in::create_setup_link(engine.store(), engine.now()).await.unwrap().unwrap();
    let mut visitor = Visitor::new(&server);
    let path = format!("/set-up?token={}", secret.reveal());
    let dead = visitor.get("/set-up?token=rondel_guess").await;
    assert_eq!(dead.status, 410);
    assert!(dead.text().contains("older than a day") && dead.text().contains("restart the server"), "{}", dead.text());
    assert!(visitor.get("/sign-in").await.text().contains("id=\"no-account\""), "there is no account to sign in with");
    let page = visitor.get(&path).await;
    assert!(page.text().contains("Lowercase letters a-z"), "{}", page.text());
    assert_eq!(visitor.get(&path).await.status, 200);
    let form = |password: &str| format!("token={}&name=ann&password={password}", secret.reveal());
    let weak = visitor.post("/set-up", &form("short")).await;
    assert_eq!(weak.status, 422);
    assert!(weak.text().contains("at least 10 characters"), "{}", weak.text());
    let answer = visitor.post("/set-up", &form("correct+horse")).await;
    assert_eq!(location(&answer), "/");
    visitor.cookie = cookie(&answer);
    assert_eq!(visitor.get("/users").await.status, 200, "the first may do everything");
    assert!(!Visitor::new(&server).get("/sign-in").await.text().contains("id=\"no-account\""), "ann can");
    assert_eq!(visitor.post("/set-up", &form("correct+horse")).await.status, 410);
    assert!(sign_in::create_setup_link(engine.store(), engine.now()).await.unwrap().is_none());
}

#[tokio::test]
async fn wrong_names_and_wrong_passwords_are_answered_alike_until_they_are_blocked() {
    let server = Server::start().await;
    user(&server, "ann", json!([])).await;
    let visitor = Visitor::new(&server);
    let wrong = visitor.post("/sign-in", "name=ann&password=wrong+horse").await;
    let unknown = visitor.post("/sign-in", "name=bob&password=wrong+horse").await;
    assert_eq!((wrong.status.as_u16(), unknown.status.as_u16()), (401, 401));
    let without_name = |answer: &Answer, name: &str| answer.text().replace(&format!("value=\"{name}\""), "");
    assert_eq!(without_name(&wrong, "ann"), without_name(&unknown, "bob"));
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(visitor.post("/sign-in", "name=ann&password=wrong+horse").await.status.as_u16());
    }
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 9, "{statuses:?}");
    let blocked = visitor.post("/sign-in", "name=ann&password=correct+horse").await;
    assert_eq!(blocked.status, 429);
    assert!(blocked.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() <= 900);
    let denied = server.get("/api/v1/audit?action=session.create&verdict=denied&limit=200").await.expect(200);
    assert_eq!(denied["items"].as_array().unwrap().len(), 11);
}

#[tokio::test]
async fn a_stolen_session_ends_with_the_password() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "viewer"}])).await;
    let (mut own, stolen) = (signed_in(&server, "ann").await, signed_in(&server, "ann").await);
    assert_eq!(stolen.get("/jobs").await.status, 200);
    let wrong = own.post("/account/password", "current=nonsense&password=another+horse").await;
    assert_eq!(wrong.status, 403);
    let changed = own.post("/account/password", "current=correct+horse&password=another+horse").await;
    assert_eq!(location(&changed), "/account");
    assert_eq!(location(&stolen.get("/jobs").await), "/sign-in?next=/jobs");
    assert_eq!(location(&own.get("/jobs").await), "/sign-in?next=/jobs", "the old cookie is worth nothing");
    own.cookie = cookie(&changed);
    assert_eq!(own.get("/jobs").await.status, 200);
    let entry = server.get("/api/v1/audit?actor=ann&limit=1").await.expect(200);
    assert_eq!(
        (&entry["items"][0]["action"], &entry["items"][0]["verdict"]),
        (&json!("account.password"), &json!("allowed"))
    );
}

#[tokio::test]
async fn a_session_is_new_at_each_sign_in_and_ends_by_hand() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "viewer"}])).await;
    let first = signed_in(&server, "ann").await;
    // The server does not adopt a cookie that an attacker planted: the sign-in gets a new one.
    let planted = Visitor { cookie: "rondel_session=rondel_planted".to_owned(), ..Visitor::new(&server) };
    let answer = planted.post("/sign-in", "name=ann&password=correct+horse").await;
    assert_ne!(cookie(&answer), planted.cookie);
    assert_eq!(location(&planted.get("/jobs").await), "/sign-in?next=/jobs");
    let page = first.get("/account").await.text();
    let id = page.split("/account/sessions/").nth(1).unwrap().split('/').next().unwrap().to_owned();
    assert_eq!(location(&first.post(&format!("/account/sessions/{id}/end"), "").await), "/account");
    let other = Visitor { cookie: cookie(&answer), ..Visitor::new(&server) };
    assert_eq!(location(&other.get("/jobs").await), "/sign-in?next=/jobs");
    first.post("/sign-out", "").await;
    assert_eq!(location(&first.get("/jobs").await), "/sign-in?next=/jobs");
}

#[tokio::test]
async fn disabling_an_account_and_new_roles_take_effect_at_once() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "editor"}])).await;
    let token = {
        let visitor = signed_in(&server, "ann").await;
        let page = visitor.post("/account/tokens", "name=mine&grants=editor").await.text();
        page.split("<pre>").nth(1).unwrap().split("</pre>").next().unwrap().to_owned()
    };
    let as_ann = async |method: &str, path: &str| {
        let request = server.request(method, path);
        let mut request = request.body(axum::body::Body::empty()).unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        server.send(request).await
    };
    server.job("there").await;
    assert_eq!(as_ann("POST", "/api/v1/jobs/there/pause").await.status, 200);
    let viewer = json!({"grants": [{"role": "viewer"}]});
    server.with_body("PATCH", "/api/v1/users/ann", viewer).await.expect(200);
    assert_eq!(as_ann("POST", "/api/v1/jobs/there/resume").await.status, 403, "a token has no more than its owner");
    assert_eq!(as_ann("GET", "/api/v1/jobs/there").await.status, 200);
    server.with_body("PATCH", "/api/v1/users/ann", json!({"disabled": true})).await.expect(200);
    assert_eq!(as_ann("GET", "/api/v1/jobs/there").await.status, 401);
    let visitor = Visitor::new(&server);
    assert_eq!(visitor.post("/sign-in", "name=ann&password=correct+horse").await.status, 401);
    let link = server.bare("POST", "/api/v1/users/ann/sign-in-link").await.expect(201);
    let (_, secret) = link["path"].as_str().unwrap().split_once('?').unwrap();
    let refusal = visitor.post("/sign-in", secret).await;
    assert!(refusal.status == 403 && !refusal.headers.contains_key("set-cookie"), "{}", refusal.text());
    assert!(refusal.text().contains("the user ann is locked out here"), "{}", refusal.text());
    let audit = server.get("/api/v1/audit?action=session.create&limit=1").await.expect(200);
    assert_eq!((&audit["items"][0]["actor"], &audit["items"][0]["verdict"]), (&json!("ann"), &json!("denied")));
}

#[tokio::test]
async fn the_last_account_with_every_right_stays() {
    let server = Server::start().await;
    user(&server, "root", json!([{"role": "admin"}])).await;
    for (method, body) in [
        ("PATCH", json!({"disabled": true})),
        ("PATCH", json!({"grants": [{"role": "admin", "namespace": "default"}]})),
        ("DELETE", json!({})),
    ] {
        let answer = server.with_body(method, "/api/v1/users/root", body).await.expect(409);
        assert_eq!(answer["code"], "last_admin");
    }
}

#[tokio::test]
async fn no_user_gets_the_role_of_executors() {
    let server = Server::start().await;
    let grants = json!([{"role": "viewer"}, {"role": "executor", "namespace": "default", "app": "billing"}]);
    let create = server.with_body("POST", "/api/v1/users", json!({"name": "ann", "grants": grants})).await.expect(422);
    assert_eq!(create["errors"][0]["pointer"], "/grants/1/role");
    server.with_body("POST", "/api/v1/users", json!({"name": "ann", "grants": [{"role": "viewer"}]})).await.expect(201);
    let change = server.with_body("PATCH", "/api/v1/users/ann", json!({"grants": grants})).await.expect(422);
    assert_eq!(change["errors"][0]["message"], "executor is a role for tokens, not for users");
    user(&server, "root", json!([{"role": "admin"}])).await;
    let page = signed_in(&server, "root").await.get("/users").await.text();
    assert!(page.contains("<option value=\"editor\"") && !page.contains("<option value=\"executor\""), "{page}");
}

#[tokio::test]
async fn the_account_page_creates_tokens_for_executors() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "admin"}])).await;
    let ann = signed_in(&server, "ann").await;
    let page = ann.get("/account").await.text();
    let roles = page.split("<select name=\"grant.0.role\">").nth(1).unwrap().split("</select>").next().unwrap();
    assert!(roles.contains("<option value=\"executor\""), "{roles}");
}

#[tokio::test]
async fn tokens_are_shown_once_replaced_and_revoked() {
    let server = Server::start().await;
    let body = json!({"kind": "executor", "name": "billing", "grants": [{"role": "executor", "namespace": "default", "app": "billing"}]});
    let created = server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
    let secret = created["token"].as_str().unwrap();
    assert!(secret.starts_with("rondel_exec_") && secret.len() == 12 + 64, "{secret}");
    assert!(secret.starts_with(created["prefix"].as_str().unwrap()));
    let listed = server.get("/api/v1/tokens?all=true").await;
    assert!(!listed.text().contains(secret) && listed.text().contains("billing"));
    let id = created["id"].as_str().unwrap();
    let rotated =
        server.with_body("POST", &format!("/api/v1/tokens/{id}/rotate"), json!({"overlap": "1h"})).await.expect(201);
    assert_ne!(rotated["token"], created["token"]);
    let old = server.get("/api/v1/tokens?all=true").await.expect(200);
    let old = old["items"].as_array().unwrap().iter().find(|token| token["id"] == created["id"]).unwrap().clone();
    assert!(old["expires_at"].is_string() && old["revoked_at"].is_null());
    assert_eq!(server.bare("DELETE", &format!("/api/v1/tokens/{id}")).await.status, 204);
    assert_eq!(server.bare("DELETE", &format!("/api/v1/tokens/{id}")).await.status, 204, "twice is no fault");
    let again = server.with_body("POST", &format!("/api/v1/tokens/{id}/rotate"), json!({})).await.expect(409);
    assert_eq!(again["code"], "token_over");
    let log = server.get("/api/v1/audit?action=token.create").await.text();
    assert!(log.contains("billing") && !log.contains(&secret[20..]), "{log}");
    let billing = json!({"role": "executor", "namespace": "default", "app": "billing"});
    let xxl = json!({"kind": "xxl", "name": "billing-xxl", "grants": [billing]});
    let created = server.with_body("POST", "/api/v1/tokens", xxl).await.expect(201);
    assert!(created["kind"] == "xxl" && created["expires_at"].is_null(), "{created}");
    assert!(created["token"].as_str().is_some_and(|text| text.starts_with("rondel_xxl_")), "{created}");
    for (body, pointer) in [
        (json!({"kind": "api", "name": "x", "grants": []}), "/grants"),
        (json!({"kind": "api", "name": "x", "grants": [{"role": "executor"}]}), "/grants/0/role"),
        (json!({"kind": "api", "name": "x", "grants": [{"role": "viewer", "app": "a"}]}), "/grants/0/app"),
        (json!({"kind": "api", "name": "x", "grants": [{"role": "viewer"}], "expires_in": "soon"}), "/expires_in"),
        (json!({"kind": "api", "name": "x\u{0}", "grants": [{"role": "viewer"}]}), "/name"),
        (json!({"kind": "xxl", "name": "x", "grants": [{"role": "viewer"}]}), "/grants/0/role"),
        (json!({"kind": "xxl", "name": "x", "grants": [{"role": "executor", "namespace": "default"}]}), "/grants"),
        (json!({"kind": "xxl", "name": "x", "grants": [billing, billing]}), "/grants"),
        (json!({"kind": "xxl", "name": "x", "grants": [billing], "declares": true}), "/declares"),
    ] {
        let refusal = server.with_body("POST", "/api/v1/tokens", body.clone()).await.expect(422);
        assert_eq!(refusal["errors"][0]["pointer"], pointer, "{body}");
    }
}

#[tokio::test]
async fn admins_of_a_namespace_see_the_tokens_of_its_executors_and_no_others() {
    let server = Server::start().await;
    server.with_body("POST", "/api/v1/namespaces", json!({"name": "elsewhere"})).await.expect(201);
    let make = async |name: &str, role: &str, namespace: &str| {
        let kind = if role == "executor" { "executor" } else { "api" };
        let grants = json!([{"role": role, "namespace": namespace}]);
        let created =
            server.with_body("POST", "/api/v1/tokens", json!({"kind": kind, "name": name, "grants": grants})).await;
        created.expect(201)["token"].as_str().unwrap().to_owned()
    };
    make("here", "executor", "default").await;
    make("there", "executor", "elsewhere").await;
    for (role, namespace, expected) in [
        ("admin", "default", vec!["here"]),
        ("admin", "elsewhere", vec!["there"]),
        ("editor", "default", vec![]),
        ("viewer", "default", vec![]),
    ] {
        let bearer = format!("Bearer {}", make("user", role, namespace).await);
        let request = http::Request::builder().uri("/api/v1/tokens?all=true").header("authorization", bearer);
        let listed = server.send(request.body(axum::body::Body::empty()).unwrap()).await.expect(200);
        let items = listed["items"].as_array().unwrap();
        let names: Vec<&str> = items.iter().map(|item| item["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected, "{role} of {namespace}");
    }
    let mut seen = 0;
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("/api/v1/tokens?all=true&limit=2{cursor}")).await.expect(200);
        seen += page["items"].as_array().unwrap().len();
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    // Two tokens of executors, four of a user, and the two that every server of these tests has.
    assert_eq!(seen, 8);
}

#[tokio::test]
async fn changes_are_audited_with_the_state_before_and_after() {
    let server = Server::start().await;
    let body = json!({"name": "a", "app": "app", "handler": "h", "params": {"db_password": "hunter2"}});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    server.with_body("PATCH", "/api/v1/jobs/a", json!({"description": "new"})).await.expect(200);
    server.with_body("PATCH", "/api/v1/jobs/nosuch", json!({})).await.expect(404);
    let found = server.get("/api/v1/audit").await;
    assert!(!found.text().contains("hunter2"), "secrets are masked");
    let found = found.expect(200);
    let items = found["items"].as_array().unwrap();
    let brief: Vec<_> =
        items.iter().map(|item| (item["action"].clone(), item["object"].clone(), item["verdict"].clone())).collect();
    assert_eq!(
        brief,
        [
            (json!("job.change"), json!("nosuch"), json!("failed")),
            (json!("job.change"), json!("a"), json!("allowed")),
            (json!("job.create"), json!("a"), json!("allowed")),
        ]
    );
    assert_eq!((&items[1]["before"]["description"], &items[1]["after"]["description"]), (&json!(""), &json!("new")));
    assert_eq!(
        (&items[1]["actor"], &items[1]["means"], &items[1]["namespace"]),
        (&json!("token:admin"), &json!("token"), &json!("default"))
    );
    let first = server.get("/api/v1/audit?limit=1").await.expect(200);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = server.get(&format!("/api/v1/audit?limit=1&cursor={cursor}")).await.expect(200);
    assert_eq!(second["items"][0]["id"], items[1]["id"]);
    let request = server.request("GET", "/api/v1/audit").header("accept", "application/x-ndjson");
    let lines = server.send(request.body(axum::body::Body::empty()).unwrap()).await.text();
    assert_eq!(lines.lines().count(), 3);
}

#[tokio::test]
async fn namespaces_are_made_and_removed_when_empty() {
    let server = Server::start().await;
    server.with_body("POST", "/api/v1/namespaces", json!({"name": "staging"})).await.expect(201);
    let again = server.with_body("POST", "/api/v1/namespaces", json!({"name": "staging"})).await.expect(409);
    assert_eq!(again["code"], "namespace_exists");
    server
        .with_body("POST", "/api/v1/jobs?namespace=staging", json!({"name": "a", "app": "b", "handler": "h"}))
        .await
        .expect(201);
    assert_eq!(server.bare("DELETE", "/api/v1/namespaces/staging").await.expect(409)["code"], "namespace_used");
    server.with_body("POST", "/api/v1/namespaces", json!({"name": "empty"})).await.expect(201);
    assert_eq!(server.bare("DELETE", "/api/v1/namespaces/empty").await.status, 204);
    assert_eq!(server.bare("DELETE", "/api/v1/namespaces/default").await.status, 409);
}

/// A token of the account with only the role viewer, and a session begun with this token.
pub(crate) async fn viewer_of<'s>(server: &'s Server, owner: &Visitor<'_>) -> (String, Visitor<'s>) {
    let page = owner.post("/account/tokens", "name=limited&grants=viewer").await.text();
    let token = page.split("<pre>").nth(1).unwrap().split("</pre>").next().unwrap().to_owned();
    let link = as_token(server, &token, "POST", "/api/v1/sign-in-links", "").await.expect(201);
    let link = link["path"].as_str().unwrap().strip_prefix("/sign-in?token=").unwrap().to_owned();
    let mut visitor = Visitor::new(server);
    visitor.cookie = cookie(&visitor.post("/sign-in", &format!("token={link}&next=/jobs")).await);
    (token, visitor)
}

pub(crate) async fn as_token(server: &Server, token: &str, method: &str, path: &str, body: &str) -> Answer {
    let request = http::Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
    let request = if body.is_empty() { request } else { request.header("content-type", "application/json") };
    server.send(request.body(axum::body::Body::from(body.to_owned())).unwrap()).await
}

#[tokio::test]
async fn a_limited_token_neither_rotates_nor_takes_over_its_account() {
    let server = Server::start().await;
    let body = json!({"name": "ann", "grants": [{"role": "admin"}]});
    server.with_body("POST", "/api/v1/users", body).await.expect(201);
    let link = server.bare("POST", "/api/v1/users/ann/sign-in-link").await.expect(201);
    let link = link["path"].as_str().unwrap().strip_prefix("/sign-in?token=").unwrap().to_owned();
    let mut ann = Visitor::new(&server);
    ann.cookie = cookie(&ann.post("/sign-in", &format!("token={link}")).await);
    let page = ann.post("/account/tokens", "name=strong&grants=admin").await.text();
    let strong = page.split("<pre>").nth(1).unwrap().split("</pre>").next().unwrap().to_owned();
    let id = page.split("/account/tokens/").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let (token, began) = viewer_of(&server, &ann).await;
    for (method, path) in [("POST", format!("/api/v1/tokens/{id}/rotate")), ("DELETE", format!("/api/v1/tokens/{id}"))]
    {
        assert_eq!(as_token(&server, &token, method, &path, "").await.status, 404, "{method} {path}");
    }
    assert_eq!(as_token(&server, &strong, "GET", "/api/v1/me", "").await.status, 200);
    let listed = as_token(&server, &token, "GET", "/api/v1/tokens", "").await.text();
    assert!(listed.contains("limited") && !listed.contains("strong"), "{listed}");
    let taken = began.post("/account/password", "current=&password=taken+over+now").await;
    assert_eq!(taken.status, 403, "{}", taken.text());
    let page = began.get("/account").await.text();
    assert!(!page.contains("/account/password") && !page.contains("/account/sessions/"), "{page}");
    // The account itself may set a password, even though it had none so far.
    let set = ann.post("/account/password", "current=&password=correct+horse").await;
    assert_eq!(location(&set), "/account");
}

#[tokio::test]
async fn objects_that_a_token_makes_end_with_it() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "admin"}])).await;
    let ann = signed_in(&server, "ann").await;
    let (parent, began) = viewer_of(&server, &ann).await;
    let new = json!({"kind": "api", "name": "child", "grants": [{"role": "viewer"}]}).to_string();
    let child = as_token(&server, &parent, "POST", "/api/v1/tokens", &new).await.expect(201);
    let me = as_token(&server, &parent, "GET", "/api/v1/tokens?limit=2", "").await.expect(200);
    assert_eq!(child["minted_by"], me["items"][1]["id"]);
    assert_eq!(child["expires_at"], me["items"][1]["expires_at"], "not a moment later");
    let long = json!({"kind": "api", "name": "x", "grants": [{"role": "viewer"}], "expires_in": "never"}).to_string();
    let refusal = as_token(&server, &parent, "POST", "/api/v1/tokens", &long).await.expect(422);
    assert_eq!(refusal["errors"][0]["pointer"], "/expires_in");
    let secret = child["token"].as_str().unwrap().to_owned();
    let parents = format!("/api/v1/tokens/{}", child["minted_by"].as_str().unwrap());
    let reversed = as_token(&server, &secret, "POST", &format!("{parents}/rotate"), "").await;
    assert_eq!(reversed.status, 403, "{}", reversed.text());
    let rotated = ann.post(&format!("/account/tokens/{}/rotate", child["minted_by"].as_str().unwrap()), "").await;
    assert_eq!(rotated.status, 200, "{}", rotated.text());
    assert_eq!(server.bare("DELETE", &parents).await.status, 204);
    assert_eq!(as_token(&server, &secret, "GET", "/api/v1/me", "").await.status, 200, "rotation keeps it");
    assert_eq!(began.get("/jobs").await.status, 200, "and the sign-in");
    let tokens = as_token(&server, &secret, "GET", "/api/v1/tokens", "").await.expect(200);
    let id = tokens["items"][0]["id"].as_str().unwrap();
    assert_eq!(server.bare("DELETE", &format!("/api/v1/tokens/{id}")).await.status, 204);
    assert_eq!(as_token(&server, &secret, "GET", "/api/v1/me", "").await.status, 401);
    assert_eq!(location(&began.get("/jobs").await), "/sign-in?next=/jobs");
}

#[tokio::test]
async fn a_password_that_an_admin_sets_ends_the_tokens_unless_they_are_kept() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "admin"}])).await;
    user(&server, "bob", json!([{"role": "viewer"}])).await;
    let ann = signed_in(&server, "ann").await;
    for (by, keeps) in [("api", true), ("console", true), ("console", false), ("api", false)] {
        let bob = signed_in(&server, "bob").await;
        let (token, _) = viewer_of(&server, &bob).await;
        if by == "api" {
            let body = json!({"password": PASSWORD, "keep_tokens": keeps});
            assert_eq!(server.with_body("POST", "/api/v1/users/bob/password", body).await.status, 204);
        } else {
            let keep = if keeps { "&keep_tokens=1" } else { "" };
            let set = ann.post("/users/bob/password", &format!("password=correct+horse{keep}")).await;
            assert_eq!(location(&set), "/users");
        }
        let status = as_token(&server, &token, "GET", "/api/v1/me", "").await.status.as_u16();
        assert_eq!(status, if keeps { 200 } else { 401 }, "{by} {keeps}");
        assert_eq!(location(&bob.get("/jobs").await), "/sign-in?next=/jobs");
    }
    assert_eq!(ann.post("/users/ann/password", "password=correct+horse").await.status, 403, "not one's own");
}

#[tokio::test]
async fn wrong_current_passwords_block_that_sign_in_alone() {
    let server = Server::start().await;
    user(&server, "ann", json!([])).await;
    user(&server, "bob", json!([])).await;
    let (thief, ann, bob) =
        (signed_in(&server, "ann").await, signed_in(&server, "ann").await, signed_in(&server, "bob").await);
    let mut statuses = Vec::new();
    for _ in 0..65 {
        statuses.push(thief.post("/account/password", "current=wrong&password=another+horse").await.status.as_u16());
    }
    assert_eq!((statuses[9], statuses[10], statuses[64]), (403, 429, 429), "{statuses:?}");
    let blocked = thief.post("/account/password", "current=correct+horse&password=another+horse").await;
    assert_eq!(blocked.status, 429);
    for visitor in [&bob, &ann] {
        let set = visitor.post("/account/password", "current=correct+horse&password=another+horse").await;
        assert_eq!(location(&set), "/account");
    }
    assert_eq!(location(&Visitor::new(&server).post("/sign-in", "name=ann&password=another+horse").await), "/");
}

#[tokio::test]
async fn a_token_that_is_named_like_a_user_is_shown_as_a_token() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "admin"}])).await;
    let body = json!({"kind": "api", "name": "ann", "grants": [{"role": "admin"}]});
    let token =
        server.with_body("POST", "/api/v1/tokens", body).await.expect(201)["token"].as_str().unwrap().to_owned();
    let job = json!({"name": "a", "app": "app", "handler": "h"}).to_string();
    as_token(&server, &token, "POST", "/api/v1/jobs", &job).await.expect(201);
    let run = as_token(&server, &token, "POST", "/api/v1/jobs/a/runs", "").await.expect(201);
    let cancel = format!("/api/v1/runs/{}/cancel", run["id"].as_str().unwrap());
    assert!(as_token(&server, &token, "POST", &cancel, "").await.status.is_success());
    let versions = server.get("/api/v1/jobs/a/versions").await.expect(200);
    assert_eq!(versions["items"][0]["author"], "token:ann");
    let run = server.get(&format!("/api/v1/runs/{}", run["id"].as_str().unwrap())).await.text();
    assert!(run.contains("token:ann"), "{run}");
    let link = as_token(&server, &token, "POST", "/api/v1/sign-in-links", "").await.expect(201);
    let link = link["path"].as_str().unwrap().strip_prefix("/sign-in?token=").unwrap().to_owned();
    let visitor = Visitor::new(&server);
    let visitor = Visitor { cookie: cookie(&visitor.post("/sign-in", &format!("token={link}")).await), ..visitor };
    assert!(visitor.get("/account").await.text().contains("<h1>token:ann</h1>"));
    let of_ann = server.get("/api/v1/audit?actor=ann").await.expect(200);
    assert_eq!(of_ann["items"], json!([]));
    assert!(server.get("/api/v1/audit?actor=token:ann").await.expect(200)["items"].as_array().unwrap().len() >= 4);
}

#[tokio::test]
async fn old_parameters_that_look_like_secrets_are_for_editors() {
    let server = Server::start().await;
    let params = |value: &str| json!({"params": {"private_key": value, "dsn": value, "path": "/tmp"}});
    let body = json!({"name": "a", "app": "app", "handler": "h", "params": params("hunter2")["params"]});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    server.with_body("PATCH", "/api/v1/jobs/a", params("hunter3")).await.expect(200);
    for (role, sees) in [("viewer", false), ("operator", false), ("editor", true)] {
        let new = json!({"kind": "api", "name": role, "grants": [{"role": role}]});
        let token =
            server.with_body("POST", "/api/v1/tokens", new).await.expect(201)["token"].as_str().unwrap().to_owned();
        for path in ["/api/v1/jobs/a/versions", "/api/v1/jobs/a/versions/diff"] {
            let text = as_token(&server, &token, "GET", path, "").await.text();
            assert_eq!(text.contains("hunter"), sees, "{role} {path}: {text}");
            assert!(text.contains("private_key"), "that there is one can be seen: {text}");
        }
    }
    let log = server.get("/api/v1/audit").await.text();
    assert!(!log.contains("hunter") && log.contains("private_key"), "{log}");
}
