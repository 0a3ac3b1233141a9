//! One of two servers dies: the other one takes over its jobs within a lease and a second, and fires its own jobs as
//! before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rondel_tests::check::{Lateness, Rules, Start};
use rondel_tests::{Backend, scratch, variable, wall_clock_ms};

use super::fixture::{Chance, Journal, LEASE, Worker, create_mixed_jobs, judge_all, print, server};

const JOB_COUNT: usize = 500;
/// Gives each server about half of the jobs, whichever server saw them first.
const SHARED_OUT: [&str; 2] = ["--claim-strategy", "id_hash"];
/// How long after the end of a lease another server may take over: servers look for ended leases once a second.
const TAKE_OVER: Duration = Duration::from_secs(1);
/// How much later a busy machine may wake a process than the witness has measured.
const MACHINE_MS: i64 = 500;

async fn one_of_two_dies(backend: Backend) {
    let rounds = variable("TEST_KILL_ROUNDS").and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut chance = Chance::new();
    for round in 1..=rounds {
        let Some(db) = scratch(backend).await else { return };
        let journal = Journal::new();
        let [first, second] = [server(&db, &SHARED_OUT).await, server(&db, &SHARED_OUT).await];
        create_mixed_jobs(&first.api(), JOB_COUNT, 0).await;
        let _workers = [
            Worker::start(&[&first, &second], "one", &journal, None, &[]).await,
            Worker::start(&[&second, &first], "two", &journal, None, &[]).await,
        ];
        journal.wait_for_starts(3 * JOB_COUNT).await;
        let witness = Witness::start();
        tokio::time::sleep(Duration::from_secs(4) + chance.millis(1_000)).await;
        let (mut dies, lives) = if chance.below(2) == 0 { (first, second) } else { (second, first) };
        let killed_ms = wall_clock_ms();
        dies.kill().await;
        tokio::time::sleep(LEASE + TAKE_OVER + Duration::from_secs(3)).await;
        let api = lives.api().recording(journal.folder());
        let report = judge_all(&api, &journal, Rules::default()).await;
        let takeover = Takeover::of(&journal.starts(), killed_ms);
        let witness = witness.end(killed_ms).await;
        print(&format!(
            "two servers on {backend}, round {round}: {takeover}; the witness timer's p99 {} ms before and {} ms after; {report}",
            witness.0.p99, witness.1.p99
        ));
        report.assert_clean();
        // The machine delays all jobs. The limit allows for this, so that only the takeover is judged.
        let machine = MACHINE_MS + witness.1.p99.max(takeover.before.p99);
        let limit = i64::try_from((LEASE + TAKE_OVER).as_millis()).expect("short") + machine;
        assert!(
            takeover.job_count == 0 || takeover.first_ms <= limit,
            "{takeover}: the first fire of the dead server's share came late"
        );
    }
}

/// How the survivor took over.
struct Takeover {
    /// Jobs of the dead server.
    job_count: usize,
    /// The milliseconds from the death to the first fire of any of these jobs.
    first_ms: i64,
    /// The milliseconds from the death until each of these jobs has fired.
    last_ms: i64,
    /// The lateness of the survivor's own jobs, in the seconds before the death.
    before: Lateness,
    /// The lateness of the survivor's own jobs, in the seconds after the death.
    after: Lateness,
}

impl std::fmt::Display for Takeover {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} of {JOB_COUNT} jobs were the dead server's, went on {} ms after its death (the last of them {} ms); the \
             survivor's own fires were late by p99 {} ms before and {} ms after",
            self.job_count, self.first_ms, self.last_ms, self.before.p99, self.after.p99
        )
    }
}

impl Takeover {
    /// The dead server's jobs are those that have a gap after its death.
    fn of(starts: &[Start], killed_ms: i64) -> Self {
        let lease_ms = i64::try_from(LEASE.as_millis()).expect("short");
        let mut by_job: BTreeMap<&str, Vec<&Start>> = BTreeMap::new();
        for start in starts {
            by_job.entry(&start.job).or_default().push(start);
        }
        let is_on_time = |start: &&&Start| start.begin_ms - start.fire_at_ms < 500;
        let soon_after = |start: &&&Start| (killed_ms + 100..killed_ms + lease_ms / 2 + 500).contains(&start.begin_ms);
        let has_gap = |starts: &Vec<&Start>| !starts.iter().any(|start| soon_after(&start) && is_on_time(&start));
        let dead: BTreeSet<&str> = by_job.iter().filter(|(_, starts)| has_gap(starts)).map(|(job, _)| *job).collect();
        let resumed = by_job.iter().filter(|(job, _)| dead.contains(*job)).filter_map(|(_, starts)| {
            starts.iter().map(|start| start.begin_ms - killed_ms).filter(|after| *after > lease_ms / 4).min()
        });
        let resumed: Vec<i64> = resumed.collect();
        let own = |from: i64, to: i64| {
            let of_own = starts.iter().filter(|start| !dead.contains(start.job.as_str()) && start.attempt == 1);
            let in_time = of_own.filter(|start| (from..to).contains(&start.fire_at_ms));
            Lateness::of(in_time.map(|start| start.begin_ms - start.fire_at_ms).collect())
        };
        Self {
            job_count: dead.len(),
            first_ms: resumed.iter().copied().min().unwrap_or(i64::MAX),
            last_ms: resumed.iter().copied().max().unwrap_or(i64::MAX),
            before: own(killed_ms - 4_000, killed_ms),
            after: own(killed_ms, killed_ms + lease_ms + 3_000),
        }
    }
}

/// A timer outside of the system, whose delays are those of the machine.
struct Witness {
    stop: tokio::sync::oneshot::Sender<()>,
    late: tokio::task::JoinHandle<Vec<(i64, i64)>>,
}

impl Witness {
    fn start() -> Self {
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        #[expect(clippy::disallowed_methods, reason = "the test ends it")]
        let late = tokio::spawn(async move {
            let mut late = Vec::new();
            loop {
                let began = tokio::time::Instant::now();
                let wake = began + Duration::from_millis(10);
                tokio::select! {
                    _ = &mut stopped => return late,
                    () = tokio::time::sleep_until(wake) => {}
                }
                late.push((wall_clock_ms(), i64::try_from(wake.elapsed().as_millis()).unwrap_or(i64::MAX)));
            }
        });
        Self { stop, late }
    }

    /// The delays of the timer before and after an instant.
    async fn end(self, at_ms: i64) -> (Lateness, Lateness) {
        self.stop.send(()).ok();
        let seen = self.late.await.expect("the witness lives");
        let part =
            |before: bool| seen.iter().filter(|(at, _)| (*at < at_ms) == before).map(|(_, late)| *late).collect();
        (Lateness::of(part(true)), Lateness::of(part(false)))
    }
}

#[tokio::test]
async fn on_postgres() {
    one_of_two_dies(Backend::Postgres).await;
}

#[tokio::test]
async fn on_mysql() {
    one_of_two_dies(Backend::Mysql).await;
}
