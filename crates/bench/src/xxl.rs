//! Executors that speak XXL-JOB's protocol, many in one process, each with its own port. They accept a run
//! immediately, and report its success in a batch of callbacks, as XXL-JOB's own executors do.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use reqwest::{Client, StatusCode};
use rondel_core::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::BenchError;
use crate::fleet::InputMessages;
use crate::load::APP;
use crate::recorder::{Observations, Recorder};
use crate::report::Lateness;

/// Executors of XXL-JOB in a separate process. They get their token and the window on standard input, and end when the
/// input ends.
#[derive(Clone, Debug)]
pub struct XxlPlan {
    /// The servers that they register with.
    pub servers: Vec<String>,
    /// The number of executors.
    pub count: u32,
}

/// How often they register.
const REGISTER_PERIOD: Duration = Duration::from_secs(30);
/// How soon they retry a failed request.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum number of callbacks in one request. ratch-job answers a request only after up to half a second, and an executor sends one at a
/// time: with small batches, the executors would limit the measured rate.
const BATCH_MAX: usize = 5_000;
/// Maximum number of waiting callbacks of one executor.
const WAITING_MAX: usize = 100_000;
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The header with the token that servers and executors of XXL-JOB share.
pub(crate) const TOKEN_HEADER: &str = "XXL-JOB-ACCESS-TOKEN";

/// The servers that executors call, and the app that they belong to.
#[derive(Clone)]
pub(crate) struct Target {
    /// The URLs below which `api/registry` and `api/callback` lie.
    pub(crate) base_urls: Vec<String>,
    pub(crate) app: String,
    pub(crate) token: String,
}

type OnStart = Box<dyn Fn(RunRequest) + Send + Sync>;

/// What the executors of a process share.
struct Shared {
    target: Target,
    client: Client,
    on_start: OnStart,
    /// Results that a server accepted.
    acknowledged_count: AtomicU64,
}

/// One executor.
#[derive(Clone)]
struct StubExecutor {
    shared: Arc<Shared>,
    /// Receives the runs that have ended and must be reported.
    end_sender: mpsc::Sender<RunRequest>,
}

/// A request to start a run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunRequest {
    pub(crate) job_id: i64,
    pub(crate) log_id: i64,
    /// When the server created the run, in milliseconds since 1970.
    pub(crate) log_date_time: i64,
}

impl RunRequest {
    /// The planned second. Executors do not learn it, so this is the second in which the server created the run.
    pub(crate) fn second(self) -> i64 {
        self.log_date_time.div_euclid(1_000)
    }
}

/// What the executors observed.
#[derive(Debug, Serialize)]
struct Summary {
    /// All starts of jobs, inside and outside of the window.
    started: u64,
    /// Starts of a job that had already started for the same second or a later one.
    repeated: u64,
    /// Starts before the planned second.
    early: u64,
    /// Lateness of the starts that were planned in the window.
    lateness: Lateness,
}

/// Runs executors until standard input ends. Returns what they observed, as a line.
///
/// # Errors
/// If an executor cannot start, or if standard input does not begin with the bench's token.
pub async fn run_xxl_executors(plan: XxlPlan) -> Result<String, BenchError> {
    let recorder = Recorder::default();
    let messages = InputMessages::listen(&recorder)?;
    let (token, stop) = (
        messages.token_receiver.await.map_err(|_| BenchError::failed("the first message must be a token"))?,
        messages.stop,
    );
    let base_urls = plan.servers.into_iter().map(|server| format!("{server}/xxl-job-admin")).collect();
    let target = Target { base_urls, app: APP.to_owned(), token };
    let (start_recorder, newest_seconds) = (recorder.clone(), Mutex::new(HashMap::new()));
    let mut executors =
        XxlExecutors::start(target, plan.count, move |run| note_start(&start_recorder, &newest_seconds, run)).await?;
    stop.cancelled().await;
    executors.end().await;
    let Observations { started, repeated, early, lateness } = recorder.observations();
    let summary = Summary { started, repeated, early, lateness: Lateness::from(&lateness) };
    serde_json::to_string(&summary).map_err(|error| BenchError::failed(error.to_string()))
}

/// Records a start; `newest_seconds` has the newest planned second of each job that was started.
fn note_start(recorder: &Recorder, newest_seconds: &Mutex<HashMap<i64, i64>>, run: RunRequest) {
    let is_repeated = {
        let mut newest_seconds = newest_seconds.lock().unwrap_or_else(PoisonError::into_inner);
        let previous_second = newest_seconds.insert(run.job_id, run.second());
        previous_second.is_some_and(|previous_second| previous_second >= run.second())
    };
    recorder.note_now(Timestamp::from_secs(run.second()), is_repeated);
}

/// The running executors of a process.
pub(crate) struct XxlExecutors {
    shared: Arc<Shared>,
    addresses: Vec<String>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl XxlExecutors {
    /// Starts `count` executors. Each run first calls `on_start`.
    pub(crate) async fn start(
        target: Target,
        count: u32,
        on_start: impl Fn(RunRequest) + Send + Sync + 'static,
    ) -> Result<Self, BenchError> {
        rustls::crypto::ring::default_provider().install_default().ok();
        let client = Client::builder().no_proxy().timeout(TIMEOUT).build();
        let client = client.map_err(|error| BenchError::failed(error.to_string()))?;
        let shared = Shared { target, client, on_start: Box::new(on_start), acknowledged_count: AtomicU64::new(0) };
        let (stop, tasks) = (CancellationToken::new(), JoinSet::new());
        let mut executors = Self { shared: Arc::new(shared), addresses: Vec::new(), stop, tasks };
        for _ in 0..count {
            let address = start_executor(&executors.shared, &executors.stop, &mut executors.tasks).await?;
            executors.addresses.push(address);
        }
        Ok(executors)
    }

    /// The addresses that they register.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// How many results a server has accepted so far.
    pub(crate) fn acknowledged_count(&self) -> u64 {
        self.shared.acknowledged_count.load(Ordering::Relaxed)
    }

    /// Ends the executors immediately. Their registrations are left to expire.
    pub(crate) async fn end(&mut self) {
        self.stop.cancel();
        self.tasks.shutdown().await;
    }
}

/// Starts one executor: its port, its registrations, and its callbacks. Returns its address.
async fn start_executor(
    shared: &Arc<Shared>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Result<String, BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(BenchError::system("listen"))?;
    let address = listener.local_addr().map_err(BenchError::system("listen"))?;
    let address = format!("http://{address}/");
    let (end_sender, ends) = mpsc::channel(WAITING_MAX);
    let stub = StubExecutor { shared: Arc::clone(shared), end_sender };
    let app = Router::new()
        .route("/run", post(run))
        .route("/beat", post(answer_ok))
        .route("/idleBeat", post(answer_ok))
        .route("/kill", post(answer_ok))
        .route("/log", post(answer_log))
        .with_state(stub);
    let stop_requested = stop.clone().cancelled_owned();
    tasks.spawn(async move { drop(axum::serve(listener, app).with_graceful_shutdown(stop_requested).await) });
    tasks.spawn(register(Arc::clone(shared), address.clone()));
    tasks.spawn(report_ends(Arc::clone(shared), ends));
    Ok(address)
}

fn answer(fields: Value) -> axum::Json<Value> {
    let mut answer = json!({"code": 200, "msg": null});
    if let Value::Object(fields) = fields {
        fields.into_iter().for_each(|(name, value)| answer[name] = value);
    }
    axum::Json(answer)
}

async fn answer_ok() -> axum::Json<Value> {
    answer(Value::Null)
}

async fn answer_log() -> axum::Json<Value> {
    answer(json!({"content": {"fromLineNum": 1, "toLineNum": 0, "logContent": "", "isEnd": true}}))
}

/// Accepts a run, which ends immediately.
async fn run(State(stub): State<StubExecutor>, axum::Json(request): axum::Json<RunRequest>) -> axum::Json<Value> {
    (stub.shared.on_start)(request);
    if stub.end_sender.send(request).await.is_err() {
        tracing::warn!("a run arrived after the end");
    }
    answer_ok().await
}

impl Shared {
    /// Sends a request to one server after the other, until one answers with a status of success. Returns whether the body of that
    /// answer has the code of success, too.
    async fn send(&self, path: &str, body: &Value) -> bool {
        loop {
            for base_url in &self.target.base_urls {
                match self.post(base_url, path, body).await {
                    Ok((status, answer)) if status.is_success() => {
                        let is_accepted = is_accepted(&answer);
                        if !is_accepted {
                            tracing::debug!(answer, path, "refused");
                        }
                        return is_accepted;
                    }
                    Ok((status, _)) => tracing::warn!(%status, path, "refused"),
                    Err(error) => tracing::debug!(%error, path, "not sent"),
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    async fn post(&self, base_url: &str, path: &str, body: &Value) -> reqwest::Result<(StatusCode, String)> {
        let request = self.client.post(format!("{base_url}/api/{path}")).header(TOKEN_HEADER, &self.target.token);
        let answer = request.json(body).send().await?;
        Ok((answer.status(), answer.text().await?))
    }
}

/// Whether the body of a server's answer has the code of success.
fn is_accepted(answer: &str) -> bool {
    serde_json::from_str::<Value>(answer).is_ok_and(|answer| answer["code"] == 200)
}

/// The body of the requests that register an executor and that end its registration.
pub(crate) fn registration(app: &str, address: &str) -> Value {
    json!({"registryGroup": "EXECUTOR", "registryKey": app, "registryValue": address})
}

async fn register(shared: Arc<Shared>, address: String) {
    let body = registration(&shared.target.app, &address);
    loop {
        shared.send("registry", &body).await;
        tokio::time::sleep(REGISTER_PERIOD).await;
    }
}

/// Sends one request at a time, with all runs that ended meanwhile.
async fn report_ends(shared: Arc<Shared>, mut ends: mpsc::Receiver<RunRequest>) {
    let mut batch = Vec::new();
    while ends.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let count = batch.len() as u64;
        let callbacks = batch.drain(..).map(
            |run| json!({"logId": run.log_id, "logDateTim": run.log_date_time, "handleCode": 200, "handleMsg": null}),
        );
        let callbacks: Vec<Value> = callbacks.collect();
        if shared.send("callback", &Value::Array(callbacks)).await {
            shared.acknowledged_count.fetch_add(count, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_code_of_success_is_an_acknowledgement() {
        assert!(is_accepted(r#"{"code":200,"msg":null}"#));
        assert!(!is_accepted(r#"{"code":500,"msg":"The access token is wrong."}"#));
        assert!(!is_accepted("<html>"));
        assert!(!is_accepted("[]"));
    }

    #[tokio::test]
    async fn results_that_wait_are_reported_together() {
        rustls::crypto::ring::default_provider().install_default().ok();
        let counts: Arc<Mutex<Vec<usize>>> = Arc::default();
        let handler_counts = Arc::clone(&counts);
        let handle_callback = move |axum::Json(callbacks): axum::Json<Vec<Value>>| {
            handler_counts.lock().unwrap().push(callbacks.len());
            answer_ok()
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let base_urls = vec![format!("http://{}", listener.local_addr().unwrap())];
        let app = Router::new().route("/api/callback", post(handle_callback));
        let mut server = JoinSet::new();
        server.spawn(async move { drop(axum::serve(listener, app).await) });
        let target = Target { base_urls, app: "demo".to_owned(), token: "token".to_owned() };
        let client = Client::builder().no_proxy().build().unwrap();
        let shared = Shared { target, client, on_start: Box::new(|_| ()), acknowledged_count: AtomicU64::new(0) };
        let (shared, (end_sender, ends)) = (Arc::new(shared), mpsc::channel(WAITING_MAX));
        for log_id in 0..3_000 {
            end_sender.try_send(RunRequest { job_id: 1, log_id, log_date_time: 0 }).unwrap();
        }
        drop(end_sender);
        report_ends(Arc::clone(&shared), ends).await;
        assert_eq!(*counts.lock().unwrap(), [3_000_usize]);
        assert_eq!(shared.acknowledged_count.load(Ordering::Relaxed), 3_000);
    }

    #[test]
    fn the_planned_second_is_that_of_the_run() {
        let run = RunRequest { job_id: 1, log_id: 2, log_date_time: 1_795_277_978_308 };
        assert_eq!(run.second(), 1_795_277_978);
    }
}
