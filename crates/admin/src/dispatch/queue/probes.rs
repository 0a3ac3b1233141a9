//! Runs whose router needs the answers of executors first: they wait here for the answers, for a bounded time.
//!
//! All executors are asked concurrently: each flush sends one message to each executor, about all jobs. An executor without an answer by
//! the deadline is skipped. An answer is dropped once its run has been routed.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use rondel_core::route::{Answer, Question, question};
use rondel_core::{ExecutorId, JobId, RunId, Timestamp};

use crate::dispatch::ready::ReadyRun;
use crate::dispatch::runs::{OpenRun, OpenRuns, Stage};

/// How long a run waits for answers.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
/// How long executors are not asked about a job after none of them took its run.
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of runs that wait for answers at the same time. Further runs wait as if no executor had room.
const WAITING_COUNT_MAX: usize = 10_000;

/// A run whose router asks executors first, with their answers so far.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) ready: ReadyRun,
    pub(crate) answers: Answers,
}

/// The answers about a run so far.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) answer_deadline: Timestamp,
    answers: Vec<(ExecutorId, Answer)>,
    /// Executors that got another run of the job after they were asked about this run. Their answers are outdated.
    chosen_executors: Vec<ExecutorId>,
    /// The number of the last question that was sent before this run arrived. Only answers to later questions count for the run.
    last_question_before: i64,
}

impl Probe {
    pub(crate) fn new(ready: ReadyRun, now: Timestamp) -> Self {
        let answers = Answers {
            answer_deadline: now + ANSWER_TIMEOUT,
            answers: Vec::new(),
            chosen_executors: Vec::new(),
            last_question_before: 0,
        };
        Self { ready, answers }
    }
}

impl Answers {
    pub(crate) fn answer(&self, executor: ExecutorId) -> Answer {
        if self.chosen_executors.contains(&executor) {
            return Answer::No;
        }
        self.answers.iter().find(|(id, _)| *id == executor).map_or(Answer::Missing, |(_, answer)| *answer)
    }

    /// Records that the executor got another run of the job.
    pub(crate) fn record_taken(&mut self, executor: ExecutorId) {
        if !self.chosen_executors.contains(&executor) {
            self.chosen_executors.push(executor);
        }
    }

    fn record(&mut self, executor: ExecutorId, answer: Answer) {
        match self.answers.iter_mut().find(|(id, _)| *id == executor) {
            Some((_, known)) => *known = answer,
            None => self.answers.push((executor, answer)),
        }
    }
}

/// A question that was sent and has not been answered.
#[derive(Debug)]
struct PendingQuestion {
    executor: ExecutorId,
    jobs: Vec<JobId>,
    answer_deadline: Timestamp,
}

#[derive(Debug, Default)]
pub(crate) struct Probes {
    /// The runs that wait for answers, keyed by their jobs.
    waiting_runs: HashMap<JobId, VecDeque<RunId>>,
    /// The deadlines of the probes, the earliest first.
    deadlines: VecDeque<(Timestamp, JobId)>,
    /// The jobs that the next flush asks each executor about.
    unsent_questions: BTreeMap<ExecutorId, BTreeSet<JobId>>,
    /// The questions that have not been answered, keyed by their numbers.
    unanswered_questions: BTreeMap<i64, PendingQuestion>,
    /// The number of the last question.
    last_question_number: i64,
    /// The jobs about which executors are not asked, each with the end of its pause.
    paused_until: HashMap<JobId, Timestamp>,
}

impl Probes {
    /// Whether executors are not to be asked about this job now, because none of them took its last run, or too many runs wait for answers.
    pub(crate) fn is_paused(&self, job: JobId, now: Timestamp) -> bool {
        self.deadlines.len() >= WAITING_COUNT_MAX || self.paused_until.get(&job).is_some_and(|until| *until > now)
    }

    /// Pauses questions about this job, because no executor took its run.
    pub(crate) fn pause(&mut self, job: JobId, now: Timestamp) {
        if self.paused_until.len() >= WAITING_COUNT_MAX {
            self.paused_until.retain(|_, until| *until > now);
        }
        self.paused_until.insert(job, now + ASK_PAUSE);
    }

    /// Makes a run wait for the answers of these executors. The questions are sent with the next flush.
    pub(crate) fn ask(&mut self, mut probe: Probe, executors: impl Iterator<Item = ExecutorId>, runs: &mut OpenRuns) {
        let job = probe.ready.run.job;
        for executor in executors {
            self.unsent_questions.entry(executor).or_default().insert(job);
        }
        probe.answers.last_question_before = self.last_question_number;
        self.deadlines.push_back((probe.answers.answer_deadline, job));
        self.put_back(probe, runs);
    }

    /// Puts a run back to wait for more answers.
    pub(crate) fn put_back(&mut self, probe: Probe, runs: &mut OpenRuns) {
        let Probe { ready, answers } = probe;
        self.waiting_runs.entry(ready.run.job).or_default().push_back(ready.run.id);
        runs.put(ready, Stage::Probing(Box::new(answers)));
    }

    /// The questions since the last flush, each with its number and at most `jobs_max` jobs.
    pub(crate) fn take_questions(&mut self, jobs_max: usize, now: Timestamp) -> Vec<(ExecutorId, i64, Vec<JobId>)> {
        let mut questions = Vec::with_capacity(self.unsent_questions.len());
        for (executor, jobs) in std::mem::take(&mut self.unsent_questions) {
            let jobs: Vec<JobId> = jobs.into_iter().collect();
            for jobs in jobs.chunks(jobs_max) {
                self.last_question_number += 1;
                self.unanswered_questions.insert(
                    self.last_question_number,
                    PendingQuestion { executor, jobs: jobs.to_vec(), answer_deadline: now + ANSWER_TIMEOUT },
                );
                questions.push((executor, self.last_question_number, jobs.to_vec()));
            }
        }
        questions
    }

    /// Records an executor's answer to a question: `free_jobs` lists the jobs whose runs it would take. Returns the jobs whose runs may be routed
    /// now.
    pub(crate) fn record_answer(
        &mut self,
        executor: ExecutorId,
        question_number: i64,
        free_jobs: &BTreeSet<JobId>,
        runs: &mut OpenRuns,
    ) -> Vec<JobId> {
        let Some(sent_question) =
            self.unanswered_questions.remove(&question_number).filter(|asked| asked.executor == executor)
        else {
            return Vec::new();
        };
        for job in &sent_question.jobs {
            for run in self.waiting_runs.get(job).into_iter().flatten() {
                let Some(open_run) = runs.get_mut(*run) else { continue };
                // If the router only asks whether the executor is online, any answer is a yes.
                let is_online_question = question(open_run.ready.definition.job.route) == Some(Question::Online);
                let is_yes = is_online_question || free_jobs.contains(job);
                // An answer to a question from before this run arrived does not consider the runs that were sent since.
                if let Stage::Probing(answers) = &mut open_run.stage
                    && answers.last_question_before < question_number
                {
                    answers.record(executor, if is_yes { Answer::Yes } else { Answer::No });
                }
            }
        }
        sent_question.jobs
    }

    /// Whether a run of this job waits for answers.
    pub(crate) fn has(&self, job: JobId) -> bool {
        self.waiting_runs.contains_key(&job)
    }

    /// Takes out all runs of a job.
    pub(crate) fn take(&mut self, job: JobId, runs: &mut OpenRuns) -> VecDeque<Probe> {
        let waiting_runs = self.waiting_runs.remove(&job).unwrap_or_default();
        let probe = |run| match runs.take(run)? {
            OpenRun { ready, stage: Stage::Probing(answers) } => Some(Probe { ready, answers: *answers }),
            _ => None,
        };
        waiting_runs.into_iter().filter_map(probe).collect()
    }

    /// Forgets a run that executors are asked about.
    pub(crate) fn remove(&mut self, ready: &ReadyRun) {
        let job = ready.run.job;
        if let Some(runs_of_job) = self.waiting_runs.get_mut(&job) {
            runs_of_job.retain(|run| *run != ready.run.id);
            if runs_of_job.is_empty() {
                self.waiting_runs.remove(&job);
            }
        }
    }

    /// Jobs with a probe whose deadline has passed.
    pub(crate) fn take_expired_jobs(&mut self, now: Timestamp) -> Vec<JobId> {
        let mut expired_jobs = Vec::new();
        while let Some((_, job)) = self.deadlines.pop_front_if(|(until, _)| *until <= now) {
            expired_jobs.push(job);
        }
        if !expired_jobs.is_empty() {
            self.unanswered_questions.retain(|_, asked| asked.answer_deadline > now);
            expired_jobs.dedup();
        }
        expired_jobs
    }

    /// Handles a step back of the clock to `now`: ends all pauses, and limits each deadline to the usual time from `now`.
    pub(crate) fn step_back(&mut self, now: Timestamp, runs: &mut OpenRuns) {
        let latest_deadline = now + ANSWER_TIMEOUT;
        self.paused_until.clear();
        self.deadlines.iter_mut().for_each(|(until, _)| *until = latest_deadline.min(*until));
        self.unanswered_questions
            .values_mut()
            .for_each(|asked| asked.answer_deadline = latest_deadline.min(asked.answer_deadline));
        self.waiting_runs.values().flatten().for_each(|run| {
            if let Some(OpenRun { stage: Stage::Probing(answers), .. }) = runs.get_mut(*run) {
                answers.answer_deadline = latest_deadline.min(answers.answer_deadline);
            }
        });
    }

    /// The earliest deadline of a probe; [`Timestamp::MAX`] if there is none.
    pub(crate) fn wake_at(&self) -> Timestamp {
        self.deadlines.front().map_or(Timestamp::MAX, |(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::definitions::CompiledDefinition;
    use crate::dispatch::tests_support::{definition, ready};

    const JOB: JobId = JobId::new(1);
    const A: ExecutorId = ExecutorId::new(1);
    const B: ExecutorId = ExecutorId::new(2);

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn job(route: &str) -> Arc<CompiledDefinition> {
        definition(&json!({ "route": route }))
    }

    /// Probes, and the runs that they are about.
    type Asking = (Probes, OpenRuns);

    /// Asks executors A and B about a run; returns the numbers of the questions.
    fn ask((probes, runs): &mut Asking, job: &Arc<CompiledDefinition>, now: i64) -> Vec<i64> {
        // Each call asks about another run.
        probes.ask(Probe::new(ready(1 + now, job), at(now)), [A, B].into_iter(), runs);
        probes.take_questions(10, at(now)).into_iter().map(|(_, number, _)| number).collect()
    }

    fn answers_of_a_and_b((probes, runs): &mut Asking) -> Vec<(Answer, Answer)> {
        let waiting = probes.take(JOB, runs);
        let answers = waiting.iter().map(|probe| (probe.answers.answer(A), probe.answers.answer(B))).collect();
        waiting.into_iter().for_each(|probe| probes.put_back(probe, runs));
        answers
    }

    fn record_answer(
        (probes, runs): &mut Asking,
        executor: ExecutorId,
        number: i64,
        free: &BTreeSet<JobId>,
    ) -> Vec<JobId> {
        probes.record_answer(executor, number, free, runs)
    }

    #[test]
    fn an_answer_counts_for_the_runs_that_it_is_about() {
        let (mut probes, busyover, free) = (Asking::default(), job("busyover"), BTreeSet::from([JOB]));
        let first = ask(&mut probes, &busyover, 0);
        assert_eq!(record_answer(&mut probes, A, first[0], &BTreeSet::new()), [JOB]);
        let second = ask(&mut probes, &busyover, 10);
        assert_eq!(record_answer(&mut probes, B, first[1], &free), [JOB]);
        assert_eq!(answers_of_a_and_b(&mut probes), [(Answer::No, Answer::Yes), (Answer::Missing, Answer::Missing)]);
        assert_eq!(record_answer(&mut probes, B, second[0], &free), [], "that was asked of A");
        assert_eq!(record_answer(&mut probes, A, 99, &free), []);
    }

    #[test]
    fn an_executor_that_got_a_run_is_not_free_despite_its_answer() {
        let (mut probes, busyover, free) = (Asking::default(), job("busyover"), BTreeSet::from([JOB]));
        let numbers = ask(&mut probes, &busyover, 0);
        let mut probe = probes.0.take(JOB, &mut probes.1).pop_front().unwrap();
        probe.answers.record_taken(B);
        probes.0.put_back(probe, &mut probes.1);
        record_answer(&mut probes, B, numbers[1], &free);
        assert_eq!(answers_of_a_and_b(&mut probes), [(Answer::Missing, Answer::No)]);
    }

    #[test]
    fn any_answer_shows_that_an_executor_is_online() {
        let (mut probes, failover) = (Asking::default(), job("failover"));
        let numbers = ask(&mut probes, &failover, 0);
        record_answer(&mut probes, A, numbers[0], &BTreeSet::new());
        assert_eq!(answers_of_a_and_b(&mut probes), [(Answer::Yes, Answer::Missing)]);
    }

    #[test]
    fn a_probe_ends_and_the_job_is_not_asked_about_for_a_while() {
        let (mut probes, busyover) = (Asking::default(), job("busyover"));
        ask(&mut probes, &busyover, 0);
        assert_eq!(probes.0.wake_at(), at(200));
        assert_eq!(probes.0.take_expired_jobs(at(199)), []);
        assert_eq!(probes.0.take_expired_jobs(at(200)), [JOB]);
        assert!(probes.0.unanswered_questions.is_empty(), "questions without an answer are forgotten");
        assert_eq!(probes.0.take(JOB, &mut probes.1).len(), 1);
        probes.0.pause(JOB, at(200));
        assert!(probes.0.is_paused(JOB, at(299)) && !probes.0.is_paused(JOB, at(300)));
        assert_eq!(probes.0.wake_at(), Timestamp::MAX);
    }
}
