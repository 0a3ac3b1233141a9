//! The checks of `rondel doctor` on nodes, executors and apps.

use std::collections::BTreeMap;

use rondel_core::Timestamp;
use serde_json::Value;

use super::alerts::Alerts;
use super::jobs::Jobs;
use super::{Check, failed_check, passed_check, warning_check};
use crate::client::{Client, text_of};
use crate::clock;
use crate::exit::Failure;
use crate::list::{all_items, items, items_and_rest};
use crate::status::pending_runs_until;

/// Maximum number of apps whose jobs and problems are read; the others are only counted.
const APP_COUNT_MAX: usize = 50;

/// The server's data that the checks need.
#[derive(Debug, Default)]
struct ClusterState {
    nodes: Vec<Value>,
    executors: Vec<Value>,
    apps: Vec<Value>,
    /// Runs that wait to be sent.
    pending_runs: Vec<Value>,
    /// The jobs, keyed by the names of their apps.
    jobs: BTreeMap<String, Vec<Value>>,
    /// The apps with more jobs than were read.
    apps_with_unread_jobs: Vec<String>,
    /// The problems with the jobs that an app's code declares, keyed by the app's name.
    problems: BTreeMap<String, Vec<Value>>,
    /// The channels, and the rules and reports that name them; `None` if they cannot be read, such as for a caller who may
    /// not see them.
    alerts: Option<Alerts>,
}

/// All checks of this module; `now` is the time by the server's clock.
pub(super) async fn checks(client: &Client, now: Timestamp) -> Vec<Check> {
    match ClusterState::read(client, now).await {
        Ok(cluster) => cluster.checks(now),
        Err(failure) => vec![failed_check("executors", failure.message(), "see above")],
    }
}

impl ClusterState {
    async fn read(client: &Client, now: Timestamp) -> Result<Self, Failure> {
        let mut cluster = Self {
            nodes: items(client, &["nodes"], &[]).await?,
            executors: all_items(client, &["executors"]).await?,
            apps: items(client, &["apps"], &[]).await?,
            alerts: Alerts::read(client).await,
            pending_runs: pending_runs_until(client, now).await?,
            ..Self::default()
        };
        let names: Vec<String> = cluster.apps.iter().map(|app| text_of(&app["name"])).collect();
        for app in names.into_iter().take(APP_COUNT_MAX) {
            if cluster.is_served(&app) {
                let problems = items(client, &["apps", &app, "declaration-problems"], &[]).await?;
                cluster.problems.insert(app.clone(), problems);
            }
            let (jobs, has_unread_jobs) = items_and_rest(client, &["jobs"], &[("app", &app), ("limit", "200")]).await?;
            cluster.apps_with_unread_jobs.extend(has_unread_jobs.then(|| app.clone()));
            cluster.jobs.insert(app, jobs);
        }
        Ok(cluster)
    }

    fn checks(&self, now: Timestamp) -> Vec<Check> {
        let mut checks = self.check_nodes(now);
        checks.push(self.check_executors());
        checks.extend(self.executors.iter().filter_map(|executor| check_silent_executor(executor, now)));
        checks.extend(self.check_switched_apps());
        checks.extend(
            Jobs { executors: &self.executors, jobs: &self.jobs, pending_runs: &self.pending_runs }.checks(now),
        );
        checks.extend(self.check_declarations());
        let missing_channels = self.alerts.iter().flat_map(|alerts| alerts.missing_channels(&self.jobs));
        checks.extend(missing_channels.map(|problem| failed_check("alerts", problem.finding, problem.remedy)));
        let disabled_channels = self.alerts.iter().flat_map(|alerts| alerts.disabled_channels(&self.jobs));
        checks.extend(disabled_channels.map(|problem| warning_check("alerts", problem.finding, problem.remedy)));
        for app in &self.apps_with_unread_jobs {
            let job_count = self.jobs.get(app).map_or(0, Vec::len);
            let finding = format!("{job_count} jobs of app {app} were checked, and there are more");
            let remedy = format!("rondel job list --all --filter 'app:{app} is:no_executor' searches all of them");
            checks.push(warning_check("jobs", finding, remedy));
        }
        if self.apps.len() > APP_COUNT_MAX {
            let finding = format!("{APP_COUNT_MAX} of {} apps were checked", self.apps.len());
            checks.push(warning_check("apps", finding, "rondel status shows the executors of all"));
        }
        checks
    }

    fn check_nodes(&self, now: Timestamp) -> Vec<Check> {
        let (mut checks, mut summaries) = (Vec::new(), Vec::new());
        for node in &self.nodes {
            let name = text_of(&node["name"]);
            match node["status"].as_str().unwrap_or_default() {
                "dead" if node["has_left"] == true => summaries.push(format!("{name} stopped in order")),
                "dead" => checks.extend(check_dead_node(&name, node, now)),
                status @ ("draining" | "stopped") => {
                    let remedy = format!("rondel node activate {name}, once it may take jobs again");
                    checks.push(warning_check("nodes", format!("{name} is {status} and takes no jobs"), remedy));
                }
                "leaving" => checks.push(warning_check("nodes", format!("{name} is leaving"), "it ends by itself")),
                _ => checks.extend(check_failing_loops(&name, &node["loops"], now)),
            }
        }
        if checks.is_empty() {
            summaries.insert(0, format!("{} active", self.nodes.len() - summaries.len()));
        }
        if !summaries.is_empty() {
            checks.push(passed_check("nodes", summaries.join(", ")));
        }
        checks
    }

    fn check_executors(&self) -> Check {
        let count = |status: &str| self.executors.iter().filter(|executor| executor["status"] == *status).count();
        match (count("online"), count("draining")) {
            (0, 0) => warning_check(
                "executors",
                "none is online",
                "start one: rondel agent --server URL --app NAME, or from the SDK",
            ),
            (online_count, 0) => passed_check("executors", format!("{online_count} online")),
            (online_count, draining_count) => {
                let finding = format!("{online_count} online, {draining_count} draining");
                warning_check(
                    "executors",
                    finding,
                    "draining executors take no new runs; they end when theirs have ended",
                )
            }
        }
    }

    fn check_switched_apps(&self) -> Vec<Check> {
        let switched_apps = self.apps.iter().filter(|app| app["state"].as_str().is_some_and(|state| state != "active"));
        let check = |app: &Value| {
            let (name, state) = (text_of(&app["name"]), text_of(&app["state"]));
            let effect_text =
                if state == "stopped" { "due runs are skipped" } else { "nothing new is sent to its executors" };
            let remedy = format!("rondel app activate {name}, once it may run again");
            warning_check("apps", format!("app {name} is {state}: {effect_text}"), remedy)
        };
        switched_apps.map(check).collect()
    }

    /// Whether an executor of the app is online.
    fn is_served(&self, app: &str) -> bool {
        self.executors.iter().any(|executor| executor["app"] == *app && executor["status"] == "online")
    }

    fn check_declarations(&self) -> Vec<Check> {
        let problems =
            self.problems.iter().flat_map(|(app, problems)| problems.iter().map(move |problem| (app, problem)));
        let check = |(app, problem): (&String, &Value)| {
            let (job, pointer, message) =
                (text_of(&problem["job"]), text_of(&problem["pointer"]), text_of(&problem["message"]));
            let separator = if pointer.is_empty() { "" } else { ": " };
            let finding = format!("job {job:?} as the code of app {app} declares it: {pointer}{separator}{message}");
            failed_check(
                "declarations",
                finding,
                "correct the declaration, or the server's side of it; the server retries it",
            )
        };
        problems.map(check).collect()
    }
}

/// A warning about an executor that sends heartbeats but answers no trigger; `None` if it answers triggers.
fn check_silent_executor(executor: &Value, now: Timestamp) -> Option<Check> {
    let unanswered_triggers =
        executor.get("unanswered_triggers").filter(|unanswered_triggers| unanswered_triggers.is_object())?;
    let (name, app) = (text_of(&executor["name"]), text_of(&executor["app"]));
    let since = unanswered_triggers["since"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let since_text = since.map(|at| format!(" since {}", clock::relative_text(at, now))).unwrap_or_default();
    let count = text_of(&unanswered_triggers["count"]);
    let finding =
        format!("{name} of app {app} is connected and does not answer triggers: {count} in a row{since_text}");
    let remedy = "look at its log and restart it; until it answers, runs go to the other executors of its app first";
    Some(warning_check("executors", finding, remedy))
}

/// The checks of a server without a lease. If this server answers the calls, it is alive but cannot renew its lease.
fn check_dead_node(name: &str, node: &Value, now: Timestamp) -> Vec<Check> {
    let lease_until = node["lease_until"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let since_text = lease_until.map(|at| format!(" since {}", clock::relative_text(at, now))).unwrap_or_default();
    if node["is_this"] != true {
        let remedy = "start it again, or look at its log; its jobs run on the other nodes";
        return vec![warning_check("nodes", format!("{name} is dead{since_text}"), remedy)];
    }
    let finding =
        format!("{name} answers, and has had no lease{since_text}: it cannot write to its database, and runs nothing");
    let remedy = "look at its database (locked, full, read-only or away) and at its log";
    let mut checks = vec![failed_check("nodes", finding, remedy)];
    checks.extend(check_failing_loops(name, &node["loops"], now));
    checks
}

/// One failed check for each failing loop of a server.
fn check_failing_loops(node: &str, loops: &Value, now: Timestamp) -> Vec<Check> {
    let loop_statuses = loops.as_array().into_iter().flatten().filter(|loop_status| loop_status["status"] == "failing");
    let to_check = |loop_status: &Value| {
        let (name, error) = (text_of(&loop_status["name"]), text_of(&loop_status["last_error"]));
        let since = loop_status["failing_since"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let since_text = since.map(|at| format!(" since {}", clock::relative_text(at, now))).unwrap_or_default();
        let finding = format!("{node}: the loop {name} fails{since_text}: {error}");
        failed_check("nodes", finding, "look at the log of that server, and at its database")
    };
    loop_statuses.map(to_check).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::Verdict;

    fn findings(cluster: &ClusterState) -> Vec<(Verdict, String)> {
        let checks = cluster.checks("2026-01-01T00:10:00Z".parse().unwrap());
        checks.into_iter().map(|check| (check.verdict, format!("{}: {}", check.name, check.finding))).collect()
    }

    #[test]
    fn a_quiet_cluster_is_good() {
        let cluster = ClusterState {
            nodes: vec![json!({"name": "n1", "status": "active"})],
            executors: vec![json!({"app": "a", "status": "online"})],
            apps: vec![json!({"name": "a", "state": "active"}), json!({"name": "unused", "state": "active"})],
            jobs: BTreeMap::from([("unused".to_owned(), vec![])]),
            ..ClusterState::default()
        };
        let good = |text: &str| (Verdict::Good, text.to_owned());
        assert_eq!(findings(&cluster), [good("nodes: 1 active"), good("executors: 1 online")]);
    }

    #[test]
    fn a_node_that_stopped_in_order_is_not_dead_and_one_that_answers_has_lost_its_database() {
        let dead = |name: &str| json!({"name": name, "status": "dead", "lease_until": "2026-01-01T00:00:00Z"});
        let with = |mut node: Value, key: &str, value: Value| {
            node[key] = value;
            node
        };
        let active = json!({"name": "n1", "status": "active"});
        let cluster =
            ClusterState { nodes: vec![active, with(dead("n2"), "has_left", json!(true))], ..ClusterState::default() };
        let expected = (Verdict::Good, "nodes: 1 active, n2 stopped in order".to_owned());
        assert_eq!(findings(&cluster)[0], expected);

        let failing = json!([{"name": "beat", "status": "failing", "last_error": "database is locked"}]);
        let this = with(with(dead("n1"), "is_this", json!(true)), "loops", failing);
        let lines = findings(&ClusterState { nodes: vec![this], ..ClusterState::default() });
        assert!(
            matches!(&lines[0], (Verdict::Wrong, text) if text.contains("cannot write to its database")),
            "{lines:?}"
        );
        let expected = (Verdict::Wrong, "nodes: n1: the loop beat fails: database is locked".to_owned());
        assert_eq!(lines[1], expected);
    }

    #[test]
    fn nodes_apps_and_declarations_are_named() {
        let job = |name: &str| json!({"name": name, "enabled": true, "schedule": {"every": "1s"}});
        let cluster = ClusterState {
            nodes: vec![
                json!({"name": "n1", "status": "active", "loops": [
                    {"name": "scan", "status": "ok"},
                    {"name": "alert", "status": "failing", "failing_since": "2026-01-01T00:09:00Z", "last_error": "disk full"},
                ]}),
                json!({"name": "n2", "status": "dead", "lease_until": "2026-01-01T00:00:00Z"}),
                json!({"name": "n3", "status": "draining"}),
            ],
            executors: vec![
                json!({"app": "a", "name": "w1", "status": "online",
                    "unanswered_triggers": {"count": 3, "since": "2026-01-01T00:08:00Z"}}),
                json!({"app": "b", "status": "draining", "unanswered_triggers": null}),
            ],
            apps: vec![json!({"name": "a", "state": "stopped"})],
            jobs: BTreeMap::from([("b".to_owned(), vec![job("b1")]), ("c".to_owned(), vec![job("c1"), job("c2")])]),
            pending_runs: vec![
                json!({"job": "c1", "due_at": "2026-01-01T00:00:00Z"}),
                json!({"job": "c1", "due_at": "2026-01-01T00:20:00Z"}),
            ],
            alerts: None,
            problems: BTreeMap::from([(
                "a".to_owned(),
                vec![json!({"job": "j", "pointer": "/schedule/cron", "message": "is not a cron expression"})],
            )]),
            apps_with_unread_jobs: vec!["c".to_owned()],
        };
        let findings = findings(&cluster);
        for (verdict, part) in [
            (Verdict::Wrong, "n1: the loop alert fails since 1m ago: disk full"),
            (Verdict::Warning, "n2 is dead since"),
            (Verdict::Warning, "n3 is draining and takes no jobs"),
            (Verdict::Warning, "1 online, 1 draining"),
            (Verdict::Warning, "w1 of app a is connected and does not answer triggers: 3 in a row since 2m ago"),
            (Verdict::Warning, "app a is stopped: due runs are skipped"),
            (Verdict::Warning, "app b has no executor online and 1 job with a schedule"),
            (Verdict::Warning, "app c has no executor online and 2 jobs with a schedule; 1 overdue run of c1 waits"),
            (Verdict::Wrong, "job \"j\" as the code of app a declares it: /schedule/cron: is not a cron"),
            (Verdict::Warning, "2 jobs of app c were checked, and there are more"),
        ] {
            assert!(findings.iter().any(|(is, text)| *is == verdict && text.contains(part)), "{part}: {findings:#?}");
        }
        assert_eq!(findings.len(), 10, "{findings:#?}");
    }
}
