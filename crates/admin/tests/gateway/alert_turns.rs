//! Alert rules and weekly reports of several namespaces, one of which cannot be read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rondel_admin::{Engine, EngineConfig, Lifecycle};
use rondel_core::alert::{Incident, IncidentState, RuleSpec, Subject, SubjectKind};
use rondel_core::channel::ChannelKind;
use rondel_core::report::ReportSchedule;
use rondel_core::words::Lang;
use rondel_core::{AlertRuleId, ChannelId, IncidentId, NamespaceId, Timestamp};
use rondel_store::alerts::{AlertWrite, IncidentQuery, IncidentRecord, RuleChange};
use rondel_store::catalog::Namespace;
use rondel_store::channels::Channel;
use rondel_store::reports::ReportChange;
use rondel_store::{
    Alerts as _, Channels as _, Cluster as _, MemStore, Namespaces as _, Reports as _, Result, Store, StoreError,
};
use serde_json::json;

use super::world::{LIMIT, store};

/// A store that fails for the first namespace that a pass looks at: the first call of `read` after each call of `find`
/// fails.
#[derive(Debug)]
struct UnreadableStore {
    inner: Arc<MemStore>,
    find: &'static str,
    read: &'static str,
    fails: AtomicBool,
}

impl UnreadableStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == self.find {
            self.fails.store(true, Ordering::Relaxed);
        }
        if name == self.read && self.fails.swap(false, Ordering::Relaxed) {
            let message = "another version wrote it".to_owned();
            return Err(StoreError::Corrupt { table: "table", column: "spec", id: 1, message });
        }
        effect.await
    }
}

rondel_store::delegate_store!(UnreadableStore);

const TENANTS: [NamespaceId; 2] = [NamespaceId::new(21), NamespaceId::new(22)];

/// A store with two more namespaces, and the present.
async fn store_with_tenants() -> (Arc<MemStore>, Timestamp) {
    let known = store();
    let now = known.now().await.unwrap();
    for id in TENANTS {
        assert!(known.create_namespace(&Namespace { id, name: format!("tenant-{id}") }, now).await.unwrap());
    }
    (known, now)
}

/// Runs a server until one of its loops has failed and, despite that, `is_done` is true.
async fn run_until(
    known: &Arc<MemStore>,
    (find, read, name): (&'static str, &'static str, &str),
    is_done: impl AsyncFn() -> bool,
) {
    let store = UnreadableStore { inner: Arc::clone(known), find, read, fails: AtomicBool::new(false) };
    let lifecycle = Lifecycle::new();
    let store: Arc<dyn Store> = Arc::new(store);
    let _engine = Engine::start(store, EngineConfig::default(), &lifecycle).await.unwrap();
    let end = tokio::time::Instant::now() + LIMIT * 2;
    loop {
        let nodes = known.nodes().await.unwrap();
        let has_failed = nodes[0].report.loops.iter().any(|one| one.name == name && one.failed_count > 0);
        let is_done = is_done().await;
        if is_done && has_failed {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "done: {is_done}, {nodes:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_namespace_whose_rules_cannot_be_read_stops_no_other() {
    let (known, now) = store_with_tenants().await;
    let rule = json!({"name": "rule", "condition": {"no_success_for": {"length": "1h"}}});
    let spec: RuleSpec = serde_json::from_value(rule).unwrap();
    for (id, namespace) in (31..).map(AlertRuleId::new).zip(TENANTS) {
        let change =
            RuleChange { id, namespace, expected_version: None, spec: &spec, author: "test", check_at: Some(now), now };
        known.save_alert_rule(change).await.unwrap();
    }
    let is_evaluated = async || known.alert_rules(TENANTS[1]).await.unwrap()[0].check_at != Some(now);
    run_until(&known, ("namespaces_with_due_alerts", "alert_rules", "alert_rules"), is_evaluated).await;
}

#[tokio::test(start_paused = true)]
async fn more_old_incidents_than_a_batch_has_are_deleted_in_one_pass() {
    let (known, now) = store_with_tenants().await;
    let namespace = TENANTS[0];
    let rule = json!({"name": "rule", "condition": {"no_success_for": {"length": "1h"}}});
    let spec: RuleSpec = serde_json::from_value(rule).unwrap();
    let (id, check_at) = (AlertRuleId::new(31), Some(now));
    let change = RuleChange { id, namespace, expected_version: None, spec: &spec, author: "test", check_at, now };
    known.save_alert_rule(change).await.unwrap();
    let long_ago = now - Duration::from_secs(91 * 24 * 3600);
    let subject = |id| Subject { kind: SubjectKind::Job, id, name: format!("job-{id}"), app: Some("app".to_owned()) };
    let incident = |number: i64| Incident {
        id: IncidentId::new(number),
        subject: subject(number),
        group: None,
        state: IncidentState::Resolved,
        started_at: long_ago,
        seen_at: long_ago,
        resolved_at: Some(long_ago),
        count: 1,
        reported_count: 1,
        fired_at: Some(long_ago),
        reported_at: Some(long_ago),
        escalated_at: None,
        acknowledged_by: None,
        acknowledged_at: None,
        message_count: 1,
        check_at: None,
        samples: Vec::new(),
    };
    let record = |number| IncidentRecord { incident: incident(number), rule: id, spec: spec.clone() };
    let incidents: Vec<IncidentRecord> = (1..=1_200).map(record).collect();
    let write = AlertWrite {
        namespace,
        version: known.alert_version(namespace).await.unwrap().unwrap(),
        incidents: &incidents,
        messages: &[],
        evaluated_events: &[],
        checks: &[],
        expect_checks: &[],
        open_runs_check: None,
    };
    assert!(known.write_alerts(&write).await.unwrap());
    let lifecycle = Lifecycle::new();
    let store = Arc::clone(&known) as Arc<dyn Store>;
    let _engine = Engine::start(store, EngineConfig::default(), &lifecycle).await.unwrap();
    let end = tokio::time::Instant::now() + LIMIT;
    let query = IncidentQuery { namespace, is_open: None, job: None, before: None, within: None, limit: 500 };
    loop {
        let left = known.incidents(query).await.unwrap().len();
        if left == 0 {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "{left} are left");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_namespace_whose_report_cannot_be_written_stops_no_other() {
    let (known, now) = store_with_tenants().await;
    let schedule = json!({"weekday": "mon", "time": "08:00", "zone": "UTC", "channel": "ops"});
    let spec: ReportSchedule = serde_json::from_value(schedule).unwrap();
    for (id, namespace) in (41..).map(ChannelId::new).zip(TENANTS) {
        let channel = Channel {
            id,
            namespace,
            name: "ops".to_owned(),
            kind: ChannelKind::Slack,
            settings: "{}".to_owned(),
            secret: "{}".to_owned(),
            lang: Lang::En,
            is_enabled: true,
            created_at: now,
            updated_at: now,
        };
        known.save_channel(&channel, None).await.unwrap();
        let (author, next_at) = ("test", Some(now));
        let change = ReportChange { namespace, spec: &spec, author, expected_version: None, next_at, now };
        known.save_report_schedule(change).await.unwrap();
    }
    let is_sent = async || known.report_schedule(TENANTS[1]).await.unwrap().unwrap().next_at != Some(now);
    run_until(&known, ("due_reports", "channel", "weekly_reports"), is_sent).await;
}
