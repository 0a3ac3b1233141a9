//! A server for tests, and helpers that send requests to it.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use rondel_admin::auth::{Token, add_admin_token};
use rondel_admin::clock::boot_micros;
use rondel_admin::{Engine, EngineConfig, Lifecycle};
use rondel_core::access::{Grant, Role};
use rondel_core::outcome::{NextStepPolicy, Outcome};
use rondel_core::{IdGen, JobId, RunId, Timestamp};
use rondel_store::access::{TokenKind, TokenRecord};
use rondel_store::ledger::{AttemptEnd, Finisher};
use rondel_store::{MemStore, Store};
use rondel_web::{WebConfig, app};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::{contract, markup};

/// The store's clock at the beginning of the tests: 15 January 2027, some minutes past 13:00 UTC.
const CLOCK_START: Timestamp = Timestamp::from_secs(1_800_018_300);

/// The store's clock. It starts at [`CLOCK_START`], however long the host has been running.
pub(crate) fn clock() -> Timestamp {
    static START_MICROS: LazyLock<i64> = LazyLock::new(boot_micros);
    let began_micros = *START_MICROS;
    CLOCK_START + Duration::from_micros(boot_micros().saturating_sub(began_micros).unsigned_abs())
}

/// An app on top of a running engine.
pub(crate) struct Server {
    pub(crate) app: Router,
    pub(crate) engine: Engine,
    pub(crate) admin: Token,
    pub(crate) executor: Token,
    /// A single generator for all ids: two generators would create the same ids within a millisecond.
    ids: IdGen,
    lifecycle: Lifecycle,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.bytes.clone()).unwrap()
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.lifecycle.soft.cancel();
        self.lifecycle.hard.cancel();
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(WebConfig::default()).await
    }

    pub(crate) async fn start_with(config: WebConfig) -> Self {
        Self::start_on(Arc::new(MemStore::new(Arc::new(clock))), config).await
    }

    pub(crate) async fn start_on(store: Arc<dyn Store>, config: WebConfig) -> Self {
        let lifecycle = Lifecycle::new();
        let engine = Engine::start(store, EngineConfig::default(), &lifecycle).await.unwrap();
        let (admin, executor) = (Token::generate(), Token::generate());
        add_admin_token(engine.store(), engine.new_id(), &admin, engine.now()).await.unwrap();
        let record = executor.record(engine.new_id(), TokenKind::Executor, engine.now());
        let record =
            TokenRecord { name: "executor".to_owned(), grants: vec![Grant::everywhere(Role::Executor)], ..record };
        engine.store().add_token(&record).await.unwrap();
        Self { app: app(engine.clone(), config), engine, admin, executor, ids: IdGen::new(1023), lifecycle }
    }

    /// A request with the admin's token.
    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let bearer = format!("Bearer {}", self.admin.reveal());
        Request::builder().method(method).uri(path).header("authorization", bearer)
    }

    /// Sends a request, and checks the answer against the OpenAPI document.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = self.app.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap().to_vec();
        let answer = Answer { status: parts.status, headers: parts.headers, bytes };
        contract::check(method.as_str(), &path, &answer);
        markup::check(&path, &answer);
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path).body(Body::empty()).unwrap()).await
    }

    /// A request without a body.
    pub(crate) async fn bare(&self, method: &str, path: &str) -> Answer {
        self.send(self.request(method, path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn with_body(&self, method: &str, path: &str, body: impl ToString) -> Answer {
        let request = self.request(method, path).header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }

    /// Creates a job that runs only when it is triggered.
    pub(crate) async fn job(&self, name: &str) -> Value {
        let body = json!({"name": name, "app": "app", "handler": "handler"});
        self.with_body("POST", "/api/v1/jobs", body).await.expect(201)
    }

    pub(crate) async fn trigger(&self, job: &str) -> RunId {
        let run = self.bare("POST", &format!("/api/v1/jobs/{job}/runs")).await.expect(201);
        run["id"].as_str().unwrap().parse().unwrap()
    }

    /// Adds every ended run to the counts.
    pub(crate) async fn count_runs(&self) {
        let before = self.engine.now() + Duration::from_secs(60);
        while self.engine.store().roll_up(before, 100).await.unwrap() > 0 {}
    }

    /// Gives a run its verdict, like an executor's result would.
    pub(crate) async fn finish(&self, run: RunId, outcome: Outcome) {
        self.end((run, 1), outcome, "<b>done</b>", false).await;
    }

    /// Fails a run with this message.
    pub(crate) async fn fail(&self, run: RunId, message: &str) {
        self.end((run, 1), Outcome::Failed { retryable: false }, message, false).await;
    }

    /// Ends an attempt of a group of a pump.
    pub(crate) async fn end_group(&self, attempt: (RunId, i32), outcome: Outcome, message: &str) {
        self.end(attempt, outcome, message, true).await;
    }

    async fn end(&self, (run, attempt): (RunId, i32), outcome: Outcome, message: &str, is_pump: bool) {
        let job: JobId = self.engine.store().runs(&[run]).await.unwrap()[0].job;
        let finish = AttemptEnd {
            run,
            job,
            attempt,
            outcome,
            policy: NextStepPolicy {
                retry_max: 0,
                backoff: Duration::ZERO,
                backoff_max: Duration::ZERO,
                at_least_once: true,
                has_fixed_delay: false,
                awaits_children: false,
                is_pump,
            },
            executor: None,
            started_at: Some(self.engine.now()),
            finished_at: self.engine.now(),
            message: (!message.is_empty()).then(|| message.to_owned()),
            result: Some("{\"n\": 1.50}".to_owned()),
            trace: Some(r#"{"route":"round","of":["<b>a"],"refused":{"z":"full"},"waited":{"turn":1200}}"#.to_owned()),
            detail: None,
            jitter: 0.0,
            owner: None,
            is_unsent: false,
            is_unfinished: false,
        };
        let finisher = Finisher { token: self.engine.token(), ids: &self.ids };
        self.engine.store().finish(finisher, &[finish]).await.unwrap();
    }
}
