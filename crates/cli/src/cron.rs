//! `rondel cron`: explains a cron expression and shows when it fires, without a server.

use chrono::{SecondsFormat, TimeZone as _};
use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use rondel_core::cron::{CronExpr, Dialect, DstRule, Tz, parse_zone};
use rondel_core::preview::{PER_DAY_MAX, Preview, PreviewRequest, preview};
use rondel_core::schedule::{Kind, Schedule};
use rondel_core::timetable::Timetable;
use rondel_core::words::{self, Lang};
use serde::Serialize;

use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::lang::LangArgs;
use crate::table::Table;
use crate::{clock, output};

#[derive(Debug, Args)]
pub(crate) struct CronArgs {
    #[command(subcommand)]
    command: CronCommand,
}

#[derive(Debug, Subcommand)]
enum CronCommand {
    /// Show when an expression fires next
    Next(NextArgs),
    /// Explain an expression in a sentence, with its warnings
    Explain(ExplainArgs),
}

/// The expression, and the instant after which its fires are shown.
#[derive(Debug, Args)]
struct ExpressionArgs {
    /// Quartz cron with 6 or 7 fields, Unix cron with 5, or a macro such as @daily
    #[arg(value_name = "EXPR")]
    expression: String,
    /// The IANA time zone that the expression is read in
    #[arg(long = "time-zone", alias = "tz", value_name = "ZONE", default_value = "UTC")]
    tz: String,
    /// Fires after this instant, in RFC 3339; now by default
    #[arg(long, value_name = "INSTANT")]
    after: Option<String>,
    #[command(flatten)]
    lang: LangArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel cron next \"0 30 2 * * ?\" --time-zone Asia/Shanghai --count 3\n  rondel cron next @daily --after 2026-03-08T00:00:00Z -o json"
)]
struct NextArgs {
    #[command(flatten)]
    expression: ExpressionArgs,
    /// How many fires
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    count: u16,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rondel cron explain \"0 0 9 ? * MON-FRI\" --time-zone Europe/Berlin --lang en")]
struct ExplainArgs {
    #[command(flatten)]
    expression: ExpressionArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// The output of `next -o json`.
#[derive(Debug, Serialize)]
struct Fires {
    fires: Vec<Timestamp>,
}

/// The output of `explain -o json`.
#[derive(Debug, Serialize)]
struct Explanation<'a> {
    expression: &'a str,
    time_zone: &'static str,
    dialect: Dialect,
    sentence: &'a str,
    next_fire_at: Option<Timestamp>,
    warnings: Vec<WarningJson<'a>>,
}

#[derive(Debug, Serialize)]
struct WarningJson<'a> {
    code: &'static str,
    at: Option<Timestamp>,
    message: &'a str,
}

impl CronArgs {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            CronCommand::Next(args) => print_next_fires(&args),
            CronCommand::Explain(args) => print_explanation(&args),
        }
    }
}

/// A parsed expression, with its next fires.
struct CronReport {
    expression: CronExpr,
    zone: Tz,
    after: Timestamp,
    lang: Lang,
    sentence: String,
    preview: Preview,
}

impl ExpressionArgs {
    fn report(&self, count: usize) -> Result<CronReport, Failure> {
        let expression = CronExpr::parse(&self.expression).map_err(|error| Failure::refused(error.to_string()))?;
        let zone = parse_zone(&self.tz).map_err(|error| Failure::refused(format!("--time-zone: {error}")))?;
        let after = match &self.after {
            Some(text) => text.parse().map_err(|error| Failure::refused(format!("--after: {error}")))?,
            None => clock::now(),
        };
        let kind = Kind::Cron { expr: Box::new(expression.clone()), dst: DstRule::default() };
        let schedule = Schedule { kind, zone, start: None, end: None, jitter: None };
        let (lang, sentence) = (self.lang.lang(), words::schedule(&schedule, self.lang.lang()));
        let timetable = Timetable { schedules: vec![schedule], calendar: None };
        let preview =
            preview(PreviewRequest { timetable: &timetable, anchor: after, after, count, per_day_max: PER_DAY_MAX });
        Ok(CronReport { expression, zone, after, lang, sentence, preview })
    }
}

impl CronReport {
    fn dialect(&self) -> &'static str {
        words::dialect(self.expression.dialect(), self.lang)
    }

    fn fires(&self) -> impl Iterator<Item = Timestamp> {
        self.preview.fires.iter().map(|fire| fire.at)
    }

    /// The warnings as sentences; none if the schedule never fires, which `check_fires` reports.
    fn warnings(&self) -> impl Iterator<Item = &str> {
        let warnings = self.preview.warnings.iter().filter(|_| !self.preview.fires.is_empty());
        warnings.map(|warning| warning.sentence(self.lang))
    }

    /// Fails if the schedule never fires. Such a schedule is a mistake, even if the command has printed something about
    /// it.
    fn check_fires(&self) -> Result<(), Failure> {
        if self.preview.fires.is_empty() {
            let (expression, after) = (&self.expression, self.after);
            return Err(Failure::refused(match self.lang {
                Lang::En => format!("{expression} never fires after {after}"),
                Lang::Zh => format!("{expression} 在 {after} 之后永远不会触发"),
            }));
        }
        Ok(())
    }
}

fn print_next_fires(args: &NextArgs) -> Result<(), Failure> {
    let report = args.expression.report(usize::from(args.count))?;
    match args.format.format {
        Format::Json => output::print_lines(&serde_json::to_string(&Fires { fires: report.fires().collect() })?)?,
        Format::Jsonl => {
            let lines = report.fires().map(|at| serde_json::to_string(&at)).collect::<Result<Vec<_>, _>>()?;
            output::print_lines(&lines.join("\n"))?;
        }
        Format::Yaml => {
            output::print_document(&serde_json::to_string(&Fires { fires: report.fires().collect() })?, Format::Yaml)?
        }
        Format::Name => output::print_lines(&report.fires().map(|at| at.to_string()).collect::<Vec<_>>().join("\n"))?,
        Format::Table | Format::Wide => {
            output::print_message(&format!("{}\n{}", report.sentence, report.dialect()));
            if !report.preview.fires.is_empty() {
                output::print_lines(&fires_table(&report, args.format.no_headers))?;
            }
            report.warnings().for_each(output::print_message);
        }
    }
    report.check_fires()
}

fn fires_table(report: &CronReport, no_headers: bool) -> String {
    let now = clock::now();
    let mut table = Table::new(&["LOCAL", "UTC", ""]);
    for at in report.fires() {
        table.add(vec![zone_time_text(at, report.zone), at.to_string(), clock::relative_text(at, now)]);
    }
    table.render(no_headers)
}

fn print_explanation(args: &ExplainArgs) -> Result<(), Failure> {
    let report = args.expression.report(1)?;
    match args.format.format {
        Format::Json | Format::Jsonl | Format::Yaml => {
            let warnings = report.preview.warnings.iter().map(|warning| WarningJson {
                code: warning.code.as_str(),
                at: warning.at,
                message: warning.sentence(report.lang),
            });
            let explanation = Explanation {
                expression: report.expression.source(),
                time_zone: report.zone.name(),
                dialect: report.expression.dialect(),
                sentence: &report.sentence,
                next_fire_at: report.fires().next(),
                warnings: warnings.collect(),
            };
            output::print_document(&serde_json::to_string(&explanation)?, args.format.format)?;
        }
        Format::Name => output::print_lines(&report.sentence)?,
        Format::Table | Format::Wide => {
            let lines = [report.sentence.as_str(), report.dialect()];
            output::print_lines(&lines.into_iter().chain(report.warnings()).collect::<Vec<_>>().join("\n"))?;
        }
    }
    report.check_fires()
}

/// An instant on the clock of the zone, with the zone's abbreviation: `2026-03-08T03:00:00+08:00 CST`.
fn zone_time_text(at: Timestamp, zone: Tz) -> String {
    let Some(utc) = at.to_utc() else { return at.to_string() };
    let local_time = zone.from_utc_datetime(&utc.naive_utc());
    format!("{} {}", local_time.to_rfc3339_opts(SecondsFormat::Secs, false), local_time.format("%Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_times_name_their_zone() {
        let at = "2026-03-08T07:00:00Z".parse().unwrap();
        assert_eq!(zone_time_text(at, parse_zone("Asia/Shanghai").unwrap()), "2026-03-08T15:00:00+08:00 CST");
        assert_eq!(zone_time_text(at, Tz::UTC), "2026-03-08T07:00:00+00:00 UTC");
    }
}
