//! The runtimes that commands run in, and the signals that end them.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure};
use crate::output;

/// How long an exit waits at most until tasks are dropped: a dropped task ends the processes that it started.
const DROP_TIMEOUT: Duration = Duration::from_millis(300);

/// Runs a program until it is asked to stop. The first SIGINT or SIGTERM cancels the program's token, so that it
/// drains; the second ends the program immediately.
pub(crate) fn serve<F>(program: impl FnOnce(CancellationToken) -> F) -> Result<Exit, Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let stop = CancellationToken::new();
        let mut program = pin!(program(stop.clone()));
        loop {
            tokio::select! {
                result = &mut program => return result.map(|()| Exit::Success),
                exit = signals.next() => {
                    if stop.is_cancelled() {
                        return Err(Failure::silent(exit));
                    }
                    output::print_message("stopping; a second signal exits immediately");
                    stop.cancel();
                }
            }
        }
    });
    runtime.shutdown_timeout(DROP_TIMEOUT);
    result
}

/// Runs a client command. SIGINT ends it immediately, also while it blocks in a read from stdin.
pub(crate) fn run(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    start_interrupt_thread()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            result = command => result,
            interrupt_result = wait_for_interrupt() => {
                interrupt_result?;
                Err(Failure::silent(Exit::Interrupted))
            }
        }
    })
}

/// Starts a thread that ends the process after a SIGINT while the command is blocked, for example in a read from stdin.
fn start_interrupt_thread() -> std::io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut interrupt = {
        let _inside = runtime.enter();
        signal(SignalKind::interrupt())?
    };
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
        runtime.block_on(async {
            while interrupt.recv().await.is_some() {
                if is_terminal_lent() {
                    continue;
                }
                tokio::time::sleep(DROP_TIMEOUT).await;
                std::process::exit(i32::from(Exit::Interrupted as u8));
            }
        });
    })?;
    Ok(())
}

/// Waits for a SIGINT that is meant for this program.
async fn wait_for_interrupt() -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    while interrupt.recv().await.is_some() && is_terminal_lent() {}
    Ok(())
}

static IS_TERMINAL_LENT: AtomicBool = AtomicBool::new(false);

fn is_terminal_lent() -> bool {
    IS_TERMINAL_LENT.load(Ordering::Relaxed)
}

/// While this exists, the program ignores SIGINT: Ctrl-C is meant for the program that uses the terminal, such as an editor.
#[derive(Debug)]
pub(crate) struct LentTerminal(());

impl LentTerminal {
    pub(crate) fn lend() -> Self {
        IS_TERMINAL_LENT.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for LentTerminal {
    fn drop(&mut self) {
        IS_TERMINAL_LENT.store(false, Ordering::Relaxed);
    }
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
