//! A minimal REST client: a path, a JSON body, and the answer.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, Method, Request, RequestBuilder, Url};
use serde_json::{Value, json};

use crate::instants::wall_clock_ms;

/// Shorter than the time after which servers close an idle connection: a call that is sent at that moment would fail.
const IDLE_FOR: Duration = Duration::from_secs(5);

/// The answer of a server.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body: JSON; a string if it is not; null if there is none.
    pub body: Value,
    request: String,
}

impl Answer {
    /// The body, if the status is this one.
    ///
    /// If the status is another one, the test fails, and the message shows the answer.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{} answered {:#}", self.request, self.body);
        self.body
    }
}

/// The API of a server, for one client with one token.
#[derive(Debug, Clone)]
pub struct Api {
    base: String,
    token: Option<String>,
    client: Client,
    /// The file in which calls are recorded for the checker.
    history: Option<Arc<PathBuf>>,
}

impl Api {
    /// The API at `base` (`http://host:port`) for the owner of `token`.
    pub fn new(base: &str, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..Self::anonymous(base) }
    }

    /// The API at `base` for a caller without a token.
    pub fn anonymous(base: &str) -> Self {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            // Fails if another part of the process has installed a provider, which is just as good.
            rustls::crypto::ring::default_provider().install_default().ok();
        });
        let client = Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(30))
            .pool_idle_timeout(IDLE_FOR)
            .build()
            .expect("make a client");
        Self { base: base.to_owned(), token: None, client, history: None }
    }

    /// The same API, with a record for the checker: every call that changes something is written with its answer into
    /// `history.json-lines` of a journal's folder. So are the runs that are read.
    #[must_use]
    pub fn recording(self, journal: &Path) -> Self {
        Self { history: Some(Arc::new(journal.join("history.json-lines"))), ..self }
    }

    /// Sends a GET.
    pub async fn get(&self, path: &str) -> Answer {
        self.answer(self.request(Method::GET, path)).await
    }

    /// Sends a POST with a JSON body.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.answer(self.request(Method::POST, path).json(&body)).await
    }

    /// Sends a PUT with a JSON body.
    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.answer(self.request(Method::PUT, path).json(&body)).await
    }

    /// Sends a PATCH with a JSON body.
    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.answer(self.request(Method::PATCH, path).json(&body)).await
    }

    /// Sends a DELETE.
    pub async fn delete(&self, path: &str) -> Answer {
        self.answer(self.request(Method::DELETE, path)).await
    }

    /// Every run of a job, from all pages.
    ///
    /// # Panics
    /// When a page is not answered by 200 with `items`.
    pub async fn runs(&self, job: &str) -> Vec<Value> {
        self.all("/api/v1/runs", &[("job", job)]).await
    }

    /// Every item of a list, from all pages.
    ///
    /// # Panics
    /// When a page is not answered by 200 with `items`.
    pub async fn all(&self, path: &str, filters: &[(&str, &str)]) -> Vec<Value> {
        let mut items = Vec::new();
        let mut cursor = None::<String>;
        loop {
            let mut url = Url::parse(&self.base).expect("the base is a URL");
            url.set_path(path);
            url.query_pairs_mut().append_pair("limit", "200").extend_pairs(filters);
            if let Some(cursor) = &cursor {
                url.query_pairs_mut().append_pair("cursor", cursor);
            }
            let page = self.get(&format!("{}?{}", url.path(), url.query().unwrap_or_default())).await.expect(200);
            items.extend_from_slice(page["items"].as_array().expect("a page has items"));
            match &page["next_cursor"] {
                Value::String(next) => cursor = Some(next.clone()),
                _ => return items,
            }
        }
    }

    /// A request with this client's token, for what the methods above do not cover (a header, another body).
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn answer(&self, request: RequestBuilder) -> Answer {
        self.try_answer(request).await.unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Sends a request to a server that may be down; the error describes what happened.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn try_answer(&self, request: RequestBuilder) -> Result<Answer, String> {
        let (client, request) = request.build_split();
        let request = request.expect("build a request");
        let (method, url) = (request.method().clone(), request.url().clone());
        let name = format!("{method} {url}");
        let sent = request.body().and_then(|body| serde_json::from_slice::<Value>(body.as_bytes()?).ok());
        let sent_ms = wall_clock_ms();
        let answered = exchange(&client, request, &name).await;
        if let Some(path) = &self.history {
            let line = json!({
                "sent_ms": sent_ms, "done_ms": wall_clock_ms(), "method": method.as_str(), "path": url.path(), "body": sent,
                "status": answered.as_ref().ok().map(|answer| answer.status),
                "answer": answered.as_ref().ok().map(|answer| &answer.body),
            });
            let mut file = File::options().create(true).append(true).open(path.as_path()).expect("open the history");
            file.write_all(format!("{line}\n").as_bytes()).expect("write the history");
        }
        answered
    }
}

async fn exchange(client: &Client, request: Request, name: &str) -> Result<Answer, String> {
    let response = client.execute(request).await.map_err(|error| format!("{name}: {error:?}"))?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.map_err(|error| format!("{name}: {error:?}"))?;
    let body = match text.as_str() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())),
    };
    Ok(Answer { status, headers, body, request: name.to_owned() })
}
