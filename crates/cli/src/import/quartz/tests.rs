//! What becomes of rows.

use serde_json::{Value, json};

use super::*;
use crate::import::found::Outcome::{Changed, Kept};

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
        ("job_data", "aced0005"),
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

fn found() -> Found {
    let cron = [("cron_expression", "0 30 2 ? * MON-FRI"), ("time_zone_id", "GMT+08:00")];
    let tables = Tables {
        jobs: vec![
            job("report", &[("requests_recovery", "true"), ("is_nonconcurrent", "false")]),
            job("plain", &[("is_update_data", "1")]),
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
        crons: vec![timing("nightly", &cron), timing("closed", &cron), timing("lost", &cron)],
        simples: vec![
            timing("rate", &[("repeat_count", "-1"), ("repeat_interval", "30000"), ("times_triggered", "7")]),
            timing("few", &[("repeat_count", "2"), ("repeat_interval", "60000")]),
            timing("some", &[("repeat_count", "5"), ("repeat_interval", "60000")]),
            timing("again", &[("repeat_count", "-1"), ("repeat_interval", "60000")]),
            timing("once", &[("repeat_count", "0"), ("repeat_interval", "0")]),
            timing("fast", &[("repeat_count", "-1"), ("repeat_interval", "500")]),
        ],
    };
    convert(&tables, "billing", "UTC")
}

#[test]
fn triggers_become_definitions() {
    let found = found();
    let job = |name: &str| -> Value {
        let jobs = found.entries.iter().filter_map(|entry| entry.job.clone());
        jobs.into_iter().find(|job| job["name"] == name).unwrap_or_else(|| panic!("{name}: {}", found.text("x")))
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
        let entry = found.entries.iter().find(|entry| entry.name() == name).unwrap();
        entry.fields.iter().find(|field| field.name == "misfire_instr").unwrap().outcome
    };
    let outcomes = ["report-rate", "report-few", "report-once", "report-some", "report-again"].map(misfire);
    assert_eq!(outcomes, [Kept, Kept, Kept, Changed, Changed]);
    assert_eq!(job("report-once")["schedule"]["at"], "2099-01-01T00:00:00Z");
    assert_eq!((&job("plain")["schedule"], &job("plain")["overlap"]["policy"]), (&Value::Null, &json!("serial")));
}

#[test]
fn what_has_no_counterpart_is_in_the_report() {
    let found = found();
    let text = found.text("x");
    for expected in [
        "left out: it fires each 500 ms",
        "triggers of the kind \"CAL_INT\" have no counterpart",
        "its job is not there",
        "serialized object of Java",
        "rondel calendar apply",
        "cannot change the params",
        "GMT",
    ] {
        assert!(text.contains(expected) || found.json().contains(expected), "{expected}: {text}");
    }
    for entry in found.entries.iter().filter(|entry| entry.job.is_some()) {
        for column in ["job_class_name", "is_durable", "is_update_data", "requests_recovery", "sched_name"] {
            assert!(entry.fields.iter().any(|field| field.name == column), "{column}: {entry:?}");
        }
    }
}
