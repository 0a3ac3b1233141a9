//! The console of XXL-JOB's own admin, in the forms that its versions have: 2.3 to 3.1, 3.2, and 3.3 to 3.4.

use serde_json::Value;

use super::http::{Answer, Session};
use super::job::JobChange;
use crate::BenchError;
use crate::recorder::HANDLER;

/// The group's title: the column of 2.x has twelve characters.
const TITLE: &str = "rondel bench";
const PAGE_SIZE: &str = "1000";
/// The paths for signing in: since 3.2, and before 3.2.
const SIGN_IN_PATHS: [&str; 2] = ["auth/doLogin", "login"];

/// Paths that differ between the versions.
#[derive(Debug, PartialEq, Eq)]
struct AdminPaths {
    create_group: &'static str,
    remove_group: &'static str,
    create_job: &'static str,
    remove_job: &'static str,
}

static SINCE_3_3: AdminPaths = AdminPaths {
    create_group: "jobgroup/insert",
    remove_group: "jobgroup/delete",
    create_job: "jobinfo/insert",
    remove_job: "jobinfo/delete",
};
static BEFORE_3_3: AdminPaths = AdminPaths {
    create_group: "jobgroup/save",
    remove_group: "jobgroup/remove",
    create_job: "jobinfo/add",
    remove_job: "jobinfo/remove",
};

/// An XXL-JOB admin with a signed-in user.
pub(crate) struct XxlAdmin {
    /// The URL of the admin, without a slash at its end.
    base_url: String,
    session: Session,
    paths: &'static AdminPaths,
    /// The id of the job group, once the group is created.
    group_id: Option<String>,
}

impl XxlAdmin {
    pub(crate) async fn sign_in(
        session: Session,
        base_url: &str,
        (user, password): (&str, &str),
    ) -> Result<Self, BenchError> {
        let fields = [("userName", user), ("password", password)];
        let mut unexpected_answer = None;
        for path in SIGN_IN_PATHS {
            let answer = session.post_form(&format!("{base_url}/{path}"), &fields).await?;
            let Some(envelope) = envelope(&answer) else {
                unexpected_answer = Some(answer);
                continue;
            };
            if !envelope.is_success() {
                let message = format!("--peer-user or its password: {}", answer.describe());
                return Err(BenchError::Auth { message });
            }
            if answer.cookie.is_empty() {
                return Err(BenchError::failed(format!("--peer-url: {}, without a cookie", answer.describe())));
            }
            let session = session.with_cookie(answer.cookie);
            return Ok(Self { base_url: base_url.to_owned(), session, paths: &SINCE_3_3, group_id: None });
        }
        let found_text = unexpected_answer.map(|answer| answer.describe()).unwrap_or_default();
        Err(BenchError::failed(format!("--peer-url: found neither XXL-JOB's admin nor ratch-job: {found_text}")))
    }

    pub(crate) fn name(&self) -> &'static str {
        if *self.paths == SINCE_3_3 { "XXL-JOB 3.3 or later" } else { "XXL-JOB before 3.3" }
    }

    /// Creates the group. The path that works shows which paths this version has.
    pub(crate) async fn create_app(&mut self, app: &str) -> Result<(), BenchError> {
        let fields = [("appname", app), ("title", TITLE), ("name", TITLE), ("addressType", "0"), ("addressList", "")];
        let mut unexpected_answer = None;
        for paths in [&SINCE_3_3, &BEFORE_3_3] {
            let answer = self.post(paths.create_group, &fields).await?;
            let Some(envelope) = envelope(&answer) else {
                unexpected_answer.get_or_insert(answer);
                continue;
            };
            envelope.check(&answer)?;
            self.paths = paths;
            self.group_id = self.find_group(app).await?.and_then(|row| id_of(&row["id"]));
            return match self.group_id {
                Some(_) => Ok(()),
                None => {
                    Err(BenchError::failed(format!("--peer-url: the job group {app} was created, but is not listed")))
                }
            };
        }
        Err(unexpected_answer.map_or_else(|| BenchError::failed("no answer"), |answer| answer.unexpected()))
    }

    /// Whether triggers go to all of these executors.
    pub(crate) async fn has_executors(&self, app: &str, addresses: &[String]) -> Result<bool, BenchError> {
        let group = self.group_id()?;
        // An update makes the server read the registrations immediately; otherwise it reads them every 30 seconds.
        let fields = [
            ("id", group),
            ("appname", app),
            ("title", TITLE),
            ("name", TITLE),
            ("addressType", "0"),
            ("addressList", ""),
        ];
        self.post_and_check("jobgroup/update", &fields).await?;
        let row = self.find_group(app).await?.unwrap_or_default();
        let address_list = row["addressList"].as_str().unwrap_or_default();
        Ok(addresses.iter().all(|address| address_list.split(',').any(|known_address| known_address.trim() == address)))
    }

    /// Creates a stopped job; returns its id.
    pub(crate) async fn create_job(&self, name: &str) -> Result<i64, BenchError> {
        let fields = [
            ("jobGroup", self.group_id()?),
            ("jobDesc", name),
            ("name", name),
            ("author", "rondel"),
            ("alarmEmail", ""),
            ("scheduleType", "CRON"),
            ("scheduleConf", "* * * * * ?"),
            ("misfireStrategy", "DO_NOTHING"),
            ("executorRouteStrategy", "ROUND"),
            ("executorHandler", HANDLER),
            ("executorParam", ""),
            ("executorBlockStrategy", "SERIAL_EXECUTION"),
            ("executorTimeout", "0"),
            ("executorFailRetryCount", "0"),
            ("childJobId", ""),
            ("glueType", "BEAN"),
            ("glueSource", ""),
            ("glueRemark", "rondel bench"),
        ];
        let answer = self.post(self.paths.create_job, &fields).await?;
        let envelope = envelope(&answer).ok_or_else(|| answer.unexpected())?;
        envelope.check(&answer)?;
        let id = id_of(&envelope.payload).and_then(|id| id.parse().ok());
        id.ok_or_else(|| answer.unexpected())
    }

    pub(crate) async fn change_job(&self, id: i64, change: JobChange) -> Result<(), BenchError> {
        let path = match change {
            JobChange::Start => "jobinfo/start",
            JobChange::Stop => "jobinfo/stop",
            JobChange::Remove => self.paths.remove_job,
        };
        let id = id.to_string();
        // The field is named `ids[]` since 3.3, and `id` before.
        self.post_and_check(path, &[("ids[]", id.as_str()), ("id", id.as_str())]).await
    }

    /// The first page of the group's jobs.
    pub(crate) async fn jobs(&self, app: &str) -> Result<Vec<i64>, BenchError> {
        let Some(group) = self.find_group(app).await?.and_then(|row| id_of(&row["id"])) else { return Ok(Vec::new()) };
        let fields = [
            ("start", "0"),
            ("length", PAGE_SIZE),
            ("offset", "0"),
            ("pagesize", PAGE_SIZE),
            ("jobGroup", group.as_str()),
            ("triggerStatus", "-1"),
            ("jobDesc", ""),
            ("name", ""),
            ("executorHandler", ""),
            ("author", ""),
        ];
        let answer = self.post("jobinfo/pageList", &fields).await?;
        let rows = answer.json().as_ref().and_then(rows).ok_or_else(|| answer.unexpected())?;
        Ok(rows.iter().filter_map(|row| id_of(&row["id"])?.parse().ok()).collect())
    }

    /// Removes the group; one that is not there counts as removed.
    pub(crate) async fn remove_app(&self, app: &str) -> Result<(), BenchError> {
        let Some(group) = self.find_group(app).await?.and_then(|row| id_of(&row["id"])) else { return Ok(()) };
        self.post_and_check(self.paths.remove_group, &[("ids[]", group.as_str()), ("id", group.as_str())]).await
    }

    fn group_id(&self) -> Result<&str, BenchError> {
        self.group_id.as_deref().ok_or_else(|| BenchError::failed("the job group was not created"))
    }

    async fn find_group(&self, app: &str) -> Result<Option<Value>, BenchError> {
        let fields = [
            ("start", "0"),
            ("length", "10"),
            ("offset", "0"),
            ("pagesize", "10"),
            ("appname", app),
            ("title", ""),
            ("name", ""),
        ];
        let answer = self.post("jobgroup/pageList", &fields).await?;
        let rows = answer.json().as_ref().and_then(rows).ok_or_else(|| answer.unexpected())?;
        Ok(rows.into_iter().find(|row| row["appname"] == app))
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Result<Answer, BenchError> {
        self.session.post_form(&format!("{}/{path}", self.base_url), fields).await
    }

    async fn post_and_check(&self, path: &str, fields: &[(&str, &str)]) -> Result<(), BenchError> {
        let answer = self.post(path, fields).await?;
        envelope(&answer).ok_or_else(|| answer.unexpected())?.check(&answer)
    }
}

/// XXL-JOB's answers: a code, and a payload whose name depends on the version.
#[derive(Debug, PartialEq)]
struct Envelope {
    code: i64,
    payload: Value,
}

impl Envelope {
    fn is_success(&self) -> bool {
        self.code == 200
    }

    fn check(&self, answer: &Answer) -> Result<(), BenchError> {
        if self.is_success() { Ok(()) } else { Err(answer.unexpected()) }
    }
}

fn envelope(answer: &Answer) -> Option<Envelope> {
    envelope_of(&answer.json()?)
}

/// `None` if this is no answer of XXL-JOB.
fn envelope_of(value: &Value) -> Option<Envelope> {
    let code = value.get("code")?.as_i64()?;
    let payload = ["data", "content"].into_iter().filter_map(|name| value.get(name)).find(|value| !value.is_null());
    Some(Envelope { code, payload: payload.cloned().unwrap_or_default() })
}

/// The rows of a page: since 3.3 they are in a nested object.
fn rows(page: &Value) -> Option<Vec<Value>> {
    match page.get("data")? {
        Value::Array(rows) => Some(rows.clone()),
        Value::Object(inner) => inner.values().find_map(Value::as_array).cloned(),
        _ => None,
    }
}

/// An id, which is a number or a text.
fn id_of(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => number.as_i64().map(|number| number.to_string()),
        Value::String(text) => text.parse::<i64>().ok().map(|number| number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_of_all_versions_are_read() {
        let new = envelope_of(&json!({"code": 200, "data": "7", "msg": "Success", "success": true}));
        assert_eq!(new, Some(Envelope { code: 200, payload: json!("7") }));
        let old = envelope_of(&json!({"code": 200, "msg": null, "content": "7"}));
        assert_eq!(old, Some(Envelope { code: 200, payload: json!("7") }));
        let failed = envelope_of(&json!({"code": 500, "msg": "no", "data": null})).unwrap();
        assert!(!failed.is_success());
        // An error page of the web framework, and ratch-job.
        assert_eq!(envelope_of(&json!({"status": 404, "error": "Not Found"})), None);
        assert_eq!(envelope_of(&json!({"success": false, "code": "NO_LOGIN"})), None);
    }

    #[test]
    fn pages_of_all_versions_are_read() {
        let row = json!({"id": 3, "appname": "a"});
        assert_eq!(rows(&json!({"recordsTotal": 1, "data": [row]})), Some(vec![row.clone()]));
        assert_eq!(rows(&json!({"code": 200, "data": {"total": 1, "data": [row]}})), Some(vec![row.clone()]));
        assert_eq!(rows(&json!({"code": 200, "data": {"total": 0, "data": null}})), None);
        assert_eq!(rows(&json!({"code": 500})), None);
    }

    #[test]
    fn ids_are_numbers_or_texts() {
        assert_eq!(id_of(&json!(7)).as_deref(), Some("7"));
        assert_eq!(id_of(&json!("7")).as_deref(), Some("7"));
        assert_eq!(id_of(&json!("x")), None);
        assert_eq!(id_of(&Value::Null), None);
    }
}
