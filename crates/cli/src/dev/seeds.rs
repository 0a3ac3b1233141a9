//! The demo jobs, created if they are missing.

use rondel_admin::jobs::{self, JobError};
use rondel_core::{JobSpec, NamespaceId};
use serde_json::{Value, json};

use super::{APP, demo};
use crate::exit::Failure;
use crate::server::Node;

const NAMESPACE: &str = "default";
const AUTHOR: &str = "rondel dev";
/// The name of the job that calls the server's own port, which may differ at the next start.
const HTTP_JOB: &str = "demo-http";

/// Creates the missing demo jobs, and updates the URL of [`HTTP_JOB`] if the server's port has changed.
pub(super) async fn create_missing(node: &Node) -> Result<(), Failure> {
    let namespace = node.engine.store().namespace(NAMESPACE).await?;
    let namespace = namespace.ok_or_else(|| Failure::from_text("the database has no namespace \"default\""))?.id;
    for document in documents(&node.url()) {
        let spec: JobSpec = serde_json::from_value(document)?;
        create_or_update(node, namespace, spec).await?;
    }
    Ok(())
}

async fn create_or_update(node: &Node, namespace: NamespaceId, spec: JobSpec) -> Result<(), Failure> {
    let Some(record) = node.engine.store().job(namespace, &spec.name).await? else {
        return match jobs::create(&node.engine, namespace, spec, AUTHOR).await {
            Ok(_) | Err(JobError::NameTaken) => Ok(()),
            Err(error) => Err(Failure::of("cannot create the demo jobs", &error)),
        };
    };
    let follows_port = spec.name == HTTP_JOB && record.spec.params != spec.params && is_seeded(&record.spec.params);
    if follows_port {
        let new_spec = JobSpec { params: spec.params, ..record.spec.clone() };
        jobs::change(&node.engine, &record, new_spec, Some(record.version), AUTHOR).await?;
    }
    Ok(())
}

/// Whether an earlier start of `rondel dev` set these parameters, and no user has changed them since.
fn is_seeded(params: &Value) -> bool {
    let url = params["url"].as_str().unwrap_or_default();
    url.ends_with("/livez") && *params == http_params(url.trim_end_matches("/livez"))
}

fn http_params(server: &str) -> Value {
    json!({ "url": format!("{server}/livez") })
}

fn documents(server: &str) -> [Value; 3] {
    [
        json!({
            "name": "demo-hello",
            "app": APP,
            "handler": demo::HELLO_HANDLER,
            "description": "A handler written in Rust",
            "params": {"name": "world"},
            "schedule": {"every": "5s"},
        }),
        json!({
            "name": "demo-shell",
            "app": APP,
            "handler": "shell",
            "description": "A command",
            "params": {"argv": ["date"]},
            "schedule": {"cron": "0/10 * * * * ?"},
            "timeout": "30s",
        }),
        json!({
            "name": HTTP_JOB,
            "app": APP,
            "handler": "http",
            "description": "An HTTP check of this server",
            "params": http_params(server),
            "schedule": {"every": "10s"},
            "timeout": "30s",
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_jobs_are_right() {
        for document in documents("http://127.0.0.1:1") {
            let spec: JobSpec = serde_json::from_value(document).unwrap();
            spec.compile().unwrap();
        }
    }

    #[test]
    fn only_the_seeded_job_is_moved() {
        assert!(is_seeded(&http_params("http://127.0.0.1:7")));
        assert!(!is_seeded(&json!({"url": "http://127.0.0.1:7/livez", "method": "POST"})));
        assert!(!is_seeded(&json!({"url": "http://example.com/"})));
        assert!(!is_seeded(&json!(null)));
    }
}
