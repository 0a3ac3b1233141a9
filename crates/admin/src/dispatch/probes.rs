//! Runs whose router wants to know something of the executors first: they wait here for the answers, but not for long.
//!
//! All executors are asked at once, one message each for all jobs of a turn. Who says nothing until the deadline is passed
//! by. Nothing is kept of an answer once its run has gone on.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use rondel_core::route::{Answer, Question, question};
use rondel_core::{ExecutorId, JobId, Timestamp};

use super::Ready;

/// How long answers are waited for.
const DEADLINE: Duration = Duration::from_millis(200);
/// How long a job is not asked for again after nobody took its run.
const PAUSE: Duration = Duration::from_millis(100);
/// Runs that wait for answers at the same time; more of them wait as if nobody had room.
const OPEN_MAX: usize = 10_000;

/// A run, and what was answered about it so far.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) ready: Ready,
    pub(crate) answers: Vec<(ExecutorId, Answer)>,
    pub(crate) until: Timestamp,
}

impl Probe {
    pub(crate) fn new(ready: Ready, now: Timestamp) -> Self {
        Self { ready, answers: Vec::new(), until: now + DEADLINE }
    }

    pub(crate) fn answer(&self, executor: ExecutorId) -> Answer {
        self.answers.iter().find(|(id, _)| *id == executor).map_or(Answer::None, |(_, answer)| *answer)
    }

    pub(crate) fn note(&mut self, executor: ExecutorId, answer: Answer) {
        match self.answers.iter_mut().find(|(id, _)| *id == executor) {
            Some((_, known)) => *known = answer,
            None => self.answers.push((executor, answer)),
        }
    }
}

/// A question that is on its way.
#[derive(Debug)]
struct Asked {
    executor: ExecutorId,
    jobs: Vec<JobId>,
    until: Timestamp,
}

#[derive(Debug, Default)]
pub(crate) struct Probes {
    waiting: HashMap<JobId, VecDeque<Probe>>,
    /// When the probes end, in order.
    ends: VecDeque<(Timestamp, JobId)>,
    to_ask: BTreeMap<ExecutorId, BTreeSet<JobId>>,
    asked: BTreeMap<i64, Asked>,
    last_number: i64,
    paused: HashMap<JobId, Timestamp>,
}

impl Probes {
    /// Whether nobody is to be asked for this job now.
    pub(crate) fn is_paused(&self, job: JobId, now: Timestamp) -> bool {
        self.ends.len() >= OPEN_MAX || self.paused.get(&job).is_some_and(|until| *until > now)
    }

    /// Nobody took a run of this job.
    pub(crate) fn pause(&mut self, job: JobId, now: Timestamp) {
        if self.paused.len() >= OPEN_MAX {
            self.paused.retain(|_, until| *until > now);
        }
        self.paused.insert(job, now + PAUSE);
    }

    /// A run begins to wait; these executors are asked at the end of the turn.
    pub(crate) fn ask(&mut self, probe: Probe, executors: impl Iterator<Item = ExecutorId>) {
        let job = probe.ready.run.job;
        for executor in executors {
            self.to_ask.entry(executor).or_default().insert(job);
        }
        self.ends.push_back((probe.until, job));
        self.wait_on(probe);
    }

    /// A run waits on.
    pub(crate) fn wait_on(&mut self, probe: Probe) {
        self.waiting.entry(probe.ready.run.job).or_default().push_back(probe);
    }

    /// The questions of this turn, each with its number and at most so many jobs.
    pub(crate) fn take_questions(&mut self, jobs_max: usize, now: Timestamp) -> Vec<(ExecutorId, i64, Vec<JobId>)> {
        let mut questions = Vec::with_capacity(self.to_ask.len());
        for (executor, jobs) in std::mem::take(&mut self.to_ask) {
            let jobs: Vec<JobId> = jobs.into_iter().collect();
            for jobs in jobs.chunks(jobs_max) {
                self.last_number += 1;
                self.asked.insert(self.last_number, Asked { executor, jobs: jobs.to_vec(), until: now + DEADLINE });
                questions.push((executor, self.last_number, jobs.to_vec()));
            }
        }
        questions
    }

    /// An executor answered a question: `free` are the jobs that it would take. Answers whose runs are to be looked at.
    pub(crate) fn answered(&mut self, executor: ExecutorId, number: i64, free: &BTreeSet<JobId>) -> Vec<JobId> {
        let Some(asked) = self.asked.remove(&number).filter(|asked| asked.executor == executor) else {
            return Vec::new();
        };
        for job in &asked.jobs {
            for probe in self.waiting.get_mut(job).into_iter().flatten() {
                // Whoever answers at all is there.
                let is_there = question(probe.ready.definition.job.route) == Some(Question::There);
                let is_yes = is_there || free.contains(job);
                probe.note(executor, if is_yes { Answer::Yes } else { Answer::No });
            }
        }
        asked.jobs
    }

    /// Takes out all runs of a job.
    pub(crate) fn take(&mut self, job: JobId) -> VecDeque<Probe> {
        self.waiting.remove(&job).unwrap_or_default()
    }

    /// Jobs whose probes end by now.
    pub(crate) fn take_ended(&mut self, now: Timestamp) -> Vec<JobId> {
        let mut ended = Vec::new();
        while let Some((_, job)) = self.ends.pop_front_if(|(until, _)| *until <= now) {
            ended.push(job);
        }
        if !ended.is_empty() {
            self.asked.retain(|_, asked| asked.until > now);
            ended.dedup();
        }
        ended
    }

    /// When the next probe ends.
    pub(crate) fn wake_at(&self) -> Timestamp {
        self.ends.front().map_or(Timestamp::MAX, |(until, _)| *until)
    }

    pub(crate) fn drain(&mut self) -> Vec<Ready> {
        let waiting = std::mem::take(self).waiting.into_values().flatten();
        waiting.map(|probe| probe.ready).collect()
    }
}
