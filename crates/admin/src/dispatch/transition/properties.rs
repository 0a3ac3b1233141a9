//! Events in any order: no run is lost, owned twice, or stuck. A small ledger and two executors answer as the real ones do, or do
//! not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use rondel_core::outcome::Outcome;
use rondel_core::{ExecutorId, JobId, RunId, RunStatus, Timestamp};
use rondel_proto::v1::RefusedWhy;
use rondel_store::ledger::{EndOutcome, RunCheck};
use serde_json::json;

use super::world::{World, retry_outcome, verdict};
use super::*;
use crate::dispatch::ReadyRun;
use crate::dispatch::effect::Submission;
use crate::dispatch::event::{Reply, Report, Responder, RollCallRun, SettledAttempt};
use crate::dispatch::tests_support::{definition, ready};

const RUN_COUNT: i64 = 6;
/// The number of half seconds within which every run must end once no more faults occur.
const QUIET_ROUNDS: usize = 400;

#[derive(Clone, Copy, Debug)]
enum Happening {
    /// This many milliseconds pass; streams have room, or not.
    Time(u16, bool),
    Join(i64),
    Leave(i64),
    Accept(i64),
    Refuse(i64),
    /// An executor ends its first run.
    Report(i64),
    /// The store takes the first end that waits for it, or has no room for it.
    Store(bool),
    /// The store answers the first request, or has no room for it.
    Answer(bool),
    Round,
    /// The lease is lost, and the next one begins.
    NextLease,
}

fn arbitrary_happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    let executor = 1..=2_i64;
    prop_oneof![
        4 => (1..2_500_u16, prop::bool::weighted(0.8)).prop_map(|(millis, has_room)| Time(millis, has_room)),
        2 => executor.clone().prop_map(Join),
        1 => executor.clone().prop_map(Leave),
        2 => executor.clone().prop_map(Accept),
        1 => executor.clone().prop_map(Refuse),
        3 => executor.prop_map(Report),
        4 => prop::bool::weighted(0.8).prop_map(Store),
        4 => prop::bool::weighted(0.8).prop_map(Answer),
        2 => Just(Round),
        1 => Just(NextLease),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Row {
    attempt: i32,
    has_ended: bool,
}

#[derive(Debug)]
struct Model {
    world: World,
    rows: BTreeMap<RunId, Row>,
    /// The attempts that each executor has in hand.
    held: BTreeMap<i64, BTreeSet<(RunId, i32)>>,
    connected: BTreeMap<i64, u64>,
    ends: Vec<Submission>,
    steps: Vec<Step>,
    next_session: u64,
}

/// Runs 1 to 3 belong to a serial job, run 4 runs at most once, and the others may overlap.
fn open_run(run: RunId, attempt: i32, epoch: i64) -> ReadyRun {
    let second = run.get() / 1_000;
    let (job, overrides) = match second {
        1..=3 => (1, json!({"queue_timeout": "10m"})),
        4 => (2, json!({"queue_timeout": "10m", "overlap": {"policy": "allow"}, "delivery": "at_most_once"})),
        _ => (3, json!({"queue_timeout": "10m", "overlap": {"policy": "allow"}})),
    };
    let mut ready = ready(second, &definition(&overrides));
    (ready.run.job, ready.run.attempt, ready.run.node_epoch) = (JobId::new(job), attempt, epoch);
    ready
}

impl Model {
    fn new() -> Self {
        let runs = (1..=RUN_COUNT).map(|second| (RunId::new(second * 1_000), Row { attempt: 1, has_ended: false }));
        let mut model = Self {
            world: World::new(),
            rows: runs.collect(),
            held: BTreeMap::from([(1, BTreeSet::new()), (2, BTreeSet::new())]),
            connected: BTreeMap::new(),
            ends: Vec::new(),
            steps: Vec::new(),
            next_session: 0,
        };
        model.find_strays();
        model
    }

    fn on(&mut self, event: Event) {
        let effects = self.world.on(event);
        self.perform(effects, true);
    }

    fn perform(&mut self, effects: Vec<Effect>, has_room: bool) {
        for effect in effects {
            match effect {
                Effect::Finish(end) => self.ends.push(*end),
                Effect::Store(step) => self.steps.push(step),
                Effect::SendTriggers(executor, runs) => {
                    let has_room = has_room && self.connected.contains_key(&executor.get());
                    let (sent, effects) = self.world.write_all(executor, &runs, has_room);
                    self.held.entry(executor.get()).or_default().extend(sent);
                    self.perform(effects, true);
                }
                _ => {}
            }
        }
    }

    /// The periodic query: runs that are open in the store and not in memory come again.
    fn find_strays(&mut self) {
        let open = self.rows.iter().filter(|(_, row)| !row.has_ended);
        let epoch = self.world.around.token.epoch;
        let runs: Vec<ReadyRun> = open.map(|(run, row)| open_run(*run, row.attempt, epoch)).collect();
        let new = self.world.around.in_memory.admit(runs.iter().map(|ready| ready.run.clone()).collect());
        let new: BTreeSet<RunId> = new.iter().map(|run| run.id).collect();
        self.on(Event::Ready(runs.into_iter().filter(|ready| new.contains(&ready.run.id)).collect()));
    }

    fn happens(&mut self, happening: Happening) {
        let mut has_room_now = true;
        match happening {
            Happening::Time(millis, has_room) => {
                self.world.around.now = self.world.around.now + Duration::from_millis(millis.into());
                self.find_strays();
                has_room_now = has_room;
            }
            Happening::Join(executor) => {
                self.next_session += 1;
                let held = self.held[&executor].iter().copied().collect();
                let effects =
                    self.world.join_all(executor, self.next_session, Report { held_runs: held, ..Report::default() });
                self.connected.insert(executor, self.next_session);
                self.perform(effects, true);
            }
            Happening::Leave(executor) => {
                if let Some(number) = self.connected.remove(&executor) {
                    self.on(Event::StreamEnded(ExecutorId::new(executor), number, Responder::new(|()| {})));
                }
            }
            Happening::Accept(executor) => self.reply(executor, Reply::Accepted),
            Happening::Refuse(executor) => self.reply(executor, Reply::Refused(RefusedWhy::Full, None)),
            Happening::Report(executor) => {
                let first = self.held[&executor].first().copied().filter(|_| self.connected.contains_key(&executor));
                if let Some((run, attempt)) = first {
                    self.held.entry(executor).or_default().remove(&(run, attempt));
                    let effects = self.world.report(executor, run, attempt);
                    self.perform(effects, true);
                }
            }
            Happening::Store(has_room) if !self.ends.is_empty() => {
                let end = self.ends.remove(0);
                if has_room { self.store(&end) } else { self.refuse(&end) }
            }
            Happening::Answer(has_room) if !self.steps.is_empty() => {
                let step = self.steps.remove(0);
                if has_room { self.answer(step) } else { self.on(Event::StepRefused(step)) }
            }
            Happening::Store(_) | Happening::Answer(_) => {}
            Happening::Round => self.on(Event::Round(Vec::new())),
            Happening::NextLease => self.next_lease(),
        }
        // After each turn, as the loop does.
        self.on(Event::Wake);
        let effects = self.world.on(Event::Flush);
        self.perform(effects, has_room_now);
        self.check(happening);
    }

    /// An executor answers its first trigger.
    fn reply(&mut self, executor: i64, reply: Reply) {
        let first = self.held[&executor].first().copied().filter(|_| self.connected.contains_key(&executor));
        let Some((run, attempt)) = first else { return };
        if matches!(reply, Reply::Refused(..)) {
            self.held.entry(executor).or_default().remove(&(run, attempt));
        }
        self.on(Event::Replies(ExecutorId::new(executor), vec![(run, attempt, reply)]));
    }

    fn store(&mut self, end: &Submission) {
        let end = &end.attempt_end;
        let Some(row) = self.rows.get_mut(&end.run) else { return };
        let is_foreign = end.owner.is_some_and(|owner| owner != self.world.around.token);
        let finished = if is_foreign {
            EndOutcome::NotOwner
        } else if row.has_ended {
            EndOutcome::Duplicate
        } else if row.attempt != end.attempt {
            EndOutcome::Superseded
        } else if matches!(end.outcome, Outcome::Lost(_)) {
            row.attempt += 1;
            retry_outcome()
        } else {
            row.has_ended = true;
            verdict()
        };
        let settled = SettledAttempt { run: end.run, attempt: end.attempt, owner: end.owner, end_outcome: finished };
        self.on(Event::Settled(vec![settled]));
    }

    fn refuse(&mut self, end: &Submission) {
        let (run, attempt) = (end.attempt_end.run, end.attempt_end.attempt);
        if let Some(session) = &end.reply_to {
            self.held.entry(session.executor.get()).or_default().insert((run, attempt));
        }
        match end.phase_before {
            Some(phase) => self.on(Event::EndRefused(run, attempt, phase)),
            None => self.world.around.in_memory.forget_under_lease(end.attempt_end.owner.map(|owner| (run, owner))),
        }
    }

    fn answer(&mut self, step: Step) {
        match step {
            Step::Mark(marks) => {
                let asked: Vec<(RunId, i32)> = marks.iter().map(|mark| (mark.run, mark.attempt)).collect();
                let is_open =
                    |(run, attempt): &&(RunId, i32)| !self.rows[run].has_ended && self.rows[run].attempt == *attempt;
                let won = asked.iter().filter(is_open).map(|(run, _)| *run).collect();
                self.on(Event::Marked(asked, won));
            }
            Step::Unmark(_) => self.on(Event::Unmarked),
            Step::CheckRows(runs) => {
                for run in runs {
                    let check = self.check_of(run).into_iter().collect();
                    self.on(Event::RowsChecked(vec![run], check));
                }
            }
            Step::LastHeard(suspects) => self.on(Event::Heard(suspects, BTreeMap::new())),
            _ => {}
        }
    }

    fn check_of(&self, run: RunId) -> Option<RunCheck> {
        let row = self.rows.get(&run).filter(|row| !row.has_ended)?;
        Some(RunCheck {
            id: run,
            status: RunStatus::Running,
            attempt: row.attempt,
            job_version: 1,
            has_recorded_start: true,
            owner: self.world.around.token,
            cancel_by: None,
            drop_for: None,
            term: 1,
        })
    }

    /// Under the next lease, the runs that executors had are in a roll call; the periodic query finds the other runs in the store.
    fn next_lease(&mut self) {
        let has_active = |run: RunId, attempt: i32| {
            self.world.state.runs.active(run).is_some_and(|active| active.ready.run.attempt == attempt)
        };
        let has_been_sent = |run: RunId, attempt: i32| {
            has_active(run, attempt) || self.held.values().any(|held| held.contains(&(run, attempt)))
        };
        let open = self.rows.iter().filter(|(_, row)| !row.has_ended);
        let sent = open.filter(|(run, row)| has_been_sent(**run, row.attempt));
        let sent: Vec<(RunId, Row)> = sent.map(|(run, row)| (*run, *row)).collect();
        self.on(Event::LeaseLost);
        self.world.around.token.epoch += 1;
        self.world.around.lease_holds = true;
        let token = self.world.around.token;
        let called = sent.iter().map(|(run, row)| {
            let mut ready = open_run(*run, row.attempt, token.epoch);
            ready.run.status = RunStatus::Running;
            ready
        });
        let called: Vec<ReadyRun> = called.collect();
        let known = self.world.around.in_memory.admit(called.iter().map(|ready| ready.run.clone()).collect());
        assert_eq!(known.len(), called.len(), "they stood under the lease before");
        let called = called.into_iter().map(|ready| RollCallRun { ready, sent_under: None }).collect();
        self.on(Event::RollCall(called, Vec::new(), Vec::new()));
        self.on(Event::AllAdopted(token));
    }

    /// Each attempt that this process has in memory is in the table once, or its end is being stored.
    fn check(&self, happening: Happening) {
        for (run, row) in &self.rows {
            let runs = &self.world.state.runs;
            let waits = runs.ready(*run).map(|ready| ready.run.attempt);
            let in_hand = runs.active(*run).map(|active| &active.ready).or_else(|| runs.in_roll_call(*run));
            let in_hand = in_hand.map(|ready| ready.run.attempt);
            assert!(waits.is_none() || waits != in_hand, "{run} has two owners after {happening:?}");
            let is_ending = self.ends.iter().any(|end| end.attempt_end.run == *run);
            let is_here = self.world.around.in_memory.missing_runs([*run]).is_empty();
            let has_owner = waits.is_some() || in_hand.is_some() || is_ending;
            assert!(!is_here || has_owner, "{run} is lost after {happening:?}: {row:?}");
        }
    }

    /// Continues without faults until every run has ended.
    fn run_until_all_ended(&mut self) {
        for executor in [1, 2] {
            self.happens(Happening::Join(executor));
        }
        for _ in 0..QUIET_ROUNDS {
            if self.rows.values().all(|row| row.has_ended) {
                return;
            }
            self.happens(Happening::Time(500, true));
            for executor in [1, 2] {
                self.world.beat(executor);
                self.happens(Happening::Accept(executor));
                self.happens(Happening::Report(executor));
            }
            for _ in 0..self.ends.len() {
                self.happens(Happening::Store(true));
            }
            for _ in 0..self.steps.len() {
                self.happens(Happening::Answer(true));
            }
            self.happens(Happening::Round);
        }
        let stuck: Vec<_> = self.rows.iter().filter(|(_, row)| !row.has_ended).collect();
        assert!(stuck.is_empty(), "stuck: {stuck:?} {:#?}", self.world.state.runs);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_run_is_lost_owned_twice_or_stuck(happenings in prop::collection::vec(arbitrary_happening(), 1..80)) {
        let mut model = Model::new();
        for happening in happenings {
            model.happens(happening);
        }
        model.run_until_all_ended();
        prop_assert!(model.world.around.now > Timestamp::EPOCH);
    }
}

/// The run was given up under the previous lease, and an executor is about to get it under the current one.
#[test]
fn an_end_under_an_earlier_lease_that_finds_no_room_leaves_the_run_where_it_is() {
    use Happening::*;
    let mut model = Model::new();
    for happening in [Join(2), Time(3_800, false), NextLease, NextLease, Time(1, false), Store(false), Leave(2)] {
        model.happens(happening);
        model.find_strays();
    }
    model.run_until_all_ended();
}
