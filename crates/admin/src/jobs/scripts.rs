//! Finds the server's scripts to which definitions refer.

use std::collections::{BTreeMap, BTreeSet};

use rondel_core::script::{self, ScriptRef, script_ref};
use rondel_core::spec::ItemsSpec;
use rondel_core::{FieldError, JobSpec, NamespaceId};
use rondel_store::StoreError;
use serde_json::Value;

use crate::node::Node;

const SCRIPT_POINTER: &str = "/params/script";

/// The language of each script that exists, keyed by the reference.
pub(super) type FoundScripts = BTreeMap<ScriptRef, String>;

/// The scripts to which the definitions refer, as far as they exist.
pub(super) async fn find_named(
    node: &Node,
    namespace: NamespaceId,
    specs: &[JobSpec],
) -> Result<FoundScripts, StoreError> {
    let mut scripts = FoundScripts::new();
    let script_refs: BTreeSet<ScriptRef> = specs.iter().flat_map(scripts_named_in).collect();
    for wanted_script in script_refs {
        let Some(script) = node.store().script(namespace, &wanted_script.name).await? else { continue };
        let has_version = match wanted_script.version {
            None => true,
            Some(version) if version == script.newest.version => true,
            Some(version) => node.store().script_version(script.id, version).await?.is_some(),
        };
        if has_version {
            scripts.insert(wanted_script, script.language);
        }
    }
    Ok(scripts)
}

/// The parameters of the job and of its named shards, each with its pointer: a run takes its script from one of them.
fn params_of_runs(spec: &JobSpec) -> Vec<(String, &Value)> {
    let shards = spec.shards.as_ref().map_or(&[][..], ItemsSpec::named);
    let shard_params = shards.iter().enumerate();
    let shard_params = shard_params.map(|(index, shard)| (format!("/shards/{index}/params"), &shard.params));
    std::iter::once(("/params".to_owned(), &spec.params)).chain(shard_params).collect()
}

fn scripts_named_in(spec: &JobSpec) -> Vec<ScriptRef> {
    params_of_runs(spec).into_iter().filter_map(|(_, params)| script_ref(&spec.handler, params)).collect()
}

/// The errors of the scripts to which a definition refers. A script to which `stored_spec` already referred is accepted.
pub(super) fn script_errors(spec: &JobSpec, stored_spec: Option<&JobSpec>, scripts: &FoundScripts) -> Vec<FieldError> {
    let stored_params =
        stored_spec.filter(|before| before.handler == spec.handler).map(params_of_runs).unwrap_or_default();
    let stored_scripts: Vec<&Value> =
        stored_params.into_iter().filter_map(|(_, params)| params.get("script")).collect();
    let errors = params_of_runs(spec).into_iter().filter_map(|(pointer, params)| {
        let script = params.get("script").filter(|script| !stored_scripts.contains(script))?;
        let message = script_error(&spec.handler, params, script, scripts)?;
        Some(FieldError::new(format!("{pointer}/script"), message))
    });
    errors.collect()
}

fn script_error(handler: &str, params: &Value, script: &Value, scripts: &FoundScripts) -> Option<String> {
    let Some(script_ref) = script_ref(handler, params) else {
        let means_script = script::LANGUAGES.contains(&handler) && script.is_object();
        let message = "names no script: use {\"name\": \"close-orders\"} for the newest version of a script, and add \"version\" for another version";
        return means_script.then(|| message.to_owned());
    };
    match scripts.get(&script_ref) {
        None => Some(format!("there is no script {script_ref} in this namespace")),
        Some(language) if *language != handler => {
            Some(format!("the script {:?} is written in {language}: the handler {language} runs it", script_ref.name))
        }
        Some(_) => None,
    }
}

/// The error for a script that was deleted while the definition was checked.
pub(super) fn deleted_script_error(script_ref: &ScriptRef) -> FieldError {
    FieldError::new(SCRIPT_POINTER, format!("there is no script {script_ref}: it was deleted meanwhile"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_scripts_of_shards_are_checked_like_that_of_the_job() {
        let spec = |of_shard: Value| -> JobSpec {
            serde_json::from_value(json!({
                "name": "j", "app": "files", "handler": "shell", "params": {"script": {"name": "there"}},
                "shards": [{"name": "eu"}, {"name": "us", "params": {"script": of_shard}}],
            }))
            .unwrap()
        };
        let named = |name: &str| ScriptRef { name: name.to_owned(), version: None };
        let found = FoundScripts::from([(named("there"), "shell".to_owned()), (named("snake"), "python".to_owned())]);
        for (of_shard, expected) in [
            (json!({"name": "there"}), None),
            (json!("echo its own text"), None),
            (json!({"name": "missing"}), Some("there is no script \"missing\" in this namespace")),
            (json!({"name": "snake"}), Some("the script \"snake\" is written in python: the handler python runs it")),
        ] {
            let spec = spec(of_shard);
            let errors = script_errors(&spec, None, &found);
            let errors: Vec<_> = errors.iter().map(|error| (error.pointer.as_str(), error.message.as_str())).collect();
            let expected: Vec<_> = expected.map(|message| ("/shards/1/params/script", message)).into_iter().collect();
            assert_eq!(errors, expected);
            assert_eq!(script_errors(&spec, Some(&spec), &found), [], "it named it before");
        }
    }
}
