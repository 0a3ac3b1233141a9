//! A pump job's definition in short form.

use rondel_core::words::counted;
use serde_json::Value;

use crate::client::text_of;

/// A pump in short form: `16 items in 8 groups, until 0 0 6 * * ?`. `None` for a job that is no pump.
pub(super) fn summary_text(pump: &Value) -> Option<String> {
    let count = match &pump["items"] {
        Value::Array(items) => u64::try_from(items.len()).ok(),
        count => count.as_u64().or_else(|| count["count"].as_u64()),
    };
    let (items, groups) = (counted(count?, "item"), counted(pump["groups"].as_u64()?, "group"));
    let pump_end_text = end_text(pump).unwrap_or_else(|| "until it is paused or cancelled".to_owned());
    Some(format!("{items} in {groups}, {pump_end_text}"))
}

/// The schedule of a job, with the end of a pump's window; `always` for a pump without a schedule.
pub(super) fn schedule_text(pump: &Value, schedule: String) -> String {
    if pump.is_null() {
        return schedule;
    }
    let start = if schedule.is_empty() { "always".to_owned() } else { schedule };
    std::iter::once(start).chain(end_text(pump)).collect::<Vec<_>>().join(" ")
}

fn end_text(pump: &Value) -> Option<String> {
    match &pump["until"] {
        Value::Null => None,
        Value::String(event) => Some(format!("until {event}")),
        end => {
            let zone_text = end["time_zone"].as_str().map(|zone| format!(" {zone}")).unwrap_or_default();
            Some(format!("until {}{zone_text}", text_of(&end["cron"])))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pump_in_few_words() {
        let always = json!({"items": {"count": 16}, "groups": 8});
        assert_eq!(summary_text(&always).unwrap(), "16 items in 8 groups, until it is paused or cancelled");
        assert_eq!(schedule_text(&always, String::new()), "always");
        assert_eq!(summary_text(&json!({"items": 16, "groups": 8})), summary_text(&always));
        let nightly = json!({"items": [{"name": "eu"}], "groups": 1, "until": {"cron": "0 0 6 * * ?"}});
        assert_eq!(summary_text(&nightly).unwrap(), "1 item in 1 group, until 0 0 6 * * ?");
        assert_eq!(schedule_text(&nightly, "0 0 22 * * ?".to_owned()), "0 0 22 * * ? until 0 0 6 * * ?");
        let dry = json!({"items": {"count": 2}, "groups": 2, "until": "empty"});
        assert_eq!(schedule_text(&dry, "@daily".to_owned()), "@daily until empty");
        assert_eq!(schedule_text(&Value::Null, "@daily".to_owned()), "@daily");
    }
}
