//! The ledger's trait: each method stands in the file of what it does.

use async_trait::async_trait;
use rondel_core::outcome::CancelRequest;
use rondel_core::run::Attempt;
use rondel_core::{AppId, JobId, NamespaceId, NodeId, Run, RunId, Timestamp};

use super::SqlStore;
use crate::cluster::HomeMove;
use crate::ledger::{
    Adoption, AttemptEnd, CancelAsked, CancelElsewhere, ClaimJob, Claimed, DueJob, DueRange, Ends, Finisher, InHand,
    LimitName, MovedJobs, NotedWait, RunCheck, RunQuery, UnsentRun,
};
use crate::{LeaseToken, Ledger, Result};

#[async_trait]
impl Ledger for SqlStore {
    async fn due_jobs(&self, homes: &[NodeId], range: DueRange) -> Result<Vec<DueJob>> {
        self.read_due_jobs(homes, range).await
    }

    async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<Claimed> {
        self.claim_jobs(token, jobs).await
    }

    async fn request_run(&self, token: LeaseToken, run: Run) -> Result<Run> {
        self.insert_requested(token, run).await
    }

    async fn take_waiting(&self, token: LeaseToken, until: Timestamp, limit: u32) -> Result<Vec<Run>> {
        self.wake_waiting(token, until, limit).await
    }

    async fn overdue(&self, token: LeaseToken, before: Timestamp, limit: u32) -> Result<Vec<Run>> {
        self.read_overdue(token, before, limit).await
    }

    async fn running(&self, token: LeaseToken, limit: u32) -> Result<Vec<Run>> {
        self.read_running(token, limit).await
    }

    async fn adopt(&self, token: LeaseToken, dead: &[NodeId], enough: u32) -> Result<Adoption> {
        self.adopt_runs(token, dead, enough).await
    }

    async fn check_runs(&self, ids: &[RunId]) -> Result<Vec<RunCheck>> {
        self.read_checks(ids).await
    }

    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Run>> {
        self.read_runs(ids).await
    }

    async fn mark(&self, token: LeaseToken, runs: &[InHand]) -> Result<Vec<RunId>> {
        self.mark_runs(token, runs).await
    }

    async fn unmark(&self, token: LeaseToken, runs: &[(RunId, i32)]) -> Result<()> {
        self.unmark_runs(token, runs).await
    }

    async fn shelve(&self, token: LeaseToken, in_hand: &[RunId]) -> Result<u64> {
        self.shelve_runs(token, in_hand).await
    }

    async fn note_running(&self, token: LeaseToken, runs: &[InHand]) -> Result<()> {
        self.write_running(token, runs).await
    }

    async fn note_waits(&self, token: LeaseToken, waits: &[NotedWait]) -> Result<()> {
        self.write_waits(token, waits).await
    }

    async fn expand(&self, token: LeaseToken, run: RunId, shards: &[Run]) -> Result<bool> {
        self.expand_broadcast(token, run, shards).await
    }

    async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends> {
        self.finish_batch(finisher, batch).await
    }

    async fn ask_cancel(&self, run: RunId, request: CancelRequest<'_>, now: Timestamp) -> Result<CancelAsked> {
        self.note_cancel(run, request, now).await
    }

    async fn ask_cancels(&self, runs: &[RunId], request: CancelRequest<'_>, now: Timestamp) -> Result<u64> {
        self.note_cancels(runs, request, now).await
    }

    async fn open_runs(
        &self,
        job: JobId,
        fire_at: Option<Timestamp>,
        app: Option<AppId>,
        limit: u32,
    ) -> Result<Vec<Run>> {
        self.read_open(job, fire_at, app, limit).await
    }

    async fn limit_homes(&self, token: LeaseToken, limits: &[LimitName]) -> Result<Vec<NodeId>> {
        self.read_limit_homes(token, limits).await
    }

    async fn hand_over(&self, token: LeaseToken, runs: &[RunId], to: NodeId) -> Result<Vec<RunId>> {
        self.give_runs(token, runs, to).await
    }

    async fn move_jobs(&self, token: LeaseToken, moves: &[HomeMove], not_before: Timestamp) -> Result<MovedJobs> {
        self.give_jobs(token, moves, not_before).await
    }

    async fn unsent(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<UnsentRun>> {
        self.read_unsent(token, after, limit).await
    }

    async fn jobs_at(&self, home: NodeId, after: JobId, limit: u32) -> Result<Vec<JobId>> {
        self.read_jobs_at(home, after, limit).await
    }

    async fn count_jobs_at(&self, home: NodeId) -> Result<u64> {
        self.read_job_count(home).await
    }

    async fn free_jobs(&self, token: LeaseToken, dead: NodeId, limit: u32) -> Result<u64> {
        self.free_dead_jobs(token, dead, limit).await
    }

    async fn cancels(&self, token: LeaseToken) -> Result<Vec<(RunId, String)>> {
        self.read_cancels(token).await
    }

    async fn cancels_elsewhere(&self, token: LeaseToken, limit: u32) -> Result<Vec<CancelElsewhere>> {
        self.read_cancels_elsewhere(token, limit).await
    }

    async fn list_runs(&self, namespace: NamespaceId, query: &RunQuery) -> Result<Vec<Run>> {
        self.read_page(namespace, query).await
    }

    async fn runs_below(&self, parents: &[RunId], limit: u32) -> Result<Vec<Run>> {
        self.read_below(parents, limit).await
    }

    async fn planned_rows(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<Run>> {
        self.read_planned(job, (from, to), limit).await
    }

    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>> {
        self.read_attempts(run).await
    }
}
