//! Switches jobs over at a seam: the fires before it belong to one scheduler, those from it on to the other.
//!
//! The side that gives a job up does so first, durably, and then the other side takes it: between the two steps the job fires on neither
//! side, never on both, and the same command finishes what it began.

use std::time::Duration;

use clap::Args;
use rondel_core::Timestamp;
use rondel_store::foreign::xxl_job::{JobStatus, Stopped, XxlDatabase};
use serde_json::{Value, json};

use super::jobs::{self, LABEL};
use crate::client::{Client, text_of};
use crate::exit::{Exit, Failure};
use crate::format::{Format, FormatArgs};
use crate::terminal::harmless;
use crate::view::View;
use crate::{clock, output};

/// A definition holds for all fires that are due later than a second after it was saved; the rest is for saving it.
const SAVE_WITHIN: Duration = Duration::from_secs(3);
/// How far ahead jobs are given up here: for saving the definitions of a batch, and for XXL-JOB, which looks every five seconds.
const GIVE_UP_AHEAD: Duration = Duration::from_secs(6);
/// Jobs that are switched in one step.
const BATCH: usize = 20;
/// How often a job is looked at whose next fire in XXL-JOB is too near.
const AGAIN: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Promote,
    Demote,
}

#[derive(Debug, Args)]
pub(super) struct SwitchArgs {
    /// The jobs
    #[arg(value_name = "JOB", required = true)]
    jobs: Vec<String>,
    /// The database of XXL-JOB; the user may read and write `xxl_job_info` and lock the row of `xxl_job_lock`
    #[arg(long, value_name = "URL", env = "RONDEL_SHADOW_SOURCE", hide_env_values = true)]
    source: String,
    /// Switch them; without it the command only shows what it would do
    #[arg(long)]
    yes: bool,
    /// How long to wait for XXL-JOB to take up fires that are too near
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = rondel_core::time::parse_duration)]
    wait: Duration,
}

/// A job on both sides.
#[derive(Clone, Debug)]
struct Job {
    name: String,
    number: i64,
    is_shadow: bool,
    is_enabled: bool,
    from: Option<Timestamp>,
}

/// What became of a job.
struct Switched {
    name: String,
    seam: Option<Timestamp>,
    result: String,
    is_done: bool,
}

const VIEW: View = View { name: "job", headers: &["JOB", "SEAM", "RESULT"], row };

fn row(one: &Value, _: Timestamp) -> Vec<String> {
    vec![text_of(&one["job"]), text_of(&one["seam"]), text_of(&one["result"])]
}

impl SwitchArgs {
    pub(super) async fn run(self, direction: Direction, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let mut found = Vec::new();
        for name in &self.jobs {
            found.push(job(client, name).await?);
        }
        let mut database = jobs::open(&self.source).await?;
        let switched = match (self.yes, direction) {
            (false, _) => planned(direction, &mut database, &found).await?,
            (true, Direction::Promote) => promote(client, &mut database, found, self.wait).await?,
            (true, Direction::Demote) => demote(client, &mut database, found).await?,
        };
        report(&switched, format)?;
        if !self.yes {
            return Err(Failure::refused("nothing was done: add --yes to switch them"));
        }
        match switched.iter().filter(|one| !one.is_done).count() {
            0 => Ok(()),
            count => Err(Failure::from_text(format!(
                "{count} of {} jobs were not switched; run the command again",
                switched.len()
            ))),
        }
    }
}

fn report(switched: &[Switched], format: FormatArgs) -> Result<(), Failure> {
    let shown = |one: &Switched| json!({"job": one.name, "seam": one.seam, "result": one.result, "done": one.is_done});
    let items: Vec<Value> = switched.iter().map(shown).collect();
    match format.format {
        Format::Json | Format::Jsonl | Format::Yaml => {
            output::document(&json!({"items": items}).to_string(), format.format)
        }
        Format::Name | Format::Table | Format::Wide => VIEW.items(&items, format),
    }
}

async fn job(client: &Client, name: &str) -> Result<Job, Failure> {
    let job = client.get(&["jobs", name], &[]).await?.value()?;
    let number = jobs::number(&job).ok_or_else(|| {
        let name = harmless(name);
        Failure::refused(format!("job {name} has no label {LABEL}: the number of the job in XXL-JOB is expected there"))
    })?;
    Ok(Job {
        name: name.to_owned(),
        number,
        is_shadow: job["mode"] == "shadow",
        is_enabled: job["enabled"] == true,
        from: job["mode_from"].as_str().and_then(|at| at.parse().ok()),
    })
}

async fn planned(direction: Direction, database: &mut XxlDatabase, found: &[Job]) -> Result<Vec<Switched>, Failure> {
    let numbers: Vec<i64> = found.iter().map(|job| job.number).collect();
    let there = database.xxl_jobs(&numbers).await.map_err(|error| jobs::wrong(&error))?;
    let side = |is_on: bool| if is_on { "runs" } else { "does not run" };
    let plan = |job: &Job| {
        let result = match (there.get(&job.number), direction) {
            (None, _) => format!("XXL-JOB has no job {}", job.number),
            (Some(status), Direction::Promote) => {
                format!("{} in XXL-JOB: would run here only", side(status.is_running))
            }
            (Some(status), Direction::Demote) => {
                format!("{} in XXL-JOB: would run there only", side(status.is_running))
            }
        };
        Switched { name: job.name.clone(), seam: None, result, is_done: false }
    };
    Ok(found.iter().map(plan).collect())
}

async fn promote(
    client: &Client,
    database: &mut XxlDatabase,
    found: Vec<Job>,
    wait: Duration,
) -> Result<Vec<Switched>, Failure> {
    let gives_up_at = tokio::time::Instant::now() + wait;
    let (mut open, mut switched) = (Vec::new(), Vec::new());
    for job in found {
        match job.is_enabled {
            true => open.push(job),
            false => switched.push(failed(&job, "it is paused here: resume it first")),
        }
    }
    while !open.is_empty() {
        let mut later = Vec::new();
        for batch in open.chunks(BATCH) {
            let numbers: Vec<i64> = batch.iter().map(|job| job.number).collect();
            let not_before = || (clock::now() + SAVE_WITHIN).as_millis();
            let stopped = database.xxl_stop(&numbers, not_before).await.map_err(|error| jobs::wrong(&error))?;
            for job in batch {
                match stopped.get(&job.number) {
                    None => switched.push(failed(job, &format!("XXL-JOB has no job {}", job.number))),
                    Some(Stopped::TooNear(_)) if tokio::time::Instant::now() < gives_up_at => later.push(job.clone()),
                    Some(Stopped::TooNear(at)) => switched.push(failed(job, &behind(*at))),
                    Some(Stopped::At(at)) => switched.push(take_over(client, database, job, millis(*at)).await),
                    Some(Stopped::Before(_)) if !job.is_shadow => {
                        switched.push(done(job, job.from, "was switched before"))
                    }
                    Some(Stopped::Before(status)) => switched.push(finish(client, job, *status).await),
                }
            }
        }
        open = later;
        if !open.is_empty() {
            tokio::time::sleep(AGAIN).await;
        }
    }
    Ok(switched)
}

/// XXL-JOB has stopped the job at the seam: it runs here from there on.
async fn take_over(client: &Client, database: &mut XxlDatabase, job: &Job, seam: Timestamp) -> Switched {
    match save(client, job, "active", seam).await {
        Ok(()) => done(job, Some(seam), "runs here from the seam on"),
        Err(failure) if failure.exit() == Exit::Unreachable => failed(
            job,
            &format!("stopped in XXL-JOB at {seam}, and not saved here ({}): run the command again", failure.message()),
        ),
        Err(failure) => {
            let again = database.xxl_start(&[(job.number, seam.as_millis())]).await;
            let there = if again.is_ok() { "runs on there" } else { "is stopped there" };
            failed(job, &format!("{}; it {there}", failure.message()))
        }
    }
}

/// The job was stopped in XXL-JOB before: by this command, which then leaves the instant there, or by a user.
async fn finish(client: &Client, job: &Job, status: JobStatus) -> Switched {
    let soon = clock::now() + SAVE_WITHIN;
    let stopped_at = millis(status.next_ms);
    let seam = soon.max(stopped_at);
    if let Err(failure) = save(client, job, "active", seam).await {
        return failed(job, failure.message());
    }
    match status.next_ms > 0 && stopped_at < seam {
        true => {
            let gap =
                format!("runs here from the seam on; its fires from {stopped_at} to the seam ran on neither side");
            done(job, Some(seam), &gap)
        }
        false => done(job, Some(seam), "was stopped in XXL-JOB; runs here from the seam on"),
    }
}

async fn demote(client: &Client, database: &mut XxlDatabase, found: Vec<Job>) -> Result<Vec<Switched>, Failure> {
    let mut switched = Vec::new();
    for batch in found.chunks(BATCH) {
        let mut given_up = Vec::new();
        for job in batch {
            match give_up(client, job).await {
                Ok((seam, Some(first), gap)) => given_up.push((job, seam, first, gap)),
                Ok((seam, None, _)) => {
                    switched.push(done(job, Some(seam), "runs no more here; it has no fire to start with there"))
                }
                Err(failure) => switched.push(failed(job, failure.message())),
            }
        }
        let starts: Vec<(i64, i64)> =
            given_up.iter().map(|(job, _, first, _)| (job.number, first.as_millis())).collect();
        let started = database.xxl_start(&starts).await;
        for (job, seam, first, gap) in given_up {
            switched.push(match &started {
                Ok(started) if started.contains(&job.number) => {
                    done(job, Some(seam), &format!("runs in XXL-JOB from {first} on{}", gap.unwrap_or_default()))
                }
                Ok(_) => failed(job, "given up here; XXL-JOB does not have it, or it ran there already"),
                Err(error) => failed(
                    job,
                    &format!("given up here at {seam}, and not started in XXL-JOB ({error}): run the command again"),
                ),
            });
        }
    }
    Ok(switched)
}

/// From an instant on the job runs no more here. Answers that instant, its first fire from there on, and what was left out.
async fn give_up(client: &Client, job: &Job) -> Result<(Timestamp, Option<Timestamp>, Option<String>), Failure> {
    if job.is_shadow {
        // It was given up before: the first fire that XXL-JOB can still have.
        let now = clock::now() + Duration::from_secs(1);
        let seam = job.from.unwrap_or(now);
        let gap = (seam < now).then(|| format!("; its fires from {seam} to {now} may have run on neither side"));
        let first = first_fire(client, job, seam.max(now)).await?;
        return Ok((seam, first, gap));
    }
    let seam = clock::now() + GIVE_UP_AHEAD;
    save(client, job, "shadow", seam).await?;
    Ok((seam, first_fire(client, job, seam).await?, None))
}

async fn save(client: &Client, job: &Job, mode: &str, seam: Timestamp) -> Result<(), Failure> {
    let body = json!({"mode": mode, "mode_from": seam}).to_string();
    client.patch(&["jobs", &job.name], &body).await.map(drop)
}

/// The first planned fire of a job from an instant on.
async fn first_fire(client: &Client, job: &Job, from: Timestamp) -> Result<Option<Timestamp>, Failure> {
    let to = from + Duration::from_secs(366 * 24 * 3_600);
    let (from, to) = (from.to_string(), to.to_string());
    let query = [("from", from.as_str()), ("to", to.as_str()), ("limit", "50")];
    let fires = client.get(&["jobs", &job.name, "fires"], &query).await?.value()?;
    let is_meant =
        |fire: &&Value| matches!(fire["verdict"].as_str(), Some("planned" | "undecided" | "pending" | "waiting"));
    let first = fires["items"].as_array().into_iter().flatten().find(is_meant);
    Ok(first.and_then(|fire| fire["fire_at"].as_str()?.parse().ok()))
}

fn behind(at: i64) -> String {
    let at = millis(at);
    format!("XXL-JOB has not taken up its fire of {at}: its servers do not run, or are behind; nothing was changed")
}

fn done(job: &Job, seam: Option<Timestamp>, result: &str) -> Switched {
    Switched { name: job.name.clone(), seam, result: result.to_owned(), is_done: true }
}

fn failed(job: &Job, result: &str) -> Switched {
    Switched { name: job.name.clone(), seam: None, result: result.to_owned(), is_done: false }
}

const fn millis(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}
