//! Switches: the effects of a draining or stopped app or executor, and of a stopped node, on runs.

use rondel_core::homes::Switch;
use rondel_core::outcome::CancelRequest;
use rondel_core::reason::{ReasonDetail, WaitFor};
use rondel_core::{AppId, Reason, RunId};
use rondel_proto::v1;

use super::active::{ActiveRun, Phase};
use super::decision::Decision;
use super::executors::given_name;
use super::ready::ReadyRun;
use super::step::Step;
use super::waits;

/// The request that ends the runs of a stopped app.
const APP_STOPPED: CancelRequest<'static> =
    CancelRequest { by: "the switch of its app: stopped", reason: Reason::Stopped };
/// The request that ends the runs of a stopped executor.
const EXECUTOR_STOPPED: CancelRequest<'static> = CancelRequest::requested("the switch of its executor: stopped");

/// The effect of an app's switch on a run that is to be placed.
pub(super) enum SwitchDecision {
    /// It may be placed.
    MayStart(ReadyRun),
    /// The app drains: the run waits, as it would for an executor.
    Waits(ReadyRun),
    /// The app is stopped: the run was skipped.
    Skipped,
}

pub(super) fn unless_switched_off(d: &mut Decision<'_>, ready: ReadyRun) -> SwitchDecision {
    match d.facts.switches.of_app(ready.run.app) {
        Switch::Active => SwitchDecision::MayStart(ready),
        Switch::Draining => SwitchDecision::Waits(ready),
        Switch::Stopped => {
            let detail = switch_wait(d, &ready).unwrap_or_default();
            waits::skip(d, &ready, Reason::Stopped, detail);
            SwitchDecision::Skipped
        }
    }
}

/// The wait of a run that its app's switch keeps from starting; `None` if the app is active.
pub(super) fn switch_wait(d: &Decision<'_>, ready: &ReadyRun) -> Option<ReasonDetail> {
    match d.facts.switches.of_app(ready.run.app) {
        Switch::Active => None,
        switch @ (Switch::Draining | Switch::Stopped) => {
            let app = Some(ready.definition.job.app.clone());
            Some(ReasonDetail { waits_for: Some(WaitFor::App), app, switch: Some(switch), ..ReasonDetail::default() })
        }
    }
}

/// Ends the runs of these apps that executors have. The requests are stored, so that the owner of each run reads them.
pub(super) fn stop_apps(d: &mut Decision<'_>, apps: &[AppId]) {
    let is_running = |active: &&ActiveRun| {
        apps.contains(&active.ready.run.app) && matches!(active.phase, Phase::Sent | Phase::Noted)
    };
    let mut runs: Vec<RunId> =
        d.state.runs.active_runs().filter(is_running).map(|active| active.ready.run.id).collect();
    runs.sort_unstable();
    if !runs.is_empty() {
        d.step(Step::Stop(runs, APP_STOPPED));
    }
}

/// Applies the switches of executors if they have changed.
pub(super) fn apply_switches(d: &mut Decision<'_>) {
    if d.state.executors.switch_revision != d.facts.switches.revision() {
        d.state.executors.switch_revision = d.facts.switches.revision();
        d.state.executors.set_switches(&d.facts.switches.executors());
    }
}

/// Ends the runs of stopped executors, even if only other nodes hear the executor. Groups of pump jobs are not ended here, because they
/// continue at other executors: the loop of the pumps orders them to leave.
pub(super) fn stop_executors(d: &mut Decision<'_>) {
    let switches = d.facts.switches;
    if !switches.executors().values().any(|switch| *switch == Switch::Stopped) {
        return;
    }
    let is_stopped = |active: &&ActiveRun| {
        let name = given_name(&active.executor_name);
        switches.of_executor(active.ready.run.app, name) == Switch::Stopped
    };
    let is_sent = |active: &&ActiveRun| matches!(active.phase, Phase::Sent | Phase::Noted);
    let is_pump = |active: &&ActiveRun| active.ready.definition.job.pump.is_some();
    let runs_to_stop = d.state.runs.active_runs().filter(is_sent).filter(is_stopped).filter(|active| !is_pump(active));
    let mut runs: Vec<RunId> = runs_to_stop.map(|active| active.ready.run.id).collect();
    runs.sort_unstable();
    if !runs.is_empty() {
        d.step(Step::Stop(runs, EXECUTOR_STOPPED));
    }
}

/// Asks the executors to leave this server, as for a shutdown. Each executor ends its stream once it holds no run.
pub(super) fn announce_shutdown(d: &mut Decision<'_>) {
    let grace_ms = u32::try_from(d.facts.settings.lost_after.as_millis()).unwrap_or(u32::MAX);
    d.send_all(&v1::server_message::Body::Drain(v1::Drain { grace_ms }));
}
