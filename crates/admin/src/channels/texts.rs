//! The texts of a message, before they are converted to the format of a service.

use rondel_core::Timestamp;
use rondel_core::channel::Values;
use rondel_core::notice::{Notice, NoticeKind, NoticeSubject, Severity, cut};
use rondel_core::words::Lang;

use super::template;

/// Maximum length of a title, in bytes.
const TITLE_BYTES_MAX: usize = 400;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Texts {
    /// One line.
    pub(super) title: String,
    /// A sentence, or the output of the channel's own template.
    pub(super) body: String,
    /// Labels with values; empty if the channel has its own template.
    pub(super) facts: Vec<(&'static str, String)>,
    /// Sample runs, one line each; empty if the channel has its own template.
    pub(super) samples: Vec<String>,
    /// The text and the URL of the link to the console; `None` if the server does not know its own address.
    pub(super) link: Option<(&'static str, String)>,
}

impl Texts {
    /// The default texts, or those of the channel's own templates. `console_url` is the server's address.
    pub(super) fn new(
        notice: &Notice,
        settings: &Values,
        (lang, console_url): (Lang, Option<&str>),
    ) -> Result<Self, String> {
        let url = console_url.map(|base| page_url(base, notice));
        let own_template = |name: &str| settings.get(name).filter(|template| !template.trim().is_empty());
        let render = |name: &str, template: &String| {
            template::render(template, notice, url.as_deref()).map_err(|sentence| format!("{name}: {sentence}"))
        };
        // A template that renders nothing counts as none: services refuse messages without a title or a text.
        let render_own = |name: &str| -> Result<Option<String>, String> {
            let text = own_template(name).map(|own| render(name, own)).transpose()?;
            Ok(text.filter(|text| !text.trim().is_empty()))
        };
        // A title is one line.
        let title = render_own("title_template")?.map(|own| own.split_whitespace().collect::<Vec<_>>().join(" "));
        let title = title.unwrap_or_else(|| default_title(notice, lang));
        let body = render_own("body_template")?;
        let has_own_body = body.is_some();
        let default_body = || {
            let summary = match lang {
                Lang::En => &notice.summary_en,
                Lang::Zh => &notice.summary_zh,
            };
            match notice.description.trim() {
                "" => summary.clone(),
                description => format!("{summary}\n\n{description}"),
            }
        };
        Ok(Self {
            title: cut(&title, TITLE_BYTES_MAX),
            body: body.unwrap_or_else(default_body),
            facts: if has_own_body { Vec::new() } else { facts(notice, lang) },
            samples: if has_own_body { Vec::new() } else { samples(notice) },
            link: url.map(|url| (lang_text(lang, "Open in Rondel", "在 Rondel 中查看"), url)),
        })
    }

    /// All texts except the title as plain text of at most `bytes_max` bytes; the link is never cut.
    pub(super) fn plain_text(&self, bytes_max: usize) -> String {
        let mut lines = vec![self.body.clone()];
        if !self.facts.is_empty() {
            lines.push(String::new());
        }
        lines.extend(self.facts.iter().map(|(label, value)| format!("{label}: {value}")));
        if !self.samples.is_empty() {
            lines.push(String::new());
        }
        lines.extend(self.samples.iter().map(|sample| format!("- {sample}")));
        let link_text = self.link.as_ref().map(|(words, url)| format!("\n\n{words}: {url}")).unwrap_or_default();
        let text = cut(&lines.join("\n"), bytes_max.saturating_sub(link_text.len()));
        text + &link_text
    }
}

const fn lang_text(lang: Lang, en: &'static str, zh: &'static str) -> &'static str {
    match lang {
        Lang::En => en,
        Lang::Zh => zh,
    }
}

fn page_url(console_url: &str, notice: &Notice) -> String {
    format!("{}/n/{}{}", console_url.trim_end_matches('/'), notice.namespace, notice.path)
}

fn default_title(notice: &Notice, lang: Lang) -> String {
    let name = &notice.subject.name;
    let severity = severity_text(notice.severity, lang);
    match (lang, notice.kind) {
        (Lang::En, NoticeKind::Firing) => format!("[{severity}] {name}: {}", notice.rule),
        (Lang::En, NoticeKind::Resolved) => format!("[Resolved] {name}: {}", notice.rule),
        (Lang::En, NoticeKind::Reminder) => format!("[{severity}, still firing] {name}: {}", notice.rule),
        (Lang::En, NoticeKind::Digest) => {
            format!("[{severity}, {}] {name}: {}", occurrence_text(notice, lang), notice.rule)
        }
        (Lang::En, NoticeKind::Escalated) => format!("[{severity}, not acknowledged] {name}: {}", notice.rule),
        (Lang::En, NoticeKind::Acknowledged) => format!("[Acknowledged] {name}: {}", notice.rule),
        (Lang::En, NoticeKind::Test) => format!("[Test] Rondel: {name}"),
        (Lang::En, NoticeKind::Report) => format!("Rondel, last week: {}", notice.namespace),
        (Lang::Zh, NoticeKind::Firing) => format!("【{severity}】{name}：{}", notice.rule),
        (Lang::Zh, NoticeKind::Resolved) => format!("【已恢复】{name}：{}", notice.rule),
        (Lang::Zh, NoticeKind::Reminder) => format!("【{severity}，仍未恢复】{name}：{}", notice.rule),
        (Lang::Zh, NoticeKind::Digest) => {
            format!("【{severity}，{}】{name}：{}", occurrence_text(notice, lang), notice.rule)
        }
        (Lang::Zh, NoticeKind::Escalated) => format!("【{severity}，无人确认】{name}：{}", notice.rule),
        (Lang::Zh, NoticeKind::Acknowledged) => format!("【已确认】{name}：{}", notice.rule),
        (Lang::Zh, NoticeKind::Test) => format!("【测试】Rondel：{name}"),
        (Lang::Zh, NoticeKind::Report) => format!("Rondel 周报：{}", notice.namespace),
    }
}

/// The incident's count, as text. An incident of a group, whose subject is a namespace, counts the subjects in the group, however often each of
/// them fails.
fn occurrence_text(notice: &Notice, lang: Lang) -> String {
    let count = notice.count;
    match (notice.subject.kind, lang) {
        (NoticeSubject::Namespace, Lang::En) => format!("{count} in total"),
        (NoticeSubject::Namespace, Lang::Zh) => format!("共 {count}"),
        (_, Lang::En) => format!("{count} times"),
        (_, Lang::Zh) => format!("共 {count} 次"),
    }
}

const fn severity_text(severity: Severity, lang: Lang) -> &'static str {
    match severity {
        Severity::Critical => lang_text(lang, "Critical", "严重"),
        Severity::Warning => lang_text(lang, "Warning", "警告"),
    }
}

const fn subject_label(kind: NoticeSubject, lang: Lang) -> &'static str {
    match kind {
        NoticeSubject::Job => lang_text(lang, "Job", "任务"),
        NoticeSubject::App => lang_text(lang, "App", "应用"),
        NoticeSubject::Namespace => lang_text(lang, "Namespace", "命名空间"),
        NoticeSubject::Node => lang_text(lang, "Server", "服务器"),
        NoticeSubject::Token => lang_text(lang, "Token", "令牌"),
    }
}

fn facts(notice: &Notice, lang: Lang) -> Vec<(&'static str, String)> {
    let text = |en, zh| lang_text(lang, en, zh);
    let mut facts = vec![(text("Namespace", "命名空间"), notice.namespace.clone())];
    if notice.kind == NoticeKind::Test {
        return facts;
    }
    if notice.kind == NoticeKind::Report {
        facts.push((text("From", "起"), display_time(notice.started_at)));
        facts.push((text("To", "止"), display_time(notice.at)));
        return facts;
    }
    if notice.subject.kind != NoticeSubject::Namespace {
        facts.push((subject_label(notice.subject.kind, lang), notice.subject.name.clone()));
    }
    facts.push((text("Rule", "规则"), notice.rule.clone()));
    facts.push((text("Since", "开始时间"), display_time(notice.started_at)));
    if notice.kind == NoticeKind::Resolved {
        facts.push((text("Resolved at", "恢复时间"), display_time(notice.at)));
    }
    if notice.count > 1 {
        let is_of_namespace = notice.subject.kind == NoticeSubject::Namespace;
        let label = if is_of_namespace { text("In total", "总数") } else { text("Occurrences", "发生次数") };
        facts.push((label, notice.count.to_string()));
    }
    facts
}

/// An instant for display, in UTC and with the zone's name.
fn display_time(at: Timestamp) -> String {
    at.to_utc().map_or_else(|| at.to_string(), |at| at.format("%Y-%m-%d %H:%M:%S UTC").to_string())
}

fn samples(notice: &Notice) -> Vec<String> {
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    notice
        .samples
        .iter()
        .map(|sample| {
            format!("{} {} ({}): {}", display_time(sample.fire_at), sample.job, sample.run, line(&sample.message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rondel_core::IncidentId;
    use rondel_core::alert::{
        ConditionState, Observation, OpenIncidents, RuleSpec, RuleView, Subject, SubjectKind, decide,
    };
    use serde_json::json;

    use super::super::samples::notices;
    use super::*;

    fn texts(kind: NoticeKind, lang: Lang, settings: &[(&str, &str)]) -> Result<Texts, String> {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let notice = notices().into_iter().find(|notice| notice.kind == kind).unwrap();
        Texts::new(&notice, &settings, (lang, Some("https://rondel.example/")))
    }

    #[test]
    fn default_texts_name_the_event_its_place_and_its_start() {
        let firing = texts(NoticeKind::Firing, Lang::En, &[]).unwrap();
        assert_eq!(firing.title, "[Critical] nightly-close: nightly-close-late");
        let plain = firing.plain_text(10_000);
        assert_eq!(
            plain,
            "nightly-close has not succeeded by 06:00 (Europe/Berlin).\n\nNamespace: default\nJob: nightly-close\n\
             Rule: nightly-close-late\nSince: 2026-03-08 07:00:00 UTC\nOccurrences: 3\n\n\
             - 2026-03-08 07:00:00 UTC nightly-close (7399999999001): exit status 1: could not connect to ledger-db\n\
             - 2026-03-08 07:00:00 UTC nightly-close (7399999999002): exit status 1: could not connect to ledger-db\n\n\
             Open in Rondel: https://rondel.example/n/default/alerts"
        );
        let short = firing.plain_text(120);
        assert!(short.len() <= 120 && short.ends_with("…\n\nOpen in Rondel: https://rondel.example/n/default/alerts"));
        let resolved = texts(NoticeKind::Resolved, Lang::Zh, &[]).unwrap();
        assert_eq!(resolved.title, "【已恢复】nightly-close：nightly-close-late");
        assert!(resolved.plain_text(10_000).contains("恢复时间: 2026-03-08 07:15:00 UTC"));
        let titles: Vec<String> =
            NoticeKind::ALL.iter().map(|kind| texts(*kind, Lang::En, &[]).unwrap().title).collect();
        let distinct: std::collections::BTreeSet<&String> = titles.iter().collect();
        assert_eq!(distinct.len(), titles.len(), "{titles:?}");
    }

    #[test]
    fn the_subjects_of_a_group_are_no_occurrences() {
        let mut notice = notices().into_iter().find(|notice| notice.kind == NoticeKind::Digest).unwrap();
        notice.count = 7;
        let made = |notice: &Notice, lang| Texts::new(notice, &Values::default(), (lang, None)).unwrap();
        notice.subject.kind = NoticeSubject::Job;
        assert!(made(&notice, Lang::En).title.contains(", 7 times] "));
        assert!(made(&notice, Lang::Zh).title.contains("，共 7 次】"));
        notice.subject.kind = NoticeSubject::Namespace;
        assert!(made(&notice, Lang::En).title.contains(", 7 in total] "));
        assert!(made(&notice, Lang::Zh).title.contains("，共 7】"));
        assert!(made(&notice, Lang::En).facts.contains(&("In total", "7".to_owned())));
    }

    #[test]
    fn the_link_of_an_incident_leads_to_its_page() {
        let rule = json!({"name": "failing", "condition": {"failed": {}}, "channels": ["ops"]});
        let rule: RuleSpec = serde_json::from_value(rule).unwrap();
        let subject = Subject { kind: SubjectKind::Job, id: 1, name: "close".to_owned(), app: None };
        let state = ConditionState::Holds { since: Timestamp::EPOCH, new_count: 1 };
        let seen = Observation { subject, state, samples: Vec::new() };
        let view = RuleView { spec: &rule, namespace: "pay", missing_channels: &[] };
        let mut next_id = || IncidentId::new(7);
        let decision = decide(view, OpenIncidents::default(), &[seen], &[], (Timestamp::EPOCH, &mut next_id));
        let notice = &decision.messages[0].notice;
        let texts = Texts::new(notice, &Values::default(), (Lang::En, Some("https://rondel.example/"))).unwrap();
        assert_eq!(texts.link.unwrap().1, "https://rondel.example/n/pay/alerts/incidents/7");
    }

    #[test]
    fn the_note_of_a_rule_follows_the_event() {
        let mut notice = notices().into_iter().find(|notice| notice.kind == NoticeKind::Firing).unwrap();
        notice.description = "Call the night desk.\n".to_owned();
        let made = |settings: &[(&str, &str)]| {
            let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Texts::new(&notice, &settings, (Lang::En, None)).unwrap().body
        };
        assert!(made(&[]).ends_with("06:00 (Europe/Berlin).\n\nCall the night desk."), "{}", made(&[]));
        assert_eq!(made(&[("body_template", "{{ description|upper }}")]), "CALL THE NIGHT DESK.\n");
    }

    #[test]
    fn own_templates_take_the_place_of_the_default_texts() {
        let own = [("title_template", "{{ kind }}\n {{ subject.name }}"), ("body_template", "see {{ url }}")];
        let made = texts(NoticeKind::Firing, Lang::En, &own).unwrap();
        assert_eq!((made.title.as_str(), made.facts.len()), ("firing nightly-close", 0));
        assert!(made.body.starts_with("see https://rondel.example/n/default/alerts"));
        let blank = [("title_template", "{{ description }} "), ("body_template", "{{ description }}\n")];
        let default = texts(NoticeKind::Firing, Lang::En, &[]).unwrap();
        assert_eq!(texts(NoticeKind::Firing, Lang::En, &blank).unwrap(), default, "the rule has no description");
        let refused = texts(NoticeKind::Firing, Lang::En, &[("body_template", "{{ nothing }}")]).unwrap_err();
        assert!(refused.starts_with("body_template: "), "{refused}");
    }
}
