//! `/metrics` exposes what documents, dashboards and rules use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rondel_tests::{Agent, Api, Backend, Server, scratch, wait_until};
use serde_json::{Value, json};

use crate::verdicts::{trigger, wait_for_verdict};

/// The answer to a scrape.
struct Scrape {
    text: String,
    /// The kinds of the families, by their names.
    kinds: BTreeMap<String, String>,
}

impl Scrape {
    async fn of(api: &Api) -> Self {
        let answer = api.get("/metrics").await;
        let kind = answer.headers["content-type"].to_str().expect("a media type").to_owned();
        assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        let Value::String(text) = answer.expect(200) else { panic!("not a text") };
        assert!(text.ends_with("# EOF\n"), "{text}");
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let kinds = families.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect();
        Self { text, kinds }
    }

    /// The names of the samples, as queries use them.
    fn names(&self) -> BTreeSet<String> {
        let endings = |kind: &str| match kind {
            "counter" => &["_total"][..],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        let names = |(name, kind): (&String, &String)| {
            endings(kind).iter().map(|ending| format!("{name}{ending}")).collect::<Vec<_>>()
        };
        self.kinds.iter().flat_map(names).collect()
    }

    /// The value of a sample with these labels, whatever others it has.
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let is_it = |line: &&str| {
            let rest = line.strip_prefix(name).unwrap_or_default();
            rest.starts_with(['{', ' '])
                && labels.iter().all(|(key, value)| rest.contains(&format!("{key}=\"{value}\"")))
        };
        self.text.lines().find(is_it)?.rsplit(' ').next()?.parse().ok()
    }
}

/// The words of a text that begin like the names of Rondel's metrics.
fn ours(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("rondel_") || word.starts_with("process_")).map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[tokio::test]
async fn documents_dashboards_and_rules_name_existing_metrics() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    let scrape = Scrape::of(&server.api()).await;
    let names = scrape.names();

    let document = read("docs/METRICS.md");
    let described: BTreeSet<String> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| name.starts_with("rondel_") || name.starts_with("process_"))
        .map(|name| name.split('{').next().unwrap_or(name).to_owned())
        .collect();
    let exposed: BTreeSet<String> = scrape
        .kinds
        .iter()
        .map(|(name, kind)| if kind == "counter" { format!("{name}_total") } else { name.clone() })
        .collect();
    assert_eq!(described, exposed, "left: docs/METRICS.md; right: /metrics");

    for path in ["docs/grafana/overview.json", "docs/grafana/job.json", "docs/prometheus/rules.yml"] {
        let used = ours(&read(path));
        let unknown: Vec<_> = used.difference(&names).collect();
        assert!(!used.is_empty() && unknown.is_empty(), "{path}: {unknown:?}");
    }
    for path in ["docs/grafana/overview.json", "docs/grafana/job.json"] {
        let board: Value = serde_json::from_str(&read(path)).expect("a dashboard is JSON");
        assert!(
            board["uid"].is_string() && board["panels"].as_array().is_some_and(|panels| panels.len() > 3),
            "{path}"
        );
    }
}

#[tokio::test]
async fn runs_fires_and_jobs_are_counted() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start_with(&db, &["--metrics-job-max", "2", "--metrics-labels", "team,app.tier"]).await;
    let api = server.api();
    let shell = |name: &str, program: &str| json!({"name": name, "app": "counted", "handler": "shell", "params": {"argv": [program]}});
    for (mut job, labels) in [
        (shell("good", "true"), json!({"team": "pay", "app.tier": "1"})),
        (shell("bad", "false"), json!({"team": "ops \"x\"", "other": "y"})),
        (shell("third", "true"), json!({})),
    ] {
        job["labels"] = labels;
        api.post("/api/v1/jobs", job).await.expect(201);
    }
    api.post("/api/v1/jobs", json!({"name": "unserved", "app": "empty", "handler": "x", "queue_timeout": "1s"}))
        .await
        .expect(201);
    let _agent = Agent::start(&server, "counted").await;
    for job in ["good", "bad", "bad", "third", "unserved"] {
        wait_for_verdict(&api, &trigger(&api, job).await).await;
    }
    let scrape = wait_until(std::time::Duration::from_secs(10), "all is counted", async || {
        let scrape = Scrape::of(&api).await;
        let missed = scrape.value("rondel_missed_fires_total", &[("reason", "no_executor")]);
        if missed == Some(1.0) { Ok(scrape) } else { Err(scrape.text) }
    })
    .await;
    let value = |name: &str, labels: &[(&str, &str)]| {
        scrape.value(name, labels).unwrap_or_else(|| panic!("no {name} {labels:?} in {}", scrape.text))
    };
    let is = |name: &str, labels: &[(&str, &str)], expected: f64| {
        let found = value(name, labels);
        assert!((found - expected).abs() < 0.01, "{name} {labels:?} is {found}, not {expected}");
    };
    let default = ("namespace", "default");
    is("rondel_runs_total", &[default, ("status", "succeeded")], 2.0);
    is("rondel_runs_total", &[default, ("status", "failed")], 2.0);
    is("rondel_runs_total", &[default, ("status", "skipped")], 1.0);
    let labelled = "rondel_labelled_runs_total";
    let counted = ("app", "counted");
    is(labelled, &[default, counted, ("status", "succeeded"), ("label_team", "pay"), ("label_app_tier", "1")], 1.0);
    is(labelled, &[default, counted, ("status", "failed"), ("label_app_tier", "")], 2.0);
    is(labelled, &[default, counted, ("status", "succeeded"), ("label_team", "")], 1.0);
    assert!(!scrape.text.contains("label_other"), "{}", scrape.text);
    is("rondel_fires_total", &[default, ("trigger", "api"), ("outcome", "dispatched")], 4.0);
    is("rondel_fires_total", &[default, ("trigger", "api"), ("outcome", "no_executor")], 1.0);
    is("rondel_run_duration_seconds_count", &[], 4.0);
    is("rondel_run_queue_seconds_count", &[], 4.0);
    is("rondel_executors", &[default, ("app", "counted"), ("state", "online")], 1.0);
    is("rondel_nodes", &[("state", "active")], 1.0);
    is("rondel_node_lease_held", &[], 1.0);
    is("rondel_executors_lost_total", &[], 0.0);
    is("rondel_job_consecutive_failures", &[default, ("job", "bad")], 2.0);
    is("rondel_job_last_run_status", &[("job", "bad"), ("status", "failed")], 1.0);
    assert!(value("rondel_job_last_success_timestamp_seconds", &[("job", "good")]) > 1.7e9);
    assert_eq!(scrape.value("rondel_job_info", &[("job", "third")]), None, "two jobs have series, not three");
    assert!(value("process_resident_memory_bytes", &[]) > 1e6);
    assert!(value("rondel_http_requests_total", &[("class", "2xx")]) > 5.0);
    assert!(value("rondel_scheduler_lag_seconds", &[]) < 10.0);
}

#[tokio::test]
async fn strangers_read_no_metrics() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let server = Server::start(&db).await;
    assert_eq!(Api::anonymous(server.url()).get("/metrics").await.status, 401);
    let ready = server.api().get("/readyz?verbose").await.expect(200);
    let checks = ready["details"].as_array().expect("a list");
    assert!(checks.len() >= 5 && checks.iter().all(|check| check["ok"] == true), "{ready:#}");
    assert_eq!(server.api().get("/readyz").await.expect(200)["details"], Value::Null);
}
