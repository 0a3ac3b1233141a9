//! Executors connect, disconnect, and answer triggers: the consequences for their runs.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::{ExecutorId, Reason, RunId};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1;

use super::active::{ActiveRun, Phase};
use super::decision::Decision;
use super::effect::{Effect, Measure};
use super::event::{Reply, Report, SessionHandle};
use super::executors::given_name;
use super::recovery::{fences, lose, roll, unanswered};
use super::starts::StartReport;
use super::{flow, outbox};
use crate::counters::Count;
use crate::registry::OnlineExecutor;

/// How long an executor that reported itself full gets no new runs.
const FULL_PAUSE: Duration = Duration::from_millis(200);

pub(super) fn on_joined(d: &mut Decision<'_>, session: SessionHandle, executor: OnlineExecutor, report: Report) {
    if d.state.executors.is_outdated(&session) {
        if d.state.executors.get(executor.id).is_none() {
            // The hello has already listed this executor as online. Show it as offline now, not only when this stream ends.
            d.effects.push(Effect::ShowOffline(executor.id));
        }
        return d.effects.push(Effect::EndStream(session));
    }
    // If an executor has two streams, only the newer stream counts, and the server ends the older stream. Only the executor knows which of its
    // streams works: if the server ends the working stream, the executor connects again.
    match d.state.executors.get(executor.id).map(|online| &online.session) {
        Some(newer) if newer.is_newer_than(&session) => return d.effects.push(Effect::EndStream(session)),
        Some(older) => d.effects.push(Effect::EndStream(older.clone())),
        None => {}
    }
    let name = d.state.executors.distinct_name(&executor, report.predecessor);
    let executor = OnlineExecutor { name, ..executor };
    let id = executor.id;
    if let Some(predecessor) = report.predecessor {
        lose::clear_lost_reasons(d, predecessor, &report);
        inherit_runs(d, predecessor, &executor, &report);
    }
    lose::clear_lost_reasons(d, id, &report);
    lose_unreported_runs(d, id, &report);
    record_starts(d, id, &report);
    unanswered::stop_awaiting_answers(d, id);
    roll::open_reported_places(d, &executor, &report);
    // The end of the previous stream may have removed the executor from the online executors after the hello had added it.
    let silences = &d.state.executors.silences;
    let (unanswered, avoided_until) = (silences.of(id), silences.avoided_until(id));
    let shown_executor = OnlineExecutor { unanswered, avoided_until, ..executor.clone() };
    d.effects.push(Effect::ShowOnline(Box::new(shown_executor)));
    d.state.executors.join(session, &executor, report);
    let is_open = |active: &&ActiveRun| !matches!(active.phase, Phase::Ending | Phase::Settling);
    let open_count = d.state.runs.of_executor(id).filter(is_open).count();
    let switch = d.facts.switches.of_executor(executor.app, given_name(&executor.name));
    if let Some(online) = d.state.executors.get_mut(id) {
        (online.in_flight, online.switch) = (open_count, switch);
    }
    roll::resolve(d);
    fences::ask_witnesses(d);
    flow::unpark(d, executor.app);
}

/// Adds siblings, other successors of the executor's predecessors, that were found after its hello. The executor may have results of runs that
/// are attributed to them.
pub(super) fn on_lineage_grown(d: &mut Decision<'_>, session: &SessionHandle, lineage: Arc<[ExecutorId]>) {
    let Some(online) = d.state.executors.get_mut(session.executor) else { return };
    if online.session.number == session.number {
        online.report.lineage = lineage;
        roll::resolve(d);
    }
}

/// Gives up the runs that were sent to a reconnected executor and that its hello does not report: their triggers were lost in the network.
fn lose_unreported_runs(d: &mut Decision<'_>, id: ExecutorId, report: &Report) {
    if mutant::on(Mutant::NoReconcile) {
        return;
    }
    let unknown_runs = lose::runs_sent_to(d, id, |active| {
        let attempt_key = (active.ready.run.id, active.ready.run.attempt);
        !report.held_runs.contains(&attempt_key) && !report.finished_runs.contains(&attempt_key)
    });
    for run in unknown_runs {
        lose::lose(d, run, Reason::NotReceived);
    }
}

/// Records the starts that an executor's hello reports for the runs that it has.
fn record_starts(d: &mut Decision<'_>, id: ExecutorId, report: &Report) {
    let now = d.now;
    for run in
        lose::runs_sent_to(d, id, |active| report.held_runs.contains(&(active.ready.run.id, active.ready.run.attempt)))
    {
        let Some(active) = d.state.runs.active_mut(run) else { continue };
        let report = report.starts.get(run, active.ready.run.attempt);
        if let StartReport::Started(start) = report {
            active.record_start(start.at.unwrap_or(active.sent_or_chosen_at), now);
        }
        d.state.deadlines.record_report(&active.ready, report, d.facts.boot_micros);
    }
}

/// Moves the runs of a predecessor to the restarted executor that has proved to be its successor, if the journal has their results. The other runs
/// died with the predecessor, and are given up. An executor inherits no run of another app.
fn inherit_runs(d: &mut Decision<'_>, predecessor: ExecutorId, executor: &OnlineExecutor, report: &Report) {
    for run in lose::runs_sent_to(d, predecessor, |active| active.ready.run.app == executor.app) {
        let Some(active) = d.state.runs.active(run) else { continue };
        if report.finished_runs.contains(&(run, active.ready.run.attempt)) {
            d.state.runs.move_active(run, executor.id);
        } else {
            lose::lose(d, run, Reason::ExecutorLost);
        }
    }
}

pub(super) fn on_stream_ended(d: &mut Decision<'_>, id: ExecutorId, session_number: u64) {
    let now = d.now;
    if d.state.executors.leave(id, session_number, now).is_none() {
        return;
    }
    unanswered::stop_awaiting_answers(d, id);
    d.effects.push(Effect::ShowOffline(id));
}

pub(super) fn on_replied(d: &mut Decision<'_>, executor: ExecutorId, replies: Vec<(RunId, i32, Reply)>) {
    let now = d.now;
    d.state.executors.record_heard(executor, now);
    if !replies.is_empty() {
        unanswered::record_answer(d, executor);
    }
    let mut app_of_refused = None;
    for (run, attempt, reply) in replies {
        // Counted before the run is looked up, because a node that lost its lease has dropped the run by now.
        if matches!(reply, Reply::Refused(v1::RefusedWhy::Fenced, _)) {
            tracing::warn!(
                %run, executor_id = %executor,
                "an executor refused this node's epoch: this node slept through its lease, or its database is from a backup that does \
                 not know the epoch; restart the executor if this continues"
            );
            d.count(Count::TriggersFenced, 1);
        }
        // A stream that is registered late may report the refusal of an earlier trigger, after the run was sent to the same executor again.
        let is_replied_attempt = |active: &&mut ActiveRun| {
            let is_earlier = matches!(reply, Reply::Refused(_, Some(number)) if number != active.trigger_number);
            active.executor == executor && active.ready.run.attempt == attempt && !is_earlier
        };
        let Some(active) = d.state.runs.active_mut(run).filter(is_replied_attempt) else { continue };
        if active.phase == Phase::Ending && matches!(reply, Reply::Refused(..)) {
            // The run was given up, and its next attempt follows. If the lane has no room for that end, the run is given up again.
            active.lost_reason = Some(Reason::NotReceived);
            continue;
        }
        active.record_answer();
        let answer_time = now.since(active.sent_or_chosen_at);
        if let Some(span) = active.span.take() {
            let refusal = matches!(reply, Reply::Refused(..)).then_some("the executor refused it");
            d.effects.push(Effect::EndSpan(span, refusal));
        }
        match reply {
            Reply::Accepted => d.effects.push(Effect::Measure(Measure::Accepted(answer_time))),
            Reply::Refused(..) => d.effects.push(Effect::Measure(Measure::Refused(answer_time))),
            Reply::Started(start) => {
                active.record_start(start.started_at.unwrap_or(active.sent_or_chosen_at + start.start_delay), now);
                d.state.deadlines.record_start(&active.ready, d.facts.boot_micros);
            }
        }
        if let Reply::Refused(refusal, _) = reply {
            let handler = active.ready.definition.job.handler.clone();
            app_of_refused = Some(active.ready.run.app);
            // When the run is taken back, its places are offered to other runs. The executor must not take these, so the refusal is applied first.
            apply_refusal(d, executor, &handler, refusal);
            outbox::take_back_unsent(d, &[run]);
        }
    }
    // Another executor may have room for the runs that this executor refused or handed back.
    if let Some(app) = app_of_refused {
        flow::unpark(d, app);
    }
}

fn apply_refusal(d: &mut Decision<'_>, executor: ExecutorId, handler: &str, refusal: v1::RefusedWhy) {
    let now = d.now;
    match refusal {
        v1::RefusedWhy::NoHandler => d.state.executors.forget_handler(executor, handler),
        v1::RefusedWhy::Draining => {
            if let Some(online) = d.state.executors.get_mut(executor) {
                online.set_draining();
            }
        }
        v1::RefusedWhy::Full | v1::RefusedWhy::Unspecified => {
            if let Some(online) = d.state.executors.get_mut(executor) {
                online.full_until = Some(now + FULL_PAUSE);
            }
        }
        v1::RefusedWhy::Fenced => {
            if let Some(online) = d.state.executors.get_mut(executor) {
                online.full_until = Some(now + FULL_PAUSE.saturating_mul(5));
            }
        }
    }
}
