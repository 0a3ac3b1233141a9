//! A small admin server that speaks as XXL-JOB or ratch-job does, and fires its jobs each second.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::header::{CONTENT_TYPE, COOKIE, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub(crate) const PASSWORD: &str = "pass word&1";
pub(crate) const TOKEN: &str = "default_token";
/// `PASSWORD` in base64.
const ENCODED_PASSWORD: &str = "cGFzcyB3b3JkJjE=";
const COOKIE_PAIR: &str = "session=abc";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    XxlNew,
    XxlOld,
    Ratch,
    RatchWithCaptcha,
    /// A server of another kind.
    WebPage,
}

/// What the server has, and what happened.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// Groups by their ids.
    pub(crate) groups: BTreeMap<i64, String>,
    /// Whether a job is started, by its id.
    pub(crate) jobs: BTreeMap<i64, bool>,
    pub(crate) addresses: BTreeSet<String>,
    /// How many jobs were created; the counts below are of jobs, too.
    pub(crate) created: usize,
    pub(crate) started: usize,
    pub(crate) stopped: usize,
    pub(crate) removed: usize,
    /// The number of all requests.
    pub(crate) call_count: usize,
    /// Whether some runs of a second were sent after the next second had begun.
    pub(crate) fires_were_late: bool,
}

pub(crate) struct Shared {
    dialect: Dialect,
    world: Mutex<World>,
    next_id: AtomicI64,
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_started(&self, count: usize) -> bool {
        self.world().started >= count
    }

    fn next_id(&self) -> i64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

pub(crate) struct FakeAdmin {
    pub(crate) dialect: Dialect,
    pub(crate) url: String,
    pub(crate) shared: Arc<Shared>,
    /// The tasks end when the set is dropped.
    _tasks: JoinSet<()>,
}

impl FakeAdmin {
    pub(crate) async fn start(dialect: Dialect) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Arc::new(Shared { dialect, world: Mutex::default(), next_id: AtomicI64::new(1) });
        let app = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(axum::serve(listener, app).await) });
        tasks.spawn(fire(Arc::clone(&shared)));
        Self { dialect, url, shared, _tasks: tasks }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.shared.world()
    }

    pub(crate) fn fires_were_late(&self) -> bool {
        self.world().fires_were_late
    }

    /// A URL at which no server listens.
    pub(crate) async fn closed_url() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        format!("http://{}", listener.local_addr().expect("an address"))
    }
}

/// Fires all started jobs each second, with two faults in every three seconds: the first job is skipped once, and the
/// second job is fired twice once.
async fn fire(shared: Arc<Shared>) {
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    loop {
        let now = now_ms();
        tokio::time::sleep(Duration::from_millis(u64::try_from(1_000 - now % 1_000).unwrap_or(0))).await;
        let second = now / 1_000 + 1;
        let (jobs, address) = {
            let world = shared.world();
            let jobs = world.jobs.iter().filter(|(_, is_started)| **is_started).map(|(id, _)| *id);
            (jobs.collect::<Vec<_>>(), world.addresses.first().cloned())
        };
        let Some(address) = address else { continue };
        for (index, job) in jobs.into_iter().enumerate() {
            let count = match (index, second % 3) {
                (0, 0) => 0,
                (1, 1) => 2,
                _ => 1,
            };
            for _ in 0..count {
                let body = json!({"jobId": job, "logId": shared.next_id(), "logDateTime": second * 1_000 + 3,
                    "executorHandler": "bench.nothing", "broadcastTotal": 1});
                client.post(format!("{address}run")).json(&body).send().await.ok();
            }
        }
        if now_ms() >= (second + 1) * 1_000 {
            shared.world().fires_were_late = true;
        }
    }
}

fn now_ms() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

/// One request, with everything that any of the dialects reads.
struct Request {
    path: String,
    headers: HeaderMap,
    fields: HashMap<String, String>,
    body: Value,
}

impl Request {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn is_signed_in(&self) -> bool {
        self.headers.get(COOKIE).is_some_and(|cookie| cookie == COOKIE_PAIR)
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    shared.world().call_count += 1;
    let is_form = headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/x-www-form-urlencoded");
    let fields = if is_form { form(&body) } else { query };
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let request = Request { path: uri.path().to_owned(), headers, fields, body };
    let missing = || (StatusCode::NOT_FOUND, "<h1>Welcome</h1>").into_response();
    if shared.dialect == Dialect::WebPage {
        return missing();
    }
    if let Some(path) = request.path.strip_prefix("/xxl-job-admin/api/") {
        return axum::Json(answer_executor(&shared, path, &request)).into_response();
    }
    let answer = match shared.dialect {
        Dialect::XxlNew | Dialect::XxlOld => answer_xxl(&shared, &request),
        Dialect::Ratch | Dialect::RatchWithCaptcha => answer_ratch(&shared, &request),
        Dialect::WebPage => None,
    };
    match answer {
        Some(FakeAnswer::Json(value)) => axum::Json(value).into_response(),
        Some(FakeAnswer::SignedIn(value)) => {
            ([(SET_COOKIE, format!("{COOKIE_PAIR}; Path=/; HttpOnly"))], axum::Json(value)).into_response()
        }
        Some(FakeAnswer::Text(text)) => text.into_response(),
        None => missing(),
    }
}

enum FakeAnswer {
    Json(Value),
    SignedIn(Value),
    Text(String),
}

fn form(body: &[u8]) -> HashMap<String, String> {
    let text = String::from_utf8_lossy(body);
    let url = reqwest::Url::parse(&format!("http://form/?{text}")).expect("a form");
    url.query_pairs().into_owned().collect()
}

/// Answers the calls of executors.
fn answer_executor(shared: &Shared, path: &str, request: &Request) -> Value {
    if request.headers.get("XXL-JOB-ACCESS-TOKEN").is_none_or(|token| token != TOKEN) {
        return json!({"code": 500, "msg": "The access token is wrong."});
    }
    let address = request.body["registryValue"].as_str().unwrap_or_default().to_owned();
    match path {
        "registry" => {
            shared.world().addresses.insert(address);
        }
        "registryRemove" => {
            shared.world().addresses.remove(&address);
        }
        _ => {}
    }
    json!({"code": 200, "msg": null})
}

fn answer_xxl(shared: &Shared, request: &Request) -> Option<FakeAnswer> {
    let is_new = shared.dialect == Dialect::XxlNew;
    let path = request.path.strip_prefix("/xxl-job-admin/")?;
    let (payload_name, sign_in_path) = if is_new { ("data", "auth/doLogin") } else { ("content", "login") };
    let success = |payload: Value| json!({"code": 200, "msg": null, payload_name: payload});
    if path == sign_in_path {
        let is_right = request.field("userName") == "admin" && request.field("password") == PASSWORD;
        let refused = json!({"code": 500, "msg": "wrong user or password"});
        return Some(if is_right { FakeAnswer::SignedIn(success(Value::Null)) } else { FakeAnswer::Json(refused) });
    }
    if !request.is_signed_in() {
        return None;
    }
    let id = || request.field(if is_new { "ids[]" } else { "id" }).parse::<i64>().ok();
    let page = |rows: Vec<Value>| {
        let old = json!({"recordsTotal": rows.len(), "data": rows});
        if is_new { success(json!({"total": rows.len(), "data": rows})) } else { old }
    };
    let mut world = shared.world();
    let value = match (path, is_new) {
        ("jobgroup/insert", true) | ("jobgroup/save", false) => {
            assert!((1..=12).contains(&request.field("title").len()) && request.field("addressType") == "0");
            world.groups.insert(shared.next_id(), request.field("appname").to_owned());
            success(Value::Null)
        }
        ("jobgroup/update", _) => success(Value::Null),
        ("jobgroup/pageList", _) => {
            let addresses = world.addresses.iter().cloned().collect::<Vec<_>>().join(",");
            let groups = world.groups.iter().filter(|(_, name)| *name == request.field("appname"));
            page(groups.map(|(id, name)| json!({"id": id, "appname": name, "addressList": addresses})).collect())
        }
        ("jobgroup/delete", true) | ("jobgroup/remove", false) => {
            if !world.jobs.is_empty() {
                return Some(FakeAnswer::Json(json!({"code": 500, "msg": "the group has jobs"})));
            }
            world.groups.remove(&id()?);
            success(Value::Null)
        }
        ("jobinfo/insert", true) | ("jobinfo/add", false) => {
            let group = request.field("jobGroup").parse::<i64>().ok()?;
            assert!(world.groups.contains_key(&group) && request.field("scheduleConf") == "* * * * * ?");
            let id = shared.next_id();
            world.jobs.insert(id, false);
            world.created += 1;
            success(json!(id.to_string()))
        }
        ("jobinfo/start" | "jobinfo/stop", _) => {
            change_job(&mut world, id()?, path == "jobinfo/start");
            success(Value::Null)
        }
        ("jobinfo/delete", true) | ("jobinfo/remove", false) => {
            world.removed += usize::from(world.jobs.remove(&id()?).is_some());
            success(Value::Null)
        }
        ("jobinfo/pageList", _) => page(world.jobs.keys().map(|id| json!({"id": id})).collect()),
        _ => return None,
    };
    Some(FakeAnswer::Json(value))
}

fn answer_ratch(shared: &Shared, request: &Request) -> Option<FakeAnswer> {
    let success = |data: Value| json!({"data": data, "success": true, "code": null, "message": null});
    let failure = |code: &str| json!({"data": null, "success": false, "code": code, "message": null});
    let mut world = shared.world();
    match request.path.as_str() {
        "/ratch/v1/about" => return Some(FakeAnswer::Text("ratch-job version:0.2.1".to_owned())),
        "/ratch/v1/app/instance/addrs" => return Some(FakeAnswer::Json(success(json!(world.addresses)))),
        _ => {}
    }
    let path = request.path.strip_prefix("/ratchjob/api/console/v1/")?;
    if path == "login/login" {
        let is_right = request.field("username") == "admin" && request.field("password") == ENCODED_PASSWORD;
        return Some(match (shared.dialect, is_right) {
            (Dialect::RatchWithCaptcha, _) => FakeAnswer::Json(failure("CAPTCHA_CHECK_ERROR")),
            (_, true) => FakeAnswer::SignedIn(success(json!({"token": "abc"}))),
            (_, false) => FakeAnswer::Json(failure("USER_CHECK_ERROR")),
        });
    }
    if !request.is_signed_in() {
        return Some(FakeAnswer::Json(failure("NO_LOGIN")));
    }
    let body = &request.body;
    let id = body["id"].as_i64();
    let data = match path {
        "app/update" => {
            world.groups.insert(shared.next_id(), body["appName"].as_str()?.to_owned());
            Value::Null
        }
        "app/remove" if !world.addresses.is_empty() => return Some(FakeAnswer::Json(failure("SYSTEM_ERROR"))),
        "app/remove" => {
            world.groups.retain(|_, name| *name != body["appName"]);
            Value::Null
        }
        "job/create" => {
            assert!(body["enable"] == false && body["namespace"] == "xxl", "{body}");
            let id = shared.next_id();
            world.jobs.insert(id, false);
            world.created += 1;
            json!({"id": id})
        }
        "job/update" => {
            change_job(&mut world, id?, body["enable"].as_bool()?);
            Value::Null
        }
        "job/remove" => {
            world.removed += usize::from(world.jobs.remove(&id?).is_some());
            Value::Null
        }
        "job/list" => {
            let app = request.field("appName");
            let rows: Vec<Value> = world.jobs.keys().map(|id| json!({"id": id, "appName": app})).collect();
            json!({"totalCount": rows.len(), "list": rows})
        }
        _ => return None,
    };
    Some(FakeAnswer::Json(success(data)))
}

fn change_job(world: &mut World, id: i64, is_started: bool) {
    let is_known = world.jobs.get_mut(&id).map(|job| *job = is_started).is_some();
    match (is_known, is_started) {
        (true, true) => world.started += 1,
        (true, false) => world.stopped += 1,
        (false, _) => {}
    }
}
