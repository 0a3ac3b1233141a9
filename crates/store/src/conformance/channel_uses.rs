//! Checks of the users of channels.

use rondel_core::calendar::Weekday;
use rondel_core::report::ReportSchedule;
use rondel_core::spec::EXPECT_CHANNEL;
use rondel_core::{AlertRuleId, AppId, JobId, NamespaceId, RunId};
use serde_json::{Value, json};

use super::alerts::new_namespace;
use super::channels::channel_in;
use super::{compile, expect_created, next_id, spec};
use crate::Store;
use crate::alerts::{RuleChange, RuleDeleted, RuleSaved};
use crate::catalog::{JobChange, JobCreated, JobRecord, JobSaved, NewJob};
use crate::channels::{CHANNEL_USE_COUNT_MAX, Channel, ChannelDeleted, ChannelUse};
use crate::reports::{ReportChange, ReportDeleted, ReportSaved};

async fn channel(store: &dyn Store, namespace: NamespaceId, name: &str) {
    let made = channel_in(namespace, store.now().await.unwrap());
    store.save_channel(&Channel { name: name.to_owned(), ..made }, None).await.unwrap();
}

async fn save_rule(store: &dyn Store, namespace: NamespaceId, name: &str, more: Value) -> RuleSaved {
    let mut document = json!({"name": name, "condition": {"failed": {}}});
    document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (spec, now) = (serde_json::from_value(document).unwrap(), store.now().await.unwrap());
    let id = AlertRuleId::new(next_id());
    let change =
        RuleChange { id, namespace, expected_version: None, spec: &spec, author: "conformance", check_at: None, now };
    store.save_alert_rule(change).await.unwrap()
}

async fn new_job(store: &dyn Store, namespace: NamespaceId, name: &str, expect: Value) -> NewJob {
    let now = store.now().await.unwrap();
    NewJob {
        id: JobId::new(next_id()),
        namespace,
        app: store.ensure_app(AppId::new(next_id()), namespace, "app", now).await.unwrap().id,
        spec: spec(name, json!({"expect": expect})),
        anchor: now,
        next_fire_at: None,
        delay: None,
        calendar: None,
        declared: None,
        author: "conformance".to_owned(),
        now,
    }
}

async fn change(store: &dyn Store, record: &JobRecord, expect: &Value) -> JobSaved {
    let (spec, now) = (spec(&record.spec.name, json!({"expect": expect})), store.now().await.unwrap());
    let (job, before) = (compile(&spec), compile(&record.spec));
    let change = JobChange {
        id: record.id,
        expected_version: None,
        spec: &spec,
        job: &job,
        before: &before,
        calendar: None,
        app: record.app,
        author: "conformance",
        skipped_row_id: RunId::new(next_id()),
        now,
        checked_at: now,
        reached: now,
        drops: None,
    };
    store.change_job(change).await.unwrap()
}

/// A channel that a rule, a job or the weekly report names is not deleted; a rule, job or report that names a missing channel is not saved.
pub async fn a_used_channel_is_not_deleted(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let report = ReportSchedule {
        weekday: Weekday::Mon,
        time: "08:00".to_owned(),
        zone: "UTC".to_owned(),
        channel: "ops".to_owned(),
    };
    let now = store.now().await.unwrap();
    let sent =
        ReportChange { namespace, spec: &report, author: "conformance", expected_version: None, next_at: None, now };
    let ops = json!({"channels": ["ops"]});
    let escalates = json!({"escalate": {"channel": "ops", "after": "1h"}});
    let missing = "ops".to_owned();
    assert_eq!(store.save_report_schedule(sent).await.unwrap(), ReportSaved::NoChannel);
    for more in [&ops, &escalates] {
        assert_eq!(save_rule(store, namespace, "rule", more.clone()).await, RuleSaved::NoChannel(missing.clone()));
    }
    let expect = json!({"late": "1m", "channels": ["ops"]});
    let new = new_job(store, namespace, "job", expect.clone()).await;
    assert_eq!(store.create_job(new.clone()).await.unwrap(), JobCreated::NoChannel(missing.clone()));
    let free = new_job(store, namespace, "free", json!({"late": "1m"})).await;
    let both = store.create_jobs(&[free, new.clone()]).await.unwrap();
    assert!(matches!(&both[..], [JobCreated::Saved(_), JobCreated::NoChannel(_)]), "{both:?}");
    assert!(store.job(namespace, "job").await.unwrap().is_none(), "nothing half saved");

    channel(store, namespace, "ops").await;
    channel(store, namespace, "opsx").await;
    let used = async || store.delete_channel(namespace, "ops", None).await.unwrap();
    assert!(matches!(save_rule(store, namespace, "direct", ops).await, RuleSaved::Created(_)));
    assert!(matches!(save_rule(store, namespace, "escalating", escalates).await, RuleSaved::Created(_)));
    assert!(matches!(save_rule(store, namespace, "silent", json!({})).await, RuleSaved::Created(_)));
    assert_eq!(store.save_report_schedule(sent).await.unwrap(), ReportSaved::Created);
    let job = expect_created(store.create_job(new).await.unwrap());
    let rules = ["direct", "escalating"].map(|rule| ChannelUse::Rule(rule.to_owned()));
    let all = [&rules[..], &[ChannelUse::Job("job".to_owned()), ChannelUse::Report]].concat();
    assert_eq!(used().await, ChannelDeleted::Used(all));
    assert!(store.channel(namespace, "ops").await.unwrap().is_some());
    assert_eq!(store.delete_channel(namespace, "opsx", None).await.unwrap(), ChannelDeleted::Deleted);

    for rule in ["direct", "escalating"] {
        assert_eq!(store.delete_alert_rule(namespace, rule, None, now).await.unwrap(), RuleDeleted::Deleted);
    }
    assert_eq!(store.delete_report_schedule(namespace, None).await.unwrap(), ReportDeleted::Deleted);
    assert_eq!(used().await, ChannelDeleted::Used(vec![ChannelUse::Job("job".to_owned())]));
    let changed = change(store, &job, &json!({"late": "1m", "channels": ["none"]})).await;
    assert_eq!(changed, JobSaved::NoChannel("none".to_owned()));
    assert!(matches!(change(store, &job, &json!({"late": "2m"})).await, JobSaved::Saved(..)));
    assert_eq!(used().await, ChannelDeleted::Deleted);
    assert_eq!(used().await, ChannelDeleted::NotFound);
}

/// Expectations that name no channel use the channel `default` if it exists. If a channel has many users, the refusal to delete it names
/// some.
pub async fn the_default_channel_is_used_by_expectations_without_one(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let mut jobs = Vec::new();
    for index in 0..CHANNEL_USE_COUNT_MAX + 3 {
        jobs.push(new_job(store, namespace, &format!("job-{index:02}"), json!({"late": "1m"})).await);
    }
    let made = store.create_jobs(&jobs).await.unwrap();
    assert!(made.iter().all(|made| matches!(made, JobCreated::Saved(_))), "no channel is needed");
    channel(store, namespace, EXPECT_CHANNEL).await;
    match store.delete_channel(namespace, EXPECT_CHANNEL, None).await.unwrap() {
        ChannelDeleted::Used(users) => {
            assert_eq!(users.len(), CHANNEL_USE_COUNT_MAX + 1);
            assert!(users.iter().all(|user| matches!(user, ChannelUse::Job(name) if name.starts_with("job-"))));
        }
        other => unreachable!("it is used: {other:?}"),
    }
}

/// The store serializes the deletion of a channel with the saving of a rule, job or report that names the channel.
pub async fn a_channel_is_not_deleted_while_its_user_is_saved(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    for round in 0..5 {
        let word = format!("channel-{round}");
        let more = json!({"channels": [word]});
        channel(store, namespace, &word).await;
        let name = format!("rule-{round}");
        let (saved, deleted) =
            tokio::join!(save_rule(store, namespace, &name, more), store.delete_channel(namespace, &word, None));
        match (saved, deleted.unwrap()) {
            (RuleSaved::Created(_), ChannelDeleted::Used(_)) | (RuleSaved::NoChannel(_), ChannelDeleted::Deleted) => {}
            other => unreachable!("both went through: {other:?}"),
        }
        let word = format!("other-{round}");
        channel(store, namespace, &word).await;
        let new = new_job(store, namespace, &format!("job-{round}"), json!({"late": "1m", "channels": [word]})).await;
        let (made, deleted) = tokio::join!(store.create_job(new), store.delete_channel(namespace, &word, None));
        match (made.unwrap(), deleted.unwrap()) {
            (JobCreated::Saved(_), ChannelDeleted::Used(_)) | (JobCreated::NoChannel(_), ChannelDeleted::Deleted) => {}
            other => unreachable!("both went through: {other:?}"),
        }
    }
}
