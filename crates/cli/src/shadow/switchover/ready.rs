//! Checks that jobs can run in Rondel before they are switched over: otherwise a promotion would stop them in XXL-JOB,
//! and they would run nowhere.

use std::collections::{BTreeMap, BTreeSet};

use rondel_core::name::takes_handler;
use rondel_store::foreign::xxl_job::{XxlDatabase, XxlHandler};
use serde_json::Value;

use super::job::{Job, Switchover};
use crate::client::Client;
use crate::exit::Failure;
use crate::list;
use crate::shadow::jobs;
use crate::terminal::harmless_text;

/// The kind of XXL-JOB's jobs that name a handler.
const BEAN: &str = "BEAN";

/// Refuses to promote a job that would not run in Rondel, or whose number in XXL-JOB seems to belong to another job.
pub(super) async fn refuse_unready(
    switch: &Switchover<'_>,
    database: &mut XxlDatabase,
    refusals: &mut BTreeMap<String, String>,
) -> Result<(), Failure> {
    let numbers: Vec<i64> = switch.jobs.iter().map(|job| job.number).collect();
    let xxl_handlers = database.xxl_handlers(&numbers).await.map_err(|error| jobs::database_failure(&error))?;
    let online_handlers = OnlineHandlers::read(switch.client, &switch.jobs).await?;
    for job in switch.jobs.iter().filter(|job| job.is_shadow) {
        let reason = handler_difference(job, xxl_handlers.get(&job.number)).or_else(|| online_handlers.obstacle(job));
        if let Some(reason) = reason {
            refusals.entry(job.name.clone()).or_insert_with(|| format!("{reason}; --force promotes it anyway"));
        }
    }
    Ok(())
}

/// Why the job's number in XXL-JOB seems to belong to another job: the handler there differs. The number may be from
/// another database, or the job was edited in XXL-JOB.
fn handler_difference(job: &Job, xxl_handler: Option<&XxlHandler>) -> Option<String> {
    let xxl_handler =
        xxl_handler.filter(|xxl_handler| xxl_handler.kind == BEAN && !xxl_handler.name.trim().is_empty())?;
    (xxl_handler.name.trim() != job.handler).then(|| {
        let (number, name) = (job.number, harmless_text(&xxl_handler.name));
        format!(
            "job {number} of XXL-JOB has the handler {name}, and the job here {}: is it the same job?",
            harmless_text(&job.handler)
        )
    })
}

/// The handlers of the online executors, keyed by app.
struct OnlineHandlers(BTreeMap<String, BTreeSet<String>>);

impl OnlineHandlers {
    async fn read(client: &Client, jobs: &[Job]) -> Result<Self, Failure> {
        let mut apps: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let executors = list::all_items(client, &["executors"]).await?;
        for app in jobs.iter().map(|job| job.app.clone()).collect::<BTreeSet<_>>() {
            let is_online = |executor: &&Value| executor["app"] == app.as_str() && executor["status"] == "online";
            let handlers = executors.iter().filter(is_online).flat_map(|executor| executor["handlers"].as_array());
            let names = handlers.flatten().filter_map(|handler| Some(handler.as_str()?.to_owned()));
            let names: BTreeSet<String> = names.collect();
            if executors.iter().any(|executor| is_online(&executor)) {
                apps.insert(app, names);
            }
        }
        Ok(Self(apps))
    }

    /// Why no executor would run the job in Rondel; `None` if one would.
    fn obstacle(&self, job: &Job) -> Option<String> {
        let app = &job.app;
        let Some(handlers) = self.0.get(app) else {
            return Some(format!("no executor of app {app} is online here: start one first"));
        };
        let has_handler = takes_handler(handlers.iter().map(String::as_str), &job.handler);
        (!has_handler)
            .then(|| format!("no executor of app {app} that is online has the handler {}", harmless_text(&job.handler)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;
    use crate::client::ClientArgs;
    use crate::contexts::Context;

    fn job(handler: &str) -> Job {
        let job = json!({
            "name": "a", "app": "work", "handler": handler, "mode": "shadow", "enabled": true, "schedule": {"every": "1s"},
            "labels": {"xxl-job-id": "7"},
        });
        Job::read(&job).expect("a job")
    }

    #[test]
    fn a_job_of_another_handler_is_another_job() {
        let there = |kind: &str, name: &str| XxlHandler { kind: kind.to_owned(), name: name.to_owned() };
        for (kind, name, is_other) in [
            ("BEAN", "close", false),
            ("BEAN", " close ", false),
            ("BEAN", "bill", true),
            ("BEAN", "", false),
            ("GLUE_SHELL", "bill", false),
        ] {
            assert_eq!(
                handler_difference(&job("close"), Some(&there(kind, name))).is_some(),
                is_other,
                "{kind} {name}"
            );
        }
        assert_eq!(handler_difference(&job("close"), None), None);
    }

    #[tokio::test]
    async fn an_executor_on_the_last_page_of_a_long_list_counts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let answer_pages = move || {
            for page in (0..=list::OVERVIEW_PAGES_MAX).rev() {
                let mut reader = BufReader::new(listener.accept().unwrap().0);
                let mut line = String::new();
                while reader.read_line(&mut line).unwrap() > "\r\n".len() {
                    line.clear();
                }
                let (app, cursor) = if page == 0 { ("work", Value::Null) } else { ("other", json!("next")) };
                let executor = json!({"app": app, "status": "online", "handlers": ["close"]});
                let body = json!({"items": [executor], "next_cursor": cursor}).to_string();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
                write!(reader.into_inner(), "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
            }
        };
        let answers = std::thread::spawn(answer_pages);
        let context = Context { server, namespace: None };
        let client = ClientArgs::from_context(&context).client_with_token(None).unwrap();
        let online = OnlineHandlers::read(&client, &[job("close")]).await.unwrap();
        assert_eq!(online.obstacle(&job("close")), None);
        answers.join().unwrap();
    }

    #[test]
    fn a_job_needs_an_executor_with_its_handler() {
        let online = |handlers: &[&str]| {
            let handlers = handlers.iter().map(|&handler| handler.to_owned()).collect();
            OnlineHandlers(BTreeMap::from([("work".to_owned(), handlers)]))
        };
        assert_eq!(online(&["*"]).obstacle(&job("close")), None);
        assert_eq!(online(&["bill", "close"]).obstacle(&job("close")), None);
        let missing = online(&["bill"]).obstacle(&job("close")).expect("an obstacle");
        assert!(missing.contains("has the handler close"), "{missing}");
        let alone = OnlineHandlers(BTreeMap::new()).obstacle(&job("close")).expect("an obstacle");
        assert!(alone.contains("no executor of app work is online"), "{alone}");
    }
}
