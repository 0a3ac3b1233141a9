//! Maintenance windows: planning, listing and ending them.

use std::time::Duration;

use rondel_core::maintenance::{FiresInside, LENGTH_MAX, MaintenanceWindow};
use rondel_core::time::format_duration;
use rondel_core::{AppId, FieldError, MaintenanceId, NamespaceId, Timestamp};
use rondel_store::StoreError;
use rondel_store::alerts::{MAINTENANCE_COUNT_MAX, MAINTENANCE_TOTAL_MAX, MaintenanceRecord};

use super::save::RuleError;
use crate::node::Node;
use crate::store_once::store_once;

/// Maximum length of the reason for a window, in characters.
const REASON_LEN_MAX: usize = 1_000;
/// How far in the future a window may begin: 366 days.
const AHEAD_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// If saving a window takes longer than this, its start is checked again. Less than the 10 s that [`maintenance_lead`] allows for saving.
const SAVE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub enum WindowEnd {
    /// At an instant.
    At(Timestamp),
    /// A length of time after the start of the window.
    After(Duration),
}

/// A request for a maintenance window.
#[derive(Clone, Debug)]
pub struct MaintenanceRequest {
    /// The app with its name; `None` for all jobs of the namespace.
    pub app: Option<(AppId, String)>,
    /// The start of the window; `None` for as soon as possible.
    pub starts_at: Option<Timestamp>,
    pub end: WindowEnd,
    /// What happens to the fires inside the window.
    pub fires: FiresInside,
    /// The user's reason, shown with the window.
    pub reason: String,
}

/// Minimum time from now to the start of a new window. It is needed because fires are claimed ahead, and a claimed fire is not withdrawn.
#[must_use]
pub fn maintenance_lead(node: &Node) -> Duration {
    node.shared().config.maintenance_lead()
}

fn check(request: &MaintenanceRequest, now: Timestamp, lead: Duration) -> Result<(Timestamp, Timestamp), RuleError> {
    let mut errors = Vec::new();
    let earliest = (now + lead).ceil_second();
    let starts_at = request.starts_at.unwrap_or(earliest);
    if starts_at < earliest {
        let lead_text = format_duration(lead);
        let message = format!(
            "{starts_at} is too early: fires are claimed up to {lead_text} ahead; {earliest} or later is possible, or leave it out to begin as soon as possible"
        );
        errors.push(FieldError::new("/starts_at", message));
    }
    if starts_at > now + AHEAD_MAX {
        errors.push(FieldError::new("/starts_at", format!("{starts_at} is more than 366 days ahead")));
    }
    let (field, ends_at) = match request.end {
        WindowEnd::At(at) => ("/ends_at", at),
        WindowEnd::After(length) => ("/length", starts_at.saturating_add(length)),
    };
    if ends_at <= starts_at {
        let message = format!("{ends_at} is not after the start, {starts_at}");
        errors.push(FieldError::new(field, message));
    } else if ends_at.since(starts_at) > LENGTH_MAX {
        let (length, max) = (format_duration(ends_at.since(starts_at)), format_duration(LENGTH_MAX));
        errors.push(FieldError::new(field, format!("the window is {length} long; at most {max}")));
    }
    if request.reason.trim().is_empty() {
        errors.push(FieldError::new("/reason", "is shown on every page; state why, such as \"moving the database\""));
    } else if request.reason.chars().count() > REASON_LEN_MAX {
        let count = request.reason.chars().count();
        errors.push(FieldError::new("/reason", format!("has {count} characters; at most {REASON_LEN_MAX}")));
    }
    if errors.is_empty() { Ok((starts_at, ends_at)) } else { Err(RuleError::Invalid(errors)) }
}

/// The error if no more windows may be planned: `open_count` windows of the namespace have not ended.
fn too_many(open_count: usize) -> RuleError {
    let what = "maintenance windows";
    if u32::try_from(open_count).is_ok_and(|count| count < MAINTENANCE_COUNT_MAX) {
        return RuleError::TooManyInAll { what, count: MAINTENANCE_TOTAL_MAX };
    }
    RuleError::TooMany { what, count: MAINTENANCE_COUNT_MAX }
}

/// Plans a maintenance window.
///
/// # Errors
/// [`RuleError`].
pub async fn add_maintenance(
    node: &Node,
    namespace: NamespaceId,
    request: MaintenanceRequest,
    author: &str,
) -> Result<MaintenanceRecord, RuleError> {
    let (began_micros, now) = (node.shared().clock.boot_micros(), node.now());
    let (starts_at, ends_at) = check(&request, now, maintenance_lead(node))?;
    let MaintenanceRequest { app, fires, reason, .. } = request;
    let id = MaintenanceId::new(node.new_id());
    let (app, app_name) = app.unzip();
    let window = MaintenanceWindow { id, namespace, app, starts_at, ends_at, fires };
    let record = MaintenanceRecord { window, app_name, reason, author: author.to_owned(), created_at: now };
    if !store_once(|| node.store().add_maintenance(&record)).await? {
        return Err(too_many(node.store().maintenance(Some(namespace), now).await?.len()));
    }
    let elapsed_micros = node.shared().clock.boot_micros().saturating_sub(began_micros);
    if u128::from(elapsed_micros.unsigned_abs()) > SAVE_TIMEOUT.as_micros()
        && starts_at <= node.now() + maintenance_lead(node)
    {
        // Fires inside the window may already be claimed.
        node.store().end_maintenance(namespace, id, node.now()).await?;
        return Err(StoreError::no_answer("add_maintenance").into());
    }
    Ok(record)
}

/// Ends a maintenance window now. A window that has not begun never starts. A window that has already ended is not changed.
///
/// # Errors
/// [`RuleError::NotFound`], or the store's.
pub async fn end_maintenance(node: &Node, namespace: NamespaceId, id: MaintenanceId) -> Result<(), RuleError> {
    match node.store().end_maintenance(namespace, id, node.now()).await? {
        true => Ok(()),
        false => Err(RuleError::NotFound("maintenance window")),
    }
}

/// The windows of a namespace that are in progress or begin within an hour, as this node last read them.
#[must_use]
pub fn near_maintenance(node: &Node, namespace: NamespaceId) -> Vec<MaintenanceRecord> {
    node.shared().maintenance.current_and_upcoming(namespace, node.now(), Duration::from_secs(3600))
}
