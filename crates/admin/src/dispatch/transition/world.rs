//! A dispatcher's state with the facts around it, for tests. It performs effects as the loop does, without a loop.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::outcome::{NextStep, Outcome};
use rondel_core::{ExecutorId, NodeId, Reason, RunId, RunStatus, Timestamp};
use rondel_proto::v1;
use rondel_store::LeaseToken;
use rondel_store::cluster::Switches;
use rondel_store::ledger::EndOutcome;
use tokio::sync::mpsc;

use super::{Decision, Effect, Event, Facts, State, Step};
use crate::cluster::{DepartureBoard, SwitchBoard};
use crate::dispatch::ReadyRun;
use crate::dispatch::decision::Settings;
use crate::dispatch::event::{IncomingResult, Reply, Report, SessionHandle, SettledAttempt};
use crate::dispatch::messages::incoming_result;
use crate::dispatch::outbox;
use crate::dispatch::tests_support::executor;
use crate::registry::OnlineExecutor;
use crate::scheduler::in_memory::InMemory;

/// The facts from outside the dispatcher.
#[derive(Debug)]
pub(super) struct Around {
    pub(super) now: Timestamp,
    /// Later than `now` after a step back of the clock.
    pub(super) fires_ahead_after: Timestamp,
    pub(super) token: LeaseToken,
    pub(super) lease_holds: bool,
    pub(super) lease_until: Timestamp,
    pub(super) rows_may_be_old: bool,
    pub(super) in_memory: InMemory,
    pub(super) departing: DepartureBoard,
    pub(super) switches: SwitchBoard,
    pub(super) settings: Settings,
}

impl Around {
    /// The present, by the database's clock and by the boot-time clock in microseconds.
    pub(super) fn clocks(&self) -> (Timestamp, i64) {
        (self.now, self.facts().boot_micros)
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            now: self.now,
            fires_ahead_after: self.now.max(self.fires_ahead_after),
            boot_micros: self.now.as_millis() * 1_000,
            // No timer is outdated: the database's clock does not step.
            uptime: Duration::ZERO,
            rows_may_be_old: self.rows_may_be_old,
            rows_may_be_old_in_silence: self.rows_may_be_old,
            token: self.token,
            lease_holds: self.lease_holds,
            lease_until: self.lease_until,
            in_memory: &self.in_memory,
            departing: &self.departing,
            switches: &self.switches,
            settings: &self.settings,
        }
    }
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) state: State,
    pub(super) around: Around,
    pub(super) sessions: BTreeMap<ExecutorId, SessionHandle>,
    streams: Vec<mpsc::Receiver<v1::ServerMessage>>,
    next_number: i64,
}

impl World {
    /// A node whose lease holds and that knows all open runs: there are none.
    pub(super) fn new() -> Self {
        let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
        let settings = Settings {
            is_single_server: true,
            lost_after: Duration::from_secs(30),
            continue_max: Duration::from_secs(120),
            silence_max: Duration::from_secs(105),
            answer_within: Duration::from_secs(10),
            overdue_ask: Duration::from_secs(20),
            overdue_timeout: Duration::from_secs(60),
            refused_kinds_max: 200,
            seek_jobs: 500,
            send_ahead: Duration::from_millis(500),
        };
        let switches = SwitchBoard::default();
        switches.set(Switches::default());
        let around = Around {
            now: Timestamp::EPOCH,
            fires_ahead_after: Timestamp::EPOCH,
            token,
            lease_holds: true,
            lease_until: Timestamp::MAX,
            rows_may_be_old: false,
            in_memory: InMemory::default(),
            departing: DepartureBoard::default(),
            switches,
            settings,
        };
        let state = State::new(true, Timestamp::EPOCH);
        let mut world = Self { state, around, sessions: BTreeMap::new(), streams: Vec::new(), next_number: 0 };
        world.on(Event::AllAdopted(token));
        world
    }

    /// Decides, and performs the effects on memory and on the lease.
    pub(super) fn on(&mut self, event: Event) -> Vec<Effect> {
        let effects = super::on(&mut self.state, event, self.around.facts());
        for effect in &effects {
            match effect {
                Effect::Forget(runs) => self.around.in_memory.forget(runs.iter().copied()),
                Effect::ForgetUnderLease(runs) => self.around.in_memory.forget_under_lease(runs.iter().copied()),
                Effect::EndLease => self.around.lease_holds = false,
                _ => {}
            }
        }
        effects
    }

    /// Like [`on`](Self::on), with the effects in words.
    pub(super) fn described(&mut self, event: Event) -> Vec<String> {
        self.on(event).iter().filter_map(describe).collect()
    }

    /// Delivers these runs as the ring does.
    pub(super) fn arrive(&mut self, runs: impl IntoIterator<Item = ReadyRun>) {
        let runs: Vec<ReadyRun> = runs.into_iter().collect();
        self.around.in_memory.admit(runs.iter().map(|ready| ready.run.clone()).collect());
        self.on(Event::Ready(runs));
    }

    /// An executor opens the stream with this number.
    pub(super) fn join_all(&mut self, id: i64, number: u64, report: Report) -> Vec<Effect> {
        let (session, online, stream) = executor(id, number);
        self.sessions.insert(session.executor, session.clone());
        self.streams.push(stream);
        self.on(Event::Joined(session, online, report))
    }

    /// An executor that takes triggers up to `ahead_max` ahead opens a stream.
    pub(super) fn join_with(&mut self, id: i64, number: u64, ahead_max: Duration, report: Report) -> Vec<String> {
        let (session, online, stream) = executor(id, number);
        self.sessions.insert(session.executor, session.clone());
        self.streams.push(stream);
        self.described(Event::Joined(session, OnlineExecutor { ahead_max, ..online }, report))
    }

    /// An executor opens the stream with this number; its hello is the one with the number `hello`.
    pub(super) fn join_with_hello(&mut self, id: i64, (number, hello): (u64, u64), report: Report) -> Vec<String> {
        let (session, online, stream) = executor(id, number);
        let session = SessionHandle { hello_number: hello, ..session };
        self.sessions.insert(session.executor, session.clone());
        self.streams.push(stream);
        self.described(Event::Joined(session, online, report))
    }

    /// The same as [`join_all`](Self::join_all), in words.
    pub(super) fn join(&mut self, id: i64, number: u64, report: Report) -> Vec<String> {
        self.join_all(id, number, report).iter().filter_map(describe).collect()
    }

    /// An executor's heartbeat.
    pub(super) fn beat(&mut self, id: i64) {
        self.on(Event::Beat(ExecutorId::new(id), 0));
    }

    /// Sets the time, releases the runs that are due, and writes the triggers that may be sent.
    pub(super) fn at(&mut self, seconds: f64) -> Vec<String> {
        self.around.now = Timestamp::EPOCH + Duration::from_secs_f64(seconds);
        let mut done = self.described(Event::Wake);
        done.extend(self.flush());
        done
    }

    pub(super) fn flush(&mut self) -> Vec<String> {
        let effects = self.on(Event::Flush);
        let mut done: Vec<String> = effects.iter().filter_map(describe).collect();
        for effect in effects {
            if let Effect::SendTriggers(executor, runs) = effect {
                done.extend(self.write(executor, &runs, true));
            }
        }
        done
    }

    /// Writes the triggers that may be sent to an executor, if its stream has room. Returns the written attempts, and
    /// the effects that follow.
    pub(super) fn write_all(
        &mut self,
        executor: ExecutorId,
        runs: &[RunId],
        has_room: bool,
    ) -> (Vec<(RunId, i32)>, Vec<Effect>) {
        let mut decision = Decision::new(&mut self.state, self.around.facts());
        let (sendable_runs, mut unsent) = outbox::split_sendable(&mut decision, executor, runs);
        let (mut written, mut effects) = (Vec::new(), Vec::new());
        if has_room {
            let attempt = |run: &RunId| self.state.runs.active(*run).map(|active| (*run, active.ready.run.attempt));
            written = sendable_runs.iter().filter_map(attempt).collect();
            let numbered = sendable_runs.into_iter().map(|run| {
                self.next_number += 1;
                (run, self.next_number)
            });
            let sent = numbered.collect();
            effects.extend(self.on(Event::Sent(executor, sent)));
        } else {
            unsent.extend(sendable_runs);
        }
        if !unsent.is_empty() {
            effects.extend(self.on(Event::NotSent(unsent)));
        }
        (written, effects)
    }

    /// Like [`write_all`](Self::write_all), in words.
    pub(super) fn write(&mut self, executor: ExecutorId, runs: &[RunId], has_room: bool) -> Vec<String> {
        let (written, effects) = self.write_all(executor, runs, has_room);
        let sent = (!written.is_empty()).then(|| format!("sent to {executor}: {}", pairs(&written)));
        sent.into_iter().chain(effects.iter().filter_map(describe)).collect()
    }

    pub(super) fn reply(&mut self, executor: i64, run: i64, attempt: i32, reply: Reply) -> Vec<String> {
        self.described(Event::Replies(ExecutorId::new(executor), vec![(RunId::new(run * 1_000), attempt, reply)]))
    }

    pub(super) fn result(&mut self, executor: i64, run: i64, attempt: i32) -> Vec<String> {
        self.report(executor, RunId::new(run * 1_000), attempt).iter().filter_map(describe).collect()
    }

    /// An executor reports that an attempt succeeded.
    pub(super) fn report(&mut self, executor: i64, run: RunId, attempt: i32) -> Vec<Effect> {
        let result = IncomingResult {
            run,
            attempt,
            outcome: Outcome::Succeeded,
            message: None,
            result: None,
            started_at: None,
            finished_at: self.around.now,
            received_at: self.around.now,
            silent_ms: None,
            is_shutting_down: false,
            is_unfinished: false,
            memory: None,
        };
        let session = self.sessions[&ExecutorId::new(executor)].clone();
        self.on(Event::Results(session, vec![result]))
    }

    /// An executor that is shutting down hands back a run whose handler had not begun.
    pub(super) fn hand_back(&mut self, executor: i64, run: RunId, attempt: i32) -> Vec<Effect> {
        let (run_id, status) = (run.get(), v1::result::Status::Failed.into());
        let result = v1::Result { run_id, attempt, status, silent_ms: 1, shutting_down: true, ..v1::Result::default() };
        let session = self.sessions[&ExecutorId::new(executor)].clone();
        self.on(Event::Results(session, vec![incoming_result(result, self.around.now)]))
    }

    /// Reports that the end of an attempt and its consequences are durable.
    pub(super) fn settled(&mut self, run: i64, attempt: i32, finished: EndOutcome) -> Vec<String> {
        self.described(Event::Settled(vec![SettledAttempt {
            run: RunId::new(run * 1_000),
            attempt,
            owner: None,
            end_outcome: finished,
        }]))
    }
}

pub(super) fn verdict() -> EndOutcome {
    EndOutcome::Stored(NextStep::Verdict { status: RunStatus::Succeeded, reason: None }, None)
}

pub(super) fn retry_outcome() -> EndOutcome {
    let after = NextStep::Retry { due_at: Timestamp::EPOCH, reason: Reason::ExecutorLost, lost_count: 1 };
    EndOutcome::Stored(after, None)
}

/// The runs, each written as the second at which it is due.
fn ids(runs: &[RunId]) -> String {
    let seconds: Vec<String> = runs.iter().map(|run| (run.get() / 1_000).to_string()).collect();
    seconds.join(" ")
}

fn pairs(runs: &[(RunId, i32)]) -> String {
    ids(&runs.iter().map(|(run, _)| *run).collect::<Vec<_>>())
}

/// Describes what an effect does to runs; `None` for an effect that only counts, shows or forgets.
pub(super) fn describe(effect: &Effect) -> Option<String> {
    Some(match effect {
        Effect::Finish(end) => {
            let end = &end.attempt_end;
            format!("end of {}/{}: {:?}", ids(&[end.run]), end.attempt, end.outcome)
        }
        Effect::RefuseResult(_, run, attempt) => format!("refused {}/{attempt}", ids(&[*run])),
        Effect::JudgeUnexpected(_, results) => {
            format!("unexpected {}", ids(&results.iter().map(|result| result.run).collect::<Vec<_>>()))
        }
        Effect::JudgeForeign(_, results) => {
            format!("foreign {}", ids(&results.iter().map(|result| result.run).collect::<Vec<_>>()))
        }
        Effect::Expand(root, executors) => format!("expand {} to {}", ids(&[root.id]), executors.len()),
        Effect::EndLease => "end of the lease".to_owned(),
        Effect::EndStream(session) => format!("end of stream {}", session.number),
        Effect::Store(Step::Mark(marks)) => {
            format!("mark {}", ids(&marks.iter().map(|mark| mark.run).collect::<Vec<_>>()))
        }
        Effect::Store(Step::Unmark(marks)) => {
            let runs = ids(&marks.iter().map(|mark| mark.run).collect::<Vec<_>>());
            let keeps_executor = marks.iter().any(|mark| mark.keeps_executor);
            if keeps_executor { format!("unmark {runs}, still for its executor") } else { format!("unmark {runs}") }
        }
        Effect::Store(Step::CheckRows(runs)) => format!("look at {}", ids(runs)),
        Effect::Store(Step::Cover(runs)) => format!("ask to end {}", ids(runs)),
        Effect::Store(Step::CancelStray(runs)) => format!("cancel elsewhere {}", ids(runs)),
        Effect::Store(Step::Expand(root, shards)) => format!("expand {} again to {}", ids(&[root.id]), shards.len()),
        Effect::Send(_, v1::server_message::Body::Cancels(cancels)) => {
            format!("cancel {}", ids(&cancels.cancels.iter().map(|one| RunId::new(one.run_id)).collect::<Vec<_>>()))
        }
        _ => return None,
    })
}
