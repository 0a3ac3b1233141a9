//! Tests of the evaluation of rules by one server.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::alert::Escalation;
use rondel_core::channel::ChannelKind;
use rondel_core::notice::Notice;
use rondel_core::run::RunJob;
use rondel_core::words::Lang;
use rondel_core::{Reason, Run, RunStatus, Trigger};
use rondel_store::access::TokenRecord;
use rondel_store::catalog::JobRecord;
use rondel_store::channels::Channel;
use rondel_store::{MemStore, Store};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::jobs;
use crate::lifecycle::Lifecycle;
use crate::rules::fleet::tests::token;
use crate::rules::{acknowledge, dry_run, save_rule};

const NAMESPACE: NamespaceId = NamespaceId::new(1);

async fn start_engine(lifecycle: &Lifecycle) -> Engine {
    let started = Instant::now();
    let clock = move || Timestamp::from_secs(1_800_000_000) + started.elapsed();
    let store: Arc<dyn Store> = Arc::new(MemStore::new(Arc::new(clock)));
    // Only the test evaluates rules: the period is too long for the loop to do so.
    let config = EngineConfig { alert_rules_period: Duration::from_secs(3_600), ..EngineConfig::default() };
    Engine::start(store, config, lifecycle).await.unwrap()
}

fn rule(condition: &Value) -> RuleSpec {
    serde_json::from_value(json!({"name": "rule", "condition": condition})).unwrap()
}

/// Creates a job of an app without executors.
async fn create_job(node: &Node) -> JobRecord {
    let job = json!({"name": "j", "app": "a", "handler": "h"});
    jobs::create(node, NAMESPACE, serde_json::from_value(job).unwrap(), "test").await.unwrap()
}

/// Saves a rule about missing executors whose condition holds, evaluates it, and returns the rule's id and the
/// incident.
async fn no_executor(node: &Node) -> (AlertRuleId, Incident) {
    create_job(node).await;
    let saved = save_rule(node, NAMESPACE, (&rule(&json!({"no_executor": {}})), None), "test").await.unwrap();
    assert_eq!(evaluate_due(node, NAMESPACE).await.unwrap(), LookResult::Done { count: 1, has_more: false });
    let rule = saved.record.id;
    (rule, node.store().open_incidents_of_rule(rule, 10).await.unwrap().remove(0))
}

#[tokio::test]
async fn an_edited_rule_ends_its_incidents_without_a_recovery() {
    let lifecycle = Lifecycle::new();
    let engine = start_engine(&lifecycle).await;
    let node = engine.node();
    let (id, open) = no_executor(node).await;
    save_rule(node, NAMESPACE, (&rule(&json!({"failed": {}})), None), "test").await.unwrap();
    assert_eq!(evaluate_due(node, NAMESPACE).await.unwrap(), LookResult::Done { count: 1, has_more: true });
    assert_eq!(node.store().open_incidents_of_rule(id, 10).await.unwrap(), []);
    let ended = node.store().incident(NAMESPACE, open.id).await.unwrap().unwrap();
    assert!(!ended.spec.enabled, "no recovery was seen");
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

#[tokio::test]
async fn an_app_whose_last_job_is_deleted_has_found_no_executor() {
    let lifecycle = Lifecycle::new();
    let engine = start_engine(&lifecycle).await;
    let node = engine.node();
    let (id, open) = no_executor(node).await;
    let job = node.store().job(NAMESPACE, "j").await.unwrap().unwrap();
    jobs::delete(node, &job, None, false, (None, "test")).await.unwrap();
    save_rule(node, NAMESPACE, (&rule(&json!({"no_executor": {}})), None), "test").await.unwrap();
    assert_eq!(evaluate_due(node, NAMESPACE).await.unwrap(), LookResult::Done { count: 1, has_more: false });
    assert_eq!(node.store().open_incidents_of_rule(id, 10).await.unwrap(), []);
    let ended = node.store().incident(NAMESPACE, open.id).await.unwrap().unwrap();
    assert!(!ended.spec.enabled, "no recovery was seen");
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

async fn save_channels(node: &Node) {
    for (id, name) in [(1, "one"), (2, "two"), (3, "three")] {
        let channel = Channel {
            id: ChannelId::new(id),
            namespace: NAMESPACE,
            name: name.to_owned(),
            kind: ChannelKind::Slack,
            settings: "{}".to_owned(),
            secret: "{}".to_owned(),
            lang: Lang::En,
            is_enabled: true,
            created_at: node.now(),
            updated_at: node.now(),
        };
        node.store().save_channel(&channel, None).await.unwrap();
    }
}

#[tokio::test]
async fn the_end_of_an_incident_goes_to_the_channels_that_it_was_reported_to() {
    let lifecycle = Lifecycle::new();
    let engine = start_engine(&lifecycle).await;
    let node = engine.node();
    save_channels(node).await;
    let job = create_job(node).await;
    let save = async |channels: &[&str], escalate: Option<Escalation>| {
        let channels = channels.iter().map(|channel| (*channel).to_owned()).collect();
        let spec = RuleSpec { channels, escalate, ..rule(&json!({"no_executor": {}})) };
        let saved = save_rule(node, NAMESPACE, (&spec, None), "test").await.unwrap();
        evaluate_due(node, NAMESPACE).await.unwrap();
        saved.record.id
    };
    let id = save(&["one", "three"], None).await;
    let open = node.store().open_incidents_of_rule(id, 10).await.unwrap().remove(0);
    jobs::delete(node, &job, None, false, (None, "test")).await.unwrap();
    // The incident ends before it escalates.
    let escalate = Escalation { channel: "three".to_owned(), after: Duration::from_secs(1800) };
    save(&["two"], Some(escalate)).await;
    let messages = node.store().incident_messages(open.id, 10).await.unwrap();
    let mut messages: Vec<(NoticeKind, String)> = messages.into_iter().map(|one| (one.kind, one.channel)).collect();
    messages.sort_by_key(|(kind, channel)| (kind.as_str(), channel.clone()));
    let named = |kind, channel: &str| (kind, channel.to_owned());
    let (firing, resolved) = (NoticeKind::Firing, NoticeKind::Resolved);
    let began = [named(firing, "one"), named(firing, "three")];
    let ended = [named(resolved, "one"), named(resolved, "three"), named(resolved, "two")];
    assert_eq!(messages, [&began[..], &ended].concat());
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

/// This holds however many messages other channels got in the meantime, and even if the rule names no channel any more.
#[tokio::test]
async fn the_end_of_an_incident_goes_to_each_channel_that_the_rule_has_dropped() {
    let lifecycle = Lifecycle::new();
    let engine = start_engine(&lifecycle).await;
    let node = engine.node();
    save_channels(node).await;
    let job = create_job(node).await;
    let save = async |channels: Vec<String>| {
        let spec = RuleSpec { channels, ..rule(&json!({"no_executor": {}})) };
        let saved = save_rule(node, NAMESPACE, (&spec, None), "test").await.unwrap();
        evaluate_due(node, NAMESPACE).await.unwrap();
        saved.record.id
    };
    let id = save(vec!["one".to_owned()]).await;
    let open = node.store().open_incidents_of_rule(id, 10).await.unwrap().remove(0);
    let now = node.now();
    let notice = json!({
        "kind": "reminder", "incident": null, "rule": "rule", "condition": "no_executor", "namespace": "default",
        "subject": {"kind": "app", "name": "a"}, "severity": "warning", "summary_en": "", "summary_zh": "",
        "started_at": now, "at": now, "count": 1, "path": "/",
    });
    let notice: Notice = serde_json::from_value(notice).unwrap();
    let reminder = |number| NewMessage {
        id: MessageId::new(node.new_id()),
        namespace: NAMESPACE,
        channel: ChannelId::new(2),
        incident: open.id,
        number,
        notice: notice.clone(),
        created_at: now,
    };
    let reminders: Vec<NewMessage> = (2..=102).map(reminder).collect();
    assert_eq!(node.store().write_messages(&reminders).await.unwrap(), 101);
    jobs::delete(node, &job, None, false, (None, "test")).await.unwrap();
    save(Vec::new()).await;
    let messages = node.store().incident_messages(open.id, 500).await.unwrap();
    let ends = messages.into_iter().filter(|one| one.kind == NoticeKind::Resolved);
    let mut channels: Vec<String> = ends.map(|one| one.channel).collect();
    channels.sort();
    assert_eq!(channels, ["one", "two"]);
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

#[tokio::test]
async fn an_acknowledgement_is_a_message_about_the_incident() {
    let lifecycle = Lifecycle::new();
    let engine = start_engine(&lifecycle).await;
    let node = engine.node();
    let (_, open) = no_executor(node).await;
    assert_eq!(open.message_count, 1, "the beginning");
    for _ in 0..2 {
        let known = acknowledge(node, NAMESPACE, open.id, "ann").await.unwrap();
        assert_eq!((known.acknowledged_by.as_deref(), known.message_count), (Some("ann"), 2));
    }
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

#[tokio::test]
async fn the_tokens_of_the_namespace_alone_are_looked_at_and_all_of_them() {
    let lifecycle = Lifecycle::new();
    let engine = start_engine(&lifecycle).await;
    let (node, soon) = (engine.node(), Some(engine.now() + Duration::from_secs(60)));
    let (own, other) = (token(1, Some(1), soon), token(2, Some(2), soon));
    let newer = (3..=600).map(|id| token(id, Some(1), None));
    let newer = newer.map(|one| TokenRecord { name: one.hash.clone(), ..one });
    for one in [own, other].into_iter().chain(newer) {
        assert!(node.store().add_token(&one).await.unwrap());
    }
    let spec = rule(&json!({"token_expiring": {"within": "14d"}}));
    let seen = dry_run(node, (NAMESPACE, "default"), &spec).await.unwrap();
    assert_eq!(seen.subjects.iter().map(|one| one.id).collect::<Vec<_>>(), [1]);
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

/// Stores a run of a job that has ended.
async fn end_run(node: &Node, job: &JobRecord, (status, reason): (RunStatus, Option<Reason>)) {
    let (id, now, token) = (node.new_id(), node.now(), node.token());
    let run_job = RunJob { namespace: job.namespace, job: job.id, job_version: job.version, app: job.app };
    let run = Run::new(RunId::new(id), run_job, now, Trigger::Api, (token.node, token.epoch));
    let run = Run { status, reason, cause: id, finished_at: Some(now), ..run };
    node.store().request_run(token, run).await.unwrap();
}

#[tokio::test]
async fn a_trial_looks_at_the_jobs_of_its_scope_and_at_the_reasons_of_skips() {
    let lifecycle = Lifecycle::new();
    let engine = start_engine(&lifecycle).await;
    let node = engine.node();
    let create = async |name: String, app: &str| {
        let job = json!({"name": name, "app": app, "handler": "h"});
        jobs::create(node, NAMESPACE, serde_json::from_value(job).unwrap(), "test").await.unwrap()
    };
    for index in 0..=100 {
        let other = create(format!("other-{index}"), "others").await;
        end_run(node, &other, (RunStatus::Failed, None)).await;
    }
    let own = create("own".to_owned(), "a").await;
    end_run(node, &own, (RunStatus::Failed, None)).await;
    let tried = async |scope: Value, condition: Value| {
        let spec = json!({"name": "rule", "scope": scope, "condition": condition});
        let spec: RuleSpec = serde_json::from_value(spec).unwrap();
        let trial = dry_run(node, (NAMESPACE, "default"), &spec).await.unwrap();
        (trial.count, trial.looked_at)
    };
    let failed = || json!({"failed": {}});
    assert_eq!(tried(json!("all"), failed()).await, (100, Some(100)), "not all of them");
    assert_eq!(tried(json!({"app": "a"}), failed()).await.0, 1);
    assert_eq!(tried(json!({"job": "own"}), failed()).await, (1, None));
    let late = create("late".to_owned(), "a").await;
    end_run(node, &late, (RunStatus::Skipped, Some(Reason::Overlap))).await;
    for (reasons, count) in [(json!([]), 1), (json!(["overlap"]), 1), (json!(["no_executor"]), 0)] {
        let condition = json!({"skipped": {"reasons": reasons}});
        assert_eq!(tried(json!({"job": "late"}), condition).await, (count, None), "{reasons}");
    }
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}
