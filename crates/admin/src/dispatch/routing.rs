//! Which executor gets a run: what the routers of `core` are asked, and what is done with their choice.

use std::collections::BTreeSet;
use std::time::Duration;

use rondel_core::route::trace::{self, Waited};
use rondel_core::route::{Answer, Ask, Candidate, Choice, Question, Refusal, question};
use rondel_core::{ExecutorId, Job, JobId, Route, Run, RunId, Timestamp};
use rondel_proto::v1;

use super::decision::Decision;
use super::effect::Effect;
use super::executors::Online;
use super::place;
use super::queue::probes::Probe;
use super::queue::turns;
use super::ready::Ready;
use super::runs::Waiting;

/// An executor that was heard this lately need not be asked whether it is there.
const HEARD_LATELY: Duration = Duration::from_secs(1);
/// Jobs in one question.
const QUESTION_JOBS: usize = 1_000;

/// What a router chose for a run.
enum Chosen {
    /// This executor; and the trace of the choice.
    Executor(ExecutorId, String, String),
    /// These executors are to be asked, or have not answered yet.
    Wait(Vec<ExecutorId>),
    /// No executor now.
    NoExecutor,
}

/// Routes a run and assigns it; returns it where no executor takes it. Where executors are asked first, their answers route
/// it again.
pub(super) fn route(d: &mut Decision<'_>, mut ready: Ready) -> Option<Ready> {
    let now = d.now;
    ready.tried_at.get_or_insert(now);
    let job = ready.run.job;
    if question(ready.definition.job.route).is_some() && d.state.probes.is_paused(job, now) {
        return Some(ready);
    }
    let probe = Probe::new(ready, now);
    match choose(d, &probe, false) {
        Chosen::Executor(id, name, trace) => {
            take(d, probe.ready, id, name, trace);
            None
        }
        Chosen::Wait(executors) => {
            d.state.probes.ask(probe, executors.into_iter(), &mut d.state.runs);
            None
        }
        Chosen::NoExecutor => Some(probe.ready),
    }
}

fn choose(d: &mut Decision<'_>, probe: &Probe, is_over: bool) -> Chosen {
    let now = d.now;
    let (run, job) = (&probe.ready.run, &probe.ready.definition.job);
    let online = d.state.executors.fit(run.app, job);
    let mut candidates: Vec<Candidate<'_>> =
        online.iter().copied().map(|online| online.candidate(answer(online, probe, job, now), now)).collect();
    // Who left triggers unanswered lately is passed by, where there is another one. A broadcast goes to all.
    let is_paused = |online: &Online| d.state.executors.silences.is_paused(online.session.executor, now);
    if job.route != Route::Broadcast && online.iter().any(|one| !one.draining && !is_paused(one)) {
        for (candidate, _) in candidates.iter_mut().zip(&online).filter(|(_, one)| is_paused(one)) {
            candidate.refusal = candidate.refusal.or(Some(Refusal::Silent));
        }
    }
    match d.state.memories.pick(job.route, &ask(run, &candidates, is_over, now)) {
        Choice::Take(index) => {
            let (id, name) = (online[index].session.executor, online[index].name.clone());
            Chosen::Executor(id, name, trace_of(&probe.ready, candidates, Some(index), now))
        }
        Choice::Wait => {
            let open = online.iter().zip(&candidates);
            let silent = open.filter(|(_, one)| one.refusal.is_none() && one.answer == Answer::None);
            Chosen::Wait(silent.map(|(online, _)| online.session.executor).collect())
        }
        Choice::NoExecutor => Chosen::NoExecutor,
    }
}

fn take(d: &mut Decision<'_>, mut ready: Ready, executor: ExecutorId, name: String, trace: String) {
    ready.run.trace = Some(trace);
    place::assign(d, ready, executor, name);
}

/// The trace of a run that no executor took.
pub(super) fn trace_of_none(d: &Decision<'_>, ready: &Ready) -> String {
    let now = d.now;
    let job = &ready.definition.job;
    let online = d.state.executors.fit(ready.run.app, job);
    let answer = if question(job.route).is_some() { Answer::No } else { Answer::None };
    let candidates = online.iter().map(|online| online.candidate(answer, now)).collect();
    trace_of(ready, candidates, None, now)
}

/// Puts this turn's questions on the streams.
pub(super) fn flush_questions(d: &mut Decision<'_>) {
    let now = d.now;
    for (executor, number, jobs) in d.state.probes.take_questions(QUESTION_JOBS, now) {
        // Who cannot be asked does not answer.
        if let Some(online) = d.state.executors.get(executor) {
            let job_ids = jobs.into_iter().map(JobId::get).collect();
            let body = v1::server_message::Body::Probes(v1::Probes { probe_id: number, job_ids });
            d.effects.push(Effect::Send(online.session.clone(), body));
        }
    }
}

/// An executor answered.
pub(super) fn answered(d: &mut Decision<'_>, executor: ExecutorId, number: i64, free: &BTreeSet<JobId>) {
    let now = d.now;
    d.state.executors.heard(executor, now);
    for job in d.state.probes.answered(executor, number, free, &mut d.state.runs) {
        look_at_probes(d, job);
    }
}

/// Runs that have waited for answers long enough go on with those that came.
pub(super) fn end_probes(d: &mut Decision<'_>) {
    let now = d.now;
    for job in d.state.probes.take_ended(now) {
        look_at_probes(d, job);
    }
}

fn look_at_probes(d: &mut Decision<'_>, job: JobId) {
    let now = d.now;
    let (mut taken, mut waiting) = (Vec::new(), Vec::new());
    for mut probe in d.state.probes.take(job, &mut d.state.runs) {
        // Who got a run of the job just now is not free for the next.
        taken.iter().for_each(|executor| probe.answers.take_away(*executor));
        match choose(d, &probe, probe.answers.until <= now) {
            Chosen::Executor(id, name, trace) => {
                if question(probe.ready.definition.job.route) == Some(Question::Free) {
                    taken.push(id);
                }
                take(d, probe.ready, id, name, trace);
                turns::work_off(d);
            }
            Chosen::Wait(_) => waiting.push(probe),
            Chosen::NoExecutor => {
                d.state.probes.pause(job, now);
                let since = probe.ready.tried_at.unwrap_or(now);
                d.state.parked.push(Waiting { ready: probe.ready, since }, &mut d.state.runs);
            }
        }
    }
    for mut probe in waiting {
        taken.iter().for_each(|executor| probe.answers.take_away(*executor));
        d.state.probes.wait_on(probe, &mut d.state.runs);
    }
}

fn answer(online: &Online, probe: &Probe, job: &Job, now: Timestamp) -> Answer {
    if question(job.route) == Some(Question::There) && online.heard_at + HEARD_LATELY > now {
        return Answer::Yes;
    }
    probe.answers.answer(online.session.executor)
}

fn ask<'a>(run: &'a Run, candidates: &'a [Candidate<'a>], is_over: bool, now: Timestamp) -> Ask<'a> {
    Ask {
        job: run.job,
        shard: usize::try_from(run.shard_index).unwrap_or(0),
        shards: run.shard_total.and_then(|total| usize::try_from(total).ok()).unwrap_or(1),
        attempt: run.attempt,
        executor: run.executor.as_deref(),
        candidates,
        now,
        draw: draw(run),
        is_over,
    }
}

/// As good as a random number, without a source of chance: the same for all shards of a fire.
fn draw(run: &Run) -> u32 {
    match run.parent.filter(|_| run.shard_total.is_some_and(|total| total > 1)) {
        Some(fire) => spread(fire),
        None => spread(run.id).wrapping_add(run.attempt.unsigned_abs().wrapping_mul(0x9E37_79B9)),
    }
}

fn spread(run: RunId) -> u32 {
    let mixed = run.get().unsigned_abs().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    u32::try_from(mixed).unwrap_or(0)
}

/// What is kept of a choice, for users.
fn trace_of(ready: &Ready, mut candidates: Vec<Candidate<'_>>, taken: Option<usize>, now: Timestamp) -> String {
    let (run, route) = (&ready.run, ready.definition.job.route);
    let before_taken = taken.unwrap_or(usize::MAX);
    for (index, candidate) in candidates.iter_mut().enumerate().filter(|(index, _)| Some(*index) != taken) {
        let had_it_before = run.attempt > 1 && route != Route::Broadcast;
        let refusal = match candidate.answer {
            Answer::No => Some(Refusal::Busy),
            Answer::None if question(route).is_some() && index < before_taken => Some(Refusal::Silent),
            Answer::None | Answer::Yes if had_it_before && run.executor.as_deref() == Some(candidate.points.name()) => {
                Some(Refusal::HadItBefore)
            }
            Answer::None | Answer::Yes => None,
        };
        candidate.refusal = candidate.refusal.or(refusal);
    }
    let tried_at = ready.tried_at.unwrap_or(now);
    let waited = Waited { turn: tried_at.since(run.due_at), executor: now.since(tried_at) };
    trace::text(route, &candidates, waited)
}
