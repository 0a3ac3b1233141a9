//! A queue that is bounded per session. Apps take turns, and within an app, its sessions take turns. However much one executor sends,
//! executors of other apps wait for at most one of its items.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rondel_core::AppId;
use tokio::sync::Notify;

/// The origin of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) app: AppId,
    /// The number of the session that sent the item.
    pub(crate) session: u64,
}

/// Limits of the waiting items, in the unit of their weights. An app without waiting items may always add an item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) session: usize,
    pub(crate) app: usize,
    pub(crate) all: usize,
}

#[derive(Debug)]
pub(crate) struct TurnQueue<T> {
    bounds: Bounds,
    state: Mutex<State<T>>,
    /// Notified when an item is added.
    item_added: Notify,
    /// Notified when items are taken, so that there is room.
    room_freed: Notify,
}

#[derive(Debug)]
struct State<T> {
    apps: BTreeMap<AppId, AppQueue<T>>,
    /// The apps with waiting items, in the order of their turns.
    turns: VecDeque<AppId>,
    weight: usize,
}

#[derive(Debug)]
struct AppQueue<T> {
    sessions: BTreeMap<u64, SessionQueue<T>>,
    turns: VecDeque<u64>,
    weight: usize,
}

#[derive(Debug)]
struct SessionQueue<T> {
    items: VecDeque<(usize, T)>,
    weight: usize,
}

impl<T> TurnQueue<T> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let state = State { apps: BTreeMap::new(), turns: VecDeque::new(), weight: 0 };
        Self { bounds, state: Mutex::new(state), item_added: Notify::new(), room_freed: Notify::new() }
    }

    /// Adds an item to its session's queue; returns the item if the session, its app or the whole queue is full.
    pub(crate) fn offer(&self, source: Source, weight: usize, item: T) -> Result<(), T> {
        self.lock().offer(self.bounds, source, weight, item)?;
        self.item_added.notify_one();
        Ok(())
    }

    /// Like [`offer`](Self::offer), but waits for room for up to `limit`.
    pub(crate) async fn offer_within(&self, limit: Duration, source: Source, weight: usize, item: T) -> Result<(), T> {
        let deadline = tokio::time::Instant::now() + limit;
        let mut item = item;
        loop {
            let room_freed = self.room_freed.notified();
            tokio::pin!(room_freed);
            // The notification is enabled before the check, so that a take between the check and the wait is not missed.
            room_freed.as_mut().enable();
            match self.offer(source, weight, item) {
                Ok(()) => return Ok(()),
                Err(back) => item = back,
            }
            if tokio::time::timeout_at(deadline, room_freed).await.is_err() {
                return Err(item);
            }
        }
    }

    /// Waits for items, and takes them in turns until their weight reaches `weight_max`.
    pub(crate) async fn take(&self, weight_max: usize) -> Vec<T> {
        loop {
            let taken_items = self.lock().take(weight_max);
            if !taken_items.is_empty() {
                self.room_freed.notify_waiters();
                return taken_items;
            }
            self.item_added.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    fn offer(&mut self, bounds: Bounds, source: Source, weight: usize, item: T) -> Result<(), T> {
        let app = self.apps.get(&source.app);
        let app_weight = app.map_or(0, |app| app.weight);
        let session_weight = app.and_then(|app| app.sessions.get(&source.session)).map_or(0, |queue| queue.weight);
        let is_too_much = |before: usize, max: usize| before > 0 && before + weight > max;
        if is_too_much(session_weight, bounds.session)
            || is_too_much(app_weight, bounds.app)
            || (is_too_much(self.weight, bounds.all) && app_weight > 0)
        {
            return Err(item);
        }
        let turns = &mut self.turns;
        let app = self.apps.entry(source.app).or_insert_with(|| {
            turns.push_back(source.app);
            AppQueue { sessions: BTreeMap::new(), turns: VecDeque::new(), weight: 0 }
        });
        let turns = &mut app.turns;
        let queue = app.sessions.entry(source.session).or_insert_with(|| {
            turns.push_back(source.session);
            SessionQueue { items: VecDeque::new(), weight: 0 }
        });
        queue.items.push_back((weight, item));
        queue.weight += weight;
        app.weight += weight;
        self.weight += weight;
        Ok(())
    }

    fn take(&mut self, weight_max: usize) -> Vec<T> {
        let (mut taken_items, mut weight) = (Vec::new(), 0);
        while weight < weight_max {
            let Some((item_weight, item)) = self.take_next() else { break };
            weight += item_weight.max(1);
            taken_items.push(item);
        }
        taken_items
    }

    fn take_next(&mut self) -> Option<(usize, T)> {
        let app_id = self.turns.pop_front()?;
        let app = self.apps.get_mut(&app_id)?;
        let session = app.turns.pop_front()?;
        let queue = app.sessions.get_mut(&session)?;
        let (weight, item) = queue.items.pop_front()?;
        queue.weight -= weight;
        app.weight -= weight;
        self.weight -= weight;
        if queue.items.is_empty() {
            app.sessions.remove(&session);
        } else {
            app.turns.push_back(session);
        }
        if app.sessions.is_empty() {
            self.apps.remove(&app_id);
        } else {
            self.turns.push_back(app_id);
        }
        Some((weight, item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { session: 4, app: 6, all: 10 };

    const fn of(app: i64, session: u64) -> Source {
        Source { app: AppId::new(app), session }
    }

    #[tokio::test]
    async fn apps_take_turns_and_within_an_app_its_sessions() {
        let queue = TurnQueue::new(Bounds { session: 100, app: 100, all: 100 });
        for item in ["a1", "a2", "a3"] {
            queue.offer(of(1, 1), 1, item).unwrap();
        }
        queue.offer(of(1, 2), 1, "b1").unwrap();
        queue.offer(of(2, 3), 1, "c1").unwrap();
        assert_eq!(queue.take(3).await, ["a1", "c1", "b1"]);
        assert_eq!(queue.take(10).await, ["a2", "a3"]);
    }

    #[tokio::test]
    async fn the_weights_of_a_session_an_app_and_the_queue_are_bounded() {
        let queue = TurnQueue::new(BOUNDS);
        assert_eq!(queue.offer(of(1, 1), 100, 'l'), Ok(()), "a large one alone");
        assert_eq!(queue.offer(of(1, 1), 1, 'x'), Err('x'));
        assert_eq!(queue.offer(of(1, 2), 1, 'x'), Err('x'), "its app has more than its share");
        assert_eq!(queue.offer(of(2, 3), 3, 'm'), Ok(()), "another app comes in, however full it is");
        assert_eq!(queue.offer(of(2, 3), 1, 'x'), Err('x'), "all have their share");
        assert_eq!(queue.take(1).await, ['l']);
        assert_eq!(queue.offer(of(2, 3), 1, 'n'), Ok(()));
        assert_eq!(queue.offer(of(2, 3), 1, 'x'), Err('x'), "four of one session");
        assert_eq!(queue.offer(of(2, 4), 2, 'o'), Ok(()));
        assert_eq!(queue.offer(of(2, 5), 1, 'x'), Err('x'), "six of one app");
        assert_eq!(queue.take(100).await, ['m', 'o', 'n']);
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_waits_for_room_but_not_for_ever() {
        let queue = TurnQueue::new(BOUNDS);
        queue.offer(of(1, 1), 4, 1).unwrap();
        let limit = Duration::from_secs(1);
        assert_eq!(queue.offer_within(limit, of(1, 1), 1, 2).await, Err(2));
        let (offered, taken) = tokio::join!(queue.offer_within(limit, of(1, 1), 1, 3), queue.take(1));
        assert_eq!((offered, taken), (Ok(()), vec![1]));
    }
}
