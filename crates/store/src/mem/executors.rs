//! The trait `Executors` for the store in memory.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::{ExecutorId, NamespaceId, Timestamp};

use crate::cluster::{ExecutorProof, ExecutorRecord, HostProcess, SeenExecutor, Session, StreamEnd};
use crate::mem::{MemStore, State, to_usize};
use crate::settle::clean_name;
use crate::{Executors, LeaseToken, Result};

#[async_trait]
impl Executors for MemStore {
    async fn open_session(
        &self,
        token: LeaseToken,
        executor: &ExecutorRecord,
        process: Option<HostProcess>,
    ) -> Result<Option<Timestamp>> {
        let now = self.now();
        let mut state = self.state();
        let mut record = executor.clone();
        record.name = clean_name(&executor.name).into_owned();
        if let Some(stored_executor) = state.executors.get(&executor.id) {
            let is_proven =
                stored_executor.secret_hash.is_none() || stored_executor.secret_hash == executor.secret_hash;
            if stored_executor.app != executor.app || !is_proven {
                return Ok(None);
            }
            record.first_seen_at = stored_executor.first_seen_at;
        }
        state.executors.insert(executor.id, record);
        let session = Session {
            token,
            executor: executor.id,
            app: executor.app,
            last_seen_at: now,
            ended_at: None,
            has_left: false,
            process,
        };
        state.sessions.insert((token.node, executor.id), session);
        // Each stream of an executor to a node has a later `opened_at` than the stream before it.
        let last_opened_at = state.opened_at.get(&(token.node, executor.id)).copied().unwrap_or(Timestamp::EPOCH);
        let opened_at = now.max(last_opened_at + Duration::from_millis(1));
        state.opened_at.insert((token.node, executor.id), opened_at);
        Ok(Some(opened_at))
    }

    async fn beat_sessions(&self, token: LeaseToken, executors: &[ExecutorId]) -> Result<()> {
        let now = self.now();
        let mut state = self.state();
        for executor in executors {
            let session = state.sessions.get_mut(&(token.node, *executor));
            if let Some(session) = session.filter(|session| session.token.epoch <= token.epoch) {
                // A fence of the previous lease may have recorded an end for this stream. A beat under the next lease shows that the stream
                // goes on. Under the same lease a recorded end stays.
                let ended_at = session.ended_at.filter(|_| session.token.epoch == token.epoch);
                (session.token, session.last_seen_at, session.ended_at) = (token, now, ended_at);
            }
        }
        Ok(())
    }

    async fn close_session(&self, token: LeaseToken, executor: ExecutorId, end: StreamEnd) -> Result<()> {
        let now = self.now();
        let mut state = self.state();
        if state.opened_at.get(&(token.node, executor)) != Some(&end.opened_at) {
            return Ok(());
        }
        let session = state.sessions.get_mut(&(token.node, executor));
        if let Some(session) = session.filter(|session| session.token == token) {
            session.ended_at = session.ended_at.or(Some(now.max(end.reached)));
        }
        Ok(())
    }

    async fn leave_sessions(&self, executor: ExecutorId) -> Result<()> {
        let mut state = self.state();
        let sessions_of_executor = state.sessions.values_mut().filter(|session| session.executor == executor);
        sessions_of_executor.for_each(|session| session.has_left = true);
        Ok(())
    }

    async fn sessions(&self, since: Timestamp) -> Result<Vec<Session>> {
        let state = self.state();
        Ok(state.sessions.values().filter(|session| session.last_seen_at >= since).copied().collect())
    }

    async fn sessions_that_may_have_carried(&self, since: Timestamp) -> Result<Vec<Session>> {
        let state = self.state();
        let extended_to_end = |session: &Session| {
            let stored_node = state.nodes.get(&session.token.node);
            let end = session.ended_at.or(stored_node.map(|stored_node| stored_node.node.lease_until));
            Session { last_seen_at: session.last_seen_at.max(end.unwrap_or(session.last_seen_at)), ..*session }
        };
        let session_ends = state.sessions.values().map(extended_to_end);
        Ok(session_ends.filter(|session| session.last_seen_at >= since).collect())
    }

    async fn executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<ExecutorRecord>> {
        Ok(self.executors_seen(since, |executor| executor.namespace == namespace))
    }

    async fn executor_proof(&self, id: ExecutorId) -> Result<Option<ExecutorProof>> {
        let executor_proof = |executor: &ExecutorRecord| {
            let (app, secret_hash, predecessor) = (executor.app, executor.secret_hash.clone(), executor.predecessor);
            ExecutorProof { app, secret_hash, predecessor }
        };
        Ok(self.state().executors.get(&id).map(executor_proof))
    }

    async fn executor_successors(&self, id: ExecutorId, limit: u32) -> Result<Vec<ExecutorId>> {
        let state = self.state();
        let successors = state.executors.values().filter(|executor| executor.predecessor == Some(id));
        let mut ids: Vec<ExecutorId> = successors.map(|executor| executor.id).collect();
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        ids.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(ids)
    }

    async fn seen_executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<SeenExecutor>> {
        let seen_executor = |executor: ExecutorRecord| {
            let ExecutorRecord { id, app, name, last_seen_at, .. } = executor;
            SeenExecutor { id, app, name, last_seen_at }
        };
        Ok(self.executors(namespace, since).await?.into_iter().map(seen_executor).collect())
    }

    async fn executors_by_id(&self, ids: &[ExecutorId], since: Timestamp) -> Result<Vec<ExecutorRecord>> {
        Ok(self.executors_seen(since, |executor| ids.contains(&executor.id)))
    }

    async fn forget_executors(&self, seen_before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let State { sessions, executors, .. } = &mut *state;
        let count_before = sessions.len() + executors.len();
        let old_sessions: Vec<_> = sessions.iter().filter(|(_, session)| session.last_seen_at < seen_before).collect();
        let old_keys: Vec<_> = old_sessions.into_iter().map(|(key, _)| *key).take(to_usize(limit)).collect();
        for key in old_keys {
            sessions.remove(&key);
        }
        let is_old =
            |id, first_seen_at| first_seen_at < seen_before && sessions.keys().all(|(_, executor)| *executor != id);
        executors.retain(|id, executor| !is_old(*id, executor.first_seen_at));
        Ok(u64::try_from(count_before - sessions.len() - executors.len()).unwrap_or(u64::MAX))
    }
}

impl MemStore {
    fn executors_seen(&self, since: Timestamp, is_wanted: impl Fn(&ExecutorRecord) -> bool) -> Vec<ExecutorRecord> {
        let state = self.state();
        let with_last_seen_at = |executor: &ExecutorRecord| {
            let sessions = state.sessions.values().filter(|session| session.executor == executor.id);
            let last_seen_at = sessions.map(|session| session.last_seen_at).max().filter(|at| *at >= since)?;
            Some(ExecutorRecord { last_seen_at, ..executor.clone() })
        };
        let wanted_executors = state.executors.values().filter(|executor| is_wanted(executor));
        let mut executors: Vec<ExecutorRecord> = wanted_executors.filter_map(with_last_seen_at).collect();
        executors.sort_by(|a, b| (a.app, &a.name, a.id).cmp(&(b.app, &b.name, b.id)));
        executors
    }
}
