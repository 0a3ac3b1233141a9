//! Jobs are switched over to Rondel and back while both schedulers fire.

use std::collections::BTreeMap;

use rondel_tests::{Agent, Backend, Server, scratch, wait_until, wall_clock_ms};
use serde_json::{Value, json};

use super::old_scheduler::OldScheduler;
use super::{LIMIT, clock_at, create, run, shadow};
use crate::journal::seconds;

const JOB_COUNT: i64 = 50;
const PERIOD_S: i64 = 2;

/// The lines of the jobs' handlers: the job's number and the planned instant.
fn read(journal: &std::path::Path) -> Vec<(i64, i64)> {
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    let line = |line: &str| {
        let (job, at) = line.split_once(' ')?;
        Some((job.strip_prefix("job-")?.parse().ok()?, seconds(at)))
    };
    text.lines().filter_map(line).collect()
}

fn even(second: i64) -> i64 {
    (second + PERIOD_S - 1) / PERIOD_S * PERIOD_S
}

async fn switched(server: &Server, command: &str, old: &str) -> Vec<Value> {
    let names: Vec<String> = (1..=JOB_COUNT).map(|number| format!("job-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let args =
        [&["shadow", command, "--source", old, "--yes", "--wait", "20s", "-o", "json"], names.as_slice()].concat();
    let output = run(server, &args).await;
    assert!(output.code == Some(0), "{command}: {} {}", output.stdout, output.stderr);
    let answer: Value = serde_json::from_str(&output.stdout).expect("JSON");
    answer["items"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn fifty_jobs_are_promoted_and_demoted_without_a_fire_lost_or_doubled() {
    let Some(foreign) = scratch(Backend::Mysql).await else { return };
    let Some(own_db) = scratch(Backend::Sqlite).await else { return };
    let mut old = OldScheduler::new(&foreign);
    let server = Server::start(&own_db).await;
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let script = format!("echo $RONDEL_JOB $RONDEL_FIRE_AT >> {}", journal.display());
    let extra_fields = json!({
        "schedule": {"cron": format!("*/{PERIOD_S} * * * * ?")}, "params": {"argv": ["sh", "-c", script]},
        "overlap": {"policy": "allow"}, "misfire": {"policy": "all", "max": 1000}, "queue_timeout": "1m",
    });
    let mut jobs: Vec<Value> = (1..=JOB_COUNT).map(|number| shadow(number, &extra_fields)).collect();
    let load = |number| json!({"name": format!("load-{number}"), "app": "load", "handler": "shell", "params": {"argv": ["true"]}, "schedule": {"every": "1s"}});
    jobs.extend((0..10).map(load));
    create(&server, &jobs).await;
    let _agent = Agent::start_with(&server, "work", &["--slots", "40"]).await;
    let _load = Agent::start_with(&server, "load", &[]).await;
    let first = even(wall_clock_ms() / 1_000 + 6);
    old.add(1..=JOB_COUNT, 1, first);
    old.run(PERIOD_S);
    clock_at(first + 2).await;

    let promoted = switched(&server, "promote", foreign.url()).await;
    let seams: Vec<i64> = promoted.iter().map(|one| seconds(one["seam"].as_str().expect("a seam"))).collect();
    assert_eq!(promoted.len(), usize::try_from(JOB_COUNT).expect("few"));
    clock_at(seams.iter().max().expect("some") + 2 * PERIOD_S).await;

    let demoted = switched(&server, "demote", foreign.url()).await;
    let last = demoted.iter().map(|one| seconds(one["seam"].as_str().expect("a seam"))).max().expect("some");
    let end = even(last + 2 * PERIOD_S);
    clock_at(end).await;

    let both = wait_until(LIMIT, "every fire is in one journal", async || {
        let mut counts: BTreeMap<(i64, i64), u32> = BTreeMap::new();
        for fire in old.fired().into_iter().chain(read(&journal)) {
            *counts.entry(fire).or_default() += 1;
        }
        let instants = || (first..=end).step_by(usize::try_from(PERIOD_S).expect("small"));
        let is_lost = |fire: &(i64, i64)| !counts.contains_key(fire);
        let lost: Vec<(i64, i64)> =
            (1..=JOB_COUNT).flat_map(|job| instants().map(move |at| (job, at))).filter(is_lost).collect();
        if lost.is_empty() { Ok(counts) } else { Err(lost) }
    })
    .await;
    let doubled: Vec<_> = both.iter().filter(|(_, count)| **count != 1).collect();
    assert!(doubled.is_empty(), "fired more than once: {doubled:?}; {promoted:?} {demoted:?}");
    let (here, there) = (read(&journal), old.fired());
    for (number, seam) in (1..=JOB_COUNT).zip(&seams) {
        let of =
            |fires: &[(i64, i64)], is: &dyn Fn(i64) -> bool| fires.iter().any(|(job, at)| *job == number && is(*at));
        assert!(
            of(&there, &|at| at < *seam) && of(&here, &|at| at == *seam),
            "job {number} runs here from its seam on"
        );
        assert!(of(&there, &|at| at >= last), "job {number} runs there again");
    }
}

/// The command dies after XXL-JOB has stopped the job. Run again, it completes the switch, and names the fires that ran
/// on neither side.
#[tokio::test]
async fn a_switch_that_died_between_its_steps_is_finished_by_the_same_command() {
    let Some(foreign) = scratch(Backend::Mysql).await else { return };
    let Some(own_db) = scratch(Backend::Sqlite).await else { return };
    let old = OldScheduler::new(&foreign);
    let server = Server::start(&own_db).await;
    let schedule = json!({"schedule": {"cron": "*/2 * * * * ?"}});
    create(&server, &[shadow(1, &schedule), shadow(2, &schedule), shadow(3, &schedule)]).await;
    let past = even(wall_clock_ms() / 1_000 - 60);
    old.add(1..=1, 0, past);
    old.add(2..=2, 1, past);
    let promote = |job: &'static str, yes: bool| {
        let server = &server;
        let source = foreign.url();
        async move {
            let yes: &[&str] = if yes { &["--yes"] } else { &[] };
            run(server, &[&["shadow", "promote", job, "--source", source, "--wait", "1s", "--force"], yes].concat())
                .await
        }
    };
    let shown = promote("job-1", false).await;
    assert!(shown.code == Some(2) && shown.stderr.contains("add --yes"), "{shown:?}");
    assert_eq!(server.api().get("/api/v1/jobs/job-1").await.expect(200)["mode"], "shadow");
    let finished = promote("job-1", true).await;
    assert!(finished.code == Some(1) && finished.stdout.contains("ran on neither side"), "{finished:?}");
    let job = server.api().get("/api/v1/jobs/job-1").await.expect(200);
    assert!(job["mode_from"].is_string() && job["mode"] != "shadow", "{job}");
    let again = promote("job-1", true).await;
    assert!(again.code == Some(0) && again.stdout.contains("was switched before"), "{again:?}");
    // XXL-JOB's servers do not take up fires, so nothing is changed.
    let behind = promote("job-2", true).await;
    assert!(behind.code == Some(1) && behind.stdout.contains("has not taken up its fire"), "{behind:?}");
    assert_eq!(old.sql("SELECT trigger_status FROM xxl_job_info WHERE id = 2"), "1");
    let unknown = promote("job-3", true).await;
    assert!(unknown.code == Some(1) && unknown.stdout.contains("XXL-JOB has no job 3"), "{unknown:?}");
    // The job is given up in Rondel, and not started in XXL-JOB.
    let seam = json!({"mode": "shadow", "mode_from": "2026-01-01T00:00:00Z"});
    server.api().patch("/api/v1/jobs/job-1", seam).await.expect(200);
    let demoted = run(&server, &["shadow", "demote", "job-1", "--source", foreign.url(), "--yes"]).await;
    assert!(demoted.code == Some(1) && demoted.stdout.contains("ran on neither side"), "{demoted:?}");
    let there = old.sql("SELECT trigger_status, trigger_next_time FROM xxl_job_info WHERE id = 1");
    let (status, next) = there.split_once('\t').expect("two columns");
    assert!(status == "1" && next.parse::<i64>().expect("a number") > past * 1_000, "{there}");
    let job = server.api().get("/api/v1/jobs/job-1").await.expect(200);
    assert_eq!(job["mode"], "shadow");
    old.sql("DELETE FROM xxl_job_lock");
    let unlocked = promote("job-2", true).await;
    assert!(unlocked.code == Some(1) && unlocked.stdout.contains("schedule_lock"), "{unlocked:?}");
}
