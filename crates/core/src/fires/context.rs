//! The facts that an answer about a run needs besides the rows of its job: the server and the executors that an open run depends on,
//! the runs that hold it back, and the runs whose ends led to the end of this run.

use super::bilingual::{Bilingual, bilingual, empty_text, executor_clause};
use super::lateness::LATE_FROM;
use crate::homes::Switch;
use crate::reason::message::translate;
use crate::reason::words::{outcome, verdict_text, wait_zh, waits_for};
use crate::reason::{ObstacleKind, Reason, ReasonDetail, WaitFor};
use crate::run::Run;
use crate::status::RunStatus;
use crate::time::Timestamp;
use crate::words::Lang;

/// How many runs and executors an answer names; further ones are only counted.
pub const NAMED_COUNT_MAX: usize = 5;
/// How many parents an answer follows towards the first cause of a run that did not begin because of its parent.
pub const CAUSE_STEP_COUNT_MAX: usize = 5;

/// The context of the run that an answer is about: the server, the executors and the other runs that it depends on.
#[derive(Clone, Debug, Default)]
pub struct AnswerContext {
    /// The server that has the open run.
    pub server: Option<ServerState>,
    /// A server without a lease, and when its lease ended. For an open run, this is the server that has the run; `None`
    /// while that server holds a lease. For a fire without a run, it is the server whose lease ended last; `None` while
    /// any server holds a lease.
    pub lease_ended: Option<(String, Timestamp)>,
    /// Executors of the app that take no runs now; for a run that is running, only its own executor.
    pub executors: Vec<ExecutorState>,
    /// Whether an executor of the app is online and takes runs.
    pub has_available_executor: bool,
    /// The earlier run of the same job that the run waits for.
    pub ahead: Option<OtherRun>,
    /// The key of the limit that the run, or the run ahead of it, waits for.
    pub limit: Option<String>,
    /// The runs that hold the limit, at most [`NAMED_COUNT_MAX`]. The run that has held it longest comes first.
    pub holders: Vec<OtherRun>,
    /// How many more runs hold the limit.
    pub more_holder_count: usize,
    /// Some of the shards that caused the verdict of a broadcast; empty if it succeeded.
    pub shards: Vec<OtherRun>,
    /// The runs that led to the end of this run: its parent, the parent of its parent, and so on; at most [`CAUSE_STEP_COUNT_MAX`].
    pub causes: Vec<OtherRun>,
}

/// The state of the server that has a run, as far as it matters to the run.
#[derive(Clone, Debug)]
pub struct ServerState {
    /// The node's name.
    pub name: String,
    /// Whether it is stopping: it sends no more runs.
    pub is_leaving: bool,
    /// Its switch. A server that is switched off keeps the jobs that no other server can take.
    pub switch: Switch,
    /// When it began its work.
    pub since: Timestamp,
}

/// An executor that takes no runs now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorState {
    pub name: String,
    /// If it is silent: since when, and when it will count as lost. `None` if it is connected but takes no new runs.
    pub silent: Option<(Timestamp, Timestamp)>,
    pub switch: Switch,
}

/// Another run that helps to explain the run that an answer is about.
#[derive(Clone, Debug)]
pub struct OtherRun {
    pub run: Run,
    /// The name of its job; `None` if the reader may not see the job.
    pub job: Option<String>,
}

impl OtherRun {
    /// Names the run and its job, as far as the reader may see them.
    fn name(&self) -> Bilingual {
        let id = self.run.id;
        match &self.job {
            Some(job) => bilingual(format!("run {id} of job {job}"), format!("任务 {job} 的运行 {id}")),
            None => bilingual("a run of a job that you may not see", "您无权查看的任务的一个运行"),
        }
    }

    fn executor_clause(&self) -> Bilingual {
        executor_clause(self.run.executor.as_deref().filter(|_| self.job.is_some()))
    }
}

/// The run that an answer is about, and how instants are written.
pub(super) struct RunInContext<'a, F> {
    pub(super) run: &'a Run,
    pub(super) context: &'a AnswerContext,
    pub(super) now: Timestamp,
    pub(super) instant_text: F,
}

impl<F: Fn(Timestamp) -> String> RunInContext<'_, F> {
    /// What the run waits for if its row does not record it: for a server if the run's own server has no lease, for an
    /// executor if none takes runs.
    pub(super) fn default_wait(&self) -> Option<Bilingual> {
        if self.context.lease_ended.is_some() {
            return Some(bilingual("for a server with a lease", "持有租约的服务器"));
        }
        let is_executor = !self.context.has_available_executor && !self.context.executors.is_empty();
        is_executor.then(|| bilingual("for an executor", "执行器"))
    }

    /// Sentences to add to the answer.
    pub(super) fn sentences(&self) -> Bilingual {
        let mut parts = Vec::new();
        match self.run.status {
            RunStatus::Pending | RunStatus::Waiting if self.run.due_at <= self.now => {
                parts.extend(self.server_sentence());
                parts.extend(self.executor_sentences());
                parts.extend(self.run_ahead_sentence());
                parts.extend(self.holders_sentence());
            }
            RunStatus::Running => {
                parts.extend(self.late_server_sentence());
                parts.extend(self.executor_sentences());
            }
            _ => {}
        }
        if self.run.status.is_terminal() && self.run.reason == Some(Reason::Parent) {
            parts.extend(self.first_cause_sentence());
        }
        if self.run.status.is_terminal() {
            parts.extend(self.context.shards.iter().map(shard_sentence));
        }
        let join = |text: Bilingual, (en, zh): Bilingual| (text.0 + " " + &en, text.1 + &zh);
        parts.into_iter().fold(empty_text(), join)
    }

    fn server_sentence(&self) -> Option<Bilingual> {
        if let Some((name, since)) = &self.context.lease_ended {
            let since = (self.instant_text)(*since);
            return Some(bilingual(
                format!(
                    "Server {name}, which has the run, has had no lease since {since}: it starts nothing until it can write \
                     to its database again, unless another server takes the run over."
                ),
                format!(
                    "负责该运行的服务器 {name} 自 {since} 起没有租约：在它能再次写入数据库或由其他服务器接手之前，不会启动。"
                ),
            ));
        }
        let ServerState { name, is_leaving, switch, .. } = self.context.server.as_ref()?;
        let (en, zh) = match switch {
            _ if *is_leaving => (
                "is stopping: it gives its jobs to other servers, and sends nothing new",
                "正在停止：它把任务交给其他服务器，不再发送新的运行",
            ),
            Switch::Active => return None,
            Switch::Draining => (
                "is switched to draining: it gives its jobs to other servers, and continues with those that no other can take",
                "的开关设为排空：它把任务交给其他服务器，其他服务器无法接手的仍由它执行",
            ),
            Switch::Stopped => (
                "is switched to stopped: it gives its jobs and its executors to other servers",
                "的开关设为停用：它把任务和执行器交给其他服务器",
            ),
        };
        Some(bilingual(format!("Server {name}, which has the run, {en}."), format!("负责该运行的服务器 {name} {zh}。")))
    }

    /// A sentence for a run that began late without a recorded wait; `None` unless its server began its work after the run was
    /// due.
    fn late_server_sentence(&self) -> Option<Bilingual> {
        let (run, server) = (self.run, self.context.server.as_ref()?);
        let started_at = run.started_at?;
        let is_explained = run.attempt > 1 || run.detail.as_ref().is_some_and(|detail| detail.waits_for.is_some());
        let is_late = started_at > run.due_at && started_at.since(run.due_at) >= LATE_FROM;
        if is_explained || !is_late || !(run.due_at..=started_at).contains(&server.since) {
            return None;
        }
        let (name, since) = (&server.name, (self.instant_text)(server.since));
        Some(bilingual(
            format!("Server {name}, which sent it, began its work at {since}."),
            format!("发送它的服务器 {name} 于 {since} 才开始工作。"),
        ))
    }

    /// Sentences about the executors that take no runs, except those that the stored wait already names as draining or stopped.
    fn executor_sentences(&self) -> Vec<Bilingual> {
        let obstacles = self.run.detail.as_ref().map_or(&[][..], |detail| &detail.obstacles);
        let is_switched_off =
            |kind| matches!(kind, ObstacleKind::Draining | ObstacleKind::Drained | ObstacleKind::Stopped);
        let is_named = |state: &&ExecutorState| {
            state.silent.is_none()
                && self.run.status != RunStatus::Running
                && obstacles.iter().any(|obstacle| is_switched_off(obstacle.kind) && obstacle.executor == state.name)
        };
        let waits_for = self.run.detail.as_ref().and_then(|detail| detail.waits_for);
        if matches!(waits_for, Some(WaitFor::Run | WaitFor::Limit | WaitFor::App)) {
            return Vec::new();
        }
        let states = self.context.executors.iter().filter(|state| !is_named(state));
        let unnamed_count = states.clone().count().saturating_sub(NAMED_COUNT_MAX);
        let mut parts: Vec<Bilingual> =
            states.take(NAMED_COUNT_MAX).map(|state| self.executor_sentence(state)).collect();
        parts.extend((unnamed_count > 0).then(|| {
            bilingual(
                format!("{unnamed_count} more executors are draining or silent."),
                format!("另有 {unnamed_count} 个执行器正在排空或没有音讯。"),
            )
        }));
        parts
    }

    fn executor_sentence(&self, ExecutorState { name, silent, switch }: &ExecutorState) -> Bilingual {
        let Some((since, until)) = silent else {
            return match switch {
                Switch::Active => bilingual(
                    format!("Executor {name} is draining (takes nothing new)."),
                    format!("执行器 {name} 正在排空（不再接收新的运行）。"),
                ),
                Switch::Draining => bilingual(
                    format!("Executor {name} is switched to draining (takes nothing new until it is activated)."),
                    format!("执行器 {name} 的开关设为排空（重新启用前不再接收新的运行）。"),
                ),
                Switch::Stopped => bilingual(
                    format!("Executor {name} is switched to stopped (takes nothing new until it is activated)."),
                    format!("执行器 {name} 的开关设为停用（重新启用前不再接收新的运行）。"),
                ),
            };
        };
        let (since, until) = ((self.instant_text)(*since), (self.instant_text)(*until));
        bilingual(
            format!("Executor {name} is silent since {since}, and is given up at {until} if it stays silent."),
            format!("执行器 {name} 自 {since} 起没有音讯，若一直如此，将在 {until} 视为失联。"),
        )
    }

    /// What the run ahead is doing.
    fn run_ahead_sentence(&self) -> Option<Bilingual> {
        let ahead = self.context.ahead.as_ref()?;
        let (run, executor_text) = (&ahead.run, ahead.executor_clause());
        let id = run.id;
        if let Some(since) = run.started_at.filter(|_| run.status == RunStatus::Running).map(&self.instant_text) {
            return Some(bilingual(
                format!("Run {id} has been running since {since}{}.", executor_text.0),
                format!("运行 {id} 自 {since} 起一直在执行{}。", executor_text.1),
            ));
        }
        if run.status.is_terminal() {
            return None;
        }
        if run.attempt > 1 && run.due_at > self.now {
            let (number, at) = (run.attempt, (self.instant_text)(run.due_at));
            return Some(bilingual(
                format!("Run {id} waits for its attempt {number}, which is due at {at}."),
                format!("运行 {id} 正在等待第 {number} 次尝试，将于 {at} 到期。"),
            ));
        }
        let wait_text = |lang| run.detail.as_deref().and_then(|detail| waits_for(detail, lang));
        let (en, zh) = wait_text(Lang::En).zip(wait_text(Lang::Zh))?;
        let since = (self.instant_text)(run.due_at);
        Some(bilingual(
            format!("Run {id} itself has been due since {since}, and waits {en}."),
            format!("运行 {id} 本身已于 {since} 到期，正在{}。", wait_zh(&zh)),
        ))
    }

    fn holders_sentence(&self) -> Option<Bilingual> {
        let AnswerContext { holders, more_holder_count, limit, .. } = self.context;
        let key = limit.as_ref().filter(|_| !holders.is_empty())?;
        let describe = |holder: &OtherRun| {
            let (name, executor_text) = (holder.name(), holder.executor_clause());
            let since = (self.instant_text)(holder.run.started_at.unwrap_or(holder.run.due_at));
            bilingual(
                format!("{}{} since {since}", name.0, executor_text.0),
                format!("{}{}，自 {since} 起", name.1, executor_text.1),
            )
        };
        let (mut en, mut zh): (Vec<String>, Vec<String>) = holders.iter().map(describe).unzip();
        if *more_holder_count > 0 {
            en.push(format!("{more_holder_count} more"));
            zh.push(format!("另外 {more_holder_count} 个"));
        }
        Some(bilingual(
            format!("Limit {key:?} is held by {}.", en.join("; ")),
            format!("限制 {key:?} 被占用：{}。", zh.join("；")),
        ))
    }

    fn first_cause_sentence(&self) -> Option<Bilingual> {
        let causes = &self.context.causes;
        let (last_cause, causes_between) = causes.split_last()?;
        let names: Vec<&str> = causes_between.iter().rev().filter_map(|cause| cause.job.as_deref()).collect();
        let path_text = match names.len() {
            0 => empty_text(),
            _ => bilingual(format!(" (by way of {})", names.join(", ")), format!("（经由 {}）", names.join("、"))),
        };
        let name = last_cause.name();
        let (en, zh) = (last_cause.run.status, outcome(last_cause.run.status, Lang::Zh));
        let cause_text = cause_clause(&last_cause.run);
        if last_cause.run.reason == Some(Reason::Parent) {
            return Some(bilingual(
                format!(
                    "The chain of causes goes on beyond {}, which ended as {en}{}{}.",
                    name.0, cause_text.0, path_text.0
                ),
                format!("原因链在{}（{zh}）之前还有更早的环节{}{}。", name.1, cause_text.1, path_text.1),
            ));
        }
        Some(bilingual(
            format!("The first cause is {}, which ended as {en}{}{}.", name.0, cause_text.0, path_text.0),
            format!("最初的原因是{}：{zh}{}{}。", name.1, cause_text.1, path_text.1),
        ))
    }
}

/// The sentence about a fire that is due but that no server has claimed.
pub(super) fn undecided_sentence(
    at: &str,
    context: Option<&AnswerContext>,
    instant_text: impl Fn(Timestamp) -> String,
) -> Bilingual {
    let (en, zh) = bilingual(
        format!("It has not run yet: it was due at {at}, and no server has taken it up so far."),
        format!("尚未执行：应在 {at} 执行，目前还没有服务器接手。"),
    );
    let Some((name, ended_at)) = context.and_then(|context| context.lease_ended.as_ref()) else { return (en, zh) };
    let end_text = instant_text(*ended_at);
    bilingual(
        format!(
            "{en} No server holds a lease: that of server {name} ended at {end_text}. Without one no fire is taken up; look at \
             its log, and whether its database can be written to."
        ),
        format!(
            "{zh}没有服务器持有租约：服务器 {name} 的租约已于 {end_text} 结束。没有租约就不会接手触发；请查看其日志，并确认数据库可写。"
        ),
    )
}

/// How a shard ended.
fn shard_sentence(shard: &OtherRun) -> Bilingual {
    let (run, executor_text, cause_text) = (&shard.run, shard.executor_clause(), cause_clause(&shard.run));
    let (id, number, total) = (run.id, run.shard_index + 1, run.shard_total.unwrap_or(1));
    bilingual(
        format!("Shard {number}/{total} (run {id}){} ended as {}{}.", executor_text.0, run.status, cause_text.0),
        format!(
            "分片 {number}/{total}（运行 {id}）{}：{}{}。",
            executor_text.1,
            outcome(run.status, Lang::Zh),
            cause_text.1
        ),
    )
}

fn cause_clause(run: &Run) -> Bilingual {
    let no_detail = ReasonDetail::default();
    let detail = run.detail.as_deref().unwrap_or(&no_detail);
    let (en, zh) = match (run.reason, run.message.as_deref().filter(|message| !message.is_empty())) {
        (Some(reason), _) => {
            let end = (run.status, reason);
            (verdict_text(end, detail, Lang::En), verdict_text(end, detail, Lang::Zh))
        }
        (None, Some(message)) => bilingual(message, translate(message, Lang::Zh)),
        (None, None) => return empty_text(),
    };
    bilingual(format!(": {en}"), format!("：{zh}"))
}
