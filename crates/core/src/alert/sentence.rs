//! Rules and incidents in words, in both languages.

use super::decide::RuleView;
use super::disk;
use super::incident::{Incident, IncidentState};
use super::rule::{Condition, RuleSpec, Scope, SubjectKind};
use crate::calendar::Weekday;
use crate::cron::parse_zone;
use crate::local;
use crate::notice::{self, Notice, NoticeKind, NoticeSubject};
use crate::reason::Reason;
use crate::time::Timestamp;
use crate::words::{Lang, length};

#[must_use]
pub fn scope_name<'a>(scope: &'a Scope, namespace: &'a str) -> &'a str {
    match scope {
        Scope::All => namespace,
        Scope::App(name) | Scope::Label(name) | Scope::Job(name) => name,
    }
}

/// A rule as one sentence without its channels: "nightly-close has not succeeded by 06:00 Europe/Berlin".
#[must_use]
pub fn rule(spec: &RuleSpec, lang: Lang) -> String {
    let subject = match (&spec.scope, lang) {
        _ if spec.condition.is_about_servers() => String::new(),
        (Scope::All, Lang::En) => scope_words(&spec.condition, "any app", "all jobs together", "any job"),
        (Scope::All, Lang::Zh) => scope_words(&spec.condition, "任一应用", "全部任务", "任一任务"),
        (Scope::App(app), Lang::En) => {
            scope_words(&spec.condition, &format!("app {app}"), &format!("app {app}"), &format!("any job of {app}"))
        }
        (Scope::App(app), Lang::Zh) => scope_words(
            &spec.condition,
            &format!("应用 {app}"),
            &format!("应用 {app}"),
            &format!("应用 {app} 的任一任务"),
        ),
        (Scope::Label(label), Lang::En) => format!("any job labelled {label}"),
        (Scope::Label(label), Lang::Zh) => format!("带标签 {label} 的任一任务"),
        (Scope::Job(job), _) => job.clone(),
    };
    let condition_text = condition(&spec.condition, lang);
    match lang {
        _ if subject.is_empty() => condition_text,
        Lang::En => format!("{subject} {condition_text}"),
        Lang::Zh => {
            format!("{subject}{}{condition_text}", if subject.ends_with(|c: char| c.is_ascii()) { " " } else { "" })
        }
    }
}

fn scope_words(condition: &Condition, app_words: &str, all_words: &str, each_job_words: &str) -> String {
    match condition {
        Condition::NoExecutor { .. } => app_words,
        Condition::FailureRate { .. } | Condition::LedgerGrowth { .. } => all_words,
        _ => each_job_words,
    }
    .to_owned()
}

/// A condition as a part of a sentence, after its subject.
#[must_use]
pub fn condition(condition: &Condition, lang: Lang) -> String {
    match lang {
        Lang::En => english_text(condition),
        Lang::Zh => chinese_text(condition),
    }
}

fn english_text(condition: &Condition) -> String {
    match condition {
        Condition::Failed {} => "failed".to_owned(),
        Condition::FailuresInRow { count: 1 } => "failed".to_owned(),
        Condition::FailuresInRow { count } => format!("failed {count} times in a row"),
        Condition::FailureRate { percent, window, min_runs } => {
            let min_runs_text = if *min_runs > 1 { format!(" (of at least {min_runs})") } else { String::new() };
            format!("failed in {percent}% or more of the runs of the last {}{min_runs_text}", length(*window, Lang::En))
        }
        Condition::Skipped { reasons } if reasons.is_empty() => "was skipped".to_owned(),
        Condition::Skipped { reasons } => {
            let words: Vec<String> = reasons.iter().map(|reason| reason.as_str().replace('_', " ")).collect();
            format!("was skipped ({})", words.join(", "))
        }
        Condition::Late { by } => format!("is late by more than {}", length(*by, Lang::En)),
        Condition::NotSucceededBy { time, zone, weekdays, calendar } => {
            let days = days_text(weekdays, calendar.as_deref(), Lang::En);
            format!("has not succeeded by {time} {zone}{days}")
        }
        Condition::NoSuccessFor { length: duration } => {
            format!("has not succeeded for {}", length(*duration, Lang::En))
        }
        Condition::RunningLonger { than: Some(than), .. } => {
            format!("has been running for longer than {}", length(*than, Lang::En))
        }
        Condition::RunningLonger { times_p95, .. } => {
            format!("has been running for longer than {} × p95", times_p95.unwrap_or(1))
        }
        Condition::NoExecutor { handler: None } => "has no executor".to_owned(),
        Condition::NoExecutor { handler: Some(handler) } => format!("has no executor with handler {handler}"),
        Condition::NodeLost {} => "a server was lost".to_owned(),
        Condition::LoopFailing { length: duration } => {
            format!("a loop of a server has been failing for {}", length(*duration, Lang::En))
        }
        Condition::TokenExpiring { within } => format!("a token ends within {}", length(*within, Lang::En)),
        Condition::CertificateExpiring { within } => {
            format!("a TLS certificate ends within {}", length(*within, Lang::En))
        }
        Condition::DiskLow { free_percent, free } => {
            format!("a disk has less than {} free", disk::format(*free_percent, *free))
        }
        Condition::LedgerGrowth { runs, window } => {
            format!("had {runs} or more runs in the last {}", length(*window, Lang::En))
        }
    }
}

fn chinese_text(condition: &Condition) -> String {
    match condition {
        Condition::Failed {} => "失败".to_owned(),
        Condition::FailuresInRow { count: 1 } => "失败".to_owned(),
        Condition::FailuresInRow { count } => format!("连续失败 {count} 次"),
        Condition::FailureRate { percent, window, min_runs } => {
            let min_runs_text =
                if *min_runs > 1 { format!("（至少 {min_runs} 次运行）") } else { String::new() };
            format!("最近{}的失败率达到 {percent}%{min_runs_text}", length(*window, Lang::Zh))
        }
        Condition::Skipped { reasons } if reasons.is_empty() => "被跳过".to_owned(),
        Condition::Skipped { reasons } => {
            let words: Vec<&str> = reasons.iter().map(|reason| reason_in_chinese(*reason)).collect();
            format!("被跳过（{}）", words.join("、"))
        }
        Condition::Late { by } => format!("延迟超过{}", length(*by, Lang::Zh)),
        Condition::NotSucceededBy { time, zone, weekdays, calendar } => {
            let days = days_text(weekdays, calendar.as_deref(), Lang::Zh);
            format!("在 {time}（{zone}{days}）前没有成功")
        }
        Condition::NoSuccessFor { length: duration } => format!("已有{}没有成功", length(*duration, Lang::Zh)),
        Condition::RunningLonger { than: Some(than), .. } => format!("已运行超过{}", length(*than, Lang::Zh)),
        Condition::RunningLonger { times_p95, .. } => format!("已运行超过 {} × p95", times_p95.unwrap_or(1)),
        Condition::NoExecutor { handler: None } => "没有执行器".to_owned(),
        Condition::NoExecutor { handler: Some(handler) } => format!("没有带处理器 {handler} 的执行器"),
        Condition::NodeLost {} => "有服务器失联".to_owned(),
        Condition::LoopFailing { length: duration } => {
            format!("服务器的某个循环已持续失败{}", length(*duration, Lang::Zh))
        }
        Condition::TokenExpiring { within } => format!("有令牌将在{}内到期", length(*within, Lang::Zh)),
        Condition::CertificateExpiring { within } => format!("TLS 证书将在{}内到期", length(*within, Lang::Zh)),
        Condition::DiskLow { free_percent, free } => {
            format!("磁盘可用空间不足 {}", disk::format(*free_percent, *free))
        }
        Condition::LedgerGrowth { runs, window } => {
            format!("最近{}的运行达到 {runs} 次", length(*window, Lang::Zh))
        }
    }
}

const fn reason_in_chinese(reason: Reason) -> &'static str {
    match reason {
        Reason::Misfire => "错过触发",
        Reason::Overlap => "与较早的运行重叠",
        Reason::Paused => "任务已暂停",
        Reason::Changed => "任务已修改",
        Reason::Deleted => "任务已删除",
        Reason::NoExecutor => "没有执行器",
        Reason::Expired => "等待超时",
        Reason::Retry => "重试",
        Reason::ExecutorLost => "执行器失联",
        Reason::NotReceived => "没有送达",
        Reason::Requested => "按请求",
        Reason::Parent => "上游任务的结果",
        Reason::Covered => "被更晚的运行取代",
        Reason::Handler => "处理器跳过",
        Reason::Stopped => "应用已停用",
        Reason::Maintenance => "维护窗口",
        Reason::Shadow => "影子模式",
        Reason::WindowOver => "窗口已结束",
        Reason::Dry => "没有剩余的行",
        Reason::Moved => "转到另一个执行器",
    }
}

fn days_text(weekdays: &[Weekday], calendar: Option<&str>, lang: Lang) -> String {
    let words: Vec<&str> = weekdays
        .iter()
        .map(|day| match (lang, day) {
            (Lang::En, Weekday::Mon) => "Mon",
            (Lang::En, Weekday::Tue) => "Tue",
            (Lang::En, Weekday::Wed) => "Wed",
            (Lang::En, Weekday::Thu) => "Thu",
            (Lang::En, Weekday::Fri) => "Fri",
            (Lang::En, Weekday::Sat) => "Sat",
            (Lang::En, Weekday::Sun) => "Sun",
            (Lang::Zh, Weekday::Mon) => "周一",
            (Lang::Zh, Weekday::Tue) => "周二",
            (Lang::Zh, Weekday::Wed) => "周三",
            (Lang::Zh, Weekday::Thu) => "周四",
            (Lang::Zh, Weekday::Fri) => "周五",
            (Lang::Zh, Weekday::Sat) => "周六",
            (Lang::Zh, Weekday::Sun) => "周日",
        })
        .collect();
    let mut text = match (words.is_empty(), lang) {
        (true, _) => String::new(),
        (false, Lang::En) => format!(" on {}", words.join(", ")),
        (false, Lang::Zh) => format!("，{}", words.join("、")),
    };
    if let Some(calendar) = calendar {
        text.push_str(&match lang {
            Lang::En => format!(" on the days of {calendar}"),
            Lang::Zh => format!("，日历 {calendar}"),
        });
    }
    text
}

/// How an incident ended, as the text after "Resolved: ".
fn end_text(spec: &RuleSpec, incident: &Incident, lang: Lang) -> String {
    let name = &incident.subject.name;
    if incident.subject.kind == SubjectKind::Group {
        let condition = condition(&spec.condition, lang);
        return match lang {
            Lang::En => format!("all of the {} in {name} that {condition}", incident.count),
            Lang::Zh => format!("{name} 中合并的 {} 项（{condition}）", incident.count),
        };
    }
    match lang {
        Lang::En => english_end(&spec.condition, name, incident.resolved_at),
        Lang::Zh => chinese_end(&spec.condition, name, incident.resolved_at),
    }
}

/// The time of day in the zone of a rule; `None` for an unknown zone, or without an instant.
fn time_text_in(zone: &str, at: Option<Timestamp>) -> Option<String> {
    Some(local::time_at(parse_zone(zone).ok()?, at?).format("%H:%M").to_string())
}

fn english_end(condition: &Condition, name: &str, at: Option<Timestamp>) -> String {
    match condition {
        Condition::Failed {} | Condition::FailuresInRow { .. } | Condition::NoSuccessFor { .. } => {
            format!("{name} succeeded")
        }
        Condition::NotSucceededBy { zone, .. } => match time_text_in(zone, at) {
            Some(time) => format!("{name} succeeded, seen at {time} {zone}"),
            None => format!("{name} succeeded"),
        },
        Condition::FailureRate { percent, window, .. } => {
            format!("the failure rate of {name} is below {percent}% over the last {}", length(*window, Lang::En))
        }
        Condition::Skipped { .. } => format!("a later run of {name} began"),
        Condition::Late { .. } => format!("the late run of {name} has begun or ended"),
        Condition::RunningLonger { .. } => format!("the long run of {name} has ended"),
        Condition::NoExecutor { handler: None } => format!("{name} has an executor"),
        Condition::NoExecutor { handler: Some(handler) } => format!("{name} has an executor with handler {handler}"),
        Condition::NodeLost {} => format!("server {name} is back, or was removed"),
        Condition::LoopFailing { .. } => format!("{name} works"),
        Condition::TokenExpiring { .. } => format!("token {name} was replaced or removed"),
        Condition::CertificateExpiring { .. } => format!("{name} has a certificate that ends later"),
        Condition::DiskLow { free_percent, free } => {
            format!("{name} has more than {} free", disk::format(*free_percent, *free))
        }
        Condition::LedgerGrowth { runs, window } => {
            format!("{name} had fewer than {runs} runs in the last {}", length(*window, Lang::En))
        }
    }
}

fn chinese_end(condition: &Condition, name: &str, at: Option<Timestamp>) -> String {
    match condition {
        Condition::Failed {} | Condition::FailuresInRow { .. } | Condition::NoSuccessFor { .. } => {
            format!("{name} 已成功")
        }
        Condition::NotSucceededBy { zone, .. } => match time_text_in(zone, at) {
            Some(time) => format!("{name} 已成功，确认于 {time}（{zone}）"),
            None => format!("{name} 已成功"),
        },
        Condition::FailureRate { percent, window, .. } => {
            format!("{name} 最近{}的失败率已低于 {percent}%", length(*window, Lang::Zh))
        }
        Condition::Skipped { .. } => format!("{name} 已开始后续运行"),
        Condition::Late { .. } => format!("{name} 的延迟运行已开始或结束"),
        Condition::RunningLonger { .. } => format!("{name} 的长时间运行已结束"),
        Condition::NoExecutor { handler: None } => format!("{name} 已有执行器"),
        Condition::NoExecutor { handler: Some(handler) } => format!("{name} 已有带处理器 {handler} 的执行器"),
        Condition::NodeLost {} => format!("服务器 {name} 已恢复或已移除"),
        Condition::LoopFailing { .. } => format!("{name} 运行正常"),
        Condition::TokenExpiring { .. } => format!("令牌 {name} 已更换或移除"),
        Condition::CertificateExpiring { .. } => format!("{name} 的证书有效期已延长"),
        Condition::DiskLow { free_percent, free } => {
            format!("{name} 的可用空间已高于 {}", disk::format(*free_percent, *free))
        }
        Condition::LedgerGrowth { runs, window } => {
            format!("{name} 最近{}的运行少于 {runs} 次", length(*window, Lang::Zh))
        }
    }
}

/// An incident as one sentence, in English and in Chinese. If the rule is off, a resolved incident is described as closed: the rule did not
/// see how it ended.
#[must_use]
pub fn incident(spec: &RuleSpec, incident: &Incident) -> (String, String) {
    let name = &incident.subject.name;
    if incident.state == IncidentState::Resolved {
        return match spec.enabled {
            true => {
                let (en, zh) = (end_text(spec, incident, Lang::En), end_text(spec, incident, Lang::Zh));
                (format!("Resolved: {en}."), format!("已恢复：{zh}。"))
            }
            false => {
                let en = format!("Closed: {name} is not watched by the rule any more.");
                (en, format!("已关闭：规则不再监视 {name}。"))
            }
        };
    }
    let (english, chinese) = (condition(&spec.condition, Lang::En), condition(&spec.condition, Lang::Zh));
    let (en, zh) = match incident.subject.kind {
        SubjectKind::Group => (
            format!("{} more in {name}: {english}", incident.count),
            format!("{name} 另有 {} 项：{chinese}", incident.count),
        ),
        SubjectKind::Node | SubjectKind::Token => (format!("{name}: {english}"), format!("{name}：{chinese}")),
        SubjectKind::Job | SubjectKind::App | SubjectKind::Namespace => {
            (format!("{name} {english}"), format!("{name} {chinese}"))
        }
    };
    let times = incident.count;
    let times_min = match spec.condition {
        Condition::FailuresInRow { count } => count.into(),
        _ => 1,
    };
    match incident.subject.kind {
        SubjectKind::Group => (format!("{en}."), format!("{zh}。")),
        _ if times > times_min => (format!("{en} ({times} times)."), format!("{zh}（共 {times} 次）。")),
        _ => (format!("{en}."), format!("{zh}。")),
    }
}

pub(super) fn notice(rule: RuleView<'_>, incident: &Incident, kind: NoticeKind, at: Timestamp) -> Notice {
    let (summary_en, summary_zh) = self::incident(rule.spec, incident);
    let subject_kind = match incident.subject.kind {
        SubjectKind::Job => NoticeSubject::Job,
        SubjectKind::App => NoticeSubject::App,
        SubjectKind::Namespace | SubjectKind::Group => NoticeSubject::Namespace,
        SubjectKind::Node => NoticeSubject::Node,
        SubjectKind::Token => NoticeSubject::Token,
    };
    let name = match incident.subject.kind {
        SubjectKind::Group => rule.namespace.to_owned(),
        _ => incident.subject.name.clone(),
    };
    let notice = Notice {
        kind,
        incident: Some(incident.id),
        rule: rule.spec.name.clone(),
        condition: rule.spec.condition.word().to_owned(),
        namespace: rule.namespace.to_owned(),
        subject: notice::Subject { kind: subject_kind, name },
        severity: rule.spec.severity,
        summary_en,
        summary_zh,
        description: match kind {
            NoticeKind::Resolved => String::new(),
            _ => rule.spec.description.clone(),
        },
        started_at: incident.started_at,
        at,
        count: incident.count,
        samples: incident.samples.clone(),
        path: format!("/alerts/incidents/{}", incident.id),
    };
    notice.bounded()
}
