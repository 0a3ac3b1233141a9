//! The kill matrix for users and tokens. No run depends on them, so each place has a test of its own. A server dies in
//! the middle of a change of access. Afterwards the change is complete or absent.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, COOKIE, ORIGIN, SET_COOKIE};
use reqwest::{Client, Method, RequestBuilder};
use rondel_tests::{Backend, ScratchDb, Server, has_interpreter, left_out_without, scratch};
use serde_json::Value;

use super::fixture::{record_outcome, rounds, server};

/// How long a server may take to die of a call.
const DEATH: Duration = Duration::from_secs(30);

/// A change during which a server dies. The server survives the calls that prepare the change.
struct Change {
    operation: &'static str,
    /// At which pass through the place the server dies, counted from 1.
    passing: u32,
    before: &'static [Call],
    call: Call,
    checks: &'static [Check],
}

/// A call. In its texts, `$N` is the number of the test, and other words with a `$` are values from earlier answers.
#[derive(Clone, Copy)]
struct Call {
    caller: Caller,
    method: &'static str,
    path: &'static str,
    /// JSON, or the fields of a form.
    body: &'static str,
    /// The values to remember from the answer: the word, and the place of its value.
    keeps: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy)]
enum Caller {
    /// With the token that the server made.
    Admin,
    /// With a token of the test: `$SECRET`.
    Bearer,
    /// A browser that is not signed in.
    SignedOut,
    /// A browser that is signed in: `$COOKIE`.
    SignedIn,
}

/// A check after the death, with its result if nothing was changed, and if everything was.
enum Check {
    /// The status of an answer.
    Answers(Call, u16, u16),
    /// How often the answer contains a text.
    Contains(Call, &'static str, usize, usize),
    /// A count in the database, before a server can have repaired anything.
    Counts(&'static str, u32, u32),
}

impl Call {
    const fn admin(method: &'static str, path: &'static str, body: &'static str) -> Self {
        Self { caller: Caller::Admin, method, path, body, keeps: &[] }
    }

    const fn form(path: &'static str, body: &'static str) -> Self {
        Self { caller: Caller::SignedOut, method: "POST", path, body, keeps: &[] }
    }

    const fn by(self, caller: Caller) -> Self {
        Self { caller, ..self }
    }

    const fn keeping(self, keeps: &'static [(&'static str, &'static str)]) -> Self {
        Self { keeps, ..self }
    }
}

const USER: Call = Call::admin(
    "POST",
    "/api/v1/users",
    r#"{"name": "eve$N", "password": "first password of $N", "grants": [{"role": "viewer"}]}"#,
)
.keeping(&[("$UID", "/id")]);
/// Creates an account with all rights. Without one, each start of the server creates a set-up link.
const ADMIN: Call = Call::admin(
    "POST",
    "/api/v1/users",
    r#"{"name": "first", "password": "password of the first", "grants": [{"role": "admin"}]}"#,
);
const SEE_USER: Call = Call::admin("GET", "/api/v1/users/eve$N", "");
const SIGN_IN: Call =
    Call::form("/sign-in", "name=eve$N&password=first+password+of+$N").keeping(&[("$COOKIE", "cookie")]);
const SIGN_IN_WRONGLY: Call = Call::form("/sign-in", "name=eve$N&password=another+password");
/// A page that only signed-in users see.
const PAGE: Call = Call::admin("GET", "/n/default/account", "").by(Caller::SignedIn);
const LINK: Call = Call::admin("POST", "/api/v1/users/eve$N/sign-in-link", "").keeping(&[("$LINK", "/path")]);
const ENTER: Call = Call::form("/sign-in", "token=$LINK").keeping(&[("$COOKIE", "cookie")]);
const TOKEN: Call =
    Call::admin("POST", "/api/v1/tokens", r#"{"kind": "api", "name": "token of $N", "grants": [{"role": "viewer"}]}"#)
        .keeping(&[("$ID", "/id"), ("$SECRET", "/token")]);
const TOKENS: Call = Call::admin("GET", "/api/v1/tokens?all=true&limit=200", "");
const ME: Call = Call::admin("GET", "/api/v1/me", "").by(Caller::Bearer);
const NAMESPACE: Call = Call::admin("POST", "/api/v1/namespaces", r#"{"name": "passing-$N"}"#);
const WEBHOOK: &str = "/api/v1/namespaces/passing-$N/failure-webhook";
const APPS: &str = "/api/v1/apps?namespace=passing-$N";

const ROLES_OF_USER: &str =
    "SELECT COUNT(*) FROM role_grant WHERE subject_id IN (SELECT id FROM account WHERE name = 'eve$N')";
const ROLES_OF_TOKEN: &str =
    "SELECT COUNT(*) FROM role_grant WHERE subject_id IN (SELECT id FROM api_token WHERE name = 'token of $N')";
const SIGN_INS_OF_USER: &str = "SELECT COUNT(*) FROM web_session WHERE account_id = $UID";
const LINKS_OF_USER: &str = "SELECT COUNT(*) FROM sign_in_link WHERE account_id = $UID";

const CHANGES: &[Change] = &[
    Change {
        operation: "create_account",
        passing: 1,
        before: &[],
        call: USER,
        checks: &[
            Check::Counts(ROLES_OF_USER, 0, 1),
            Check::Answers(SEE_USER, 404, 200),
            Check::Answers(SIGN_IN, 401, 303),
            Check::Answers(USER, 201, 409),
        ],
    },
    Change {
        operation: "change_account",
        passing: 1,
        before: &[USER, SIGN_IN],
        call: Call::admin(
            "PATCH",
            "/api/v1/users/eve$N",
            r#"{"display_name": "Eve the second", "grants": [{"role": "operator"}]}"#,
        ),
        checks: &[
            Check::Counts(ROLES_OF_USER, 1, 1),
            Check::Contains(SEE_USER, "Eve the second", 0, 1),
            Check::Contains(SEE_USER, "\"operator\"", 0, 1),
            Check::Contains(SEE_USER, "\"viewer\"", 1, 0),
            Check::Answers(PAGE, 200, 303),
        ],
    },
    Change {
        operation: "set_password",
        passing: 1,
        before: &[USER, SIGN_IN],
        call: Call::admin("POST", "/api/v1/users/eve$N/password", r#"{"password": "second password of $N"}"#),
        checks: &[
            Check::Answers(PAGE, 200, 303),
            Check::Answers(SIGN_IN, 303, 401),
            Check::Answers(Call::form("/sign-in", "name=eve$N&password=second+password+of+$N"), 401, 303),
        ],
    },
    Change {
        operation: "delete_account",
        passing: 1,
        before: &[
            USER,
            SIGN_IN,
            LINK,
            Call::form("/account/tokens", "kind=api&name=own+token+of+$N&grants=viewer").by(Caller::SignedIn),
        ],
        call: Call::admin("DELETE", "/api/v1/users/eve$N", ""),
        checks: &[
            Check::Counts(SIGN_INS_OF_USER, 1, 0),
            Check::Counts(LINKS_OF_USER, 1, 0),
            Check::Counts("SELECT COUNT(*) FROM role_grant WHERE subject_id = $UID", 1, 0),
            Check::Answers(SEE_USER, 200, 404),
            Check::Answers(PAGE, 200, 303),
            Check::Contains(TOKENS, "own token of $N", 1, 0),
            Check::Answers(SIGN_IN, 303, 401),
            Check::Answers(USER, 409, 201),
        ],
    },
    Change {
        operation: "add_token",
        passing: 1,
        before: &[],
        call: TOKEN,
        checks: &[Check::Counts(ROLES_OF_TOKEN, 0, 1), Check::Contains(TOKENS, "\"token of $N\"", 0, 1)],
    },
    Change {
        operation: "revoke_token",
        passing: 1,
        before: &[
            TOKEN,
            Call::admin("POST", "/api/v1/sign-in-links", "{}").by(Caller::Bearer).keeping(&[("$LINK", "/path")]),
            ENTER,
        ],
        call: Call::admin("DELETE", "/api/v1/tokens/$ID", ""),
        checks: &[
            Check::Counts("SELECT COUNT(*) FROM web_session WHERE token_id = $ID", 1, 0),
            Check::Answers(ME, 200, 401),
            Check::Answers(PAGE, 200, 303),
        ],
    },
    Change {
        operation: "rotate_token",
        passing: 1,
        before: &[TOKEN],
        call: Call::admin("POST", "/api/v1/tokens/$ID/rotate", r#"{"overlap": "0s"}"#),
        checks: &[Check::Answers(ME, 200, 401), Check::Contains(TOKENS, "\"token of $N\"", 1, 2)],
    },
    Change {
        operation: "add_link",
        passing: 1,
        before: &[USER],
        call: LINK,
        // The creator of the link did not receive it: another link can be created.
        checks: &[Check::Counts(LINKS_OF_USER, 0, 1), Check::Answers(LINK, 201, 201)],
    },
    Change {
        operation: "take_link",
        passing: 1,
        before: &[USER, LINK],
        call: ENTER,
        checks: &[
            Check::Counts(LINKS_OF_USER, 1, 0),
            Check::Counts(SIGN_INS_OF_USER, 0, 0),
            Check::Answers(Call::admin("GET", "/sign-in?token=$LINK", "").by(Caller::SignedOut), 200, 410),
            Check::Answers(ENTER, 303, 410),
        ],
    },
    Change {
        operation: "begin_sign_in",
        passing: 1,
        before: &[USER],
        call: SIGN_IN,
        checks: &[
            Check::Counts(SIGN_INS_OF_USER, 0, 1),
            Check::Answers(SIGN_IN, 303, 303),
            Check::Answers(PAGE, 200, 200),
        ],
    },
    Change {
        operation: "count_attempt",
        // A sign-in reaches the place twice: for the limit of the address, and for that of the account, which allows ten attempts.
        passing: 2,
        before: &[
            USER,
            SIGN_IN_WRONGLY,
            SIGN_IN_WRONGLY,
            SIGN_IN_WRONGLY,
            SIGN_IN_WRONGLY,
            SIGN_IN_WRONGLY,
            SIGN_IN_WRONGLY,
            SIGN_IN_WRONGLY,
            SIGN_IN_WRONGLY,
            SIGN_IN_WRONGLY,
        ],
        call: SIGN_IN_WRONGLY,
        checks: &[Check::Answers(SIGN_IN_WRONGLY, 401, 429)],
    },
    Change {
        operation: "delete_namespace",
        passing: 1,
        before: &[
            NAMESPACE,
            Call::admin("POST", APPS, r#"{"name": "an-app"}"#),
            Call::admin("PUT", WEBHOOK, r#"{"url": "http://127.0.0.1:9/"}"#),
        ],
        call: Call::admin("DELETE", "/api/v1/namespaces/passing-$N", ""),
        checks: &[
            Check::Counts("SELECT COUNT(*) FROM app WHERE name = 'an-app'", 1, 0),
            Check::Answers(Call::admin("GET", WEBHOOK, ""), 200, 404),
            Check::Answers(NAMESPACE, 409, 201),
            Check::Contains(Call::admin("GET", APPS, ""), "\"an-app\"", 1, 0),
        ],
    },
];

/// An answer of a server.
#[derive(Debug)]
struct Reply {
    status: u16,
    cookie: Option<String>,
    text: String,
}

struct Scene<'db> {
    db: &'db ScratchDb,
    server: Server,
    client: Client,
    known: BTreeMap<&'static str, String>,
}

impl<'db> Scene<'db> {
    async fn begin(db: &'db ScratchDb) -> Self {
        let server = server(db, &[]).await;
        // This installs the TLS provider that the client needs.
        drop(server.api());
        let client = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        let client = client.timeout(Duration::from_secs(30)).build().expect("make a client");
        Self { db, server, client, known: BTreeMap::new() }
    }

    fn fill(&self, text: &str) -> String {
        self.known.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value))
    }

    fn request(&self, call: &Call) -> RequestBuilder {
        let method: Method = call.method.parse().expect("a method");
        let path = self.fill(call.path);
        let mut request = match call.caller {
            Caller::Admin => self.server.api().request(method, &path),
            Caller::Bearer => self.client.request(method, self.url(&path)).bearer_auth(self.fill("$SECRET")),
            Caller::SignedOut => self.client.request(method, self.url(&path)),
            Caller::SignedIn => self.client.request(method, self.url(&path)).header(COOKIE, self.fill("$COOKIE")),
        };
        if matches!(call.caller, Caller::SignedOut | Caller::SignedIn) {
            request = request.header(ORIGIN, self.server.url()).header("accept", "text/html");
        }
        if !call.body.is_empty() {
            let kind =
                if call.body.starts_with('{') { "application/json" } else { "application/x-www-form-urlencoded" };
            request = request.header(CONTENT_TYPE, kind).body(self.fill(call.body));
        }
        request
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server.url())
    }

    /// The reply to a call; `None` if the server does not answer.
    async fn try_call(&self, call: &Call) -> Option<Reply> {
        let answer = self.request(call).send().await.ok()?;
        let status = answer.status().as_u16();
        let cookie = answer.headers().get(SET_COOKIE).and_then(|cookie| cookie.to_str().ok());
        let cookie = cookie.and_then(|cookie| cookie.split(';').next()).map(str::to_owned);
        Some(Reply { status, cookie, text: answer.text().await.ok()? })
    }

    async fn call(&mut self, call: &Call) -> Reply {
        let reply = self.try_call(call).await;
        assert!(reply.is_some(), "no answer to {} {}", call.method, call.path);
        let reply = reply.expect("an answer");
        if reply.status < 400 {
            let document: Value = serde_json::from_str(&reply.text).unwrap_or_default();
            for (word, place) in call.keeps {
                let is_cookie = *place == "cookie";
                let found =
                    if is_cookie { reply.cookie.as_deref() } else { document.pointer(place).and_then(Value::as_str) };
                assert!(found.is_some(), "{place} is not in {reply:?}");
                let found = found.expect("just seen");
                // The value of a link is its token.
                let value = found.split_once("token=").map_or(found, |(_, token)| token);
                self.known.insert(word, value.to_owned());
            }
        }
        reply
    }

    /// Restarts the server, so that it dies at a place.
    async fn arm(&mut self, place: &str) {
        self.server.stop().await;
        assert!(self.server.try_restart_with(&["--failpoint", place]).await, "it does not reach {place} at a start");
    }

    async fn dies(&mut self, place: &str) {
        let status = self.server.process().wait(DEATH).await;
        let last = self.server.process().stderr();
        assert!(!status.success() && last.contains(&format!("failpoint {place}: ")), "{place}: {status}, {last}");
        record_outcome(self.db.backend(), place, "died");
    }

    async fn run_change(&mut self, change: &Change, number: usize, is_done: bool) {
        let place = format!("{}.{}", change.operation, if is_done { "committed" } else { "written" });
        self.known = BTreeMap::from([("$N", number.to_string())]);
        for call in change.before {
            let reply = self.call(call).await;
            let is_fine = reply.status < 400 || (reply.status == 401 && call.body == SIGN_IN_WRONGLY.body);
            assert!(is_fine, "before {place}: {} {}: {reply:?}", call.method, call.path);
        }
        self.arm(&format!("{place}@{}", change.passing)).await;
        let unanswered = self.unanswered();
        let reply = self.try_call(&change.call).await;
        assert!(reply.is_none(), "{place}: it lived to answer {reply:?}");
        self.dies(&place).await;
        // Whether or not the change was made, the audit log has the request.
        let is_audited = matches!(change.call.caller, Caller::Admin);
        assert_eq!(self.unanswered(), unanswered + u32::from(is_audited), "{place}: calls in the audit log");
        for check in change.checks {
            if let Check::Counts(statement, without, with) = check {
                let (found, expected) = (self.db.sql(&self.fill(statement)), if is_done { with } else { without });
                assert_eq!(found, expected.to_string(), "{place}: {statement}");
            }
        }
        self.server.restart().await;
        for check in change.checks {
            match check {
                Check::Answers(call, without, with) => {
                    let (reply, expected) = (self.call(call).await, if is_done { with } else { without });
                    assert_eq!(reply.status, *expected, "{place}: {} {}: {reply:?}", call.method, call.path);
                }
                Check::Contains(call, text, without, with) => {
                    let (reply, expected) = (self.call(call).await, if is_done { with } else { without });
                    let count = reply.text.matches(&self.fill(text)).count();
                    assert_eq!(count, *expected, "{place}: {text} in the answer to {}: {reply:?}", call.path);
                }
                Check::Counts(..) => {}
            }
        }
        self.clean().await;
    }

    /// How many calls the audit log has without their answers.
    fn unanswered(&self) -> u32 {
        let found = self.db.sql("SELECT COUNT(*) FROM audit WHERE after_document LIKE '%unanswered%'");
        found.parse().expect("a count")
    }

    /// Deletes what a test leaves behind, because the next test must not count it.
    async fn clean(&mut self) {
        self.call(&Call::admin("DELETE", "/api/v1/users/eve$N", "")).await;
        self.call(&Call::admin("DELETE", "/api/v1/namespaces/passing-$N", "")).await;
    }

    /// The first account of all, created with the link from the server's output.
    async fn first_admin(&mut self) {
        const SET_UP: Call = Call::form("/set-up", "token=$LINK&name=first&password=password+of+the+first");
        const COME_IN: Call = Call::form("/sign-in", "name=first&password=password+of+the+first");
        for is_done in [false, true] {
            let place = if is_done { "create_first_admin.committed" } else { "create_first_admin.written" };
            self.arm(place).await;
            let line = self.server.process().wait_for_line(DEATH, "set up: ").await;
            let token = line.split_once("token=").and_then(|(_, rest)| rest.split_whitespace().next()).expect("a link");
            self.known = BTreeMap::from([("$LINK", token.to_owned())]);
            let reply = self.try_call(&SET_UP).await;
            assert!(reply.is_none(), "{place}: it lived to answer {reply:?}");
            self.dies(place).await;
            let roles = self.db.sql("SELECT COUNT(*) FROM role_grant WHERE subject_kind = 'account'");
            assert_eq!(roles, if is_done { "1" } else { "0" }, "{place}");
            self.server.restart().await;
            let reply = self.call(&COME_IN).await;
            assert_eq!(reply.status, if is_done { 303 } else { 401 }, "{place}: {reply:?}");
            // Without an account, the next start has made another link.
            let word = if is_done { "sign in: " } else { "set up: " };
            self.server.process().wait_for_line(DEATH, word).await;
        }
    }
}

/// Tests every second change, each with both of its deaths; `half` selects which ones.
async fn changes_survive(backend: Backend, half: usize) {
    if !has_interpreter("python") {
        return left_out_without("python3", "the client of SQLite is Python's");
    }
    for _ in 0..rounds().unwrap_or(1) {
        let Some(db) = scratch(backend).await else { return };
        let mut scene = Scene::begin(&db).await;
        if half == 0 {
            scene.first_admin().await;
        } else {
            scene.call(&ADMIN).await;
        }
        for (number, change) in CHANGES.iter().enumerate().filter(|(number, _)| number % 2 == half) {
            scene.run_change(change, 2 * number, false).await;
            scene.run_change(change, 2 * number + 1, true).await;
        }
        record_outcome(backend, "users", "judged");
    }
}

/// Tests a half of the changes on `SQLite`; in the long form, on each database.
async fn half_survives(half: usize) {
    for backend in if rounds().is_some() { &Backend::ALL[..] } else { &[Backend::Sqlite] } {
        changes_survive(*backend, half).await;
    }
}

#[tokio::test]
async fn changes_of_users_are_complete_or_absent_first_half() {
    half_survives(0).await;
}

#[tokio::test]
async fn changes_of_users_are_complete_or_absent_second_half() {
    half_survives(1).await;
}
