//! The node that counts the runs of a limit that jobs share.

use async_trait::async_trait;
use rondel_core::NodeId;

use crate::ledger::LimitName;
use crate::mem::MemStore;
use crate::{LeaseToken, Limits, Result};

#[async_trait]
impl Limits for MemStore {
    async fn limit_homes(&self, token: LeaseToken, limits: &[LimitName]) -> Result<Vec<NodeId>> {
        let mut state = self.state();
        Ok(limits.iter().map(|limit| *state.limit_homes.entry(limit.clone()).or_insert(token.node)).collect())
    }
}
