//! A stand-in for the real executors, which speaks XXL-JOB's protocol as one of them does.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method};
use rondel_tests::{Api, wait_until, wall_clock_ms};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(60);

/// The real executor whose messages the stand-in imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// xxl-job-core 2.2.0.
    Core22,
    /// xxl-job-core 2.3.1.
    Core23,
    /// xxl-job-core 3.4.2.
    Core34,
    /// The executor in Go: its refusals are lists, and its address has no slash at the end.
    Go,
    /// The executor for Node.js: its address has a path, and it insists on JSON with a length.
    Node,
}

pub(crate) const DIALECTS: [Dialect; 5] =
    [Dialect::Core22, Dialect::Core23, Dialect::Core34, Dialect::Go, Dialect::Node];

/// A received call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) body: Value,
    at_ms: i64,
}

/// A run that began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartedRun {
    pub(crate) log_id: i64,
    pub(crate) at_ms: i64,
    /// When it ended, and whether it succeeded.
    pub(crate) end: Option<(i64, bool)>,
}

#[derive(Debug)]
struct Shared {
    dialect: Dialect,
    app: String,
    token: String,
    /// The servers, in the order in which the executor calls them.
    apis: Vec<Api>,
    /// The prefix of the servers.
    prefix: &'static str,
    received_calls: Mutex<Vec<Call>>,
    /// The log ids of the runs that have not ended, by job.
    running: Mutex<BTreeMap<i64, i64>>,
    logs: Mutex<BTreeMap<i64, Vec<String>>>,
    /// When runs ended, and whether they succeeded.
    ends: Mutex<BTreeMap<i64, (i64, bool)>>,
    address: String,
    /// Whether requests for logs are answered with an error.
    are_logs_broken: Mutex<bool>,
    /// Whether a request to stop a run is answered only after a server has accepted the callback about it.
    is_callback_first: Mutex<bool>,
    /// How long it takes to answer a beat.
    beat_delay: Mutex<Duration>,
    /// Callbacks that are being sent.
    callback_tasks: Mutex<JoinSet<()>>,
}

/// The executor. It runs until it is dropped.
#[derive(Debug)]
pub(crate) struct StandIn {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StandIn {
    /// Starts the executor on a free port, without registering it.
    pub(crate) async fn start(dialect: Dialect, server: &str, (app, token): (&str, &str)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::start_at(listener, dialect, server, (app, token))
    }

    /// Starts the executor with this listener, for example on the port that it had before.
    pub(crate) fn start_at(listener: TcpListener, dialect: Dialect, server: &str, app_and_token: (&str, &str)) -> Self {
        Self::start_with(listener, dialect, &[server], app_and_token)
    }

    /// Starts the executor with several servers. It is enough if one of them answers.
    pub(crate) fn start_with(
        listener: TcpListener,
        dialect: Dialect,
        servers: &[&str],
        (app, token): (&str, &str),
    ) -> Self {
        let port = listener.local_addr().expect("it listens").port();
        let address = match dialect {
            Dialect::Core22 | Dialect::Core23 | Dialect::Core34 => format!("http://127.0.0.1:{port}/"),
            Dialect::Go => format!("http://127.0.0.1:{port}"),
            Dialect::Node => format!("http://127.0.0.1:{port}/job"),
        };
        let shared = Arc::new(Shared {
            dialect,
            app: app.to_owned(),
            token: token.to_owned(),
            apis: servers.iter().map(|server| Api::anonymous(server)).collect(),
            prefix: if dialect == Dialect::Core34 { "" } else { "/xxl-job-admin" },
            received_calls: Mutex::default(),
            running: Mutex::default(),
            logs: Mutex::default(),
            ends: Mutex::default(),
            address,
            are_logs_broken: Mutex::default(),
            is_callback_first: Mutex::default(),
            beat_delay: Mutex::default(),
            callback_tasks: Mutex::default(),
        });
        let path = if dialect == Dialect::Node { "/job/{method}" } else { "/{method}" };
        let router = Router::new().route(path, post(answer)).with_state(Arc::clone(&shared));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { shared, tasks }
    }

    /// The executor's name on the server.
    pub(crate) fn name_part(&self) -> String {
        self.shared.address.trim_start_matches("http://").trim_end_matches('/').replace([':', '/'], "-")
    }

    pub(crate) fn address(&self) -> &str {
        &self.shared.address
    }

    pub(crate) fn port(&self) -> u16 {
        let port = self.shared.address.trim_end_matches("/job").trim_end_matches('/').rsplit(':').next();
        port.and_then(|port| port.parse().ok()).expect("a port")
    }

    /// Calls the server, as the executor does.
    pub(crate) async fn call(&self, method: &str, body: Value) -> Value {
        self.shared.call(method, &body).await.expect("an answer")
    }

    pub(crate) async fn register(&self) {
        let answer = self.call("registry", self.shared.registration()).await;
        assert_eq!(answer["code"], 200, "{answer}");
    }

    /// Registers repeatedly, whether or not a server is there. Real executors do so every half a minute.
    pub(crate) fn keep_registering(&mut self) {
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            loop {
                drop(shared.call("registry", &shared.registration()).await);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }

    pub(crate) async fn sign_off(&self) {
        let answer = self.call("registryRemove", self.shared.registration()).await;
        assert_eq!(answer["code"], 200, "{answer}");
    }

    /// The received calls of a method.
    pub(crate) fn calls(&self, method: &str) -> Vec<Value> {
        lock(&self.shared.received_calls)
            .iter()
            .filter(|call| call.method == method)
            .map(|call| call.body.clone())
            .collect()
    }

    /// The requested runs, in the order of the requests.
    pub(crate) fn started_runs(&self) -> Vec<StartedRun> {
        let ends = lock(&self.shared.ends).clone();
        let received_calls = lock(&self.shared.received_calls);
        let runs = received_calls.iter().filter(|call| call.method == "run").filter_map(|call| {
            let log_id = call.body["logId"].as_i64()?;
            Some(StartedRun { log_id, at_ms: call.at_ms, end: ends.get(&log_id).copied() })
        });
        runs.collect()
    }

    /// Ends a run, and calls only this one of the servers.
    pub(crate) async fn finish_at(&self, server: usize, log_id: i64, message: &str) {
        lock(&self.shared.running).retain(|_, running| *running != log_id);
        self.shared.note_end(log_id, 200);
        let end = json!([{"logId": log_id, "logDateTim": 1, "handleCode": 200, "handleMsg": message}]);
        let answer = self.shared.call_at(&self.shared.apis[server], "callback", &end).await;
        assert_eq!(answer.as_ref().map(|answer| answer["code"].clone()), Ok(json!(200)), "{answer:?}");
    }

    /// Adds a line to the log of a run.
    pub(crate) fn write(&self, log_id: i64, line: String) {
        self.shared.add_log_line(log_id, line);
    }

    /// Sets whether requests for logs are answered with an error.
    pub(crate) fn break_logs(&self, are_broken: bool) {
        *lock(&self.shared.are_logs_broken) = are_broken;
    }

    /// Sets how long it takes to answer a beat.
    pub(crate) fn delay_beats(&self, delay: Duration) {
        *lock(&self.shared.beat_delay) = delay;
    }

    /// From now on, answers a request to stop a run only after a server has accepted the callback about it, as pyxxl
    /// does.
    pub(crate) fn call_back_first(&self) {
        *lock(&self.shared.is_callback_first) = true;
    }

    /// Waits until servers have accepted all callbacks.
    pub(crate) async fn wait_until_all_reported(&self) {
        wait_until(LIMIT, "all callbacks are taken", async || {
            let mut callback_tasks = lock(&self.shared.callback_tasks);
            while callback_tasks.try_join_next().is_some_and(|result| result.is_ok()) {}
            if callback_tasks.is_empty() { Ok(()) } else { Err(callback_tasks.len()) }
        })
        .await;
    }

    /// Waits for this many calls of a method.
    pub(crate) async fn wait_for(&self, method: &str, count: usize) -> Vec<Value> {
        wait_until(LIMIT, &format!("{count} calls of {method}"), async || {
            let calls = self.calls(method);
            if calls.len() >= count { Ok(calls) } else { Err(calls) }
        })
        .await
    }

    /// Ends a run.
    pub(crate) async fn finish(&self, log_id: i64, code: i64, message: &str) {
        lock(&self.shared.running).retain(|_, running| *running != log_id);
        self.shared.note_end(log_id, code);
        Arc::clone(&self.shared).call_back(log_id, code, message.to_owned()).await;
    }

    /// Dies: its runs are lost, and it no longer answers.
    pub(crate) async fn die(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Reserves a port: as long as the value lives, the kernel gives the port to no other program. Nothing listens on it.
pub(crate) fn hold_port(port: u16) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("make a socket");
    // The listeners here set this option too: only then may both be bound to one port.
    socket.set_reuseaddr(true).expect("share the port");
    socket.bind((Ipv4Addr::LOCALHOST, port).into()).expect("the port is free");
    socket
}

impl Shared {
    fn registration(&self) -> Value {
        json!({"registryGroup": "EXECUTOR", "registryKey": self.app, "registryValue": self.address})
    }

    /// The answer of the first server that gives one.
    async fn call(&self, method: &str, body: &Value) -> Result<Value, String> {
        let mut last_result = Err("it knows no server".to_owned());
        for api in &self.apis {
            last_result = self.call_at(api, method, body).await;
            if last_result.is_ok() {
                break;
            }
        }
        last_result
    }

    async fn call_at(&self, api: &Api, method: &str, body: &Value) -> Result<Value, String> {
        let path = format!("{}/api/{method}", self.prefix);
        let request = api.request(Method::POST, &path).header("Xxl-Job-Access-Token", &self.token);
        let answer = api.try_answer(request.json(body)).await?;
        if answer.status == 200 { Ok(answer.body) } else { Err(answer.body.to_string()) }
    }

    /// Sends a callback until a server accepts it, as the executors in Java and Rust do.
    async fn call_back(self: Arc<Self>, log_id: i64, code: i64, message: String) {
        let end = match self.dialect {
            Dialect::Core22 => {
                json!({"logId": log_id, "logDateTim": 1, "executeResult": {"code": code, "msg": message}})
            }
            Dialect::Core23 | Dialect::Core34 | Dialect::Node => {
                json!({"logId": log_id, "logDateTim": 1, "handleCode": code, "handleMsg": message})
            }
            Dialect::Go => json!({
                "logId": log_id, "logDateTim": "2026-11-23 02:50:00", "handleCode": code, "handleMsg": message,
                "executeResult": {"code": code, "msg": message},
            }),
        };
        let body = json!([end]);
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.call("callback", &body).await {
                Ok(answer) if answer["code"] == 200 => return,
                result => assert!(Instant::now() < deadline, "no server takes a callback: {result:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn success_answer(&self, payload: &Value) -> Value {
        match self.dialect {
            Dialect::Core34 => json!({"code": 200, "msg": "Success", "data": payload}),
            Dialect::Core22 | Dialect::Core23 => json!({"code": 200, "content": payload}),
            Dialect::Go => json!({"code": 200, "msg": "", "content": payload}),
            Dialect::Node => json!({"code": 200, "msg": null, "content": payload}),
        }
    }

    fn refusal(&self, log_id: i64, message: &str) -> Value {
        match self.dialect {
            Dialect::Go => json!([{
                "logId": log_id, "logDateTim": 1, "executeResult": {"code": 500, "msg": message}, "handleCode": 500,
                "handleMsg": message,
            }]),
            _ => json!({"code": 500, "msg": message}),
        }
    }

    fn note_end(&self, log_id: i64, code: i64) {
        lock(&self.ends).insert(log_id, (wall_clock_ms(), code == 200));
    }

    fn add_log_line(&self, log_id: i64, line: String) {
        lock(&self.logs).entry(log_id).or_default().push(line);
    }

    fn log_page(&self, body: &Value) -> Value {
        let from = body["fromLineNum"].as_u64().and_then(|from| usize::try_from(from).ok()).expect("a line");
        let logs = lock(&self.logs);
        let lines = logs.get(&body["logId"].as_i64().expect("a log id")).cloned().unwrap_or_default();
        let content: String = lines.iter().skip(from - 1).map(|line| format!("{line}\n")).collect();
        let to = if lines.len() < from { 0 } else { lines.len() };
        self.success_answer(&json!({"fromLineNum": from, "toLineNum": to, "logContent": content, "isEnd": false}))
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let is_json = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if shared.dialect == Dialect::Node && (!is_json || !headers.contains_key("content-length")) {
        return (http::StatusCode::INTERNAL_SERVER_ERROR, "<html>Is app.use(express.json()) missing?</html>")
            .into_response();
    }
    if headers.get("xxl-job-access-token").is_none_or(|token| token.as_bytes() != shared.token.as_bytes()) {
        return json_text(&json!({"code": 500, "msg": "The access token is wrong."}));
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    lock(&shared.received_calls).push(Call { method: method.clone(), body: body.clone(), at_ms: wall_clock_ms() });
    let job = body["jobId"].as_i64().unwrap_or_default();
    match method.as_str() {
        "beat" => {
            let delay = *lock(&shared.beat_delay);
            tokio::time::sleep(delay).await;
            json_text(&shared.success_answer(&Value::Null))
        }
        "idleBeat" if lock(&shared.running).contains_key(&job) => {
            json_text(&json!({"code": 500, "msg": "job thread is running or has trigger queue."}))
        }
        "idleBeat" => json_text(&shared.success_answer(&Value::Null)),
        "log" if *lock(&shared.are_logs_broken) => http::StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "log" => json_text(&shared.log_page(&body)),
        "kill" => {
            let killed_log_id = lock(&shared.running).remove(&job);
            if let Some(log_id) = killed_log_id {
                shared.note_end(log_id, 500);
                let call = Arc::clone(&shared).call_back(log_id, 500, "scheduling center kill job.".to_owned());
                let is_callback_first = *lock(&shared.is_callback_first);
                if is_callback_first {
                    call.await;
                } else {
                    lock(&shared.callback_tasks).spawn(call);
                }
            }
            json_text(&shared.success_answer(&Value::Null))
        }
        "run" => run(&shared, &body),
        _ => http::StatusCode::NOT_FOUND.into_response(),
    }
}

fn run(shared: &Arc<Shared>, body: &Value) -> Response {
    let (log_id, job) = (body["logId"].as_i64().expect("a log id"), body["jobId"].as_i64().expect("a job id"));
    let params = body["executorParams"].as_str().expect("a text").to_owned();
    let end = |code: i64, message: String| {
        shared.note_end(log_id, code);
        let shared = Arc::clone(shared);
        let task_owner = Arc::clone(&shared);
        lock(&task_owner.callback_tasks).spawn(async move { shared.call_back(log_id, code, message).await });
    };
    match body["executorHandler"].as_str().expect("a handler") {
        "echo" => {
            shared.add_log_line(log_id, format!("echo of {params}"));
            shared.add_log_line(log_id, "done".to_owned());
            end(200, format!("{params} {}/{}", body["broadcastIndex"], body["broadcastTotal"]));
        }
        "fail" => end(500, "asked to fail\n\tat Demo.java:7".to_owned()),
        "late" => end(502, "job execute timeout ".to_owned()),
        "sleep" => {
            shared.add_log_line(log_id, "sleeping".to_owned());
            lock(&shared.running).insert(job, log_id);
        }
        "mute" => {}
        // The run succeeds, but the answer to its request cannot be parsed.
        "garbled" => {
            end(200, params);
            return "<html>gateway</html>".into_response();
        }
        "broken" => {
            end(200, params);
            let broken_body =
                tokio_stream::once(Err::<Bytes, std::io::Error>(std::io::ErrorKind::ConnectionReset.into()));
            return Body::from_stream(broken_body).into_response();
        }
        "" if body["glueType"] == "GLUE_SHELL" => {
            end(200, format!("{} {params}", body["glueSource"].as_str().expect("a script").trim()));
        }
        handler => return json_text(&shared.refusal(log_id, &format!("job handler [{handler}] not found."))),
    }
    json_text(&shared.success_answer(&Value::Null))
}

/// Real executors label their JSON as HTML.
fn json_text(body: &Value) -> Response {
    ([(CONTENT_TYPE, "text/html;charset=UTF-8")], body.to_string()).into_response()
}
