//! Warnings for authors of valid rules and silences, such as a name that does not exist yet.

use std::collections::BTreeSet;

use rondel_core::alert::{RuleSpec, Scope, SilenceSpec, expect};
use rondel_core::{NamespaceId, name};
use rondel_store::StoreError;
use rondel_store::alerts::PAGE_MAX;

use crate::node::Node;

/// The warnings for the author of a rule.
///
/// # Errors
/// The store's.
pub async fn rule_warnings(node: &Node, namespace: NamespaceId, spec: &RuleSpec) -> Result<Vec<String>, StoreError> {
    let mut warnings: Vec<String> = scope_warning(node, namespace, spec).await?.into_iter().collect();
    if spec.channel_names().next().is_none() {
        warnings.push("it names no channel: its incidents are shown in the console and sent nowhere".to_owned());
    }
    for name in spec.channel_names().collect::<BTreeSet<&str>>() {
        // An unreadable channel is no problem of the rule. The channel's page shows why the channel cannot be read.
        if let Ok(Some(channel)) = node.store().channel(namespace, name).await
            && !channel.is_enabled
        {
            warnings.push(format!("channel {name:?} is disabled: messages for it are dropped"));
        }
    }
    Ok(warnings)
}

/// A warning if a rule watches a job or an app that does not exist.
pub(super) async fn scope_warning(
    node: &Node,
    namespace: NamespaceId,
    spec: &RuleSpec,
) -> Result<Option<String>, StoreError> {
    let store = node.store();
    let missing_name = match &spec.scope {
        Scope::Job(job) if store.job(namespace, job).await?.is_none() => format!("job {job:?}"),
        Scope::App(app) if store.app(namespace, app).await?.is_none() => format!("app {app:?}"),
        Scope::All | Scope::Label(_) | Scope::Job(_) | Scope::App(_) => return Ok(None),
    };
    Ok(Some(format!("there is no {missing_name}: nothing can be observed until there is one")))
}

/// The warnings for the authors of these silences, as one list per silence. A rule with one of the hidden names is treated like a rule that does
/// not exist.
///
/// # Errors
/// The store's.
pub async fn silence_warnings(
    node: &Node,
    namespace: NamespaceId,
    silences: &[SilenceSpec],
    hidden_rules: &BTreeSet<String>,
) -> Result<Vec<Vec<String>>, StoreError> {
    let store = node.store();
    let names = |part: fn(&SilenceSpec) -> Option<&String>| -> BTreeSet<&str> {
        let names = silences.iter().filter_map(part).map(String::as_str);
        // Text that cannot be a name is not looked up.
        names.filter(|name| name::check(name).is_ok()).collect()
    };
    let (wanted_jobs, mut jobs) = (names(|spec| spec.job.as_ref()).into_iter().collect::<Vec<_>>(), BTreeSet::new());
    for chunk in wanted_jobs.chunks(usize::try_from(PAGE_MAX).unwrap_or(1)) {
        jobs.extend(store.jobs_named(namespace, chunk).await?.into_iter().map(|record| record.spec.name));
    }
    let mut apps = BTreeSet::new();
    if !names(|spec| spec.app.as_ref()).is_empty() {
        apps.extend(store.apps(namespace).await?.into_iter().map(|app| app.name));
    }
    let mut rules = BTreeSet::new();
    if !names(|spec| spec.rule.as_ref()).is_empty() {
        rules.extend(store.alert_rules(namespace).await?.into_iter().map(|record| record.spec.name));
        rules.retain(|name| !hidden_rules.contains(name));
    }
    let warnings = |spec: &SilenceSpec| {
        let rule = spec.rule.as_ref().filter(|rule| !expect::is_rule_name(rule));
        let parts = [("job", spec.job.as_ref(), &jobs), ("app", spec.app.as_ref(), &apps), ("rule", rule, &rules)];
        let missing_names =
            parts.into_iter().filter_map(|(word, matched_name, known_names)| Some((word, matched_name?, known_names)));
        let missing_names = missing_names.filter(|(_, matched_name, known_names)| !known_names.contains(*matched_name));
        missing_names
            .map(|(word, matched_name, _)| {
                format!("there is no {word} {matched_name:?}: the silence matches nothing until there is one")
            })
            .collect()
    };
    Ok(silences.iter().map(warnings).collect())
}
