//! Permits that all apps share. Each app gets only a part of them, so that slow executors of one app cannot take all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rondel_core::AppId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of apps at which those without permits are removed.
const APP_COUNT_MAX: usize = 1_000;

/// The shared permits, and those of each app.
#[derive(Debug)]
pub(crate) struct Room {
    total: Arc<Semaphore>,
    app_max: usize,
    by_app: Mutex<HashMap<AppId, Weak<Semaphore>>>,
}

/// Permits of an app and of the shared room.
pub(crate) type RoomPermits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Room {
    /// Room for `total` permits, of which one app gets at most half.
    pub(crate) fn new(total: usize) -> Self {
        Self { total: Arc::new(Semaphore::new(total)), app_max: total / 2, by_app: Mutex::default() }
    }

    /// Waits for permits; `None` if the room is closed. The app's own permits are taken first, so that only few callers of one app wait for
    /// the shared permits.
    pub(crate) async fn take(&self, app: AppId, count: u32) -> Option<RoomPermits> {
        let app_permits = self.of_app(app).acquire_many_owned(count).await.ok()?;
        let permits = Arc::clone(&self.total).acquire_many_owned(count).await.ok()?;
        Some((app_permits, permits))
    }

    fn of_app(&self, app: AppId) -> Arc<Semaphore> {
        let mut by_app = self.by_app.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = by_app.get(&app).and_then(Weak::upgrade) {
            return room;
        }
        if by_app.len() >= APP_COUNT_MAX {
            by_app.retain(|_, room| room.strong_count() > 0);
        }
        let room = Arc::new(Semaphore::new(self.app_max));
        by_app.insert(app, Arc::downgrade(&room));
        room
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_app_does_not_take_all_room() {
        let room = Room::new(10);
        let take = async |app: i64, count: u32| {
            timeout(Duration::from_secs(60), room.take(AppId::new(app), count)).await.ok().flatten()
        };
        let mut held = vec![take(1, 3).await.expect("half is free"), take(1, 2).await.expect("half is free")];
        assert!(take(1, 1).await.is_none(), "the app has its half");
        held.push(take(2, 5).await.expect("the other half is free"));
        assert!(take(3, 1).await.is_none(), "nothing is left");
        held.clear();
        assert!(take(1, 5).await.is_some() && take(3, 5).await.is_some());
        for app in 0..2 * i64::try_from(APP_COUNT_MAX).expect("a small number") {
            assert!(take(app, 1).await.is_some());
        }
        assert!(room.by_app.lock().expect("a lock").len() <= APP_COUNT_MAX, "apps without permits are removed");
    }
}
