//! Measures another admin server, XXL-JOB itself or ratch-job, with executors of XXL-JOB's protocol, so that Rondel
//! can be compared with it on the same machine.
//!
//! - [`run_peer`] is the whole measurement; `plan` has its input, and `report` what it found;
//! - `admin` is the signed-in user at a server of either kind: `xxl_admin` and `ratch_admin`, which send their requests through
//!   `http`; `job` names the changes of a job;
//! - `starts` decides which fire each start belongs to, and `cost` counts what the server's processes use.

mod admin;
mod cost;
mod http;
mod job;
mod plan;
mod ratch_admin;
mod report;
mod starts;
mod xxl_admin;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::error_chain::chain_in_one_line;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::admin::{Admin, Registry};
use self::cost::Processes;
use self::job::JobChange;
use self::plan::PeerUrls;
pub use self::plan::{PeerKind, PeerPlan, PeerSecret};
pub use self::report::{PeerCounts, PeerCpu, PeerProcess, PeerReport};
use self::starts::{StartRecorder, attribute_starts};
use crate::report::Lateness;
use crate::usage;
use crate::witness::Witness;
use crate::xxl::{Target, XxlExecutors};
use crate::{BenchError, clock};

/// How many requests about jobs are sent at the same time.
const LANES: usize = 8;
/// How long the server may take until its triggers go to the executors.
const EXECUTORS_KNOWN_TIMEOUT: Duration = Duration::from_secs(100);
/// How often the server is asked for the executors that it knows.
const ASK_PERIOD: Duration = Duration::from_secs(1);
/// How long after the window its last runs may start.
const GRACE_SECONDS: i64 = 10;
/// How many seconds before the window are evaluated, so that their late runs do not count as repetitions.
const LEAD_SECONDS: u32 = 5;
/// How long the removal of jobs and app may take.
const CLEAN_UP_TIMEOUT: Duration = Duration::from_secs(180);

/// Measures a running admin server. The jobs and the app are then removed from the server if it still answers, also after an
/// error and when `stop` is cancelled.
///
/// # Errors
/// Those of [`BenchError`]; [`BenchError::Stopped`] if `stop` was cancelled.
pub async fn run_peer(plan: &PeerPlan, stop: &CancellationToken) -> Result<PeerReport, BenchError> {
    plan.check()?;
    let (urls, processes) = (PeerUrls::of(plan)?, Processes::find(&plan.pids)?);
    let load_before = usage::load();
    let app = format!("rondel-bench-{}", clock::now().as_millis());
    let registry = Registry::new(&urls, plan.token.reveal(), &app)?;
    let mut admin = Admin::sign_in(plan, &urls).await?;
    let create_result = admin.create_app(&app).await;
    let mut measurement = Measurement {
        plan,
        admin: Arc::new(admin),
        registry,
        app,
        stop,
        executors: None,
        recorder: StartRecorder::default(),
    };
    let result = match create_result {
        Ok(()) => measurement.measure(&urls, processes).await,
        Err(error) => Err(error),
    };
    let left_behind = measurement.clean_up().await;
    if let (Err(_), Some(left_behind)) = (&result, &left_behind) {
        tracing::warn!("left behind: {left_behind}");
    }
    Ok(PeerReport { left_behind, load_before, url: urls.base_url, ..result? })
}

/// One measurement.
struct Measurement<'a> {
    plan: &'a PeerPlan,
    admin: Arc<Admin>,
    registry: Registry,
    app: String,
    stop: &'a CancellationToken,
    executors: Option<XxlExecutors>,
    recorder: StartRecorder,
}

impl Measurement<'_> {
    async fn measure(&mut self, urls: &PeerUrls, mut processes: Processes) -> Result<PeerReport, BenchError> {
        let plan = self.plan;
        let target = Target {
            base_urls: vec![urls.base_url.clone()],
            app: self.app.clone(),
            token: plan.token.reveal().to_owned(),
        };
        let recorder = self.recorder.clone();
        let executors = XxlExecutors::start(target, plan.executors, move |run| recorder.note(run)).await?;
        let executors = self.executors.insert(executors);
        self.registry.register(executors.addresses()).await?;
        wait_until_known(&self.admin, &self.app, executors.addresses(), self.stop).await?;

        let creation_start = Instant::now();
        let jobs = create_jobs(&self.admin, &self.app, plan.jobs, self.stop).await?;
        change_jobs(&self.admin, &jobs, JobChange::Start, Some(self.stop)).await?;
        let creation_time = creation_start.elapsed();

        let warm_up = Duration::from_secs(plan.warm_up.into());
        let window_start = (clock::now() + self.admin.head_start()).ceil_second() + warm_up;
        let window = window_start.second()..window_start.second() + i64::from(plan.seconds);
        let lead_seconds = i64::from(LEAD_SECONDS.min(plan.warm_up));
        self.recorder.open(window.start - lead_seconds..window.end + GRACE_SECONDS);
        sleep_until(window_start, self.stop).await?;

        let witness = Witness::start()?;
        processes.begin();
        let (cpu_before, acknowledged_before, start) =
            (clock::cpu_time(), executors.acknowledged_count(), Instant::now());
        let watch_result = watch(&mut processes, &window, self.stop).await;
        let (elapsed_seconds, cpu_s) =
            (start.elapsed().as_secs_f64(), clock::cpu_time().saturating_sub(cpu_before).as_secs_f64());
        let acknowledged = executors.acknowledged_count() - acknowledged_before;
        // The witness is ended before the errors are returned, so that its thread ends in any case.
        let witness = witness.end();
        watch_result?;
        let processes = processes.end()?;
        wait_for_last_starts(&self.recorder, plan.planned_count(), &window, self.stop).await?;

        let (started_in_all, starts) = self.recorder.take();
        let fires = attribute_starts(starts, &jobs, &window, lead_seconds);
        let counts = PeerCounts {
            planned: plan.planned_count(),
            started: fires.started,
            started_late: fires.started_late,
            missing: fires.missing,
            repeated: fires.repeated,
            early: fires.early,
            acknowledged,
            started_in_all,
        };
        Ok(PeerReport {
            peer: self.admin.name(),
            url: String::new(),
            version: env!("CARGO_PKG_VERSION"),
            jobs: plan.jobs,
            seconds: elapsed_seconds,
            executors: plan.executors,
            create_s: creation_time.as_secs_f64(),
            load_before: String::new(),
            runs_per_second: acknowledged as f64 / elapsed_seconds,
            start_lateness: Lateness::from(&fires.lateness),
            witness: Lateness::from(&witness),
            counts,
            cpu: PeerCpu::new(&processes, cpu_s, acknowledged),
            processes,
            left_behind: None,
        })
    }

    /// Removes jobs, registrations and app. Returns what could not be removed, and why.
    async fn clean_up(mut self) -> Option<String> {
        let app = self.app.clone();
        let result = tokio::time::timeout(CLEAN_UP_TIMEOUT, self.remove()).await;
        let result = result.unwrap_or_else(|_| Err(BenchError::failed("the server took too long")));
        result.err().map(|error| format!("the app {app} and perhaps some of its jobs: {}", chain_in_one_line(&error)))
    }

    async fn remove(&mut self) -> Result<(), BenchError> {
        let job_removal = remove_jobs(&self.admin, &self.app).await;
        let mut unregistration = Ok(());
        if let Some(executors) = &mut self.executors {
            executors.end().await;
            unregistration = match self.registry.unregister(executors.addresses()).await {
                // A server that refuses the token has registered no executor.
                Err(BenchError::Auth { .. }) => Ok(()),
                result => result,
            };
        }
        // This is tried even if jobs are left: XXL-JOB then refuses to remove the group.
        let app_removal = self.admin.remove_app(&self.app).await;
        job_removal.and(unregistration).and(app_removal)
    }
}

/// Waits until the server's triggers go to all executors.
async fn wait_until_known(
    admin: &Admin,
    app: &str,
    addresses: &[String],
    stop: &CancellationToken,
) -> Result<(), BenchError> {
    let start = Instant::now();
    while !admin.has_executors(app, addresses).await? {
        if start.elapsed() > EXECUTORS_KNOWN_TIMEOUT {
            let count = addresses.len();
            let message = format!("the server did not list all of the {count} executors that registered as {app}");
            return Err(BenchError::failed(message));
        }
        sleep_until(clock::now() + ASK_PERIOD, stop).await?;
    }
    Ok(())
}

/// Creates the jobs, all of them stopped; returns their ids.
async fn create_jobs(
    admin: &Arc<Admin>,
    app: &str,
    count: u32,
    stop: &CancellationToken,
) -> Result<Vec<i64>, BenchError> {
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let names = (0..count).skip(lane).step_by(LANES).map(|number| format!("{app}-{number:05}"));
        let (names, admin, stop): (Vec<String>, _, _) = (names.collect(), Arc::clone(admin), stop.clone());
        lanes.spawn(async move {
            let mut job_ids = Vec::new();
            for name in names {
                check_not_stopped(&stop)?;
                job_ids.push(admin.create_job(&name).await?);
            }
            Ok::<_, BenchError>(job_ids)
        });
    }
    let mut job_ids = Vec::new();
    while let Some(lane_result) = lanes.join_next().await {
        job_ids.extend(lane_result.map_err(|error| BenchError::failed(format!("a lane failed: {error}")))??);
    }
    Ok(job_ids)
}

/// Changes jobs one by one, in several lanes.
async fn change_jobs(
    admin: &Arc<Admin>,
    jobs: &[i64],
    change: JobChange,
    stop: Option<&CancellationToken>,
) -> Result<(), BenchError> {
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let jobs: Vec<i64> = jobs.iter().skip(lane).step_by(LANES).copied().collect();
        let (admin, stop) = (Arc::clone(admin), stop.cloned());
        lanes.spawn(async move {
            for job in jobs {
                stop.as_ref().map_or(Ok(()), check_not_stopped)?;
                admin.change_job(job, change).await?;
            }
            Ok::<_, BenchError>(())
        });
    }
    while let Some(lane_result) = lanes.join_next().await {
        lane_result.map_err(|error| BenchError::failed(format!("a lane failed: {error}")))??;
    }
    Ok(())
}

/// Stops and removes all jobs that the server lists for the app, including jobs whose creation was not answered.
async fn remove_jobs(admin: &Arc<Admin>, app: &str) -> Result<(), BenchError> {
    let mut previous_jobs = Vec::new();
    loop {
        let jobs = admin.jobs(app).await?;
        if jobs.is_empty() {
            return Ok(());
        }
        if jobs == previous_jobs {
            return Err(BenchError::failed("the server reported success, but removed no job"));
        }
        change_jobs(admin, &jobs, JobChange::Stop, None).await?;
        change_jobs(admin, &jobs, JobChange::Remove, None).await?;
        previous_jobs = jobs;
    }
}

/// Sleeps through the window. Memory is read in the middle of each second, where it does not disturb the fires.
async fn watch(processes: &mut Processes, window: &Range<i64>, stop: &CancellationToken) -> Result<(), BenchError> {
    for second in window.clone() {
        sleep_until(Timestamp::from_millis(second * 1_000 + 500), stop).await?;
        processes.sample();
    }
    sleep_until(Timestamp::from_secs(window.end), stop).await
}

/// Waits until all runs of the window have started, up to a limit.
async fn wait_for_last_starts(
    recorder: &StartRecorder,
    planned_count: u64,
    window: &Range<i64>,
    stop: &CancellationToken,
) -> Result<(), BenchError> {
    let deadline = Timestamp::from_secs(window.end + GRACE_SECONDS);
    while (recorder.fire_count(window) as u64) < planned_count && clock::micros_after(deadline) < 0 {
        sleep_until(clock::now() + Duration::from_millis(200), stop).await?;
    }
    Ok(())
}

async fn sleep_until(at: Timestamp, stop: &CancellationToken) -> Result<(), BenchError> {
    tokio::select! {
        () = stop.cancelled() => Err(BenchError::Stopped),
        () = clock::sleep_until(at) => Ok(()),
    }
}

fn check_not_stopped(stop: &CancellationToken) -> Result<(), BenchError> {
    if stop.is_cancelled() { Err(BenchError::Stopped) } else { Ok(()) }
}
