//! The thread on which an executor talks to its servers, so that no handler can delay the messages.
//!
//! Handlers run on the caller's runtime. A handler that loops without an `await` blocks a thread of that runtime, and
//! several such handlers can block all of them. Sessions, heartbeats, deadlines and results continue even then, because
//! they run on this thread.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, loops};
use crate::session;

/// How long the executor's tasks may take to end at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the executor's loops and sessions on a new thread, which ends with the executor's lifecycle.
pub(crate) fn start(engine: &Arc<Engine>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let engine = Arc::clone(engine);
    let thread = std::thread::Builder::new().name("rondel-executor".to_owned());
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    thread.spawn(move || {
        // If this thread ends early, for instance by a panic, the executor's tasks end, too: without this thread,
        // nothing talks to the servers.
        let _stop_all = engine.setup.lifecycle.guard();
        let _dispatch_guard = tracing::dispatcher::set_default(&dispatch);
        runtime.block_on(async {
            loops::start(&engine);
            session::dial_configured(&engine);
            let lifecycle = &engine.setup.lifecycle;
            lifecycle.hard.cancelled().await;
            // Gives the journal and the sessions time to finish, but does not wait for a handler that blocks its
            // thread.
            lifecycle.tracker.close();
            tokio::time::timeout(SHUTDOWN_TIMEOUT, lifecycle.tracker.wait()).await.ok();
        });
    })?;
    Ok(())
}
