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
        let before = state.shadow_fires.len();
        for one in fires {
            let executor = without_nul(&one.fire.executor).chars().take(SHADOW_EXECUTOR_LEN_MAX).collect();
            let kept = ShadowFire { job: one.job, fire: OldFire { executor, ..one.fire.clone() } };
            state.shadow_fires.entry((namespace, source.to_owned(), one.fire.source_id)).or_insert(kept);
        }
        Ok((state.shadow_fires.len() - before) as u64)
    }

    async fn shadow_fires(
        &self,
        (namespace, source): (NamespaceId, &str),
        job: JobId,
        (from, to): (Timestamp, Timestamp),
        limit: u32,
    ) -> Result<Vec<OldFire>> {
        let state = self.state();
        let is_asked = |one: &&ShadowFire| one.job == job && from <= one.fire.started_at && one.fire.started_at < to;
        let of_source = state.shadow_fires.iter().filter(|((space, name, _), _)| *space == namespace && name == source);
        let mut found: Vec<OldFire> =
            of_source.map(|(_, one)| one).filter(is_asked).map(|one| one.fire.clone()).collect();
        found.sort_by_key(|fire| (fire.started_at, fire.source_id));
        found.truncate(to_usize(limit));
        Ok(found)
    }

    async fn shadow_span(&self, namespace: NamespaceId, source: &str) -> Result<Option<ShadowSpan>> {
        let state = self.state();
        let mut of_source =
            state.shadow_fires.iter().filter(|((space, name, _), _)| *space == namespace && name == source);
        let Some((_, first)) = of_source.next() else { return Ok(None) };
        let last = &of_source.next_back().map_or(first, |(_, last)| last).fire;
        let span = ShadowSpan { first_at: first.fire.started_at, last_at: last.started_at, last_id: last.source_id };
        Ok(Some(span))
    }

    async fn forget_shadow_fires(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let mut old: Vec<Timestamp> = state.shadow_fires.values().map(|one| one.fire.started_at).collect();
        old.retain(|at| *at < before);
        old.sort_unstable();
        old.truncate(to_usize(limit));
        let Some(last) = old.last().copied() else { return Ok(0) };
        let count = state.shadow_fires.len();
        state.shadow_fires.retain(|_, one| one.fire.started_at > last);
        Ok((count - state.shadow_fires.len()) as u64)
    }
}
