//! Switches of jobs that no schedule fires at present, of all jobs of an app, and by accounts that may not change
//! XXL-JOB's database.

use rondel_tests::{Finished, rondel};
use serde_json::{Value, json};

use super::mishaps::{Pair, now_s};
use super::{create, shadow};
use crate::journal::seconds;

/// Runs an import of XXL-JOB's database.
async fn imported(pair: &Pair) -> Finished {
    let args = ["import", "xxl-job", "--database", &pair.source, "--time-zone", "UTC", "--shadow"];
    let read = rondel(&args, &[]).await;
    assert_eq!(read.code, Some(0), "{read:?}");
    read
}

#[tokio::test]
async fn a_repeated_import_leaves_out_promoted_jobs_that_were_stopped() {
    let Some(pair) = Pair::start().await else { return };
    pair.old.sql("INSERT INTO xxl_job_group (id, app_name, title) VALUES (1, 'work', 'work')");
    pair.old.add(1..=3, 0, 0);
    pair.old.sql("UPDATE xxl_job_info SET schedule_conf = '0 0 3 * * ?'");
    pair.old.sql("UPDATE xxl_job_info SET schedule_type = 'NONE', schedule_conf = '' WHERE id = 2");
    let cron = json!({"schedule": {"cron": "0 0 3 * * ?"}, "enabled": false});
    create(&pair.server, &[shadow(1, &cron), shadow(2, &json!({})), shadow(3, &cron)]).await;
    let before = imported(&pair).await;
    assert_eq!(before.stdout.matches("- name:").count(), 3, "{before:?}");
    for times in ["first", "second"] {
        let promoted = pair.switch("promote", &["job-1", "job-2"], &["--yes"]).await;
        assert_eq!(promoted.0.code, Some(0), "{times}: {promoted:?}");
        promoted.check("job-1", "nowhere", "paused here");
        promoted.check("job-2", "rondel", if times == "first" { "when it is triggered" } else { "switched before" });
    }
    let job = pair.job("job-1").await;
    assert!(job["mode"] != "shadow" && job["enabled"] == false, "{job}");
    let again = imported(&pair).await;
    let left_out = again.stderr.matches("left out: it was switched over by rondel shadow promote").count();
    assert_eq!((again.stdout.matches("- name:").count(), left_out), (1, 2), "{again:?}");

    let demoted = pair.switch("demote", &["job-1", "job-2"], &["--yes"]).await;
    assert_eq!(demoted.0.code, Some(0), "{demoted:?}");
    demoted.check("job-1", "nowhere", "stays stopped in XXL-JOB");
    demoted.check("job-2", "xxl-job", "when it is triggered there");
    assert_eq!([1, 2].map(|job| pair.xxl_job_state(job)), [(false, 0); 2]);
    let back = imported(&pair).await;
    assert_eq!(back.stdout, before.stdout, "as before");
}

#[tokio::test]
async fn a_job_that_is_paused_here_and_runs_there_is_not_promoted() {
    let Some(pair) = Pair::start().await else { return };
    create(&pair.server, &[shadow(1, &json!({"schedule": {"cron": "0 0 3 * * ?"}, "enabled": false}))]).await;
    pair.old.add(1..=1, 1, now_s() + 3_600);
    let refusal = pair.switch("promote", &["job-1"], &["--yes"]).await;
    assert!(refusal.0.code == Some(1) && refusal.0.stderr.contains("see RESULT of each"), "{refusal:?}");
    refusal.check("job-1", "xxl-job", "is paused here, and runs in XXL-JOB");
}

#[tokio::test]
async fn an_app_is_switched_by_one_command_with_parents_and_children() {
    let Some(pair) = Pair::start().await else { return };
    let cron = json!({"schedule": {"cron": "0 0 3 * * ?"}});
    let child = json!({"schedule": {"after": ["job-1"]}, "app": "other"});
    let mut own = shadow(9, &json!({"schedule": {"cron": "0 0 3 * * ?"}, "mode": "active"}));
    own["labels"] = json!({});
    create(&pair.server, &[shadow(1, &cron), shadow(2, &cron), shadow(3, &child), own]).await;
    pair.old.add(1..=2, 1, now_s() + 3_600);
    pair.old.add(3..=3, 0, 0);
    for (command, runs) in [("promote", "rondel"), ("demote", "xxl-job")] {
        let switched = pair.switch(command, &[], &["--app", "work", "--yes"]).await;
        assert_eq!(switched.0.code, Some(0), "{switched:?}");
        ["job-1", "job-2", "job-3"].iter().for_each(|name| switched.check(name, runs, "runs"));
        assert!(!switched.0.stdout.contains("job-9"), "{switched:?}");
    }
    let unknown = pair.switch("promote", &[], &["--app", "nope"]).await;
    assert!(unknown.0.code == Some(2) && unknown.0.stderr.contains("no job of app nope"), "{unknown:?}");
}

/// Before version 3.4, XXL-JOB's instants of a fixed rate have fractions of a second, and Rondel's fires have none.
#[tokio::test]
async fn a_seam_has_no_parts_of_a_second() {
    let Some(pair) = Pair::start().await else { return };
    create(&pair.server, &[shadow(1, &json!({"schedule": {"every": "60s"}}))]).await;
    let next = now_s() + 3_600;
    pair.old.add(1..=1, 1, next);
    pair.old.sql("UPDATE xxl_job_info SET trigger_next_time = trigger_next_time + 700");
    for result in ["runs here from the seam on", "was switched before"] {
        let promoted = pair.switch("promote", &["job-1"], &["--yes"]).await;
        assert_eq!(promoted.0.code, Some(0), "{promoted:?}");
        promoted.check("job-1", "rondel", result);
        let seam = pair.job("job-1").await["mode_from"].as_str().map(seconds);
        assert_eq!((seam, pair.xxl_job_state(1)), (Some(next), (false, next * 1_000 + 700)), "{promoted:?}");
    }
    let from = pair.job("job-1").await["mode_from"].clone();
    assert!(from.as_str().is_some_and(|text| !text.contains('.')), "{from}");
}

/// A user stopped one of the jobs in XXL-JOB before any job was switched over.
#[tokio::test]
async fn a_demotion_of_an_app_starts_no_job_that_was_stopped_there_before() {
    let Some(pair) = Pair::start().await else { return };
    let cron = json!({"schedule": {"cron": "0 0 3 * * ?"}});
    create(&pair.server, &[shadow(1, &cron), shadow(2, &cron)]).await;
    pair.old.add(1..=1, 1, now_s() + 3_600);
    pair.old.add(2..=2, 0, 0);
    let promoted = pair.switch("promote", &["job-1"], &["--yes"]).await;
    assert_eq!(promoted.0.code, Some(0), "{promoted:?}");
    let planned = pair.switch("demote", &[], &["--app", "work"]).await;
    planned.check("job-2", "nowhere", "would stay stopped in XXL-JOB");
    let demoted = pair.switch("demote", &[], &["--app", "work", "--yes"]).await;
    assert_eq!(demoted.0.code, Some(0), "{demoted:?}");
    demoted.check("job-1", "xxl-job", "runs in XXL-JOB from");
    demoted.check("job-2", "nowhere", "stays stopped in XXL-JOB");
    assert!(pair.xxl_job_state(1).0 && pair.xxl_job_state(2) == (false, 0), "{demoted:?}");
}

/// A user stopped the job in XXL-JOB after it was switched back.
#[tokio::test]
async fn a_repeated_demotion_starts_no_job_that_was_stopped_there_since() {
    let Some(pair) = Pair::start().await else { return };
    let active = json!({"schedule": {"cron": "0 0 3 * * ?"}, "mode": "active"});
    create(&pair.server, &[shadow(1, &active)]).await;
    pair.old.add(1..=1, 0, 0);
    let demoted = pair.switch("demote", &["job-1"], &["--yes"]).await;
    demoted.check("job-1", "xxl-job", "runs in XXL-JOB from");
    assert!(pair.xxl_job_state(1).0 && pair.job("job-1").await["mode_from"].is_string(), "{demoted:?}");
    // XXL-JOB resets the instants of a job when a user stops it.
    pair.old.sql("UPDATE xxl_job_info SET trigger_status = 0, trigger_next_time = 0 WHERE id = 1");
    let planned = pair.switch("demote", &[], &["--app", "work"]).await;
    planned.check("job-1", "nowhere", "would stay stopped in XXL-JOB");
    let again = pair.switch("demote", &[], &["--app", "work", "--yes"]).await;
    assert_eq!(again.0.code, Some(0), "{again:?}");
    again.check("job-1", "nowhere", "stays stopped in XXL-JOB");
    assert_eq!(pair.xxl_job_state(1), (false, 0), "{again:?}");
}

/// With and without --yes, the command names the missing right and changes nothing.
#[tokio::test]
async fn an_account_that_may_only_read_switches_nothing() {
    let Some(mut pair) = Pair::start().await else { return };
    create(&pair.server, &[shadow(1, &json!({"schedule": {"cron": "0 0 3 * * ?"}}))]).await;
    let next = now_s() + 3_600;
    pair.old.add(1..=1, 1, next);
    let mut url = reqwest::Url::parse(&pair.source).expect("a URL");
    let schema = url.path().trim_start_matches('/').to_owned();
    let reader = format!("reader_{}", now_s());
    pair.old
        .sql(&format!("CREATE USER '{reader}'@'%' IDENTIFIED BY 'word'; GRANT SELECT ON {schema}.* TO '{reader}'@'%'"));
    url.set_username(&reader).expect("a user");
    url.set_password(Some("word")).expect("a password");
    pair.source = url.to_string();
    let grant = format!("GRANT SELECT, UPDATE ON {schema}.xxl_job_info TO '{reader}'@'%'");
    let rehearsed = pair.switch("promote", &["job-1"], &[]).await;
    assert!(rehearsed.0.code == Some(2) && rehearsed.0.stderr.contains(&grant), "{rehearsed:?}");
    for command in ["promote", "demote"] {
        let refusal = pair.switch(command, &["job-1"], &["--yes"]).await;
        assert!(refusal.0.code == Some(1) && refusal.0.stderr.contains("see RESULT of each"), "{refusal:?}");
        refusal.check("job-1", "xxl-job", &grant);
        refusal.check("job-1", "xxl-job", "nothing was changed");
    }
    pair.old.sql(&format!("DROP USER '{reader}'@'%'"));
    assert_eq!(pair.xxl_job_state(1), (true, next * 1_000));
    assert_eq!(pair.job("job-1").await["mode"], Value::from("shadow"));
}

/// Without --yes, the command reports where each job runs now, and what would happen to it.
#[tokio::test]
async fn a_rehearsal_names_where_each_job_runs() {
    let Some(pair) = Pair::start().await else { return };
    pair.old.add(1..=3, 1, now_s() + 3_600);
    pair.old.sql("UPDATE xxl_job_info SET trigger_status = 0, trigger_next_time = 0 WHERE id = 2");
    pair.old.sql("UPDATE xxl_job_info SET glue_type = 'GLUE_SHELL', executor_handler = '' WHERE id = 3");
    let cron = json!({"schedule": {"cron": "0 0 3 * * ?"}});
    let script = json!({"schedule": {"cron": "0 0 3 * * ?"}, "handler": "GLUE_SHELL", "params": {"source": "x"}});
    create(&pair.server, &[shadow(1, &cron), shadow(2, &json!({})), shadow(3, &script)]).await;
    let rehearsed = pair.switch("promote", &["job-1", "job-2", "job-3"], &[]).await;
    assert_eq!(rehearsed.0.code, Some(2), "{rehearsed:?}");
    rehearsed.check("job-1", "xxl-job", "would run here from its next one on");
    rehearsed.check("job-2", "xxl-job", "has no schedule: would run here when it is triggered");
    rehearsed.check("job-3", "xxl-job", "its script needs an executor in Java");
    let planned = Value::from(vec![shadow(4, &cron)]);
    let plan = pair.server.api().post("/api/v1/jobs/apply?dry_run=true", planned).await.expect(200).to_string();
    assert!(plan.contains("is in shadow mode") && plan.contains("rondel shadow promote"), "{plan}");
}

/// A demotion writes the instant `mode_from` into the definition; an imported file does not have this field.
#[tokio::test]
async fn a_file_without_a_seam_leaves_that_of_a_job_as_it_is() {
    let Some(pair) = Pair::start().await else { return };
    let job = shadow(1, &json!({"schedule": {"cron": "0 0 3 * * ?"}}));
    create(&pair.server, std::slice::from_ref(&job)).await;
    let seam = json!({"mode_from": "2026-01-01T00:00:00Z"});
    pair.server.api().patch("/api/v1/jobs/job-1", seam).await.expect(200);
    create(&pair.server, std::slice::from_ref(&job)).await;
    assert_eq!(pair.job("job-1").await["mode_from"], "2026-01-01T00:00:00Z");
    // The plan warns about a file that ends the shadow mode.
    let active = Value::from(vec![shadow(1, &json!({"schedule": job["schedule"], "mode": "active"}))]);
    let plan = pair.server.api().post("/api/v1/jobs/apply?dry_run=true", active).await.expect(200).to_string();
    assert!(plan.contains("leaves shadow mode") && plan.contains("rondel shadow promote stops it there"), "{plan}");
}
