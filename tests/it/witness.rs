//! Measures how slow the machine is: how late a program begins that is started each second, as the agent starts
//! programs.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rondel_tests::wall_clock_ms;
use tokio::process::Command;
use tokio::task::JoinSet;

/// The measurement runs from the start of the value until it is dropped.
pub(crate) struct Witness {
    worst_ms: Arc<AtomicI64>,
    _task: JoinSet<()>,
}

impl Witness {
    pub(crate) fn start() -> Self {
        let worst_ms = Arc::new(AtomicI64::new(0));
        let mut task = JoinSet::new();
        task.spawn(watch(Arc::clone(&worst_ms)));
        Self { worst_ms, _task: task }
    }

    /// The greatest delay of a program so far.
    pub(crate) fn worst_ms(&self) -> i64 {
        self.worst_ms.load(Ordering::Relaxed)
    }
}

async fn watch(worst_ms: Arc<AtomicI64>) {
    loop {
        let now_ms = wall_clock_ms();
        let second_ms = (now_ms / 1_000 + 1) * 1_000;
        tokio::time::sleep(Duration::from_millis(u64::try_from(second_ms - now_ms).unwrap_or(0))).await;
        let status = Command::new("sh").args(["-c", "date +%s%3N"]).stdout(Stdio::null()).status().await;
        assert!(status.expect("sh runs").success());
        worst_ms.fetch_max(wall_clock_ms() - second_ms, Ordering::Relaxed);
    }
}
