//! Switches: what a draining or stopped app, and a stopped node, mean for runs.

use rondel_core::homes::Switch;
use rondel_core::reason::{Detail, WaitFor};
use rondel_core::{AppId, Reason, RunId, Timestamp};
use rondel_proto::v1;

use super::Ready;
use super::run_loop::DispatchLoop;
use super::state::{Active, Phase};
use super::steps::Step;

/// What an app's switch says about a run that is to be placed.
pub(super) enum Switched {
    /// It may go on.
    On(Ready),
    /// The app drains: it waits, as it would for an executor.
    Waits(Ready),
    /// The app is stopped: it has its verdict.
    Ended,
}

impl DispatchLoop {
    pub(super) fn unless_switched_off(&mut self, ready: Ready, now: Timestamp) -> Switched {
        match self.shared.apps.of(ready.run.app) {
            Switch::Active => Switched::On(ready),
            Switch::Draining => Switched::Waits(ready),
            Switch::Stopped => {
                let detail = self.switched_off(&ready).unwrap_or_default();
                self.skip(&ready, Reason::Stopped, detail, now);
                Switched::Ended
            }
        }
    }

    /// What is told of a run that its app's switch kept from starting.
    pub(super) fn switched_off(&self, ready: &Ready) -> Option<Detail> {
        match self.shared.apps.of(ready.run.app) {
            Switch::Active => None,
            switch @ (Switch::Draining | Switch::Stopped) => {
                let app = Some(ready.definition.job.app.clone());
                Some(Detail { waits_for: Some(WaitFor::App), app, switch: Some(switch), ..Detail::default() })
            }
        }
    }

    /// Runs of these apps in executors' hands are to end: durably asked for, so that whoever owns them hears of it.
    pub(super) fn stop_apps(&mut self, apps: &[AppId]) {
        let is_running = |active: &&Active| {
            apps.contains(&active.ready.run.app) && matches!(active.phase, Phase::Sent | Phase::Noted)
        };
        let mut runs: Vec<RunId> = self.runs.actives().filter(is_running).map(|active| active.ready.run.id).collect();
        runs.sort_unstable();
        if !runs.is_empty() {
            self.step(Step::Stop(runs));
        }
    }

    /// Tells executors that this server goes. Their streams end once they have nothing in hand.
    pub(super) fn dismiss(&self) {
        let grace_ms = u32::try_from(self.shared.config.lost_after.as_millis()).unwrap_or(u32::MAX);
        for online in self.executors.all() {
            online.session.send(v1::server_message::Body::Drain(v1::Drain { grace_ms }));
        }
    }
}
