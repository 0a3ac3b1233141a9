//! One node's access to the database: each call takes time, may fail before or after its effect, and is a place at
//! which the node may be stopped or die.

use std::sync::Arc;
use std::time::Duration;

use rondel_store::ledger::{AttemptEnd, ClaimJob, ClaimResult, Ends, Finisher, RunCheck};
use rondel_store::{MemStore, Result, StoreError};
use tokio::time::{Instant, sleep, sleep_until};

use crate::process::Process;
use crate::pumps;
use crate::watch::{self, OpenRows};
use crate::world::World;

/// How long a call waits for a database that it cannot reach.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct SimStore {
    pub(crate) world: Arc<World>,
    pub(crate) node: usize,
    pub(crate) process: Arc<Process>,
}

impl std::fmt::Debug for SimStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimStore").field("node", &self.node).finish()
    }
}

impl SimStore {
    fn inner(&self) -> &MemStore {
        &self.world.store
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.world.pass_seam(&self.process, name).await;
        self.simulate_hop(name).await?;
        let is_refused = self.world.is_faulty() && self.world.rng().happens(self.world.profile.store_error_ppm);
        if is_refused {
            self.world.record("refused", self.number(), || name.to_owned());
            return Err(StoreError::no_answer(name));
        }
        let rows_before =
            if matches!(name, "orphaned_jobs" | "adopt") { Some(OpenRows::read(&self.world).await) } else { None };
        let answer = effect.await;
        if let Some(rows_before) = rows_before {
            watch::record_adoption(&self.world, self.node, &rows_before).await;
        }
        if self.world.trace.keeps_lines() {
            watch::show_changed_rows(&self.world).await;
        }
        self.world.record("call", self.number(), || format!("{name}{}", if answer.is_ok() { "" } else { " failed" }));
        self.world.pass_seam(&self.process, name).await;
        let simulates_hop_back = self.world.rng().happens(200_000);
        if simulates_hop_back {
            self.simulate_hop(name).await?;
        }
        let is_lost = self.world.is_faulty() && self.world.rng().happens(self.world.profile.lost_answer_ppm);
        if is_lost {
            self.world.record("lost answer", self.number(), || name.to_owned());
            sleep(CALL_TIMEOUT).await;
            return Err(StoreError::no_answer(name));
        }
        answer
    }

    fn number(&self) -> i64 {
        i64::try_from(self.node).unwrap_or(0)
    }

    /// Simulates one hop to the database or back, which takes time and may fail.
    async fn simulate_hop(&self, name: &'static str) -> Result<()> {
        let (down_until, cut_until, slowness) = {
            let database = self.world.database();
            (database.down_until, database.cut_until.get(&self.node).copied(), database.slowness)
        };
        let now = Instant::now();
        if down_until > now {
            sleep(Duration::from_millis(3)).await;
            return Err(StoreError::no_answer(name));
        }
        if let Some(until) = cut_until.filter(|until| *until > now) {
            let gives_up_at = now + CALL_TIMEOUT;
            sleep_until(until.min(gives_up_at)).await;
            if until > gives_up_at {
                return Err(StoreError::no_answer(name));
            }
        }
        let length = self.world.rng().below(3);
        let length = Duration::from_millis(length) + slowness;
        if !length.is_zero() {
            sleep(length).await;
        }
        Ok(())
    }
}

rondel_store::delegate_store!(SimStore {
    Claim {
        async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<ClaimResult> {
            let effect = async {
                let claim_result = self.inner().claim(token, jobs).await?;
                watch::check_claim(&self.world, token, &claim_result).await;
                Ok(claim_result)
            };
            self.call("claim", effect).await
        }
    }
    Finish {
        async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends> {
            let effect = async {
                // A store may answer for the first part of a batch only.
                let is_cut = batch.first().is_some_and(|end| end.run.get() % 4 == 0);
                let batch = if is_cut { &batch[..batch.len().div_ceil(2)] } else { batch };
                let ends = self.inner().finish(finisher, batch).await?;
                watch::check_verdicts(&self.world, batch).await;
                Ok(ends)
            };
            self.call("finish", effect).await
        }
    }
    Dispatch {
        async fn note_running(&self, token: LeaseToken, runs: &[RunAtExecutor]) -> Result<()> {
            self.call("note_running", self.inner().note_running(token, runs)).await
        }
    }
    Runs {
        async fn check_runs(&self, ids: &[RunId]) -> Result<Vec<RunCheck>> {
            self.call("check_runs", self.inner().check_runs(ids)).await
        }
        async fn runs(&self, ids: &[RunId]) -> Result<Vec<Run>> {
            let effect = async {
                let runs = self.inner().runs(ids).await?;
                let now = self.world.now();
                for run in &runs {
                    self.world.truth().row_reads.entry((run.id, run.attempt)).or_default().push(now);
                }
                Ok(runs)
            };
            self.call("runs", effect).await
        }
    }
    Pumps {
        async fn change_items(
            &self,
            token: LeaseToken,
            job: JobId,
            changes: &[(String, ItemChange)],
            now: Timestamp,
        ) -> Result<ChangedItems> {
            let effect = async {
                let items_before = self.inner().pump_items(job).await?;
                let changed = self.inner().change_items(token, job, changes, now).await?;
                pumps::watch::check_changes(&self.world, token, (job, changes), &items_before).await;
                Ok(changed)
            };
            self.call("change_items", effect).await
        }
    }
});
