//! The thread on which an executor talks to its servers, so that no handler can hold that up.
//!
//! Handlers run on the caller's runtime. One that loops without an `await` holds a thread of that runtime, and several of
//! them hold all; sessions, heartbeats, deadlines and results go on meanwhile, for they are here.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, loops};
use crate::session;

/// How long the tasks of an executor that ends may take to be gone.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Starts the executor's loops and sessions on a thread of their own. It ends when the executor's lifecycle does.
pub(crate) fn start(engine: &Arc<Engine>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let engine = Arc::clone(engine);
    let thread = std::thread::Builder::new().name("rondel-executor".to_owned());
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    thread.spawn(move || {
        // Should this thread end in any other way, the executor ends too: alone it would only seem to live.
        let _stop_all = engine.setup.lifecycle.guard();
        let _told = tracing::dispatcher::set_default(&dispatch);
        runtime.block_on(async {
            loops::start(&engine);
            session::dial_configured(&engine);
            let lifecycle = &engine.setup.lifecycle;
            lifecycle.hard.cancelled().await;
            // The journal has its last words, and sessions end in order; a handler that holds its thread does not count.
            lifecycle.tracker.close();
            tokio::time::timeout(LAST_WORDS, lifecycle.tracker.wait()).await.ok();
        });
    })?;
    Ok(())
}
