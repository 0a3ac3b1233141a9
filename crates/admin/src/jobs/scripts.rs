//! The scripts of the server that definitions name.

use std::collections::BTreeMap;

use rondel_core::script::{self, ScriptRef};
use rondel_core::{FieldError, JobSpec, NamespaceId};
use rondel_store::StoreError;

use crate::node::Node;

const POINTER: &str = "/params/script";

/// What each script that exists is written in, by what names it.
pub(super) type FoundScripts = BTreeMap<ScriptRef, String>;

/// Those of the scripts that definitions name that exist.
pub(super) async fn named(node: &Node, namespace: NamespaceId, specs: &[JobSpec]) -> Result<FoundScripts, StoreError> {
    let mut found = FoundScripts::new();
    for named in specs.iter().filter_map(JobSpec::script) {
        if found.contains_key(&named) {
            continue;
        }
        let Some(script) = node.store().script(namespace, &named.name).await? else { continue };
        let is_there = match named.version {
            None => true,
            Some(version) if version == script.newest.version => true,
            Some(version) => node.store().script_version(script.id, version).await?.is_some(),
        };
        if is_there {
            found.insert(named, script.language);
        }
    }
    Ok(found)
}

/// What is wrong with the script that a definition names in the place of `before`.
pub(super) fn complaint(spec: &JobSpec, before: Option<&JobSpec>, found: &FoundScripts) -> Option<FieldError> {
    let of = |spec: &JobSpec| (spec.handler.clone(), spec.params.get("script").cloned());
    if before.is_some_and(|before| of(before) == of(spec)) {
        return None;
    }
    let Some(named) = spec.script() else {
        let is_meant = script::LANGUAGES.contains(&spec.handler.as_str())
            && spec.params.get("script").is_some_and(serde_json::Value::is_object);
        let message = "names no script: {\"name\": \"close-orders\"} names the newest version of one, and \"version\" beside it another";
        return is_meant.then(|| FieldError::new(POINTER, message));
    };
    match found.get(&named) {
        None => Some(FieldError::new(POINTER, format!("there is no script {named} in this namespace"))),
        Some(language) if *language != spec.handler => {
            let message =
                format!("the script {:?} is written in {language}: the handler {language} runs it", named.name);
            Some(FieldError::new(POINTER, message))
        }
        Some(_) => None,
    }
}

/// The complaint about a script of a definition that was deleted while the definition was checked.
pub(super) fn lost(named: &ScriptRef) -> FieldError {
    FieldError::new(POINTER, format!("there is no script {named}: it was deleted meanwhile"))
}
