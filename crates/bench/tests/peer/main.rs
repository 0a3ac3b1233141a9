//! Measures a small server that speaks like XXL-JOB or ratch-job and really fires its jobs.

mod fake_admin;

use std::sync::Arc;
use std::time::Duration;

use rondel_bench::{BenchError, PeerKind, PeerPlan, PeerReport, PeerSecret, run_peer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fake_admin::{Dialect, FakeAdmin, PASSWORD, TOKEN};

fn plan(admin: &FakeAdmin) -> PeerPlan {
    PeerPlan {
        url: format!("{}/xxl-job-admin/", admin.url),
        console: (admin.dialect == Dialect::Ratch).then(|| admin.url.clone()),
        kind: None,
        user: "admin".to_owned(),
        password: PeerSecret::new(PASSWORD),
        token: PeerSecret::new(TOKEN),
        pids: vec![std::process::id()],
        jobs: 4,
        seconds: 3,
        warm_up: 1,
        executors: 2,
    }
}

async fn measure(plan: &PeerPlan) -> Result<PeerReport, BenchError> {
    run_peer(plan, &CancellationToken::new()).await
}

/// Asserts that nothing of the measurement is left at the server.
#[track_caller]
fn assert_clean(admin: &FakeAdmin) {
    let world = admin.world();
    assert!(world.groups.is_empty() && world.jobs.is_empty() && world.addresses.is_empty(), "{world:?}");
}

/// Measures again if a busy machine made the server fire late, because the counts would then differ.
async fn measure_on_time(dialect: Dialect) -> (FakeAdmin, PeerReport) {
    for _ in 0..5 {
        let admin = FakeAdmin::start(dialect).await;
        let report = measure(&plan(&admin)).await.expect("a report");
        if admin.fires_were_late() {
            assert_clean(&admin);
            continue;
        }
        return (admin, report);
    }
    unreachable!("the machine is too slow for any measurement");
}

async fn each_fire_is_counted(dialect: Dialect, name: &str) {
    let (admin, report) = measure_on_time(dialect).await;
    assert!(report.peer.starts_with(name), "{report:?}");
    assert_eq!(report.left_behind, None);
    let counts = report.counts;
    // In these three seconds, the server skips one fire of one job, and fires another job twice once.
    assert_eq!((counts.planned, counts.started, counts.missing), (12, 11, 1), "{report:?}");
    assert_eq!((counts.repeated, counts.early, counts.started_late), (1, 0, 0), "{report:?}");
    assert!(counts.started_in_all >= 12 && (9..=16).contains(&counts.acknowledged), "{report:?}");
    assert_eq!(report.start_lateness.count, 11);
    assert!(report.start_lateness.max_ms < 1_000.0 && report.witness.count > 0, "{report:?}");
    let [process] = report.processes.as_slice() else { unreachable!("one process: {report:?}") };
    assert!(process.pid == std::process::id() && process.peak_mb > 0.0, "{process:?}");
    let lines = report.lines();
    let fires = lines.iter().find(|(name, _)| name == "fires").map(|(_, text)| text.as_str());
    assert_eq!(fires, Some("12 planned, 11 started, 1 missing, 1 repeated, 0 early"));
    assert_clean(&admin);
    // The jobs were created stopped, started, stopped, and removed.
    let world = admin.world();
    assert_eq!([world.created, world.started, world.stopped, world.removed], [4, 4, 4, 4], "{world:?}");
}

#[tokio::test]
async fn xxl_job_since_3_3_is_measured() {
    each_fire_is_counted(Dialect::XxlNew, "XXL-JOB 3.3 or later").await;
}

#[tokio::test]
async fn xxl_job_before_3_3_is_measured() {
    each_fire_is_counted(Dialect::XxlOld, "XXL-JOB before 3.3").await;
}

#[tokio::test]
async fn ratch_job_is_measured() {
    each_fire_is_counted(Dialect::Ratch, "ratch-job 0.2.1").await;
}

#[tokio::test]
async fn a_stop_leaves_nothing_behind() {
    for dialect in [Dialect::XxlNew, Dialect::Ratch] {
        let admin = FakeAdmin::start(dialect).await;
        let (plan, stop) = (PeerPlan { seconds: 600, ..plan(&admin) }, CancellationToken::new());
        let mut tasks = JoinSet::new();
        let (task_stop, shared) = (stop.clone(), Arc::clone(&admin.shared));
        tasks.spawn(async move { run_peer(&plan, &task_stop).await.map(|_| ()) });
        let all_start = async {
            while !shared.is_started(4) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all_start).await.expect("the jobs are started");
        stop.cancel();
        let result = tasks.join_next().await.expect("a task").expect("no panic");
        assert!(matches!(result, Err(BenchError::Stopped)), "{result:?}");
        assert_clean(&admin);
    }
}

#[tokio::test]
async fn refusals_name_the_flag_and_the_answer() {
    for dialect in [Dialect::XxlNew, Dialect::XxlOld, Dialect::Ratch] {
        let admin = FakeAdmin::start(dialect).await;
        let password = PeerSecret::new("wrong-one");
        let refusal = measure(&PeerPlan { password, ..plan(&admin) }).await.expect_err("a refusal");
        let text = refusal.to_string();
        assert!(matches!(refusal, BenchError::Auth { .. }), "{dialect:?}: {text}");
        assert!(text.contains("--peer-user or its password") && !text.contains("wrong-one"), "{text}");

        let token = PeerSecret::new("another-one");
        let refusal = measure(&PeerPlan { token, ..plan(&admin) }).await.expect_err("a refusal");
        let text = refusal.to_string();
        assert!(
            text.contains("--peer-token") && text.contains("token is wrong") && !text.contains("another-one"),
            "{text}"
        );
        assert_clean(&admin);
    }
}

#[tokio::test]
async fn a_console_with_a_captcha_names_the_setting() {
    let admin = FakeAdmin::start(Dialect::RatchWithCaptcha).await;
    let plan = PeerPlan { console: Some(admin.url.clone()), ..plan(&admin) };
    let refusal = measure(&plan).await.expect_err("a refusal").to_string();
    assert!(refusal.contains("RATCH_CONSOLE_ENABLE_CAPTCHA=false"), "{refusal}");
}

#[tokio::test]
async fn other_servers_are_refused_with_their_answer() {
    let admin = FakeAdmin::start(Dialect::WebPage).await;
    let refusal = measure(&plan(&admin)).await.expect_err("a refusal").to_string();
    assert!(refusal.starts_with("--peer-url: ") && refusal.contains("<h1>Welcome</h1>"), "{refusal}");
    let refusal = measure(&PeerPlan { kind: Some(PeerKind::Ratch), console: Some(admin.url.clone()), ..plan(&admin) })
        .await
        .expect_err("a refusal");
    assert!(refusal.to_string().starts_with("--peer-console: "), "{refusal}");

    let url = format!("{}/xxl-job-admin", FakeAdmin::closed_url().await);
    let refusal = measure(&PeerPlan { url, ..plan(&admin) }).await.expect_err("a refusal");
    assert!(matches!(refusal, BenchError::Unreachable { .. }), "{refusal:?}");
    assert!(refusal.to_string().starts_with("--peer-url: cannot reach "), "{refusal}");
}

#[tokio::test]
async fn bad_plans_are_refused_before_the_server_is_asked() {
    let admin = FakeAdmin::start(Dialect::XxlNew).await;
    for (bad_plan, flag) in [
        (PeerPlan { jobs: 0, ..plan(&admin) }, "--jobs"),
        (PeerPlan { executors: 0, ..plan(&admin) }, "--executors"),
        (PeerPlan { url: "x".to_owned(), ..plan(&admin) }, "--peer-url"),
        (PeerPlan { pids: vec![0], ..plan(&admin) }, "--peer-pid"),
    ] {
        let refusal = measure(&bad_plan).await.expect_err("a refusal");
        assert!(matches!(refusal, BenchError::Refused { .. }) && refusal.to_string().contains(flag), "{refusal}");
    }
    assert_eq!(admin.world().call_count, 0);
}
