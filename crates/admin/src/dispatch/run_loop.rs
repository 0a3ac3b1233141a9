//! The loop that receives events, calls [`transition`] to decide, and performs the effects.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rondel_core::{ExecutorId, Run, RunId, Timestamp};
use rondel_proto::v1;
use rondel_store::LeaseToken;
use rondel_store::ledger::{EndOutcome, RunCheck};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::decision::{Decision, Facts, Settings};
use super::effect::{Effect, Measure, Submission};
use super::event::{Event, Responder};
use super::messages::{trigger, triggers};
use super::outbox;
use super::results::foreign::ExpectedFrom;
use super::state::State;
use super::step::{DecidedStep, Step};
use super::transition;
use crate::cluster::fences;
use crate::metrics::{FireOutcome, to_u64};
use crate::node::Shared;
use crate::trace::FireTracer;

/// Maximum number of events that the loop handles after the first event before it checks for due runs again.
const EVENT_BURST: usize = 64;
/// The period of [`Event::Round`].
const ROUND_PERIOD: Duration = Duration::from_secs(1);

pub(crate) struct DispatchLoop {
    shared: Arc<Shared>,
    events: mpsc::Receiver<Event>,
    steps: mpsc::Sender<DecidedStep>,
    tracer: FireTracer,
    state: State,
    settings: Settings,
    started_at: Instant,
    /// When the next round begins, even if no event arrives.
    next_round_at: Timestamp,
    /// Answers the request to drain the dispatcher, once it is drained; `None` if there is no such request.
    drained_responder: Option<Responder<()>>,
}

impl DispatchLoop {
    pub(crate) fn new(shared: Arc<Shared>, events: mpsc::Receiver<Event>, steps: mpsc::Sender<DecidedStep>) -> Self {
        let now = shared.clock.now();
        let config = &shared.config;
        let settings = Settings {
            is_single_server: shared.store.is_single_server(),
            lost_after: config.lost_after,
            continue_max: config.continue_max,
            silence_max: config.continue_max.saturating_sub(config.lost_after.saturating_sub(config.silence)),
            answer_within: config.answer_within,
            overdue_ask: config.overdue_ask,
            overdue_timeout: config.overdue_timeout,
            refused_kinds_max: config.refused_kinds_max,
            seek_jobs: config.seek_jobs,
            send_ahead: config.send_ahead,
        };
        let tracer = FireTracer::new(config.traces);
        let state = State::new(settings.is_single_server, now);
        let started_at = Instant::now();
        Self { shared, events, steps, tracer, state, settings, started_at, next_round_at: now, drained_responder: None }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            // As in `Decision::may_start_runs`: while no run is allowed to start, runs must not wake the loop.
            let may_start = self.shared.membership.holds_lease() && self.shared.switches.is_known();
            let lease = may_start.then(|| self.shared.membership.token());
            let wake_at = self.state.next_instant(lease).min(self.next_round_at);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                event = self.events.recv() => match event {
                    Some(event) => self.handle_burst(event),
                    None => return,
                },
                () = self.shared.clock.sleep_until(wake_at) => {}
            }
            let now = self.shared.clock.now();
            self.handle(Event::Wake, now);
            if now >= self.next_round_at || self.next_round_at > now + ROUND_PERIOD {
                self.next_round_at = now + ROUND_PERIOD;
                self.handle(Event::Round(fences(&self.shared.membership.nodes(), now)), now);
            }
            self.handle(Event::Flush, now);
            if self.state.is_drained()
                && let Some(responder) = self.drained_responder.take()
            {
                responder.respond(());
            }
        }
    }

    fn handle_burst(&mut self, first_event: Event) {
        let mut next_event = Some(first_event);
        for _ in 0..EVENT_BURST {
            let Some(event) = next_event else { return };
            let now = self.shared.clock.now();
            self.receive(event, now);
            next_event = self.events.try_recv().ok();
        }
        if let Some(event) = next_event {
            let now = self.shared.clock.now();
            self.receive(event, now);
        }
    }

    /// Handles an event. Its items are handled one by one if the decision about one item reads state that the effects of another item change.
    fn receive(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::Settled(settled_attempts) => settled_attempts
                .into_iter()
                .for_each(|settled_attempt| self.handle(Event::Settled(vec![settled_attempt]), now)),
            Event::RowsChecked(asked_runs, checks) => {
                let rows: HashMap<RunId, RunCheck> = checks.into_iter().map(|check| (check.id, check)).collect();
                for run in asked_runs {
                    let row = rows.get(&run).cloned().into_iter().collect();
                    self.handle(Event::RowsChecked(vec![run], row), now);
                }
            }
            Event::AwaitingEnded(runs) => {
                let awaiting_runs = self.shared.awaiting.forget(runs);
                self.handle(Event::AwaitingEnded(awaiting_runs), now);
            }
            Event::Results(session, results) => {
                if self.state.executors.get(session.executor).is_some() {
                    rondel_failpoint::pass("result.received");
                    self.handle(Event::Results(session, results), now);
                }
            }
            Event::Replies(executor, replies) => {
                rondel_failpoint::pass("accept.received");
                self.handle(Event::Replies(executor, replies), now);
            }
            event => self.handle(event, now),
        }
    }

    fn handle(&mut self, event: Event, now: Timestamp) {
        let facts = facts(&self.shared, &self.settings, self.started_at, now);
        let token = facts.token;
        let effects = transition::on(&mut self.state, event, facts);
        self.shared.in_memory.note_in_hand(self.state.runs.take_hand_changes());
        effects.into_iter().for_each(|effect| self.perform(effect, token, now));
    }

    /// Performs an effect that was decided under the lease `token`.
    fn perform(&mut self, effect: Effect, token: LeaseToken, now: Timestamp) {
        let shared = &self.shared;
        match effect {
            Effect::Send(session, body) => drop(session.send(body)),
            Effect::EndStream(session) => session.stream.end(),
            Effect::SendTriggers(executor, runs) => self.send_triggers(executor, &runs, now),
            Effect::Store(step) => self.store(step, token, now),
            Effect::Expand(root, executors) => self.expand(root, executors, token, now),
            Effect::Finish(end) => self.finish(*end, now),
            Effect::RefuseResult(reporter, run, attempt) => {
                if let Some(count) = shared.log_limit.count("results", reporter.session.executor.get()) {
                    tracing::warn!(run_id = %run, attempt, executor = reporter.name, count, "an executor reported a run that was not sent; further cases are logged once a minute");
                }
                shared.results.refuse(&reporter.session, (run, attempt), &EndOutcome::NoSuchRun);
            }
            Effect::JudgeForeign(reporter, results) => shared.foreign.offer(&reporter, results, ExpectedFrom::Unknown),
            Effect::JudgeUnexpected(reporter, results) => {
                shared.foreign.offer(&reporter, results, ExpectedFrom::OtherExecutors)
            }
            Effect::Forget(runs) => shared.in_memory.forget(runs),
            Effect::ForgetUnderLease(runs) => shared.in_memory.forget_under_lease(runs),
            Effect::Await(runs) => shared.awaiting.admit(runs),
            Effect::ForgetAwaiting => {
                let mut dropped_runs = shared.awaiting.all();
                dropped_runs.retain(|(_, run)| self.state.runs.active(*run).is_none());
                shared.awaiting.forget(dropped_runs);
            }
            Effect::EndLease => {
                shared.membership.end_lease();
                shared.beat_poke.notify_one();
            }
            Effect::ShowOnline(executor) => shared.registry.insert(*executor),
            Effect::ShowOffline(executor) => shared.registry.remove(executor),
            Effect::ShowDraining(executor) => shared.registry.set_draining(executor),
            Effect::ShowUnanswered(executor, unanswered) => shared.registry.set_unanswered(executor, unanswered),
            Effect::Count(counter, count) => shared.counters.add(counter, count),
            Effect::Measure(measure) => self.measure(measure),
            Effect::EndSpan(span, why) => span.end(why, now),
            Effect::AnswerStreamEnded(answer) => answer.respond(()),
            Effect::ListInHand(answer, runs) => answer.respond(runs),
            Effect::AnswerWhenDrained(answer) => self.drained_responder = Some(answer),
        }
    }

    fn store(&mut self, step: Step, token: LeaseToken, now: Timestamp) {
        let Err(error) = self.steps.try_send(DecidedStep { token, step }) else { return };
        if let Some(count) = self.shared.log_limit.count("steps", 0) {
            tracing::warn!(count, "too many steps wait for the database; one was dropped and will be repeated");
        }
        self.handle(Event::StepRefused(error.into_inner().step), now);
    }

    fn expand(&mut self, root: Box<Run>, executors: Vec<Option<String>>, token: LeaseToken, now: Timestamp) {
        let ids = self.shared.membership.latest_lease().ids;
        let shard_total = i32::try_from(executors.len()).unwrap_or(i32::MAX);
        let shards = (0..shard_total).zip(executors).map(|(index, executor)| Run {
            id: RunId::new(ids.next(now)),
            shard_index: index,
            shard_total: Some(shard_total),
            parent: Some(root.id),
            executor,
            ..(*root).clone()
        });
        let shards: Vec<Run> = shards.collect();
        // The shards are put in memory before they are stored. Otherwise a periodic query could take them up before this step is answered.
        self.shared.in_memory.admit(shards.clone());
        self.store(Step::Expand(root, shards), token, now);
    }

    fn finish(&mut self, submission: Submission, now: Timestamp) {
        let Submission { attempt_end, counted_run, reply_to, phase_before } = submission;
        let (run, attempt, owner) = (attempt_end.run, attempt_end.attempt, attempt_end.owner);
        if self.shared.results.try_submit(attempt_end, counted_run, reply_to) {
            return;
        }
        match phase_before {
            Some(phase) => self.handle(Event::EndRefused(run, attempt, phase), now),
            None => self.shared.in_memory.forget_under_lease(owner.map(|owner| (run, owner))),
        }
    }

    /// Puts triggers on an executor's stream, each under the lease under which its run was taken.
    fn send_triggers(&mut self, executor: ExecutorId, runs: &[RunId], now: Timestamp) {
        let facts = facts(&self.shared, &self.settings, self.started_at, now);
        let (sendable_runs, mut unsent_runs) =
            outbox::split_sendable(&mut Decision::new(&mut self.state, facts), executor, runs);
        let ids = self.shared.membership.latest_lease().ids;
        let (mut messages, mut sent_triggers) =
            (Vec::with_capacity(sendable_runs.len()), Vec::with_capacity(sendable_runs.len()));
        for run in sendable_runs {
            let Some(active) = self.state.runs.active_mut(run) else { continue };
            let (parent, span) = self.tracer.start_dispatch(&active.ready, &active.executor_name, now);
            active.span = span;
            tracing::debug!(
                run_id = %run, job_id = %active.ready.run.job, job = active.ready.definition.job.name,
                attempt = active.ready.run.attempt, executor = active.executor_name,
                trace_id = parent.map(|parent| format!("{:032x}", parent.trace_id())),
                "a run goes to an executor"
            );
            let trigger_number = ids.next(now);
            // Recorded before the trigger is sent, because the executor may send log lines of the run immediately.
            self.shared.sent_runs.record(run, active.ready.run.attempt, executor);
            let start_in_us = self.shared.clock.micros_until(active.ready.run.due_at);
            self.shared.note_sent(active.ready.run.due_at);
            let trigger = trigger(&active.ready, trigger_number, parent, (now, self.settings.silence_max));
            messages.push(v1::Trigger { start_in_us, ..trigger });
            sent_triggers.push((run, trigger_number));
        }
        if !messages.is_empty() {
            let session = self.state.executors.get(executor).map(|online| online.session.clone());
            rondel_failpoint::pass("send.checked");
            if session.is_some_and(|session| session.send(triggers(facts.token, messages))) {
                for active in sent_triggers.iter().filter_map(|(run, _)| self.state.runs.active(*run)) {
                    self.shared.metrics.count_sent(&active.ready, now);
                }
                self.handle(Event::Sent(executor, sent_triggers), now);
            } else {
                unsent_runs.extend(sent_triggers.into_iter().map(|(run, _)| run));
            }
            rondel_failpoint::pass("send.written");
        }
        if !unsent_runs.is_empty() {
            self.handle(Event::NotSent(unsent_runs), now);
        }
    }

    fn measure(&self, measure: Measure) {
        let metrics = &self.shared.metrics;
        match measure {
            Measure::FireLateness(late) => metrics.fire_lateness.observe(late),
            Measure::Accepted(delay) => metrics.accept_delay.observe(delay),
            Measure::Refused(delay) => metrics.refuse_delay.observe(delay),
            Measure::Runs { active, queued } => metrics.show_runs(to_u64(active), to_u64(queued)),
            Measure::WaitingRuns { gates, limits, parked, roll_call } => {
                let waiting_counts = [(&metrics.runs_in_memory.gates, gates), (&metrics.runs_in_memory.limits, limits)];
                let waiting_counts = waiting_counts
                    .into_iter()
                    .chain([(&metrics.runs_in_memory.parked, parked), (&metrics.runs_in_memory.roll_call, roll_call)]);
                waiting_counts.for_each(|(gauge, count)| gauge.store(to_u64(count), Ordering::Relaxed));
            }
            Measure::Dispatched(definition, trigger) => {
                definition.counts.count_fires(trigger, FireOutcome::Dispatched, 1)
            }
        }
    }
}

fn facts<'a>(shared: &'a Shared, settings: &'a Settings, started_at: Instant, now: Timestamp) -> Facts<'a> {
    let rows_may_be_old = |length| {
        let membership = &shared.membership;
        shared.clock.may_have_stepped_ahead_within(length) || membership.was_cut_off_within(length)
    };
    Facts {
        now,
        fires_ahead_after: shared.fires_ahead_after(),
        boot_micros: shared.clock.boot_micros(),
        uptime: started_at.elapsed(),
        rows_may_be_old: rows_may_be_old(settings.lost_after),
        rows_may_be_old_in_silence: rows_may_be_old(settings.continue_max),
        token: shared.membership.token(),
        lease_holds: shared.membership.holds_lease(),
        lease_until: now + shared.membership.remaining_lease(),
        in_memory: &shared.in_memory,
        departing: &shared.departing,
        switches: &shared.switches,
        settings,
    }
}
