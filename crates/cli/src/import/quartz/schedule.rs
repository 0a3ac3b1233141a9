//! The schedule of a trigger, and whether it fires.

use rondel_core::Timestamp;
use serde_json::{Map, Value};

use super::fields::Draft;
use super::zone;
use crate::import::dump::Row;
use crate::import::result::Outcome::{Changed, Kept, NotNeeded, NotSupported};

/// When a trigger fires.
#[derive(Clone, Copy)]
enum Timing<'a> {
    /// By the expression of this row.
    Cron(&'a Row),
    Once,
    /// Every `period_ms` milliseconds: `repeat_count` more times after the first fire, or without end if `repeat_count` is negative.
    Every {
        period_ms: i64,
        repeat_count: i64,
    },
}

impl<'a> Draft<'a> {
    /// Sets the schedule, or returns why there is none.
    pub(super) fn set_schedule(&mut self) -> Result<(), String> {
        if self.source.trigger.is_none() {
            return Ok(());
        }
        let timing = self.read_timing()?;
        let (start, end) = (self.instant_of("start_time"), self.last_fire(timing));
        self.check_not_ended(timing, end)?;
        let mut schedule = match timing {
            Timing::Cron(row) => self.cron_schedule(row),
            Timing::Once | Timing::Every { .. } => self.simple_schedule(timing, start),
        };
        self.record_trigger(
            "trigger_type",
            Kept,
            if matches!(timing, Timing::Once) { "schedule.at" } else { "schedule" },
        );
        self.record_state();
        if let Timing::Once = timing {
            self.record_once(start);
        } else {
            self.set_bounds([("start_time", "start_at", start), ("end_time", "end_at", end)], &mut schedule);
        }
        self.set("schedule", schedule);
        Ok(())
    }

    fn instant_of(&self, column: &str) -> Option<Timestamp> {
        Some(Self::number(self.source.trigger, column)).filter(|ms| *ms > 0).map(Timestamp::from_millis)
    }

    fn read_timing(&mut self) -> Result<Timing<'a>, String> {
        let row = self.source.timing;
        match (self.trigger_text("trigger_type").as_str(), row) {
            ("CRON", Some(row)) => Ok(Timing::Cron(row)),
            ("SIMPLE", Some(_)) => {
                let (repeat_count, period_ms) =
                    (Self::number(row, "repeat_count"), Self::number(row, "repeat_interval"));
                if repeat_count == 0 {
                    return Ok(Timing::Once);
                }
                if period_ms < 1000 || period_ms % 1000 != 0 {
                    self.record(row, "repeat_interval", NotSupported, "whole seconds are the shortest");
                    return Err(format!("it fires each {period_ms} ms: an interval has whole seconds here"));
                }
                Ok(Timing::Every { period_ms, repeat_count })
            }
            (kind @ ("CRON" | "SIMPLE"), None) => Err(format!("its row in {kind}_TRIGGERS is not there")),
            (unknown_kind, _) => {
                self.record_trigger("trigger_type", NotSupported, "has no counterpart");
                Err(format!("triggers of the kind {unknown_kind:?} have no counterpart: write it as a cron expression"))
            }
        }
    }

    /// The last instant at which the trigger may fire: its end or, if that is earlier, the last of a limited number of
    /// fires. `None` if it fires without end.
    fn last_fire(&self, timing: Timing<'_>) -> Option<Timestamp> {
        let end = self.instant_of("end_time");
        let Timing::Every { period_ms, repeat_count } = timing else { return end };
        let Some(start) = self.instant_of("start_time") else { return end };
        // At its end instant a simple trigger no longer fires, but a job does. If a fire falls on that instant, the
        // job's end is the fire before it.
        let is_fire = |end: Timestamp| end.as_millis().saturating_sub(start.as_millis()) % period_ms == 0;
        let end =
            end.map(
                |end| {
                    if is_fire(end) { Timestamp::from_millis(end.as_millis().saturating_sub(period_ms)) } else { end }
                },
            );
        let last_repetition =
            || Timestamp::from_millis(start.as_millis().saturating_add(repeat_count.saturating_mul(period_ms)));
        end.into_iter().chain((repeat_count > 0).then(last_repetition)).min()
    }

    /// Refuses a trigger that will not fire again: the server would refuse a whole file with such a job.
    fn check_not_ended(&self, timing: Timing<'_>, end: Option<Timestamp>) -> Result<(), String> {
        if self.trigger_text("trigger_state") == "COMPLETE" {
            return Err("is complete in Quartz: it has fired for the last time".to_owned());
        }
        if let Timing::Once = timing {
            let has_fired = Self::number(self.source.trigger, "next_fire_time") <= 0;
            return if has_fired { Err("fires once, and has fired".to_owned()) } else { Ok(()) };
        }
        match end {
            Some(end) if end <= self.source.options.now => Err(format!("fires no more: its end was {end}")),
            _ => Ok(()),
        }
    }

    fn cron_schedule(&mut self, row: &Row) -> Map<String, Value> {
        let own_zone = row.get("time_zone_id");
        let zone = own_zone.map_or_else(|| self.source.options.zone.to_owned(), |zone| zone::zone_of_java(zone));
        let (outcome, counterpart) = match own_zone.and_then(|own_zone| zone::zone_of_short_id(own_zone)) {
            Some(full_zone) => (Changed, format!("schedule.time_zone {full_zone}, which this short id of Java means")),
            None => (Kept, format!("schedule.time_zone {zone}")),
        };
        self.record(Some(row), "cron_expression", Kept, "schedule.cron");
        self.record(Some(row), "time_zone_id", outcome, counterpart);
        let cron = row.get("cron_expression").cloned().unwrap_or_default();
        Map::from_iter([("cron".to_owned(), cron.into()), ("time_zone".to_owned(), zone.into())])
    }

    fn simple_schedule(&mut self, timing: Timing<'_>, start: Option<Timestamp>) -> Map<String, Value> {
        let row = self.source.timing;
        let (repeat_count, schedule) = match timing {
            Timing::Every { period_ms, repeat_count } => {
                (repeat_count, Map::from_iter([("every".to_owned(), format!("{}s", period_ms / 1000).into())]))
            }
            Timing::Cron(_) | Timing::Once => {
                let at = start.map_or_else(String::new, |at| at.to_string());
                (0, Map::from_iter([("at".to_owned(), at.into()), ("if_past".to_owned(), "run".into())]))
            }
        };
        let counterpart = match repeat_count {
            0 => "schedule.at: once",
            1.. => "schedule.end_at: the instant of the last one",
            _ => "no end",
        };
        self.record(row, "repeat_interval", Kept, "schedule.every, from start_at on");
        self.record(row, "repeat_count", Kept, counterpart);
        self.record(row, "times_triggered", NotNeeded, "follows from the instants");
        schedule
    }

    fn set_bounds(&mut self, bounds: [(&str, &str, Option<Timestamp>); 2], schedule: &mut Map<String, Value>) {
        for (column, field, at) in bounds {
            let counterpart = at.map_or_else(|| "no bound".to_owned(), |at| format!("schedule.{field} {at}"));
            self.record_trigger(column, Kept, counterpart);
            if let Some(at) = at {
                schedule.insert(field.to_owned(), at.to_string().into());
            }
        }
    }

    /// Records the outcome for the instant of a trigger that fires once and has not fired yet.
    fn record_once(&mut self, at: Option<Timestamp>) {
        self.record_trigger("end_time", NotNeeded, "it fires once");
        let has_passed = at.is_some_and(|at| at <= self.source.options.now);
        match (has_passed, self.is_enabled) {
            (false, _) => self.record_trigger("start_time", Kept, "schedule.at"),
            (true, true) => self.record_trigger(
                "start_time",
                Changed,
                "has passed, and it has not fired: it runs immediately when the definition is saved enabled",
            ),
            (true, false) => self.record_trigger(
                "start_time",
                Changed,
                "has passed, and it has not fired: give it another schedule.at before you enable it",
            ),
        }
    }

    fn record_state(&mut self) {
        for column in ["next_fire_time", "prev_fire_time"] {
            self.record_trigger(column, NotNeeded, "follows from the schedule; the past stays there");
        }
        let (outcome, counterpart) = match self.trigger_text("trigger_state").as_str() {
            "PAUSED" | "PAUSED_BLOCKED" => {
                self.is_enabled = false;
                (Kept, "not enabled")
            }
            "ERROR" => {
                self.is_enabled = false;
                (Changed, "not enabled: Quartz could not make its job, and fired it no more")
            }
            _ => (Kept, "not paused"),
        };
        self.record_trigger("trigger_state", outcome, counterpart);
        if !self.trigger_text("calendar_name").is_empty() {
            self.is_enabled = false;
            self.record_trigger(
                "calendar_name",
                NotSupported,
                "is a serialized object of Java, which is not read. The job is not enabled, for it would fire at times that the calendar excludes: \
                 make a calendar by rondel calendar apply, name it in the definition, and enable it",
            );
        }
    }
}
