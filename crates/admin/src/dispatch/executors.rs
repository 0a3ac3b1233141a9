//! The executors with a stream to this node, as the dispatcher sees them: which have the handler, and which have room.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use rondel_core::homes::Switch;
use rondel_core::labels;
use rondel_core::name::ANY_HANDLER;
use rondel_core::reason::{Obstacle, ObstacleKind};
use rondel_core::route::{Answer, Candidate, HashPoints, Question, Refusal, question};
use rondel_core::select::UnmetCondition;
use rondel_core::{AppId, ExecutorId, Job, NodeId, Run, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;

use super::event::{FenceAnswer, Report, SessionHandle};
use super::ready::ReadyRun;
use super::silences::Silences;
use super::starts::{StartReport, StartReports};
use crate::registry::OnlineExecutor;

/// An executor with a stream to this node.
#[derive(Debug)]
pub(crate) struct ConnectedExecutor {
    pub(crate) session: SessionHandle,
    pub(crate) app: AppId,
    /// Its name, unique within the app: the name that it gave itself, with a suffix if another live executor has the same name.
    pub(crate) name: String,
    /// The name that it gave itself.
    given_name: String,
    /// Its name and its points on the hash ring, for routers.
    hash_points: HashPoints,
    labels: BTreeMap<String, String>,
    weight: u32,
    handlers: HashSet<String>,
    /// Whether it takes any handler.
    takes_any_handler: bool,
    slots: usize,
    /// Maximum number of runs of this node that it may have at once, a little more than its slots.
    run_count_max: usize,
    /// How long before a run's instant it takes the trigger; zero if it starts each run immediately.
    pub(crate) ahead_max: Duration,
    /// How many runs of this node it has, or is about to get.
    pub(crate) in_flight: usize,
    /// How many runs of other nodes it had, by its last heartbeat.
    runs_of_other_nodes: usize,
    /// When it was last heard.
    pub(crate) heard_at: Timestamp,
    /// Heartbeats that came on this stream.
    pub(crate) beat_count: u64,
    is_draining: bool,
    /// Its switch, as users set it.
    pub(crate) switch: Switch,
    /// Until when it gets no more runs, because it reported that it was full; the end of one of its runs clears this earlier.
    pub(crate) full_until: Option<Timestamp>,
    pub(crate) report: Report,
    /// For each node, the newest epoch whose triggers it refuses, as it reported on this stream.
    fenced_epochs: BTreeMap<NodeId, i64>,
    /// The attempts that it had, or whose results it had, when it last answered a fence.
    fenced_runs: HashSet<(RunId, i32)>,
    /// Which of the attempts in `fenced_runs` had begun.
    starts: StartReports,
}

impl ConnectedExecutor {
    /// Whether it has reported that it takes no triggers of this lease any more.
    pub(crate) fn has_fenced(&self, lease: LeaseToken) -> bool {
        self.fenced_epochs.get(&lease.node).is_some_and(|epoch| *epoch >= lease.epoch)
    }

    /// The attempts that it had, or whose results it had, when it last answered a fence.
    pub(crate) fn runs_at_last_fence(&self) -> impl Iterator<Item = &(RunId, i32)> {
        self.fenced_runs.iter()
    }

    /// Whether this run had begun when the executor last answered a fence.
    pub(crate) fn start_report(&self, run: &Run) -> StartReport {
        self.starts.get(run.id, run.attempt)
    }

    /// Whether the run may go to it: it has the handler, meets the job's conditions, and the caller named no other executor.
    fn is_fit(&self, ready: &ReadyRun) -> bool {
        let job = &ready.definition.job;
        self.is_allowed_for(&ready.run) && self.has_handler(job) && job.select.admits(&self.given_name, &self.labels)
    }

    /// Whether the run's caller named this executor, or no executor.
    pub(crate) fn is_allowed_for(&self, run: &Run) -> bool {
        let only_executor = run.only_executor.as_deref();
        only_executor.is_none_or(|only| only == self.given_name) || mutant::on(Mutant::ChosenIsIgnored)
    }

    /// An executor that takes any handler, as those of XXL-JOB do, takes no pump jobs.
    fn has_handler(&self, job: &Job) -> bool {
        (self.takes_any_handler && job.pump.is_none()) || self.handlers.contains(&job.handler)
    }

    /// Whether it gets new runs once it has room: it is not shutting down, and its switch is active.
    pub(crate) fn takes_new(&self) -> bool {
        !self.is_draining && self.switch == Switch::Active
    }

    /// Records that it is shutting down.
    pub(crate) const fn set_draining(&mut self) {
        self.is_draining = true;
    }

    /// Why it takes no run of the job now; `None` if it may take one.
    fn obstacle(&self, job: &Job, now: Timestamp) -> Option<Obstacle> {
        let unmet_condition = job.select.unmet_condition(&self.given_name, &self.labels);
        let (kind, condition) = match (self.has_handler(job), unmet_condition, self.refusal(now)) {
            (false, ..) => (ObstacleKind::Handler, None),
            (true, Some(UnmetCondition::Name), _) => (ObstacleKind::NotSelected, None),
            (true, Some(UnmetCondition::Label(condition)), _) => (ObstacleKind::Label, Some(condition)),
            (true, None, Some(Refusal::Draining)) if self.is_draining => (ObstacleKind::Draining, None),
            (true, None, Some(Refusal::Draining)) => (ObstacleKind::Drained, None),
            (true, None, Some(Refusal::Stopped)) => (ObstacleKind::Stopped, None),
            (true, None, Some(_)) => (ObstacleKind::Full, None),
            (true, None, None) => match question(job.route)? {
                Question::Online => (ObstacleKind::Silent, None),
                Question::Idle => (ObstacleKind::Busy, None),
            },
        };
        Some(Obstacle { executor: self.name.clone(), kind, condition })
    }

    /// Why it takes no run now; `None` if it may take one.
    fn refusal(&self, now: Timestamp) -> Option<Refusal> {
        match self.switch {
            Switch::Draining => return Some(Refusal::Draining),
            Switch::Stopped => return Some(Refusal::Stopped),
            Switch::Active if self.is_draining => return Some(Refusal::Draining),
            Switch::Active => {}
        }
        let is_full = self.in_flight >= self.run_count_max || self.full_until.is_some_and(|until| until > now);
        is_full.then_some(Refusal::Full)
    }

    /// Whether it takes a run now and has spare slots: more than a quarter of its slots are free, and more than one.
    pub(crate) fn has_spare_slots(&self, now: Timestamp) -> bool {
        let free_slots = self.slots.saturating_sub(self.in_flight + self.runs_of_other_nodes);
        free_slots > (self.slots / 4).max(1) && self.refusal(now).is_none()
    }

    /// Whether a run that it gets now begins at once.
    pub(crate) const fn has_free_slot(&self) -> bool {
        self.in_flight + self.runs_of_other_nodes < self.slots
    }

    pub(crate) fn candidate(&self, answer: Answer, now: Timestamp) -> Candidate<'_> {
        let active = self.in_flight + self.runs_of_other_nodes;
        Candidate { hashed_name: &self.hash_points, weight: self.weight, active, refusal: self.refusal(now), answer }
    }
}

/// Separates a shared name from its distinguishing suffix; no name that an executor gives itself contains it.
const NAME_SEPARATOR: char = '~';

/// Whether an executor with this obstacle is fit for the run but cannot take it now.
pub(crate) const fn is_fit_despite(kind: ObstacleKind) -> bool {
    matches!(kind, ObstacleKind::Full | ObstacleKind::Busy | ObstacleKind::Silent)
}

/// The name that an executor gave itself, from the name that is unique within its app.
#[must_use]
pub fn given_name(name: &str) -> &str {
    name.split_once(NAME_SEPARATOR).map_or(name, |(given, _)| given)
}

/// An executor that no node has heard for too long.
#[derive(Clone, Copy, Debug)]
struct LostExecutor {
    /// When the loss was found.
    lost_at: Timestamp,
    /// When it was last heard; [`Timestamp::MAX`] if its process has ended, because no node hears it again then.
    heard_at: Timestamp,
    /// Whether none of its runs continues: its process has ended, or it has stopped even the runs that may continue in silence, without a
    /// server.
    has_stopped_all: bool,
}

/// How long a lost executor is remembered: longer than any run may continue in silence.
const LOST_KEPT_FOR: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
pub(crate) struct Executors {
    online_executors: BTreeMap<ExecutorId, ConnectedExecutor>,
    /// The executors of each app, in the order in which routers see them: by name. The id distinguishes two processes with one name.
    by_app: HashMap<AppId, BTreeMap<(String, ExecutorId), ()>>,
    /// Executors that are not connected here, and when a node last heard them.
    last_heard_at: BTreeMap<ExecutorId, Timestamp>,
    /// Executors that no node has heard for too long.
    lost_executors: BTreeMap<ExecutorId, LostExecutor>,
    /// The number of the newest hello of each executor in the maps above, also after its stream has ended.
    newest_hellos: BTreeMap<ExecutorId, u64>,
    pub(crate) silences: Silences,
    /// The revision of the switches that was applied last.
    pub(crate) switch_revision: u64,
}

impl Executors {
    /// Sets the switch of each executor. A switch belongs to the name that executors give themselves: executors that share the name share
    /// the switch.
    pub(crate) fn set_switches(&mut self, switches: &BTreeMap<(AppId, String), Switch>) {
        for online in self.online_executors.values_mut() {
            let key = (online.app, online.given_name.clone());
            online.switch = switches.get(&key).copied().unwrap_or(Switch::Active);
        }
    }

    pub(crate) fn join(&mut self, session: SessionHandle, executor: &OnlineExecutor, report: Report) {
        let id = executor.id;
        self.last_heard_at.remove(&id);
        self.lost_executors.remove(&id);
        self.newest_hellos.insert(id, session.hello_number);
        if let Some(earlier_entry) = self.online_executors.remove(&id) {
            self.unlist(&earlier_entry);
        }
        self.by_app.entry(executor.app).or_default().insert((executor.name.clone(), id), ());
        let slots = usize::try_from(executor.slots).unwrap_or(usize::MAX);
        let online = ConnectedExecutor {
            session,
            app: executor.app,
            name: executor.name.clone(),
            given_name: given_name(&executor.name).to_owned(),
            hash_points: match executor.labels.get(labels::XXL_ADDRESS) {
                Some(address) => HashPoints::at(&executor.name, address),
                None => HashPoints::new(&executor.name),
            },
            labels: executor.labels.clone(),
            weight: executor.weight,
            handlers: executor.handlers.iter().cloned().collect(),
            takes_any_handler: executor.handlers.iter().any(|handler| handler == ANY_HANDLER),
            // A little more than the slots, so that the next run is there when one ends.
            run_count_max: slots + 4.max(slots / 4),
            slots,
            ahead_max: executor.ahead_max,
            in_flight: 0,
            runs_of_other_nodes: 0,
            heard_at: executor.last_seen_at,
            beat_count: 0,
            is_draining: executor.is_draining,
            switch: Switch::Active,
            full_until: None,
            report,
            fenced_epochs: BTreeMap::new(),
            fenced_runs: HashSet::new(),
            starts: StartReports::default(),
        };
        self.online_executors.insert(id, online);
    }

    /// Whether the executor has sent a newer hello since. A server that was suspended reads the hellos of several streams in any order, and an
    /// outdated hello does not list the runs that the executor has received on a newer stream.
    pub(crate) fn is_outdated(&self, session: &SessionHandle) -> bool {
        self.newest_hellos.get(&session.executor).is_some_and(|newest| *newest > session.hello_number)
    }

    /// The name of this executor on this node. Two executors with one name get distinct names, unless the journal in a data directory proves
    /// that one is the other's successor, or that both took over the directory of the same third executor.
    pub(crate) fn distinct_name(&self, executor: &OnlineExecutor, predecessor: Option<ExecutorId>) -> String {
        let is_other_executor = |online: &ConnectedExecutor| {
            let id = online.session.executor;
            let is_of_same_directory =
                predecessor.is_some() && [Some(id), online.report.predecessor].contains(&predecessor);
            id != executor.id && !is_of_same_directory && online.name == executor.name
        };
        match self.executors_in_app(executor.app).any(is_other_executor) {
            true => format!("{}{NAME_SEPARATOR}{:06x}", executor.name, executor.id.get() & 0xff_ffff),
            false => executor.name.clone(),
        }
    }

    /// Removes an executor whose stream ended; `None` if a newer stream is open.
    pub(crate) fn leave(&mut self, id: ExecutorId, session_number: u64, now: Timestamp) -> Option<ConnectedExecutor> {
        if self.online_executors.get(&id)?.session.number != session_number {
            return None;
        }
        let online = self.online_executors.remove(&id)?;
        self.unlist(&online);
        self.last_heard_at.insert(id, now);
        Some(online)
    }

    /// Removes an executor from the list of its app. Its next stream may give it another name.
    fn unlist(&mut self, online: &ConnectedExecutor) {
        if let Some(names_and_ids) = self.by_app.get_mut(&online.app) {
            names_and_ids.remove(&(online.name.clone(), online.session.executor));
        }
    }

    pub(crate) fn get(&self, id: ExecutorId) -> Option<&ConnectedExecutor> {
        self.online_executors.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ExecutorId) -> Option<&mut ConnectedExecutor> {
        self.online_executors.get_mut(&id)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &ConnectedExecutor> {
        self.online_executors.values()
    }

    /// The connected executor of the app that has proved to be the successor of `id`; `None` if there is none.
    pub(crate) fn successor(&self, app: AppId, id: ExecutorId) -> Option<&ConnectedExecutor> {
        self.executors_in_app(app).find(|online| online.report.predecessor == Some(id))
    }

    /// Watches an executor that another node heard at `at`, until it connects here or is lost. If it counts as lost, and `at` is later than the
    /// instant at which it was last heard, it is not lost any more.
    pub(crate) fn watch(&mut self, id: ExecutorId, at: Timestamp) {
        if self.lost_executors.get(&id).is_some_and(|lost| lost.heard_at < at) {
            self.lost_executors.remove(&id);
        }
        if !self.online_executors.contains_key(&id) && !self.lost_executors.contains_key(&id) {
            let heard_at = self.last_heard_at.entry(id).or_insert(at);
            *heard_at = at.max(*heard_at);
        }
    }

    /// Executors without a stream here that were last heard earlier than `heard_before`: another node may have heard them since.
    pub(crate) fn suspects(&self, heard_before: Timestamp) -> Vec<ExecutorId> {
        self.last_heard_at.iter().filter(|(_, at)| **at < heard_before).map(|(id, _)| *id).collect()
    }

    /// Whether it has no stream here and was last heard earlier than `heard_before`.
    pub(crate) fn is_suspect(&self, id: ExecutorId, heard_before: Timestamp) -> bool {
        self.last_heard_at.get(&id).is_some_and(|at| *at < heard_before)
    }

    /// Records that no node has heard the executor for too long. If it was last heard earlier than `stopped_before`, it has stopped even the runs
    /// that continue in silence. False if the executor has connected meanwhile, or was lost before.
    pub(crate) fn record_loss(&mut self, id: ExecutorId, now: Timestamp, stopped_before: Timestamp) -> bool {
        self.lost_executors.retain(|_, lost| lost.lost_at + LOST_KEPT_FOR > now);
        let Some(heard_at) = self.last_heard_at.remove(&id) else { return false };
        self.silences.end(id);
        self.lost_executors
            .insert(id, LostExecutor { lost_at: now, heard_at, has_stopped_all: heard_at < stopped_before });
        let Self { online_executors, last_heard_at, lost_executors, .. } = self;
        self.newest_hellos.retain(|id, _| {
            online_executors.contains_key(id) || last_heard_at.contains_key(id) || lost_executors.contains_key(id)
        });
        true
    }

    /// Records that its process has ended. False if that is known already, or if it is connected.
    pub(crate) fn record_process_end(&mut self, id: ExecutorId, now: Timestamp) -> bool {
        let is_newly_known = self.record_loss(id, now, Timestamp::MAX)
            || self.lost_executors.get_mut(&id).is_some_and(|lost| !std::mem::replace(&mut lost.has_stopped_all, true));
        if let Some(lost_executor) = self.lost_executors.get_mut(&id) {
            lost_executor.heard_at = Timestamp::MAX;
        }
        is_newly_known
    }

    /// Watches a lost executor again if it was last heard earlier than `heard_before`. By now it must have stopped even the runs that continue
    /// in silence, unless a node has heard it since.
    pub(crate) fn suspect_again(&mut self, id: ExecutorId, heard_before: Timestamp) {
        if let Some(lost_executor) =
            self.lost_executors.get(&id).copied().filter(|lost| !lost.has_stopped_all && lost.heard_at < heard_before)
        {
            self.lost_executors.remove(&id);
            self.last_heard_at.insert(id, lost_executor.heard_at);
        }
    }

    /// Whether none of its runs continues, not even those that may continue in silence.
    pub(crate) fn has_stopped_all(&self, id: ExecutorId) -> bool {
        self.lost_executors.get(&id).is_some_and(|lost| lost.has_stopped_all)
    }

    pub(crate) fn is_lost(&self, id: ExecutorId) -> bool {
        self.lost_executors.contains_key(&id)
    }

    /// Ends the pauses of executors that reported themselves full. Executors without a stream count as heard at `now` if a later instant is
    /// recorded for them: otherwise a dead executor would not be lost before the clock has caught up.
    pub(crate) fn step_back(&mut self, now: Timestamp) {
        self.online_executors.values_mut().for_each(|online| online.full_until = None);
        self.last_heard_at.values_mut().for_each(|at| *at = now.min(*at));
    }

    /// The connected executor whose hello lists this attempt; `None` if there is none.
    pub(crate) fn reporter_of(&self, run: &Run) -> Option<ExecutorId> {
        let is_listed = |online: &&ConnectedExecutor| online.report.held_runs.contains(&(run.id, run.attempt));
        self.executors_in_app(run.app).find(is_listed).map(|online| online.session.executor)
    }

    /// Records an executor's answer to a fence; false if the answer came on a stream that is not the newest. A repeated answer may be older than
    /// the answer that was recorded last, so it does not change which runs the executor has.
    pub(crate) fn record_fence_answer(&mut self, id: ExecutorId, session_number: u64, answer: FenceAnswer) -> bool {
        let Some(online) = self.online_executors.get_mut(&id).filter(|online| online.session.number == session_number)
        else {
            return false;
        };
        if online.has_fenced(answer.lease) {
            return true;
        }
        let epoch = online.fenced_epochs.entry(answer.lease.node).or_insert(answer.lease.epoch);
        *epoch = answer.lease.epoch.max(*epoch);
        (online.fenced_runs, online.starts) = (answer.held_runs, answer.starts);
        online.fenced_runs.extend(answer.finished_runs);
        true
    }

    /// Discards the answers of executors about the leases of these nodes, so that the executors are asked again.
    pub(crate) fn discard_fence_answers(&mut self, nodes: &BTreeSet<NodeId>) {
        for online in self.online_executors.values_mut() {
            online.fenced_epochs.retain(|node, _| !nodes.contains(node));
        }
    }

    /// The executors that a router may choose from, sorted by name: those of the run's app that have the handler, meet the
    /// job's conditions, and have the name that the caller gave, if any.
    pub(crate) fn fit_executors(&self, ready: &ReadyRun) -> Vec<&ConnectedExecutor> {
        self.executors_in_app(ready.run.app).filter(|online| online.is_fit(ready)).collect()
    }

    /// Whether there are executors that a router may choose for the run, and `condition` is true of each of them.
    pub(crate) fn all_fit_satisfy(&self, ready: &ReadyRun, condition: impl Fn(&ConnectedExecutor) -> bool) -> bool {
        let mut executors = self.executors_in_app(ready.run.app);
        executors.all(|online| condition(online) || !online.is_fit(ready))
            && self.executors_in_app(ready.run.app).any(|online| online.is_fit(ready))
    }

    /// Why each online executor of the run's app does not take the run now; executors that are fit for the run come first. If the caller named an
    /// executor, only executors with that name are listed, or the name as offline.
    pub(crate) fn obstacles(&self, ready: &ReadyRun, now: Timestamp) -> Vec<Obstacle> {
        let obstacle = |online: &ConnectedExecutor| {
            let is_silent = self.is_silent(online) && online.is_fit(ready) && online.takes_new();
            let silent_obstacle =
                || Obstacle { executor: online.name.clone(), kind: ObstacleKind::Silent, condition: None };
            if is_silent { Some(silent_obstacle()) } else { online.obstacle(&ready.definition.job, now) }
        };
        let allowed_executors =
            || self.executors_in_app(ready.run.app).filter(|online| online.is_allowed_for(&ready.run));
        let mut obstacles: Vec<Obstacle> = allowed_executors().filter_map(obstacle).collect();
        if let Some(named_executor) = &ready.run.only_executor
            && allowed_executors().next().is_none()
        {
            obstacles.push(Obstacle { executor: named_executor.clone(), kind: ObstacleKind::Offline, condition: None });
        }
        obstacles.sort_by_key(|obstacle| !is_fit_despite(obstacle.kind));
        obstacles
    }

    /// The fit executors that take new runs, whether or not they have room now. A broadcast goes to all of them.
    pub(crate) fn eligible_executors(&self, ready: &ReadyRun) -> Vec<&ConnectedExecutor> {
        self.executors_in_app(ready.run.app).filter(|online| online.is_fit(ready) && online.takes_new()).collect()
    }

    /// Whether it has left its last triggers unanswered.
    pub(crate) fn is_silent(&self, online: &ConnectedExecutor) -> bool {
        self.silences.of(online.session.executor).is_some()
    }

    /// Records a heartbeat of an executor, which has `active` runs from all nodes.
    pub(crate) fn record_beat(&mut self, id: ExecutorId, active: usize, now: Timestamp) {
        if let Some(online) = self.online_executors.get_mut(&id) {
            online.runs_of_other_nodes = active.saturating_sub(online.in_flight);
            online.heard_at = now;
            online.beat_count += 1;
        }
    }

    pub(crate) fn record_heard(&mut self, id: ExecutorId, now: Timestamp) {
        if let Some(online) = self.online_executors.get_mut(&id) {
            online.heard_at = now;
        }
    }

    pub(crate) fn has_room_in(&self, app: AppId, now: Timestamp) -> bool {
        self.executors_in_app(app).any(|online| online.refusal(now).is_none())
    }

    /// Whether an executor of the app takes triggers ahead of their instants.
    pub(crate) fn any_takes_ahead(&self, app: AppId) -> bool {
        self.executors_in_app(app).any(|online| !online.ahead_max.is_zero())
    }

    pub(crate) fn forget_handler(&mut self, id: ExecutorId, handler: &str) {
        if let Some(online) = self.online_executors.get_mut(&id) {
            online.handlers.remove(handler);
        }
    }

    fn executors_in_app(&self, app: AppId) -> impl Iterator<Item = &ConnectedExecutor> {
        let names_and_ids = self.by_app.get(&app);
        names_and_ids.into_iter().flat_map(BTreeMap::keys).filter_map(|(_, id)| self.online_executors.get(id))
    }
}

#[cfg(test)]
mod fit_tests;

#[cfg(test)]
mod tests;
