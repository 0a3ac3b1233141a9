//! Sentences about one fire, in English and Chinese.

use super::attempts::{attempt_not_begun_sentence, last_begun_attempt, unconfirmed_cancel_sentence};
use super::bilingual::{
    Bilingual, bilingual, empty_text, executor_clause, maintenance_window_text, shadow_mode_text,
    taken_by_calendar_text, trigger_words,
};
use super::context::{RunInContext, undecided_sentence};
use super::history::{FireInput, FireVerdict};
use super::lateness::lateness_text;
use super::why::AnswerSubject;
use crate::cron::Tz;
use crate::job::Job;
use crate::reason::message::{failed_child_text, text_after_timed_out, translate};
use crate::reason::unknown::unreported_text;
use crate::reason::words::{reason_text, retry_text, short_length, verdict_text, wait_zh, waits_for};
use crate::reason::{Reason, ReasonDetail};
use crate::run::Run;
use crate::schedule::Kind;
use crate::status::{RunStatus, Trigger};
use crate::time::Timestamp;
use crate::words::{Lang, instant_text};

/// Writes the sentences about the fire of one instant.
pub(super) struct SentenceWriter<'a> {
    facts: &'a FireInput<'a>,
    job: Option<&'a Job>,
    zone: Tz,
    at: Timestamp,
}

impl<'a> SentenceWriter<'a> {
    pub(super) fn new(facts: &'a FireInput<'a>, at: Timestamp) -> Self {
        let definition = facts.definitions.iter().rfind(|definition| definition.from < at);
        let job = definition.or(facts.definitions.first()).map(|definition| &definition.job);
        let zone = job.and_then(|job| job.timetable.schedules.first()).map_or(Tz::UTC, |schedule| schedule.zone);
        Self { facts, job, zone, at }
    }

    fn instant_text(&self, at: Timestamp) -> String {
        instant_text(self.zone, at)
    }

    /// The start of an answer about a fire that the question did not name by its instant.
    pub(super) fn opening_text(&self, subject: AnswerSubject) -> Bilingual {
        let at = self.instant_text(self.at);
        match subject {
            AnswerSubject::OpenRun => bilingual(format!("Open run of {at}: "), format!("未结束的运行 {at}：")),
            AnswerSubject::LastFire => bilingual(format!("Last fire {at}: "), format!("最近一次触发 {at}：")),
            AnswerSubject::NearRun(trigger) => {
                let (en, zh) = trigger_words(trigger);
                bilingual(format!("Run of {at}, {en}: "), format!("{at} 的运行（{zh}）："))
            }
            AnswerSubject::NextFire => bilingual("No fire so far. ", "至今没有触发。"),
            AnswerSubject::Instant | AnswerSubject::Nothing => empty_text(),
        }
    }

    pub(super) fn verdict_sentence(&self, verdict: &FireVerdict) -> Bilingual {
        let at = self.instant_text(self.at);
        let row = |id| self.facts.rows.iter().find(|row| row.id == id);
        let is_ahead = self.at > self.facts.now;
        match verdict {
            FireVerdict::Row { run, status, reason, is_planned, .. } => {
                self.row_sentence(row(*run), (*status, *reason), *is_planned)
            }
            FireVerdict::Span { run, reason, .. } => self.span_sentence(row(*run), *reason),
            FireVerdict::Calendar { calendar, day, moved_to } => {
                let moved_to = moved_to.map(|to| self.instant_text(to));
                taken_by_calendar_text(
                    (calendar.as_str(), day.as_deref()),
                    moved_to.as_deref(),
                    is_ahead.then_some(at.as_str()),
                )
            }
            FireVerdict::Paused if is_ahead => bilingual(
                format!("It will not run at {at}: the job is paused."),
                format!("{at} 不会执行：任务已暂停。"),
            ),
            FireVerdict::Paused => bilingual("It did not run: the job was paused.", "没有执行：当时任务已暂停。"),
            FireVerdict::Maintenance { ends_at, fires } => {
                maintenance_window_text(&at, &self.instant_text(*ends_at), *fires)
            }
            FireVerdict::Undecided => undecided_sentence(&at, self.facts.context, |at| self.instant_text(at)),
            FireVerdict::Planned if self.is_shadow(Trigger::Cron) => shadow_mode_text(&at),
            FireVerdict::Planned => bilingual(format!("It will run at {at}."), format!("将在 {at} 执行。")),
            FireVerdict::Removed => {
                bilingual("Unknown: records of that time have been removed.", "已无法查证：这么久以前的记录已被清理。")
            }
            FireVerdict::Missing => bilingual(
                format!("There is no record of the fire of {at}, although there should be one: please report it."),
                format!("没有 {at} 这次触发的记录，而本应有记录：请反馈此问题。"),
            ),
        }
    }

    /// Whether a run of this instant is not sent, because the job is in shadow mode.
    fn is_shadow(&self, trigger: Trigger) -> bool {
        self.job.is_some_and(|job| job.mode.is_shadow_run(trigger, self.at))
    }

    fn row_sentence(
        &self,
        row: Option<&Run>,
        (status, reason): (RunStatus, Option<Reason>),
        is_planned: bool,
    ) -> Bilingual {
        let (mut en, mut zh) = match status {
            _ if row.is_some_and(Run::awaits_roll_call) => bilingual(
                "It is not known yet whether it began: its server stopped and handed nothing over. The executors are being \
                 asked; it is known when each of them has answered or counts as lost.",
                "尚不清楚是否已经开始：原服务器中断，没有移交。正在询问各执行器，等它们都答复或被视为失联后即可确定。",
            ),
            RunStatus::Pending | RunStatus::Waiting => self.open_sentence(row, reason),
            RunStatus::Running => self.running_sentence(row, reason),
            RunStatus::Skipped => self.skipped_sentence(row, reason),
            RunStatus::Cancelled => self.cancelled_sentence(row, reason),
            RunStatus::Succeeded | RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown => {
                self.ended_sentence(row, (status, reason))
            }
        };
        if !is_planned && reason != Some(Reason::Changed) {
            en.push_str(" The definition of that time does not plan this instant.");
            zh.push_str("当时生效的定义并未安排这一时刻。");
        }
        if let Some(run_in_context) = self.run_in_context(row) {
            let (more_en, more_zh) = run_in_context.sentences();
            en.push_str(&more_en);
            zh.push_str(&more_zh);
        }
        (en, zh)
    }

    /// The run with the context of the answer; `None` without a row or without a context.
    fn run_in_context<'r>(
        &'r self,
        row: Option<&'r Run>,
    ) -> Option<RunInContext<'r, impl Fn(Timestamp) -> String + 'r>> {
        let (run, context) = row.zip(self.facts.context)?;
        Some(RunInContext { run, context, now: self.facts.now, instant_text: |at| self.instant_text(at) })
    }

    fn open_sentence(&self, row: Option<&Run>, reason: Option<Reason>) -> Bilingual {
        let due_at = row.map_or(self.at, |row| row.due_at);
        let due_text = self.instant_text(due_at);
        let retry_text = retry_reason_text(row, reason);
        if due_at > self.facts.now && row.is_some_and(|row| self.is_shadow(row.trigger)) {
            return shadow_mode_text(&due_text);
        }
        if due_at > self.facts.now {
            return bilingual(
                format!("It will run at {due_text}{}.", retry_text.0),
                format!("将在 {due_text} 执行{}。", retry_text.1),
            );
        }
        let waits = |lang| row.and_then(|row| row.detail.as_deref()).and_then(|detail| waits_for(detail, lang));
        let wait_words = waits(Lang::En).zip(waits(Lang::Zh));
        let wait_words = wait_words.or_else(|| self.run_in_context(row)?.default_wait());
        let (en, zh) = wait_words.unwrap_or_else(|| bilingual("for its turn or for an executor", "轮到它或有执行器"));
        let waiting_time = self.facts.now.since(due_at);
        let (long_en, long_zh) = (short_length(waiting_time, Lang::En), short_length(waiting_time, Lang::Zh));
        bilingual(
            format!(
                "It has not begun yet: it has been due for {long_en}, since {due_text}, and waits {en}{}.",
                retry_text.0
            ),
            format!("尚未开始：{due_text} 已到期 {long_zh}，正在{}{}。", wait_zh(&zh), retry_text.1),
        )
    }

    fn running_sentence(&self, row: Option<&Run>, reason: Option<Reason>) -> Bilingual {
        let (executor_text, start_text, late_text, retry_text) =
            (executor_clause_of(row), self.start_text(row), lateness_text(row), retry_reason_text(row, reason));
        if row.is_some_and(Run::awaits_children) {
            return bilingual(
                format!(
                    "It ran at {start_text}{}{}, and waits for the runs that follow from it to end.",
                    executor_text.0, late_text.0
                ),
                format!("已于 {start_text} 执行{}{}，正在等待由它引出的运行结束。", executor_text.1, late_text.1),
            );
        }
        if row.is_some_and(|row| row.started_at.is_none() && !row.is_root()) {
            // Either the server of the run ended, and an executor that may have the run has not answered yet; or the executor that has the
            // run reports no start.
            return bilingual(
                format!(
                    "It may be running{}: it was sent, and when it began is not known{}.",
                    executor_text.0, retry_text.0
                ),
                format!("可能正在执行{}：已发送，尚不知何时开始{}。", executor_text.1, retry_text.1),
            );
        }
        bilingual(
            format!("It is running: it began at {start_text}{}{}{}.", executor_text.0, late_text.0, retry_text.0),
            format!("正在执行：{start_text} 开始{}{}{}。", executor_text.1, late_text.1, retry_text.1),
        )
    }

    /// The answer for a run whose last attempt did not begin. An earlier attempt may have begun.
    fn not_begun_sentence(&self, row: Option<&Run>, reason_text: &Bilingual) -> Bilingual {
        match row.and_then(|row| Some((last_begun_attempt(self.facts.attempts, row)?, row))) {
            Some((begun_attempt, row)) => {
                attempt_not_begun_sentence(begun_attempt, row, reason_text, |at| self.instant_text(at))
            }
            None => bilingual(format!("It did not run: {}.", reason_text.0), format!("没有执行：{}。", reason_text.1)),
        }
    }

    fn skipped_sentence(&self, row: Option<&Run>, reason: Option<Reason>) -> Bilingual {
        let reason_clause = reason_clause(row, reason);
        let Some((en, zh)) = reason_clause else { return bilingual("It did not run.", "没有执行。") };
        if row.is_some_and(|row| row.started_at.is_some()) {
            let (executor_text, start_text) = (executor_clause_of(row), self.start_text(row));
            return bilingual(
                format!("It began at {start_text}{}, and {en}.", executor_text.0),
                format!("已于 {start_text} 开始{}，{zh}。", executor_text.1),
            );
        }
        self.not_begun_sentence(row, &bilingual(en, zh))
    }

    fn ended_sentence(&self, row: Option<&Run>, (status, reason): (RunStatus, Option<Reason>)) -> Bilingual {
        let (executor_text, start_text) = (executor_clause_of(row), self.start_text(row));
        let cause_text = cause_clause(row, (status, reason));
        let (en, zh) = match status {
            RunStatus::Failed => ("failed", "失败"),
            RunStatus::TimedOut => ("timed out", "超时"),
            RunStatus::Unknown => ("and its outcome is unknown", "结果未知"),
            RunStatus::Pending
            | RunStatus::Waiting
            | RunStatus::Running
            | RunStatus::Succeeded
            | RunStatus::Cancelled
            | RunStatus::Skipped => ("succeeded", "成功"),
        };
        // In older rows, the start of a run that was never received is the instant of sending.
        let is_sent_only = status == RunStatus::Unknown && reason == Some(Reason::NotReceived);
        if is_sent_only || row.is_some_and(|row| row.started_at.is_none()) && status != RunStatus::Succeeded {
            return match (status, reason) {
                (RunStatus::Unknown, _) => bilingual(
                    format!("It may have run{}, and its outcome is unknown{}.", executor_text.0, cause_text.0),
                    format!("可能执行过{}，结果未知{}。", executor_text.1, cause_text.1),
                ),
                (_, Some(Reason::ExecutorLost)) => bilingual(
                    format!("It may have run{}{}.", executor_text.0, cause_text.0),
                    format!("可能执行过{}{}。", executor_text.1, cause_text.1),
                ),
                _ => match reason_clause(row, reason) {
                    Some(reason_text) if row.is_some_and(|row| row.attempt > 1) => {
                        self.not_begun_sentence(row, &reason_text)
                    }
                    _ => bilingual(
                        format!("It did not run: {en}{}.", cause_text.0),
                        format!("没有执行：{zh}{}。", cause_text.1),
                    ),
                },
            };
        }
        let (late_text, attempt_count_text) = (lateness_text(row), attempt_text(row));
        bilingual(
            format!(
                "It ran at {start_text}{}{}, {en}{}{}.",
                executor_text.0, late_text.0, attempt_count_text.0, cause_text.0
            ),
            format!(
                "已于 {start_text} 执行{}{}，{zh}{}{}。",
                executor_text.1, late_text.1, attempt_count_text.1, cause_text.1
            ),
        )
    }

    fn cancelled_sentence(&self, row: Option<&Run>, reason: Option<Reason>) -> Bilingual {
        let actor_text = row.and_then(|row| row.cancel_by.as_deref());
        let actor_text = actor_text
            .map_or_else(empty_text, |actor| bilingual(format!(" by {actor}"), format!("（操作人 {actor}）")));
        if reason == Some(Reason::ExecutorLost) {
            return unconfirmed_cancel_sentence(row, &actor_text, &executor_clause_of(row), |at| self.instant_text(at));
        }
        let reason = reason.filter(|reason| *reason != Reason::Requested);
        let reason_clause = reason_clause(row, reason);
        let (en, zh) = reason_clause.unwrap_or_else(|| {
            bilingual(format!("it was cancelled{}", actor_text.0), format!("已被取消{}", actor_text.1))
        });
        if row.is_some_and(|row| row.started_at.is_some()) {
            let (executor_text, start_text) = (executor_clause_of(row), self.start_text(row));
            return match reason {
                Some(_) => bilingual(
                    format!("It ran at {start_text}{} and was cancelled: {en}.", executor_text.0),
                    format!("已于 {start_text} 执行{}，后被取消：{zh}。", executor_text.1),
                ),
                None => bilingual(
                    format!("It ran at {start_text}{} and was cancelled{}.", executor_text.0, actor_text.0),
                    format!("已于 {start_text} 执行{}，后被取消{}。", executor_text.1, actor_text.1),
                ),
            };
        }
        self.not_begun_sentence(row, &bilingual(en, zh))
    }

    fn span_sentence(&self, row: Option<&Run>, reason: Option<Reason>) -> Bilingual {
        let (mut en, mut zh) = self.skipped_sentence(row, reason);
        if let Some((row, end)) =
            row.and_then(|row| Some((row, row.span_end_at?))).filter(|(row, _)| row.span_count > 1)
        {
            let (first_text, last_text) = (self.instant_text(row.fire_at), self.instant_text(end));
            en.push_str(&format!(" The same holds for all {} fires from {first_text} to {last_text}.", row.span_count));
            zh.push_str(&format!("从 {first_text} 到 {last_text} 共 {} 次触发都是如此。", row.span_count));
        }
        (en, zh)
    }

    fn start_text(&self, row: Option<&Run>) -> String {
        self.instant_text(row.and_then(|row| row.started_at).unwrap_or(self.at))
    }

    pub(super) fn nothing_planned_sentence(&self, before: Option<Timestamp>, after: Option<Timestamp>) -> Bilingual {
        let at = self.instant_text(self.at);
        let first_known = self.facts.definitions.first().map(|definition| definition.from);
        let (mut en, mut zh) = match (self.facts.deleted_at, first_known) {
            (Some(deleted_at), _) if self.at > deleted_at => {
                let deleted_text = self.instant_text(deleted_at);
                bilingual(
                    format!("Nothing was planned at {at}: the job was deleted at {deleted_text}"),
                    format!("{at} 没有安排：任务已于 {deleted_text} 删除"),
                )
            }
            (_, Some(first_known)) if self.at <= first_known => {
                let first_text = self.instant_text(first_known);
                bilingual(
                    format!("Nothing was planned at {at}: the first known definition was saved at {first_text}"),
                    format!("{at} 没有安排：已知最早的定义保存于 {first_text}"),
                )
            }
            _ => {
                let verb = if self.at <= self.facts.now { "was" } else { "is" };
                let (en, zh) =
                    self.no_fire_clause().map_or_else(empty_text, |(en, zh)| (format!(": {en}"), format!("：{zh}")));
                bilingual(format!("Nothing {verb} planned at {at}{en}"), format!("{at} 没有安排{zh}"))
            }
        };
        for (fire_at, words) in
            [(before, ("the previous fire is", "前一次触发是")), (after, ("the next one is", "下一次是"))]
        {
            if let Some(fire) = fire_at.map(|fire_at| self.instant_text(fire_at)) {
                en.push_str(&format!(", {} {fire}", words.0));
                zh.push_str(&format!("，{} {fire}", words.1));
            }
        }
        (en + ".", zh + "。")
    }

    pub(super) fn never_run_sentence(&self) -> Bilingual {
        let (en, zh) = self.no_fire_clause().unwrap_or_else(|| bilingual("no fire is planned", "没有安排任何触发"));
        bilingual(format!("It has not run so far: {en}."), format!("至今没有执行过：{zh}。"))
    }

    /// Why the definition alone plans no instants.
    fn no_fire_clause(&self) -> Option<Bilingual> {
        let schedules = self.job.map_or(&[][..], |job| &job.timetable.schedules);
        match schedules.first().map(|schedule| &schedule.kind) {
            None if self.job.is_none() => {
                Some(bilingual("no definition of the job is known from that time", "没有该时间的任务定义"))
            }
            None if self.job.is_some_and(|job| job.pump.is_some()) => Some(bilingual(
                "the pump has no schedule: it begins when it is saved or resumed, and goes on until it ends",
                "泵任务没有调度：保存或恢复时开始，一直运行到结束",
            )),
            None => Some(bilingual(
                "the job has no schedule and runs only when it is triggered",
                "任务没有调度，只在被触发时执行",
            )),
            Some(Kind::After(after)) => {
                let (en, zh) = (after.parents.join(", "), after.parents.join("、"));
                Some(bilingual(format!("the job follows {en}"), format!("任务跟在 {zh} 之后执行")))
            }
            Some(Kind::Delay(_)) => Some(bilingual(
                "the job runs a fixed time after the end of its previous run",
                "任务在上一次执行结束一段时间后执行",
            )),
            Some(Kind::Cron { .. } | Kind::Every(_) | Kind::At(_)) => self.removed_by_calendar_clause(),
        }
    }

    /// Names the calendar if it removes every fire that the schedules plan from now on.
    fn removed_by_calendar_clause(&self) -> Option<Bilingual> {
        let (table, anchor, now) = (&self.job?.timetable, self.facts.anchor, self.facts.now);
        let calendar = table.calendar.as_ref()?.calendar.name();
        let is_planned = table.next_without_calendar(anchor, now).is_some();
        (is_planned && table.next_after(anchor, now).is_none()).then(|| {
            bilingual(
                format!("the calendar {calendar:?} removes every fire of the schedule"),
                format!("日历 {calendar:?} 排除了调度的所有触发"),
            )
        })
    }
}

/// The part after the outcome: the clause of the reason, or else the executor's message.
fn cause_clause(row: Option<&Run>, (status, reason): (RunStatus, Option<Reason>)) -> Bilingual {
    let message = row.and_then(|row| row.message.as_deref()).filter(|message| !message.is_empty());
    if status == RunStatus::Succeeded {
        return empty_text();
    }
    if let Some(overrun_text) =
        message.filter(|_| status == RunStatus::TimedOut && reason.is_none()).and_then(text_after_timed_out)
    {
        return overrun_text;
    }
    let no_detail = ReasonDetail::default();
    let detail = row.and_then(|row| row.detail.as_deref()).unwrap_or(&no_detail);
    let in_both_languages = |words: &dyn Fn(Lang) -> Option<String>| words(Lang::En).zip(words(Lang::Zh));
    // A pump that failed at its end has a cause of its own, which is not the reason of the end.
    let is_failed_pump = status == RunStatus::Failed && reason.is_some_and(Reason::ends_window);
    let end_text = match reason {
        _ if status != RunStatus::Unknown && !is_failed_pump => None,
        Some(reason) => in_both_languages(&|lang| Some(verdict_text((status, reason), detail, lang))),
        None => in_both_languages(&|lang| unreported_text(detail, lang)),
    };
    let child_text = message.filter(|_| row.is_some_and(|row| row.open_children.is_some())).and_then(failed_child_text);
    let chinese = |text| child_text.unwrap_or_else(|| translate(text, Lang::Zh));
    let cause =
        end_text.or_else(|| reason_clause(row, reason)).or_else(|| message.map(|text| bilingual(text, chinese(text))));
    cause.map_or_else(empty_text, |(en, zh)| bilingual(format!(": {en}"), format!("：{zh}")))
}

/// The clause of the run's reason in both languages.
fn reason_clause(row: Option<&Run>, reason: Option<Reason>) -> Option<Bilingual> {
    let no_detail = ReasonDetail::default();
    let detail = row.and_then(|row| row.detail.as_deref()).unwrap_or(&no_detail);
    let reason = reason?;
    let (en, zh) = bilingual(reason_text(reason, detail, Lang::En), reason_text(reason, detail, Lang::Zh));
    let message = row.and_then(|row| row.message.as_deref()).filter(|message| !message.is_empty());
    let is_folded = row.is_some_and(|row| row.reason_in_words().is_none());
    Some(match (reason, message) {
        // A handler gives its own reason to skip, which is added to the clause of the server.
        (Reason::Handler, Some(text)) => {
            bilingual(format!("{en}: {text}"), format!("{zh}：{}", translate(text, Lang::Zh)))
        }
        // A broadcast has the reason of its shards, but not the parameters of that reason.
        (_, Some(text)) if is_folded => bilingual(text, translate(text, Lang::Zh)),
        _ => (en, zh),
    })
}

fn executor_clause_of(row: Option<&Run>) -> Bilingual {
    executor_clause(row.and_then(|row| row.executor.as_deref()))
}

/// Why an open run has a further attempt; empty for the first attempt.
fn retry_reason_text(row: Option<&Run>, reason: Option<Reason>) -> Bilingual {
    let Some((row, reason)) = row.filter(|row| row.attempt > 1).zip(reason) else { return empty_text() };
    let no_detail = ReasonDetail::default();
    let detail = row.detail.as_deref().unwrap_or(&no_detail);
    let attempt = row.attempt;
    bilingual(
        format!(" (attempt {attempt}: {})", retry_text(reason, detail, Lang::En)),
        format!("（第 {attempt} 次尝试：{}）", retry_text(reason, detail, Lang::Zh)),
    )
}

/// Names the attempt that ended the run; empty for the first attempt.
fn attempt_text(row: Option<&Run>) -> Bilingual {
    let Some(row) = row.filter(|row| row.attempt > 1) else { return empty_text() };
    let (attempt, lost) = (row.attempt, row.lost_count);
    match lost {
        0 => bilingual(format!(" on attempt {attempt}"), format!("（第 {attempt} 次尝试）")),
        1 => bilingual(
            format!(" on attempt {attempt} (an executor was lost during an earlier one)"),
            format!("（第 {attempt} 次尝试，此前有 1 次尝试因执行器失联而中断）"),
        ),
        _ => bilingual(
            format!(" on attempt {attempt} (executors were lost during {lost} earlier ones)"),
            format!("（第 {attempt} 次尝试，此前有 {lost} 次尝试因执行器失联而中断）"),
        ),
    }
}
