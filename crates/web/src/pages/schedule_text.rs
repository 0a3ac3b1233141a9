//! Schedules in plain words, together with their expressions and zones.

use rondel_core::spec::{OneOrMany, ScheduleSpec};
use rondel_core::{JobSpec, words};

use super::pump_facts::end_text;
use super::texts::Texts;

#[derive(Clone, Debug)]
pub(crate) struct ScheduleText {
    pub(crate) words: String,
    pub(crate) code: Option<String>,
}

/// Every schedule of a job. Empty for a job that runs only when triggered.
pub(crate) fn schedule_texts(spec: &JobSpec, t: &Texts) -> Vec<ScheduleText> {
    let calendar =
        spec.calendar.as_ref().map(|calendar_use| words::calendar(&calendar_use.name, calendar_use.rule, t.lang()));
    let mut texts: Vec<ScheduleText> =
        schedules(spec).iter().map(|schedule| schedule_text(schedule, calendar.as_deref(), t)).collect();
    if let Some(end_text) = end_text(spec, t) {
        let start_text = texts.pop().unwrap_or_else(|| ScheduleText { words: t.pump_always.to_owned(), code: None });
        texts.push(ScheduleText { words: format!("{} · {end_text}", start_text.words), ..start_text });
    }
    texts
}

/// The schedules as the definition has them.
pub(crate) fn schedules(spec: &JobSpec) -> &[ScheduleSpec] {
    match &spec.schedule {
        None => &[],
        Some(OneOrMany::One(schedule)) => std::slice::from_ref(schedule),
        Some(OneOrMany::Many(schedules)) => schedules,
    }
}

fn schedule_text(schedule: &ScheduleSpec, calendar: Option<&str>, t: &Texts) -> ScheduleText {
    let zone = schedule.time_zone.as_deref().unwrap_or("UTC");
    let code = schedule.cron.as_ref().map(|cron| format!("{cron} · {zone}"));
    let sentence = words::schedule_spec(schedule, t.lang()).or(schedule.cron.clone()).unwrap_or_default();
    let words = std::iter::once(sentence.as_str()).chain(calendar).collect::<Vec<_>>().join(" · ");
    ScheduleText { words, code }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::texts::Lang;
    use super::*;

    #[test]
    fn a_pump_has_an_end_too() {
        let words = |schedule: &str, until: serde_json::Value, lang: Lang| {
            let schedule = if schedule.is_empty() { json!(null) } else { json!({"cron": schedule}) };
            let mut pump = json!({"items": {"count": 2}, "groups": 1});
            if !until.is_null() {
                pump["until"] = until;
            }
            let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule, "pump": pump});
            schedule_texts(&serde_json::from_value::<JobSpec>(spec).unwrap(), lang.texts()).remove(0).words
        };
        let always = "always, from the time it is saved · until it is paused or cancelled";
        assert_eq!(words("", json!(null), Lang::En), always);
        let nightly = words("0 0 22 * * ?", json!({"cron": "0 0 6 * * ?"}), Lang::En);
        assert_eq!(nightly, "at 22:00 every day (UTC) · ends at 06:00 every day (UTC)");
        assert_eq!(words("0 0 22 * * ?", json!("empty"), Lang::Zh), "每天 22:00（UTC） · 直到所有任务项都没有剩余的行");
    }

    #[test]
    fn words_and_code_stand_side_by_side() {
        let spec: JobSpec = serde_json::from_value(json!({
            "name": "a", "app": "b", "handler": "c", "calendar": {"name": "cn"},
            "schedule": [{"cron": "0 30 2 * * ?", "time_zone": "Asia/Shanghai"}, {"every": "90m"}],
        }))
        .unwrap();
        let shown = |lang: Lang| -> Vec<(String, Option<String>)> {
            schedule_texts(&spec, lang.texts()).into_iter().map(|text| (text.words, text.code)).collect()
        };
        let code = Some("0 30 2 * * ? · Asia/Shanghai".to_owned());
        let en = [
            "at 02:30 every day (Asia/Shanghai) · only in the calendar cn",
            "every 1 hour 30 minutes · only in the calendar cn",
        ];
        assert_eq!(shown(Lang::En), [(en[0].to_owned(), code.clone()), (en[1].to_owned(), None)]);
        let zh = ["每天 02:30（Asia/Shanghai） · 仅在日历 cn 之内", "每1小时30分钟 · 仅在日历 cn 之内"];
        assert_eq!(shown(Lang::Zh), [(zh[0].to_owned(), code), (zh[1].to_owned(), None)]);
    }
}
