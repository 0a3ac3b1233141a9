//! `rondel cron`: what an expression means, without a server.

use chrono::{SecondsFormat, TimeZone as _};
use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use rondel_core::cron::{CronExpr, DstRule, Tz, parse_zone};
use serde::Serialize;

use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::table::Table;
use crate::{clock, output};

/// Cron expressions, offline.
#[derive(Debug, Args)]
pub(crate) struct CronArgs {
    #[command(subcommand)]
    command: CronCommand,
}

#[derive(Debug, Subcommand)]
enum CronCommand {
    /// Say when an expression fires next
    Next(NextArgs),
}

#[derive(Debug, Args)]
struct NextArgs {
    /// Quartz cron with 6 or 7 fields, Unix cron with 5, or a macro such as @daily
    #[arg(value_name = "EXPR")]
    expression: String,
    /// The IANA time zone that the expression is read in
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    tz: String,
    /// Fires after this instant, in RFC 3339; now by default
    #[arg(long, value_name = "INSTANT")]
    after: Option<String>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    count: u16,
    #[command(flatten)]
    format: FormatArgs,
}

/// What `-o json` prints.
#[derive(Debug, Serialize)]
struct Fires {
    fires: Vec<Timestamp>,
}

impl CronArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            CronCommand::Next(args) => next(&args),
        }
    }
}

fn next(args: &NextArgs) -> Result<(), Failure> {
    let expression = CronExpr::parse(&args.expression).map_err(|error| Failure::refused(error.to_string()))?;
    let zone = parse_zone(&args.tz).map_err(|error| Failure::refused(format!("--tz: {error}")))?;
    let after = match &args.after {
        Some(text) => text.parse().map_err(|error| Failure::refused(format!("--after: {error}")))?,
        None => clock::now(),
    };
    let fires = expression.fires_between(zone, DstRule::default(), after, Timestamp::MAX, usize::from(args.count));
    print(args, &expression, zone, fires)
}

fn print(args: &NextArgs, expression: &CronExpr, zone: Tz, fires: Vec<Timestamp>) -> Result<(), Failure> {
    match args.format.format {
        Format::Json => output::data(&serde_json::to_string(&Fires { fires })?),
        Format::Jsonl => {
            let lines = fires.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
            output::data(&lines.join("\n"))
        }
        Format::Name => output::data(&fires.iter().map(Timestamp::to_string).collect::<Vec<_>>().join("\n")),
        Format::Table if fires.is_empty() => {
            output::talk(&format!("{expression} never fires again"));
            Ok(())
        }
        Format::Table => {
            output::talk(&format!("{expression}: {}, read in {zone}", expression.dialect()));
            let now = clock::now();
            let mut table = Table::new(&["LOCAL", "UTC", ""]);
            for at in fires {
                table.add(vec![local(at, zone), at.to_string(), clock::relative(at, now)]);
            }
            output::data(&table.render(args.format.no_headers))
        }
    }
}

/// `2026-03-08T03:00:00+08:00 CST`
fn local(at: Timestamp, zone: Tz) -> String {
    let Some(utc) = at.to_utc() else { return at.to_string() };
    let local = zone.from_utc_datetime(&utc.naive_utc());
    format!("{} {}", local.to_rfc3339_opts(SecondsFormat::Secs, false), local.format("%Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_times_name_their_zone() {
        let at = "2026-03-08T07:00:00Z".parse().unwrap();
        assert_eq!(local(at, parse_zone("Asia/Shanghai").unwrap()), "2026-03-08T15:00:00+08:00 CST");
        assert_eq!(local(at, Tz::UTC), "2026-03-08T07:00:00+00:00 UTC");
    }
}
