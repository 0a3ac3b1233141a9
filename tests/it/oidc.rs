//! Users sign in through an OIDC provider, end to end over HTTP, and no other caller does.

mod provider;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use provider::{CLIENT_ID, CLIENT_SECRET, Fault, Provider, RETRY_DELAY};
use reqwest::header::{ACCEPT, CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use rondel_tests::{Backend, ScratchDb, Server, scratch, wait_until};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The URL that is registered with the provider. The server listens on a free port instead, which the browser of the
/// tests knows.
const REDIRECT_URL: &str = "http://localhost/sign-in/oidc/callback";

/// A browser that does not follow redirects itself.
struct Browser {
    client: Client,
    home: String,
    cookies: BTreeMap<String, String>,
}

/// A page or a redirect.
struct Answer {
    status: u16,
    location: String,
    text: String,
}

impl Browser {
    fn new(server: &Server) -> Self {
        // This installs the TLS provider that clients of this process use.
        server.api();
        let client = Client::builder().no_proxy().redirect(Policy::none()).build().expect("make a client");
        Self { client, home: server.url().to_owned(), cookies: BTreeMap::new() }
    }

    /// The answer at an address. A redirect to the same address in the user's namespace is followed.
    async fn get(&mut self, place: &str) -> Answer {
        let answer = self.get_without_redirect(place).await;
        if answer.status == 303 && answer.location == format!("/n/default{place}") {
            return self.get_without_redirect(&answer.location).await;
        }
        answer
    }

    async fn get_without_redirect(&mut self, place: &str) -> Answer {
        let is_home = place.starts_with('/');
        let url = if is_home { format!("{}{place}", self.home) } else { place.to_owned() };
        let mut request = self.client.get(url).header(ACCEPT, "text/html");
        if is_home {
            let pairs: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            request = request.header(COOKIE, pairs.join("; "));
        }
        let answer = request.send().await.expect("an answer");
        for line in answer.headers().get_all(SET_COOKIE) {
            let pair = line.to_str().expect("text").split(';').next().expect("a pair");
            let (name, value) = pair.split_once('=').expect("a name and a value");
            match value {
                "" => self.cookies.remove(name),
                value => self.cookies.insert(name.to_owned(), value.to_owned()),
            };
        }
        let header = |name| answer.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
        let (status, location) = (answer.status().as_u16(), header(LOCATION).unwrap_or_default());
        Answer { status, location, text: answer.text().await.expect("a body") }
    }

    /// Goes to the provider; returns the address to which the provider sends the browser back.
    async fn go_to_provider(&mut self) -> String {
        let left = self.get("/sign-in/oidc?next=/account").await;
        assert_eq!(left.status, 303, "{}", left.text);
        let back = self.get(&left.location).await;
        let url = Url::parse(&back.location).expect("the provider sends it back");
        assert!(back.location.starts_with(REDIRECT_URL), "{}", back.location);
        format!("{}?{}", url.path(), url.query().expect("a query"))
    }

    async fn sign_in(&mut self) -> Answer {
        let back = self.go_to_provider().await;
        self.get(&back).await
    }

    async fn is_signed_in(&mut self) -> bool {
        self.get("/account").await.status == 200
    }
}

async fn start(db: &ScratchDb, folder: &Path, issuer: &str, extra_args: &[&str]) -> Server {
    let secret = folder.join("client.secret");
    std::fs::write(&secret, format!("{CLIENT_SECRET}\n")).expect("write the secret");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("close it to others");
    let secret = secret.to_str().expect("a path");
    let mut args = vec!["--oidc-issuer", issuer, "--oidc-client-id", CLIENT_ID];
    args.extend(["--oidc-client-secret-file", secret, "--oidc-redirect-url", REDIRECT_URL]);
    args.extend(extra_args);
    Server::start_with(db, &args).await
}

fn ann() -> Value {
    json!({"email": "Ann@example.com", "email_verified": true, "name": "Ann"})
}

/// The sign-ins in the audit log, newest first: the user, the verdict, and the reason of a refusal.
async fn logged(server: &Server) -> Vec<(String, String, String)> {
    let page = server.api().get("/api/v1/audit?action=session.create").await.expect(200);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = page["items"].as_array().expect("items").iter();
    items.map(|entry| (text(&entry["actor"]), text(&entry["verdict"]), text(&entry["after"]["refused"]))).collect()
}

#[tokio::test]
async fn a_user_of_the_provider_signs_in_once() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let folder = tempfile::tempdir().expect("a folder");
    let provider = Provider::start().await;
    provider.set_user(ann());
    let mut server = start(&db, folder.path(), &provider.issuer, &[]).await;
    server.api().post("/api/v1/users", json!({"name": "ann@example.com"})).await.expect(201);
    let mut browser = Browser::new(&server);
    let page = browser.get("/sign-in?next=/account").await;
    assert!(page.text.contains("href=\"/sign-in/oidc?next=/account\""), "{}", page.text);
    let chinese = browser.get("/sign-in?lang=zh").await;
    assert!(chinese.text.contains("使用组织账号登录"), "{}", chinese.text);
    let back = browser.go_to_provider().await;
    let before = browser.cookies.clone();
    let came = browser.get(&back).await;
    assert_eq!((came.status, came.location.as_str()), (303, "/account"), "{}", came.text);
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["rondel_session"], "what went along has had its use");
    let account = browser.get("/account").await;
    assert!(account.status == 200 && account.text.contains("ann@example.com"), "{}", account.text);
    assert_eq!(logged(&server).await[0], ("ann@example.com".to_owned(), "allowed".to_owned(), String::new()));
    // A client that has seen the address and has the cookie sends the same request again.
    let mut thief = Browser { cookies: before.clone(), ..Browser::new(&server) };
    let refusal = thief.get(&back).await;
    assert!(refusal.status == 403 && refusal.text.contains("invalid_grant"), "{}", refusal.text);
    provider.set_fault(Fault::TakesCodesAgain);
    let back = browser.go_to_provider().await;
    let cookies = browser.cookies.clone();
    assert_eq!(browser.get(&back).await.status, 303);
    let mut thief = Browser { cookies, ..Browser::new(&server) };
    let refusal = thief.get(&back).await;
    assert!(refusal.status == 403 && refusal.text.contains("used already"), "{}", refusal.text);
    assert!(!thief.is_signed_in().await);
    // The server fetches the new key.
    provider.rotate();
    let came = browser.sign_in().await;
    assert_eq!(came.status, 303, "{}", came.text);
    assert!(server.stop().await.success());
}

#[tokio::test]
async fn other_users_are_refused_with_an_explanation() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let folder = tempfile::tempdir().expect("a folder");
    let provider = Provider::start().await;
    let mut server = start(&db, folder.path(), &provider.issuer, &[]).await;
    let api = server.api();
    for name in ["ann@example.com", "bob@example.com"] {
        api.post("/api/v1/users", json!({ "name": name })).await.expect(201);
    }
    api.patch("/api/v1/users/bob@example.com", json!({"disabled": true})).await.expect(200);
    let person = |email: &str| json!({"email": email, "email_verified": true});
    let token = "the provider&#39;s token is not valid";
    for (fault, claims, who, why) in [
        (Fault::Denies, ann(), "", "access_denied"),
        (Fault::OtherNonce, ann(), "", "belongs to another sign-in"),
        (Fault::OtherAudience, ann(), "", "issued to another client"),
        (Fault::OtherIssuer, ann(), "", "comes from another issuer"),
        (Fault::Expired, ann(), "", "has expired"),
        (Fault::FromTheFuture, ann(), "", "clocks differ"),
        (Fault::Unsigned, ann(), "", "is not signed"),
        (Fault::SignedWithTheSecret, ann(), "", "with an algorithm that is not allowed"),
        (Fault::OtherKey, ann(), "", "does not fit the provider"),
        (Fault::None, json!({"name": "Ann"}), "", "does not send your e-mail address"),
        (Fault::None, json!({"email": "ann@example.com"}), "ann@example.com", "has not verified"),
        (
            Fault::None,
            json!({"email": "ann@example.com", "email_verified": false}),
            "ann@example.com",
            "verify it there",
        ),
        (Fault::None, person("eve@example.com"), "eve@example.com", "rondel user create eve@example.com"),
        (Fault::None, person("bob@example.com"), "bob@example.com", "locked out here"),
        (Fault::None, person("ä@example.com"), "ä@example.com", "cannot be the name of a user"),
    ] {
        provider.set_fault(fault);
        provider.set_user(claims);
        let mut browser = Browser::new(&server);
        let refusal = browser.sign_in().await;
        assert_eq!(refusal.status, 403, "{fault:?}: {}", refusal.text);
        assert!(refusal.text.contains(why), "{fault:?}: {}", refusal.text);
        assert!(refusal.text.contains("href=\"/sign-in\""), "there is a way back");
        if fault != Fault::None && fault != Fault::Denies {
            assert!(refusal.text.contains(token), "{}", refusal.text);
        }
        assert!(browser.cookies.is_empty(), "{fault:?}: {:?}", browser.cookies);
        let (actor, verdict, refusal) = logged(&server).await.swap_remove(0);
        assert_eq!((actor.as_str(), verdict.as_str()), (who, "denied"), "{fault:?}");
        assert!(refusal.contains(why), "{fault:?}: {refusal}");
    }
    provider.set_fault(Fault::None);
    provider.set_user(ann());
    // The victim's browser opens the end of the attacker's sign-in, with the victim's own cookie or without one.
    let mut victim = Browser::new(&server);
    victim.go_to_provider().await;
    let mut attacker = Browser::new(&server);
    let planted = attacker.go_to_provider().await;
    for cookies in [victim.cookies.clone(), BTreeMap::new()] {
        victim.cookies = cookies;
        let refusal = victim.get(&planted).await;
        assert!(refusal.status == 403 && refusal.text.contains("did not begin in this browser"), "{}", refusal.text);
    }
    // A sign-in that no server began is refused without a request to the provider.
    let (begun, seal) = attacker.cookies["rondel_oidc"].rsplit_once('.').expect("a seal");
    let cookie = format!("{begun}A.{seal}");
    let digest = Sha256::digest(format!("rondel oidc state\n{cookie}"));
    let state: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    attacker.cookies.insert("rondel_oidc".to_owned(), cookie);
    let refusal = attacker.get(&format!("/sign-in/oidc/callback?code=made-up&state={state}")).await;
    assert!(refusal.status == 403 && refusal.text.contains("did not begin in this browser"), "{}", refusal.text);
    let mut attacker = Browser::new(&server);
    let planted = attacker.go_to_provider().await;
    let mut other = planted.clone();
    other.push_str("&iss=http%3A%2F%2F127.0.0.1%3A1");
    assert!(attacker.get(&other).await.text.contains("comes from another provider"));
    assert!(!victim.is_signed_in().await);
    // The secret is read each time: a wrong one is reported, and the right one works again.
    let secret = folder.path().join("client.secret");
    std::fs::write(&secret, "another").expect("write");
    let refusal = Browser::new(&server).sign_in().await;
    assert!(refusal.status == 403 && refusal.text.contains("invalid_client"), "{}", refusal.text);
    std::fs::write(&secret, CLIENT_SECRET).expect("write");
    let mut browser = Browser::new(&server);
    assert_eq!(browser.sign_in().await.status, 303);
    assert!(browser.is_signed_in().await);
    // Another site that sends browsers to the callback does not use up the tries of their address.
    let callback = "/sign-in/oidc/callback?code=x&state=y";
    for _ in 0..60 {
        assert_eq!(Browser::new(&server).get(callback).await.status, 403);
    }
    assert_eq!(Browser::new(&server).sign_in().await.status, 303);
    // Callers without an account cannot fill the log: after some refusals, further requests of their address are
    // rejected without a check for a while.
    let mut statuses = BTreeMap::<u16, u32>::new();
    for _ in 0..60 {
        let mut browser = Browser::new(&server);
        browser.cookies.insert("rondel_oidc".to_owned(), "made up".to_owned());
        *statuses.entry(browser.get(callback).await.status).or_default() += 1;
    }
    assert!(statuses[&429] > 10 && statuses[&403] > 10, "{statuses:?}");
    assert!(server.stop().await.success());
}

#[tokio::test]
async fn a_provider_that_is_down_stops_neither_the_start_nor_passwords() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let folder = tempfile::tempdir().expect("a folder");
    let provider = Provider::start().await;
    let issuer = provider.issuer.clone();
    drop(provider);
    let mut server = start(&db, folder.path(), &issuer, &[]).await;
    for name in ["ann@example.com", "bob"] {
        let body = json!({"name": name, "password": "correct horse"});
        server.api().post("/api/v1/users", body).await.expect(201);
    }
    let mut browser = Browser::new(&server);
    let away = browser.get("/sign-in/oidc").await;
    assert!(away.status == 503 && away.text.contains("sign in with a password"), "{}", away.text);
    assert!(browser.cookies.is_empty());
    let request = browser.client.post(format!("{}/sign-in", server.url())).header("origin", server.url());
    let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let request = request.body("name=bob&password=correct+horse&next=/account");
    assert_eq!(request.send().await.expect("an answer").status().as_u16(), 303);
    let provider = Provider::start_at(issuer.trim_start_matches("http://")).await;
    provider.set_user(ann());
    provider.set_fault(Fault::Endless);
    wait_until(RETRY_DELAY, "it asks again, and does not read on for ever", async || {
        let away = browser.get("/sign-in/oidc").await;
        let log = server.process().stderr();
        if away.status == 503 && log.contains("the answer has more than") { Ok(()) } else { Err((away.text, log)) }
    })
    .await;
    provider.set_fault(Fault::None);
    wait_until(RETRY_DELAY, "the provider is back", async || match browser.get("/sign-in/oidc").await {
        Answer { status: 303, .. } => Ok(()),
        other => Err(other.text),
    })
    .await;
    // Ann has a password: her name alone does not link her to the provider.
    let refusal = browser.sign_in().await;
    assert!(refusal.status == 403 && refusal.text.contains("--provider-sign-in true"), "{}", refusal.text);
    server.api().patch("/api/v1/users/ann@example.com", json!({"provider_sign_in": true})).await.expect(200);
    assert_eq!(browser.sign_in().await.status, 303);
    assert!(browser.is_signed_in().await);
    assert!(server.stop().await.success());
}

#[tokio::test]
async fn groups_give_roles_to_users_that_are_made_on_the_way() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let folder = tempfile::tempdir().expect("a folder");
    let provider = Provider::start().await;
    let settings = [
        "--oidc-create-accounts",
        "--oidc-groups-claim",
        "teams",
        "--oidc-group-role",
        "dev=viewer:default",
        "--oidc-group-role",
        "ops=admin",
    ];
    let mut server = start(&db, folder.path(), &provider.issuer, &settings).await;
    let person =
        |teams: &[&str]| json!({"email": "bob@example.com", "email_verified": true, "name": "Bob", "teams": teams});
    let grants = async || server.api().get("/api/v1/users/bob@example.com").await.expect(200)["grants"].clone();
    let mut browser = Browser::new(&server);
    provider.set_user(person(&["dev", "choir"]));
    assert_eq!(browser.sign_in().await.status, 303);
    assert_eq!(grants().await, json!([{"role": "viewer", "namespace": "default", "app": null}]));
    assert_eq!(browser.get("/jobs").await.status, 200);
    assert_eq!(browser.get("/users").await.status, 403);
    // A sign-in in another browser, with other groups, changes the user's roles and therefore ends the session of the
    // first browser.
    provider.set_user(person(&[]));
    let mut second = Browser::new(&server);
    assert_eq!(second.sign_in().await.status, 303);
    assert_eq!(grants().await, json!([]));
    assert!(!browser.is_signed_in().await && second.is_signed_in().await);
    let page = server.api().get("/api/v1/audit?object=bob@example.com").await.expect(200);
    let actions: Vec<_> = page["items"].as_array().expect("items").iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["user.change", "user.create"], "{page:#}");
    assert_eq!(page["items"][1]["after"]["groups"], json!(["dev", "choir"]));
    // Bob becomes the only user who may do everything: groups without that role change nothing, and the entry shows it.
    for teams in [&["ops"][..], &[]] {
        provider.set_user(person(teams));
        assert_eq!(Browser::new(&server).sign_in().await.status, 303);
    }
    assert_eq!(grants().await[0]["role"], "admin");
    let page = server.api().get("/api/v1/audit?object=bob@example.com").await.expect(200);
    let verdicts: Vec<_> = page["items"].as_array().expect("items").iter().map(|entry| &entry["verdict"]).collect();
    assert_eq!(verdicts, ["failed", "allowed", "allowed", "allowed"], "{page:#}");
    assert!(server.stop().await.success());
}
