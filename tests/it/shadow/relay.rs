//! An HTTP relay in front of a server. It delays requests, drops responses, or sends a response of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Method, StatusCode, Uri};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// The call reaches the server late.
    Delay(Duration),
    /// The call reaches the server, and the caller gets this status.
    LoseAnswer(u16),
    /// The call does not reach the server, and the caller gets this status.
    Refuse(u16),
}

/// A rule for calls of a method whose path contains a part. It applies this many times.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) method: Method,
    pub(super) part: &'static str,
    pub(super) act: Act,
    pub(super) count: usize,
}

#[derive(Clone, Debug)]
struct Shared {
    target: String,
    http: reqwest::Client,
    rules: Arc<Mutex<Vec<Rule>>>,
}

/// The relay runs until it is dropped.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) url: String,
    shared: Shared,
    _task: JoinSet<()>,
}

impl Relay {
    pub(super) async fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Shared { target: target.to_owned(), http: reqwest::Client::new(), rules: Arc::default() };
        let app = Router::new().fallback(pass).with_state(shared.clone());
        let mut task = JoinSet::new();
        task.spawn(async move { axum::serve(listener, app).await.expect("serve") });
        Self { url, shared, _task: task }
    }

    /// Replaces the rules.
    pub(super) fn rules(&self, rules: &[Rule]) {
        *self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules.to_vec();
    }
}

async fn pass(State(shared): State<Shared>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let act = {
        let mut rules = shared.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let meant = |rule: &&mut Rule| rule.count > 0 && rule.method == method && uri.path().contains(rule.part);
        rules.iter_mut().find(meant).map(|rule| {
            rule.count -= 1;
            rule.act
        })
    };
    match act {
        Some(Act::Refuse(status)) => return plain(status),
        Some(Act::Delay(length)) => tokio::time::sleep(length).await,
        Some(Act::LoseAnswer(_)) | None => {}
    }
    let mut request = shared.http.request(method, format!("{}{uri}", shared.target)).body(body);
    for name in ["authorization", "content-type", "accept", "if-match"] {
        if let Some(value) = headers.get(name) {
            request = request.header(name, value);
        }
    }
    let Ok(answer) = request.send().await else { return plain(502) };
    let status = answer.status();
    let text = answer.bytes().await.unwrap_or_default();
    match act {
        Some(Act::LoseAnswer(status)) => plain(status),
        Some(Act::Delay(_) | Act::Refuse(_)) | None => {
            let mut response = Response::new(Body::from(text));
            *response.status_mut() = status;
            response
        }
    }
}

fn plain(status: u16) -> Response {
    let mut response = Response::new(Body::from("a relay's own answer"));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}
