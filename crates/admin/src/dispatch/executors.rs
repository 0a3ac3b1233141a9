//! The executors with a stream to this node, as the dispatcher sees them: who has the handler, and who has room.

use std::collections::{BTreeMap, HashMap, HashSet};

use rondel_core::route::{Answer, Candidate, Refusal, Seat};
use rondel_core::{AppId, ExecutorId, Job, Timestamp};

use super::{Report, SessionHandle};
use crate::registry::OnlineExecutor;

#[derive(Debug)]
pub(crate) struct Online {
    pub(crate) session: SessionHandle,
    pub(crate) app: AppId,
    pub(crate) name: String,
    /// The same name, as routers know it.
    seat: Seat,
    labels: BTreeMap<String, String>,
    weight: u32,
    handlers: HashSet<String>,
    limit: usize,
    pub(crate) in_flight: usize,
    /// How many runs of other nodes it had, by its last heartbeat.
    elsewhere: usize,
    /// When it was last heard.
    pub(crate) heard_at: Timestamp,
    pub(crate) draining: bool,
    /// It said that it was full: nothing more until then, or until something ends.
    pub(crate) full_until: Option<Timestamp>,
    pub(crate) report: Report,
}

impl Online {
    fn is_fit(&self, job: &Job) -> bool {
        self.handlers.contains(&job.handler) && job.select.admits(&self.name, &self.labels)
    }

    /// Why it takes no run now.
    fn refusal(&self, now: Timestamp) -> Option<Refusal> {
        if self.draining {
            return Some(Refusal::Draining);
        }
        let is_full = self.in_flight >= self.limit || self.full_until.is_some_and(|until| until > now);
        is_full.then_some(Refusal::Full)
    }

    pub(crate) fn candidate(&self, answer: Answer, now: Timestamp) -> Candidate<'_> {
        let active = self.in_flight + self.elsewhere;
        Candidate { seat: &self.seat, weight: self.weight, active, refusal: self.refusal(now), answer }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Executors {
    online: BTreeMap<ExecutorId, Online>,
    /// By stable name, which routers order by; the incarnation tells two of one name apart.
    by_app: HashMap<AppId, BTreeMap<(String, ExecutorId), ()>>,
    /// Who left, and when.
    gone: HashMap<ExecutorId, Timestamp>,
}

impl Executors {
    pub(crate) fn join(&mut self, session: SessionHandle, executor: &OnlineExecutor, report: Report) {
        let id = executor.id;
        self.gone.remove(&id);
        self.by_app.entry(executor.app).or_default().insert((executor.name.clone(), id), ());
        let slots = usize::try_from(executor.slots).unwrap_or(usize::MAX);
        let online = Online {
            session,
            app: executor.app,
            name: executor.name.clone(),
            seat: Seat::new(&executor.name),
            labels: executor.labels.clone(),
            weight: executor.weight,
            handlers: executor.handlers.iter().cloned().collect(),
            // A little more than the slots, so that the next run is there when one ends.
            limit: slots + 4.max(slots / 4),
            in_flight: 0,
            elsewhere: 0,
            heard_at: executor.last_seen_at,
            draining: executor.draining,
            full_until: None,
            report,
        };
        self.online.insert(id, online);
    }

    /// Its stream ended; `None` where a newer one is open.
    pub(crate) fn leave(&mut self, id: ExecutorId, number: u64, now: Timestamp) -> Option<Online> {
        if self.online.get(&id)?.session.number != number {
            return None;
        }
        let online = self.online.remove(&id)?;
        if let Some(named) = self.by_app.get_mut(&online.app) {
            named.remove(&(online.name.clone(), id));
        }
        self.gone.insert(id, now);
        Some(online)
    }

    pub(crate) fn get(&self, id: ExecutorId) -> Option<&Online> {
        self.online.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ExecutorId) -> Option<&mut Online> {
        self.online.get_mut(&id)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Online> {
        self.online.values()
    }

    /// The living incarnation that proved `id` to be its predecessor.
    pub(crate) fn successor(&self, id: ExecutorId) -> Option<&Online> {
        self.online.values().find(|online| online.report.predecessor == Some(id))
    }

    pub(crate) fn gone_since(&self, id: ExecutorId) -> Option<Timestamp> {
        self.gone.get(&id).copied()
    }

    /// Who left before `before`; forgotten here.
    pub(crate) fn take_lost(&mut self, before: Timestamp) -> Vec<ExecutorId> {
        let mut lost: Vec<_> = self.gone.iter().filter(|(_, at)| **at < before).map(|(id, _)| *id).collect();
        lost.sort_unstable();
        self.gone.retain(|_, at| *at >= before);
        lost
    }

    /// Everyone in the app who has the handler and meets the job's conditions, by name: those whom a router knows.
    pub(crate) fn fit(&self, app: AppId, job: &Job) -> Vec<&Online> {
        self.in_app(app).filter(|online| online.is_fit(job)).collect()
    }

    /// Of those, the ones who do not go away: what a broadcast goes to.
    pub(crate) fn staying(&self, app: AppId, job: &Job) -> Vec<&Online> {
        self.in_app(app).filter(|online| online.is_fit(job) && !online.draining).collect()
    }

    /// A heartbeat of an executor: how many runs it has, from all nodes.
    pub(crate) fn beat(&mut self, id: ExecutorId, active: usize, now: Timestamp) {
        if let Some(online) = self.online.get_mut(&id) {
            online.elsewhere = active.saturating_sub(online.in_flight);
            online.heard_at = now;
        }
    }

    pub(crate) fn heard(&mut self, id: ExecutorId, now: Timestamp) {
        if let Some(online) = self.online.get_mut(&id) {
            online.heard_at = now;
        }
    }

    pub(crate) fn has_room_in(&self, app: AppId, now: Timestamp) -> bool {
        self.in_app(app).any(|online| online.refusal(now).is_none())
    }

    pub(crate) fn forget_handler(&mut self, id: ExecutorId, handler: &str) {
        if let Some(online) = self.online.get_mut(&id) {
            online.handlers.remove(handler);
        }
    }

    fn in_app(&self, app: AppId) -> impl Iterator<Item = &Online> {
        let named = self.by_app.get(&app);
        named.into_iter().flat_map(BTreeMap::keys).filter_map(|(_, id)| self.online.get(id))
    }
}
