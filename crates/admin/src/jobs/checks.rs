//! Checks of a definition that only the server can make: of its instants against the present, and of the calendar,
//! channels and scripts that it uses.

use crate::jobs::overrides;
use crate::jobs::params;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::calendar::Calendar;
use rondel_core::spec::ExpectSpec;
use rondel_core::time::format_duration;
use rondel_core::{FieldError, Job, JobSpec, NamespaceId, Timestamp, name, pump};
use rondel_store::StoreError;
use rondel_store::catalog::{JobRecord, PinnedCalendar};

use super::JobError;
use super::scripts::{self, FoundScripts};
use crate::node::Node;

/// How long an executor waits for a handler that it stops: the SDK's default.
const EXECUTOR_GRACE: Duration = Duration::from_secs(10);

/// A definition as it will be saved.
#[derive(Debug)]
pub(super) struct CheckedDefinition {
    pub(super) spec: JobSpec,
    pub(super) job: Job,
    pub(super) calendar: Option<FoundCalendar>,
    /// The instant of the check. An `at` that is in the future at this instant fires, however long it takes to save the definition.
    pub(super) checked_at: Timestamp,
    /// Whether it was stored before. If so, its instants in the past do not run again.
    pub(super) is_restored: bool,
}

impl CheckedDefinition {
    /// The definition as saved at `now`. A past `at` that is to run immediately is moved to `now`. The instant of the check would be too
    /// early, because saving a long list can take longer than a fire may be late.
    pub(super) fn with_save_time(self, now: Timestamp, stored_spec: Option<&JobSpec>) -> Self {
        if self.is_restored {
            return self;
        }
        let mut spec = self.spec.clone();
        spec.replace_past_instants(instant_after(now), stored_spec);
        if spec == self.spec {
            return self;
        }
        let calendar = self.calendar.as_ref().map(|(_, calendar)| Arc::clone(calendar));
        match spec.compile_with(calendar) {
            Ok(job) => Self { spec, job, ..self },
            Err(_) => self,
        }
    }

    pub(super) fn pinned_calendar(&self) -> Option<PinnedCalendar> {
        self.calendar.as_ref().map(|(pin, _)| *pin)
    }
}

/// The earliest possible fire of a definition saved at `now`, which must come later than the save.
pub(super) fn instant_after(now: Timestamp) -> Timestamp {
    Timestamp::from_millis(now.as_millis() + 1)
}

/// A calendar, with its current version.
pub(super) type FoundCalendar = (PinnedCalendar, Arc<Calendar>);

/// The calendars that a definition uses. Each is `None` if the definition does not use it, or if it does not exist.
pub(super) struct FoundCalendars {
    /// The calendar that removes or moves the job's fires.
    pub(super) applied_calendar: Option<FoundCalendar>,
    /// The calendar with the days of the job's `success_by`.
    pub(super) expected_calendar: Option<FoundCalendar>,
}

/// The current version of a calendar; `None` if it does not exist.
///
/// # Errors
/// The store's.
pub async fn find_calendar(
    node: &Node,
    namespace: NamespaceId,
    name: &str,
) -> Result<Option<(PinnedCalendar, Arc<Calendar>)>, StoreError> {
    // Text that cannot be a name is not looked up, so that unchecked text of a caller never reaches the database.
    let is_name = name::check(name).is_ok();
    let record = if is_name { node.store().calendar(namespace, name).await? } else { None };
    let Some(record) = record else { return Ok(None) };
    let calendar = Calendar::of_rule(name, &record.expanded_rule).map_err(|errors| StoreError::Corrupt {
        table: "calendar_version",
        column: "expanded",
        id: record.id.get(),
        message: errors.first().map(ToString::to_string).unwrap_or_default(),
    })?;
    Ok(Some((PinnedCalendar { id: record.id, version: record.version }, Arc::new(calendar))))
}

/// Like [`check`] at the present instant, after the instants in the past that are to run have been replaced
/// ([`JobSpec::replace_past_instants`]).
pub(super) async fn replace_and_check(
    node: &Node,
    namespace: NamespaceId,
    mut spec: JobSpec,
    stored_spec: Option<&JobSpec>,
) -> Result<CheckedDefinition, JobError> {
    let now = node.now();
    spec.replace_past_instants(instant_after(now), stored_spec);
    check(node, namespace, spec, now, stored_spec).await
}

/// Checks a definition that is to replace `stored_spec`; `None` for a new job. Unless the definition was stored before, the caller has
/// replaced its instants in the past ([`JobSpec::replace_past_instants`]).
pub(super) async fn check(
    node: &Node,
    namespace: NamespaceId,
    spec: JobSpec,
    now: Timestamp,
    stored_spec: Option<&JobSpec>,
) -> Result<CheckedDefinition, JobError> {
    let applied_calendar = match &spec.calendar {
        Some(used) => find_calendar(node, namespace, &used.name).await?,
        None => None,
    };
    let expected_calendar = match expected_calendar(&spec) {
        Some(name) => find_calendar(node, namespace, name).await?,
        None => None,
    };
    let channels = channels_named(node, namespace, std::slice::from_ref(&spec)).await?;
    let scripts = scripts::find_named(node, namespace, std::slice::from_ref(&spec)).await?;
    check_with(
        node,
        namespace,
        spec,
        now,
        stored_spec,
        (FoundCalendars { applied_calendar, expected_calendar }, &channels, &scripts),
    )
}

/// The name of the calendar with the days of a definition's `success_by`.
pub(super) fn expected_calendar(spec: &JobSpec) -> Option<&str> {
    spec.expect.as_deref()?.success_by.as_ref()?.calendar.as_deref()
}

/// The names of the channels of the namespace; empty if no definition uses any.
pub(super) async fn channels_named(
    node: &Node,
    namespace: NamespaceId,
    specs: &[JobSpec],
) -> Result<BTreeSet<String>, StoreError> {
    if specs.iter().all(|spec| spec.expect.as_ref().is_none_or(|expect| expect.channels.is_empty())) {
        return Ok(BTreeSet::new());
    }
    Ok(node.store().channels(namespace).await?.into_iter().map(|channel| channel.name).collect())
}

/// Like [`check`], with the named calendars, channels and scripts already read.
pub(super) fn check_with(
    node: &Node,
    namespace: NamespaceId,
    spec: JobSpec,
    now: Timestamp,
    stored_spec: Option<&JobSpec>,
    (calendars, channels, scripts): (FoundCalendars, &BTreeSet<String>, &FoundScripts),
) -> Result<CheckedDefinition, JobError> {
    let FoundCalendars { applied_calendar, expected_calendar } = calendars;
    let expected_calendar = expected_calendar.map(|(_, calendar)| calendar);
    let compile_result = spec.compile_with(applied_calendar.as_ref().map(|(_, calendar)| Arc::clone(calendar)));
    let mut errors = compile_result.as_ref().err().cloned().unwrap_or_default();
    if let Some(calendar_use) = spec.calendar.as_ref().filter(|_| applied_calendar.is_none())
        && !errors.iter().any(|error| error.pointer == "/calendar/name")
    {
        errors.push(missing_calendar_error(&calendar_use.name));
    }
    errors.extend(expected_calendar_error(&spec, stored_spec, expected_calendar.as_deref()));
    let expected_before = stored_spec.and_then(|before| before.expect.as_deref());
    let new_channels = spec.expect.iter().flat_map(|expect| expect.new_channels(expected_before));
    for (index, name) in new_channels.filter(|(_, name)| !channels.contains(*name) && name::check(name).is_ok()) {
        errors.push(missing_channel_error(
            format!("/expect/channels/{index}"),
            name,
            channels.iter().map(String::as_str),
        ));
    }
    errors.extend(scripts::script_errors(&spec, stored_spec, scripts));
    errors.extend(past_instant_errors(&spec, now, stored_spec));
    errors.extend(hand_over_error(&spec, stored_spec, node.shared().config.silence));
    errors.extend(pump::ignored_setting_errors(&spec, stored_spec));
    errors.extend(params::param_errors(node, namespace, &spec, stored_spec));
    errors.extend(overrides::override_errors(node, namespace, &spec, stored_spec));
    match compile_result {
        Ok(job) if errors.is_empty() => {
            Ok(CheckedDefinition { spec, job, calendar: applied_calendar, checked_at: now, is_restored: false })
        }
        _ => Err(JobError::Invalid(errors)),
    }
}

/// Compiles a job's newest definition. If the job's calendar cannot be read, compiles the definition without the calendar, so that the
/// definition can still be corrected.
pub(super) async fn compile_newest(node: &Node, record: &JobRecord) -> Result<Job, JobError> {
    let key = (record.id, record.version);
    let definitions = node.definitions_once(vec![key]).await?;
    match definitions.get(&key) {
        Some(definition) => Ok(definition.job.clone()),
        None => record.spec.compile().map_err(JobError::Invalid),
    }
}

/// The error for a calendar that does not exist.
pub(super) fn missing_calendar_error(name: &str) -> FieldError {
    FieldError::new("/calendar/name", format!("there is no calendar {name:?} in this namespace"))
}

/// The error for a calendar of `success_by` that does not exist or has times of day: a deadline applies to whole days. A calendar that
/// `stored_spec` already names is accepted, so that the job can still be paused.
fn expected_calendar_error(
    spec: &JobSpec,
    stored_spec: Option<&JobSpec>,
    calendar: Option<&Calendar>,
) -> Option<FieldError> {
    let calendar_name = expected_calendar(spec).filter(|wanted| name::check(wanted).is_ok())?;
    if stored_spec.and_then(expected_calendar) == Some(calendar_name) {
        return None;
    }
    let message = match calendar {
        None => format!("there is no calendar {calendar_name:?} in this namespace"),
        Some(calendar) if calendar.has_times() => {
            format!("the calendar {calendar_name:?} has times of day, and success_by needs a calendar of days")
        }
        Some(_) => return None,
    };
    Some(FieldError::new("/expect/success_by/calendar", message))
}

/// The error for a channel that does not exist.
pub(crate) fn missing_channel_error<'n>(
    pointer: String,
    name: &str,
    channel_names: impl Iterator<Item = &'n str>,
) -> FieldError {
    let channel_names: Vec<&str> = channel_names.collect();
    let existing_text = if channel_names.is_empty() {
        "there is none".to_owned()
    } else {
        format!("there are {}", channel_names.join(", "))
    };
    FieldError::new(pointer, format!("there is no channel {name:?}; {existing_text}"))
}

/// The error for a channel that was deleted while the definition was checked.
pub(super) fn deleted_channel_error(expect: Option<&ExpectSpec>, name: &str) -> FieldError {
    let index = expect.and_then(|expect| expect.channels.iter().position(|channel| channel == name));
    FieldError::new(
        format!("/expect/channels/{}", index.unwrap_or_default()),
        format!("there is no channel {name:?}: it was deleted meanwhile"),
    )
}

/// The error for a `hand_over` that is too short. A group that hears no server stops after `silence`, and has ended after the executor's
/// additional grace. If an item moved to another group earlier, two groups would execute its rows. A value that `stored_spec` already has is
/// accepted, so that the job can still be paused.
fn hand_over_error(spec: &JobSpec, stored_spec: Option<&JobSpec>, silence: Duration) -> Option<FieldError> {
    let hand_over_of = |spec: &JobSpec| spec.pump.as_ref().map(|pump| pump.hand_over);
    let (hand_over, stops_within) = (hand_over_of(spec)?, silence + EXECUTOR_GRACE);
    let is_too_short = hand_over <= stops_within && stored_spec.and_then(hand_over_of) != Some(hand_over);
    let message = || {
        format!(
            "{} must be longer than {}: a group that hears no server may execute rows for that long ({} of silence, {} to end)",
            format_duration(hand_over),
            format_duration(stops_within),
            format_duration(silence),
            format_duration(EXECUTOR_GRACE)
        )
    };
    is_too_short.then(|| FieldError::new("/pump/hand_over", message()))
}

/// Errors for instants that are in the past when they are set. Instants that `stored_spec` already has are accepted.
fn past_instant_errors(
    spec: &JobSpec,
    now: Timestamp,
    stored_spec: Option<&JobSpec>,
) -> impl Iterator<Item = FieldError> {
    let stored_instants = stored_spec.map(JobSpec::once_instants).unwrap_or_default();
    let stored_ends = stored_spec.map(JobSpec::end_instants).unwrap_or_default();
    let is_newly_past =
        move |known: &[(String, Timestamp)], at| at <= now && !known.iter().any(|(_, before)| *before == at);
    let past_instants =
        spec.refused_past_instants().into_iter().filter(move |(_, at)| is_newly_past(&stored_instants, *at));
    let once_errors = past_instants.map(|(pointer, at)| {
        let hint = "trigger the job to run it now, or let if_past be run";
        FieldError::new(pointer, format!("{at} is in the past; {hint}"))
    });
    let end_errors = spec.end_instants().into_iter().filter(move |(_, end)| is_newly_past(&stored_ends, *end));
    once_errors.chain(
        end_errors.map(|(pointer, end)| FieldError::new(pointer, format!("{end} is in the past: it would never fire"))),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(schedule: &serde_json::Value) -> JobSpec {
        let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule});
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn past_instants_are_refused_unless_they_were_saved_before() {
        let now = "2026-11-20T12:00:00Z".parse().unwrap();
        let refused = |schedule, before: Option<&JobSpec>| -> Vec<String> {
            past_instant_errors(&spec(&schedule), now, before).map(|error| error.pointer).collect()
        };
        let old = json!([{"at": "2026-11-20T11:59:59Z"}, {"every": "5s", "end_at": "2026-11-20T11:00:00Z"}]);
        assert_eq!(refused(old.clone(), None), ["/schedule/0/at", "/schedule/1/end_at"]);
        assert!(refused(old.clone(), Some(&spec(&old))).is_empty());
        let other = spec(&json!({"every": "5s", "end_at": "2026-11-20T10:00:00Z"}));
        assert_eq!(
            refused(json!({"every": "5s", "end_at": "2026-11-20T11:00:00Z"}), Some(&other)),
            ["/schedule/end_at"]
        );
        assert!(refused(json!({"every": "5s", "end_at": "2026-11-20T12:00:01Z"}), None).is_empty());
        assert_eq!(
            refused(json!({"at": "2026-11-20T12:00:00Z"}), None),
            ["/schedule/at"],
            "fires come after the check"
        );
        assert!(refused(json!({"at": "2026-11-20T11:00:00Z", "if_past": "run"}), None).is_empty(), "a restored one");
    }

    #[test]
    fn a_hand_over_is_longer_than_a_group_may_continue_unheard() {
        let pump = |hand_over: &str| {
            let pump = json!({"items": {"count": 4}, "groups": 2, "hand_over": hand_over});
            let spec = json!({"name": "a", "app": "b", "handler": "c", "pump": pump});
            serde_json::from_value::<JobSpec>(spec).unwrap()
        };
        let refused = |wanted: &str, before: Option<&str>, silence| {
            let before = before.map(pump);
            hand_over_error(&pump(wanted), before.as_ref(), Duration::from_millis(silence))
                .map(|error| error.to_string())
        };
        let message = "/pump/hand_over: 25s must be longer than 25s: a group that hears no server may execute rows for that long \
                       (15s of silence, 10s to end)";
        assert_eq!(refused("25s", None, 15_000).as_deref(), Some(message));
        assert!(refused("25s", Some("45s"), 15_000).is_some());
        assert!(refused("25s", Some("25s"), 15_000).is_none(), "it was saved under a shorter silence");
        assert!(refused("26s", None, 15_000).is_none() && refused("11s", None, 200).is_none());
        assert!(hand_over_error(&spec(&json!(null)), None, Duration::from_secs(15)).is_none());
    }

    #[test]
    fn the_calendar_of_a_deadline_exists_and_has_whole_days() {
        let spec = |calendar: &str| -> JobSpec {
            let expect = json!({"success_by": {"time": "06:00", "calendar": calendar}});
            serde_json::from_value(json!({"name": "a", "app": "b", "handler": "c", "expect": expect})).unwrap()
        };
        let calendar =
            |rule: serde_json::Value| Calendar::of_rule("cn", &serde_json::from_value(rule).unwrap()).unwrap();
        let (days, times) = (calendar(json!({"weekdays": ["mon"]})), calendar(json!({"times": ["09:00-17:00"]})));
        let refused = |before: Option<&JobSpec>, found: Option<&Calendar>| {
            expected_calendar_error(&spec("cn"), before, found).map(|error| error.to_string())
        };
        let missing = "/expect/success_by/calendar: there is no calendar \"cn\" in this namespace";
        assert_eq!(refused(None, None).as_deref(), Some(missing));
        assert_eq!(refused(Some(&spec("us")), None).as_deref(), Some(missing));
        let timed = "/expect/success_by/calendar: the calendar \"cn\" has times of day, and success_by needs a calendar of days";
        assert_eq!(refused(None, Some(&times)).as_deref(), Some(timed));
        assert_eq!(refused(None, Some(&days)), None);
        assert_eq!((refused(Some(&spec("cn")), None), refused(Some(&spec("cn")), Some(&times))), (None, None));
    }

    #[test]
    fn a_past_instant_that_runs_at_once_does_so_once() {
        let now: Timestamp = "2026-11-20T12:00:00Z".parse().unwrap();
        let mut saved = spec(&json!({"at": "2026-11-20T11:00:00Z", "if_past": "run"}));
        saved.replace_past_instants(now, None);
        assert_eq!(saved.once_instants(), [("/schedule/at".to_owned(), now)]);
        let mut again = saved.clone();
        again.replace_past_instants(now + Duration::from_secs(60), Some(&saved));
        assert_eq!(again, saved);
    }

    /// Up to a minute may pass between the check of a list and the saving of its last job.
    #[test]
    fn an_instant_that_runs_at_once_does_so_when_it_is_saved() {
        let now: Timestamp = "2026-11-20T12:00:00Z".parse().unwrap();
        let later = now + Duration::from_secs(60);
        let checked = |schedule| {
            let mut spec = spec(&schedule);
            spec.replace_past_instants(instant_after(now), None);
            let job = spec.compile().unwrap();
            CheckedDefinition { spec, job, calendar: None, checked_at: now, is_restored: false }
                .with_save_time(later, None)
        };
        let past = checked(json!({"at": "2026-11-20T11:00:00Z", "if_past": "run"}));
        assert_eq!(past.job.timetable.next_after(later, later).map(|fire| fire.at), Some(instant_after(later)));
        assert_eq!(past.spec.once_instants()[0].1, instant_after(later));
        let ahead = checked(json!({"at": "2026-11-20T12:00:30Z"}));
        assert_eq!(ahead.spec.once_instants()[0].1, now + Duration::from_secs(30), "as its author wrote it");
        assert_eq!(ahead.job.timetable.once_within(ahead.checked_at, later), Some(ahead.spec.once_instants()[0].1));
    }
}
