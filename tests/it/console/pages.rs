//! The screens of the console, for tests that walk all of them.

use rondel_tests::Api;
use serde_json::{Value, json};

use super::alerts::{CHANNEL, RULE, incident};
use super::old_scheduler::observe_fires;

/// A page.
#[derive(Clone, Debug)]
pub(super) struct Screen {
    pub(super) name: &'static str,
    pub(super) path: String,
    /// Whether users keep this page open all day.
    pub(super) is_main: bool,
}

/// The objects that are shown by the pages of a single object.
#[derive(Clone, Debug)]
pub(super) struct Subjects {
    /// A job with two versions. Its why page is opened for the instant `at`.
    pub(super) job: String,
    pub(super) at: String,
    /// A run with a log, which failed.
    pub(super) run: String,
    /// The root run of a broadcast.
    pub(super) broadcast_root: String,
    pub(super) executor: String,
    /// A run that lasts as long as the pictures are taken.
    pub(super) live: Option<String>,
    /// A namespace without a job.
    pub(super) empty: &'static str,
    /// A namespace with two maintenance windows, one open and one upcoming, if there is such a namespace.
    pub(super) announced: Option<&'static str>,
    pub(super) incident: Option<String>,
}

impl Subjects {
    /// The objects on the server that `furnish` has filled.
    pub(super) async fn of_furnished(api: &Api) -> Self {
        observe_fires(api, "demo").await;
        Self {
            job: "billing.close-month".to_owned(),
            at: "01:00".to_owned(),
            run: newest_run(api, "billing.close-month").await,
            broadcast_root: newest_run(api, "inventory.sync").await,
            executor: "dev?app=demo".to_owned(),
            live: None,
            empty: "empty",
            announced: None,
            incident: Some(incident(api).await),
        }
    }
}

const SCRIPT: &str = "close-orders";

/// Saves a script in two versions, unless it exists.
pub(super) async fn save_script(api: &Api) {
    for (source, note) in [
        ("#!/bin/sh\nset -e\necho \"closing orders of $1\"\n", "first version"),
        ("#!/bin/sh\nset -eu\necho \"closing orders of ${1:?a region}\"\n", "refuses to run without a region"),
    ] {
        let script = json!({"language": "shell", "source": source, "note": note});
        let status = api.put(&format!("/api/v1/scripts/{SCRIPT}"), script).await.status;
        assert!(matches!(status, 200 | 201), "the script: {status}");
    }
}

/// The newest run of a job that is no shard.
pub(super) async fn newest_run(api: &Api, job: &str) -> String {
    let runs = api.runs(job).await;
    let is_root = |run: &&Value| run["shard_index"].is_null() || run["shard_total"] == 1;
    let shown = runs.iter().find(is_root).unwrap_or(&Value::Null);
    assert!(shown["id"].is_string(), "{job} has no run: {runs:?}");
    shown["id"].as_str().unwrap_or_default().to_owned()
}

/// Every screen of a user who may do everything.
pub(super) fn screens(of: &Subjects) -> Vec<Screen> {
    let Subjects { job, at, run, broadcast_root, executor, live, empty, announced, incident } = of;
    let main = [
        ("now", "/".to_owned()),
        ("timeline", "/timeline".to_owned()),
        ("jobs", "/jobs".to_owned()),
        ("job", format!("/jobs/{job}")),
        ("runs", "/runs".to_owned()),
        ("run", format!("/runs/{run}")),
        ("executors", "/executors".to_owned()),
    ];
    let others = [
        ("first-steps", format!("/n/{empty}/")),
        ("no-jobs", format!("/n/{empty}/jobs")),
        ("no-runs", format!("/n/{empty}/runs")),
        ("no-match", "/jobs?q=nosuchname".to_owned()),
        ("no-timeline", format!("/n/{empty}/timeline")),
        ("no-executors", format!("/n/{empty}/executors")),
        ("no-alerts", format!("/n/{empty}/alerts")),
        ("no-channels", format!("/n/{empty}/alerts/channels")),
        ("no-reports", format!("/n/{empty}/reports")),
        ("no-calendars", format!("/n/{empty}/calendars")),
        ("timeline-1h", "/timeline?zoom=1h".to_owned()),
        ("timeline-6h", "/timeline?zoom=6h".to_owned()),
        ("timeline-7d", "/timeline?zoom=7d".to_owned()),
        ("timeline-apps", "/timeline?zoom=7d&by=app".to_owned()),
        ("timeline-executors", "/timeline?by=executor".to_owned()),
        ("ahead", "/timeline/ahead".to_owned()),
        ("jobs-by-app", "/jobs?sort=app".to_owned()),
        ("jobs-paused", "/jobs?q=is:paused".to_owned()),
        ("fires", format!("/jobs/{job}/fires")),
        ("job-activity", format!("/jobs/{job}/activity")),
        ("versions", format!("/jobs/{job}/versions?from=1&to=2")),
        ("edit", format!("/jobs/{job}/edit")),
        ("new", "/jobs/new".to_owned()),
        ("runs-failed", "/runs?q=status:failed%20since:1d".to_owned()),
        ("runs-dead", "/runs?q=is:dead".to_owned()),
        ("runs-slow", "/runs?sort=longest".to_owned()),
        ("shards", format!("/runs/{broadcast_root}")),
        ("why", "/why".to_owned()),
        ("why-answer", format!("/why?job={job}&at={at}")),
        ("alerts", "/alerts".to_owned()),
        ("alert-rule-new", "/alerts/rules/new".to_owned()),
        ("alert-rule", format!("/alerts/rules/{RULE}")),
        ("channels", "/alerts/channels".to_owned()),
        ("channel", format!("/alerts/channels/{CHANNEL}")),
        ("channel-new", "/alerts/channels/new?kind=email".to_owned()),
        ("reports", "/reports".to_owned()),
        ("reports-by-job", "/reports?by=job&period=day".to_owned()),
        ("shadow", "/shadow".to_owned()),
        ("calendars", "/calendars".to_owned()),
        ("calendar", "/calendars/holidays?year=2027".to_owned()),
        ("no-scripts", format!("/n/{empty}/scripts")),
        ("scripts", "/scripts".to_owned()),
        ("script", format!("/scripts/{SCRIPT}?from=1")),
        ("executor", format!("/executors/{executor}")),
        ("executor-new", "/executors/new".to_owned()),
        ("activity", "/activity".to_owned()),
        ("settings", "/settings".to_owned()),
        ("users", "/users".to_owned()),
        ("tokens", "/settings/tokens".to_owned()),
        ("webhooks", "/settings/webhooks".to_owned()),
        ("sign-in", "/settings/sign-in".to_owned()),
        ("account", "/account".to_owned()),
        ("namespaces", "/namespaces".to_owned()),
        ("palette", "/palette".to_owned()),
        ("api", "/api-docs".to_owned()),
        ("api-endpoint", "/api-docs?q=bulk".to_owned()),
    ];
    let screen = |is_main| move |(name, path)| Screen { name, path, is_main };
    let incident = incident.iter().map(|id| ("incident", format!("/alerts/incidents/{id}")));
    let live = live.iter().map(|id| ("run-live", format!("/runs/{id}")));
    let announced = announced
        .iter()
        .flat_map(|name| [("maintenance", format!("/n/{name}/alerts")), ("maintenance-now", format!("/n/{name}/"))]);
    let others = others.into_iter().chain(incident).chain(live).chain(announced);
    main.into_iter().map(screen(true)).chain(others.map(screen(false))).collect()
}
