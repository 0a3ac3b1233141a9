//! The permissions of every route. Each route is called by each kind of caller: on an object that the caller's role covers, on an object
//! of another app, and on one of another namespace. The outcomes are compared with a table that developers review.
//!
//! A route that is not in the table fails the test. `RONDEL_BLESS=1` writes the table again; review the differences.

use rondel_admin::jobs;
use rondel_admin::rules::{self, SilenceRequest};
use rondel_admin::{calendars, scripts};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use rondel_admin::auth::Token;
use rondel_admin::sign_in::{self, SignInClient, SignInOwner};
use rondel_core::access::{Grant, Role};
use rondel_core::alert::{
    ConditionState, Observation, OpenIncidents, RuleSpec, RuleView, SilenceSpec, Subject, SubjectKind, decide,
};
use rondel_core::calendar::CalendarSpec;
use rondel_core::channel::ChannelKind;
use rondel_core::words::Lang;
use rondel_core::{AccountId, AppId, ChannelId, IncidentId, JobSpec, NamespaceId, Timestamp, TokenId};
use rondel_store::access::{Account, TokenKind, TokenRecord};
use rondel_store::alerts::{AlertWrite, IncidentRecord};
use rondel_store::catalog::{JobQuery, JobRecord, Namespace};
use rondel_store::channels::Channel;
use rondel_store::ledger::RunQuery;
use rondel_store::reports::ReportChange;
use rondel_web::{Access, RouteInfo, WebConfig, route_table};
use serde_json::{Value, json};

use crate::harness::{Answer, Server};

const TABLE: &str = "tests/permissions.tsv";
/// The callers, with their roles on the app `mine` of the namespace `default`. `root` has every right.
const CALLERS: [(&str, Option<Role>); 7] = [
    ("anonymous", None),
    ("executor", Some(Role::Executor)),
    ("viewer", Some(Role::Viewer)),
    ("operator", Some(Role::Operator)),
    ("editor", Some(Role::Editor)),
    ("admin", Some(Role::Admin)),
    ("root", Some(Role::Admin)),
];
/// The object of a call: of the app on which the callers have their roles, of another app, or of another namespace.
pub(crate) const OBJECTS: [(&str, &str, &str); 3] =
    [("own", "default", "mine"), ("other app", "default", "theirs"), ("other namespace", "elsewhere", "mine")];

pub(crate) struct World {
    pub(crate) server: Server,
    /// The credentials of each caller, for the request's header.
    keys: BTreeMap<&'static str, String>,
}

/// The objects that a route may need. They are created again for each call.
pub(crate) struct TestObjects {
    pub(crate) namespace: &'static str,
    pub(crate) app: &'static str,
    pub(crate) run: String,
    pub(crate) token: String,
    pub(crate) session: String,
    pub(crate) incident: String,
    pub(crate) silence: String,
    pub(crate) maintenance: String,
    /// An instant one minute in the future.
    pub(crate) soon: Timestamp,
}

impl TestObjects {
    /// The path of a route, with these objects in place of its parameters.
    pub(crate) fn path(&self, path: &str) -> String {
        let name = match path {
            path if path.contains("/namespaces/") => self.namespace.to_owned(),
            path if path.contains("/calendars/") => "cal".to_owned(),
            path if path.contains("/scripts/") => "script".to_owned(),
            path if path.contains("/channels/") => "chan".to_owned(),
            path if path.contains("/nodes/") => "node".to_owned(),
            _ => format!("job-{}", self.app),
        };
        let id = match path {
            path if path.contains("/tokens/") => &self.token,
            path if path.contains("/sessions/") => &self.session,
            path if path.contains("/incidents/") => &self.incident,
            path if path.contains("/silences/") => &self.silence,
            path if path.contains("/maintenance/") => &self.maintenance,
            _ => &self.run,
        };
        let path = path.replace("{name}", &name).replace("{id}", id).replace("{app}", self.app);
        path.replace("{file}", "nosuch.css")
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        // Streams end immediately.
        let config = WebConfig { follow_timeout: Duration::ZERO, ..WebConfig::default() };
        let server = Server::start_with(config).await;
        let engine = &server.engine;
        let (store, now) = (engine.store(), engine.now());
        let elsewhere = Namespace { id: NamespaceId::new(2), name: "elsewhere".to_owned() };
        assert!(store.create_namespace(&elsewhere, now).await.unwrap());
        for (namespace, app) in [(1, "mine"), (1, "theirs"), (2, "mine")] {
            let id = AppId::new(engine.new_id());
            store.ensure_app(id, NamespaceId::new(namespace), app, now).await.unwrap();
        }
        let mine = store.app(NamespaceId::new(1), "mine").await.unwrap().unwrap().id;
        let mut keys = BTreeMap::from([("anonymous", String::new())]);
        for (name, role) in CALLERS {
            let Some(role) = role else { continue };
            let grant = match name {
                "root" => Grant::everywhere(role),
                _ => Grant { role, namespace: Some(NamespaceId::new(1)), app: Some(mine) },
            };
            let id = AccountId::new(engine.new_id());
            let account = Account {
                id,
                name: name.to_owned(),
                display_name: name.to_owned(),
                password: None,
                disabled: false,
                created_at: now,
                password_changed_at: None,
                provider_linked_at: None,
                grants: vec![grant],
            };
            assert!(store.create_account(&account).await.unwrap());
            let kind = if role == Role::Executor { TokenKind::Executor } else { TokenKind::Api };
            let token = Token::generate_for(kind);
            let owner = (role != Role::Executor).then_some(id);
            let record = token.record(engine.new_id(), kind, now);
            let record = TokenRecord { name: name.to_owned(), owner, grants: vec![grant], ..record };
            store.add_token(&record).await.unwrap();
            keys.insert(name, format!("Bearer {}", token.reveal()));
        }
        Self { server, keys }
    }

    /// A new session for the caller, since the previous call may have ended the last one. Executors' tokens cannot sign in.
    async fn cookie(&self, caller: &str) -> String {
        let engine = &self.server.engine;
        let account = engine.store().account_by_name(caller).await.unwrap().filter(|_| caller != "executor");
        let Some(account) = account else { return String::new() };
        let whose = SignInOwner::Account(account.id);
        let now = engine.now();
        let begun =
            sign_in::begin(engine.store(), engine.new_id(), whose, &SignInClient::default(), now).await.unwrap();
        format!("rondel_session={}", begun.reveal())
    }

    /// Creates the objects again that the previous call has removed.
    pub(crate) async fn create_objects(
        &self,
        caller: &str,
        (object, namespace, app): (&str, &'static str, &'static str),
    ) -> TestObjects {
        let engine = &self.server.engine;
        let (store, now) = (engine.store(), engine.now());
        let id = store.namespace(namespace).await.unwrap().unwrap().id;
        let job = format!("job-{app}");
        let record = match store.job(id, &job).await.unwrap() {
            Some(record) => record,
            None => {
                let spec: JobSpec = serde_json::from_value(json!({"name": job, "app": app, "handler": "h"})).unwrap();
                Box::pin(jobs::create(engine, id, spec, "test")).await.unwrap()
            }
        };
        let request = jobs::RunRequest::by(rondel_core::Trigger::Api);
        let run = Box::pin(jobs::request_run(engine, &record, request)).await.unwrap().id.to_string();
        if calendars::find(engine, id, "cal").await.unwrap().is_none() {
            let spec: CalendarSpec =
                serde_json::from_value(json!({"name": "cal", "rule": {"weekdays": ["mon"]}})).unwrap();
            calendars::save(engine, id, &spec, None, "test").await.unwrap();
        }
        if store.script(id, "script").await.unwrap().is_none() {
            let spec = serde_json::from_value(json!({"language": "shell", "source": "date"})).unwrap();
            scripts::save(engine, (id, "script"), &spec, None, "test").await.unwrap();
        }
        if store.channel(id, "chan").await.unwrap().is_none() {
            store.save_channel(&channel(ChannelId::new(engine.new_id()), id, now), None).await.unwrap();
        }
        // A second channel for the weekly report: a channel that is in use cannot be deleted.
        let mail = channel(ChannelId::new(engine.new_id()), id, now);
        store.save_channel(&Channel { name: "mail".to_owned(), ..mail }, None).await.unwrap();
        let weekly: rondel_core::report::ReportSchedule = serde_json::from_value(weekly()).unwrap();
        let (spec, author) = (&weekly, "test");
        let change = ReportChange { namespace: id, spec, author, expected_version: None, next_at: None, now };
        store.save_report_schedule(change).await.unwrap();
        // The token belongs to the caller if the object is the caller's own, else to `root`.
        let owner = if object == "own" { caller } else { "root" };
        let owner = store.account_by_name(owner).await.unwrap();
        let token = Token::generate().record(engine.new_id(), TokenKind::Api, now);
        let owner_id = owner.as_ref().map(|owner| owner.id);
        store.add_token(&TokenRecord { name: "some".to_owned(), owner: owner_id, ..token.clone() }).await.unwrap();
        let session = match owner_id {
            Some(owner) => {
                sign_in::begin(store, engine.new_id(), SignInOwner::Account(owner), &SignInClient::default(), now)
                    .await
                    .unwrap();
                store.sign_ins(owner).await.unwrap()[0].id.to_string()
            }
            None => "1".to_owned(),
        };
        let guest = Account {
            id: AccountId::new(engine.new_id()),
            name: "guest".to_owned(),
            display_name: "guest".to_owned(),
            password: None,
            disabled: false,
            created_at: now,
            password_changed_at: None,
            provider_linked_at: None,
            grants: Vec::new(),
        };
        store.create_account(&guest).await.unwrap();
        let (incident, silence, maintenance) = alerts(engine, id, &record).await;
        TestObjects {
            namespace,
            app,
            run,
            token: TokenId::to_string(&token.id),
            session,
            incident,
            silence,
            maintenance,
            soon: now + Duration::from_secs(60),
        }
    }

    pub(crate) async fn call(&self, route: &RouteInfo, caller: &str, objects: &TestObjects) -> Answer {
        self.server.send(self.request(route, caller, objects).await).await
    }

    pub(crate) async fn request(&self, route: &RouteInfo, caller: &str, objects: &TestObjects) -> Request<Body> {
        let job = format!("job-{}", objects.app);
        let path = objects.path(route.path).replace("{user}", "guest");
        let mut query = format!("?namespace={}", objects.namespace);
        if route.path.ends_with("/import") {
            query.push_str("&format=csv");
        }
        let (path, query) = match route.access {
            Access::SignedIn(_) => (format!("/n/{}{path}", objects.namespace), String::new()),
            Access::Open | Access::Needs(_) => (path, query),
        };
        let bearer = &self.keys[caller];
        let request = Request::builder().method(route.method.clone()).uri(format!("{path}{query}")).header("host", "h");
        let request = match route.access {
            Access::SignedIn(_) => request.header("cookie", self.cookie(caller).await),
            Access::Open | Access::Needs(_) if bearer.is_empty() => request,
            Access::Open | Access::Needs(_) => request.header("authorization", bearer),
        };
        let (kind, body) = body(route, objects, &job);
        request.header("content-type", kind).body(Body::from(body)).unwrap()
    }
}

/// A channel to which nothing is sent, because the address of its receiver is refused.
fn channel(id: ChannelId, namespace: NamespaceId, now: Timestamp) -> Channel {
    Channel {
        id,
        namespace,
        name: "chan".to_owned(),
        kind: ChannelKind::Webhook,
        settings: "{}".to_owned(),
        secret: "{\"url\":\"https://10.0.0.1/x\"}".to_owned(),
        lang: Lang::En,
        is_enabled: true,
        created_at: now,
        updated_at: now,
    }
}

/// Creates a rule about a job, an open incident of the job, and a silence. Returns the rule's name and the two ids.
async fn alerts(engine: &rondel_admin::Engine, namespace: NamespaceId, job: &JobRecord) -> (String, String, String) {
    let (store, now) = (engine.store(), engine.now());
    let document = json!({"name": job.spec.name, "scope": {"job": job.spec.name}, "condition": {"failed": {}}});
    let document: RuleSpec = serde_json::from_value(document).unwrap();
    let saved = rules::save_rule(engine, namespace, (&document, None), "test").await.unwrap();
    let subject = Subject {
        kind: SubjectKind::Job,
        id: job.id.get(),
        name: job.spec.name.clone(),
        app: Some(job.spec.app.clone()),
    };
    let open = OpenIncidents {
        incidents: store.open_incidents_of_rule(saved.record.id, 10).await.unwrap(),
        ..OpenIncidents::default()
    };
    let seen = Observation { subject, state: ConditionState::Holds { since: now, new_count: 1 }, samples: Vec::new() };
    let view = RuleView { spec: &document, namespace: "default", missing_channels: &[] };
    let mut next_id = || IncidentId::new(engine.new_id());
    let decision = decide(view, open, &[seen], &[], (now, &mut next_id));
    let record = |incident| IncidentRecord { incident, rule: saved.record.id, spec: document.clone() };
    let incidents: Vec<IncidentRecord> = decision.incidents.into_iter().map(record).collect();
    let version = store.alert_version(namespace).await.unwrap().unwrap();
    let write = AlertWrite {
        namespace,
        version,
        incidents: &incidents,
        messages: &[],
        evaluated_events: &[],
        checks: &[],
        expect_checks: &[],
        open_runs_check: None,
    };
    assert!(store.write_alerts(&write).await.unwrap());
    let spec = SilenceSpec { job: Some(job.spec.name.clone()), ..SilenceSpec::default() };
    let request = SilenceRequest { spec, reason: String::new(), ends_at: now + Duration::from_secs(60) };
    let known = store.silences(namespace, now).await.unwrap();
    for silence in known {
        rules::end_silence(engine, namespace, silence.id).await.unwrap();
    }
    let silence = rules::add_silence(engine, namespace, request, "test").await.unwrap();
    for window in store.maintenance(Some(namespace), now).await.unwrap() {
        rules::end_maintenance(engine, namespace, window.window.id).await.unwrap();
    }
    let app = Some((job.app, job.spec.app.clone()));
    let end = rules::WindowEnd::After(Duration::from_secs(3600));
    let (fires, reason) = (rondel_core::maintenance::FiresInside::Skip, "moving".to_owned());
    let request = rules::MaintenanceRequest { app, starts_at: None, end, fires, reason };
    let window = rules::add_maintenance(engine, namespace, request, "test").await.unwrap();
    (incidents[0].incident.id.to_string(), silence.id.to_string(), window.window.id.to_string())
}

/// A valid body for the route.
pub(crate) fn body(route: &RouteInfo, objects: &TestObjects, job: &str) -> (&'static str, String) {
    if matches!(route.access, Access::SignedIn(_) | Access::Open) {
        let password = if route.path.starts_with("/users/") { "&password=a+long+password" } else { "" };
        let form = format!("name={job}&app={}&handler=h&version=1&state=active&grants={password}", objects.app);
        return ("application/x-www-form-urlencoded", form);
    }
    let document: Value = match (route.method.as_str(), route.path) {
        ("POST", "/api/v1/jobs") => json!({"name": "new-one", "app": objects.app, "handler": "h"}),
        ("PUT", "/api/v1/jobs/{name}") => json!({"app": objects.app, "handler": "h2"}),
        ("POST", "/api/v1/jobs/apply") => json!([{"name": job, "app": objects.app, "handler": "h"}]),
        ("PUT", path) if path.ends_with("/state") => json!({"state": "active"}),
        ("POST", "/api/v1/jobs/{name}/restore") => json!({"version": 1}),
        ("PATCH", "/api/v1/jobs/{name}") => json!({"description": "changed"}),
        ("POST", "/api/v1/apps") => json!({"name": objects.app}),
        ("PUT", "/api/v1/calendars/{name}") => json!({"rule": {"weekdays": ["tue"]}}),
        ("PUT", "/api/v1/scripts/{name}") => json!({"language": "shell", "source": "echo 2"}),
        ("POST", "/api/v1/scripts/{name}/restore") => json!({"version": 1}),
        ("PUT", "/api/v1/channels/{name}") => {
            json!({"kind": "webhook", "secrets": {"url": "https://example.com/x"}})
        }
        ("POST", path) if path.ends_with("/import") => return ("text/plain", "2026-01-01\n".to_owned()),
        ("PUT", path) if path.ends_with("/failure-webhook") => json!({"url": "https://example.com/x"}),
        ("PUT", "/api/v1/reports/schedule") => weekly(),
        ("PUT", "/api/v1/alert-rules/{name}") => json!({"condition": {"failed": {}}}),
        ("POST", "/api/v1/alert-rules/preview") => json!({"name": "tried", "condition": {"failed": {}}}),
        ("POST", "/api/v1/silences") => {
            json!({"app": objects.app, "ends_at": objects.soon})
        }
        ("POST", "/api/v1/maintenance") => {
            json!({"app": objects.app, "length": "1h", "reason": "moving"})
        }
        ("POST", "/api/v1/schedules/preview") => json!({"schedule": {"every": "1s"}}),
        ("POST", "/api/v1/tokens") => {
            let grant = json!({"role": "viewer", "namespace": objects.namespace, "app": objects.app});
            json!({"kind": "api", "name": "made", "grants": [grant]})
        }
        ("POST", "/api/v1/namespaces") => json!({"name": "fresh"}),
        ("POST", "/api/v1/users") => json!({"name": "new-user"}),
        ("POST", path) if path.ends_with("/password") => json!({"password": "a long password"}),
        _ => json!({}),
    };
    ("application/json", document.to_string())
}

fn weekly() -> Value {
    json!({"weekday": "mon", "time": "08:00", "zone": "UTC", "channel": "mail"})
}

/// The outcome of a call with regard to permissions; "yes" for everything that is not a refusal.
fn word(answer: &Answer) -> &'static str {
    let to_sign_in = answer.headers.get("location").is_some_and(|to| to.as_bytes().starts_with(b"/sign-in?next="));
    match answer.status.as_u16() {
        401 => "401",
        403 => "403",
        404 => "404",
        303 if to_sign_in => "sign-in",
        status if status < 500 => "yes",
        _ => "5xx",
    }
}

async fn table() -> String {
    let mut text = String::from("method\tpath\tobject");
    for (caller, _) in CALLERS {
        write!(text, "\t{caller}").unwrap();
    }
    text.push('\n');
    let world = World::new().await;
    let mut routes = route_table();
    routes.sort_by_key(|route| (route.path, route.method.to_string()));
    for route in &routes {
        for object in OBJECTS {
            write!(text, "{}\t{}\t{}", route.method, route.path, object.0).unwrap();
            for (caller, _) in CALLERS {
                let objects = world.create_objects(caller, object).await;
                let answer = world.call(route, caller, &objects).await;
                write!(text, "\t{}", word(&answer)).unwrap();
                // The next call gets new credentials and objects, since this one may have signed out or revoked them.
                assert!(!answer.status.is_server_error(), "{caller}: {route:?}: {}", answer.text());
            }
            text.push('\n');
        }
    }
    let left = JobQuery { within: None, app: None, name_contains: None, after_name: None, limit: 9 };
    assert!(!world.server.engine.store().jobs(NamespaceId::new(1), &left).await.unwrap().is_empty());
    assert!(
        !world
            .server
            .engine
            .store()
            .list_runs(NamespaceId::new(1), &RunQuery { limit: 1, ..RunQuery::default() })
            .await
            .unwrap()
            .is_empty()
    );
    text
}

#[tokio::test]
async fn every_route_is_open_to_the_callers_in_the_table() {
    let found = Box::pin(table()).await;
    if std::env::var_os("RONDEL_BLESS").is_some() {
        std::fs::write(TABLE, &found).unwrap();
    }
    let expected = std::fs::read_to_string(TABLE).unwrap_or_default();
    for (line, wanted) in found.lines().zip(expected.lines()) {
        assert_eq!(line, wanted, "left: what happened; right: {TABLE}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "a route is not in {TABLE}, or is gone");
}

/// Properties that hold for the whole table.
#[test]
fn the_table_itself_is_right() {
    let table = std::fs::read_to_string(TABLE).unwrap();
    let access: BTreeMap<(String, &str), Access> =
        route_table().into_iter().map(|route| ((route.method.to_string(), route.path), route.access)).collect();
    for line in table.lines().skip(1) {
        let cells: Vec<&str> = line.split('\t').collect();
        let (route, object, outcomes) = ((cells[0].to_owned(), cells[1]), cells[2], &cells[3..]);
        let (_, access) = access.iter().find(|(known, _)| **known == route).unwrap();
        match access {
            Access::Open => continue,
            Access::Needs(_) => assert_eq!(outcomes[..2], ["401", "403"], "{line}"),
            Access::SignedIn(_) => {
                assert!(outcomes[..2].iter().all(|word| matches!(*word, "sign-in" | "401")), "{line}");
            }
        }
        // A role must not permit more than a stronger one.
        let may: Vec<bool> = outcomes[2..6].iter().map(|word| *word == "yes").collect();
        assert!(may.windows(2).all(|pair| pair[0] <= pair[1]), "{line}");
        let one_of_it = route.1.contains("{name}") || route.1.contains("{id}") || route.1.contains("{app}");
        let of_namespace = route.1.contains("/sessions") || route.1.contains("/tokens");
        if object == "other namespace" && one_of_it && !of_namespace {
            assert!(outcomes[2..6].iter().all(|word| matches!(*word, "404" | "403")), "{line}");
        }
        if object == "other app" && (route.1.contains("/jobs/{name}") || route.1.contains("/runs/{id}")) {
            assert!(outcomes[2..6].iter().all(|word| matches!(*word, "404" | "403")), "{line}");
        }
    }
}
