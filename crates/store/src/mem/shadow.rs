//! The trait `ShadowFires` for the store in memory.

use async_trait::async_trait;
use rondel_core::shadow::compare::OldFire;
use rondel_core::{JobId, NamespaceId, Timestamp};

use super::{MemStore, to_usize};
use crate::settle::without_nul;
use crate::shadow::{SHADOW_EXECUTOR_LEN_MAX, ShadowFire, ShadowSpan};
use crate::{Result, ShadowFires};

#[async_trait]
impl ShadowFires for MemStore {
    async fn add_shadow_fires(&self, namespace: NamespaceId, source: &str, fires: &[ShadowFire]) -> Result<u64> {
        let mut state = self.state();
        let count_before = state.shadow_fires.len();
        for shadow_fire in fires {
            let executor = without_nul(&shadow_fire.fire.executor).chars().take(SHADOW_EXECUTOR_LEN_MAX).collect();
            let stored_fire =
                ShadowFire { job: shadow_fire.job, fire: OldFire { executor, ..shadow_fire.fire.clone() } };
            state.shadow_fires.entry((namespace, source.to_owned(), shadow_fire.fire.source_id)).or_insert(stored_fire);
        }
        Ok((state.shadow_fires.len() - count_before) as u64)
    }

    async fn shadow_fires(
        &self,
        (namespace, source): (NamespaceId, &str),
        job: JobId,
        (from, to): (Timestamp, Timestamp),
        limit: u32,
    ) -> Result<Vec<OldFire>> {
        let state = self.state();
        let is_selected = |shadow_fire: &&ShadowFire| {
            shadow_fire.job == job && from <= shadow_fire.fire.started_at && shadow_fire.fire.started_at < to
        };
        let fires_of_source = state
            .shadow_fires
            .iter()
            .filter(|((fire_namespace, name, _), _)| *fire_namespace == namespace && name == source);
        let mut old_fires: Vec<OldFire> = fires_of_source
            .map(|(_, shadow_fire)| shadow_fire)
            .filter(is_selected)
            .map(|shadow_fire| shadow_fire.fire.clone())
            .collect();
        old_fires.sort_by_key(|fire| (fire.started_at, fire.source_id));
        old_fires.truncate(to_usize(limit));
        Ok(old_fires)
    }

    async fn shadow_span(&self, namespace: NamespaceId, source: &str) -> Result<Option<ShadowSpan>> {
        let state = self.state();
        let mut fires_of_source = state
            .shadow_fires
            .iter()
            .filter(|((fire_namespace, name, _), _)| *fire_namespace == namespace && name == source);
        let Some((_, first_fire)) = fires_of_source.next() else { return Ok(None) };
        let last_fire = &fires_of_source.next_back().map_or(first_fire, |(_, last_fire)| last_fire).fire;
        let span = ShadowSpan {
            first_at: first_fire.fire.started_at,
            last_at: last_fire.started_at,
            last_id: last_fire.source_id,
        };
        Ok(Some(span))
    }

    async fn forget_shadow_fires(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let mut old_instants: Vec<Timestamp> =
            state.shadow_fires.values().map(|shadow_fire| shadow_fire.fire.started_at).collect();
        old_instants.retain(|at| *at < before);
        old_instants.sort_unstable();
        old_instants.truncate(to_usize(limit));
        let Some(last_removed) = old_instants.last().copied() else { return Ok(0) };
        let count_before = state.shadow_fires.len();
        state.shadow_fires.retain(|_, shadow_fire| shadow_fire.fire.started_at > last_removed);
        Ok((count_before - state.shadow_fires.len()) as u64)
    }
}
