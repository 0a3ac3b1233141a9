//! Why a job ran or did not run at an instant, in a sentence.

use std::time::Duration;

use super::{Entry, Facts, Range, Verdict, account};
use crate::cron::Tz;
use crate::job::Job;
use crate::run::{Reason, Run, RunStatus};
use crate::schedule::{Kind, just_before};
use crate::time::Timestamp;
use crate::words::{Lang, moment};

/// How far around an instant the nearest fires are looked for, step by step.
const WINDOWS_SECS: [u64; 5] = [60, 3_600, 86_400, 32 * 86_400, 366 * 86_400];

/// What is known about one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// What became of the fire of this instant; `None` where nothing was planned and nothing ran.
    pub entry: Option<Entry>,
    /// Where nothing was planned: the nearest fire before, within a year …
    pub before: Option<Timestamp>,
    /// … and the nearest one after.
    pub after: Option<Timestamp>,
    /// The answer in English.
    pub en: String,
    /// The answer in Chinese.
    pub zh: String,
}

impl Why {
    /// The answer in a language.
    #[must_use]
    pub fn sentence(&self, lang: Lang) -> &str {
        match lang {
            Lang::En => &self.en,
            Lang::Zh => &self.zh,
        }
    }
}

/// Why a job ran or did not run at an instant.
///
/// Of the rows, those of the instant and the span that reaches it are enough; the fires nearby are found by the
/// definitions alone.
#[must_use]
pub fn why(facts: &Facts<'_>, at: Timestamp) -> Why {
    let entry = account(facts, Range { from: at, to: at, limit: 1 }).entries.into_iter().next();
    let definition = facts.definitions.iter().rfind(|definition| definition.from < at).or(facts.definitions.first());
    let job = definition.map(|definition| &definition.job);
    let zone = job.and_then(|job| job.timetable.schedules.first()).map_or(Tz::UTC, |schedule| schedule.zone);
    let speaker = Speaker { facts, zone, at };
    if let Some(entry) = entry {
        let row = |id| facts.rows.iter().find(|row| row.id == id);
        let (en, zh) = speaker.verdict(&entry.verdict, row);
        return Why { entry: Some(entry), before: None, after: None, en, zh };
    }
    let (before, after) = (nearest_before(facts, at), nearest_after(facts, at));
    let (en, zh) = speaker.nothing(job, before, after);
    Why { entry: None, before, after, en, zh }
}

fn nearest_before(facts: &Facts<'_>, at: Timestamp) -> Option<Timestamp> {
    WINDOWS_SECS.iter().find_map(|seconds| {
        let mut from = at - Duration::from_secs(*seconds);
        let mut found = None;
        // An account that ends before its range has told thousands of instants: the windows before this one had none.
        for _ in 0..64 {
            let part = account(facts, Range { from, to: just_before(at), limit: usize::MAX });
            found = part.entries.iter().rfind(|entry| entry.verdict.is_fire()).map(|entry| entry.last).or(found);
            match part.next {
                Some(next) => from = next,
                None => break,
            }
        }
        found
    })
}

fn nearest_after(facts: &Facts<'_>, at: Timestamp) -> Option<Timestamp> {
    WINDOWS_SECS.iter().find_map(|seconds| {
        let range = Range { from: at, to: at + Duration::from_secs(*seconds), limit: usize::MAX };
        account(facts, range).entries.iter().find(|entry| entry.verdict.is_fire()).map(|entry| entry.first)
    })
}

/// Says things about one instant, in English and Chinese.
struct Speaker<'a> {
    facts: &'a Facts<'a>,
    zone: Tz,
    at: Timestamp,
}

type Said = (String, String);

fn said(en: impl Into<String>, zh: impl Into<String>) -> Said {
    (en.into(), zh.into())
}

impl Speaker<'_> {
    fn moment(&self, at: Timestamp) -> String {
        moment(self.zone, at)
    }

    fn verdict<'r>(&self, verdict: &Verdict, row: impl Fn(crate::RunId) -> Option<&'r Run>) -> Said {
        let at = self.moment(self.at);
        match verdict {
            Verdict::Row { run, status, reason, planned } => self.row(row(*run), (*status, *reason), *planned),
            Verdict::Span { run, reason } => self.span(row(*run), *reason),
            Verdict::Calendar { calendar, day, moved_to } => self.calendar(calendar, day.as_deref(), *moved_to),
            Verdict::Paused => said("It did not run: the job was paused.", "没有执行：当时任务已暂停。"),
            Verdict::Undecided => said(
                format!("It has not run yet: it was due at {at}, and no server has taken it up so far."),
                format!("尚未执行：应在 {at} 执行，目前还没有服务器接手。"),
            ),
            Verdict::Planned => said(format!("It will run at {at}."), format!("将在 {at} 执行。")),
            Verdict::Removed => said(
                "Nobody can tell any more: records that old are removed.",
                "已无法查证：这么久以前的记录已被清理。",
            ),
            Verdict::Missing => said(
                format!("There is no record of the fire of {at}, and there ought to be one: please report it."),
                format!("没有 {at} 这次触发的记录，而本应有记录：请反馈此问题。"),
            ),
        }
    }

    fn row(&self, row: Option<&Run>, (status, reason): (RunStatus, Option<Reason>), planned: bool) -> Said {
        let (mut en, mut zh) = match status {
            RunStatus::Pending | RunStatus::Waiting => self.open(row, reason),
            RunStatus::Running => {
                let (on, started) = (self.executor(row), self.started(row));
                said(
                    format!("It is running: it began at {started}{}.", on.0),
                    format!("正在执行：{started} 开始{}。", on.1),
                )
            }
            RunStatus::Skipped => not_run(reason),
            RunStatus::Cancelled => self.cancelled(row),
            RunStatus::Succeeded | RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown => {
                self.ended(row, status)
            }
        };
        if !planned && reason != Some(Reason::Changed) {
            en.push_str(" The definition that held then does not plan this instant.");
            zh.push_str("当时生效的定义并未安排这一时刻。");
        }
        (en, zh)
    }

    fn open(&self, row: Option<&Run>, reason: Option<Reason>) -> Said {
        let due_at = row.map_or(self.at, |row| row.due_at);
        let due = self.moment(due_at);
        if due_at > self.facts.now {
            let attempt = row.map_or(1, |row| row.attempt);
            let again = reason.filter(|_| attempt > 1).map_or((String::new(), String::new()), |reason| {
                said(
                    format!(" (attempt {attempt}: {})", because(reason).0),
                    format!("（第 {attempt} 次尝试：{}）", because(reason).1),
                )
            });
            return said(format!("It will run at {due}{}.", again.0), format!("将在 {due} 执行{}。", again.1));
        }
        said(
            format!("It has not begun yet: it is due since {due} and waits for its turn or for an executor."),
            format!("尚未开始：{due} 已到期，正在等待轮到它或等待执行器。"),
        )
    }

    fn ended(&self, row: Option<&Run>, status: RunStatus) -> Said {
        let (on, started) = (self.executor(row), self.started(row));
        let message = row.and_then(|row| row.message.as_deref()).filter(|message| !message.is_empty());
        let tail =
            message.map_or((String::new(), String::new()), |text| said(format!(": {text}"), format!("：{text}")));
        let (en, zh) = match status {
            RunStatus::Failed => ("failed", "失败"),
            RunStatus::TimedOut => ("timed out", "超时"),
            RunStatus::Unknown => ("and nobody can tell how it ended", "结果无从得知"),
            RunStatus::Pending
            | RunStatus::Waiting
            | RunStatus::Running
            | RunStatus::Succeeded
            | RunStatus::Cancelled
            | RunStatus::Skipped => ("succeeded", "成功"),
        };
        if row.is_some_and(|row| row.started_at.is_none()) && status != RunStatus::Succeeded {
            return said(format!("It did not run: {en}{}.", tail.0), format!("没有执行：{zh}{}。", tail.1));
        }
        let tail = if status == RunStatus::Succeeded { (String::new(), String::new()) } else { tail };
        said(
            format!("It ran at {started}{}, {en}{}.", on.0, tail.0),
            format!("已于 {started} 执行{}，{zh}{}。", on.1, tail.1),
        )
    }

    fn cancelled(&self, row: Option<&Run>) -> Said {
        let by = row.and_then(|row| row.cancel_by.as_deref());
        let by =
            by.map_or((String::new(), String::new()), |who| said(format!(" by {who}"), format!("（操作人 {who}）")));
        if row.is_some_and(|row| row.started_at.is_some()) {
            let (on, started) = (self.executor(row), self.started(row));
            return said(
                format!("It ran at {started}{} and was cancelled{}.", on.0, by.0),
                format!("已于 {started} 执行{}，后被取消{}。", on.1, by.1),
            );
        }
        said(format!("It did not run: it was cancelled{}.", by.0), format!("没有执行：已被取消{}。", by.1))
    }

    fn span(&self, row: Option<&Run>, reason: Option<Reason>) -> Said {
        let (mut en, mut zh) = not_run(reason);
        if let Some((row, end)) =
            row.and_then(|row| Some((row, row.span_end_at?))).filter(|(row, _)| row.span_count > 1)
        {
            let (first, last) = (self.moment(row.fire_at), self.moment(end));
            en.push_str(&format!(" So it went for {} fires from {first} to {last}.", row.span_count));
            zh.push_str(&format!("从 {first} 到 {last} 共 {} 次触发都是如此。", row.span_count));
        }
        (en, zh)
    }

    fn calendar(&self, calendar: &str, day: Option<&str>, moved_to: Option<Timestamp>) -> Said {
        let name = day.map_or((String::new(), String::new()), |day| said(format!(" ({day})"), format!("（{day}）")));
        match moved_to {
            Some(to) => {
                let to = self.moment(to);
                said(
                    format!("It did not run then: the calendar {calendar:?}{} moves this fire to {to}.", name.0),
                    format!("当时没有执行：日历 {calendar:?}{} 把这次触发移到了 {to}。", name.1),
                )
            }
            None => said(
                format!("It did not run: the calendar {calendar:?} removes this fire{}.", name.0),
                format!("没有执行：日历 {calendar:?} 排除了这次触发{}。", name.1),
            ),
        }
    }

    fn executor(&self, row: Option<&Run>) -> Said {
        let name = row.and_then(|row| row.executor.as_deref());
        name.map_or((String::new(), String::new()), |name| said(format!(" on {name}"), format!("（执行器 {name}）")))
    }

    fn started(&self, row: Option<&Run>) -> String {
        self.moment(row.and_then(|row| row.started_at).unwrap_or(self.at))
    }

    fn nothing(&self, job: Option<&Job>, before: Option<Timestamp>, after: Option<Timestamp>) -> Said {
        let at = self.moment(self.at);
        let first = self.facts.definitions.first().map(|definition| definition.from);
        let (mut en, mut zh) = match (self.facts.deleted_at, first) {
            (Some(deleted), _) if self.at > deleted => {
                let deleted = self.moment(deleted);
                said(
                    format!("Nothing was planned at {at}: the job was deleted at {deleted}"),
                    format!("{at} 没有安排：任务已于 {deleted} 删除"),
                )
            }
            (_, Some(first)) if self.at <= first => {
                let first = self.moment(first);
                said(
                    format!("Nothing was planned at {at}: the definition that is known first was saved at {first}"),
                    format!("{at} 没有安排：已知最早的定义保存于 {first}"),
                )
            }
            _ => self.nothing_planned(job, &at),
        };
        for (moment, words) in
            [(before, ("the fire before is", "前一次触发是")), (after, ("the next one is", "下一次是"))]
        {
            if let Some(moment) = moment.map(|moment| self.moment(moment)) {
                en.push_str(&format!(", {} {moment}", words.0));
                zh.push_str(&format!("，{} {moment}", words.1));
            }
        }
        (en + ".", zh + "。")
    }

    fn nothing_planned(&self, job: Option<&Job>, at: &str) -> Said {
        let past = self.at <= self.facts.now;
        let (was, had) = if past { ("was", "没有安排") } else { ("is", "没有安排") };
        let schedules = job.map_or(&[][..], |job| &job.timetable.schedules);
        let why = match schedules.first().map(|schedule| &schedule.kind) {
            None => {
                said(": the job has no schedule and runs only when it is asked to", "：任务没有调度，只在被触发时执行")
            }
            Some(Kind::After(after)) => {
                let parents = after.parents.join(", ");
                said(format!(": the job follows {parents}"), format!("：任务跟在 {parents} 之后执行"))
            }
            Some(Kind::Delay(_)) => {
                said(": the job runs a while after the end of its run before", "：任务在上一次执行结束一段时间后执行")
            }
            Some(Kind::Cron { .. } | Kind::Every(_) | Kind::At(_)) => (String::new(), String::new()),
        };
        said(format!("Nothing {was} planned at {at}{}", why.0), format!("{at} {had}{}", why.1))
    }
}

fn not_run(reason: Option<Reason>) -> Said {
    let Some(reason) = reason else { return said("It did not run.", "没有执行。") };
    let (en, zh) = because(reason);
    said(format!("It did not run: {en}."), format!("没有执行：{zh}。"))
}

/// What a reason means, as part of a sentence.
const fn because(reason: Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::Misfire => (
            "its instant passed while no server was at work, and the job's misfire policy passes it over",
            "到期时没有服务器在工作，按任务的错过策略跳过",
        ),
        Reason::Overlap => (
            "an earlier run was not over, and the job's overlap policy passes it over",
            "上一次执行尚未结束，按任务的重叠策略跳过",
        ),
        Reason::Calendar => ("a calendar removes it", "被日历排除"),
        Reason::Paused => ("the job was paused", "任务已暂停"),
        Reason::Changed => (
            "the job was changed, and its new definition does not fire at this instant",
            "任务已修改，新的定义在这一时刻不触发",
        ),
        Reason::Deleted => ("the job was deleted", "任务已删除"),
        Reason::NoExecutor => ("no executor was online until the queue timeout", "直到排队超时都没有在线的执行器"),
        Reason::Expired => ("every fit executor was busy until the queue timeout", "直到排队超时所有合适的执行器都忙"),
        Reason::Retry => ("the attempt before failed", "上一次尝试失败"),
        Reason::ExecutorLost => ("the executor was lost with it", "执行器失联"),
        Reason::NotReceived => ("it never reached its executor", "没有送达执行器"),
        Reason::Refused => ("the executors refused it", "执行器拒绝了它"),
        Reason::Requested => ("somebody asked for it", "有人要求如此"),
        Reason::Parent => {
            ("a job that it follows from did not end as its definition wants", "上游任务没有按定义要求的方式结束")
        }
        Reason::Covered => ("a later run of the job took its place", "被该任务更晚的一次执行取代"),
        Reason::Handler => ("its handler passed it over", "处理器自己跳过了它"),
        Reason::Stopped => ("its app or its node was stopped", "应用或节点已停用"),
    }
}
