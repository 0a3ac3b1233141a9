//! Runs that continue while no server answers their executors, and that no other run of their job may overlap.
//!
//! Such a run keeps its place in its job's order when its executor is lost, until the executor comes back, its process is known to have
//! ended, the run's own timeout has passed, or the executor has been silent for so long that it must have stopped the run
//! ([`continue_max`](crate::EngineConfig::continue_max)).

use std::collections::BTreeSet;

use rondel_core::{ExecutorId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::dispatch::active::{ActiveRun, Phase};
use crate::dispatch::decision::Decision;

/// Whether the run may continue although its executor is lost.
pub(super) fn continues_in_silence(active: &ActiveRun) -> bool {
    active.ready.definition.job.silent_run_blocks_others() && !mutant::on(Mutant::NoHoldInSilence)
}

/// An executor that was last heard before this instant has stopped even the runs that continue in silence. If the rows may be outdated, the
/// instant is so early that no executor counts as having stopped them.
pub(super) fn silence_cutoff(d: &Decision<'_>) -> Timestamp {
    match d.facts.rows_may_be_old_in_silence {
        true => Timestamp::EPOCH,
        false => d.now - d.facts.settings.continue_max,
    }
}

/// Some runs continue in silence at lost executors. Once such an executor must have stopped these runs too, it is watched again, because a
/// node may have heard it since.
pub(crate) fn watch_silent_executors(d: &mut Decision<'_>) {
    let heard_before = silence_cutoff(d);
    let is_sent =
        |active: &&ActiveRun| matches!(active.phase, Phase::Sent | Phase::Noted) && continues_in_silence(active);
    let mut awaited_executors: BTreeSet<ExecutorId> = d.state.recovery.rollcall.silent_run_witnesses();
    awaited_executors.extend(d.state.runs.active_runs().filter(is_sent).map(|active| active.executor));
    for executor in awaited_executors {
        d.state.executors.suspect_again(executor, heard_before);
    }
}
