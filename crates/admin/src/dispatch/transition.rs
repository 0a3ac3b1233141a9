//! The dispatcher's decisions: what an event means for the open runs.
//!
//! [`on`] changes the [`State`] and returns [effects](Effect); it knows no clock, no store and no stream. The [`Facts`] are its input from outside,
//! and the effects are its requests to the loop. If a queue has no room for an effect, an event reports that.
//!
//! The functions in the other files of this folder decide parts of an event's meaning. All take a [`Decision`], and none of them waits for
//! anything.

use rondel_core::RunId;
use rondel_proto::v1;
use rondel_proto::v1::server_message::Body;

use super::decision::{Decision, Facts, lease_of};
use super::effect::Effect;
use super::event::Event;
use super::queue::parked::ParkedRuns;
use super::queue::probes::Probes;
use super::queue::turns;
use super::recovery::{fences, look, relay, roll, seek};
use super::results::verdicts;
use super::runs::Stage;
use super::state::State;
use super::step::Step;
use super::{answers, expand, flow, outbox, round, step_back, streams, switches, waits};

/// Decides what an event means.
pub(crate) fn on(state: &mut State, event: Event, facts: Facts<'_>) -> Vec<Effect> {
    let mut decision = Decision::new(state, facts);
    step_back::end_waits(&mut decision);
    switches::apply_switches(&mut decision);
    decide(&mut decision, event);
    let Decision { state, effects, .. } = decision;
    for run in state.runs.remove_ended() {
        debug_assert!(effects.iter().any(|effect| effect.ends(run)), "run {run} is lost");
    }
    effects
}

fn decide(d: &mut Decision<'_>, event: Event) {
    match event {
        Event::Ready(runs) => runs.into_iter().for_each(|ready| turns::accept_run(d, ready)),
        Event::Wake => {
            flow::release(d);
            answers::route_overdue_probes(d);
            flow::wake_limits(d);
        }
        Event::Round(ended_leases) => round::run_checks(d, &ended_leases),
        Event::Flush => {
            outbox::flush(d);
            answers::flush_questions(d);
        }
        Event::Sent(executor, runs) => outbox::on_sent(d, executor, &runs),
        Event::NotSent(runs) => outbox::take_back_unsent(d, &runs),
        Event::StepRefused(step) => on_step_refused(d, step),
        Event::EndRefused(run, attempt, phase) => verdicts::on_end_refused(d, run, attempt, phase),
        Event::Joined(session, executor, report) => streams::on_joined(d, session, executor, report),
        Event::LineageGrew(session, lineage) => streams::on_lineage_grown(d, &session, lineage),
        Event::StreamEnded(executor, number, answer) => {
            streams::on_stream_ended(d, executor, number);
            d.effects.push(Effect::AnswerStreamEnded(answer));
        }
        Event::ExecutorShutDown(executor) => look::on_executor_shut_down(d, executor),
        Event::Died(executor) => look::on_process_died(d, executor),
        Event::Beat(executor, active) => d.state.executors.record_beat(executor, active, d.now),
        Event::FenceAnswered(executor, number, answer) => fences::on_fence_answered(d, executor, number, answer),
        Event::RollCallDropped(lease, runs) => roll::drop_roll_call(d, lease, &runs),
        Event::FencesAsked(requests) => relay::relay(d, requests),
        Event::FencesRelayed(answers) => roll::on_fences_relayed(d, answers),
        Event::Heard(suspects, heard) => look::on_heard_elsewhere(d, &suspects, &heard),
        Event::Probed(executor, number, free) => answers::on_probe_answered(d, executor, number, &free),
        Event::Draining(executor) => {
            if let Some(online) = d.state.executors.get_mut(executor) {
                online.set_draining();
                d.effects.push(Effect::ShowDraining(executor));
            }
        }
        Event::Replies(executor, replies) => streams::on_replied(d, executor, replies),
        Event::Results(session, results) => verdicts::on_results(d, &session, results),
        Event::Settled(settled) => settled.into_iter().for_each(|settled| verdicts::on_settled(d, &settled)),
        Event::Expanded(root, shards) => expand::on_expanded(d, &root, shards),
        Event::Marked(asked_runs, marked_runs) => outbox::on_marked(d, &asked_runs, &marked_runs),
        Event::Unmarked => {
            d.state.pending_steps.unmarking_count = d.state.pending_steps.unmarking_count.saturating_sub(1)
        }
        Event::Cancels(cancels) => verdicts::cancel_runs(d, cancels),
        Event::Drops(drops) => verdicts::drop_queued(d, drops),
        Event::CancelsElsewhere(cancels) => look::cancel_elsewhere(d, cancels),
        Event::Covered(asked_runs, cancels) => verdicts::on_covered(d, &asked_runs, cancels),
        Event::StopApps(apps) => switches::stop_apps(d, &apps),
        Event::Dismiss => switches::announce_shutdown(d),
        Event::LimitHomes(lease, homes) => seek::on_limit_homes(d, lease, homes),
        Event::GiveLimits => seek::give_limits(d, |_| true, None),
        Event::HandoverEnded(jobs) => seek::on_handover_ended(d, &jobs),
        Event::HandedOver(runs) => seek::on_handed_over(d, runs),
        Event::MaybeHandedOver(runs) => seek::on_maybe_handed_over(d, runs),
        Event::RowsChecked(asked_runs, checks) => look::on_rows_checked(d, &asked_runs, &checks),
        Event::Awaiting(_)
        | Event::AdoptedAwaiting(_)
        | Event::AwaitingEnded(_)
        | Event::RollCall(..)
        | Event::Restored(_)
        | Event::LeaseBegun(_)
        | Event::Adopting(_)
        | Event::AdoptedJobs(_)
        | Event::AllAdopted(_) => handle_open_runs(d, event),
        Event::LeaseLost => drop_unsent(d),
        Event::ListInHand(answer) => {
            let runs = d.state.runs.active_runs().map(|active| active.ready.run.id).collect();
            d.effects.push(Effect::ListInHand(answer, runs));
        }
        Event::Drain(answer, grace) => {
            waits::note_all_waits(d);
            // Until this process ends, it still counts the runs at executors for its limits.
            let limits_at_home = d.state.limits.take_limits_at_home();
            drop_unsent(d);
            limits_at_home.into_iter().for_each(|name| d.state.limits.count_here(name));
            let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
            d.send_all(&Body::Drain(v1::Drain { grace_ms }));
            d.state.is_draining = true;
            d.effects.push(Effect::AnswerWhenDrained(answer));
        }
    }
}

/// Handles the events that report open runs with their places at gates, and those that report whether all open runs are known.
fn handle_open_runs(d: &mut Decision<'_>, event: Event) {
    let state = &mut *d.state;
    match event {
        Event::Awaiting(runs) => {
            let runs_with_places = runs
                .into_iter()
                .filter(|(job, run)| state.gates.keep_for_children(*job, *run, &mut state.runs))
                .collect();
            d.effects.push(Effect::Await(runs_with_places));
        }
        Event::AdoptedAwaiting(runs) => {
            runs.iter().for_each(|ready| state.gates.open_place(ready));
            d.effects.push(Effect::Await(runs.iter().map(|ready| (ready.run.job, ready.run.id)).collect()));
        }
        Event::AwaitingEnded(runs) => {
            for (_, run) in runs {
                let admitted_runs = d.state.gates.leave_with_children(run, &mut d.state.runs);
                turns::queue_starts(d, admitted_runs);
                flow::offer_freed_places(d);
            }
        }
        Event::RollCall(runs, sessions, over) => roll::call_roll(d, runs, &sessions, &over),
        Event::Restored(runs) => runs.iter().for_each(|ready| state.gates.restore(ready)),
        Event::LeaseBegun(token) => (state.recovery.begun_lease, state.recovery.is_adopting) = (Some(token), true),
        Event::Adopting(jobs) => {
            state.recovery.is_adopting = true;
            state.recovery.adopting_jobs.extend(jobs);
        }
        Event::AdoptedJobs(jobs) => {
            for job in &jobs {
                state.recovery.adopting_jobs.remove(job);
            }
            state.runs.stop_holding_back();
        }
        Event::AllAdopted(token) => {
            (state.recovery.begun_lease, state.recovery.is_adopting) = (Some(token), false);
            state.recovery.adopting_jobs.clear();
            state.runs.stop_holding_back();
        }
        _ => {}
    }
}

/// Handles a request to the store for which the queue had no room. A step without an action here needs none: the next round repeats the
/// request, or the periodic queries find its runs.
fn on_step_refused(d: &mut Decision<'_>, step: Step) {
    match step {
        Step::Mark(marks) => {
            let asked_runs: Vec<(RunId, i32)> = marks.iter().map(|mark| (mark.run, mark.attempt)).collect();
            outbox::on_marked(d, &asked_runs, &[]);
        }
        Step::Unmark(_) => {
            d.state.pending_steps.unmarking_count = d.state.pending_steps.unmarking_count.saturating_sub(1)
        }
        Step::Expand(root, shards) => {
            if let Some(root) = d.state.runs.take_expanding(&root) {
                d.state.runs.wait_for_expansion(root, shards);
            }
        }
        Step::NoteRunning(noted) => {
            for noted in noted {
                if let Some(active) = d.state.runs.active_mut(noted.run) {
                    active.clear_noted();
                }
            }
        }
        Step::LastHeard(_) => d.state.pending_steps.is_looking_for_lost = false,
        Step::HandOver(jobs, _) => seek::reopen_jobs(d, &jobs),
        Step::GiveLimits(limits, _) => limits.into_iter().for_each(|name| d.state.limits.count_here(name)),
        Step::Seek(stranded) => seek::reopen_jobs(d, &stranded.iter().map(|ready| ready.run.job).collect()),
        Step::NoteWaits(notes) => waits::on_wait_notes_refused(d, &notes),
        Step::NoteLeft(_)
        | Step::Cover(_)
        | Step::Stop(..)
        | Step::LimitHomes(_)
        | Step::CheckRows(_)
        | Step::AskFences(_)
        | Step::AnswerFences(_)
        | Step::CancelStray(_)
        | Step::DropStray(_) => {}
    }
}

/// Forgets every run that no executor has: its row is durable, and the next lease holder finds it.
fn drop_unsent(d: &mut Decision<'_>) {
    outbox::drop_unsent_placed(d);
    d.effects.push(Effect::ForgetAwaiting);
    let state = &mut *d.state;
    (state.parked, state.probes) = (ParkedRuns::default(), Probes::default());
    let is_active = |run| state.runs.active(run).is_some();
    // The lease may be renewed before the database has answered about a broadcast's shards. Until then, no other run may take the broadcast's
    // place.
    let is_expanding = |run| matches!(state.runs.stage(run), Some(Stage::Expanding));
    state.gates.retain(|run| is_active(run) || is_expanding(run));
    state.limits.retain(is_active);
    state.pending_steps.covered_runs.clear();
    state.recovery.rollcall.clear();
    let mut dropped_runs = state.runs.drain_roll_call();
    for waiting_run in state.runs.drain_waiting() {
        if let Stage::Unconfirmed(shards) = waiting_run.stage {
            d.effects.push(Effect::ForgetUnderLease(shards.iter().map(|shard| (shard.id, lease_of(shard))).collect()));
        }
        dropped_runs.push(waiting_run.ready);
    }
    d.forget_under_lease(dropped_runs.iter().map(|ready| (ready.run.id, ready.token())));
}

#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod asking_tests;
#[cfg(test)]
mod begin_tests;
#[cfg(test)]
mod chosen_tests;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod purity;
#[cfg(test)]
mod recovery_tests;
#[cfg(test)]
mod seek_tests;
#[cfg(test)]
mod sending_tests;
#[cfg(test)]
mod shadow_tests;
#[cfg(test)]
mod switch_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod waiting_tests;
#[cfg(test)]
mod world;
