//! Root runs of pump jobs: when they begin, and what ends them.

use std::collections::BTreeMap;

use rondel_core::outcome::CancelRequest;
use rondel_core::pump::{Item, Pump, Root, RootStep, trigger_of_continued};
use rondel_core::{Reason, Run, RunId, Timestamp, Trigger};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::StoreError;
use rondel_store::pumps::{PumpJob, has_come};

use super::{PumpLoop, PumpSnapshot, ROOT_COUNT, RootDefinitions, is_dry, is_of_pump};
use crate::jobs::{self, JobError, RunParams};

/// The requester in the requests to end a root run and its groups.
const END_REQUESTER: &str = "the end of the pump";

impl PumpLoop {
    /// Ends the open root runs that are to end, or begins one if none is open. Runs with shards from before the job was a pump job are not
    /// touched: the pump begins once they have ended.
    pub(super) async fn step_roots(
        &self,
        snapshot: &PumpSnapshot<'_>,
        pump: &Pump,
        roots: &[Run],
        (items, definitions): (&BTreeMap<String, Item>, &RootDefinitions),
    ) -> Result<u64, StoreError> {
        let (pump_roots, other_roots): (Vec<&Run>, Vec<&Run>) =
            roots.iter().partition(|run| is_of_pump(run, definitions));
        let open_roots: Vec<&Run> = pump_roots.iter().copied().filter(|run| !run.status.is_terminal()).collect();
        if open_roots.is_empty() {
            if other_roots.iter().any(|run| !run.status.is_terminal()) {
                return Ok(0);
            }
            let newest_run = pump_roots.first().copied();
            return match snapshot.next_step(pump, newest_run.map(root), false) {
                RootStep::Begin(fire_at) => self.begin(snapshot, fire_at, (None, None)).await,
                RootStep::Continue(fire_at) => {
                    let params = self.continued_params(snapshot, newest_run).await?;
                    let newest_roots: Vec<Root> = pump_roots.iter().map(|run| root(run)).collect();
                    let trigger = trigger_of_continued(pump, &newest_roots, snapshot.now);
                    self.begin(snapshot, fire_at, (params, trigger)).await
                }
                RootStep::Stay | RootStep::End(_) => Ok(0),
            };
        }
        let mut count = 0;
        for run in open_roots {
            let own_pump = definitions.get(&run.job_version).and_then(|definition| definition.job.pump.as_deref());
            let pump = own_pump.unwrap_or(pump);
            // A root run that waits behind another root run has no items yet.
            let is_dry = is_dry(pump, items, |owner| self.groups.is_of_root(snapshot.record.job, owner, run.id))
                && run.shard_total.is_some();
            if let RootStep::End(reason) = snapshot.next_step(pump, Some(root(run)), is_dry) {
                count += self.end(run, reason).await?;
            }
        }
        Ok(count)
    }

    /// The parameters that were set for the run that the next run continues, as far as the newest definition lets a run set them; `None` if there
    /// are none.
    async fn continued_params(
        &self,
        snapshot: &PumpSnapshot<'_>,
        newest_run: Option<&Run>,
    ) -> Result<Option<String>, StoreError> {
        // A run without groups never began.
        let Some(run) = newest_run.filter(|run| run.shard_total.is_some() && run.params.is_some()) else {
            return Ok(None);
        };
        let Some(record) = self.node.store().jobs_by_id(&[snapshot.record.job]).await?.pop() else { return Ok(None) };
        match jobs::params_of_repetition(&self.node, &record, run).await {
            Ok(params) => Ok(params.map(RunParams::into_text)),
            Err(JobError::Store(error)) => Err(error),
            Err(error) => {
                tracing::warn!(run = %run.id, %error, "the parameters of an interrupted run of a pump are dropped");
                Ok(None)
            }
        }
    }

    /// Begins a root run of a job that has no living home. This node then becomes the job's home.
    pub(super) async fn begin_first(&self, snapshot: &PumpSnapshot<'_>) -> Result<u64, StoreError> {
        let Some(pump) = snapshot.job().pump.clone() else { return Ok(0) };
        let mut roots = self.node.store().pump_roots(snapshot.record.job, Timestamp::MAX, ROOT_COUNT).await?;
        if roots.iter().any(|run| !run.status.is_terminal()) {
            // The job is taken over with its open root run, planned or under way.
            return Ok(0);
        }
        roots.retain(|root| has_come(root, snapshot.now));
        let definitions = self.root_definitions(&roots).await?;
        self.step_roots(snapshot, &pump, &roots, (&BTreeMap::new(), &definitions)).await
    }

    /// Begins a root run, with the parameters and the trigger of the run that it continues, if there is one. If a run from before the job was a
    /// pump job has the planned instant, the root run is planned for now.
    async fn begin(
        &self,
        snapshot: &PumpSnapshot<'_>,
        fire_at: Timestamp,
        (params, continued_trigger): (Option<String>, Option<Trigger>),
    ) -> Result<u64, StoreError> {
        let trigger = match snapshot.job().timetable.schedules.is_empty() {
            true => Trigger::Once,
            false => continued_trigger.unwrap_or(Trigger::Misfire),
        };
        let (store, token) = (self.node.store(), self.node.token());
        let planned_run = |fire_at: Timestamp| {
            let id = RunId::new(self.node.new_id());
            let run = Run::new(id, snapshot.definition.run_job(), fire_at, trigger, (token.node, token.epoch));
            Run { due_at: snapshot.now.max(fire_at), params: params.clone(), ..run }.for_all_shards()
        };
        let run = planned_run(fire_at);
        let mut id = run.id;
        let mut stored_run = store.request_run(token, run).await?;
        // The stored run need not be among the newest runs, which this look has read.
        if stored_run.id != id
            && !is_of_pump(&stored_run, &self.root_definitions(std::slice::from_ref(&stored_run)).await?)
        {
            let run = planned_run(snapshot.now);
            id = run.id;
            stored_run = store.request_run(token, run).await?;
        }
        let is_new = stored_run.id == id;
        self.node.shared().put_own(vec![stored_run]).await;
        Ok(u64::from(is_new))
    }

    /// Asks a root run and its groups to end. The groups finish the rows that they have fetched.
    async fn end(&self, root: &Run, reason: Reason) -> Result<u64, StoreError> {
        let (store, now) = (self.node.store(), self.node.now());
        let request = CancelRequest { by: END_REQUESTER, reason };
        tracing::info!(run = %root.id, job = %root.job, %reason, "a pump ends");
        store.ask_cancel(root.id, request, now).await?;
        let groups: Vec<RunId> = self.node.shared().open_shards(root).await?.iter().map(|run| run.id).collect();
        store.ask_cancels(&groups, request, now).await?;
        self.node.poke_cancels(root);
        Ok(1)
    }

    /// Ends the open root runs of a deleted job, and forgets that it was a pump job.
    pub(super) async fn end_deleted(&self, record: PumpJob) -> Result<u64, StoreError> {
        let mut roots = self.node.store().pump_roots(record.job, Timestamp::MAX, ROOT_COUNT).await?;
        // Runs with shards continue, like those of any other deleted job.
        let definitions = self.root_definitions(&roots).await?;
        roots.retain(|run| is_of_pump(run, &definitions));
        let count = self.end_all(&roots, Reason::Deleted).await?;
        if roots.iter().all(|run| run.status.is_terminal()) {
            self.node.store().forget_pump(record.job, record.version).await?;
        }
        Ok(count)
    }

    /// Ends the open root runs of a job that is no longer a pump job, and forgets that it was one.
    pub(super) async fn end_as_no_pump(
        &self,
        snapshot: &PumpSnapshot<'_>,
        item_count: usize,
    ) -> Result<u64, StoreError> {
        let PumpJob { job, version, .. } = snapshot.record;
        let mut roots = self.node.store().pump_roots(job, Timestamp::MAX, ROOT_COUNT).await?;
        // Other versions of the job may have shards too: their runs stay.
        let definitions = self.root_definitions(&roots).await?;
        roots.retain(|run| run.job_version < version && is_of_pump(run, &definitions));
        let count = self.end_all(&roots, Reason::Changed).await?;
        if roots.iter().all(|run| run.status.is_terminal()) {
            tracing::debug!(%job, items = item_count, "a job is no pump job any more");
            self.node.store().forget_pump(job, version).await?;
        }
        Ok(count)
    }

    async fn end_all(&self, roots: &[Run], reason: Reason) -> Result<u64, StoreError> {
        let mut count = 0;
        for root in roots {
            if !root.status.is_terminal() && root.cancel_by.is_none() {
                count += self.end(root, reason).await?;
            }
        }
        Ok(count)
    }
}

pub(super) fn root(run: &Run) -> Root {
    let reason = run.cancel_reason.or(run.reason);
    let forgets_cancel = mutant::on(Mutant::CancelledPumpBeginsAgain) && reason == Some(Reason::Requested);
    Root {
        fire_at: run.fire_at,
        version: run.job_version,
        trigger: run.trigger,
        status: run.status,
        reason: if forgets_cancel { Some(Reason::Changed) } else { reason },
        finished_at: run.finished_at,
        is_asked_to_end: run.cancel_by.is_some(),
    }
}
