//! How the rows of Quartz are converted.

use serde_json::{Value, json};

use super::*;
use crate::import::result::Outcome::{Changed, Kept};

/// 2026-11-20, before the instants of the triggers below.
const OPTIONS: ImportOptions<'_> =
    ImportOptions { app: "billing", zone: "UTC", prefix: "", now: Timestamp::from_millis(1_795_132_800_000) };

fn row(fields: &[(&str, &str)]) -> Row {
    fields.iter().map(|(column, value)| ((*column).to_owned(), (*value).to_owned())).collect()
}

fn job(name: &str, more: &[(&str, &str)]) -> Row {
    let plain = [
        ("sched_name", "main"),
        ("job_name", name),
        ("job_group", "DEFAULT"),
        ("job_class_name", "com.acme.Report$Daily"),
        ("is_durable", "1"),
        ("is_nonconcurrent", "1"),
        ("is_update_data", "0"),
        ("requests_recovery", "0"),
        ("job_data", ""),
    ];
    row(&[&plain[..], more].concat())
}

fn trigger(job: &str, name: &str, kind: &str, more: &[(&str, &str)]) -> Row {
    let plain = [
        ("sched_name", "main"),
        ("trigger_name", name),
        ("trigger_group", "T"),
        ("job_name", job),
        ("job_group", "DEFAULT"),
        ("next_fire_time", "1795363200000"),
        ("priority", "5"),
        ("trigger_state", "WAITING"),
        ("trigger_type", kind),
        ("start_time", "1795363200000"),
        ("end_time", "0"),
        ("misfire_instr", "0"),
    ];
    row(&[&plain[..], more].concat())
}

fn timing(name: &str, more: &[(&str, &str)]) -> Row {
    row(&[&[("sched_name", "main"), ("trigger_name", name), ("trigger_group", "T")], more].concat())
}

fn result() -> ImportResult {
    let cron = [("cron_expression", "0 30 2 ? * MON-FRI"), ("time_zone_id", "GMT+08:00")];
    let tables = Tables {
        jobs: vec![
            job("report", &[("requests_recovery", "true"), ("is_nonconcurrent", "false")]),
            job("plain", &[("is_update_data", "1"), ("job_data", "aced0005")]),
        ],
        triggers: vec![
            trigger(
                "report",
                "nightly",
                "CRON",
                &[("misfire_instr", "2"), ("priority", "20"), ("trigger_state", "PAUSED")],
            ),
            trigger("report", "closed", "CRON", &[("calendar_name", "holidays")]),
            trigger("report", "rate", "SIMPLE", &[]),
            trigger("report", "few", "SIMPLE", &[("misfire_instr", "-1")]),
            trigger("report", "some", "SIMPLE", &[]),
            trigger("report", "again", "SIMPLE", &[("misfire_instr", "3")]),
            trigger("report", "once", "SIMPLE", &[("start_time", "4070908800000")]),
            trigger("report", "fast", "SIMPLE", &[]),
            trigger("report", "months", "CAL_INT", &[]),
            trigger("gone", "lost", "CRON", &[]),
        ],
        cron_triggers: vec![timing("nightly", &cron), timing("closed", &cron), timing("lost", &cron)],
        simple_triggers: vec![
            timing("rate", &[("repeat_count", "-1"), ("repeat_interval", "30000"), ("times_triggered", "7")]),
            timing("few", &[("repeat_count", "2"), ("repeat_interval", "60000")]),
            timing("some", &[("repeat_count", "5"), ("repeat_interval", "60000")]),
            timing("again", &[("repeat_count", "-1"), ("repeat_interval", "60000")]),
            timing("once", &[("repeat_count", "0"), ("repeat_interval", "0")]),
            timing("fast", &[("repeat_count", "-1"), ("repeat_interval", "500")]),
        ],
    };
    convert(&tables, &OPTIONS)
}

#[test]
fn triggers_become_definitions() {
    let result = result();
    let job = |name: &str| -> Value {
        let jobs = result.entries.iter().filter_map(|entry| entry.job.clone());
        jobs.into_iter().find(|job| job["name"] == name).unwrap_or_else(|| panic!("{name}: {}", result.text("x")))
    };
    let nightly = job("report-nightly");
    let zoned = json!({"cron": "0 30 2 ? * MON-FRI", "time_zone": "Etc/GMT-8", "start_at": "2026-11-22T16:00:00Z"});
    assert_eq!(nightly["schedule"], zoned);
    assert_eq!(
        (&nightly["handler"], &nightly["overlap"]["policy"], &nightly["delivery"], &nightly["enabled"]),
        (&json!("com.acme.Report.Daily"), &json!("allow"), &json!("at_least_once"), &json!(false))
    );
    assert_eq!((&nightly["misfire"]["policy"], &nightly["priority"]), (&json!("skip"), &json!(9)));
    assert_eq!(job("report-closed")["enabled"], json!(false), "its calendar is not known");
    assert_eq!(
        (&job("report-rate")["schedule"]["every"], &job("report-rate")["misfire"]["policy"]),
        (&json!("30s"), &json!("skip"))
    );
    assert_eq!(job("report-few")["schedule"]["end_at"], "2026-11-22T16:02:00Z");
    assert_eq!(job("report-few")["misfire"]["policy"], "all");
    assert_eq!(job("report-some")["misfire"]["policy"], "once", "a finite trigger fires now by the smart policy");
    let misfire = |name: &str| {
        let entry = result.entries.iter().find(|entry| entry.name() == name).unwrap();
        entry.fields.iter().find(|field| field.name == "misfire_instr").unwrap().outcome
    };
    let outcomes = ["report-rate", "report-few", "report-once", "report-some", "report-again"].map(misfire);
    assert_eq!(outcomes, [Kept, Kept, Kept, Changed, Changed]);
    assert_eq!(job("report-once")["schedule"]["at"], "2099-01-01T00:00:00Z");
    assert_eq!((&job("plain")["schedule"], &job("plain")["overlap"]["policy"]), (&Value::Null, &json!("serial")));
    assert_eq!(job("plain")["enabled"], json!(false), "its data is not known");
    assert_eq!(
        nightly["labels"],
        json!({"quartz-scheduler": "main", "quartz-group": "DEFAULT", "quartz-job": "report", "quartz-trigger-group": "T", "quartz-trigger": "nightly"})
    );
}

#[test]
fn fields_without_a_counterpart_are_in_the_report() {
    let result = result();
    let text = result.text("x");
    for expected in [
        "left out: it fires each 500 ms",
        "triggers of the kind \"CAL_INT\" have no counterpart",
        "its job is not there",
        "serialized object of Java",
        "rondel calendar apply",
        "cannot change the params",
        "GMT",
    ] {
        assert!(text.contains(expected) || result.json().contains(expected), "{expected}: {text}");
    }
    for entry in result.entries.iter().filter(|entry| entry.job.is_some()) {
        for column in ["job_class_name", "is_durable", "is_update_data", "requests_recovery", "sched_name"] {
            assert!(entry.fields.iter().any(|field| field.name == column), "{column}: {entry:?}");
        }
    }
}

/// The definitions and the report of triggers of one job.
fn read(job: Row, triggers: Vec<Row>, timings: Vec<Row>) -> ImportResult {
    let (cron_triggers, simple_triggers) = timings.into_iter().partition(|row| row.contains_key("cron_expression"));
    convert(&Tables { jobs: vec![job], triggers, cron_triggers, simple_triggers }, &OPTIONS)
}

#[test]
fn triggers_that_fire_no_more_are_left_out_each_with_one_reason() {
    let once = [("repeat_count", "0"), ("repeat_interval", "0")];
    let few = [("repeat_count", "3"), ("repeat_interval", "60000")];
    let triggers = vec![
        trigger("report", "complete", "SIMPLE", &[("trigger_state", "COMPLETE")]),
        trigger("report", "ended", "SIMPLE", &[("end_time", "1795100000000")]),
        trigger("report", "counted", "SIMPLE", &[("start_time", "1795000000000")]),
        trigger("report", "fired", "SIMPLE", &[("next_fire_time", "-1")]),
        trigger("report", "overdue", "SIMPLE", &[("start_time", "1795100000000")]),
        trigger("report", "paused", "SIMPLE", &[("start_time", "1795100000000"), ("trigger_state", "PAUSED")]),
        trigger("report", "months", "CAL_INT", &[]),
    ];
    let timings = [
        ("complete", &once),
        ("ended", &few),
        ("counted", &few),
        ("fired", &once),
        ("overdue", &once),
        ("paused", &once),
    ];
    let result = read(job("report", &[]), triggers, timings.map(|(name, more)| timing(name, more)).into());
    let text = result.text("x");
    for expected in [
        "report-complete (trigger T.complete of job DEFAULT.report): left out: is complete in Quartz",
        "report-ended (trigger T.ended of job DEFAULT.report): left out: fires no more: its end was 2026-11-19T",
        "report-counted (trigger T.counted of job DEFAULT.report): left out: fires no more: its end was 2026-11-18T",
        "report-fired (trigger T.fired of job DEFAULT.report): left out: fires once, and has fired",
        "report-overdue (trigger T.overdue of job DEFAULT.report): changed: start_time: has passed, and it has not fired: it runs immediately",
        "report-paused (trigger T.paused of job DEFAULT.report): changed: start_time: has passed, and it has not fired: give it another",
        "report-months (trigger T.months of job DEFAULT.report): left out: triggers of the kind \"CAL_INT\"",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(text.matches("left out: ").count(), 5, "one line for each: {text}");
    assert!(result.entries.iter().all(|entry| entry.fields.len() > 15), "the JSON has each column");
}

#[test]
fn a_trigger_without_a_name_of_its_own_is_named_after_its_job() {
    let random =
        ["6da64b5bd2ee-3f0e1a52-8a0c-4c5f-9a39-0f2d4c1b7e11", "6da64b5bd2ee-ffffffff-8a0c-4c5f-9a39-0f2d4c1b7e11"];
    let crons = ["0 0 2 * * ?", "0 0 3 * * ?"];
    let names = |ids: &[&str], crons: &[&str]| -> Vec<String> {
        let triggers = ids.iter().map(|id| trigger("report", id, "CRON", &[])).collect();
        let timings = ids.iter().zip(crons).map(|(id, cron)| timing(id, &[("cron_expression", cron)])).collect();
        let result = read(job("report", &[]), triggers, timings);
        assert!(!result.yaml().contains("6da64b5bd2ee"), "{}", result.yaml());
        let mut names: Vec<String> = result.entries.iter().map(|entry| entry.name().to_owned()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(&random[..1], &crons), ["report"]);
    let both = names(&random, &crons);
    assert!(both.iter().all(|name| name.starts_with("report-")) && both[0] != both[1], "{both:?}");
    // The application has created the triggers anew, with random names in another order.
    assert_eq!(names(&random, &[crons[1], crons[0]]), both);
}

#[test]
fn texts_of_serialized_data_and_descriptions_are_reported_as_they_are_used() {
    let filled = serialized::tests::filled();
    let job = job("report", &[("job_data", &filled), ("description", "of the job")]);
    let triggers = vec![
        trigger("report", "a", "CRON", &[("description", "of the trigger"), ("job_data", &serialized::tests::empty())]),
        trigger("report", "b", "CRON", &[("job_data", &serialized::tests::with_number())]),
    ];
    let pst = [("cron_expression", "0 0 2 * * ?"), ("time_zone_id", "PST")];
    let result = read(job, triggers, vec![timing("a", &pst), timing("b", &pst)]);
    let jobs: Vec<&Value> = result.entries.iter().filter_map(|entry| entry.job.as_ref()).collect();
    assert_eq!(jobs[0]["params"], json!({"from": "ops", "to": "ops", "结算": "a"}));
    assert_eq!((&jobs[0]["enabled"], &jobs[1]["enabled"]), (&json!(true), &json!(false)));
    assert_eq!(jobs[0]["schedule"]["time_zone"], "America/Los_Angeles");
    let text = result.text("x");
    for expected in [
        "report-a (trigger T.a of job DEFAULT.report): not supported: description: \"of the trigger\" is dropped",
        "report-b (trigger T.b of job DEFAULT.report): not supported: job_data: is a serialized object",
        "time_zone_id: schedule.time_zone America/Los_Angeles, which this short id of Java means",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("report-a (trigger T.a of job DEFAULT.report): not supported: job_data"), "{text}");
    assert_eq!(jobs[0]["description"], "of the job");
}

#[test]
fn one_of_several_schedulers_is_read_where_it_is_named() {
    let other = job("report", &[("sched_name", "other")]);
    let mut tables = Tables { jobs: vec![job("report", &[]), other], ..Tables::default() };
    let both = convert(&tables, &OPTIONS);
    assert!(both.text("x").contains("2 schedulers (main, other), and all are read: --scheduler NAME"), "{both:?}");
    let error = tables.keep_only("nightly").unwrap_err();
    assert!(error.contains("\"nightly\" has no jobs") && error.contains("main, other"), "{error}");
    tables.keep_only("other").unwrap();
    let one = convert(&tables, &OPTIONS);
    assert!(one.entries.len() == 1 && !one.text("x").contains("schedulers ("), "{one:?}");
}

#[test]
fn a_simple_trigger_does_not_fire_at_its_end() {
    let ends = |end: &str, count: &str| {
        let triggers = vec![trigger("report", "until", "SIMPLE", &[("end_time", end)])];
        let timings = vec![timing("until", &[("repeat_count", count), ("repeat_interval", "60000")])];
        let result = read(job("report", &[]), triggers, timings);
        result.entries[0].job.as_ref().unwrap_or_else(|| panic!("{result:?}"))["schedule"]["end_at"].clone()
    };
    // The trigger starts at 16:00:00.
    assert_eq!(ends("1795363320000", "-1"), "2026-11-22T16:01:00Z");
    assert_eq!(ends("1795363330000", "-1"), "2026-11-22T16:02:10Z");
    assert_eq!(ends("1795363320000", "9"), "2026-11-22T16:01:00Z");
    assert_eq!(ends("1795363320000", "1"), "2026-11-22T16:01:00Z");
    assert_eq!(ends("0", "-1"), Value::Null);
    let cron = [("cron_expression", "0 * * * * ?")];
    let triggers = vec![trigger("report", "until", "CRON", &[("end_time", "1795363320000")])];
    let result = read(job("report", &[]), triggers, vec![timing("until", &cron)]);
    let until = result.entries[0].job.as_ref().unwrap_or_else(|| panic!("{result:?}"));
    assert_eq!(until["schedule"]["end_at"], "2026-11-22T16:02:00Z", "a cron trigger does");
}

#[test]
fn a_job_that_runs_alone_is_named_where_several_triggers_start_it() {
    let report = |names: &[&str], alone: &str| {
        let triggers = names.iter().map(|name| trigger("report", name, "CRON", &[])).collect();
        let timings = names.iter().map(|name| timing(name, &[("cron_expression", "0 0 2 * * ?")])).collect();
        read(job("report", &[("is_nonconcurrent", alone)]), triggers, timings).text("x")
    };
    let expected = "is_nonconcurrent: overlap.policy serial, which keeps the runs of this trigger apart";
    assert_eq!(report(&["a", "b"], "1").matches(expected).count(), 2);
    for text in [report(&["a"], "1"), report(&["a", "b"], "0")] {
        assert!(!text.contains("is_nonconcurrent"), "{text}");
    }
}
