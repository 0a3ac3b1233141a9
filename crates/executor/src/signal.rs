//! Signals that usually end an executor.

/// Resolves at SIGTERM or ctrl-c, or if the program cannot listen for ctrl-c. The usual argument of `run_until`.
///
/// ```no_run
/// # async fn start(builder: rondel::Builder) -> Result<(), rondel::ExecutorError> {
/// builder.run_until(rondel::signal::terminate()).await
/// # }
/// ```
pub async fn terminate() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt => {}
            },
            Err(error) => {
                tracing::warn!(%error, "cannot listen for SIGTERM; only ctrl-c drains this executor");
                warn_if_failed(interrupt.await);
            }
        }
    }
    #[cfg(not(unix))]
    warn_if_failed(interrupt.await);
}

fn warn_if_failed(result: std::io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "cannot listen for ctrl-c; the executor stops");
    }
}
