//! ratch-job: its console, which has its own port, and its open API, on the port that executors call.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::http::{Answer, Session};
use super::job::JobChange;
use super::plan::PeerUrls;
use crate::BenchError;
use crate::recorder::HANDLER;

/// The namespace of executors that register without one.
const NAMESPACE: &str = "xxl";
const PAGE_SIZE: &str = "1000";
const VERSION_PATH: &str = "ratch/v1/about";
/// How an answer with the version begins.
const VERSION_START: &str = "ratch-job version:";

/// A ratch-job with a signed-in user.
pub(crate) struct RatchAdmin {
    urls: PeerUrls,
    session: Session,
    version: String,
    app: String,
}

impl RatchAdmin {
    /// The version, if the server is ratch-job.
    pub(crate) async fn version(session: &Session, urls: &PeerUrls) -> Result<Option<String>, BenchError> {
        let answer = session.get(&format!("{}/{VERSION_PATH}", urls.origin), &[]).await?;
        Ok(answer.text.strip_prefix(VERSION_START).map(|version| version.trim().to_owned()))
    }

    pub(crate) async fn sign_in(
        session: Session,
        urls: &PeerUrls,
        version: String,
        (user, password): (&str, &str),
    ) -> Result<Self, BenchError> {
        let url = api_url(urls, "login/login");
        let password = BASE64_STANDARD.encode(password);
        let fields = [("username", user), ("password", password.as_str())];
        let answer = session.post_form(&url, &fields).await.map_err(|error| match error {
            BenchError::Unreachable { url, source } => BenchError::Unreachable {
                url: format!("{url} (the console; --peer-console names another one)"),
                source,
            },
            error => error,
        })?;
        match outcome(&answer) {
            Some(Outcome::Done(_)) if !answer.cookie.is_empty() => {
                let (urls, app) = (urls.clone(), String::new());
                Ok(Self { urls, session: session.with_cookie(answer.cookie), version, app })
            }
            Some(Outcome::Failed(code)) if code == "CAPTCHA_CHECK_ERROR" => {
                let message = format!(
                    "--peer-user: the console requires a captcha: start ratch-job with RATCH_CONSOLE_ENABLE_CAPTCHA=false; {}",
                    answer.describe()
                );
                Err(BenchError::Auth { message })
            }
            Some(Outcome::Failed(_)) => {
                Err(BenchError::Auth { message: format!("--peer-user or its password: {}", answer.describe()) })
            }
            Some(Outcome::Done(_)) | None => {
                let message = format!("--peer-console: found no console of ratch-job: {}", answer.describe());
                Err(BenchError::failed(message))
            }
        }
    }

    pub(crate) fn name(&self) -> String {
        format!("ratch-job {}", self.version)
    }

    pub(crate) async fn create_app(&mut self, app: &str) -> Result<(), BenchError> {
        app.clone_into(&mut self.app);
        let body = json!({"namespace": NAMESPACE, "appName": app, "label": "rondel bench", "registerType": "AUTO"});
        self.post("app/update", &body).await.map(|_| ())
    }

    /// Whether triggers go to all of these executors.
    pub(crate) async fn has_executors(&self, app: &str, addresses: &[String]) -> Result<bool, BenchError> {
        let url = format!("{}/ratch/v1/app/instance/addrs", self.urls.origin);
        let answer = self.session.get(&url, &[("namespace", NAMESPACE), ("appName", app)]).await?;
        let known_addresses = payload_of(&answer)?;
        let known_addresses: Vec<&str> =
            known_addresses.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        Ok(addresses.iter().all(|address| known_addresses.contains(&address.as_str())))
    }

    /// Creates a stopped job; returns its id.
    pub(crate) async fn create_job(&self, name: &str) -> Result<i64, BenchError> {
        let body = json!({
            "namespace": NAMESPACE,
            "appName": self.app,
            "description": name,
            "enable": false,
            "scheduleType": "CRON",
            "cronValue": "* * * * * *",
            "runMode": "BEAN",
            "handleName": HANDLER,
            "triggerParam": "",
            "routerStrategy": "ROUND_ROBIN",
            "pastDueStrategy": "IGNORE",
            "blockingStrategy": "SERIAL_EXECUTION",
            "timeoutSecond": 0,
            "tryTimes": 0,
        });
        let job = self.post("job/create", &body).await?;
        let missing_id = || BenchError::failed(format!("--peer-console: a created job has no id: {job}"));
        job["id"].as_i64().ok_or_else(missing_id)
    }

    pub(crate) async fn change_job(&self, id: i64, change: JobChange) -> Result<(), BenchError> {
        let is_enabled = match change {
            JobChange::Start => true,
            JobChange::Stop => false,
            JobChange::Remove => return self.post("job/remove", &json!({"id": id})).await.map(|_| ()),
        };
        let body = json!({"id": id, "namespace": NAMESPACE, "appName": self.app, "enable": is_enabled});
        self.post("job/update", &body).await.map(|_| ())
    }

    /// The first page of the app's jobs.
    pub(crate) async fn jobs(&self, app: &str) -> Result<Vec<i64>, BenchError> {
        let fields = [("namespace", NAMESPACE), ("appName", app), ("pageNo", "1"), ("pageSize", PAGE_SIZE)];
        let answer = self.session.get(&api_url(&self.urls, "job/list"), &fields).await?;
        let page = payload_of(&answer)?;
        let rows = page["list"].as_array().ok_or_else(|| answer.unexpected())?;
        // If the server ignored the filter, jobs of other apps would be removed.
        let own_rows = rows.iter().filter(|row| row["appName"] == app);
        Ok(own_rows.filter_map(|row| row["id"].as_i64()).collect())
    }

    pub(crate) async fn remove_app(&self, app: &str) -> Result<(), BenchError> {
        self.post("app/remove", &json!({"namespace": NAMESPACE, "appName": app})).await.map(|_| ())
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, BenchError> {
        payload_of(&self.session.post_json(&api_url(&self.urls, path), body).await?)
    }
}

fn api_url(urls: &PeerUrls, path: &str) -> String {
    format!("{}/ratchjob/api/console/v1/{path}", urls.console)
}

/// ratch-job's answers.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// Success, with the payload.
    Done(Value),
    /// A failure, with its code.
    Failed(String),
}

fn outcome(answer: &Answer) -> Option<Outcome> {
    outcome_of(answer.json()?)
}

/// `None` if this is no answer of ratch-job.
fn outcome_of(mut value: Value) -> Option<Outcome> {
    let is_success = value.get("success")?.as_bool()?;
    if is_success {
        return Some(Outcome::Done(value["data"].take()));
    }
    Some(Outcome::Failed(value["code"].as_str().unwrap_or_default().to_owned()))
}

/// The payload of an answer; an answer that is no success is an error.
fn payload_of(answer: &Answer) -> Result<Value, BenchError> {
    match outcome(answer) {
        Some(Outcome::Done(payload)) => Ok(payload),
        Some(Outcome::Failed(_)) | None => Err(answer.unexpected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let done = outcome_of(json!({"data": {"id": 7}, "success": true, "code": null, "message": null}));
        assert_eq!(done, Some(Outcome::Done(json!({"id": 7}))));
        let failed = outcome_of(json!({"data": null, "success": false, "code": "NO_LOGIN", "message": null}));
        assert_eq!(failed, Some(Outcome::Failed("NO_LOGIN".to_owned())));
        assert_eq!(outcome_of(json!({"code": 200, "content": null})), None);
    }
}
