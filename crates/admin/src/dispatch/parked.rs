//! Runs that are due and find nobody free: they wait here, in order, until the job's queue timeout. They stay
//! `pending` in the store, so a crash loses nothing.

use std::collections::{HashMap, VecDeque};

use rondel_core::{AppId, RunId, Timestamp};

use super::Ready;

/// How many runs that cannot be placed are looked past for one that can.
const LOOK_PAST: usize = 200;

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) ready: Ready,
    /// Since when it waits.
    pub(crate) since: Timestamp,
}

#[derive(Debug, Default)]
pub(crate) struct Parked(HashMap<AppId, VecDeque<Waiting>>);

impl Parked {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.0.entry(waiting.ready.run.app).or_default().push_back(waiting);
    }

    pub(crate) fn apps(&self) -> Vec<AppId> {
        let mut apps: Vec<_> = self.0.keys().copied().collect();
        apps.sort_unstable();
        apps
    }

    /// Offers the app's waiting runs, the longest waiting first, until `place` has refused enough of them. `place`
    /// gives back what it did not take.
    pub(crate) fn offer(&mut self, app: AppId, mut place: impl FnMut(Waiting) -> Option<Waiting>) {
        let Some(queue) = self.0.get_mut(&app) else { return };
        let mut refused = VecDeque::new();
        while refused.len() < LOOK_PAST {
            let Some(waiting) = queue.pop_front() else { break };
            refused.extend(place(waiting));
        }
        while let Some(waiting) = refused.pop_back() {
            queue.push_front(waiting);
        }
        if queue.is_empty() {
            self.0.remove(&app);
        }
    }

    /// Takes out everyone who has waited as long as they may.
    pub(crate) fn take_expired(&mut self, now: Timestamp) -> Vec<Ready> {
        let is_over = |waiting: &Waiting| now >= waiting.since + waiting.ready.definition.job.queue_timeout;
        let take = |queue: &mut VecDeque<Waiting>| {
            let (over, left) = std::mem::take(queue).into_iter().partition(&is_over);
            *queue = left;
            over
        };
        let waited: Vec<VecDeque<Waiting>> =
            self.0.values_mut().filter(|queue| queue.iter().any(is_over)).map(take).collect();
        self.0.retain(|_, queue| !queue.is_empty());
        waited.into_iter().flatten().map(|waiting| waiting.ready).collect()
    }

    pub(crate) fn remove(&mut self, app: AppId, run: RunId) -> Option<Ready> {
        let queue = self.0.get_mut(&app)?;
        let index = queue.iter().position(|waiting| waiting.ready.run.id == run)?;
        queue.remove(index).map(|waiting| waiting.ready)
    }

    pub(crate) fn drain(&mut self) -> Vec<Ready> {
        std::mem::take(&mut self.0).into_values().flatten().map(|waiting| waiting.ready).collect()
    }
}
