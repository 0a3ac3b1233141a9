//! The expectations in a definition: a message is sent when one is not met.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alert::deadline::Deadline;
use crate::calendar::Weekday;
use crate::field_error::FieldError;
use crate::name;
use crate::notice::Severity;
use crate::schema::DurationText;
use crate::time::format_duration;

/// The channel of expectations that name none.
pub const EXPECT_CHANNEL: &str = "default";
const CHANNEL_COUNT_MAX: usize = 10;
const LENGTH_MIN: Duration = Duration::from_secs(1);
const LENGTH_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Expectations of a job. Each field that is set is watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectSpec {
    /// A run succeeded by this time of day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_by: Option<SuccessBySpec>,
    /// A run succeeds at least once in each period of this length.
    #[serde(default, with = "super::optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DurationText>")]
    pub no_success_for: Option<Duration>,
    /// No run takes longer than this. A longer run is reported, not stopped; `timeout` stops it.
    #[serde(default, with = "super::optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DurationText>")]
    pub longer_than: Option<Duration>,
    /// A run starts within this after its planned instant.
    #[serde(default, with = "super::optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DurationText>")]
    pub late: Option<Duration>,
    /// The channels that a message goes to, by name; if empty, the channel `default` of the namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<String>,
    /// How urgent a message is.
    #[serde(default = "warning", skip_serializing_if = "is_warning")]
    pub severity: Severity,
}

/// The time of day by which at least one of the runs planned in the 24 hours before it is expected to have succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuccessBySpec {
    /// The time of day, `HH:MM`.
    pub time: String,
    /// The time zone; left out for that of the job's first schedule with a `time_zone`, or UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Only on these days of the week; empty for every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weekdays: Vec<Weekday>,
    /// Only on the days of this calendar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<String>,
}

const fn warning() -> Severity {
    Severity::Warning
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_warning(severity: &Severity) -> bool {
    *severity == Severity::Warning
}

impl ExpectSpec {
    /// Whether nothing is expected.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.success_by.is_none() && self.no_success_for.is_none() && self.longer_than.is_none() && self.late.is_none()
    }

    /// The channels that its messages go to.
    #[must_use]
    pub fn channel_names(&self) -> Vec<String> {
        if self.channels.is_empty() { vec![EXPECT_CHANNEL.to_owned()] } else { self.channels.clone() }
    }

    /// The channels that it names and the previous definition did not, each with its index.
    pub fn new_channels<'a>(&'a self, before: Option<&'a Self>) -> impl Iterator<Item = (usize, &'a str)> {
        let channels_before = before.map_or(&[][..], |before| &before.channels);
        self.channels
            .iter()
            .enumerate()
            .filter(|(_, name)| !channels_before.contains(name))
            .map(|(index, name)| (index, &**name))
    }

    pub(crate) fn check(&self, zone: &str, errors: &mut Vec<FieldError>) {
        if self.is_empty() {
            let message = "expects nothing; give success_by, no_success_for, longer_than or late, or leave it out";
            errors.push(FieldError::new("/expect", message));
        }
        if let Some(by) = &self.success_by {
            by.check(zone, errors);
        }
        for (field, length) in
            [("no_success_for", self.no_success_for), ("longer_than", self.longer_than), ("late", self.late)]
        {
            if let Some(length) = length.filter(|length| !(LENGTH_MIN..=LENGTH_MAX).contains(length)) {
                let (min, max) = (format_duration(LENGTH_MIN), format_duration(LENGTH_MAX));
                let message = format!("{} is not from {min} to {max}", format_duration(length));
                errors.push(FieldError::new(format!("/expect/{field}"), message));
            }
        }
        if self.channels.len() > CHANNEL_COUNT_MAX {
            let message = format!("{} channels; at most {CHANNEL_COUNT_MAX}", self.channels.len());
            errors.push(FieldError::new("/expect/channels", message));
        }
        for (index, channel) in self.channels.iter().enumerate() {
            let pointer = format!("/expect/channels/{index}");
            if let Err(message) = name::check(channel) {
                errors.push(FieldError::new(pointer, message));
            } else if self.channels[..index].contains(channel) {
                errors.push(FieldError::new(pointer, format!("{channel:?} is named twice")));
            }
        }
    }
}

impl SuccessBySpec {
    fn check(&self, zone: &str, errors: &mut Vec<FieldError>) {
        if let Err((field, message)) = Deadline::parse(&self.time, zone, &self.weekdays) {
            errors.push(FieldError::new(format!("/expect/success_by/{field}"), message));
        }
        if let Some(calendar) = &self.calendar {
            if let Err(message) = name::check(calendar) {
                errors.push(FieldError::new("/expect/success_by/calendar", message));
            } else if !self.weekdays.is_empty() {
                let message = "give either weekdays or a calendar; a calendar can have weekdays";
                errors.push(FieldError::new("/expect/success_by/calendar", message));
            }
        }
    }
}
