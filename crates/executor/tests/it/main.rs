//! The executor against a server that the test simulates.
#![expect(clippy::unwrap_used, clippy::panic, reason = "in a test that is how a surprise ends")]

mod agent;
mod basics;
mod declared;
mod durability;
mod fake;
mod logs;
mod pumps;
mod stopping;
mod stuck;

use std::time::Duration;

use rondel::{Builder, Executor, ExecutorError, Timing};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::prelude::*;

use fake::FakeServer;

/// How long a test waits for anything. A program that a test stops would run for longer than this.
const LIMIT: Duration = Duration::from_secs(45);

/// Short periods and timeouts, so that tests need not wait long for them.
fn quick() -> Timing {
    Timing {
        cancel_grace: Duration::from_millis(300),
        resend_after: Duration::from_millis(300),
        report_start_after: Duration::from_millis(100),
        sweep_period: Duration::from_millis(20),
        reconnect_min: Duration::from_millis(10),
        reconnect_max: Duration::from_millis(100),
        ack_grace: Duration::from_secs(2),
        ..Timing::default()
    }
}

fn builder(server: &FakeServer) -> Builder {
    install_subscriber();
    Executor::builder("app").server(server.url()).token("secret").name("tester").timing(quick())
}

fn install_subscriber() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| tracing_subscriber::registry().with(rondel::log_layer()).init());
}

/// An executor that runs in a task next to the test.
struct RunningExecutor {
    stop: CancellationToken,
    task: JoinSet<Result<(), ExecutorError>>,
}

impl RunningExecutor {
    fn start(builder: Builder) -> Self {
        Self::start_built(builder.build().expect("a good builder"))
    }

    fn start_built(executor: Executor) -> Self {
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let stop_requested = stop.clone().cancelled_owned();
        task.spawn(executor.run_until(stop_requested));
        Self { stop, task }
    }

    /// Starts an executor once the previous one has released the data directory.
    async fn start_after(builder: impl Fn() -> Builder) -> Self {
        let build_result = async {
            loop {
                match builder().build() {
                    Err(ExecutorError::DataDirInUse { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
                    build_result => break build_result.expect("a good builder"),
                }
            }
        };
        Self::start_built(tokio::time::timeout(LIMIT, build_result).await.expect("free in time"))
    }

    fn begin_stop(&self) {
        self.stop.cancel();
    }

    /// Drains the executor and waits for its end.
    async fn stop(mut self) {
        self.begin_stop();
        let end_result = tokio::time::timeout(LIMIT, self.task.join_next()).await.expect("ends in time");
        end_result.expect("one task").expect("no panic").expect("no error");
    }

    /// Drops the executor without a drain, as a crash would.
    async fn crash(mut self) {
        self.task.shutdown().await;
    }
}
