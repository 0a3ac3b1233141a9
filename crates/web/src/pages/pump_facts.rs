//! The definition of a pump job in words.

use rondel_core::spec::{PumpMode, PumpSpec, UntilSpec};
use rondel_core::time::format_duration;
use rondel_core::{JobSpec, words};

use super::schedule_text::schedules;
use super::texts::Texts;

/// Names and values for the list of facts.
pub(super) fn pump_facts(pump: &PumpSpec, t: &'static Texts) -> Vec<(&'static str, String)> {
    let items = pump.items.count().to_string();
    let mode = match pump.mode {
        PumpMode::Sleep => t.pump_mode_sleep,
        PumpMode::NotSleep => t.pump_mode_not_sleep,
    };
    let bounds = [(t.pump_fact_per_executor, pump.per_executor), (t.pump_fact_per_group, pump.items_per_group)];
    let bounds = bounds.into_iter().filter_map(|(word, bound)| Some((word, t.pump_at_most(bound?))));
    let mut facts = vec![(t.pump_fact_items, items), (t.pump_fact_groups, pump.groups.to_string())];
    facts.extend(bounds);
    facts.extend([
        (t.pump_fact_threads, pump.threads.to_string()),
        (t.pump_fact_fetch, pump.fetch.to_string()),
        (t.pump_fact_batch, pump.batch.to_string()),
        (t.pump_fact_mode, mode.to_owned()),
        (t.pump_fact_waits, format!("{}, {}", format_duration(pump.idle), format_duration(pump.pause))),
        (t.pump_fact_hand_over, format_duration(pump.hand_over)),
    ]);
    facts
}

/// The text about the end of a pump job, which is appended to the text about its start; `None` for other jobs.
pub(super) fn end_text(spec: &JobSpec, t: &Texts) -> Option<String> {
    let pump = spec.pump.as_ref()?;
    Some(match &pump.until {
        None => t.pump_until_stopped.to_owned(),
        Some(UntilSpec::Word(_)) => t.pump_until_empty.to_owned(),
        Some(UntilSpec::Cron(end)) => {
            let zone = schedules(spec).iter().find_map(|schedule| schedule.time_zone.clone());
            let zone = end.time_zone.clone().or(zone);
            let end =
                rondel_core::spec::ScheduleSpec { cron: Some(end.cron.clone()), time_zone: zone, ..Default::default() };
            t.pump_until_at(words::schedule_spec(&end, t.lang()).or(end.cron).unwrap_or_default())
        }
    })
}
