//! Prints the comparison of fires.

use clap::Args;
use rondel_core::Timestamp;
use serde_json::Value;

use crate::client::{Client, text_of};
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::list::{self, BoundArgs};
use crate::output;
use crate::terminal::harmless_text;
use crate::view::View;

/// How many differences a table lists; JSON has all of them.
const LINE_COUNT_MAX: usize = 50;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel shadow report --days 7\n  rondel shadow report --job report-17 -o json\n\n\
    Only jobs that are in shadow mode, or were up to an instant, are compared, and only up to the last fire that `rondel shadow follow` \
    reported. Days are those of UTC."
)]
pub(super) struct ReportArgs {
    /// Only this job
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// The last N days, including today; by default seven
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=31), conflicts_with = "from")]
    days: Option<u32>,
    /// The beginning, RFC 3339
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// The end, RFC 3339; by default now
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    /// The name of the source, as given to `rondel shadow follow --name`
    #[arg(long, value_name = "NAME", default_value = "xxl-job")]
    source: String,
    /// How long after Rondel's fire a fire of the other scheduler still counts as the same fire
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    tolerance: String,
    /// Minimum delay at which a fire counts as late
    #[arg(long, value_name = "DURATION", default_value = "3s")]
    late: String,
}

const VIEW: View = View {
    name: "job",
    headers: &[
        "JOB",
        "DAY",
        "BOTH",
        "ONLY OLD",
        "ONLY RONDEL",
        "TWICE",
        "OLD LATE",
        "RONDEL LATE",
        "OTHER EXECUTOR",
        "OLD MAX",
        "RONDEL MAX",
    ],
    row,
};

impl ReportArgs {
    pub(super) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let start = self.from.clone().or_else(|| {
            let now = crate::clock::now().to_utc()?;
            let first_day = now.date_naive().checked_sub_days(chrono::Days::new(u64::from(self.days?) - 1))?;
            Some(format!("{first_day}T00:00:00Z"))
        });
        let parameters = [("job", self.job), ("from", start), ("to", self.to)];
        let parameters = parameters.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let source = self.source.clone();
        let own_parameters = [("source", self.source), ("tolerance", self.tolerance), ("late", self.late)];
        let query: Vec<(&str, String)> = parameters.chain(own_parameters).collect();
        let query: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let body = list::read_at(client, &["shadow", "report"], &query, &BoundArgs::unlimited()).await?;
        VIEW.print_list(&body, format)?;
        if matches!(format.format, Format::Table | Format::Wide) {
            let report = body.value()?;
            let source_state = match report["items"].as_array().is_some_and(Vec::is_empty) {
                true => client.get(&["shadow", "fires"], &[("source", &source)]).await?.value()?,
                false => Value::Null,
            };
            output::print_message(&differences_text(&report, &source_state));
        }
        Ok(())
    }
}

fn row(day: &Value, _: Timestamp) -> Vec<String> {
    let text = |key: &str| text_of(&day[key]);
    let length = |key: &str| format!("{} ms", text_of(&day[key]["max_ms"]));
    vec![
        text("job"),
        text("day").chars().take(10).collect(),
        text("both"),
        text("only_old"),
        text("only_rondel"),
        text("twice"),
        text("old_late"),
        text("rondel_late"),
        text("other_executor"),
        length("old_lateness"),
        length("rondel_lateness"),
    ]
}

/// Why nothing was compared; `source_state` is the state of the source.
fn reason_nothing_compared(source_state: &Value) -> String {
    match source_state["last_at"].as_str() {
        None => "nothing was compared: no fires of this source are stored; rondel shadow follow stores them".to_owned(),
        Some(last_fire) => format!(
            "nothing was compared: the comparison reaches from the first to the last stored fire, which was at {last_fire}, and no job in shadow mode \
             has a planned instant in between. Look again in a minute, when later fires are stored. If the last one stays hours behind, the --time-zone of \
             rondel shadow follow is not that of XXL-JOB's servers"
        ),
    }
}

fn differences_text(report: &Value, source_state: &Value) -> String {
    let days = || report["items"].as_array().into_iter().flatten();
    let lines_of_day = |day: &Value| {
        let job = text_of(&day["job"]);
        let differences = day["differences"].as_array().cloned().unwrap_or_default();
        differences
            .into_iter()
            .map(move |difference| format!("{} {job}: {}", text_of(&difference["at"]), sentence(&difference)))
            .collect::<Vec<_>>()
    };
    let all_lines: Vec<String> = days().flat_map(lines_of_day).collect();
    let omitted_count: u64 = days().filter_map(|day| day["differences_more"].as_u64()).sum();
    let count = u64::try_from(all_lines.len()).unwrap_or(u64::MAX) + omitted_count;
    if days().next().is_none() {
        return reason_nothing_compared(source_state);
    }
    if count == 0 {
        return "no differences".to_owned();
    }
    let mut lines: Vec<String> =
        all_lines.iter().take(LINE_COUNT_MAX).map(|line| harmless_text(line).into_owned()).collect();
    let unlisted_count = count - u64::try_from(lines.len()).unwrap_or(0);
    if unlisted_count > 0 {
        lines.push(format!("and {unlisted_count} more"));
    }
    lines.join("\n")
}

fn sentence(difference: &Value) -> String {
    let lateness = || format!("{} ms late", text_of(&difference["late_ms"]));
    match difference["kind"].as_str().unwrap_or_default() {
        "only_old" => format!("only the old scheduler fired (log {})", text_of(&difference["source_id"])),
        "only_rondel" => "the old scheduler did not fire".to_owned(),
        "twice" => format!("the old scheduler fired again (log {})", text_of(&difference["source_id"])),
        "old_late" => format!("the old scheduler was {}", lateness()),
        "rondel_late" => format!("Rondel was {}", lateness()),
        "other_executor" => {
            format!(
                "the old scheduler chose {}, Rondel {}",
                text_of(&difference["old_executor"]),
                text_of(&difference["executor"])
            )
        }
        unknown_kind => unknown_kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_empty_report_names_how_far_the_source_was_observed() {
        let none = differences_text(&json!({"items": []}), &json!({"last_at": null}));
        assert!(none.contains("no fires of this source are stored"), "{none}");
        let early = differences_text(&json!({"items": []}), &json!({"last_at": "2026-11-23T10:00:00Z"}));
        assert!(early.contains("2026-11-23T10:00:00Z") && early.contains("Look again in a minute"), "{early}");
        assert!(early.contains("the --time-zone of rondel shadow follow is not that"), "{early}");
    }

    #[test]
    fn another_executor_is_named_with_both() {
        let difference =
            json!({"kind": "other_executor", "at": "2026-11-23T10:00:00Z", "executor": "a-1", "old_executor": "b-1"});
        let report = json!({"items": [{"job": "report-17", "differences": [difference], "differences_more": 0}]});
        let text = differences_text(&report, &Value::Null);
        assert_eq!(text, "2026-11-23T10:00:00Z report-17: the old scheduler chose b-1, Rondel a-1");
    }
}
