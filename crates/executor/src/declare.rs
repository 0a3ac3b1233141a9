//! Jobs declared in code: each definition is written next to its function, and registered with the server at the start.

use rondel_core::{JobSpec, shape};
use serde_json::{Map, Value, json};

use crate::error::ExecutorError;
use crate::handler::JobHandler;

/// The largest number of jobs that one executor may declare.
pub(crate) const DECLARED_COUNT_MAX: usize = 1_000;
/// The largest total size of the definitions that one executor may declare, in bytes of JSON.
pub(crate) const DECLARED_BYTES_MAX: usize = 1024 * 1024;

/// A job declared in code: its definition and its handler. [`#[rondel::job]`](macro@crate::job) makes one from a
/// function; by hand it looks like this:
///
/// ```
/// use rondel::{Declaration, Job, JobError, JobHandler, TestRun};
///
/// async fn close_invoices() -> Result<(), JobError> {
///     Ok(())
/// }
///
/// struct CloseInvoices;
///
/// impl Job for CloseInvoices {
///     fn declaration(&self) -> Declaration {
///         Declaration::new("invoices.close").cron("0 30 2 * * ?").time_zone("Europe/Berlin").retry(3)
///     }
///
///     fn handler(&self) -> JobHandler {
///         JobHandler::of(close_invoices)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert!(TestRun::of_job(&CloseInvoices).run().await.is_succeeded());
/// # }
/// ```
pub trait Job {
    /// The job's definition, which is registered with the server at the start.
    fn declaration(&self) -> Declaration;

    /// The handler that runs the job.
    fn handler(&self) -> JobHandler;
}

/// A job's definition in code. A setting that is left out has the server's default; keywords and units are those of the
/// REST API. [`Builder::build`](crate::Builder::build) reports wrong settings.
///
/// ```
/// use rondel::Declaration;
///
/// let report = Declaration::new("report.daily")
///     .cron("0 30 2 * * ?")
///     .time_zone("Asia/Shanghai")
///     .timeout("30m")
///     .retry(3)
///     .backoff("5s..5m");
/// assert_eq!(report.name(), "report.daily");
/// assert_eq!(report.document()["schedule"]["time_zone"], "Asia/Shanghai");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Declaration {
    document: Map<String, Value>,
}

impl Declaration {
    /// Starts a definition with the job's name, which is unique in the namespace. The handler has the same name, unless
    /// [`handler`](Self::handler) names another one.
    pub fn new(name: impl Into<String>) -> Self {
        let mut document = Map::new();
        document.insert("name".to_owned(), Value::String(name.into()));
        Self { document }
    }

    /// The job's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.document.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// The definition as the REST API takes it, without the app.
    #[must_use]
    pub fn document(&self) -> Value {
        Value::Object(self.document.clone())
    }

    /// Sets the handler's name, if it differs from the job's. Several jobs can share one handler.
    ///
    /// ```
    /// use rondel::{Declaration, Executor};
    ///
    /// async fn import() {}
    ///
    /// let import_of = |region: &str| {
    ///     Declaration::new(format!("import.{region}")).handler("import").params(serde_json::json!({"region": region}))
    /// };
    /// let builder = Executor::builder("shop").handler("import", import).declare(import_of("eu")).declare(import_of("us"));
    /// ```
    #[must_use]
    pub fn handler(self, name: impl Into<String>) -> Self {
        self.option("handler", name.into())
    }

    /// Free text, shown in the console.
    #[must_use]
    pub fn description(self, text: impl Into<String>) -> Self {
        self.option("description", text.into())
    }

    /// Adds a label, by which users group and find the job.
    ///
    /// ```
    /// # use rondel::Declaration;
    /// let close = Declaration::new("close").label("team", "pay").label("tier", "1");
    /// assert_eq!(close.document()["labels"], serde_json::json!({"team": "pay", "tier": "1"}));
    /// ```
    #[must_use]
    pub fn label(self, key: &str, value: impl Into<String>) -> Self {
        self.set_in("labels", key, value.into())
    }

    /// Adds labels, each as `key=value`. A text without `=` is a key without a value, which
    /// [`Builder::build`](crate::Builder::build) refuses.
    ///
    /// ```
    /// use rondel::Declaration;
    ///
    /// let close = Declaration::new("close").labels(["team=pay", "tier=1"]);
    /// assert_eq!(close.document()["labels"], serde_json::json!({"team": "pay", "tier": "1"}));
    /// ```
    #[must_use]
    pub fn labels<S: AsRef<str>>(self, labels: impl IntoIterator<Item = S>) -> Self {
        labels.into_iter().fold(self, |declaration, label| {
            let (key, value) = label.as_ref().split_once('=').unwrap_or((label.as_ref(), ""));
            declaration.label(key, value)
        })
    }

    /// The parameters that the handler gets: any JSON value.
    #[must_use]
    pub fn params(self, params: impl Into<Value>) -> Self {
        self.option("params", params)
    }

    /// The parameters that a caller may replace for one run: `"all"`, `"none"`, or a list of JSON pointers. The default
    /// is `"all"`, except for the agent's ready-made handlers and the scripts of XXL-JOB executors.
    ///
    /// ```
    /// # use rondel::Declaration;
    /// let import = Declaration::new("import").params(serde_json::json!({"region": "eu", "day": null})).overrides(["/day"]);
    /// ```
    #[must_use]
    pub fn overrides(self, overrides: impl Into<Value>) -> Self {
        self.option("overrides", overrides)
    }

    /// Fires by a cron expression, with or without seconds, or by a keyword such as `@daily`.
    #[must_use]
    pub fn cron(self, expression: impl Into<String>) -> Self {
        self.set_in("schedule", "cron", expression.into())
    }

    /// The zone of the cron expression; UTC by default.
    #[must_use]
    pub fn time_zone(self, zone: impl Into<String>) -> Self {
        self.set_in("schedule", "time_zone", zone.into())
    }

    /// Fires at a fixed rate: `"30s"`.
    #[must_use]
    pub fn every(self, period: impl Into<String>) -> Self {
        self.set_in("schedule", "every", period.into())
    }

    /// Fires this long after the end of the previous run: `"5m"`.
    #[must_use]
    pub fn delay(self, duration: impl Into<String>) -> Self {
        self.set_in("schedule", "delay", duration.into())
    }

    /// Fires once, at this instant: `"2027-01-01T00:00:00Z"`.
    #[must_use]
    pub fn at(self, instant: impl Into<String>) -> Self {
        self.set_in("schedule", "at", instant.into())
    }

    /// Fires when the runs of all these jobs for the same fire have ended as [`on`](Self::on) requires.
    #[must_use]
    pub fn after<S: Into<String>>(self, parents: impl IntoIterator<Item = S>) -> Self {
        let parents: Vec<String> = parents.into_iter().map(Into::into).collect();
        self.set_in("schedule", "after", parents)
    }

    /// How the jobs of [`after`](Self::after) must have ended: `success`, `failure` or `either`.
    #[must_use]
    pub fn on(self, condition: impl Into<String>) -> Self {
        self.set_in("schedule", "on", condition.into())
    }

    /// The maximum number of attempts beyond the first.
    #[must_use]
    pub fn retry(self, count_max: u32) -> Self {
        self.set_in("retry", "max", count_max)
    }

    /// The wait before the second attempt, doubled before each further one: `"10s"`, or `"10s..5m"` with a cap.
    #[must_use]
    pub fn backoff(self, delay: impl Into<String>) -> Self {
        self.set_in("retry", "backoff", delay.into())
    }

    /// How long one attempt may take: `"30m"`.
    #[must_use]
    pub fn timeout(self, duration: impl Into<String>) -> Self {
        self.option("timeout", duration.into())
    }

    /// What happens to missed fires: `skip`, `once` or `all`.
    #[must_use]
    pub fn misfire(self, policy: impl Into<String>) -> Self {
        self.set_in("misfire", "policy", policy.into())
    }

    /// What happens when a run is due before an earlier one has ended: `serial`, `discard`, `cover` or `allow`.
    #[must_use]
    pub fn overlap(self, policy: impl Into<String>) -> Self {
        self.set_in("overlap", "policy", policy.into())
    }

    /// What an executor does with a run while no server answers: `continue` or `stop`.
    #[must_use]
    pub fn on_silence(self, action: impl Into<String>) -> Self {
        self.option("on_silence", action.into())
    }

    /// Which executor gets a run: `round`, `broadcast`, …
    #[must_use]
    pub fn route(self, route: impl Into<String>) -> Self {
        self.option("route", route.into())
    }

    /// The order among waiting runs: 0 (last) to 9 (first).
    #[must_use]
    pub fn priority(self, priority: u8) -> Self {
        self.option("priority", priority)
    }

    /// Reports an incident if no run has succeeded by this time of day: `"06:00"`, in the zone of the cron expression.
    ///
    /// ```
    /// use rondel::Declaration;
    ///
    /// let close = Declaration::new("close").success_by("06:00").success_by_zone("Europe/Berlin").late("5m");
    /// assert_eq!(close.document()["expect"]["success_by"]["time"], "06:00");
    /// ```
    #[must_use]
    pub fn success_by(self, time: impl Into<String>) -> Self {
        self.set_success_by("time", time.into())
    }

    /// The zone of [`success_by`](Self::success_by).
    #[must_use]
    pub fn success_by_zone(self, zone: impl Into<String>) -> Self {
        self.set_success_by("zone", zone.into())
    }

    fn set_success_by(self, field: &str, value: String) -> Self {
        let mut success_by = self.document.get("expect").and_then(|expect| expect.get("success_by")).cloned();
        let success_by = success_by.get_or_insert_with(|| json!({}));
        success_by[field] = Value::from(value);
        let success_by = success_by.take();
        self.set_in("expect", "success_by", success_by)
    }

    /// Reports an incident if no run has succeeded for this long: `"26h"`.
    #[must_use]
    pub fn no_success_for(self, duration: impl Into<String>) -> Self {
        self.set_in("expect", "no_success_for", duration.into())
    }

    /// Reports an incident if a run takes longer than this. The run continues.
    #[must_use]
    pub fn longer_than(self, duration: impl Into<String>) -> Self {
        self.set_in("expect", "longer_than", duration.into())
    }

    /// Reports an incident if a run has not started this long after its planned instant.
    #[must_use]
    pub fn late(self, duration: impl Into<String>) -> Self {
        self.set_in("expect", "late", duration.into())
    }

    /// The names of the channels that receive the incidents of this job's expectations; by default only the channel
    /// `default` of the namespace.
    #[must_use]
    pub fn expect_channels<S: Into<String>>(self, channels: impl IntoIterator<Item = S>) -> Self {
        let channels: Vec<String> = channels.into_iter().map(Into::into).collect();
        self.set_in("expect", "channels", channels)
    }

    /// Whether the job's schedule fires.
    #[must_use]
    pub fn enabled(self, enabled: bool) -> Self {
        self.option("enabled", enabled)
    }

    /// Sets any field of the definition by its name, for fields without a method here.
    ///
    /// ```
    /// # use rondel::Declaration;
    /// let gpu = Declaration::new("train").option("select", serde_json::json!({"labels": ["gpu"]}));
    /// ```
    #[must_use]
    pub fn option(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.document.insert(field.into(), value.into());
        self
    }

    fn set_in(mut self, object: &str, field: &str, value: impl Into<Value>) -> Self {
        let object_value = self.document.entry(object).or_insert_with(|| json!({}));
        if let Value::Object(fields) = object_value {
            fields.insert(field.to_owned(), value.into());
        } else {
            // The program has set a list of schedules by `option`. The field that is set now replaces the list.
            *object_value = json!({ field: value.into() });
        }
        self
    }

    pub(crate) fn handler_name(&self) -> &str {
        self.document.get("handler").and_then(Value::as_str).unwrap_or_else(|| self.name())
    }

    /// Checks the definition as the server will, and returns the JSON to send. The error names the first fault.
    pub(crate) fn into_spec_json(mut self, app: &str) -> Result<String, ExecutorError> {
        let job = self.name().to_owned();
        let handler = self.handler_name().to_owned();
        self.document.insert("app".to_owned(), json!(app));
        self.document.insert("handler".to_owned(), json!(handler));
        let document = Value::Object(self.document);
        let declaration_error =
            |pointer: String, message: String| ExecutorError::Declaration { job: job.clone(), pointer, message };
        let spec: JobSpec = shape::read(document.clone().into()).map_err(|shape_errors| {
            let first_error = shape_errors.errors.into_iter().next().map(|error| (error.pointer, error.message));
            let (pointer, message) = first_error.unwrap_or_default();
            declaration_error(pointer, message)
        })?;
        match spec.compile() {
            Ok(_) => Ok(document.to_string()),
            Err(errors) => {
                let first_error = errors.into_iter().next().map(|error| (error.pointer, error.message));
                let (pointer, message) = first_error.unwrap_or_default();
                Err(declaration_error(pointer, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_a_declaration_name_their_place() {
        let job = || Declaration::new("a");
        for (declaration, pointer, part) in [
            (Declaration::new("A"), "/name", "\"A\""),
            (job().cron("99 * * * * ?"), "/schedule/cron", "99"),
            (job().cron("0 0 * * * ?").time_zone("Mars"), "/schedule/time_zone", "Mars"),
            (job().every("1s").at("2027-01-01T00:00:00Z"), "/schedule", "exactly one"),
            (job().after(["b"]).on("perhaps"), "/schedule/on", "perhaps"),
            (job().timeout("soon"), "/timeout", "\"soon\""),
            (job().option("colour", "red"), "/colour", "colour"),
            (job().handler("a b"), "/handler", "\"a b\""),
            (job().overrides(["day"]), "/overrides/0", "\"day\""),
            (job().success_by("6"), "/expect/success_by/time", "HH:MM"),
            (job().late("soon"), "/expect/late", "\"soon\""),
        ] {
            match declaration.into_spec_json("app") {
                Err(ExecutorError::Declaration { pointer: at, message, .. }) => {
                    assert_eq!(at, pointer);
                    assert!(message.contains(part), "{message}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn only_options_that_were_set_are_sent() {
        let json = Declaration::new("a").after(["b"]).into_spec_json("app").unwrap();
        let wanted = json!({"name": "a", "app": "app", "handler": "a", "schedule": {"after": ["b"]}});
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), wanted);
    }
}
