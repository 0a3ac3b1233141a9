//! Sends executors the scripts of the runs that they have.
//!
//! An executor asks for "the script of this run", never for a name, and the server looks up which script that is. This
//! way an executor's token can read only the scripts that jobs of its app run.

use std::sync::Arc;

use rondel_core::error_chain::chain;
use rondel_core::script::script_ref;
use rondel_core::spec::with_params_of_shard;
use rondel_core::{AppId, JobSpec, Run, RunId};
use rondel_proto::v1;
use rondel_proto::v1::server_message;
use rondel_store::StoreError;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::log_rights::RunFacts;
use crate::dispatch::SessionHandle;
use crate::node::Shared;

/// Maximum number of scripts that are read at the same time.
pub(super) const READ_COUNT_MAX: usize = 16;
/// Maximum number of requests of one stream that wait for a read.
pub(super) const WAITING_COUNT_MAX: usize = 256;

const NOT_ITS_RUN: &str = "this executor does not have the run";

/// Answers the script requests of one stream.
#[derive(Debug)]
pub(super) struct ScriptReader {
    pub(super) shared: Arc<Shared>,
    pub(super) app: AppId,
    pub(super) session: SessionHandle,
    pub(super) permits: Arc<Semaphore>,
}

impl ScriptReader {
    /// Answers a request. If the store fails, there is no answer: the executor asks again, or asks another server.
    pub(super) async fn answer(&self, request: v1::ScriptRequest) {
        let Ok(_permit) = self.permits.acquire().await else { return };
        match self.read(&request).await {
            Ok(script_or_error) => {
                let reply =
                    script_or_error.unwrap_or_else(|error| v1::ScriptReply { error, ..v1::ScriptReply::default() });
                let v1::ScriptRequest { run_id, attempt, with_source } = request;
                let reply = v1::ScriptReply { run_id, attempt, with_source, ..reply };
                self.session.send(server_message::Body::ScriptReply(reply));
            }
            Err(error) => {
                tracing::warn!(run_id = request.run_id, error = %chain(&error), "cannot read the script of a run");
            }
        }
    }

    async fn read(&self, request: &v1::ScriptRequest) -> Result<Result<v1::ScriptReply, String>, StoreError> {
        let store = self.shared.store.as_ref();
        let id = RunId::new(request.run_id);
        let Some(run) = store.runs(&[id]).await?.pop().filter(|run| self.has_attempt(run, request.attempt)) else {
            return Ok(Err(NOT_ITS_RUN.to_owned()));
        };
        let Some(definition) = store.definitions(&[(run.job, run.job_version)]).await?.pop() else {
            // This server cannot read the definition, which a newer server has saved. The executor gets no answer, and asks another server.
            let (table, column, id) = ("job_version", "spec", run.job.get());
            return Err(StoreError::Corrupt { table, column, id, message: "this server cannot read it".to_owned() });
        };
        let handler = &definition.spec.handler;
        let Some(script_ref) = script_ref(handler, &params_of(&run, &definition.spec)) else {
            return Ok(Err("the run names no script".to_owned()));
        };
        let Some(script) = store.script(definition.namespace, &script_ref.name).await? else {
            return Ok(Err(format!("there is no script {:?}", script_ref.name)));
        };
        if script.language != *handler {
            return Ok(Err(format!(
                "the script {:?} is written in {}, not in {handler}",
                script_ref.name, script.language
            )));
        }
        let version_number = script_ref.version.unwrap_or(script.newest.version);
        let (version, source) = if request.with_source || version_number != script.newest.version {
            let Some(version) = store.script_version(script.id, version_number).await? else {
                return Ok(Err(format!("version {version_number} of the script {:?} is not kept", script_ref.name)));
            };
            version
        } else {
            (script.newest, String::new())
        };
        Ok(Ok(v1::ScriptReply {
            name: script.name,
            version: version.version,
            language: script.language,
            hash: version.hash,
            signature: version.signature.unwrap_or_default(),
            source: if request.with_source { source } else { String::new() },
            ..v1::ScriptReply::default()
        }))
    }

    /// Whether the executor of this stream has this attempt of a run, and may still be running it.
    fn has_attempt(&self, run: &Run, attempt: i32) -> bool {
        let own_node = self.shared.membership.token().node;
        let sent_attempt = self.shared.sent_runs.sent_attempt_for(run, self.session.executor, own_node);
        let facts = RunFacts { run, attempts: &[], sent_attempt };
        let attempt_key = (run.id, attempt, self.session.executor);
        attempt == run.attempt && facts.may_log(self.app, attempt_key, self.shared.clock.now())
    }
}

/// The parameters that the run was sent with: the parameters of its fire, overridden by those of its shard.
fn params_of(run: &Run, spec: &JobSpec) -> Value {
    let own_params = run.params.as_deref().and_then(|params| serde_json::from_str(params).ok());
    let fire_params = own_params.unwrap_or_else(|| spec.params.clone());
    match spec.shard(run.shard_index) {
        Some(shard) => with_params_of_shard(fire_params, &shard.params),
        None => fire_params,
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::run_due_at;

    #[test]
    fn a_shard_that_names_its_own_script_gets_that_one() {
        let spec: JobSpec = serde_json::from_value(json!({
            "name": "j", "app": "files", "handler": "shell", "params": {"script": {"name": "usual"}, "args": "x"},
            "shards": [{"name": "eu"}, {"name": "us", "params": {"script": {"name": "special"}}}],
        }))
        .unwrap();
        for (shard_index, own, expected) in [
            (0, None, "usual"),
            (1, None, "special"),
            (0, Some(r#"{"script": {"name": "given"}}"#), "given"),
            (1, Some(r#"{"script": {"name": "given"}}"#), "special"),
        ] {
            let run = Run { shard_index, params: own.map(str::to_owned), ..run_due_at(Timestamp::from_secs(1)) };
            let named = script_ref(&spec.handler, &params_of(&run, &spec)).unwrap();
            assert_eq!(named.name, expected, "{shard_index} {own:?}");
        }
    }
}
