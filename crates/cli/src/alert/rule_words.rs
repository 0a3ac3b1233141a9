//! Texts about a rule: warnings, the result of a dry run, and refusals that name flags.

use rondel_core::Timestamp;
use rondel_core::alert::deadline;
use serde_json::{Value, json};

use crate::client::text_of;

/// Prints the warnings about a rule that was saved.
pub(super) fn print_warnings(rule: &Value) {
    for warning in rule["warnings"].as_array().into_iter().flatten() {
        crate::output::print_message(&format!("warning: {}", text_of(warning)));
    }
}

/// Describes the result of a dry run: the warnings or, if there are none, for how many subjects the rule would hold; then
/// when it was evaluated and when its next deadline is, if it has deadlines.
pub(super) fn dry_run_text(dry_run: &Value) -> String {
    let warnings: Vec<String> = dry_run["warnings"].as_array().into_iter().flatten().map(text_of).collect();
    let mut lines = vec![match warnings.is_empty() {
        true => format!("{}: would hold for {}", text_of(&dry_run["sentence"]), text_of(&dry_run["count"])),
        false => format!("{}: {}", text_of(&dry_run["sentence"]), warnings.join("; ")),
    }];
    let deadline_fields = &dry_run["deadline"];
    let zone = deadline_fields["zone"].as_str().unwrap_or("UTC");
    let minute_text_of = |value: &Value| {
        let instant = value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
        instant.and_then(|instant| deadline::minute_text(zone, instant)).unwrap_or_default()
    };
    let evaluated_text = format!("evaluated at {} {zone}", minute_text_of(&dry_run["evaluated_at"]));
    lines.push(match deadline_fields.is_object() {
        true => format!(
            "{evaluated_text} as if that were the deadline: a success of a run planned from {} on counts",
            minute_text_of(&deadline_fields["counts_from"])
        ),
        false => evaluated_text,
    });
    if deadline_fields["next"].is_string() {
        lines.push(format!("the next deadline is {} {zone}", minute_text_of(&deadline_fields["next"])));
    }
    lines.join("\n")
}

/// Replaces each JSON pointer in a refusal with the flag that sets the field, if there is such a flag.
pub(super) fn with_flags(problem: &str) -> String {
    let Ok(mut document) = serde_json::from_str::<Value>(problem) else { return problem.to_owned() };
    for error in document["errors"].as_array_mut().into_iter().flatten() {
        let flag = error["pointer"].as_str().and_then(flag_for_pointer);
        if let Some(flag) = flag {
            error["pointer"] = json!(flag);
        }
    }
    document.to_string()
}

/// The flag that sets the field at a JSON pointer; `None` if no flag sets it.
fn flag_for_pointer(pointer: &str) -> Option<&'static str> {
    let path_parts: Vec<&str> = pointer.trim_start_matches('/').split('/').collect();
    Some(match path_parts.as_slice() {
        ["name"] => "NAME",
        ["description"] => "--description",
        ["scope", "job"] => "--job",
        ["scope", "app"] => "--app",
        ["scope", "label"] => "--label",
        ["scope"] => "--job, --app or --label",
        ["channels", ..] => "--channel",
        ["repeat"] => "--repeat",
        ["digest"] => "--digest",
        ["group_over"] => "--group-over",
        ["escalate", "after"] => "--escalate-after",
        ["escalate", ..] => "--escalate-to",
        ["condition", "failures_in_row", "count"] => "--failures-in-row",
        ["condition", "failure_rate", "percent"] => "--failure-rate",
        ["condition", _, "min_runs"] => "--min-runs",
        ["condition", _, "window"] => "--window",
        ["condition", "skipped", ..] => "--reason",
        ["condition", "late", ..] => "--late-by",
        ["condition", "not_succeeded_by", "time"] => "--not-succeeded-by",
        ["condition", "not_succeeded_by", "zone"] => "--time-zone",
        ["condition", "not_succeeded_by", "weekdays", ..] => "--weekdays",
        ["condition", .., "calendar"] => "--calendar",
        ["condition", "no_success_for", ..] => "--no-success-for",
        ["condition", "running_longer", "times_p95"] => "--running-longer-p95",
        ["condition", "running_longer", ..] => "--running-longer",
        ["condition", "no_executor", ..] => "--handler",
        ["condition", "loop_failing", ..] => "--loop-failing",
        ["condition", "token_expiring", ..] => "--token-expiring",
        ["condition", "certificate_expiring", ..] => "--certificate-expiring",
        ["condition", "disk_low", ..] => "--disk-low",
        ["condition", "ledger_growth", ..] => "--ledger-growth",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_flags() {
        let problem = json!({"title": "x", "errors": [
            {"pointer": "/condition/not_succeeded_by/calendar", "message": "there is no calendar"},
            {"pointer": "/condition/calendar", "message": "there is no calendar"},
            {"pointer": "/channels/0", "message": "there is no channel"},
            {"pointer": "/other", "message": "stays"},
        ]});
        let named: Value = serde_json::from_str(&with_flags(&problem.to_string())).unwrap();
        let pointers: Vec<&str> =
            named["errors"].as_array().unwrap().iter().map(|one| one["pointer"].as_str().unwrap()).collect();
        assert_eq!(pointers, ["--calendar", "--calendar", "--channel", "/other"]);
    }

    #[test]
    fn a_trial_names_its_instant_and_deadline_in_the_zone_of_the_rule() {
        let tried = json!({
            "sentence": "close has not succeeded by 06:00 Europe/Berlin", "count": 1, "warnings": [],
            "evaluated_at": "2026-11-23T02:10:00Z",
            "deadline": {"zone": "Europe/Berlin", "counts_from": "2026-11-22T05:00:00Z", "next": "2026-11-23T05:00:00Z"},
        });
        assert_eq!(
            dry_run_text(&tried),
            "close has not succeeded by 06:00 Europe/Berlin: would hold for 1\nevaluated at 2026-11-23 03:10 Europe/Berlin as if that were \
             the deadline: a success of a run planned from 2026-11-22 06:00 on counts\nthe next deadline is 2026-11-23 06:00 Europe/Berlin"
        );
        let nothing = json!({"sentence": "x failed", "count": 0, "evaluated_at": "2026-11-23T02:10:00Z", "deadline": null,
            "warnings": ["there is no job \"x\": nothing can be observed until there is one"]});
        assert!(
            dry_run_text(&nothing).starts_with("x failed: there is no job \"x\": nothing can be observed"),
            "{}",
            dry_run_text(&nothing)
        );
    }
}
