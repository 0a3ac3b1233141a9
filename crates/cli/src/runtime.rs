//! The runtimes that commands run in, and the signals that end them.

use std::pin::pin;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure};
use crate::output;

/// How long an immediate exit waits until tasks are dropped, and with them the processes that they started.
const DROP_TIMEOUT: Duration = Duration::from_millis(300);

/// Runs a program until it is asked to stop. The first SIGINT or SIGTERM cancels the program's token, so that it
/// drains; the second ends the program at once.
pub(crate) fn serve<F>(program: impl FnOnce(CancellationToken) -> F) -> Result<Exit, Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let stop = CancellationToken::new();
        let mut program = pin!(program(stop.clone()));
        loop {
            tokio::select! {
                ended = &mut program => return ended.map(|()| Exit::Success),
                exit = signals.next() => {
                    if stop.is_cancelled() {
                        return Err(Failure::silent(exit));
                    }
                    output::talk("stopping; once more to exit at once");
                    stop.cancel();
                }
            }
        }
    });
    runtime.shutdown_timeout(DROP_TIMEOUT);
    ended
}

/// Runs a client command. SIGINT ends it at once.
pub(crate) fn run(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            ended = command => ended,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                Err(Failure::silent(Exit::Interrupted))
            }
        }
    })
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for a signal, and returns the exit code to use if it ends the process.
    async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
        }
    }
}
