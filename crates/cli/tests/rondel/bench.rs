//! `rondel bench`: the figures agree with each other, and a database in use is left alone.

use serde_json::Value;
use tempfile::tempdir;

use crate::process::run;

fn measure(url: &str, more: &[&str]) -> Value {
    let args = ["bench", "--database", url, "--jobs", "20", "--slots", "50", "-o", "json"];
    let output = run(&[&args[..], more].concat());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout))
}

/// Checks that every run was started once, ended once, and is in the ledger.
#[track_caller]
fn check_counts(report: &Value, planned: u64) {
    let counts = &report["counts"];
    for name in ["planned", "claimed", "started", "durable"] {
        assert_eq!(counts[name], planned, "{name}: {report:#}");
    }
    assert_eq!(counts["started_in_all"], counts["durable_in_all"], "{report:#}");
    for name in ["other_answers", "repeated", "early"] {
        assert_eq!(counts[name], 0, "{name}: {report:#}");
    }
    assert_eq!(report["start_lateness"]["count"], planned);
    assert!(report["witness"]["count"].as_u64() > Some(0));
    assert!(report["cpu"]["server_s"].as_f64() > Some(0.0));
}

/// Checks SQLite's counts: all runs of the measurement, at least an insert and an update for each, and its tables.
#[track_caller]
fn check_database_work(report: &Value) {
    let work = &report["database_work"];
    assert_eq!(work["runs"], report["counts"]["durable_in_all"], "{work:#}");
    assert_eq!(work["open_runs"], 0, "{work:#}");
    let per_1000_runs = &work["per_1000_runs"];
    // Not every system shows what a thread has written. A note replaces it.
    let note_count = usize::from(per_1000_runs["file_bytes"].is_null());
    assert!(work["notes"].as_array().is_some_and(|notes| notes.len() == note_count), "{work:#}");
    assert!(per_1000_runs["rows"]["changed"].as_f64() >= Some(2_000.0), "{work:#}");
    assert!(
        per_1000_runs["file_bytes"].is_null() || per_1000_runs["file_bytes"].as_f64() > Some(100_000.0),
        "{work:#}"
    );
    assert!(per_1000_runs["log_bytes"].is_null() && work["hot_percent"].is_null(), "{work:#}");
    let run = table(work, "run");
    assert!(run["after"]["table_bytes"].as_u64() >= run["before"]["table_bytes"].as_u64(), "{work:#}");
    assert!(run["after"]["index_bytes"].as_u64() > Some(0) && run["after"]["dead_rows"].is_null(), "{work:#}");
}

#[track_caller]
fn table<'a>(work: &'a Value, name: &str) -> &'a Value {
    let mut tables = work["tables"].as_array().into_iter().flatten();
    tables.find(|table| table["name"] == name).unwrap_or_else(|| panic!("no table {name}: {work:#}"))
}

#[test]
fn steady_adds_up_and_wants_an_empty_database() {
    let folder = tempdir().expect("make a folder");
    let url = format!("sqlite://{}", folder.path().join("bench.db").display());
    let report = measure(&url, &["--seconds", "3", "--warm-up", "1", "--executors", "2", "--probe", "100ms"]);
    check_counts(&report, 60);
    let rate = report["runs_per_second"].as_f64().expect("a rate");
    assert!((10.0..=30.0).contains(&rate), "{rate}");
    assert!(report["probe"]["best"].as_f64() > Some(rate), "{report:#}");
    assert!(report["probe"]["before"].as_array().is_some_and(|lanes| lanes.len() == 2));
    check_database_work(&report);

    let again = run(&["bench", "--database", &url, "--seconds", "1"]);
    again.refused(2, &["not empty", "job \"bench-", "--reuse"]);
}

#[test]
fn burst_adds_up_with_executors_apart() {
    let folder = tempdir().expect("make a folder");
    let url = format!("sqlite://{}", folder.path().join("bench.db").display());
    let report = measure(&url, &["--mode", "burst", "--separate", "--executors", "2", "--probe", "0s"]);
    check_counts(&report, 20);
    assert!(report["cpu"]["executors_s"].is_number() && report["memory"]["executor_peak_mb"].as_f64() > Some(0.0));
    assert!(report["probe"].is_null());
    assert!(report["durability"]["max_ms"].as_f64() > report["start_lateness"]["p50_ms"].as_f64());
    check_database_work(&report);
}

#[test]
fn idle_fires_nothing() {
    let folder = tempdir().expect("make a folder");
    let url = format!("sqlite://{}", folder.path().join("bench.db").display());
    let report = measure(&url, &["--mode", "idle", "--seconds", "1", "--warm-up", "0", "--executors", "0"]);
    check_counts(&report, 0);
    let work = &report["database_work"];
    assert!(work["per_1000_runs"].is_null() && work["total"]["rows"]["changed"].is_number(), "{work:#}");
}

/// The jobs of the history are paused, so that only the measured runs cost anything.
#[test]
fn a_history_does_not_fire_while_it_is_measured() {
    let folder = tempdir().expect("make a folder");
    let url = format!("sqlite://{}", folder.path().join("bench.db").display());
    let output = run(&["bench", "seed", "--database", &url, "--jobs", "40", "--history", "3000", "--paused"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stdout.starts_with("40 jobs, "), "{}", output.stdout);
    let report = measure(&url, &["--mode", "burst", "--reuse", "--executors", "1", "--probe", "0s"]);
    check_counts(&report, 20);
    check_database_work(&report);
    let run = table(&report["database_work"], "run");
    assert!(run["before"]["table_bytes"].as_u64() > Some(50_000), "the history is in it: {run:#}");
}

/// Each round has its own jobs, and those of the previous rounds have ended.
#[test]
fn the_highest_rate_is_that_of_the_best_round() {
    let folder = tempdir().expect("make a folder");
    let url = format!("sqlite://{}", folder.path().join("bench.db").display());
    let search = ["--mode", "max", "--jobs", "2", "--jobs-max", "4", "--late-max", "1m", "--probe", "0s"];
    let output =
        run(&[&["bench", "--database", &url, "--seconds", "3", "--warm-up", "1", "-o", "json"], &search[..]].concat());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).expect("a report");
    let rounds = report["rounds"].as_array().expect("rounds");
    assert_eq!(output.stderr.lines().filter(|line| line.contains(" runs per second: ")).count(), rounds.len());
    for round in rounds {
        let (jobs, measured) = (round["jobs"].as_u64().expect("a rate"), &round["report"]);
        check_counts(measured, jobs * 3);
    }
    let kept =
        rounds.iter().filter(|round| round["failure"].is_null()).filter_map(|round| round["jobs"].as_u64()).max();
    assert_eq!(report["highest"]["jobs"].as_u64(), kept, "{report:#}");
}

#[test]
fn nonsense_is_refused() {
    let measure = |more: &[&str]| run(&[&["bench", "--database", "sqlite:///nonexistent/x.db"], more].concat());
    measure(&["--jobs", "0"]).refused(2, &["--jobs"]);
    measure(&["--executors", "0"]).refused(2, &["--executors"]);
    measure(&["--late-max", "1s"]).refused(2, &["--late-max", "--mode max"]);
    measure(&["--jobs-max", "9"]).refused(2, &["--jobs-max", "--mode max"]);
    measure(&[]).refused(1, &["/nonexistent/x.db"]);
    assert_eq!(run(&["bench"]).code, Some(2));
}

#[test]
fn another_server_has_flags_of_its_own() {
    let measure = |more: &[&str]| run(&[&["bench", "--peer-url", "http://127.0.0.1:1/xxl-job-admin"], more].concat());
    measure(&[]).refused(2, &["--peer-password-file", "RONDEL_PEER_PASSWORD"]);
    let folder = tempdir().expect("make a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("write a file");
        path.display().to_string()
    };
    let (password, empty) = (file("password", "123456\n"), file("empty", "\n"));
    let with_password = |more: &[&str]| measure(&[&["--peer-password-file", password.as_str()], more].concat());
    measure(&["--peer-password-file", &empty]).refused(2, &["--peer-password-file", "is empty"]);
    with_password(&["--peer-token-file", &empty]).refused(2, &["--peer-token-file", "is empty"]);
    with_password(&["--jobs", "0"]).refused(2, &["--jobs"]);
    with_password(&["--peer-pid", "0"]).refused(2, &["--peer-pid"]);
    with_password(&["--peer-console", "x"]).refused(2, &["--peer-console"]);
    with_password(&[]).refused(8, &["--peer-url", "cannot reach http://127.0.0.1:1/"]);
    for more in [["--mode", "burst"], ["--database", "sqlite:///nonexistent/x.db"], ["--slots", "9"]] {
        assert_eq!(with_password(&more).code, Some(2), "{more:?}");
    }
    let without = run(&["bench", "--database", "sqlite:///nonexistent/x.db", "--peer-pid", "1"]);
    assert_eq!(without.code, Some(2), "{}", without.stderr);
}
