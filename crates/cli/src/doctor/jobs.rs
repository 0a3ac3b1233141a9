//! The checks of `rondel doctor` on jobs that no executor can run, and on overdue runs.

use std::collections::{BTreeMap, BTreeSet};

use rondel_admin::given_name;
use rondel_core::Timestamp;
use rondel_core::name::takes_handler;
use rondel_core::select::Select;
use rondel_core::spec::SelectSpec;
use rondel_core::words::counted;
use serde::Deserialize as _;
use serde_json::Value;

use super::names::{NAME_COUNT_MAX, first_names};
use super::{Check, warning_check};
use crate::clock;
use crate::status::is_overdue;

/// The jobs, with the executors and the runs that the checks need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jobs<'a> {
    pub(super) executors: &'a [Value],
    /// The jobs, keyed by the names of their apps.
    pub(super) jobs: &'a BTreeMap<String, Vec<Value>>,
    /// Runs that wait to be sent.
    pub(super) pending_runs: &'a [Value],
}

/// Overdue runs, keyed by the names of their jobs.
type OverdueRuns<'a> = BTreeMap<&'a str, Vec<&'a Value>>;

/// Why no executor can run a job, and the remedy.
type Obstacle = (String, String);

impl<'a> Jobs<'a> {
    pub(super) fn checks(&self, now: Timestamp) -> Vec<Check> {
        let mut overdue_runs = OverdueRuns::new();
        for run in self.pending_runs.iter().filter(|run| is_overdue(run, now)) {
            overdue_runs.entry(run["job"].as_str().unwrap_or_default()).or_default().push(run);
        }
        let mut checks = Vec::new();
        let mut explained_jobs = BTreeSet::new();
        for (app, jobs) in self.jobs {
            let online_executors: Vec<&Value> = self.online_executors(app).collect();
            if online_executors.is_empty() {
                checks.extend(check_unserved_app(app, jobs, &overdue_runs));
                explained_jobs.extend(jobs.iter().filter_map(job_name));
                continue;
            }
            let mut obstacles: BTreeMap<Obstacle, Vec<&str>> = BTreeMap::new();
            for job in jobs {
                let Some(name) = job_name(job).filter(|name| is_scheduled(job) || overdue_runs.contains_key(name))
                else {
                    continue;
                };
                if let Some(obstacle) = obstacle(app, job, &online_executors) {
                    obstacles.entry(obstacle).or_default().push(name);
                    explained_jobs.insert(name);
                }
            }
            checks.extend(
                obstacles.into_iter().map(|(obstacle, names)| check_of_obstacle(app, &names, obstacle, &overdue_runs)),
            );
        }
        overdue_runs.retain(|job, _| !explained_jobs.contains(job));
        checks.extend(check_overdue(&overdue_runs, now));
        checks
    }

    fn online_executors(&self, app: &str) -> impl Iterator<Item = &'a Value> {
        self.executors.iter().filter(move |executor| executor["app"] == *app && executor["status"] == "online")
    }
}

fn job_name(job: &Value) -> Option<&str> {
    job["name"].as_str()
}

fn is_scheduled(job: &Value) -> bool {
    job["enabled"] == true && !job["schedule"].is_null()
}

/// A warning about an app with jobs but without an online executor; `None` if the app has no jobs.
fn check_unserved_app(app: &str, jobs: &[Value], overdue_runs: &OverdueRuns<'_>) -> Option<Check> {
    if jobs.is_empty() {
        return None;
    }
    let scheduled_count = jobs.iter().filter(|job| is_scheduled(job)).count();
    let late_jobs: Vec<&str> = jobs.iter().filter_map(job_name).filter(|job| overdue_runs.contains_key(job)).collect();
    let mut finding = format!("app {app} has no executor online");
    finding.push_str(&match (scheduled_count, jobs.len()) {
        (0, _) if !late_jobs.is_empty() => String::new(),
        (0, 1) => " and 1 job, which is paused or runs only when triggered".to_owned(),
        (0, count) => format!(" and {count} jobs, which are paused or run only when triggered"),
        (count, _) => format!(" and {} with a schedule", counted(count, "job")),
    });
    let run_count = run_count(&late_jobs, overdue_runs);
    if run_count > 0 {
        let wait = if run_count == 1 { "waits" } else { "wait" };
        finding.push_str(&format!(
            "; {} of {} {wait} for one",
            counted(run_count, "overdue run"),
            first_names(&late_jobs)
        ));
    }
    let remedy = format!("is the app's name right? start one: rondel agent --server URL --app {app}");
    Some(warning_check("apps", finding, remedy))
}

/// Why no online executor can run the job; `None` if one can.
fn obstacle(app: &str, job: &Value, online_executors: &[&Value]) -> Option<Obstacle> {
    let handler = job["handler"].as_str().unwrap_or_default();
    let has_handler = |executor: &&Value| {
        let handlers = executor["handlers"].as_array().into_iter().flatten().filter_map(Value::as_str);
        takes_handler(handlers, handler)
    };
    let executors_with_handler: Vec<&Value> = online_executors.iter().copied().filter(has_handler).collect();
    if executors_with_handler.is_empty() {
        let remedy = format!(
            "start an executor with this handler, or correct the job; rondel app handlers {app} lists the handlers online"
        );
        return Some((format!("no executor online has handler {handler:?}"), remedy));
    }
    let spec = SelectSpec::deserialize(&job["select"]).unwrap_or_default();
    let select = Select::new(&spec).unwrap_or_default();
    let is_admitted = |executor: &&Value| {
        let labels = BTreeMap::deserialize(&executor["labels"]).unwrap_or_default();
        select.admits(given_name(executor["name"].as_str().unwrap_or_default()), &labels)
    };
    let admitted_executors: Vec<&Value> = executors_with_handler.into_iter().filter(is_admitted).collect();
    let is_switched_off = |executor: &&Value| executor["state"].as_str().is_some_and(|state| state != "active");
    if !admitted_executors.is_empty() {
        let names: Vec<&str> = admitted_executors.iter().copied().filter_map(job_name).collect();
        let finding = format!("the executors online that may take it are switched off: {}", first_names(&names));
        let remedy = format!("rondel executor activate NAME --app {app}, once they may run again");
        return admitted_executors.iter().all(is_switched_off).then_some((finding, remedy));
    }
    let mut criteria = Vec::new();
    if !spec.labels.is_empty() {
        criteria.push(format!("has labels {}", spec.labels.join(", ")));
    }
    if !spec.executors.is_empty() {
        criteria.push(format!("is named {}", spec.executors.join(" or ")));
    }
    let finding = format!("no executor online with handler {handler:?} {}", criteria.join(" and "));
    Some((finding, "start such an executor, or change the job's select".to_owned()))
}

fn check_of_obstacle(app: &str, jobs: &[&str], (obstacle, remedy): Obstacle, overdue_runs: &OverdueRuns<'_>) -> Check {
    let noun = if jobs.len() == 1 { "job" } else { "jobs" };
    let mut finding = format!("{noun} {} of app {app} cannot run: {obstacle}", first_names(jobs));
    let run_count = run_count(jobs, overdue_runs);
    if run_count > 0 {
        finding.push_str(&format!("; {}", counted(run_count, "overdue run")));
    }
    warning_check("jobs", finding, remedy)
}

/// Warnings about runs that are overdue although an executor could take them.
fn check_overdue(overdue_runs: &OverdueRuns<'_>, now: Timestamp) -> Vec<Check> {
    let check = |(job, runs): (&&str, &Vec<&Value>)| {
        let oldest_due = runs.iter().filter_map(|run| run["due_at"].as_str()?.parse::<Timestamp>().ok()).min();
        let due_text = oldest_due
            .map(|oldest_due| format!(", the oldest due {}", clock::relative_text(oldest_due, now)))
            .unwrap_or_default();
        let finding = format!("job {job} has {}{due_text}", counted(runs.len(), "overdue run"));
        warning_check("runs", finding, format!("rondel why {job} explains what the run waits for"))
    };
    let mut checks: Vec<Check> = overdue_runs.iter().take(NAME_COUNT_MAX).map(check).collect();
    let other_jobs: Vec<&str> = overdue_runs.keys().skip(NAME_COUNT_MAX).copied().collect();
    if !other_jobs.is_empty() {
        let verb = if other_jobs.len() == 1 { "has" } else { "have" };
        let finding = format!(
            "{} {verb} {}",
            counted(other_jobs.len(), "more job"),
            counted(run_count(&other_jobs, overdue_runs), "overdue run")
        );
        checks.push(warning_check("runs", finding, "rondel run list --status pending --all shows them"));
    }
    checks
}

fn run_count(jobs: &[&str], overdue_runs: &OverdueRuns<'_>) -> usize {
    jobs.iter().filter_map(|job| overdue_runs.get(job)).map(Vec::len).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-01-01T00:10:00Z";

    fn findings(executors: &[Value], jobs: Vec<Value>, pending_runs: &[Value]) -> Vec<(String, String)> {
        let jobs = BTreeMap::from([("billing".to_owned(), jobs)]);
        let checks = Jobs { executors, jobs: &jobs, pending_runs }.checks(NOW.parse().unwrap());
        checks.into_iter().map(|check| (format!("{}: {}", check.name, check.finding), check.remedy)).collect()
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers write them as literals")]
    fn job(name: &str, handler: &str, more: Value) -> Value {
        let mut job = json!({"name": name, "handler": handler, "enabled": true, "schedule": {"every": "1s"}});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    }

    fn overdue_runs(job: &str) -> Value {
        json!({"job": job, "due_at": "2026-01-01T00:00:00Z"})
    }

    fn online_executors(name: &str, handlers: &[&str], labels: &Value) -> Value {
        json!({"name": name, "app": "billing", "status": "online", "handlers": handlers, "labels": labels})
    }

    #[test]
    fn jobs_that_no_executor_online_can_run_are_named() {
        let executors =
            [online_executors("w1", &["send"], &json!({"zone": "eu"})), online_executors("w2", &["sum"], &json!({}))];
        let jobs = vec![
            job("fits", "send", json!({"select": {"labels": ["zone=eu"], "executors": []}})),
            job("gone", "report", json!({})),
            job("gone.too", "report", json!({})),
            job("moon", "send", json!({"select": {"labels": ["zone=moon"], "executors": []}})),
            job("named", "sum", json!({"select": {"labels": [], "executors": ["w7"]}})),
            job("off", "report", json!({"enabled": false})),
            job("by.hand", "report", json!({"schedule": null})),
        ];
        let findings = findings(&executors, jobs, &[overdue_runs("gone"), json!({"job": "gone", "due_at": NOW})]);
        let texts: Vec<&str> = findings.iter().map(|(finding, _)| finding.as_str()).collect();
        assert_eq!(
            texts,
            [
                "jobs: jobs gone, gone.too of app billing cannot run: no executor online has handler \"report\"; 1 overdue run",
                "jobs: job moon of app billing cannot run: no executor online with handler \"send\" has labels zone=moon",
                "jobs: job named of app billing cannot run: no executor online with handler \"sum\" is named w7",
            ]
        );
        assert!(findings[0].1.contains("rondel app handlers billing"), "{findings:#?}");
    }

    #[test]
    fn jobs_whose_executors_are_all_switched_off_are_named() {
        let switched = |name: &str, state: &str| {
            let mut executor = online_executors(name, &["send"], &json!({}));
            executor["state"] = json!(state);
            executor
        };
        let jobs = vec![job("mail", "send", json!({}))];
        let executors = [switched("w1", "draining"), switched("w2", "stopped")];
        let problems = findings(&executors, jobs.clone(), &[]);
        let expected =
            "jobs: job mail of app billing cannot run: the executors online that may take it are switched off: w1, w2";
        assert_eq!(problems[0].0, expected);
        assert!(problems[0].1.starts_with("rondel executor activate NAME --app billing"), "{problems:#?}");
        assert_eq!(findings(&[switched("w1", "draining"), switched("w2", "active")], jobs, &[]), []);
    }

    /// The server adds a suffix to the name of a second executor with the same name; jobs select it by the name that it gave itself.
    #[test]
    fn an_executor_is_selected_by_its_own_name() {
        let select = json!({"select": {"labels": [], "executors": ["w1"]}});
        assert_eq!(
            findings(&[online_executors("w1~2", &["send"], &json!({}))], vec![job("mail", "send", select)], &[]),
            []
        );
    }

    #[test]
    fn executors_that_announce_no_handlers_take_all() {
        let executors = [online_executors("10.0.0.5-9999", &["*"], &json!({}))];
        assert_eq!(findings(&executors, vec![job("poll", "pollHandler", json!({}))], &[]), []);
    }

    #[test]
    fn overdue_runs_are_named_with_their_job() {
        let executors = [online_executors("w1", &["send"], &json!({}))];
        let busy = vec![job("busy", "send", json!({})), job("calm", "send", json!({}))];
        let problems = findings(
            &executors,
            busy.clone(),
            &[overdue_runs("busy"), overdue_runs("busy"), overdue_runs("elsewhere")],
        );
        let remedies: Vec<&str> = problems.iter().map(|(_, remedy)| remedy.as_str()).collect();
        assert_eq!(
            remedies,
            ["rondel why busy explains what the run waits for", "rondel why elsewhere explains what the run waits for"]
        );
        assert!(problems[0].0.starts_with("runs: job busy has 2 overdue runs, the oldest due "), "{problems:#?}");
        assert!(problems[1].0.starts_with("runs: job elsewhere has 1 overdue run, the oldest due "), "{problems:#?}");
        assert_eq!(findings(&executors, busy, &[]), []);
        let many: Vec<Value> = (0..7).map(|index| overdue_runs(&format!("j{index}"))).collect();
        let problems = findings(&executors, vec![], &many);
        assert_eq!((problems.len(), problems[5].0.as_str()), (6, "runs: 2 more jobs have 2 overdue runs"));
    }

    #[test]
    fn an_app_without_executors_is_one_line() {
        let jobs = |names: &[&str]| names.iter().map(|name| job(name, "h", json!({}))).collect::<Vec<_>>();
        let text = |jobs: Vec<Value>, pending: &[Value]| {
            let findings = findings(&[], jobs, pending);
            findings.into_iter().map(|(finding, _)| finding).collect::<Vec<_>>()
        };
        assert_eq!(text(jobs(&["a"]), &[]), ["apps: app billing has no executor online and 1 job with a schedule"]);
        assert_eq!(
            text(jobs(&["a", "b"]), &[overdue_runs("a"), overdue_runs("b")]),
            [
                "apps: app billing has no executor online and 2 jobs with a schedule; 2 overdue runs of a, b wait for one"
            ]
        );
        assert_eq!(
            text(vec![job("a", "h", json!({"schedule": null}))], &[overdue_runs("a")]),
            ["apps: app billing has no executor online; 1 overdue run of a waits for one"]
        );
        let quiet = vec![job("a", "h", json!({"enabled": false})), job("b", "h", json!({"schedule": null}))];
        assert_eq!(
            text(quiet, &[]),
            ["apps: app billing has no executor online and 2 jobs, which are paused or run only when triggered"]
        );
        assert_eq!(text(vec![], &[]), Vec::<String>::new());
    }
}
