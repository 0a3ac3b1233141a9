//! The outcomes of a job's fires.

use clap::Args;
use rondel_core::reason::words::{reason_text, verdict_text};
use rondel_core::reason::{Reason, ReasonDetail};
use rondel_core::words::Lang;
use rondel_core::{RunStatus, Timestamp};
use serde_json::Value;

use crate::client::{Client, text_of, time_text};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::list;
use crate::view::View;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job fires report.daily\n  rondel job fires report.daily --from 2026-03-01T00:00:00Z --to 2026-03-08T00:00:00Z -o jsonl"
)]
pub(super) struct FiresArgs {
    /// The job's name
    #[arg(value_name = "JOB", add = crate::complete::job_names())]
    name: String,
    /// The beginning, RFC 3339: without --to, two days from there; without both, the last and the next 24 hours
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// Up to this RFC 3339 instant
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    #[command(flatten)]
    bounds: list::BoundArgs,
}

const VIEW: View = View { name: "fire_at", headers: &["FIRE", "COUNT", "VERDICT", "REASON", "RUN"], row };

impl FiresArgs {
    pub(super) async fn run(&self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let from_parameter = self.from.as_deref().map(|from_parameter| ("from", from_parameter));
        let to_parameter = self.to.as_deref().map(|to_parameter| ("to", to_parameter));
        let query: Vec<_> = from_parameter.into_iter().chain(to_parameter).collect();
        VIEW.print_list(&list::read_at(client, &["jobs", &self.name, "fires"], &query, &self.bounds).await?, format)
    }
}

/// The reason as a sentence if it has parameters, otherwise its code.
fn fire_reason_text(fire: &Value) -> String {
    let code = text_of(&fire["reason"]);
    let detail: ReasonDetail = serde_json::from_value(fire["detail"].clone()).unwrap_or_default();
    match (code.parse::<Reason>(), text_of(&fire["verdict"]).parse::<RunStatus>()) {
        (Ok(reason), Ok(status)) if detail != ReasonDetail::default() && status.is_terminal() => {
            verdict_text((status, reason), &detail, Lang::En)
        }
        (Ok(reason), _) if detail != ReasonDetail::default() => reason_text(reason, &detail, Lang::En),
        _ => code,
    }
}

fn row(fire: &Value, now: Timestamp) -> Vec<String> {
    let first_text = time_text(&fire["fire_at"], now);
    let last_text = fire["last_fire_at"].as_str().map(|last_text| format!(" .. {last_text}")).unwrap_or_default();
    let calendar = &fire["calendar"];
    let reason = match (&calendar["day"], &calendar["moved_to"]) {
        _ if calendar.is_null() => fire_reason_text(fire),
        (Value::Null, Value::Null) => text_of(&calendar["name"]),
        (day, Value::Null) => format!("{}: {}", text_of(&calendar["name"]), text_of(day)),
        (_, moved_to) => format!("{}: moved to {}", text_of(&calendar["name"]), text_of(moved_to)),
    };
    vec![
        format!("{first_text}{last_text}"),
        text_of(&fire["count"]),
        text_of(&fire["verdict"]),
        reason,
        text_of(&fire["run"]),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fire_is_a_line() {
        let now = "2026-10-01T09:00:00Z".parse().unwrap();
        let calendar = json!({"name": "cn", "day": "国庆节", "moved_to": null});
        let fire = json!({"fire_at": "2026-10-02T09:00:00Z", "count": 1, "verdict": "calendar", "reason": null, "run": null, "calendar": calendar});
        let cells = row(&fire, now);
        assert_eq!(cells[1..], ["1", "calendar", "cn: 国庆节", ""]);
        let fold = json!({"fire_at": "2026-10-02T09:00:00Z", "last_fire_at": "2026-10-02T09:59:59Z", "count": 3600, "verdict": "paused", "reason": null, "run": null});
        assert!(row(&fold, now)[0].ends_with(".. 2026-10-02T09:59:59Z"));
        // The executor may have received the run although it did not acknowledge it. Therefore the outcome is unknown.
        let unknown = json!({"fire_at": "2026-10-01T08:00:00Z", "count": 1, "verdict": "unknown", "reason": "not_received", "run": "7", "detail": {"executor": "w1"}});
        assert!(row(&unknown, now)[3].starts_with("it was sent to executor w1, which did not acknowledge it"));
    }
}
