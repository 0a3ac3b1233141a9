//! `rondel why`: why a job ran or did not run, by the job's name or the id of one of its runs.

use clap::Args;
use reqwest::{Method, StatusCode};
use rondel_core::Timestamp;
use rondel_core::cron::Tz;
use rondel_core::words::asked_instants;
use serde_json::Value;

use crate::client::{Call, Client, ClientArgs, text_of};
use crate::clock;
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::lang::LangArgs;
use crate::output;
use crate::terminal::harmless_text;

/// Explains why a job ran or did not run.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel why report.daily\n  rondel why report.daily --at 02:30\n  rondel why report.daily --at 2026-03-08T02:30:00Z\n  rondel why 384933479034388482"
)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// The job's name, or the id of a run
    #[arg(value_name = "JOB|RUN", add = crate::complete::job_names())]
    subject: String,
    /// The instant to explain: in RFC 3339, or 02:30, "yesterday 02:30" or "2026-03-08 02:30" on the clock of the job's time
    /// zone, or "3h ago"; without it, the open run, the last fire or the next fire
    #[arg(long, value_name = "INSTANT")]
    at: Option<String>,
    #[command(flatten)]
    lang: LangArgs,
}

impl WhyArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client = self.client.client()?;
        let job_and_run = match job_of_run(&client, &self.subject).await? {
            Some(_) if self.at.is_some() => {
                return Err(Failure::refused(format!(
                    "--at is for a job: run {} is that of its own instant",
                    self.subject
                )));
            }
            job_and_run => job_and_run,
        };
        let at = match &self.at {
            Some(text) => Some(requested_instant(&client, &self.subject, text).await?),
            None => None,
        };
        let (job, instant_or_run) = match (&job_and_run, at.as_deref()) {
            (Some(job), _) => (job.as_str(), Some(("run", self.subject.as_str()))),
            (None, at) => (self.subject.as_str(), at.map(|at| ("at", at))),
        };
        explain(&client, job, instant_or_run, self.lang, self.format).await
    }
}

/// The job of a run; `None` if no run has this id, because digits may also be the name of a job.
async fn job_of_run(client: &Client, subject: &str) -> Result<Option<String>, Failure> {
    if !subject.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let call = Call { method: Method::GET, path: &["runs", subject], query: &[], body: None, headers: &[] };
    match client.call(call).await? {
        Ok(run) => Ok(Some(text_of(&run.value()?["job"]))),
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => Ok(None),
        Err(refusal) => Err(client.failure(&refusal)),
    }
}

/// The instant that `text` means, in RFC 3339. A time without an offset is read in the job's time zone.
async fn requested_instant(client: &Client, job: &str, text: &str) -> Result<String, Failure> {
    if text.parse::<Timestamp>().is_ok() {
        return Ok(text.to_owned());
    }
    let job = client.get(&["jobs", job], &[]).await?.value()?;
    let at = parse_on_clock(job_zone(&job), text, clock::now());
    let at = at.map_err(|message| Failure::refused(format!("--at: {message}")))?;
    Ok(at.to_string())
}

/// The time zone of a job's first schedule, or else UTC, as in the console.
fn job_zone(job: &Value) -> Tz {
    let schedule = &job["schedule"];
    let first_schedule = schedule.get(0).unwrap_or(schedule);
    first_schedule["time_zone"].as_str().and_then(|zone| zone.parse().ok()).unwrap_or(Tz::UTC)
}

/// The instant that the text means, or why it does not mean exactly one.
fn parse_on_clock(zone: Tz, text: &str, now: Timestamp) -> Result<Timestamp, String> {
    match asked_instants(zone, text, now).as_deref() {
        Some([at]) => Ok(*at),
        Some([]) => Err(format!("the clock of {zone} skips {text}")),
        Some([first_at, .., last_at]) => {
            Err(format!("the clock of {zone} shows {text} twice: at {first_at} and at {last_at}"))
        }
        None => Err(format!(
            "{text:?} is not an instant such as 2026-03-08T02:30:00Z, 2026-03-08 02:30, 02:30, \"yesterday 02:30\" or \"3h ago\""
        )),
    }
}

/// Prints why a job ran or did not run at an instant, or why a run has its status. If `instant_or_run` is `None`, prints why the
/// job's open run waits, or else how its last fire went.
async fn explain(
    client: &Client,
    job: &str,
    instant_or_run: Option<(&str, &str)>,
    lang: LangArgs,
    format: FormatArgs,
) -> Result<(), Failure> {
    let query: Vec<(&str, &str)> = instant_or_run.into_iter().collect();
    let body = client.get(&["jobs", job, "why"], &query).await?;
    let language = lang.lang().as_str();
    match format.format {
        Format::Json | Format::Jsonl | Format::Yaml => output::print_document(body.text(), format.format),
        Format::Name => output::print_lines(&text_of(&body.value()?["fire"]["run"])),
        Format::Table | Format::Wide => {
            let body = body.value()?;
            output::print_lines(&harmless_text(&text_of(&body["answer"][language])))?;
            incident_line(&body["incident"]).map_or(Ok(()), |line| output::print_lines(&harmless_text(&line)))
        }
    }
}

/// Names the incident that the fire is part of.
fn incident_line(incident: &Value) -> Option<String> {
    let id = incident["id"].as_str()?;
    Some(format!("part of incident {id}, rule {}: rondel alert incident show {id}", text_of(&incident["rule"])))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn instants_are_taken_as_a_person_writes_them() {
        let now = "2026-10-26T09:00:00Z".parse().unwrap();
        let found = |text| parse_on_clock(Tz::Europe__Berlin, text, now).map(|at| at.to_string());
        assert_eq!(found("02:30").as_deref(), Ok("2026-10-26T01:30:00Z"));
        assert_eq!(found("2026-10-24 02:30").as_deref(), Ok("2026-10-24T00:30:00Z"));
        assert_eq!(found("3h ago").as_deref(), Ok("2026-10-26T06:00:00Z"));
        let twice = "the clock of Europe/Berlin shows yesterday 02:30 twice: at 2026-10-25T00:30:00Z and at 2026-10-25T01:30:00Z";
        assert_eq!(found("yesterday 02:30").unwrap_err(), twice);
        assert_eq!(found("2026-03-29 02:30").unwrap_err(), "the clock of Europe/Berlin skips 2026-03-29 02:30");
        assert!(found("soon").unwrap_err().starts_with("\"soon\" is not an instant such as "));
    }

    #[test]
    fn the_clock_is_that_of_the_first_schedule() {
        let berlin = json!({"cron": "0 30 2 * * ?", "time_zone": "Europe/Berlin"});
        assert_eq!(job_zone(&json!({"schedule": berlin})), Tz::Europe__Berlin);
        assert_eq!(job_zone(&json!({"schedule": [berlin, {"every": "1h"}]})), Tz::Europe__Berlin);
        assert_eq!(job_zone(&json!({"schedule": [{"every": "1h"}, berlin]})), Tz::UTC);
        assert_eq!(job_zone(&json!({"schedule": null})), Tz::UTC);
    }

    #[test]
    fn the_incident_is_named_where_there_is_one() {
        let line = incident_line(&json!({"id": "42", "rule": "failed", "standing": "firing"}));
        assert_eq!(line.as_deref(), Some("part of incident 42, rule failed: rondel alert incident show 42"));
        assert_eq!(incident_line(&Value::Null), None);
    }
}
