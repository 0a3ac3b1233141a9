//! A stand-in for XXL-JOB 3.x: its tables, and a scheduler that takes up fires five seconds ahead under the lock of its
//! database.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rondel_tests::{Backend, ScratchDb, wall_clock_ms};

const TABLES: [&str; 4] = [
    "CREATE TABLE xxl_job_lock (lock_name varchar(50) NOT NULL PRIMARY KEY)",
    "CREATE TABLE xxl_job_group (id int NOT NULL AUTO_INCREMENT PRIMARY KEY, app_name varchar(64) NOT NULL, title varchar(12) NOT NULL, \
     address_type tinyint NOT NULL DEFAULT 0, address_list text, update_time datetime)",
    "CREATE TABLE xxl_job_info (id int NOT NULL AUTO_INCREMENT PRIMARY KEY, job_group int NOT NULL, job_desc varchar(255) NOT NULL, \
     schedule_type varchar(50) NOT NULL DEFAULT 'CRON', schedule_conf varchar(128), \
     misfire_strategy varchar(50) NOT NULL DEFAULT 'DO_NOTHING', executor_handler varchar(255), glue_type varchar(50) NOT NULL, \
     trigger_status tinyint NOT NULL DEFAULT 0, trigger_last_time bigint NOT NULL DEFAULT 0, trigger_next_time bigint NOT NULL DEFAULT 0)",
    "CREATE TABLE xxl_job_log (id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, job_group int NOT NULL, job_id int NOT NULL, \
     executor_address varchar(255), executor_handler varchar(255), executor_param varchar(512), executor_sharding_param varchar(20), \
     executor_fail_retry_count int NOT NULL DEFAULT 0, trigger_time datetime, trigger_code int NOT NULL, trigger_msg text, \
     handle_time datetime, handle_code int NOT NULL, handle_msg text, alarm_status tinyint NOT NULL DEFAULT 0, \
     KEY I_trigger_time (trigger_time), KEY I_handle_code (handle_code), KEY I_jobid_jobgroup (job_id, job_group)) \
     DEFAULT CHARSET=utf8mb4",
];
/// How far ahead it takes up fires.
const READ_AHEAD_MS: i64 = 5_000;

/// A row of its log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogRow {
    pub(super) job: i64,
    /// When it was sent, in seconds.
    pub(super) at: i64,
    pub(super) trigger: &'static str,
}

impl LogRow {
    pub(super) fn new(job: i64, at: i64) -> Self {
        Self { job, at, trigger: "Cron触发" }
    }
}

/// The old scheduler. It runs from [`run`](Self::run) until it is dropped.
pub(super) struct OldScheduler {
    db: Arc<ScratchDb>,
    /// Its fires: the job, and the planned instant in seconds.
    fired: Arc<Mutex<Vec<(i64, i64)>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl OldScheduler {
    /// Creates its tables, without a job.
    pub(super) fn new(db: &ScratchDb) -> Self {
        for table in TABLES {
            db.sql(table);
        }
        db.sql("INSERT INTO xxl_job_lock VALUES ('schedule_lock')");
        let db = Arc::new(ScratchDb::given(Backend::Mysql, db.url()));
        Self { db, fired: Arc::default(), stop: Arc::default(), thread: None }
    }

    /// Adds jobs that fire from an instant on.
    pub(super) fn add(&self, jobs: std::ops::RangeInclusive<i64>, status: i64, next_s: i64) {
        let row = |job| format!("({job}, 1, 'job', '*/2 * * * * ?', 'shell', 'BEAN', {status}, {next_s}000)");
        let rows: Vec<String> = jobs.map(row).collect();
        self.db.sql(&format!(
            "INSERT INTO xxl_job_info (id, job_group, job_desc, schedule_conf, executor_handler, glue_type, trigger_status, \
             trigger_next_time) VALUES {}",
            rows.join(", ")
        ));
    }

    /// Writes rows into its log, in the zone of Shanghai.
    pub(super) fn write(&self, rows: &[LogRow]) {
        write(&self.db, rows);
    }

    pub(super) fn fired(&self) -> Vec<(i64, i64)> {
        self.fired.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn sql(&self, statement: &str) -> String {
        self.db.sql(statement)
    }

    /// Starts it: each job fires every `period_s` seconds.
    pub(super) fn run(&mut self, period_s: i64) {
        let (db, fired, stop) = (Arc::clone(&self.db), Arc::clone(&self.fired), Arc::clone(&self.stop));
        self.thread = Some(std::thread::spawn(move || {
            let mut ring: Vec<(i64, i64)> = Vec::new();
            let mut looks_at = 0;
            while !stop.load(Ordering::Relaxed) {
                let now = wall_clock_ms();
                if now >= looks_at {
                    ring.extend(take_up(&db, now, period_s));
                    looks_at = (now / 1_000 + 1) * 1_000;
                }
                let now = wall_clock_ms();
                let due: Vec<(i64, i64)> = ring.extract_if(.., |(_, at)| *at * 1_000 <= now).collect();
                let rows: Vec<LogRow> = due.iter().map(|(job, _)| LogRow::new(*job, now / 1_000)).collect();
                fired.lock().unwrap_or_else(PoisonError::into_inner).extend(due);
                if !rows.is_empty() {
                    write(&db, &rows);
                }
                std::thread::park_timeout(Duration::from_millis(50));
            }
        }));
    }
}

impl Drop for OldScheduler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// One pass: the fires of the next five seconds, one of each job.
fn take_up(db: &ScratchDb, now: i64, period_s: i64) -> Vec<(i64, i64)> {
    let due = format!("trigger_status = 1 AND trigger_next_time <= {}", now + READ_AHEAD_MS);
    let found = db.sql(&format!(
        "START TRANSACTION; SELECT lock_name FROM xxl_job_lock WHERE lock_name = 'schedule_lock' FOR UPDATE; \
         SELECT id, trigger_next_time FROM xxl_job_info WHERE {due} ORDER BY id; \
         UPDATE xxl_job_info SET trigger_last_time = trigger_next_time, trigger_next_time = trigger_next_time + {period_s}000 \
         WHERE {due}; COMMIT"
    ));
    let row = |line: &str| {
        let (job, next) = line.split_once('\t')?;
        Some((job.parse().ok()?, next.parse::<i64>().ok()? / 1_000))
    };
    found.lines().filter_map(row).collect()
}

fn write(db: &ScratchDb, rows: &[LogRow]) {
    let mut values = String::new();
    for LogRow { job, at, trigger } in rows {
        let comma = if values.is_empty() { "" } else { ", " };
        let row = format!(
            "(1, {job}, 'http://10.0.0.9:9999/', FROM_UNIXTIME({at}), 200, '任务触发类型：{trigger}<br>', 200)"
        );
        write!(values, "{comma}{row}").expect("a text takes it");
    }
    db.sql(&format!(
        "SET NAMES utf8mb4; SET time_zone = '+08:00'; INSERT INTO xxl_job_log (job_group, job_id, executor_address, trigger_time, \
         trigger_code, trigger_msg, handle_code) VALUES {values}"
    ));
}
