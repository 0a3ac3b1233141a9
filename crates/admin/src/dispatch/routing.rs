//! Chooses the executor of a run: asks the routers of `core`, and carries out their choice.

use std::time::Duration;

use rondel_core::pump::{Load, Room, least_loaded};
use rondel_core::route::trace::{self, WaitTimes};
use rondel_core::route::{Answer, Candidate, Choice, Question, Refusal, RouteRequest, question};
use rondel_core::{ExecutorId, Job, Reason, Route, Run, RunId, Timestamp};

use super::assign;
use super::decision::Decision;
use super::executors::ConnectedExecutor;
use super::groups::group_count;
use super::queue::probes::Probe;
use super::ready::ReadyRun;
use super::shadow;

/// An executor that was heard this recently need not be asked whether it is online.
const RECENTLY_HEARD_WITHIN: Duration = Duration::from_secs(1);

/// The outcome of routing a run.
pub(super) enum RouteDecision {
    /// This executor, its name, and the trace of the choice.
    Executor(ExecutorId, String, String),
    /// These executors are to be asked, or have not answered yet.
    Wait(Vec<ExecutorId>),
    /// No executor now.
    NoExecutor,
}

/// Routes a run and assigns it to the chosen executor; returns the run if no executor takes it. If executors are asked first, the run is routed
/// again as they answer.
pub(super) fn route(d: &mut Decision<'_>, mut ready: ReadyRun) -> Option<ReadyRun> {
    let now = d.now;
    ready.first_routed_at.get_or_insert(now);
    let job = ready.run.job;
    if question_for(&ready).is_some() && d.state.probes.is_paused(job, now) {
        return Some(ready);
    }
    let probe = Probe::new(ready, now);
    match choose(d, &probe, false) {
        RouteDecision::Executor(id, name, trace) => {
            assign_with_trace(d, probe.ready, id, name, trace);
            None
        }
        RouteDecision::Wait(executors) => {
            d.state.probes.ask(probe, executors.into_iter(), &mut d.state.runs);
            None
        }
        RouteDecision::NoExecutor => Some(probe.ready),
    }
}

pub(super) fn choose(d: &mut Decision<'_>, probe: &Probe, is_past_deadline: bool) -> RouteDecision {
    let now = d.now;
    let (run, job) = (&probe.ready.run, &probe.ready.definition.job);
    let fit_executors = d.state.executors.fit_executors(&probe.ready);
    if run.only_executor.is_some() {
        return choose_named(&probe.ready, &fit_executors, now);
    }
    if let Some(pump) = &job.pump {
        return choose_for_group(d, &probe.ready, &fit_executors, pump.per_executor);
    }
    let mut candidates: Vec<Candidate<'_>> =
        fit_executors.iter().copied().map(|online| online.candidate(answer(online, probe, job, now), now)).collect();
    // A broadcast goes to all executors, even to silent ones.
    if job.route != Route::Broadcast {
        avoid_silent_executors(d, &fit_executors, &mut candidates);
    }
    match d
        .state
        .memories
        .pick(job.route, &route_request((run, job.hash_key.as_deref()), &candidates, is_past_deadline, now))
    {
        Choice::Take(index) => {
            let (id, name) = (fit_executors[index].session.executor, fit_executors[index].name.clone());
            RouteDecision::Executor(id, name, trace_of(&probe.ready, candidates, Some(index), now))
        }
        Choice::Wait => {
            let executor_candidates = fit_executors.iter().zip(&candidates);
            let executors_to_ask = executor_candidates
                .filter(|(_, candidate)| candidate.refusal.is_none() && candidate.answer == Answer::Missing);
            RouteDecision::Wait(executors_to_ask.map(|(online, _)| online.session.executor).collect())
        }
        Choice::NoExecutor => RouteDecision::NoExecutor,
    }
}

/// Skips executors that left triggers unanswered lately, if another fit executor takes new runs.
fn avoid_silent_executors(d: &Decision<'_>, executors: &[&ConnectedExecutor], candidates: &mut [Candidate<'_>]) {
    let is_avoided = |online: &ConnectedExecutor| d.state.executors.silences.is_avoided(online.session.executor, d.now);
    if executors.iter().any(|online| online.takes_new() && !is_avoided(online)) {
        for (candidate, _) in candidates.iter_mut().zip(executors).filter(|(_, online)| is_avoided(online)) {
            candidate.refusal = candidate.refusal.or(Some(Refusal::Silent));
        }
    }
}

/// The question that executors are asked before the run is routed; `None` if the router asks nothing, or the caller named an executor.
fn question_for(ready: &ReadyRun) -> Option<Question> {
    question(ready.definition.job.route).filter(|_| ready.run.only_executor.is_none())
}

/// Chooses the executor that the caller of the run named, without a router. If several executors share the name, the first executor that takes the
/// run now is chosen.
fn choose_named(ready: &ReadyRun, executors: &[&ConnectedExecutor], now: Timestamp) -> RouteDecision {
    let candidates: Vec<Candidate<'_>> =
        executors.iter().map(|online| online.candidate(Answer::Missing, now)).collect();
    match candidates.iter().position(|candidate| candidate.refusal.is_none()) {
        Some(index) => {
            let (id, name) = (executors[index].session.executor, executors[index].name.clone());
            RouteDecision::Executor(id, name, trace_of(ready, candidates, Some(index), now))
        }
        None => RouteDecision::NoExecutor,
    }
}

/// A group of a pump job goes to the executor that has the fewest groups of that job, among those with a free slot if there are any: in the
/// queue of a full executor it might wait for hours.
fn choose_for_group(
    d: &Decision<'_>,
    ready: &ReadyRun,
    executors: &[&ConnectedExecutor],
    per_executor: Option<u32>,
) -> RouteDecision {
    let now = d.now;
    let mut candidates: Vec<Candidate<'_>> =
        executors.iter().map(|online| online.candidate(Answer::Missing, now)).collect();
    avoid_silent_executors(d, executors, &mut candidates);
    let loads = |may_queue: bool| -> Vec<Load> {
        let load = |(online, candidate): (&&ConnectedExecutor, &Candidate<'_>)| {
            let has_room = candidate.refusal.is_none() && (may_queue || online.has_free_slot());
            let room = if has_room { Room::Open } else { Room::Full };
            Load { groups: group_count(d, online.session.executor, ready.run.job), room }
        };
        executors.iter().zip(&candidates).map(load).collect()
    };
    // A group that moves has left its executor for another executor that had a free slot a moment ago. It must not return only because short runs
    // are on their way to the other executor.
    let has_room =
        |name: &str| executors.iter().zip(&candidates).any(|(online, to)| online.name == name && to.refusal.is_none());
    let is_moving = ready.run.reason == Some(Reason::Moved) && ready.run.executor.as_deref().is_none_or(has_room);
    let index_with_slot = if is_moving { None } else { least_loaded(&loads(false), per_executor) };
    match index_with_slot.or_else(|| least_loaded(&loads(true), per_executor)) {
        Some(index) => {
            let (id, name) = (executors[index].session.executor, executors[index].name.clone());
            RouteDecision::Executor(id, name, trace_of(ready, candidates, Some(index), now))
        }
        None => RouteDecision::NoExecutor,
    }
}

/// Assigns the run to the chosen executor. The routing trace, which explains the choice, becomes part of the run.
pub(super) fn assign_with_trace(
    d: &mut Decision<'_>,
    mut ready: ReadyRun,
    executor: ExecutorId,
    name: String,
    trace: String,
) {
    ready.run.trace = Some(trace);
    assign::assign(d, ready, executor, name);
}

/// The trace of a run that no executor took.
pub(super) fn trace_without_executor(d: &Decision<'_>, ready: &ReadyRun) -> String {
    let now = d.now;
    let fit_executors = d.state.executors.fit_executors(ready);
    let answer = if question_for(ready).is_some() { Answer::No } else { Answer::Missing };
    let candidates = fit_executors.iter().map(|online| online.candidate(answer, now)).collect();
    trace_of(ready, candidates, None, now)
}

fn answer(online: &ConnectedExecutor, probe: &Probe, job: &Job, now: Timestamp) -> Answer {
    // A run in shadow mode is not sent, so no executor is asked about it.
    if shadow::is_shadow(&probe.ready) {
        return Answer::Yes;
    }
    if question(job.route) == Some(Question::Online) && online.heard_at + RECENTLY_HEARD_WITHIN > now {
        return Answer::Yes;
    }
    probe.answers.answer(online.session.executor)
}

fn route_request<'a>(
    (run, hash_key): (&'a Run, Option<&'a str>),
    candidates: &'a [Candidate<'a>],
    is_past_deadline: bool,
    now: Timestamp,
) -> RouteRequest<'a> {
    RouteRequest {
        job: run.job,
        hash_key,
        shard: usize::try_from(run.shard_index).unwrap_or(0),
        shards: run.shard_total.and_then(|total| usize::try_from(total).ok()).unwrap_or(1),
        attempt: run.attempt,
        executor: run.executor.as_deref(),
        candidates,
        now,
        draw: pseudo_random(run),
        is_wait_over: is_past_deadline,
    }
}

/// A pseudo-random number from the run's id, the same for all shards of a fire.
fn pseudo_random(run: &Run) -> u32 {
    match run.parent.filter(|_| run.shard_total.is_some_and(|total| total > 1)) {
        Some(fire) => mix_bits(fire),
        None => mix_bits(run.id).wrapping_add(run.attempt.unsigned_abs().wrapping_mul(0x9E37_79B9)),
    }
}

fn mix_bits(run: RunId) -> u32 {
    let mixed_bits = run.get().unsigned_abs().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    u32::try_from(mixed_bits).unwrap_or(0)
}

/// The stored trace of a choice, which users read.
fn trace_of(
    ready: &ReadyRun,
    mut candidates: Vec<Candidate<'_>>,
    chosen_index: Option<usize>,
    now: Timestamp,
) -> String {
    let (run, route) = (&ready.run, ready.definition.job.route);
    let chosen_or_last_index = chosen_index.unwrap_or(usize::MAX);
    for (index, candidate) in candidates.iter_mut().enumerate().filter(|(index, _)| Some(*index) != chosen_index) {
        let is_routed_retry = run.attempt > 1 && route != Route::Broadcast && run.only_executor.is_none();
        let refusal = match candidate.answer {
            Answer::No => Some(Refusal::Busy),
            Answer::Missing if question_for(ready).is_some() && index < chosen_or_last_index => Some(Refusal::Silent),
            Answer::Missing | Answer::Yes
                if is_routed_retry && run.executor.as_deref() == Some(candidate.hashed_name.name()) =>
            {
                Some(Refusal::HadPreviousAttempt)
            }
            Answer::Missing | Answer::Yes => None,
        };
        candidate.refusal = candidate.refusal.or(refusal);
    }
    let tried_since = ready.first_routed_at.unwrap_or(now);
    let lateness = ready.lateness.map_or(Duration::ZERO, |late| late.by);
    let turn = tried_since.since(run.due_at).saturating_sub(lateness);
    let wait_times = WaitTimes { server: ready.lateness, turn, executor: now.since(tried_since) };
    let router = if run.only_executor.is_some() { trace::CHOSEN } else { route.as_str() };
    trace::text(router, &candidates, wait_times)
}

#[cfg(test)]
mod tests;
