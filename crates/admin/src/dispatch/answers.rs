//! Executors' answers to the questions of routers.

use std::collections::BTreeSet;

use rondel_core::route::{Question, question};
use rondel_core::{ExecutorId, JobId};
use rondel_proto::v1;

use super::decision::Decision;
use super::effect::Effect;
use super::flow;
use super::routing::{RouteDecision, assign_with_trace, choose};
use super::runs::WaitingRun;

/// Maximum number of jobs in one question.
const QUESTION_JOBS: usize = 1_000;

/// Sends the questions that were queued since the last flush.
pub(super) fn flush_questions(d: &mut Decision<'_>) {
    let now = d.now;
    for (executor, number, jobs) in d.state.probes.take_questions(QUESTION_JOBS, now) {
        // An executor that is no longer connected cannot be asked, and counts as one that does not answer.
        if let Some(online) = d.state.executors.get(executor) {
            let job_ids = jobs.into_iter().map(JobId::get).collect();
            let body = v1::server_message::Body::Probes(v1::Probes { probe_id: number, job_ids });
            d.effects.push(Effect::Send(online.session.clone(), body));
        }
    }
}

/// Handles an executor's answer to question `question_number`; `free_jobs` lists the jobs whose runs it would take.
pub(super) fn on_probe_answered(
    d: &mut Decision<'_>,
    executor: ExecutorId,
    question_number: i64,
    free_jobs: &BTreeSet<JobId>,
) {
    let now = d.now;
    d.state.executors.record_heard(executor, now);
    for job in d.state.probes.record_answer(executor, question_number, free_jobs, &mut d.state.runs) {
        route_probed_runs(d, job);
    }
}

/// Routes the runs whose deadline for answers has passed, by the answers that have arrived.
pub(super) fn route_overdue_probes(d: &mut Decision<'_>) {
    let now = d.now;
    for job in d.state.probes.take_expired_jobs(now) {
        route_probed_runs(d, job);
    }
}

fn route_probed_runs(d: &mut Decision<'_>, job: JobId) {
    let now = d.now;
    let (mut chosen_executors, mut waiting_probes) = (Vec::new(), Vec::new());
    for mut probe in d.state.probes.take(job, &mut d.state.runs) {
        // An executor that has just got a run of the job is not free for the next run.
        chosen_executors.iter().for_each(|executor| probe.answers.record_taken(*executor));
        match choose(d, &probe, probe.answers.answer_deadline <= now) {
            RouteDecision::Executor(id, name, trace) => {
                if question(probe.ready.definition.job.route) == Some(Question::Idle) {
                    chosen_executors.push(id);
                }
                assign_with_trace(d, probe.ready, id, name, trace);
                flow::offer_freed_places(d);
            }
            RouteDecision::Wait(_) => waiting_probes.push(probe),
            RouteDecision::NoExecutor => {
                d.state.probes.pause(job, now);
                let tried_since = probe.ready.first_routed_at.unwrap_or(now);
                d.state.parked.push(WaitingRun { ready: probe.ready, since: tried_since }, &mut d.state.runs);
            }
        }
    }
    for mut probe in waiting_probes {
        chosen_executors.iter().for_each(|executor| probe.answers.record_taken(*executor));
        d.state.probes.put_back(probe, &mut d.state.runs);
    }
}
