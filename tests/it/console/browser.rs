//! A real browser, driven over the `DevTools` protocol through two pipes: no port, no further crate.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rondel_tests::{Process, variable, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{OpenOptions, Receiver, Sender};

/// How long the browser may take for one step.
const LIMIT: Duration = Duration::from_secs(30);

/// A script for every page: it reports violations of the content security policy on the console of the browser.
const CSP_WATCH_SCRIPT: &str = "addEventListener('securitypolicyviolation', \
    event => console.error('CSP', event.violatedDirective, event.blockedURI, event.sourceFile, event.lineNumber))";

/// A browser with one page.
pub(super) struct Browser {
    process: Process,
    commands: Sender,
    answers: Receiver,
    /// Bytes that were read, and are not a whole message yet.
    unread: Vec<u8>,
    session: Option<String>,
    last_id: u64,
    errors: Vec<String>,
    _folder: TempDir,
}

/// The browser's program, if one is installed. The headless shell is the first choice, because it takes half of the
/// time.
pub(super) fn program() -> Option<PathBuf> {
    let names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH")?;
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file())
}

impl Browser {
    /// Starts a browser with one page and an empty profile.
    pub(super) async fn start(program: &Path) -> Self {
        let folder = tempfile::Builder::new().prefix("rondel-browser-").tempdir().expect("make a folder");
        let [commands, answers] = ["commands", "answers"].map(|name| folder.path().join(name));
        let status = Command::new("mkfifo").args([&commands, &answers]).status().expect("run mkfifo");
        assert!(status.success(), "mkfifo: {status}");
        // Opened for reading and writing: opening a pipe for only one of them would wait for the other side.
        let sender = OpenOptions::new().read_write(true).open_sender(&commands).expect("open a pipe");
        let receiver = OpenOptions::new().read_write(true).open_receiver(&answers).expect("open a pipe");
        let mut command = Command::new("sh");
        command
            .args(["-c", "commands=$1 answers=$2; shift 2; exec \"$@\" 3<\"$commands\" 4>\"$answers\"", "sh"])
            .args([&commands, &answers])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe", "--lang=en-US"])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .env("HOME", folder.path());
        let process = Process::start("the browser", command);
        let mut browser = Self {
            process,
            commands: sender,
            answers: receiver,
            unread: Vec::new(),
            session: None,
            last_id: 0,
            errors: Vec::new(),
            _folder: folder,
        };
        browser.open_page().await;
        browser
    }

    async fn open_page(&mut self) {
        let target = self.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attachment = self.call("Target.attachToTarget", attach).await;
        self.session = Some(attachment["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({})).await;
        }
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": CSP_WATCH_SCRIPT})).await;
        self.size(1440, 900).await;
    }

    /// Sets the size of the page.
    pub(super) async fn size(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Sets the time zone of the browser, and the console's cookie with it, so that the first page of the console uses
    /// that zone too.
    pub(super) async fn set_time_zone(&mut self, url: &str, zone: &str) {
        self.call("Emulation.setTimezoneOverride", json!({ "timezoneId": zone })).await;
        self.call("Network.setCookie", json!({"name": "rondel_zone", "value": zone, "url": url})).await;
    }

    /// Calls a method and returns its result.
    pub(super) async fn call(&mut self, method: &str, params: Value) -> Value {
        let mut answer = self.answer(method, &params).await;
        assert!(answer["error"].is_null(), "{method} {params}: {}", answer["error"]);
        answer["result"].take()
    }

    /// Calls a method and returns the answer, which may be a refusal.
    async fn answer(&mut self, method: &str, params: &Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = Value::from(session.as_str());
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let answer_result = tokio::time::timeout(LIMIT, async {
            self.commands.write_all(&bytes).await.expect("write to the browser");
            loop {
                let message = self.message().await;
                if message["id"] == id {
                    return message;
                }
                self.notice(&message);
            }
        })
        .await;
        assert!(answer_result.is_ok(), "{method}: no answer within {LIMIT:?}; {}", self.process.last_words());
        answer_result.unwrap_or_default()
    }

    /// The next message; each ends with a zero byte.
    async fn message(&mut self) -> Value {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == 0) {
                let message: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&message[..end]).expect("the browser speaks JSON");
            }
            self.answers.read_buf(&mut self.unread).await.expect("read from the browser");
        }
    }

    /// Stores an event that is an error or a warning.
    fn notice(&mut self, event: &Value) {
        let params = &event["params"];
        let is_bad = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => matches!(params["type"].as_str(), Some("error" | "warning" | "assert")),
            Some("Log.entryAdded") => matches!(params["entry"]["level"].as_str(), Some("error" | "warning")),
            _ => false,
        };
        if is_bad {
            self.errors.push(params.to_string());
        }
    }

    /// The errors and warnings of the page and the browser since the last call.
    pub(super) async fn errors(&mut self) -> Vec<String> {
        // Once this answer has arrived, all earlier messages have been read.
        self.eval("1").await;
        std::mem::take(&mut self.errors)
    }

    /// The value of an expression in the page.
    pub(super) async fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    /// Goes to an address and waits until the page is loaded.
    pub(super) async fn goto(&mut self, url: &str) {
        let navigation = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(navigation["errorText"].is_null(), "{url}: {navigation}");
        self.until("the page is loaded", "document.readyState === 'complete' && location.href !== 'about:blank'").await;
    }

    /// Waits until an expression is true, in the current page or in one that follows.
    pub(super) async fn until(&mut self, what: &str, expression: &str) {
        // During a navigation there may be no page that can answer.
        let params = json!({"expression": format!("Boolean({expression})"), "returnByValue": true});
        wait_until(LIMIT, what, async || {
            let answer = self.answer("Runtime.evaluate", &params).await;
            if answer["result"]["result"]["value"] == true { Ok(()) } else { Err(answer) }
        })
        .await;
    }

    /// Waits for an element that matches a selector, and clicks on it.
    pub(super) async fn click(&mut self, selector: &str) {
        self.until(&format!("there is {selector}"), &format!("document.querySelector({})", quoted(selector))).await;
        self.eval(&format!("document.querySelector({}).click()", quoted(selector))).await;
    }

    /// Clicks on an element that leads to another page, and waits for that page.
    pub(super) async fn follow(&mut self, selector: &str) {
        self.eval("window.isOld = true").await;
        self.click(selector).await;
        self.until(&format!("{selector} leads on"), "!window.isOld && document.readyState === 'complete'").await;
    }

    /// Types into a field.
    pub(super) async fn fill(&mut self, selector: &str, text: &str) {
        let (field, text) = (quoted(selector), quoted(text));
        let script = format!(
            "(field => {{ field.value = {text}; \
             ['input', 'change'].forEach(kind => field.dispatchEvent(new Event(kind, {{bubbles: true}}))); }})\
             (document.querySelector({field}))"
        );
        self.eval(&script).await;
    }

    /// Writes a picture of the visible part of the page. This takes long, so it is only for developers who keep the
    /// folders of tests.
    pub(super) async fn take_screenshot(&mut self, path: &Path) {
        if variable("RONDEL_TEST_KEEP").is_some() {
            self.take_screenshot_of_window(path).await;
        }
    }

    /// Writes a picture of the visible part of the page.
    pub(super) async fn take_screenshot_of_window(&mut self, path: &Path) {
        self.picture(path, json!({"format": "png"})).await;
    }

    /// Writes a picture of the page from its top, at most this many pixels high.
    pub(super) async fn take_screenshot_of_page(&mut self, path: &Path, height_max: u32) {
        let size = "[innerWidth, document.documentElement.scrollHeight]";
        let size = self.eval(size).await;
        let height = size[1].as_u64().unwrap_or_default().min(u64::from(height_max));
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": height, "scale": 1});
        self.picture(path, json!({"format": "png", "captureBeyondViewport": true, "clip": clip})).await;
    }

    async fn picture(&mut self, path: &Path, params: Value) {
        let screenshot = self.call("Page.captureScreenshot", params).await;
        let bytes = STANDARD.decode(screenshot["data"].as_str().expect("a picture")).expect("base64");
        std::fs::write(path, bytes).expect("write a picture");
    }
}

/// A text as JavaScript writes it.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
