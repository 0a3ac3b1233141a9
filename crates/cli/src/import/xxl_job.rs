//! XXL-JOB's own database, versions 2.x and 3.x: groups become apps, jobs definitions.

use std::collections::{BTreeMap, HashMap};

use rondel_store::foreign;
use serde_json::{Map, Value, json};

use super::found::{Entry, Found, slug};
use crate::exit::Failure;

/// A row of a table, by column. What is NULL, or a column that this version has not, is not in it.
type Row = BTreeMap<String, String>;

const GROUP_COLUMNS: [&str; 4] = ["id", "app_name", "title", "address_list"];
/// Those of all versions: the description is `job_desc`, or `name` from 3.5 on; before 2.3 the schedule is `job_cron`.
const JOB_COLUMNS: [&str; 21] = [
    "id",
    "job_group",
    "job_desc",
    "name",
    "author",
    "alarm_email",
    "job_cron",
    "schedule_type",
    "schedule_conf",
    "misfire_strategy",
    "executor_route_strategy",
    "executor_handler",
    "executor_param",
    "executor_block_strategy",
    "executor_timeout",
    "executor_fail_retry_count",
    "glue_type",
    "glue_source",
    "child_jobid",
    "trigger_status",
    "glue_remark",
];
/// The longest value that a label can have, in characters.
const LABEL_LEN_MAX: usize = 100;

/// What XXL-JOB stores.
#[derive(Debug, Default)]
pub(super) struct Tables {
    groups: Vec<Row>,
    jobs: Vec<Row>,
}

impl Tables {
    pub(super) async fn read(url: &str) -> Result<Self, Failure> {
        let mut database = foreign::Database::open(url)
            .await
            .map_err(|error| Failure::of("cannot read the database of XXL-JOB", &error))?;
        let wrong = |error: foreign::ForeignError| Failure::of("cannot read the database of XXL-JOB", &error);
        let groups = database.rows("xxl_job_group", &GROUP_COLUMNS).await.map_err(wrong)?;
        let jobs = database.rows("xxl_job_info", &JOB_COLUMNS).await.map_err(wrong)?;
        Ok(Self { groups, jobs })
    }
}

/// The definitions; cron expressions are read in that zone.
pub(super) fn convert(tables: &Tables, zone: &str) -> Found {
    let mut found = Found::default();
    let apps: HashMap<&str, &str> =
        tables.groups.iter().filter_map(|row| Some((text(row, "id")?, text(row, "app_name")?))).collect();
    let names: HashMap<&str, String> =
        tables.jobs.iter().filter_map(|row| Some((text(row, "id")?, name_of(row, &mut found)))).collect();
    let mut parents: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in &tables.jobs {
        let Some(id) = text(row, "id") else { continue };
        for child in text(row, "child_jobid").unwrap_or_default().split(',').map(str::trim) {
            if child != id && names.contains_key(child) {
                parents.entry(child).or_default().push(id);
            }
        }
    }
    for row in &tables.jobs {
        let id = text(row, "id").unwrap_or_default();
        let parents = parents.get(id).map(Vec::as_slice).unwrap_or_default();
        let place =
            Place { zone, app: apps.get(text(row, "job_group").unwrap_or_default()).copied(), names: &names, parents };
        one(row, id, &place, &mut found);
    }
    found
}

/// What is known of a job beside its row.
struct Place<'a> {
    zone: &'a str,
    app: Option<&'a str>,
    names: &'a HashMap<&'a str, String>,
    /// The ids of the jobs that name it as a child.
    parents: &'a [&'a str],
}

fn one(row: &Row, id: &str, place: &Place<'_>, found: &mut Found) {
    let title = text(row, "job_desc").or_else(|| text(row, "name")).unwrap_or_default();
    let mut entry = Entry::new(format!("job {id}"), title);
    let Some(app) = place.app else {
        return found.leave_out(entry, format!("its group {} is not there", text(row, "job_group").unwrap_or("?")));
    };
    let Some((handler, params)) = work(row, &mut entry) else {
        let glue = text(row, "glue_type").unwrap_or_default();
        return found.leave_out(entry, format!("{glue} has no counterpart: make it a handler of the SDK"));
    };
    let mut job = Map::new();
    let mut set = |field: &str, value: Value| drop(job.insert(field.to_owned(), value));
    set("name", place.names.get(id).map(String::as_str).unwrap_or_default().into());
    if slug(app) != app {
        entry.changed(format!("the app {app:?} is called {:?} here", slug(app)));
    }
    set("app", slug(app).into());
    set("handler", handler.into());
    set("description", title.into());
    set("labels", labels(row, id));
    set("params", params);
    let schedule = schedule(row, place, &mut entry);
    if !schedule.is_null() {
        set("schedule", schedule);
    }
    set("route", route(text(row, "executor_route_strategy").unwrap_or_default(), &mut entry).into());
    set("overlap", overlap(text(row, "executor_block_strategy").unwrap_or_default(), &mut entry));
    let catches_up = text(row, "misfire_strategy") == Some("FIRE_ONCE_NOW");
    set("misfire", json!({"policy": if catches_up { "once" } else { "skip" }}));
    let number = |column: &str| text(row, column).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    let (timeout, retries) = (number("executor_timeout"), number("executor_fail_retry_count"));
    if timeout > 0 {
        set("timeout", format!("{timeout}s").into());
    }
    if retries > 0 {
        set("retry", json!({"max": retries, "backoff": "10s"}));
    } else {
        // A run whose executor is lost fails there, and is tried again only where retries are asked for.
        set("delivery", "at_most_once".into());
    }
    set("enabled", (text(row, "trigger_status") == Some("1")).into());
    if let Some(mail) = text(row, "alarm_email") {
        entry.changed(format!("failures were mailed to {mail}: a rule of alerts takes its place"));
    }
    found.add(entry, job);
}

fn name_of(row: &Row, found: &mut Found) -> String {
    let (id, glue) = (text(row, "id").unwrap_or_default(), text(row, "glue_type").unwrap_or("BEAN"));
    let stem = match text(row, "executor_handler") {
        Some(handler) if glue == "BEAN" => handler,
        _ => glue,
    };
    found.name(&format!("{stem}-{id}"))
}

/// The handler and its parameters.
fn work(row: &Row, entry: &mut Entry) -> Option<(String, Value)> {
    let (param, source) =
        (text(row, "executor_param").unwrap_or_default(), text(row, "glue_source").unwrap_or_default());
    let handler = match text(row, "glue_type").unwrap_or("BEAN") {
        "BEAN" => {
            let params = if param.is_empty() { Value::Null } else { param.into() };
            return Some((text(row, "executor_handler").unwrap_or_default().to_owned(), params));
        }
        "GLUE_SHELL" => "shell",
        "GLUE_PYTHON" | "GLUE_PYTHON2" => "python",
        "GLUE_NODEJS" => "node",
        "GLUE_PHP" => "php",
        "GLUE_POWERSHELL" => "powershell",
        _ => return None,
    };
    let mut params = json!({"script": source, "args": param});
    if handler == "shell" {
        params["interpreter"] = json!(["bash"]);
    }
    entry
        .changed(format!("its script runs by the handler {handler} of an agent that was started with --allow-scripts"));
    Some((handler.to_owned(), params))
}

fn labels(row: &Row, id: &str) -> Value {
    let mut labels = json!({"xxl-job-id": id});
    let author: String = text(row, "author").unwrap_or_default().trim().chars().take(LABEL_LEN_MAX).collect();
    if !author.is_empty() {
        labels["author"] = author.into();
    }
    labels
}

fn schedule(row: &Row, place: &Place<'_>, entry: &mut Entry) -> Value {
    let cron = text(row, "job_cron");
    let (kind, conf) = (
        text(row, "schedule_type").unwrap_or(if cron.is_some() { "CRON" } else { "NONE" }),
        text(row, "schedule_conf").or(cron),
    );
    let own = match (kind, conf) {
        ("CRON", Some(cron)) => json!({"cron": cron, "time_zone": place.zone}),
        ("FIX_RATE", Some(seconds)) => {
            entry.changed("counts its seconds from when it is created here: XXL-JOB counts from when it was started");
            json!({"every": format!("{seconds}s")})
        }
        ("NONE", _) => Value::Null,
        (other, _) => {
            entry.not_supported(format!("schedule type {other}: it is only triggered"));
            Value::Null
        }
    };
    let names: Vec<&str> = place.parents.iter().filter_map(|id| Some(place.names.get(id)?.as_str())).collect();
    match (names.as_slice(), own.is_null()) {
        ([], _) => own,
        ([parent], true) => json!({"after": [parent], "on": "success"}),
        (several, true) => {
            entry.changed(format!(
                "ran after each of {}: here once for each fire that they share, after all of them",
                several.join(", ")
            ));
            json!({"after": several, "on": "success"})
        }
        (several, false) => {
            entry.not_supported(format!(
                "also ran after {}: a job has a clock or follows from others; make two of it",
                several.join(", ")
            ));
            own
        }
    }
}

fn route(strategy: &str, entry: &mut Entry) -> &'static str {
    match strategy {
        "FIRST" => "first",
        "LAST" => "last",
        "ROUND" => "round",
        "RANDOM" => "random",
        "CONSISTENT_HASH" => {
            entry.changed("hashes by the job's id there and by its name here: other executors may get it");
            "consistent_hash"
        }
        "LEAST_FREQUENTLY_USED" => "lfu",
        "LEAST_RECENTLY_USED" => "lru",
        "FAILOVER" => "failover",
        "BUSYOVER" => "busyover",
        "SHARDING_BROADCAST" => "broadcast",
        other => {
            entry.not_supported(format!("route {other:?}: round takes its place"));
            "round"
        }
    }
}

/// XXL-JOB applies block strategies on each executor separately.
fn overlap(strategy: &str, entry: &mut Entry) -> Value {
    let policy = match strategy {
        "SERIAL_EXECUTION" => "serial",
        "DISCARD_LATER" => "discard",
        "COVER_EARLY" => "cover",
        other => {
            entry.not_supported(format!("block strategy {other:?}: serial takes its place"));
            "serial"
        }
    };
    json!({"policy": policy, "scope": "executor"})
}

fn text<'a>(row: &'a Row, column: &str) -> Option<&'a str> {
    row.get(column).map(String::as_str).filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(fields: &[(&str, &str)]) -> Row {
        let plain = [
            ("job_group", "1"),
            ("schedule_type", "CRON"),
            ("schedule_conf", "0 0 2 * * ?"),
            ("executor_route_strategy", "FIRST"),
            ("executor_block_strategy", "SERIAL_EXECUTION"),
            ("glue_type", "BEAN"),
            ("executor_handler", "demoJobHandler"),
            ("trigger_status", "1"),
            ("misfire_strategy", "DO_NOTHING"),
            ("executor_timeout", "0"),
            ("executor_fail_retry_count", "0"),
        ];
        plain.iter().chain(fields).map(|(column, value)| ((*column).to_owned(), (*value).to_owned())).collect()
    }

    fn tables(jobs: Vec<Row>) -> Tables {
        let group = [("id", "1"), ("app_name", "xxl-job-executor-Sample")];
        Tables { groups: vec![group.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()], jobs }
    }

    fn jobs(found: &Found) -> Vec<&Value> {
        found.entries.iter().filter_map(|entry| entry.job.as_ref()).collect()
    }

    #[test]
    fn every_strategy_has_its_counterpart() {
        let routes = [
            "FIRST",
            "LAST",
            "ROUND",
            "RANDOM",
            "CONSISTENT_HASH",
            "LEAST_FREQUENTLY_USED",
            "LEAST_RECENTLY_USED",
            "FAILOVER",
            "BUSYOVER",
            "SHARDING_BROADCAST",
        ];
        let blocks = ["SERIAL_EXECUTION", "DISCARD_LATER", "COVER_EARLY"];
        let all: Vec<Row> = routes
            .iter()
            .enumerate()
            .map(|(index, route)| {
                row(&[
                    ("id", &index.to_string()),
                    ("executor_route_strategy", route),
                    ("executor_block_strategy", blocks[index % 3]),
                ])
            })
            .collect();
        let found = convert(&tables(all), "Asia/Shanghai");
        let taken = jobs(&found);
        let is: Vec<&str> = taken.iter().map(|job| job["route"].as_str().unwrap()).collect();
        assert_eq!(
            is,
            ["first", "last", "round", "random", "consistent_hash", "lfu", "lru", "failover", "busyover", "broadcast"]
        );
        assert!(
            taken
                .iter()
                .all(|job| job["overlap"]["scope"] == "executor" && job["schedule"]["time_zone"] == "Asia/Shanghai")
        );
        assert_eq!(
            (&taken[0]["app"], &taken[0]["labels"]["xxl-job-id"]),
            (&json!("xxl-job-executor-sample"), &json!("0"))
        );
    }

    #[test]
    fn scripts_rates_timeouts_and_children_are_kept() {
        let found = convert(
            &tables(vec![
                row(&[
                    ("id", "1"),
                    ("child_jobid", "2,1,99"),
                    ("executor_param", "a=1"),
                    ("author", "张三"),
                    ("job_desc", "每晚结算"),
                ]),
                row(&[
                    ("id", "2"),
                    ("schedule_type", "NONE"),
                    ("schedule_conf", ""),
                    ("glue_type", "GLUE_SHELL"),
                    ("glue_source", "echo $1"),
                    ("executor_handler", ""),
                ]),
                row(&[
                    ("id", "3"),
                    ("schedule_type", "FIX_RATE"),
                    ("schedule_conf", "30"),
                    ("executor_timeout", "5"),
                    ("executor_fail_retry_count", "3"),
                    ("trigger_status", "0"),
                    ("misfire_strategy", "FIRE_ONCE_NOW"),
                    ("alarm_email", "ops@x"),
                ]),
                row(&[("id", "4"), ("glue_type", "GLUE_GROOVY")]),
                row(&[("id", "5"), ("schedule_conf", "nonsense")]),
                row(&[("id", "6"), ("job_group", "77")]),
            ]),
            "UTC",
        );
        let taken = jobs(&found);
        assert_eq!(taken.len(), 3, "{}", found.text("x"));
        assert_eq!(
            (&taken[0]["params"], &taken[0]["description"], &taken[0]["labels"]["author"]),
            (&json!("a=1"), &json!("每晚结算"), &json!("张三"))
        );
        assert_eq!(taken[1]["schedule"], json!({"after": ["demojobhandler-1"], "on": "success"}));
        assert_eq!((&taken[1]["handler"], &taken[1]["params"]["interpreter"]), (&json!("shell"), &json!(["bash"])));
        let rate = taken[2];
        assert_eq!(
            (&rate["schedule"]["every"], &rate["timeout"], &rate["retry"]["max"]),
            (&json!("30s"), &json!("5s"), &json!(3))
        );
        assert_eq!(
            (&rate["enabled"], &rate["misfire"]["policy"], &rate["delivery"]),
            (&json!(false), &json!("once"), &Value::Null)
        );
        let report = found.text("x");
        for expected in ["GLUE_GROOVY", "job 5", "group 77", "ops@x", "--allow-scripts"] {
            assert!(report.contains(expected), "{expected}: {report}");
        }
    }

    #[test]
    fn versions_before_2_3_have_their_cron_in_another_column() {
        let mut old = row(&[("id", "1"), ("job_cron", "0 0 3 * * ?")]);
        for column in ["schedule_type", "schedule_conf", "misfire_strategy"] {
            old.remove(column);
        }
        let found = convert(&tables(vec![old]), "UTC");
        assert_eq!(jobs(&found)[0]["schedule"]["cron"], "0 0 3 * * ?");
    }
}
