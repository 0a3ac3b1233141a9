//! Rotating tokens: when the successor expires, with which token it ends, and which warnings its user gets. Also what a change of
//! one's own password ends.

use std::time::Duration;

use rondel_core::Timestamp;
use rondel_store::access::{KeptAccess, PasswordHash};
use serde_json::{Value, json};

use crate::accounts::{as_token, cookie, signed_in, user, viewer_of};
use crate::harness::Server;
use crate::visitor::{Visitor, location};

const HOUR: Duration = Duration::from_secs(3600);

async fn make_token(server: &Server, by: &str, body: Value) -> Value {
    as_token(server, by, "POST", "/api/v1/tokens", &body.to_string()).await.expect(201)
}

async fn rotate(server: &Server, by: &str, token: &Value) -> Value {
    let path = format!("/api/v1/tokens/{}/rotate", token["id"].as_str().unwrap());
    as_token(server, by, "POST", &path, "").await.expect(201)
}

async fn is_valid(server: &Server, token: &Value) -> bool {
    as_token(server, token["token"].as_str().unwrap(), "GET", "/api/v1/me", "").await.status == 200
}

fn end(token: &Value) -> Timestamp {
    token["expires_at"].as_str().unwrap().parse().unwrap()
}

fn api(lifetime: &str) -> Value {
    json!({"kind": "api", "name": "one", "grants": [{"role": "admin"}], "expires_in": lifetime})
}

#[tokio::test]
async fn a_token_that_rotates_itself_gains_no_time_and_stays_one_token() {
    let server = Server::start().await;
    for revoked in 0..4 {
        check_series(&server, revoked).await;
    }
}

/// Revoking any token of a series ends the whole series. The first two tokens have already ended; the third is still valid in its
/// overlap.
async fn check_series(server: &Server, revoked: usize) {
    let admin = server.admin.reveal();
    let first = make_token(server, admin, api("1h")).await;
    let mut line = vec![first.clone()];
    for overlap in ["0s", "0s", "1h"] {
        let old = line.last().unwrap();
        let path = format!("/api/v1/tokens/{}/rotate", old["id"].as_str().unwrap());
        let body = json!({"overlap": overlap}).to_string();
        let new = as_token(server, old["token"].as_str().unwrap(), "POST", &path, &body).await.expect(201);
        assert_eq!((end(&new), &new["minted_by"]), (end(&first), &first["minted_by"]), "the same end and maker");
        assert_eq!(new["series"], first["id"]);
        line.push(new);
    }
    let child = make_token(server, line[3]["token"].as_str().unwrap(), api("30m")).await;
    assert_eq!((&child["minted_by"], &child["series"]), (&line[3]["id"], &child["id"]));
    let path = format!("/api/v1/tokens/{}/rotate", line[3]["id"].as_str().unwrap());
    let reversed = as_token(server, child["token"].as_str().unwrap(), "POST", &path, "").await;
    assert_eq!(reversed.status, 403, "made by the series: {}", reversed.text());
    let other = make_token(server, admin, api("1h")).await;
    for (token, expected) in [(&line[0], false), (&line[1], false), (&line[2], true), (&line[3], true), (&child, true)]
    {
        assert_eq!(is_valid(server, token).await, expected, "{token}");
    }
    let path = format!("/api/v1/tokens/{}", line[revoked]["id"].as_str().unwrap());
    assert_eq!(server.bare("DELETE", &path).await.status, 204);
    for token in line.iter().chain([&child]) {
        assert!(!is_valid(server, token).await, "{revoked}: {token}");
    }
    assert!(is_valid(server, &other).await);
}

#[tokio::test]
async fn a_token_gives_another_one_no_later_end() {
    let server = Server::start().await;
    let admin = server.admin.reveal();
    let (short, long) = (make_token(&server, admin, api("1h")).await, make_token(&server, admin, api("48h")).await);
    let new = rotate(&server, short["token"].as_str().unwrap(), &long).await;
    assert_eq!((end(&new), &new["minted_by"]), (end(&short), &short["id"]), "not later than the caller's own");
    let new = rotate(&server, admin, &short).await;
    assert_eq!(end(&new), end(&short), "not later than that of the rotated one");
}

/// A leaked token must be replaced at once, also if its account has as many tokens as it may.
#[tokio::test]
async fn a_rotation_that_ends_the_old_token_at_once_is_no_further_token() {
    let server = Server::start().await;
    let admin = server.admin.reveal();
    user(&server, "ann", json!([{"role": "admin"}])).await;
    let ann = signed_in(&server, "ann").await;
    let make = async || ann.post("/account/tokens", "name=one&grants=viewer&expires_in=1h").await;
    for number in 0..200 {
        assert!(make().await.status.is_success(), "{number}");
    }
    let leaked = server.get("/api/v1/tokens?all=true&limit=1").await.expect(200)["items"][0]["id"].clone();
    let path = format!("/api/v1/tokens/{}/rotate", leaked.as_str().unwrap());
    let rotate =
        async |overlap: &str| as_token(&server, admin, "POST", &path, &json!({"overlap": overlap}).to_string()).await;
    assert_eq!(rotate("1s").await.expect(409)["code"], "too_many_tokens");
    let new = rotate("0s").await.expect(201);
    assert!(is_valid(&server, &new).await);
    assert_eq!(rotate("0s").await.expect(409)["code"], "token_over");
    assert_eq!(make().await.status, 409);
}

#[tokio::test]
async fn the_last_token_of_a_chain_names_the_length_of_the_chain() {
    let server = Server::start().await;
    let body = json!({"kind": "api", "name": "one", "grants": [{"role": "viewer"}]}).to_string();
    let (mut bearer, mut count) = (server.admin.reveal().to_owned(), 1);
    let refusal = loop {
        let made = as_token(&server, &bearer, "POST", "/api/v1/tokens", &body).await;
        if made.status != 201 {
            break made.expect(403);
        }
        (bearer, count) = (made.expect(201)["token"].as_str().unwrap().to_owned(), count + 1);
    };
    let detail =
        format!("this token is the last of a chain of {count} tokens; use one that was created in the console");
    assert_eq!((count, &refusal["detail"]), (17, &json!(detail)));
}

#[tokio::test]
async fn an_account_that_signed_in_gives_a_new_lifetime() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "admin"}])).await;
    let ann = signed_in(&server, "ann").await;
    ann.post("/account/tokens", "name=one&grants=viewer&expires_in=1h").await;
    let tokens = async || server.get("/api/v1/tokens?all=true").await.expect(200)["items"].clone();
    let old = tokens().await[0].clone();
    // The new token has the same lifetime as the old one, counted from now.
    let page = ann.post(&format!("/account/tokens/{}/rotate", old["id"].as_str().unwrap()), "").await;
    assert!(page.text().contains("<pre>rondel_pat_") && !page.text().contains("made-ends"), "{}", page.text());
    let new = tokens().await[0].clone();
    assert_ne!(new["id"], old["id"]);
    assert!(end(&new) > end(&old) && end(&new) < end(&old) + HOUR, "{old} {new}");
    assert_eq!(new["minted_by"], Value::Null);
    let missing = ann.post("/account/tokens/1/rotate", "").await;
    assert_eq!(missing.status, 404);
}

/// The expiry of a token in its overlap is not the end of its lifetime. A token is rotated again if the new secret was lost.
#[tokio::test]
async fn a_token_in_its_overlap_gives_its_whole_lifetime() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "admin"}])).await;
    let ann = signed_in(&server, "ann").await;
    let newest = async || server.get("/api/v1/tokens?all=true").await.expect(200)["items"][0].clone();
    for lifetime in ["never", "60d"] {
        let form = format!("name=e&kind=executor&grants=executor+default/a&expires_in={lifetime}");
        ann.post("/account/tokens", &form).await;
        let old = newest().await;
        for _ in 0..2 {
            let page = ann.post(&format!("/account/tokens/{}/rotate", old["id"].as_str().unwrap()), "").await;
            assert!(page.text().contains("<pre>rondel_"), "{}", page.text());
            let new = newest().await;
            assert_ne!(new["id"], old["id"]);
            match lifetime {
                "never" => assert_eq!(new["expires_at"], Value::Null),
                _ => assert!(end(&new) >= end(&old), "{old} {new}"),
            }
        }
    }
}

#[tokio::test]
async fn a_refused_form_of_a_token_keeps_its_input() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "admin"}])).await;
    let ann = signed_in(&server, "ann").await;
    let form = "name=bot&kind=executor&grants=executor+default/a&expires_in=30+moons";
    let refusal = ann.post("/account/tokens", form).await;
    assert_eq!(refusal.status, 422);
    let page = refusal.text();
    assert!(page.contains("<option value=\"executor\" selected>"), "{page}");
    assert!(page.contains("name=\"expires_in\" value=\"30 moons\""), "{page}");
}

#[tokio::test]
async fn making_an_executors_token_by_an_expiring_token_causes_a_warning() {
    let server = Server::start().await;
    let admin = server.admin.reveal();
    let executors = json!({
        "kind": "executor", "name": "e", "grants": [{"role": "executor", "namespace": "default", "app": "a"}],
    });
    let lasting = make_token(&server, admin, executors.clone()).await;
    assert_eq!((&lasting["expires_at"], &lasting["warnings"]), (&Value::Null, &Value::Null));
    let maker = make_token(&server, admin, api("1h")).await;
    let secret = maker["token"].as_str().unwrap();
    for made in [make_token(&server, secret, executors.clone()).await, rotate(&server, secret, &lasting).await] {
        let warning = made["warnings"][0].as_str().unwrap();
        assert!(warning.contains(made["expires_at"].as_str().unwrap()), "{warning}");
        assert_eq!(made["expires_at"], maker["expires_at"]);
    }
    let wanted = json!({"expires_in": "1m"});
    let asked = Value::Object(
        executors
            .as_object()
            .unwrap()
            .iter()
            .chain(wanted.as_object().unwrap())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
    );
    assert_eq!(make_token(&server, secret, asked).await["warnings"], Value::Null, "it was asked for");
    let listed = server.get("/api/v1/tokens?all=true").await.expect(200);
    assert!(listed["items"].as_array().unwrap().iter().all(|token| token["warnings"].is_null()));
    // The same holds in the console, after signing in with a link of that token.
    let link = as_token(&server, secret, "POST", "/api/v1/sign-in-links", "").await.expect(201);
    let link = link["path"].as_str().unwrap().strip_prefix("/sign-in?token=").unwrap().to_owned();
    let mut visitor = Visitor::new(&server);
    visitor.cookie = cookie(&visitor.post("/sign-in", &format!("token={link}")).await);
    let form = "name=e&kind=executor&grants=executor+default/a";
    assert!(visitor.post("/account/tokens", form).await.text().contains("made-ends"));
    assert!(!visitor.post("/account/tokens", "name=x&grants=viewer").await.text().contains("made-ends"));
}

/// A rotation by an account gives a whole new lifetime, unless the token from which the new token descends expires earlier.
#[tokio::test]
async fn rotating_an_executors_token_causes_a_warning_if_another_token_limits_it() {
    let server = Server::start().await;
    let admin = server.admin.reveal();
    let maker = make_token(&server, admin, api("1h")).await;
    let secret = maker["token"].as_str().unwrap();
    let mut executors = json!({
        "kind": "executor", "name": "e", "grants": [{"role": "executor", "namespace": "default", "app": "a"}],
    });
    let limited = make_token(&server, secret, executors.clone()).await;
    executors["expires_in"] = json!("30m");
    let short = make_token(&server, secret, executors.clone()).await;
    let rotated_by_token = make_token(&server, admin, executors).await;
    user(&server, "ann", json!([{"role": "admin"}])).await;
    let ann = signed_in(&server, "ann").await;
    for (token, is_limited) in [(&limited, true), (&short, false)] {
        let page = ann.post(&format!("/account/tokens/{}/rotate", token["id"].as_str().unwrap()), "").await;
        assert!(page.text().contains("<pre>rondel_"), "{}", page.text());
        assert_eq!(page.text().contains("made-ends"), is_limited, "{token}");
    }
    let new = rotate(&server, admin, &rotated_by_token).await;
    assert_eq!(new["expires_at"], rotated_by_token["expires_at"]);
    assert!(new["warnings"][0].is_string(), "a token gives no new lifetime: {new}");
}

#[tokio::test]
async fn a_new_password_of_ones_own_ends_the_tokens_unless_they_are_kept() {
    let server = Server::start().await;
    user(&server, "ann", json!([{"role": "admin"}])).await;
    let mut ann = signed_in(&server, "ann").await;
    for (keeps, form) in [(true, "&keep_tokens=1"), (false, "")] {
        let stolen = signed_in(&server, "ann").await;
        let (token, began) = viewer_of(&server, &stolen).await;
        let child =
            make_token(&server, &token, json!({"kind": "api", "name": "c", "grants": [{"role": "viewer"}]})).await;
        assert!(ann.get("/account").await.text().contains("Keep my tokens working (2)"), "it names how many there are");
        let body = format!("current=correct+horse&password=correct+horse{form}");
        let changed = ann.post("/account/password", &body).await;
        assert_eq!(location(&changed), "/account");
        ann.cookie = cookie(&changed);
        assert_eq!(location(&stolen.get("/jobs").await), "/sign-in?next=/jobs");
        let status = if keeps { 200 } else { 401 };
        assert_eq!(as_token(&server, &token, "GET", "/api/v1/me", "").await.status, status, "{keeps}");
        assert_eq!(is_valid(&server, &child).await, keeps);
        assert_eq!(began.get("/jobs").await.status == 200, keeps);
        let entry = server.get("/api/v1/audit?action=account.password&limit=1").await.expect(200);
        assert_eq!(entry["items"][0]["after"]["keep_tokens"], keeps);
        if keeps {
            // Removes the tokens, so that the next pass starts with the same number.
            let tokens = server.get("/api/v1/tokens?all=true").await.expect(200);
            for token in tokens["items"].as_array().unwrap().iter().filter(|token| token["name"] == "limited") {
                server.bare("DELETE", &format!("/api/v1/tokens/{}", token["id"].as_str().unwrap())).await;
            }
        }
    }
}

/// A stolen sign-in must not replace the password that an administrator has just set.
#[test]
fn a_reset_of_the_password_stops_a_change_that_is_being_checked() {
    // Passwords are checked on the only thread for blocking work, which the test occupies.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let server = Server::start().await;
        user(&server, "ann", json!([{"role": "viewer"}])).await;
        let stolen = signed_in(&server, "ann").await;
        let (finish, wait) = std::sync::mpsc::channel::<()>();
        let blocker = tokio::task::spawn_blocking(move || wait.recv());
        let mut change =
            std::pin::pin!(stolen.post("/account/password", "current=correct+horse&password=another+horse"));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut change).await.is_err(), "it waits for the thread");
        let (store, now) = (server.engine.store(), server.engine.now());
        let account = store.account_by_name("ann").await.unwrap().unwrap();
        let reset = PasswordHash::new("$argon2id$reset".to_owned());
        assert!(store.set_password(account.id, &reset, KeptAccess::default(), now).await.unwrap());
        finish.send(()).unwrap();
        assert!(blocker.await.unwrap().is_ok());
        assert_ne!(change.await.status, 303, "it is refused");
        let present = store.account(account.id).await.unwrap().unwrap();
        assert!(present.password == Some(reset), "the new password stays");
    });
}
