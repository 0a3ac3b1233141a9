//! Ends of runs that come from outside: an executor's result, or a request to cancel the run.

use std::collections::BTreeSet;
use std::sync::Arc;

use rondel_core::outcome::{NextStep, Outcome, cancelled_by};
use rondel_core::queued::is_fire_ahead;
use rondel_core::{Reason, RunId};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::ledger::{AttemptEnd, EndOutcome};

use crate::counters::Count;
use crate::dispatch::active::{ActiveRun, Phase};
use crate::dispatch::decision::Decision;
use crate::dispatch::effect::{Effect, Submission};
use crate::dispatch::event::{IncomingResult, SessionHandle, SettledAttempt};
use crate::dispatch::messages::cancel;
use crate::dispatch::queue::turns;
use crate::dispatch::ready::ReadyRun;
use crate::dispatch::results::reporter::Reporter;
use crate::dispatch::step::Step;
use crate::dispatch::{end_of_unsent, ends, flow};
use crate::metrics::CountedRun;

pub(crate) fn on_results(d: &mut Decision<'_>, session: &SessionHandle, results: Vec<IncomingResult>) {
    let Some(online) = d.state.executors.get(session.executor) else { return };
    let app = online.app;
    let reporter = Reporter {
        session: session.clone(),
        app,
        name: online.name.clone(),
        lineage: Arc::clone(&online.report.lineage),
    };
    let (mut foreign, mut unexpected) = (Vec::new(), Vec::new());
    for result in results {
        match take_result(d, &reporter, result) {
            ResultDestination::Here => {}
            ResultDestination::Foreign(result) => foreign.push(result),
            ResultDestination::Unexpected(result) => unexpected.push(result),
        }
    }
    if !unexpected.is_empty() {
        d.effects.push(Effect::JudgeUnexpected(reporter.clone(), unexpected));
    }
    if !foreign.is_empty() {
        d.effects.push(Effect::JudgeForeign(reporter, foreign));
    }
    flow::unpark(d, app);
}

/// Where a result is judged.
#[derive(Debug)]
pub(crate) enum ResultDestination {
    /// It was judged here.
    Here,
    /// Its run is not in memory.
    Foreign(IncomingResult),
    /// Another executor has its run, as far as this node's memory shows. The row may show otherwise: if an executor started twice before a server
    /// answered, the later process may have a result that is attributed to the earlier process.
    Unexpected(IncomingResult),
}

/// Decides where a result is judged. If this node has the attempt in memory for this reporter, puts the result into its lane, or refuses it if the
/// run was not sent.
pub(crate) fn take_result(d: &mut Decision<'_>, reporter: &Reporter, result: IncomingResult) -> ResultDestination {
    let now = d.now;
    let (session, executor) = (&reporter.session, reporter.as_executor());
    let run = result.run;
    let result = IncomingResult { outcome: d.state.deadlines.judge(run, result.outcome), ..result };
    if let Some(ready) = d.state.runs.in_roll_call(run).filter(|ready| ready.run.attempt == result.attempt) {
        if !d.state.recovery.rollcall.may_be_claimed(run, reporter.app, (session.executor, &reporter.lineage)) {
            return ResultDestination::Unexpected(result);
        }
        let trace = ready.run.trace.clone();
        let attempt_end = AttemptEnd {
            trace,
            ..result.into_attempt_end(&ready.run, ready.definition.job.next_step_policy, executor)
        };
        let (counted_run, reply_to) = (CountedRun::of_ready(ready), Some(session.clone()));
        if let Some(ready) = d.state.recovery.rollcall.remove(run, &mut d.state.runs) {
            let (executor, name) = reporter.as_executor();
            d.state.runs.put_active(ActiveRun::new(ready, executor, name, now, Phase::Settling));
        }
        d.finish(Submission { attempt_end, counted_run, reply_to, phase_before: Some(Phase::Sent) });
        return ResultDestination::Here;
    }
    let is_same_attempt = |active: &&mut ActiveRun| active.ready.run.attempt == result.attempt;
    let Some(active) = d.state.runs.active_mut(run).filter(is_same_attempt) else {
        return ResultDestination::Foreign(result);
    };
    let is_unsent = matches!(active.phase, Phase::Marking | Phase::Placed);
    let is_of_this_lease = d.facts.lease_holds && active.ready.token() == d.facts.token;
    if is_unsent && !is_of_this_lease {
        // This server has not sent the run, and the lease under which it took the run has ended. Another server may have sent the run, perhaps to
        // another executor.
        return ResultDestination::Foreign(result);
    }
    let is_same_app = reporter.app == active.ready.run.app;
    if !is_same_app || !reporter.may_report_for(active.executor) {
        return ResultDestination::Unexpected(result);
    }
    if is_unsent {
        refuse_result(d, reporter, &result);
        return ResultDestination::Here;
    }
    if active.phase == Phase::Settling {
        // The executor sent the result again because the answer takes long. The answer comes once the first copy is durable.
        return ResultDestination::Here;
    }
    let ready = &active.ready;
    let trace = ready.run.trace.clone();
    let attempt_end =
        AttemptEnd { trace, ..result.into_attempt_end(&ready.run, ready.definition.job.next_step_policy, executor) };
    let (counted_run, reply_to) = (CountedRun::of_ready(ready), Some(session.clone()));
    let phase_before = std::mem::replace(&mut active.phase, Phase::Settling);
    let executor = active.executor;
    if phase_before != Phase::Ending {
        ends::free_slot(d, executor);
    }
    d.finish(Submission { attempt_end, counted_run, reply_to, phase_before: Some(phase_before) });
    ResultDestination::Here
}

/// Restores the phase of a run whose end found no room in its lane. The executor reports the end again, or the run is given up again.
pub(crate) fn on_end_refused(d: &mut Decision<'_>, run: RunId, attempt: i32, phase: Phase) {
    let is_same_attempt = |active: &&mut ActiveRun| {
        active.ready.run.attempt == attempt && matches!(active.phase, Phase::Ending | Phase::Settling)
    };
    let Some(active) = d.state.runs.active_mut(run).filter(is_same_attempt) else { return };
    active.phase = phase;
    if phase != Phase::Ending
        && let Some(online) = d.state.executors.get_mut(active.executor)
    {
        online.in_flight += 1;
    }
}

/// Refuses a result of a run that the executor cannot have had. The executor gets an answer, so that it does not send the result again.
fn refuse_result(d: &mut Decision<'_>, reporter: &Reporter, result: &IncomingResult) {
    d.count(Count::ResultsRefused, 1);
    d.effects.push(Effect::RefuseResult(reporter.clone(), result.run, result.attempt));
}

/// Handles an end of an attempt that is durable now.
pub(crate) fn on_settled(d: &mut Decision<'_>, settled_attempt: &SettledAttempt) {
    if settled_attempt.end_outcome == EndOutcome::UnderWay {
        return look_for_executor(d, settled_attempt);
    }
    // An end that this server decided under an earlier lease does not concern an attempt that an executor has under the current lease.
    let is_its_lease =
        |active: &ActiveRun| settled_attempt.owner.is_none_or(|owner| active.ready.token().epoch <= owner.epoch);
    let is_same_attempt =
        |active: &ActiveRun| active.ready.run.attempt == settled_attempt.attempt && is_its_lease(active);
    if d.state.runs.active(settled_attempt.run).is_some_and(is_same_attempt) {
        // If the result was judged by the run's row, the run still occupies a slot here.
        ends::remove_from_executor(d, settled_attempt.run);
    }
    let is_newer = settled_attempt.owner.is_some_and(|owner| d.facts.in_memory.is_newer(settled_attempt.run, owner));
    // The run was settled by other means than the roll call, so the roll call must not find it any more.
    if !is_newer
        && d.state
            .runs
            .in_roll_call(settled_attempt.run)
            .is_some_and(|called| called.run.attempt <= settled_attempt.attempt)
    {
        d.state.recovery.rollcall.remove(settled_attempt.run, &mut d.state.runs);
    }
    let is_superseded = settled_attempt.end_outcome == EndOutcome::Superseded;
    let is_past = if is_superseded {
        // If this is false, the attempt had been given up, and a later attempt may be on any node by now.
        d.facts.in_memory.has_attempt_up_to(settled_attempt.run, settled_attempt.attempt)
    } else {
        // If this is false, the run has been taken over since, or its next attempt is here, with a place of its own.
        !is_newer && !d.facts.in_memory.has_later(settled_attempt.run, settled_attempt.attempt)
    };
    if !is_past {
        // A limit counts the other attempt, and a deadline watches it, only once that attempt has an executor.
        if d.state.runs.active(settled_attempt.run).is_none()
            && d.state.runs.in_roll_call(settled_attempt.run).is_none()
        {
            d.state.deadlines.forget(settled_attempt.run);
            turns::release_limit(d, settled_attempt.run);
            flow::offer_freed_places(d);
        }
        return;
    }
    d.forget([settled_attempt.run]);
    d.state.deadlines.forget(settled_attempt.run);
    let admitted_runs = match settled_attempt.end_outcome {
        EndOutcome::Stored(NextStep::Retry { .. }, _) => {
            d.state.gates.make_reserved(settled_attempt.run, &mut d.state.runs)
        }
        EndOutcome::Superseded => {
            // Superseded: either this end is already stored and the acknowledgement was lost, or another node continued the run. Until
            // `CheckRows` shows which, the run keeps a reserved place at its gate: the periodic queries may take it up again together with
            // other runs that were open, and then it must not pass before its turn.
            d.step(Step::CheckRows(vec![settled_attempt.run]));
            d.state.gates.make_reserved(settled_attempt.run, &mut d.state.runs)
        }
        _ => d.state.gates.leave(settled_attempt.run, &mut d.state.runs),
    };
    turns::release_limit(d, settled_attempt.run);
    turns::queue_starts(d, admitted_runs);
    flow::offer_freed_places(d);
}

/// Handles a run that this node took for unsent when it ended the run, and that an executor may have. If the run is in none of the dispatcher's
/// tables, it is forgotten, so that the periodic queries find it and executors are asked for it. A place that it has at its gate is kept until then.
fn look_for_executor(d: &mut Decision<'_>, settled_attempt: &SettledAttempt) {
    let (run, runs) = (settled_attempt.run, &d.state.runs);
    if runs.ready(run).is_none() && runs.active(run).is_none() && runs.in_roll_call(run).is_none() {
        d.forget_under_lease(settled_attempt.owner.map(|owner| (run, owner)));
        d.step(Step::CheckRows(vec![run]));
    }
}

/// Cancels runs: executors are asked to stop the runs that they have, waiting runs end, and [`Step::CancelStray`] ends the runs that are not in
/// memory.
pub(crate) fn cancel_runs(d: &mut Decision<'_>, cancels: Vec<(RunId, String)>) {
    let mut stray_runs: BTreeSet<RunId> = BTreeSet::new();
    for (run, by) in cancels {
        if let Some(active) = d.state.runs.active(run) {
            let is_sent = !matches!(active.phase, Phase::Marking | Phase::Placed);
            if let Some(online) = d.state.executors.get(active.executor).filter(|_| is_sent) {
                let body = cancel(run, active.ready.run.attempt, &by);
                d.effects.push(Effect::Send(online.session.clone(), body));
            }
        } else if let Some(ready) = turns::take_waiting(d, run) {
            ends::end_unsent(d, &ready, Outcome::Cancelled, Some(cancelled_by(&by)));
        } else if d.state.runs.in_roll_call(run).is_some() {
            // The roll call finds out first which executor has the run. Then the run ends, or is cancelled.
        } else if let Some(ready) = turns::take_unstarted(d, run) {
            ends::end_unsent(d, &ready, Outcome::Cancelled, Some(cancelled_by(&by)));
        } else {
            stray_runs.insert(run);
        }
    }
    if !stray_runs.is_empty() {
        d.step(Step::CancelStray(stray_runs.into_iter().collect()));
    }
}

/// Ends waiting runs whose jobs were paused or deleted, each run for the given reason. Runs that an executor has, or may have, continue. A
/// scheduled run whose planned instant is still ahead is left alone: until then, an edit may mark its row as skipped, and a later edit may
/// open it again. An instant that lies ahead again after a step back of the clock does not count as ahead, because edits leave such a run
/// alone, too.
pub(crate) fn drop_queued(d: &mut Decision<'_>, requests: Vec<(RunId, Reason)>) {
    let mut stray_runs = Vec::new();
    for (run, reason) in requests {
        if let Some(active) = d.state.runs.active(run) {
            if mutant::on(Mutant::DropInHand) {
                let ready = &active.ready;
                let skip_end = end_of_unsent(&ready.run, &ready.definition, Outcome::Skipped(reason), d.now, None);
                ends::give_up(d, run, AttemptEnd { is_unsent: false, ..skip_end });
            }
            continue;
        }
        let is_ahead = |ready: &ReadyRun| is_fire_ahead(&ready.run, d.facts.fires_ahead_after);
        if d.state.runs.in_roll_call(run).is_some() || d.state.runs.ready(run).is_some_and(is_ahead) {
            continue;
        }
        let waiting_run = turns::take_waiting(d, run);
        match waiting_run.or_else(|| turns::take_unstarted(d, run)) {
            Some(ready) => ends::end_unsent(d, &ready, Outcome::Skipped(reason), None),
            None => stray_runs.push((run, reason)),
        }
    }
    if !stray_runs.is_empty() {
        d.step(Step::DropStray(stray_runs));
    }
}

/// Handles the answer to [`Step::Cover`]: these runs were durably asked to make room.
pub(crate) fn on_covered(d: &mut Decision<'_>, asked_runs: &[RunId], cancels: Vec<(RunId, String)>) {
    for run in asked_runs {
        d.state.pending_steps.covered_runs.remove(run);
    }
    cancel_runs(d, cancels);
}
