//! Executors that speak XXL-JOB's protocol, many in one process, each with a port of its own. They accept a run at
//! once, and report its success in a batch of callbacks, as XXL-JOB's own executors do.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use reqwest::Client;
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

/// Executors of XXL-JOB in a process of their own. They get their token and the window on standard input, and end when
/// the input ends.
#[derive(Clone, Debug)]
pub struct XxlPlan {
    /// The servers that they register with.
    pub servers: Vec<String>,
    /// The number of executors.
    pub count: u32,
}

/// How often they register.
const REGISTER_EACH: Duration = Duration::from_secs(30);
/// How soon they retry a failed request.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// Maximum number of callbacks in one request.
const BATCH: usize = 500;
/// Maximum number of waiting callbacks of one executor.
const WAITING_MAX: usize = 100_000;
const TIMEOUT: Duration = Duration::from_secs(5);
const TOKEN_HEADER: &str = "XXL-JOB-ACCESS-TOKEN";

/// What the executors of a process share.
struct Shared {
    recorder: Recorder,
    /// The newest planned second of each job that was started.
    newest: Mutex<HashMap<i64, i64>>,
    client: Client,
    servers: Vec<String>,
    token: String,
}

/// One executor.
#[derive(Clone)]
struct Stub {
    shared: Arc<Shared>,
    ended: mpsc::Sender<RunRequest>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunRequest {
    job_id: i64,
    log_id: i64,
    log_date_time: i64,
}

/// What the executors observed.
#[derive(Debug, Serialize)]
struct Summary {
    /// Every start.
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
    let (token, stop) = (messages.token.await.map_err(|_| BenchError::void("a token comes first"))?, messages.stop);
    rustls::crypto::ring::default_provider().install_default().ok();
    let client = Client::builder().no_proxy().timeout(TIMEOUT).build();
    let shared = Arc::new(Shared {
        recorder: recorder.clone(),
        newest: Mutex::default(),
        client: client.map_err(|error| BenchError::void(error.to_string()))?,
        servers: plan.servers,
        token,
    });
    let mut tasks = JoinSet::new();
    for _ in 0..plan.count {
        start(&shared, &stop, &mut tasks).await?;
    }
    stop.cancelled().await;
    tasks.shutdown().await;
    let Observations { started, repeated, early, lateness } = recorder.seen();
    let summary = Summary { started, repeated, early, lateness: Lateness::from(&lateness) };
    serde_json::to_string(&summary).map_err(|error| BenchError::void(error.to_string()))
}

/// Starts one executor: its port, its registrations, and its callbacks.
async fn start(shared: &Arc<Shared>, stop: &CancellationToken, tasks: &mut JoinSet<()>) -> Result<(), BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(BenchError::system("listen"))?;
    let address = listener.local_addr().map_err(BenchError::system("listen"))?;
    let (ended, ends) = mpsc::channel(WAITING_MAX);
    let stub = Stub { shared: Arc::clone(shared), ended };
    let app = Router::new()
        .route("/run", post(run))
        .route("/beat", post(answer_ok))
        .route("/idleBeat", post(answer_ok))
        .route("/kill", post(answer_ok))
        .route("/log", post(log))
        .with_state(stub);
    let stopped = stop.clone().cancelled_owned();
    tasks.spawn(async move { drop(axum::serve(listener, app).with_graceful_shutdown(stopped).await) });
    tasks.spawn(register(Arc::clone(shared), format!("http://{address}/")));
    tasks.spawn(report(Arc::clone(shared), ends));
    Ok(())
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

async fn log() -> axum::Json<Value> {
    answer(json!({"content": {"fromLineNum": 1, "toLineNum": 0, "logContent": "", "isEnd": true}}))
}

/// Accepts a run, which ends at once. Its planned instant is the second in which it was sent.
async fn run(State(stub): State<Stub>, axum::Json(request): axum::Json<RunRequest>) -> axum::Json<Value> {
    let planned = request.log_date_time.div_euclid(1_000);
    let is_repeated = {
        let mut newest = stub.shared.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let before = newest.insert(request.job_id, planned);
        before.is_some_and(|before| before >= planned)
    };
    stub.shared.recorder.note_now(Timestamp::from_secs(planned), is_repeated);
    if stub.ended.send(request).await.is_err() {
        tracing::warn!("a run came after the end");
    }
    answer_ok().await
}

impl Shared {
    /// Sends a request to the first server that accepts it, and tries again until one does.
    async fn send(&self, path: &str, body: &Value) {
        loop {
            for server in &self.servers {
                let url = format!("{server}/xxl-job-admin/api/{path}");
                let sent = self.client.post(url).header(TOKEN_HEADER, &self.token).json(body).send().await;
                match sent {
                    Ok(answer) if answer.status().is_success() => return,
                    Ok(answer) => tracing::warn!(status = %answer.status(), path, "refused"),
                    Err(error) => tracing::debug!(%error, path, "not sent"),
                }
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }
}

async fn register(shared: Arc<Shared>, address: String) {
    let body = json!({"registryGroup": "EXECUTOR", "registryKey": APP, "registryValue": address});
    loop {
        shared.send("registry", &body).await;
        tokio::time::sleep(REGISTER_EACH).await;
    }
}

/// Sends one request at a time, with all runs that ended meanwhile.
async fn report(shared: Arc<Shared>, mut ends: mpsc::Receiver<RunRequest>) {
    let mut batch = Vec::new();
    while ends.recv_many(&mut batch, BATCH).await > 0 {
        let callbacks = batch.drain(..).map(
            |run| json!({"logId": run.log_id, "logDateTim": run.log_date_time, "handleCode": 200, "handleMsg": null}),
        );
        let callbacks: Vec<Value> = callbacks.collect();
        shared.send("callback", &Value::Array(callbacks)).await;
    }
}
