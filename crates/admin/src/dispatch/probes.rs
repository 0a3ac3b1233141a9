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
    pub(crate) until: Timestamp,
    answers: Vec<(ExecutorId, Answer)>,
    /// Got a run of the job since this one was asked about: what they answer to that question is out of date.
    taken: Vec<ExecutorId>,
    /// The last question before this run was asked about.
    after: i64,
}

impl Probe {
    pub(crate) fn new(ready: Ready, now: Timestamp) -> Self {
        Self { ready, until: now + DEADLINE, answers: Vec::new(), taken: Vec::new(), after: 0 }
    }

    pub(crate) fn answer(&self, executor: ExecutorId) -> Answer {
        if self.taken.contains(&executor) {
            return Answer::No;
        }
        self.answers.iter().find(|(id, _)| *id == executor).map_or(Answer::None, |(_, answer)| *answer)
    }

    /// The executor got another run of the job.
    pub(crate) fn take_away(&mut self, executor: ExecutorId) {
        if !self.taken.contains(&executor) {
            self.taken.push(executor);
        }
    }

    fn note(&mut self, executor: ExecutorId, answer: Answer) {
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
    pub(crate) fn ask(&mut self, mut probe: Probe, executors: impl Iterator<Item = ExecutorId>) {
        let job = probe.ready.run.job;
        for executor in executors {
            self.to_ask.entry(executor).or_default().insert(job);
        }
        probe.after = self.last_number;
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
            // Who was asked before a run was there does not know of what was sent meanwhile.
            let is_asked = |probe: &&mut Probe| probe.after < number;
            for probe in self.waiting.get_mut(job).into_iter().flatten().filter(is_asked) {
                // Whoever answers at all is there.
                let is_there = question(probe.ready.definition.job.route) == Some(Question::There);
                let is_yes = is_there || free.contains(job);
                probe.note(executor, if is_yes { Answer::Yes } else { Answer::No });
            }
        }
        asked.jobs
    }

    /// Whether a run of this job waits for answers.
    pub(crate) fn has(&self, job: JobId) -> bool {
        self.waiting.contains_key(&job)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::definitions::Compiled;
    use crate::dispatch::tests_support::{definition, ready};

    const JOB: JobId = JobId::new(1);
    const A: ExecutorId = ExecutorId::new(1);
    const B: ExecutorId = ExecutorId::new(2);

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn job(route: &str) -> Arc<Compiled> {
        definition(&json!({ "route": route }))
    }

    /// Asks both about a run; answers the numbers of the questions.
    fn ask(probes: &mut Probes, job: &Arc<Compiled>, now: i64) -> Vec<i64> {
        probes.ask(Probe::new(ready(1, job), at(now)), [A, B].into_iter());
        probes.take_questions(10, at(now)).into_iter().map(|(_, number, _)| number).collect()
    }

    fn answers(probes: &mut Probes) -> Vec<(Answer, Answer)> {
        let waiting = probes.take(JOB);
        let answers = waiting.iter().map(|probe| (probe.answer(A), probe.answer(B))).collect();
        waiting.into_iter().for_each(|probe| probes.wait_on(probe));
        answers
    }

    #[test]
    fn an_answer_counts_for_the_runs_that_it_is_about() {
        let (mut probes, busyover, free) = (Probes::default(), job("busyover"), BTreeSet::from([JOB]));
        let first = ask(&mut probes, &busyover, 0);
        assert_eq!(probes.answered(A, first[0], &BTreeSet::new()), [JOB]);
        let second = ask(&mut probes, &busyover, 10);
        assert_eq!(probes.answered(B, first[1], &free), [JOB]);
        assert_eq!(answers(&mut probes), [(Answer::No, Answer::Yes), (Answer::None, Answer::None)]);
        assert_eq!(probes.answered(B, second[0], &free), [], "that was asked of A");
        assert_eq!(probes.answered(A, 99, &free), []);
    }

    #[test]
    fn who_got_a_run_is_not_free_whatever_it_said_before() {
        let (mut probes, busyover, free) = (Probes::default(), job("busyover"), BTreeSet::from([JOB]));
        let numbers = ask(&mut probes, &busyover, 0);
        let mut probe = probes.take(JOB).pop_front().unwrap();
        probe.take_away(B);
        probes.wait_on(probe);
        probes.answered(B, numbers[1], &free);
        assert_eq!(answers(&mut probes), [(Answer::None, Answer::No)]);
    }

    #[test]
    fn whoever_answers_at_all_is_there() {
        let (mut probes, failover) = (Probes::default(), job("failover"));
        let numbers = ask(&mut probes, &failover, 0);
        probes.answered(A, numbers[0], &BTreeSet::new());
        assert_eq!(answers(&mut probes), [(Answer::Yes, Answer::None)]);
    }

    #[test]
    fn a_probe_ends_and_the_job_rests() {
        let (mut probes, busyover) = (Probes::default(), job("busyover"));
        ask(&mut probes, &busyover, 0);
        assert_eq!(probes.wake_at(), at(200));
        assert_eq!(probes.take_ended(at(199)), []);
        assert_eq!(probes.take_ended(at(200)), [JOB]);
        assert!(probes.asked.is_empty(), "questions without an answer are forgotten");
        assert_eq!(probes.take(JOB).len(), 1);
        probes.pause(JOB, at(200));
        assert!(probes.is_paused(JOB, at(299)) && !probes.is_paused(JOB, at(300)));
        assert_eq!(probes.wake_at(), Timestamp::MAX);
    }
}
