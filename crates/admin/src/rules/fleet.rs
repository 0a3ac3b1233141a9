//! Facts about executors, servers and tokens.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use rondel_core::alert::{ConditionState, Incident, Observation, Scope, Subject, SubjectKind, judge};
use rondel_core::name::takes_handler;
use rondel_core::{AppId, ExecutorId, NamespaceId, Timestamp, TokenId};
use rondel_store::StoreError;
use rondel_store::access::{TokenQuery, TokenRecord};
use rondel_store::cluster::{self, Session};
use rondel_store::host::{DiskReport, HostReport};

use super::facts::is_full;
use super::states::app_subject;
use crate::node::Node;

/// Number of tokens that one statement reads.
const TOKEN_COUNT: u32 = 500;
/// The namespace of a token's requests, if neither the request nor the token names one.
const DEFAULT_NAMESPACE: &str = "default";
/// An executor silent for longer than this is not expected back after a restart of the servers.
const EXPECTED_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Observes the apps that have jobs but no executor. An app that has neither jobs nor an executor counts as not watched. Returns `None` if
/// this cannot be decided yet, because this server has just started to serve and an executor that did not sign off may still reconnect.
pub(super) async fn no_executor(
    node: &Node,
    (namespace, scope): (NamespaceId, &Scope),
    handler: Option<&str>,
    now: Timestamp,
) -> Result<Option<Vec<Observation>>, StoreError> {
    let store = node.store();
    let since = now - node.lost_after();
    let executors = with_handler(node, present_executors(&store.sessions(since).await?), handler).await?;
    let apps_with_executor: BTreeSet<AppId> = executors.into_iter().map(|(app, _)| app).collect();
    let (mut absent_apps, mut apps_without_jobs) = (Vec::new(), Vec::new());
    for app in store.apps(namespace).await? {
        let is_in_scope = match scope {
            Scope::App(name) => app.name == *name,
            Scope::All | Scope::Label(_) | Scope::Job(_) => true,
        };
        if !is_in_scope || apps_with_executor.contains(&app.id) {
            continue;
        }
        // An app without jobs needs no executor.
        let has_jobs = !store.watched_jobs(namespace, Some(app.id), "", 1).await?.is_empty();
        if has_jobs { absent_apps.push(app) } else { apps_without_jobs.push(app) }
    }
    if !absent_apps.is_empty() && node.serves_since() > since {
        let expected_executors =
            with_handler(node, present_executors(&store.sessions(now - EXPECTED_WITHIN).await?), handler).await?;
        if absent_apps.iter().any(|app| expected_executors.iter().any(|(expected, _)| *expected == app.id)) {
            return Ok(None);
        }
    }
    let holding_state = ConditionState::Holds { since: now, new_count: 0 };
    let observations = absent_apps
        .iter()
        .map(|app| (app, holding_state))
        .chain(apps_without_jobs.iter().map(|app| (app, ConditionState::Unwatched)));
    let observations =
        observations.map(|(app, state)| Observation { subject: app_subject(app), state, samples: Vec::new() });
    Ok(Some(observations.collect()))
}

/// The executors that have not signed off. An executor whose stream has ended still counts, since a server that restarts ends all its
/// streams.
fn present_executors(sessions: &[Session]) -> BTreeSet<(AppId, ExecutorId)> {
    let left_executors: HashSet<ExecutorId> =
        sessions.iter().filter(|session| session.has_left).map(|session| session.executor).collect();
    let present_sessions = sessions.iter().filter(|session| !left_executors.contains(&session.executor));
    present_sessions.map(|session| (session.app, session.executor)).collect()
}

/// The given executors that have the handler; all given executors if `handler` is `None`.
async fn with_handler(
    node: &Node,
    executors: BTreeSet<(AppId, ExecutorId)>,
    handler: Option<&str>,
) -> Result<BTreeSet<(AppId, ExecutorId)>, StoreError> {
    let Some(handler) = handler else { return Ok(executors) };
    let ids: Vec<ExecutorId> = executors.into_iter().map(|(_, executor)| executor).collect();
    let has_handler = |handlers: &str| {
        let handlers = serde_json::from_str::<Vec<String>>(handlers).unwrap_or_default();
        takes_handler(handlers.iter().map(String::as_str), handler)
    };
    let records = node.store().executors_by_id(&ids, Timestamp::EPOCH).await?;
    Ok(records.iter().filter(|record| has_handler(&record.handlers)).map(|record| (record.app, record.id)).collect())
}

fn node_subject(node: &cluster::Node) -> Subject {
    Subject { kind: SubjectKind::Node, id: node.id.get(), name: node.name.clone(), app: None }
}

pub(super) async fn node_lost(node: &Node, now: Timestamp) -> Result<Vec<Observation>, StoreError> {
    let nodes = node.store().nodes().await?;
    let lost_nodes = nodes.iter().filter(|server| !server.is_living(now) && !server.report.is_leaving);
    let observations = lost_nodes.map(|server| Observation {
        subject: node_subject(server),
        state: ConditionState::Holds { since: server.lease_until, new_count: 0 },
        samples: Vec::new(),
    });
    Ok(observations.collect())
}

pub(super) async fn loop_failing(
    node: &Node,
    length: Duration,
    now: Timestamp,
) -> Result<Vec<Observation>, StoreError> {
    let nodes = node.store().nodes().await?;
    Ok(nodes.iter().map(|server| observe_node(server, judge_loops(server, length, now))).collect())
}

/// Whether a loop of a server has been failing for `length`; unknown if the server is dead, or has not reported yet.
fn judge_loops(node: &cluster::Node, length: Duration, now: Timestamp) -> ConditionState {
    let loops = &node.report.loops;
    if loops.is_empty() || !node.is_living(now) {
        return ConditionState::Unknown;
    }
    judge::overdue(loops.iter().filter_map(|report| report.failing_since).min(), length, now)
}

/// Observes for each server whether a disk has too little free space. `limits` is the required free space, as a percentage or in bytes; the
/// percentage takes precedence.
pub(super) async fn disk_low(
    node: &Node,
    limits: (Option<u32>, Option<u64>),
    open_incidents: &[Incident],
    now: Timestamp,
) -> Result<Vec<Observation>, StoreError> {
    let is_open = |id: i64| {
        open_incidents.iter().any(|incident| (incident.subject.kind, incident.subject.id) == (SubjectKind::Node, id))
    };
    let nodes = node.store().nodes().await?;
    let observations = nodes.iter().map(|server| {
        let is_open = is_open(server.id.get());
        let is_low = |disk: &DiskReport| judge::is_disk_low(limits, (disk.free_bytes, disk.size_bytes), is_open);
        let has_low_disk = |host: &HostReport| (!host.disks.is_empty()).then(|| host.disks.iter().any(is_low));
        observe_node(server, judge_host(server, has_low_disk, now))
    });
    Ok(observations.collect())
}

/// Observes for each server whether its TLS certificate expires soon, or has expired.
pub(super) async fn certificate_expiring(
    node: &Node,
    within: Duration,
    now: Timestamp,
) -> Result<Vec<Observation>, StoreError> {
    let ends_soon = |host: &HostReport| host.certificate_ends_at.map(|end| end <= now + within);
    let nodes = node.store().nodes().await?;
    Ok(nodes.iter().map(|server| observe_node(server, judge_host(server, ends_soon, now))).collect())
}

fn observe_node(node: &cluster::Node, state: ConditionState) -> Observation {
    Observation { subject: node_subject(node), state, samples: Vec::new() }
}

/// Evaluates a condition on the resources of a server's host, as the server reports them. `meets_condition` returns `None` if the host has no
/// such resource. The result is unknown while the server is dead, or if it could not measure everything.
fn judge_host(
    node: &cluster::Node,
    meets_condition: impl Fn(&HostReport) -> Option<bool>,
    now: Timestamp,
) -> ConditionState {
    let mut reports = node.report.loops.iter().filter(|_| node.is_living(now));
    let measurement = reports.find_map(|report| Some((report.host.as_ref()?, report.failing_since)));
    let Some((host, failing_since)) = measurement else { return ConditionState::Unknown };
    match (meets_condition(host), failing_since) {
        (Some(true), _) => ConditionState::Holds { since: now, new_count: 0 },
        (_, Some(_)) => ConditionState::Unknown,
        (Some(false), None) => ConditionState::Clear,
        (None, None) => ConditionState::Unwatched,
    }
}

/// The tokens of a namespace that expire soon. A token that was reported is observed until it is revoked, replaced or deleted, even after
/// it has expired.
pub(super) async fn token_expiring(
    node: &Node,
    (namespace, name): (NamespaceId, &str),
    (within, open_incidents): (Duration, &[Incident]),
    now: Timestamp,
) -> Result<Vec<Observation>, StoreError> {
    let mut tokens: Vec<TokenRecord> = Vec::new();
    loop {
        let after_token = tokens.last().map(|token| token.id);
        let page = node
            .store()
            .tokens(&TokenQuery { after: after_token, limit: TOKEN_COUNT, ..TokenQuery::default() })
            .await?;
        let is_last = !is_full(page.len(), TOKEN_COUNT);
        tokens.extend(page);
        if is_last {
            break;
        }
    }
    let is_open = |id: TokenId| {
        let subject = (SubjectKind::Token, id.get());
        open_incidents.iter().any(|incident| (incident.subject.kind, incident.subject.id) == subject)
    };
    // Each token is compared only with the tokens that have the same owner and name, since there may be very many tokens.
    let mut same_named: HashMap<_, Vec<&TokenRecord>> = HashMap::new();
    for token in &tokens {
        same_named.entry((token.owner, token.name.as_str())).or_default().push(token);
    }
    let has_successor = |token: &TokenRecord| {
        let others = same_named.get(&(token.owner, token.name.as_str()));
        others.is_some_and(|others| is_replaced(token, others.iter().copied()))
    };
    let ending_tokens = tokens.iter().filter(|token| {
        let expires_soon = token.expires_at.is_some_and(|end| end <= now + within && (end > now || is_open(token.id)));
        expires_soon
            && token.revoked_at.is_none()
            && is_token_of_namespace(token, (namespace, name))
            && !has_successor(token)
    });
    let observations = ending_tokens.map(|token| Observation {
        subject: Subject { kind: SubjectKind::Token, id: token.id.get(), name: token.name.clone(), app: None },
        state: ConditionState::Holds { since: now, new_count: 0 },
        samples: Vec::new(),
    });
    Ok(observations.collect())
}

/// Whether a token belongs to a namespace: it has a role there, or it has a role everywhere and its requests go to this namespace by
/// default.
fn is_token_of_namespace(token: &TokenRecord, (namespace, name): (NamespaceId, &str)) -> bool {
    let is_default = token.namespace.map_or(name == DEFAULT_NAMESPACE, |own| own == namespace);
    token.grants.iter().any(|grant| grant.namespace.map_or(is_default, |granted| granted == namespace))
}

/// Whether there is a newer token of the same kind, name, owner and roles that is not revoked and ends no earlier. A rotation creates such a
/// token.
fn is_replaced<'t>(token: &TokenRecord, others: impl IntoIterator<Item = &'t TokenRecord>) -> bool {
    others.into_iter().any(|newer| {
        newer.id > token.id
            && (newer.kind, newer.owner, &newer.name) == (token.kind, token.owner, &token.name)
            && newer.grants == token.grants
            && newer.revoked_at.is_none()
            && newer.expires_at.is_none_or(|newer_end| token.expires_at.is_some_and(|end| end <= newer_end))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use rondel_core::NodeId;
    use rondel_core::access::{Grant, Role};
    use rondel_core::homes::Switch;
    use rondel_store::access::TokenKind;
    use rondel_store::cluster::{LeaseToken, LoopReport, NodeReport};

    use super::*;

    fn session(executor: i64, node: i64) -> Session {
        Session {
            token: LeaseToken { node: NodeId::new(node), epoch: 1 },
            executor: ExecutorId::new(executor),
            app: AppId::new(executor / 10),
            last_seen_at: Timestamp::EPOCH,
            ended_at: None,
            has_left: false,
            process: None,
        }
    }

    #[test]
    fn an_executor_is_there_until_it_leaves_or_is_lost() {
        let apps = |sessions: &[Session]| {
            present_executors(sessions).into_iter().map(|(app, _)| app.get()).collect::<Vec<_>>()
        };
        let ended = |one: Session| Session { ended_at: Some(Timestamp::EPOCH), ..one };
        let left = |one: Session| Session { has_left: true, ..one };
        assert_eq!(apps(&[session(10, 1), ended(session(20, 1))]), [1, 2], "a stream that ended is no lost executor");
        assert_eq!(apps(&[left(session(10, 1)), session(10, 2), session(11, 2)]), [1]);
        assert_eq!(apps(&[left(session(10, 1)), session(10, 2)]), [0; 0], "what one server heard of holds for all");
    }

    fn server(loops: Vec<LoopReport>, lease_until: Timestamp) -> cluster::Node {
        cluster::Node {
            id: NodeId::new(2),
            name: "node-2".to_owned(),
            epoch: 1,
            lease_until,
            is_fenced: false,
            fenced_by: None,
            advertise_url: None,
            server_version: String::new(),
            started_at: Timestamp::EPOCH,
            switch: Switch::Active,
            report: NodeReport { loops, ..NodeReport::default() },
        }
    }

    #[test]
    fn values_hidden_by_a_dead_server_or_a_failed_measurement_are_unknown() {
        let (now, later) = (Timestamp::from_secs(100), Timestamp::from_secs(200));
        let measured = |free: &[u64], failing_since: Option<Timestamp>| {
            let disks = free.iter().map(|free| DiskReport { free_bytes: *free, ..DiskReport::default() }).collect();
            let host = Some(HostReport { disks, certificate_ends_at: None });
            vec![LoopReport::default(), LoopReport { host, failing_since, ..LoopReport::default() }]
        };
        let has_low = |host: &HostReport| host.disks.first().map(|disk| disk.free_bytes < 10);
        let disks = |loops: Vec<LoopReport>, lease_until| judge_host(&server(loops, lease_until), has_low, now);
        let holds = ConditionState::Holds { since: now, new_count: 0 };
        assert_eq!(disks(measured(&[5], None), later), holds);
        assert_eq!(disks(measured(&[5], Some(now)), later), holds);
        assert_eq!(disks(measured(&[50], None), later), ConditionState::Clear);
        assert_eq!(disks(measured(&[50], Some(now)), later), ConditionState::Unknown);
        assert_eq!(disks(measured(&[50], None), now), ConditionState::Unknown, "its lease has ended");
        assert_eq!(disks(Vec::new(), later), ConditionState::Unknown);
        assert_eq!(disks(measured(&[], None), later), ConditionState::Unwatched, "it has no disk");

        let length = Duration::from_secs(10);
        let loops = |loops: Vec<LoopReport>, lease_until| judge_loops(&server(loops, lease_until), length, now);
        let failing = || vec![LoopReport { failing_since: Some(Timestamp::from_secs(50)), ..LoopReport::default() }];
        assert_eq!(loops(failing(), later), ConditionState::Holds { since: Timestamp::from_secs(60), new_count: 0 });
        assert_eq!(loops(vec![LoopReport::default()], later), ConditionState::Clear);
        assert_eq!(loops(failing(), now), ConditionState::Unknown);
        assert_eq!(loops(Vec::new(), later), ConditionState::Unknown);
    }

    /// A token with a role in a namespace, or everywhere.
    pub(in crate::rules) fn token(id: i64, namespace: Option<i64>, expires_at: Option<Timestamp>) -> TokenRecord {
        TokenRecord {
            id: TokenId::new(id),
            kind: TokenKind::Api,
            name: "ci".to_owned(),
            owner: None,
            namespace: None,
            hash: id.to_string(),
            prefix: String::new(),
            minted_by: None,
            line: TokenId::new(id),
            series: TokenId::new(id),
            declares: false,
            created_at: Timestamp::EPOCH,
            expires_at,
            last_used_at: None,
            revoked_at: None,
            grants: vec![Grant { namespace: namespace.map(NamespaceId::new), ..Grant::everywhere(Role::Viewer) }],
        }
    }

    #[test]
    fn a_token_is_one_of_the_namespace_that_it_has_a_role_in() {
        let is_token_of_namespace =
            |token: &TokenRecord, id: i64, name: &str| is_token_of_namespace(token, (NamespaceId::new(id), name));
        let (own, everywhere) = (token(1, Some(2), None), token(2, None, None));
        assert!(is_token_of_namespace(&own, 2, "pay") && !is_token_of_namespace(&own, 1, "default"));
        assert!(is_token_of_namespace(&everywhere, 1, "default") && !is_token_of_namespace(&everywhere, 2, "pay"));
        let elsewhere = TokenRecord { namespace: Some(NamespaceId::new(2)), ..everywhere };
        assert!(is_token_of_namespace(&elsewhere, 2, "pay") && !is_token_of_namespace(&elsewhere, 1, "default"));
    }

    #[test]
    fn a_newer_token_of_the_same_name_that_ends_no_earlier_replaces_a_token() {
        let at = |second| Some(Timestamp::from_secs(second));
        let old = token(2, None, at(100));
        let is_replaced = |other: TokenRecord| is_replaced(&old, &[old.clone(), other]);
        assert!(is_replaced(token(3, None, at(100))) && is_replaced(token(3, None, None)));
        assert!(!is_replaced(token(3, None, at(99))) && !is_replaced(token(1, None, None)));
        assert!(!is_replaced(TokenRecord { name: "cd".to_owned(), ..token(3, None, None) }));
        assert!(!is_replaced(TokenRecord { revoked_at: at(1), ..token(3, None, None) }));
    }
}
