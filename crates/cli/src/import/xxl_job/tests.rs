//! How the rows of XXL-JOB are converted.

use serde_json::{Value, json};

use super::*;
use crate::import::result::{Entry, Outcome};

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

const OPTIONS: ImportOptions<'_> =
    ImportOptions { zone: "UTC", namespace: "default", prefix: "", scripts: Scripts::Agent, history: None };

fn tables(jobs: Vec<Row>) -> Tables {
    let group = [("id", "1"), ("app_name", "xxl-job-executor-Sample")];
    Tables {
        groups: vec![group.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()],
        jobs,
        ..Tables::default()
    }
}

fn jobs(result: &ImportResult) -> Vec<&Value> {
    result.entries.iter().filter_map(|entry| entry.job.as_ref()).collect()
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
    let result = convert(&tables(all), ImportOptions { zone: "Asia/Shanghai", ..OPTIONS });
    let taken = jobs(&result);
    let is: Vec<&str> = taken.iter().map(|job| job["route"].as_str().unwrap()).collect();
    assert_eq!(
        is,
        ["first", "last", "round", "random", "consistent_hash", "lfu", "lru", "failover", "busyover", "broadcast"]
    );
    let of_routes =
        result.entries.iter().flat_map(|entry| &entry.fields).filter(|field| field.name == "executor_route_strategy");
    let changed: Vec<&str> =
        of_routes.filter(|field| field.outcome == Outcome::Changed).map(|field| field.value.as_str()).collect();
    assert_eq!(changed, ["FIRST", "LAST", "FAILOVER", "BUSYOVER"], "the executors have another order here");
    assert!(
        taken
            .iter()
            .all(|job| job["overlap"]["scope"] == "executor" && job["schedule"]["time_zone"] == "Asia/Shanghai")
    );
    assert_eq!((&taken[0]["app"], &taken[0]["labels"]["xxl-job-id"]), (&json!("xxl-job-executor-sample"), &json!("0")));
}

#[test]
fn scripts_rates_timeouts_and_children_are_kept() {
    let result = convert(
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
            row(&[("id", "7"), ("schedule_conf", " ")]),
        ]),
        OPTIONS,
    );
    let taken = jobs(&result);
    assert_eq!(taken.len(), 4, "{}", result.text("x"));
    assert!(taken[3].get("schedule").is_none(), "{}", taken[3]);
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
    let report = result.text("x");
    assert!(!report.contains("no kind of schedule") && report.contains("longer than queue_timeout"), "{report}");
    for expected in [
        "GLUE_GROOVY",
        "job 5",
        "group 77",
        "mail-ops-x",
        "--allow-scripts",
        "schedule_conf is empty: the job is only triggered",
    ] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
}

#[test]
fn versions_before_2_3_have_their_cron_in_another_column() {
    let mut old = row(&[("id", "1"), ("job_cron", "0 0 3 * * ?")]);
    for column in ["schedule_type", "schedule_conf", "misfire_strategy"] {
        old.remove(column);
    }
    let result = convert(&tables(vec![old]), OPTIONS);
    assert_eq!(jobs(&result)[0]["schedule"]["cron"], "0 0 3 * * ?");
}

fn named<'a>(result: &'a ImportResult, from: &str) -> &'a Entry {
    result.entries.iter().find(|entry| entry.from == from).unwrap()
}

#[test]
fn children_fire_though_stopped_and_circles_are_cut() {
    let none = [("schedule_type", "NONE"), ("trigger_status", "0")];
    let child = |fields: &[(&str, &str)]| row(&[&none[..], fields].concat());
    let result = convert(
        &tables(vec![
            row(&[("id", "1"), ("child_jobid", "2, 3,4,2"), ("executor_route_strategy", "SHARDING_BROADCAST")]),
            child(&[("id", "2"), ("child_jobid", "3")]),
            child(&[("id", "3"), ("child_jobid", "2")]),
            row(&[("id", "4"), ("schedule_conf", "nonsense"), ("child_jobid", "3")]),
            child(&[("id", "5")]),
        ]),
        OPTIONS,
    );
    let job = |from: &str| named(&result, from).job.clone().unwrap();
    assert_eq!(job("job 2")["schedule"]["after"], json!(["demojobhandler-1"]));
    assert_eq!(job("job 3")["schedule"]["after"], json!(["demojobhandler-1", "demojobhandler-2"]));
    assert_eq!(
        (&job("job 2")["enabled"], &job("job 5")["enabled"]),
        (&json!(true), &json!(true)),
        "no schedule fires them"
    );
    let text = result.text("x");
    for expected in [
        "demojobhandler-2 would close a circle of jobs",
        "after each shard that succeeded",
        "one of the two jobs is left out",
        "a stopped child runs after its parents there",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn a_schedule_that_is_stopped_makes_no_job_of_an_old_version_an_orphan() {
    let old = |fields: &[(&str, &str)]| {
        let mut old = row(&[&[("job_cron", "0 0 3 * * ?")][..], fields].concat());
        for column in ["schedule_type", "schedule_conf", "misfire_strategy"] {
            old.remove(column);
        }
        old
    };
    let stopped = ("trigger_status", "0");
    let result = convert(
        &tables(vec![
            old(&[("id", "1"), ("child_jobid", "2,3")]),
            old(&[("id", "2"), stopped]),
            old(&[("id", "3")]),
            old(&[("id", "4"), stopped]),
            row(&[("id", "5"), ("child_jobid", "6")]),
            row(&[("id", "6"), stopped]),
        ]),
        OPTIONS,
    );
    let job = |from: &str| named(&result, from).job.clone().unwrap();
    let (child, clocked, alone) = (job("job 2"), job("job 3"), job("job 4"));
    assert_eq!(child["schedule"], json!({"after": ["demojobhandler-1"], "on": "success"}));
    assert_eq!(
        (&child["enabled"], &clocked["enabled"], &alone["enabled"]),
        (&json!(true), &json!(true), &json!(false))
    );
    for job in [&clocked, &alone, &job("job 6")] {
        assert!(job["schedule"]["cron"].is_string(), "{job}");
    }
    let columns = named(&result, "job 2").fields.iter().filter(|field| field.name == "job_cron");
    assert_eq!(columns.map(|field| field.outcome).collect::<Vec<_>>(), [Outcome::Changed]);
    let text = result.text("x");
    for expected in [
        "demojobhandler-3 has a schedule of its own",
        "demojobhandler-6 has a schedule, which is stopped there",
        "job_cron: is left out",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn scripts_stay_on_their_executors_and_groovy_with_them() {
    let glue = [("glue_type", "GLUE_GROOVY"), ("glue_source", "class A {}"), ("executor_param", "p")];
    let result = convert(
        &tables(vec![row(&[&glue[..], &[("id", "1")]].concat())]),
        ImportOptions { scripts: Scripts::Executors, ..OPTIONS },
    );
    let job = named(&result, "job 1").job.clone().unwrap();
    assert_eq!(
        (&job["handler"], &job["params"]),
        (&json!("GLUE_GROOVY"), &json!({"source": "class A {}", "param": "p"}))
    );
}

#[test]
fn every_column_is_accounted_for_once() {
    let mut tables =
        tables(vec![row(&[("id", "1"), ("own_column", "x"), ("author", "a\u{202e}"), ("alarm_email", "none")])]);
    let user = [("id", "1"), ("username", "Ann B"), ("role", "0"), ("permission", "1,9")];
    tables.users = vec![user.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()];
    let result = convert(&tables, OPTIONS);
    let all = [("job 1", &tables.jobs[0], 0), ("group 1", &tables.groups[0], 0), ("user 1", &tables.users[0], 1)];
    for (from, row, more) in all {
        let fields = &named(&result, from).fields;
        for column in row.keys() {
            assert_eq!(fields.iter().filter(|field| field.name == *column).count(), 1, "{from} {column}");
        }
        assert_eq!(fields.len(), row.len() + more, "{from}: {fields:?}");
    }
    let user = named(&result, "user 1");
    assert!(
        user.commands.iter().any(|line| line.contains("ann-b --role 'editor:default/xxl-job-executor-sample'")),
        "{user:?}"
    );
    assert!(result.text("x").contains("there is no group 9"), "{}", result.text("x"));
}

#[test]
fn an_app_has_the_name_that_its_executors_register_with() {
    let group = |id: &str, name: &str| row(&[("id", id), ("app_name", name)]);
    let mut tables = tables(vec![row(&[("id", "1"), ("job_group", "8")]), row(&[("id", "2"), ("job_group", "9")])]);
    tables.groups = vec![group("7", "Order--Service"), group("8", "order service"), group("9", "订单")];
    tables.users = vec![row(&[("id", "3"), ("username", "王芳"), ("role", "0"), ("permission", "7,9")])];
    let result = convert(&tables, OPTIONS);
    let app = |from: &str| named(&result, from).job.clone().unwrap()["app"].clone();
    assert_eq!((app("job 1"), app("job 2")), (json!("order-service-8"), json!("job-9")));
    let (script, text) = (result.script(), result.text("x"));
    for token in ["order--service-xxl --kind xxl", "order-service-8-xxl --kind xxl", "job-9-xxl --kind xxl"] {
        assert_eq!(script.matches(token).count(), 1, "{token}: {script}");
    }
    let user = "rondel user create user-3 --role 'editor:default/order--service' --role 'editor:default/job-9'";
    assert!(script.contains(user), "{script}");
    assert!(
        text.contains("set the AppName of its executors to job-9")
            && !text.contains("AppName of its executors to order--"),
        "{text}"
    );
}

#[test]
fn alarms_and_addresses_are_lines_for_a_shell() {
    let mut tables = tables(vec![
        row(&[("id", "1"), ("alarm_email", "b@x.org,a@x.org")]),
        row(&[("id", "2"), ("alarm_email", "a@x.org; b@x.org,")]),
        row(&[("id", "3"), ("alarm_email", "o'$(id)@x")]),
    ]);
    for (column, value) in [("address_type", "1"), ("address_list", "http://10.0.0.5:9999/, http://10.0.0.6:9999/")] {
        tables.groups[0].insert(column.to_owned(), value.to_owned());
    }
    let result = convert(&tables, OPTIONS);
    let alarm = |from: &str| named(&result, from).job.clone().unwrap()["labels"]["xxl-alarm"].clone();
    assert_eq!(alarm("job 1"), alarm("job 2"));
    let script = result.script();
    for expected in [
        "--set 'to=a@x.org,b@x.org'",
        "'to=o'\\''$(id)@x'",
        "rondel app address add xxl-job-executor-sample 'http://10.0.0.6:9999/' --executor-token-file",
    ] {
        assert!(script.contains(expected), "{expected}: {script}");
    }
    assert_eq!(script.matches("--failed --channel").count(), 2, "{script}");
    let skips = "rule set mail-a-x.org-b-x.org-no-executor --label xxl-alarm=mail-a-x.org-b-x.org --skipped --reason no_executor \
                 --channel mail-a-x.org-b-x.org";
    assert!(script.contains(skips) && script.matches("alert rule set").count() == 4, "{script}");
    assert!(script.contains("is in the file xxl-job-executor-sample-xxl.token' >&2"), "{script}");
    // A list that the server refuses does not keep the later ones from being set.
    let alert_lines: Vec<&str> = script.lines().filter(|line| line.starts_with("rondel alert ")).collect();
    assert!(
        alert_lines.len() == 6 && alert_lines.iter().all(|line| line.ends_with(" >&2; failed=1; }")),
        "{alert_lines:#?}"
    );
    assert!(alert_lines[0].contains(" || { echo 'not set: the alert channel mail-a-x.org-b-x.org' >&2"), "{script}");
    let refusal = "--executor-token-file xxl-job-executor-sample-xxl.token || {";
    assert!(script.matches(refusal).count() == 2 && script.ends_with("\nexit \"$failed\"\n"), "{script}");
}

#[test]
fn each_list_of_recipients_has_a_channel_of_its_own() {
    let lists = ["a-b@c.org", "a@b-c.org", "a@b,c@d", "a-b@c-d", "a@b-c@d", "a-b@c,d@e", "a-b@c-d@e", "a-b@c-d;"];
    let all = lists.iter().enumerate().map(|(id, list)| row(&[("id", &id.to_string()), ("alarm_email", list)]));
    let result = convert(&tables(all.collect()), OPTIONS);
    let names: std::collections::BTreeSet<String> =
        jobs(&result).iter().filter_map(|job| Some(job["labels"]["xxl-alarm"].as_str()?.to_owned())).collect();
    // The last list is one of the others.
    assert_eq!(names.len(), lists.len() - 1, "{names:?}");
    assert_eq!(result.script().matches("alert channel set").count(), lists.len() - 1);
    names.iter().for_each(|name| rondel_core::name::check(name).unwrap());
}

#[test]
fn more_alarms_than_a_namespace_has_rules_are_named_and_stop_nothing_else() {
    let all = (0..103).map(|id| row(&[("id", &id.to_string()), ("alarm_email", &format!("ops{id:03}@x.org"))]));
    let mut tables = tables(all.collect());
    tables.users = vec![row(&[("id", "1"), ("username", "ann"), ("role", "1")])];
    let result = convert(&tables, OPTIONS);
    let script = result.script();
    assert_eq!(script.matches("alert rule set").count(), 100);
    let text = result.text("x");
    assert!(text.contains("no room for rules about fires that no executor takes"), "{text}");
    assert!(text.contains("no rule for mail-ops100-x.org, mail-ops101-x.org, mail-ops102-x.org"), "{text}");
    let place = |part: &str| script.find(part).unwrap_or_else(|| panic!("{part}: {script}"));
    assert!(
        place("SMTP_HOST:?") < place("rondel token create") && place("rondel user create") < place("alert channel set"),
        "{script}"
    );
    assert!(script.contains("stays as it is") && text.contains("user"), "{script}");
}

#[test]
fn a_fixed_rate_keeps_its_phase_whenever_it_is_imported() {
    let start = |next: &str, seconds: &str| {
        let rate = [("schedule_type", "FIX_RATE"), ("schedule_conf", seconds), ("trigger_next_time", next)];
        let result = convert(&tables(vec![row(&[&rate[..], &[("id", "1")]].concat())]), OPTIONS);
        let job = jobs(&result)[0].clone();
        (job["schedule"]["start_at"].clone(), result.text("x"))
    };
    // 2026-11-23T10:00:17.4Z, and 30 s after it.
    let (first, text) = start("1795428017400", "30");
    assert_eq!(first, "2020-01-01T00:00:17Z");
    assert!(!text.contains("schedule_conf"), "{text}");
    assert_eq!(start("1795428047400", "30").0, first);
    let (none, text) = start("0", "30");
    assert!(none.is_null() && text.contains("counts its seconds from when it is created here"), "{none} {text}");
}

#[test]
fn a_job_that_is_left_out_has_its_reason_first_and_no_changes() {
    let rate = [("schedule_type", "FIX_RATE"), ("schedule_conf", "30"), ("trigger_status", "0")];
    let promoted = [&rate[..], &[("id", "1"), ("trigger_next_time", "1795444681000")]].concat();
    let lost = [&rate[..], &[("id", "2"), ("job_group", "77")]].concat();
    let result = convert(&tables(vec![row(&promoted), row(&lost)]), OPTIONS);
    for (from, reason) in [("job 1", "it was switched over"), ("job 2", "its group 77 is not there")] {
        let notes = &named(&result, from).notes;
        assert!(
            notes[0].text.starts_with(reason) && !notes.iter().any(|note| note.text.contains("counts")),
            "{notes:?}"
        );
    }
}

#[test]
fn jobs_that_were_switched_over_are_left_as_they_are() {
    let promoted = [("id", "1"), ("trigger_status", "0"), ("trigger_next_time", "1795444681000"), ("child_jobid", "2")];
    let child = [
        ("id", "2"),
        ("trigger_status", "0"),
        ("trigger_next_time", "0"),
        ("schedule_type", "NONE"),
        ("child_jobid", "3"),
    ];
    let grandchild = [("id", "3"), ("trigger_status", "0"), ("schedule_type", "NONE")];
    let stopped = [("id", "4"), ("trigger_status", "0"), ("trigger_next_time", "0")];
    let running = [("id", "5"), ("trigger_next_time", "1795444681000")];
    let rows = [&promoted[..], &child, &grandchild, &stopped, &running].map(row);
    let result = convert(&tables(rows.into()), OPTIONS);
    let names: Vec<&str> = jobs(&result).iter().filter_map(|job| job["name"].as_str()).collect();
    assert_eq!(names, ["demojobhandler-4", "demojobhandler-5"]);
    let why = |entry: &Entry| entry.notes.iter().any(|note| note.text.contains("rondel shadow promote"));
    assert_eq!(result.entries.iter().filter(|entry| why(entry)).count(), 3);
}
