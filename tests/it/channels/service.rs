//! A service that records its requests, and gives the answers that a test has set.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) path: String,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: String,
}

/// The received requests, and the answers to the next ones. A request without an answer gets 200 and `{"errcode":0}`.
#[derive(Default)]
struct Recorded {
    requests: Vec<Request>,
    answers: VecDeque<(u16, String)>,
}

pub(super) struct Service {
    address: String,
    recorded: Arc<Mutex<Recorded>>,
    server: JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Service {
    pub(super) async fn start() -> Self {
        Self::start_with(true).await
    }

    /// A service that accepts connections and never answers.
    pub(super) async fn never_answering() -> Self {
        Self::start_with(false).await
    }

    async fn start_with(does_answer: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("an address").to_string();
        let recorded = Arc::new(Mutex::new(Recorded::default()));
        let shared = Arc::clone(&recorded);
        #[expect(clippy::disallowed_methods, reason = "the test ends it")]
        let server = tokio::spawn(async move {
            let mut open_streams = Vec::new();
            loop {
                let (stream, _) = listener.accept().await.expect("accept");
                if does_answer { serve(stream, &shared).await } else { open_streams.push(stream) }
            }
        });
        Self { address, recorded, server }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Adds an answer for a further request.
    pub(super) fn answer(&self, status: u16, body: &str) {
        lock(&self.recorded).answers.push_back((status, body.to_owned()));
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        lock(&self.recorded).requests.clone()
    }
}

fn lock(recorded: &Mutex<Recorded>) -> MutexGuard<'_, Recorded> {
    recorded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads one request, stores it, answers it, and closes.
async fn serve(mut stream: TcpStream, recorded: &Mutex<Recorded>) {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    let end = loop {
        let count = stream.read(&mut chunk).await.unwrap_or(0);
        if count == 0 {
            return;
        }
        bytes.extend_from_slice(&chunk[..count]);
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let request_line = lines.next().unwrap_or_default();
    let path = request_line.split(' ').nth(1).expect("a path").to_owned();
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let headers: BTreeMap<String, String> = lines.filter_map(header).collect();
    let len: usize = headers.get("content-length").map_or(0, |len| len.parse().expect("a length"));
    while bytes.len() < end + 4 + len {
        let count = stream.read(&mut chunk).await.expect("read");
        assert!(count > 0, "the body broke off");
        bytes.extend_from_slice(&chunk[..count]);
    }
    let body = String::from_utf8(bytes[end + 4..].to_vec()).expect("text");
    let (status, answer) = {
        let mut recorded = lock(recorded);
        recorded.requests.push(Request { path, headers, body });
        recorded.answers.pop_front().unwrap_or_else(|| (200, "{\"errcode\":0,\"errmsg\":\"ok\"}".to_owned()))
    };
    let len = answer.len();
    let head = format!(
        "HTTP/1.1 {status} Answer\r\nlocation: /elsewhere\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(format!("{head}{answer}").as_bytes()).await.expect("write");
    stream.shutdown().await.ok();
}

/// Signs with another library than the product uses.
fn sign(key: &[u8], message: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    BASE64_STANDARD.encode(hmac::sign(&key, message.as_bytes()))
}

impl Request {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    fn query(&self, name: &str) -> String {
        let url = reqwest::Url::parse(&format!("http://service{}", self.path)).expect("a URL");
        url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned()).expect(name)
    }

    /// Checks the signature as Standard Webhooks defines it.
    #[track_caller]
    pub(super) fn check_standard_signature(&self, secret: &str) {
        let key = BASE64_STANDARD.decode(secret.strip_prefix("whsec_").expect("the prefix")).expect("base64");
        let (id, at) = (&self.headers["webhook-id"], &self.headers["webhook-timestamp"]);
        let expected = format!("v1,{}", sign(&key, &format!("{id}.{at}.{}", self.body)));
        assert_eq!(self.headers["webhook-signature"], expected);
    }

    /// Checks the signature as `DingTalk` documents it: the query has the time in milliseconds, and its signature with
    /// the key.
    #[track_caller]
    pub(super) fn check_dingtalk_signature(&self, secret: &str) {
        let at = self.query("timestamp");
        assert_eq!((at.len(), self.query("access_token").as_str()), (13, "x"));
        assert_eq!(self.query("sign"), sign(secret.as_bytes(), &format!("{at}\n{secret}")));
    }

    /// Checks the signature as Feishu documents it: the body has the time in seconds, and the time and the key together
    /// sign an empty text.
    #[track_caller]
    pub(super) fn check_feishu_signature(&self, secret: &str) {
        let body = self.json();
        let at = body["timestamp"].as_str().expect("seconds").to_owned();
        assert_eq!(at.len(), 10);
        assert_eq!(body["sign"], sign(format!("{at}\n{secret}").as_bytes(), ""));
    }
}
