//! Which node counts the runs of each limit.

use async_trait::async_trait;
use rondel_core::{JobSpec, NamespaceId, NodeId};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// The name of a limit that jobs of a namespace share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitName {
    pub namespace: NamespaceId,
    /// The key that the jobs name.
    pub key: String,
}

impl LimitName {
    /// The limits that a definition of this namespace shares with other jobs.
    pub fn of(namespace: NamespaceId, spec: &JobSpec) -> impl Iterator<Item = Self> {
        let concurrency = spec.concurrency.as_ref().map(|limit| &limit.key);
        let rate = spec.rate.as_ref().and_then(|limit| limit.key.as_ref());
        [concurrency, rate].into_iter().flatten().map(move |key| Self { namespace, key: key.clone() })
    }
}

/// Assigns to each limit the node that counts its runs.
#[async_trait]
pub trait Limits {
    /// The node that counts the runs of each of these limits, in this order. The node of `token` gets the limits that have no such node
    /// yet. It also gets each limit whose node is switched off or shuts down, has no open run, and has none to take over from a node that it
    /// fenced. A node that adopts a dead node's runs ([`adopt`](crate::Adopt::adopt)) takes over its limits.
    async fn limit_homes(&self, token: LeaseToken, limits: &[LimitName]) -> Result<Vec<NodeId>>;

    /// Gives away these limits of the node of `token`: to the node `to`, or to the next node that asks. The caller knows of no open run
    /// that they count; the store does not check this. The node keeps a limit if it owns an open broadcast or shard under that limit,
    /// because shards cannot move. It keeps all of these limits if `to` takes no jobs, because the jobs under them could not follow.
    /// Returns the limits that it keeps.
    async fn give_limits(&self, token: LeaseToken, limits: &[LimitName], to: Option<NodeId>) -> Result<Vec<LimitName>>;
}
