//! The trial of an alert rule as of now, in its form.

use rondel_admin::rules::DryRun;
use rondel_core::alert::{RuleSpec, deadline, sentence};

use super::sentences::localized;
use super::texts::Texts;
use super::zones;

pub(super) struct RuleTrial {
    pub(super) sentence: String,
    pub(super) count: u64,
    pub(super) subjects: Vec<String>,
    /// How many jobs were checked, if not all were.
    pub(super) looked_at: Option<u64>,
    /// A sentence with the instant of the trial, and with the instant that the rule's time of day means.
    pub(super) evaluation_text: String,
    pub(super) warnings: Vec<String>,
}

impl RuleTrial {
    pub(super) fn new(spec: &RuleSpec, dry_run: DryRun, t: &Texts) -> Self {
        Self {
            sentence: sentence::rule(spec, t.lang()),
            evaluation_text: evaluation_text(&dry_run, t),
            count: dry_run.count,
            subjects: dry_run.subjects.into_iter().map(|subject| subject.name).collect(),
            looked_at: dry_run.looked_at,
            warnings: localized_all(&dry_run.warnings, t),
        }
    }
}

pub(super) fn localized_all(sentences: &[String], t: &Texts) -> Vec<String> {
    sentences.iter().map(|sentence| localized(t.lang(), sentence).into_owned()).collect()
}

/// The instant of a trial, and the instant that the rule's time of day means. Both are shown on the clock of the rule's zone.
fn evaluation_text(dry_run: &DryRun, t: &Texts) -> String {
    let minute_text = |zone: &str, at| deadline::minute_text(zone, at).unwrap_or_default();
    let Some(resolved_deadline) = &dry_run.deadline else {
        let zone = zones::clock_and_zone().1.name();
        return t.alerts_evaluated(minute_text(zone, dry_run.at), zone);
    };
    let zone = resolved_deadline.zone.as_str();
    let counting_text =
        t.alerts_evaluated_from(minute_text(zone, dry_run.at), minute_text(zone, resolved_deadline.counts_from), zone);
    match resolved_deadline.next {
        Some(next) => format!("{counting_text} {}", t.alerts_evaluated_next(minute_text(zone, next))),
        None => counting_text,
    }
}

#[cfg(test)]
mod tests {
    use rondel_admin::rules::ResolvedDeadline;
    use rondel_core::Timestamp;

    use super::super::texts::Lang;
    use super::*;

    #[test]
    fn the_trial_of_a_deadline_names_its_zone_and_the_first_run_that_counts() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let deadline = ResolvedDeadline {
            zone: "Europe/Berlin".to_owned(),
            counts_from: at("2026-11-21T05:00:00Z"),
            next: Some(at("2026-11-23T05:00:00Z")),
        };
        let dry_run = DryRun {
            subjects: Vec::new(),
            count: 0,
            looked_at: None,
            at: at("2026-11-22T01:00:00Z"),
            deadline: Some(deadline),
            warnings: Vec::new(),
        };
        assert_eq!(
            evaluation_text(&dry_run, Lang::En.texts()),
            "Evaluated at 2026-11-22 02:00 Europe/Berlin as if that were the deadline: a success of a run planned from \
             2026-11-21 06:00 on counts. The next deadline is 2026-11-23 06:00."
        );
        assert_eq!(
            evaluation_text(&dry_run, Lang::Zh.texts()),
            "评估时刻：2026-11-22 02:00（Europe/Berlin），视为截止时刻；2026-11-21 06:00 起计划的运行成功才算数。 下一个截止时刻：2026-11-23 06:00。"
        );
    }
}
