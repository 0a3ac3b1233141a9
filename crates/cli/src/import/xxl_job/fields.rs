//! Turns a row of `xxl_job_info` into a definition, and records the outcome for each of its fields.

use rondel_core::Timestamp;
use rondel_core::labels::{LABEL_VALUE_LEN_MAX, check_value};
use serde_json::{Map, Value, json};

use super::commands;
use super::context::{ImportContext, JobDraft, Scripts};
use super::tables::text;
use crate::import::dump::Row;
use crate::import::result::Outcome::{Changed, Kept, NotNeeded, NotSupported};
use crate::import::result::{Entry, Outcome, RETRY_MAX};

/// 2020-01-01T00:00:00Z in seconds since 1970: the phase of a fixed rate is counted from here.
const PHASE_ORIGIN_S: u64 = 1_577_836_800;

pub(super) fn convert_row<'a>(row: &'a Row, context: &ImportContext<'_>) -> JobDraft<'a> {
    let id = text(row, "id").unwrap_or_default();
    let title = text(row, "job_desc").or_else(|| text(row, "name")).unwrap_or_default();
    let entry = Entry::new(format!("job {id}"), title);
    let mut draft = Draft { row, entry, job: Map::new() };
    let name = context.names.get(id).cloned().unwrap_or_default();
    draft.record(
        "id",
        Kept,
        format!("the label xxl-job-id, the end of the name {name}, and what consistent hash goes by"),
    );
    draft.set("name", name);
    for column in ["job_desc", "name"] {
        draft.record(column, Kept, "description");
    }
    draft.set("description", title);
    let app_result = set_app(&mut draft, context);
    let handler_result = set_handler(&mut draft, context, id);
    set_labels(&mut draft, id);
    set_schedule(&mut draft, context);
    set_policies(&mut draft);
    for (column, reason) in [
        ("add_time", "the versions of a job have their own instants"),
        ("update_time", "the versions of a job have their own instants"),
        ("trigger_last_time", "the runs of XXL-JOB stay there"),
    ] {
        draft.record(column, NotNeeded, reason);
    }
    if !draft.entry.fields.iter().any(|field| field.name == "trigger_next_time") {
        draft.record("trigger_next_time", NotNeeded, "follows from the schedule");
    }
    let job = app_result.and(handler_result).map(|()| draft.job);
    JobDraft { id, row, entry: draft.entry, job }
}

/// A definition under construction, and the report on it.
struct Draft<'a> {
    row: &'a Row,
    entry: Entry,
    job: Map<String, Value>,
}

impl<'a> Draft<'a> {
    fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.job.insert(field.to_owned(), value.into());
    }

    /// Records the outcome for a column, if the row has it.
    fn record(&mut self, column: &str, outcome: Outcome, counterpart: impl Into<String>) {
        if let Some(value) = self.row.get(column) {
            self.entry.record_field(column, value, outcome, counterpart);
        }
    }

    fn text(&self, column: &str) -> Option<&'a str> {
        text(self.row, column)
    }

    fn number(&self, column: &str) -> u64 {
        self.text(column).and_then(|text| text.parse().ok()).unwrap_or_default()
    }
}

fn set_app(draft: &mut Draft<'_>, context: &ImportContext<'_>) -> Result<(), String> {
    let group = draft.text("job_group").unwrap_or("?").to_owned();
    let Some(app) = context.apps.get(group.as_str()).cloned() else {
        draft.record("job_group", NotSupported, "there is no such group");
        return Err(format!("its group {group} is not there"));
    };
    // The outcome is `Kept` even if the app has another name in Rondel: the entry of the group reports the new name
    // once.
    draft.record("job_group", Kept, format!("app {app}"));
    draft.set("app", app);
    Ok(())
}

/// Sets the handler and its parameters.
fn set_handler(draft: &mut Draft<'_>, context: &ImportContext<'_>, id: &str) -> Result<(), String> {
    let kind = draft.text("glue_type").unwrap_or("BEAN");
    let param = draft.text("executor_param").unwrap_or_default();
    let source = draft.row.get("glue_source").cloned().unwrap_or_default();
    let glue_columns = ["glue_source", "glue_remark", "glue_updatetime"];
    if kind == "BEAN" {
        draft.record("glue_type", Kept, "handler");
        draft.record("executor_handler", Kept, "handler");
        draft.record("executor_param", Kept, "params, as a text");
        glue_columns.into_iter().for_each(|column| draft.record(column, NotNeeded, "a BEAN job has no script"));
        draft.set("handler", draft.text("executor_handler").unwrap_or_default());
        draft.set("params", if param.is_empty() { Value::Null } else { param.into() });
        return Ok(());
    }
    draft.record("executor_handler", NotNeeded, "a script has none");
    draft.record("glue_remark", NotNeeded, "belongs to the version of the script: see xxl_job_logglue");
    draft.record("glue_updatetime", NotNeeded, "a script's version follows from its text");
    let version_count = context.versions.get(id).copied().unwrap_or_default();
    if version_count > 0 {
        let (outcome, counterpart) = match context.options.history {
            Some(folder) => {
                (Kept, format!("files in {}/{}", folder.display(), context.names.get(id).map_or("", String::as_str)))
            }
            None => (
                NotSupported,
                "a definition has the newest script; --history FOLDER writes all of them to files".to_owned(),
            ),
        };
        draft.entry.record_field(
            "xxl_job_logglue",
            &format!("versions of the script: {version_count}"),
            outcome,
            counterpart,
        );
    }
    let handler_of_kind = match kind {
        "GLUE_SHELL" => Some("shell"),
        "GLUE_PYTHON" | "GLUE_PYTHON2" => Some("python"),
        "GLUE_NODEJS" => Some("node"),
        "GLUE_PHP" => Some("php"),
        "GLUE_POWERSHELL" => Some("powershell"),
        "GLUE_GROOVY" => None,
        unknown_kind => {
            draft.record("glue_type", NotSupported, "is no kind of script");
            return Err(format!("{unknown_kind:?} is no kind of script"));
        }
    };
    match (context.options.scripts, handler_of_kind) {
        (Scripts::Executors, _) => {
            draft.record("glue_type", Kept, format!("the handler {kind} of the same executors"));
            draft.record("glue_source", Kept, "params.source");
            draft.record("executor_param", Kept, "params.param");
            draft.set("handler", kind);
            draft.set("params", json!({"source": source, "param": param}));
        }
        (Scripts::Agent, Some(handler)) => {
            draft.record(
                "glue_type",
                Changed,
                format!("runs by the handler {handler} of an agent that was started with --allow-scripts"),
            );
            draft.record("glue_source", Kept, "params.script");
            draft.record("executor_param", Kept, "params.args");
            let mut params = json!({"script": source, "args": param});
            if handler == "shell" {
                params["interpreter"] = json!(["bash"]);
            }
            draft.set("handler", handler);
            draft.set("params", params);
        }
        (Scripts::Agent, None) => {
            draft.record("glue_type", NotSupported, "agents run no Groovy");
            draft.record("glue_source", NotSupported, "agents run no Groovy");
            draft.record("executor_param", NotSupported, "agents run no Groovy");
            return Err(format!(
                "{kind} has no counterpart on agents: import it with --scripts executors, or make it a handler of the SDK"
            ));
        }
    }
    Ok(())
}

fn set_labels(draft: &mut Draft<'_>, id: &str) {
    let mut labels = json!({"xxl-job-id": id});
    let author: String = draft.text("author").unwrap_or_default().trim().chars().take(LABEL_VALUE_LEN_MAX).collect();
    if check_value(&author).is_ok() {
        labels["author"] = author.into();
        draft.record("author", Kept, "the label author");
    } else if author.is_empty() {
        draft.record("author", NotNeeded, "is empty");
    } else {
        draft.record("author", NotSupported, "has signs that no label can have");
    }
    match draft.text("alarm_email").and_then(commands::parse_alarm) {
        Some(alarm) => {
            let counterpart = format!(
                "the label xxl-alarm: a failure is mailed by the rule {} once the commands of the report have made it",
                alarm.name
            );
            draft.record("alarm_email", Changed, counterpart);
            labels["xxl-alarm"] = alarm.name.into();
        }
        None => draft.record("alarm_email", NotNeeded, "names no address"),
    }
    draft.set("labels", labels);
}

fn set_schedule(draft: &mut Draft<'_>, context: &ImportContext<'_>) {
    let cron = draft.text("job_cron");
    let kind = draft.text("schedule_type").unwrap_or(if cron.is_some() { "CRON" } else { "NONE" });
    match (kind, draft.text("schedule_conf").or(cron)) {
        ("CRON", Some(expr)) => {
            let zone = context.options.zone;
            for column in ["schedule_type", "schedule_conf", "job_cron"] {
                draft.record(column, Kept, format!("schedule.cron in the zone {zone}"));
            }
            draft.set("schedule", json!({"cron": expr.trim(), "time_zone": zone}));
        }
        ("FIX_RATE", Some(seconds)) => {
            draft.record("schedule_type", Kept, "schedule.every");
            set_rate(draft, seconds.trim());
        }
        ("CRON" | "FIX_RATE", None) => {
            draft.record("schedule_type", NotSupported, "schedule_conf is empty: the job is only triggered");
            draft.record("schedule_conf", NotSupported, "is empty: the job is only triggered");
            draft.record("job_cron", NotNeeded, "is empty");
        }
        ("NONE", _) => {
            draft.record("schedule_type", Kept, "no schedule");
            draft.record("schedule_conf", NotNeeded, "a job without a schedule");
        }
        (unknown_kind, _) => {
            draft.record(
                "schedule_type",
                NotSupported,
                format!("{unknown_kind:?} is no kind of schedule that XXL-JOB has: it is only triggered"),
            );
            draft.record("schedule_conf", NotSupported, "belongs to that kind of schedule");
        }
    }
}

/// Sets a fixed rate whose instants have the same phase as in XXL-JOB.
fn set_rate(draft: &mut Draft<'_>, seconds: &str) {
    let mut schedule = json!({"every": format!("{seconds}s")});
    match phase_start(draft.number("trigger_next_time"), seconds.parse().unwrap_or_default()) {
        Some(start) => {
            draft.record("schedule_conf", Kept, "schedule.every");
            draft.record("trigger_next_time", Kept, "its phase is that of schedule.start_at");
            schedule["start_at"] = start.to_string().into();
        }
        None => draft.record(
            "schedule_conf",
            Changed,
            "counts its seconds from when it is created here: in XXL-JOB it is stopped, and has no next instant",
        ),
    }
    draft.set("schedule", schedule);
}

/// The first instant from [`PHASE_ORIGIN_S`] on at which a job of this rate fires. It is the same whenever the job is
/// imported. `None` if the job has no next instant or no rate.
fn phase_start(next_ms: u64, rate_seconds: u64) -> Option<Timestamp> {
    // XXL-JOB fires at whole seconds.
    let phase_seconds = (next_ms / 1_000).checked_sub(PHASE_ORIGIN_S)?.checked_rem(rate_seconds)?;
    Some(Timestamp::from_secs(i64::try_from(PHASE_ORIGIN_S + phase_seconds).ok()?))
}

fn set_policies(draft: &mut Draft<'_>) {
    let (route, outcome) = match draft.text("executor_route_strategy").unwrap_or_default() {
        // XXL-JOB orders executors by address, Rondel by name: another host may come first.
        "FIRST" => ("first", Changed),
        "LAST" => ("last", Changed),
        "ROUND" => ("round", Kept),
        "RANDOM" => ("random", Kept),
        "CONSISTENT_HASH" => ("consistent_hash", Kept),
        "LEAST_FREQUENTLY_USED" => ("lfu", Kept),
        "LEAST_RECENTLY_USED" => ("lru", Kept),
        "FAILOVER" => ("failover", Changed),
        "BUSYOVER" => ("busyover", Changed),
        "SHARDING_BROADCAST" => ("broadcast", Kept),
        _ => ("round", NotSupported),
    };
    let counterpart = match (outcome, route) {
        (NotSupported, _) => "there is no such route: round takes its place".to_owned(),
        (Changed, _) => format!(
            "route {route}, in the order of the executors' names: XXL-JOB orders their addresses, so that another executor may be chosen"
        ),
        (_, "consistent_hash") => {
            "route consistent_hash, by the same id and addresses: it chooses the same executors".to_owned()
        }
        _ => format!("route {route}"),
    };
    draft.record("executor_route_strategy", outcome, counterpart);
    draft.set("route", route);

    let (policy, outcome) = match draft.text("executor_block_strategy").unwrap_or_default() {
        "SERIAL_EXECUTION" => ("serial", Kept),
        "DISCARD_LATER" => ("discard", Kept),
        "COVER_EARLY" => ("cover", Kept),
        _ => ("serial", NotSupported),
    };
    let counterpart = if outcome == Kept {
        format!("overlap {policy} on each executor, as there")
    } else {
        "there is no such strategy: serial takes its place".to_owned()
    };
    draft.record("executor_block_strategy", outcome, counterpart);
    draft.set("overlap", json!({"policy": policy, "scope": "executor"}));

    let misfire = draft.text("misfire_strategy").unwrap_or("DO_NOTHING");
    let (policy, outcome) = match misfire {
        "DO_NOTHING" => ("skip", Kept),
        "FIRE_ONCE_NOW" => ("once", Kept),
        _ => ("skip", NotSupported),
    };
    let counterpart = if outcome == Kept {
        format!("misfire.policy {policy}, with 5 s of tolerance as there")
    } else {
        "there is no such strategy: skip takes its place".to_owned()
    };
    draft.record("misfire_strategy", outcome, counterpart);
    draft.set("misfire", json!({"policy": policy}));

    let (timeout, retry_count) = (draft.number("executor_timeout"), draft.number("executor_fail_retry_count"));
    draft.record("executor_timeout", Kept, if timeout > 0 { "timeout" } else { "no timeout" });
    if timeout > 0 {
        draft.set("timeout", format!("{timeout}s"));
    }
    if retry_count > 0 {
        let outcome = if retry_count > RETRY_MAX { Changed } else { Kept };
        draft.record(
            "executor_fail_retry_count",
            outcome,
            format!("retry.max {}, with 10 s between attempts", retry_count.min(RETRY_MAX)),
        );
        draft.set("retry", json!({"max": retry_count.min(RETRY_MAX), "backoff": "10s"}));
    } else {
        // In XXL-JOB a run whose executor is lost fails, and is tried again only if retries are set.
        draft.record("executor_fail_retry_count", Kept, "no retry, and delivery at_most_once");
        draft.set("delivery", "at_most_once");
    }
}
