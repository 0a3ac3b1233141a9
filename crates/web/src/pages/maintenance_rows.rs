//! A maintenance window in the console: in the list, in the form, and in the banner on every page while it is open or near.

use rondel_core::Timestamp;
use rondel_core::maintenance::FiresInside;
use rondel_store::alerts::MaintenanceRecord;

use super::moment::Moment;
use super::texts::Texts;

#[derive(Debug)]
pub(crate) struct WindowRow {
    pub(crate) id: String,
    /// The app, or all apps, in words.
    pub(crate) scope_text: String,
    pub(crate) reason: String,
    pub(crate) author: String,
    pub(crate) starts_at: Moment,
    pub(crate) ends_at: Moment,
    pub(crate) is_open: bool,
    /// Whether fires inside of the window are held until its end; otherwise they are skipped.
    pub(crate) holds_fires: bool,
}

pub(super) fn window_row(record: &MaintenanceRecord, now: Timestamp, t: &Texts) -> WindowRow {
    let window = &record.window;
    WindowRow {
        id: window.id.to_string(),
        scope_text: record.app_name.as_ref().map_or_else(|| t.maintenance_all.to_owned(), |app| t.maintenance_app(app)),
        reason: record.reason.clone(),
        author: record.author.clone(),
        starts_at: Moment::new(window.starts_at, now, t),
        ends_at: Moment::new(window.ends_at, now, t),
        is_open: window.has(now),
        holds_fires: window.fires == FiresInside::Hold,
    }
}

/// The form of a window as the user typed it.
#[derive(Debug, Default)]
pub(super) struct WindowForm {
    pub(super) app: String,
    pub(super) reason: String,
    /// Whether fires inside of the window are held until its end; otherwise they are skipped.
    pub(super) holds_fires: bool,
    pub(super) starts_at: String,
    pub(super) until: String,
}
