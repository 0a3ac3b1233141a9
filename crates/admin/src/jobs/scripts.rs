//! The server's scripts that definitions refer to.

use std::collections::BTreeMap;

use rondel_core::script::{self, ScriptRef};
use rondel_core::{FieldError, JobSpec, NamespaceId};
use rondel_store::StoreError;

use crate::node::Node;

const POINTER: &str = "/params/script";

/// The language of each script that exists, by reference.
pub(super) type FoundScripts = BTreeMap<ScriptRef, String>;

/// The scripts that the definitions name, as far as they exist.
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

/// The error of the script that a definition names. A script that `before` already named is accepted.
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

/// The error for a script that was deleted while the definition was checked.
pub(super) fn lost(named: &ScriptRef) -> FieldError {
    FieldError::new(POINTER, format!("there is no script {named}: it was deleted meanwhile"))
}
