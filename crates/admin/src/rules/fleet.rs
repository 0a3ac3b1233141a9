//! Facts about executors, servers and tokens.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use rondel_core::alert::{Incident, Observation, Scope, Sighting, Subject, SubjectKind, judge};
use rondel_core::name::takes_handler;
use rondel_core::{AppId, ExecutorId, NamespaceId, Timestamp};
use rondel_store::StoreError;
use rondel_store::access::TokenQuery;
use rondel_store::cluster::{self, Session};
use rondel_store::host::HostReport;

use super::states::app_subject;
use crate::node::Node;

const TOKEN_COUNT: u32 = 500;
/// An executor silent for longer than this is not expected back after a restart of the servers.
const EXPECTED_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// The apps that have jobs but no executor. Returns `None` if this cannot be decided yet: this server has only just started to serve, and
/// an executor that did not leave may still reconnect.
pub(super) async fn no_executor(
    node: &Node,
    (namespace, scope): (NamespaceId, &Scope),
    handler: Option<&str>,
    now: Timestamp,
) -> Result<Option<Vec<Observation>>, StoreError> {
    let store = node.store();
    let since = now - node.lost_after();
    let open = with_handler(node, present(&store.sessions(since).await?), handler).await?;
    let online: BTreeSet<AppId> = open.into_iter().map(|(app, _)| app).collect();
    let mut absent = Vec::new();
    for app in store.apps(namespace).await? {
        let is_its = match scope {
            Scope::App(name) => app.name == *name,
            Scope::All | Scope::Label(_) | Scope::Job(_) => true,
        };
        // An app without jobs needs no executor.
        if !is_its || online.contains(&app.id) || store.watched_jobs(namespace, Some(app.id), "", 1).await?.is_empty() {
            continue;
        }
        absent.push(app);
    }
    if !absent.is_empty() && node.serves_since() > since {
        let expected = with_handler(node, present(&store.sessions(now - EXPECTED_WITHIN).await?), handler).await?;
        if absent.iter().any(|app| expected.iter().any(|(expected, _)| *expected == app.id)) {
            return Ok(None);
        }
    }
    let seen = absent.iter().map(|app| Observation {
        subject: app_subject(app),
        sighting: Sighting::Holds { since: now, new_count: 0 },
        samples: Vec::new(),
    });
    Ok(Some(seen.collect()))
}

/// The executors that have not left. An executor whose stream has ended is not yet lost: a server that restarts ends all its streams.
fn present(sessions: &[Session]) -> BTreeSet<(AppId, ExecutorId)> {
    let left: HashSet<ExecutorId> = sessions.iter().filter(|one| one.has_left).map(|one| one.executor).collect();
    let present = sessions.iter().filter(|one| !left.contains(&one.executor));
    present.map(|one| (one.app, one.executor)).collect()
}

/// The executors that have the handler, if one is given.
async fn with_handler(
    node: &Node,
    executors: BTreeSet<(AppId, ExecutorId)>,
    handler: Option<&str>,
) -> Result<BTreeSet<(AppId, ExecutorId)>, StoreError> {
    let Some(handler) = handler else { return Ok(executors) };
    let ids: Vec<ExecutorId> = executors.into_iter().map(|(_, executor)| executor).collect();
    let has = |handlers: &str| {
        let handlers = serde_json::from_str::<Vec<String>>(handlers).unwrap_or_default();
        takes_handler(handlers.iter().map(String::as_str), handler)
    };
    let records = node.store().executors_by_id(&ids, Timestamp::EPOCH).await?;
    Ok(records.iter().filter(|record| has(&record.handlers)).map(|record| (record.app, record.id)).collect())
}

fn node_subject(node: &cluster::Node) -> Subject {
    Subject { kind: SubjectKind::Node, id: node.id.get(), name: node.name.clone(), app: None }
}

pub(super) async fn node_lost(node: &Node, now: Timestamp) -> Result<Vec<Observation>, StoreError> {
    let nodes = node.store().nodes().await?;
    let lost = nodes.iter().filter(|one| !one.is_living(now) && !one.report.is_leaving);
    let seen = lost.map(|one| Observation {
        subject: node_subject(one),
        sighting: Sighting::Holds { since: one.lease_until, new_count: 0 },
        samples: Vec::new(),
    });
    Ok(seen.collect())
}

pub(super) async fn loop_failing(
    node: &Node,
    length: Duration,
    now: Timestamp,
) -> Result<Vec<Observation>, StoreError> {
    let nodes = node.store().nodes().await?;
    let mut seen = Vec::new();
    for one in nodes.iter().filter(|one| one.is_living(now)) {
        let since = one.report.loops.iter().filter_map(|report| report.failing_since).min();
        let sighting = judge::overdue(since, length, now);
        seen.push(Observation { subject: node_subject(one), sighting, samples: Vec::new() });
    }
    Ok(seen)
}

/// The servers with a disk whose free space is below the bound.
pub(super) async fn disk_low(
    node: &Node,
    bound: (Option<u32>, Option<u64>),
    open: &[Incident],
    now: Timestamp,
) -> Result<Vec<Observation>, StoreError> {
    let is_open = |id: i64| open.iter().any(|one| (one.subject.kind, one.subject.id) == (SubjectKind::Node, id));
    let is_low = |one: &cluster::Node, host: &HostReport| {
        let is_open = is_open(one.id.get());
        host.disks.iter().any(|disk| judge::is_disk_low(bound, (disk.free_bytes, disk.size_bytes), is_open))
    };
    observe_hosts(node, is_low, now).await
}

/// The servers whose TLS certificate expires soon, or has expired.
pub(super) async fn certificate_expiring(
    node: &Node,
    within: Duration,
    now: Timestamp,
) -> Result<Vec<Observation>, StoreError> {
    let ends = |_: &cluster::Node, host: &HostReport| host.certificate_ends_at.is_some_and(|end| end <= now + within);
    observe_hosts(node, ends, now).await
}

/// The living servers whose report about their host fulfils the condition.
async fn observe_hosts(
    node: &Node,
    has_it: impl Fn(&cluster::Node, &HostReport) -> bool + Send,
    now: Timestamp,
) -> Result<Vec<Observation>, StoreError> {
    let nodes = node.store().nodes().await?;
    let living = nodes.iter().filter(|one| one.is_living(now));
    let found = living
        .filter(|one| one.report.loops.iter().filter_map(|report| report.host.as_ref()).any(|host| has_it(one, host)));
    let seen = found.map(|one| Observation {
        subject: node_subject(one),
        sighting: Sighting::Holds { since: now, new_count: 0 },
        samples: Vec::new(),
    });
    Ok(seen.collect())
}

pub(super) async fn token_expiring(
    node: &Node,
    within: Duration,
    now: Timestamp,
) -> Result<Vec<Observation>, StoreError> {
    let query = TokenQuery { limit: TOKEN_COUNT, ..TokenQuery::default() };
    let tokens = node.store().tokens(&query).await?;
    let ending = tokens.into_iter().filter(|token| token.is_good(now));
    let ending = ending.filter(|token| token.expires_at.is_some_and(|end| end <= now + within));
    let seen = ending.map(|token| Observation {
        subject: Subject { kind: SubjectKind::Token, id: token.id.get(), name: token.name, app: None },
        sighting: Sighting::Holds { since: now, new_count: 0 },
        samples: Vec::new(),
    });
    Ok(seen.collect())
}

#[cfg(test)]
mod tests {
    use rondel_core::NodeId;
    use rondel_store::cluster::LeaseToken;

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
        let apps = |sessions: &[Session]| present(sessions).into_iter().map(|(app, _)| app.get()).collect::<Vec<_>>();
        let ended = |one: Session| Session { ended_at: Some(Timestamp::EPOCH), ..one };
        let left = |one: Session| Session { has_left: true, ..one };
        assert_eq!(apps(&[session(10, 1), ended(session(20, 1))]), [1, 2], "a stream that ended is no lost executor");
        assert_eq!(apps(&[left(session(10, 1)), session(10, 2), session(11, 2)]), [1]);
        assert_eq!(apps(&[left(session(10, 1)), session(10, 2)]), [0; 0], "what one server heard of holds for all");
    }
}
