//! The loops that run next to the sessions.

use std::sync::Arc;

use super::Engine;
use super::ahead::AheadLoop;
use super::pumps::ReportLoop;
use super::scripts::ScriptLoop;
use super::sweep::SweepLoop;
use super::write_behind::JournalLoop;

pub(crate) fn start(engine: &Arc<Engine>) {
    let tracker = &engine.setup.lifecycle.tracker;
    tracker.spawn(AheadLoop::new(Arc::clone(engine)).run());
    tracker.spawn(SweepLoop::new(Arc::clone(engine)).run());
    tracker.spawn(ScriptLoop::new(Arc::clone(engine)).run());
    tracker.spawn(ReportLoop::new(Arc::clone(engine)).run());
    if let Some(journal) = &engine.journal {
        tracker.spawn(JournalLoop::new(Arc::clone(engine), Arc::clone(journal)).run());
    }
}
