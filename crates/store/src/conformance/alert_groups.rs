//! Checks of groups of incidents.

use rondel_core::alert::{IncidentState, SubjectKind};
use rondel_core::{AlertRuleId, Timestamp};

use super::alerts::{alert_version, incident, new_namespace, saved_rule, write};
use super::next_id;
use crate::Store;
use crate::alerts::{IncidentRecord, RuleRecord};

/// An open group of a rule's incidents.
pub(super) fn group(rule: &RuleRecord, now: Timestamp) -> IncidentRecord {
    let mut record = incident(rule, 0, now);
    (record.incident.subject.kind, record.incident.subject.app) = (SubjectKind::Group, None);
    record
}

pub(super) async fn a_group_names_the_subjects_that_it_has_counted(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let (rule, now) = (saved_rule(store, namespace).await, store.now().await.unwrap());
    let group = group(&rule, now);
    let member = |subject| {
        let mut record = incident(&rule, subject, now);
        record.incident.group = Some(group.incident.id);
        record
    };
    let mut all = [group.clone(), member(2), member(3), incident(&rule, 1, now)];
    (all[2].incident.state, all[2].incident.resolved_at) = (IncidentState::Resolved, Some(now));
    assert!(write(store, &rule, alert_version(store, namespace).await, &all).await);
    let open = store.open_incidents(namespace, rule.id, &[1, 2, 3, 4].map(|id| (SubjectKind::Job, id))).await.unwrap();
    let counted: Vec<i64> = open.counted_subjects.into_iter().map(|(_, id)| id).collect();
    assert_eq!(counted, [2, 3], "the second one has recovered");
}

/// The rule of an expectation is stored with its incidents only. With wrong counts, its group would end while its members are open.
pub(super) async fn the_incidents_of_an_expectation_are_counted(store: &dyn Store) {
    let namespace = new_namespace(store).await;
    let now = store.now().await.unwrap();
    let rule = RuleRecord { id: AlertRuleId::new(-next_id()), ..saved_rule(store, namespace).await };
    let group = group(&rule, now);
    let mut members = [incident(&rule, 2, now), incident(&rule, 3, now)];
    for member in &mut members {
        member.incident.group = Some(group.incident.id);
    }
    let [first, mut second] = members;
    second.incident.fired_at = None;
    let mut unreported = incident(&rule, 4, now);
    unreported.incident.fired_at = None;
    let all = [group.clone(), first, second, incident(&rule, 1, now), unreported.clone()];
    assert!(write(store, &rule, alert_version(store, namespace).await, &all).await);
    let open = store.open_incidents(namespace, rule.id, &[]).await.unwrap();
    assert_eq!((open.group, open.single_count, open.member_count), (Some(group.incident), 2, 2));
    assert_eq!(open.unreported_subjects, [unreported.incident.subject]);
}
