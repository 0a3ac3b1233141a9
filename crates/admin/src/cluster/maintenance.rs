//! Maintenance windows, as this node read them last.
//!
//! Fires are claimed only with a recent reading of the windows. Every node therefore knows a window that is planned far enough ahead (see
//! `EngineConfig::maintenance_lead`) before the first fire inside it can be claimed.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rondel_core::maintenance::MaintenanceWindow;
use rondel_core::{AppId, NamespaceId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::alerts::MaintenanceRecord;
use rondel_store::{Store, StoreError};

use crate::clock::Clock;

/// Maximum age of a reading with which fires are claimed.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(2);
/// A window still counts for this long after its end, because a server that was away still finds fires that were due inside it.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// The windows of all namespaces, except those that had ended [`KEPT_FOR`] before the reading.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceBoard {
    last_reading: RwLock<Reading>,
}

#[derive(Clone, Debug, Default)]
struct Reading {
    records: Arc<Vec<MaintenanceRecord>>,
    /// When the reading was requested, by the boot-time clock in microseconds; `None` before the first reading.
    asked_at: Option<i64>,
}

impl MaintenanceBoard {
    pub(crate) async fn read(&self, store: &dyn Store, clock: &Clock) -> Result<(), StoreError> {
        let asked_at = clock.boot_micros();
        let records = store.maintenance(None, clock.now() - KEPT_FOR).await?;
        *self.last_reading.write().unwrap_or_else(PoisonError::into_inner) =
            Reading { records: Arc::new(records), asked_at: Some(asked_at) };
        Ok(())
    }

    /// The windows to claim fires with. Reads them again if the last reading is too old; `None` if the new reading itself took longer than
    /// [`AGE_MAX`].
    pub(crate) async fn fresh_windows(&self, store: &dyn Store, clock: &Clock) -> Result<Option<Windows>, StoreError> {
        if self.windows(clock).is_none() {
            self.read(store, clock).await?;
        }
        Ok(self.windows(clock))
    }

    fn windows(&self, clock: &Clock) -> Option<Windows> {
        let reading = self.reading();
        let age = clock.boot_micros().saturating_sub(reading.asked_at?);
        (u128::from(age.unsigned_abs()) <= AGE_MAX.as_micros() || mutant::on(Mutant::OldWindows))
            .then_some(Windows(reading.records))
    }

    fn reading(&self) -> Reading {
        self.last_reading.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The windows that have not ended, for the jobs of an app.
    pub(crate) fn of(&self, namespace: NamespaceId, app: AppId, now: Timestamp) -> Vec<MaintenanceWindow> {
        let mut windows = Windows(self.reading().records).of(namespace, app, now);
        windows.retain(|window| window.ends_at > now);
        windows
    }

    /// The windows of a namespace that are open at `now`, or begin within `look_ahead`.
    pub(crate) fn current_and_upcoming(
        &self,
        namespace: NamespaceId,
        now: Timestamp,
        look_ahead: Duration,
    ) -> Vec<MaintenanceRecord> {
        let is_near = |record: &&MaintenanceRecord| {
            let window = &record.window;
            window.namespace == namespace && window.starts_at <= now + look_ahead && now < window.ends_at
        };
        self.reading().records.iter().filter(is_near).cloned().collect()
    }
}

/// The windows of one reading.
#[derive(Debug)]
pub(crate) struct Windows(Arc<Vec<MaintenanceRecord>>);

impl Windows {
    /// The windows for the jobs of an app.
    pub(crate) fn of(&self, namespace: NamespaceId, app: AppId, now: Timestamp) -> Vec<MaintenanceWindow> {
        let windows = self.0.iter().map(|record| &record.window).filter(|window| window.covers(namespace, app));
        windows.filter(|window| !mutant::on(Mutant::EndedWindowsForgotten) || window.ends_at > now).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use rondel_core::MaintenanceId;
    use rondel_core::maintenance::FiresInside;
    use rondel_store::{Alerts as _, MemStore};

    use super::*;
    use crate::clock::BootClock;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const NAMESPACE: NamespaceId = NamespaceId::new(1);

    /// The number of windows known at a reading and `millis` later, when one window was planned in between.
    async fn window_counts_before_and_after(millis: i64) -> (usize, usize) {
        let micros = Arc::new(AtomicI64::new(1));
        let boot = Arc::clone(&micros);
        let clock = Clock::starting_at(NOW, BootClock::Given(Arc::new(move || boot.load(Ordering::Relaxed))));
        let (store, board) = (MemStore::new(Arc::new(|| NOW)), MaintenanceBoard::default());
        let count = async || {
            let windows = board.fresh_windows(&store, &clock).await.unwrap().expect("a new reading is fresh");
            windows.of(NAMESPACE, AppId::new(1), NOW).len()
        };
        let before = count().await;
        let window = MaintenanceWindow {
            id: MaintenanceId::new(1),
            namespace: NAMESPACE,
            app: None,
            starts_at: NOW,
            ends_at: NOW + KEPT_FOR,
            fires: FiresInside::Skip,
        };
        let (reason, author) = ("moving".to_owned(), "ann".to_owned());
        let record = MaintenanceRecord { window, app_name: None, reason, author, created_at: NOW };
        assert!(store.add_maintenance(&record).await.unwrap());
        micros.fetch_add(millis * 1_000, Ordering::Relaxed);
        (before, count().await)
    }

    #[tokio::test]
    async fn fires_are_claimed_by_windows_that_were_read_a_moment_ago() {
        assert_eq!(window_counts_before_and_after(1_000).await, (0, 0), "a reading counts for two seconds");
        assert_eq!(window_counts_before_and_after(2_001).await, (0, 1), "then they are read again");
    }

    #[cfg(debug_assertions)]
    #[tokio::test]
    async fn old_windows_are_noticed() {
        mutant::set(Some(Mutant::OldWindows));
        let known = window_counts_before_and_after(2_001).await;
        mutant::set(None);
        assert_eq!(known, (0, 0));
    }
}
