//! Which node counts the runs of each limit.

use async_trait::async_trait;
use rondel_core::{NamespaceId, NodeId};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// The name of a limit that jobs of a namespace share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitName {
    /// The tenant.
    pub namespace: NamespaceId,
    /// The key that the jobs name.
    pub key: String,
}

/// Assigns to each limit the node that counts its runs.
#[async_trait]
pub trait Limits {
    /// The node that counts the runs of each of these limits, in this order. A limit that has no such node yet gets the node of `token`. A
    /// node that adopts a dead node's runs ([`adopt`](crate::Adopt::adopt)) counts in its place.
    async fn limit_homes(&self, token: LeaseToken, limits: &[LimitName]) -> Result<Vec<NodeId>>;
}
