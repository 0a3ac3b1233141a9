//! A rule as users write it, and its checks.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::deadline::Deadline;
use crate::calendar::Weekday;
use crate::field_error::FieldError;
use crate::notice::Severity;
use crate::schema::{DurationText, NAME_PATTERN};
use crate::size::{self, format_size};
use crate::time::{duration_text, format_duration};
use crate::word_enum::word_enum;
use crate::{Reason, labels, name};

/// Maximum number of channels of a rule.
pub const CHANNEL_COUNT_MAX: usize = 10;
/// The longest streak of failures that a rule can ask for. To find a streak, at most this many runs of a job are read.
pub const STREAK_MAX: u32 = 100;
/// Once a rule has this many open incidents, further ones are reported together, unless the rule sets another number.
pub const GROUP_OVER_DEFAULT: u32 = 5;
/// The shortest time between two digests of an incident.
pub const DIGEST_MIN: Duration = Duration::from_secs(1);
const GROUP_OVER_MAX: u32 = 100;
pub(super) const DIGEST_DEFAULT: Duration = Duration::from_secs(15 * 60);
const LENGTH_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
const WINDOW_MIN: Duration = Duration::from_secs(60);
const WINDOW_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
const DESCRIPTION_LEN_MAX: usize = 2_000;
const FREE_PERCENT_MAX: u32 = 90;
const FREE_MAX: u64 = 1 << 50;
const RUNS_MAX: u64 = 1_000_000_000_000;

word_enum! {
    /// What an incident is about.
    SubjectKind {
        /// A job.
        Job = "job",
        /// An app.
        App = "app",
        /// All jobs of the namespace.
        Namespace = "namespace",
        /// A server.
        Node = "node",
        /// An access token.
        Token = "token",
        /// Many subjects at once.
        Group = "group",
    }
}

/// Which jobs a rule watches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schemars(description = "Which jobs a rule watches.")]
pub enum Scope {
    /// All jobs of the namespace. Rules about servers and tokens allow only this scope.
    #[default]
    All,
    /// The jobs of an app.
    App(String),
    /// The jobs with a label, `key=value`.
    Label(String),
    /// One job.
    Job(String),
}

/// The channel that an incident escalates to if it is not acknowledged in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(description = "The channel that an incident escalates to if it is not acknowledged in time.")]
pub struct Escalation {
    /// The channel.
    pub channel: String,
    /// How long after the incident began.
    #[serde(with = "duration_text")]
    #[schemars(with = "DurationText")]
    pub after: Duration,
}

/// When a rule holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "AlertCondition", description = "When a rule holds.")]
pub enum Condition {
    /// A run of the job failed, timed out, or has an unknown end, and gets no further attempt.
    Failed {},
    /// This many runs of the job in a row failed, timed out, or have an unknown end.
    FailuresInRow {
        /// The number of runs.
        count: u32,
    },
    /// At least this percentage of the runs planned in a window failed, timed out, or have an unknown end.
    FailureRate {
        /// The percentage.
        percent: u32,
        /// The length of the window.
        #[serde(with = "duration_text")]
        #[schemars(with = "DurationText")]
        window: Duration,
        /// The rule holds only if the window has at least this many runs.
        #[serde(default = "min_runs")]
        min_runs: u64,
    },
    /// A fire of the job was skipped.
    Skipped {
        /// Only fires that were skipped for one of these reasons; empty for any.
        #[serde(default)]
        reasons: Vec<Reason>,
    },
    /// A scheduled run waits this long after its planned instant and has not started.
    Late {
        /// The duration.
        #[serde(with = "duration_text")]
        #[schemars(with = "DurationText")]
        by: Duration,
    },
    /// No run that was planned in the 24 hours before succeeded by this time of day.
    NotSucceededBy {
        /// The time of day, `HH:MM`.
        time: String,
        /// The time zone.
        zone: String,
        /// Only on these days of the week; empty for every day.
        #[serde(default)]
        weekdays: Vec<Weekday>,
        /// Only on the days of this calendar.
        #[serde(default)]
        calendar: Option<String>,
    },
    /// No run of the job has succeeded for this long.
    NoSuccessFor {
        /// The duration.
        #[serde(with = "duration_text")]
        #[schemars(with = "DurationText")]
        length: Duration,
    },
    /// A run has been running for longer than a duration, or than a multiple of the 95th percentile of the durations of the job's runs.
    RunningLonger {
        /// The duration.
        #[serde(default, with = "crate::spec::optional_duration")]
        #[schemars(with = "Option<DurationText>")]
        than: Option<Duration>,
        /// The multiple of the 95th percentile of the durations of the job's runs.
        #[serde(default)]
        times_p95: Option<u32>,
    },
    /// No executor of an app, or none with this handler, is online. An executor that was silent for `lost_after` is not online.
    NoExecutor {
        /// The handler.
        #[serde(default)]
        handler: Option<String>,
    },
    /// A server's lease expired without an orderly shutdown.
    NodeLost {},
    /// A loop of a server has been failing for this long.
    LoopFailing {
        /// The duration.
        #[serde(with = "duration_text")]
        #[schemars(with = "DurationText")]
        length: Duration,
    },
    /// An access token expires within this time.
    TokenExpiring {
        /// How far ahead.
        #[serde(with = "duration_text")]
        #[schemars(with = "DurationText")]
        within: Duration,
    },
    /// The TLS certificate of a server expires within this time.
    CertificateExpiring {
        /// How far ahead.
        #[serde(with = "duration_text")]
        #[schemars(with = "DurationText")]
        within: Duration,
    },
    /// A disk with the data folder or the SQLite file of a server has less free space than a percentage or a size.
    DiskLow {
        /// The percentage.
        #[serde(default)]
        free_percent: Option<u32>,
        /// The size, such as `10GiB`.
        #[serde(default, with = "size::optional_text")]
        #[schemars(with = "Option<String>")]
        free: Option<u64>,
    },
    /// At least this many runs were planned in a window of time: the number of stored runs grows faster than it should.
    LedgerGrowth {
        /// The number of runs.
        runs: u64,
        /// The length of the window.
        #[serde(with = "duration_text")]
        #[schemars(with = "DurationText")]
        window: Duration,
    },
}

const fn min_runs() -> u64 {
    10
}

/// What causes a rule to be checked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionKind {
    /// Runs that failed or were skipped.
    Events,
    /// An instant that is known in advance.
    Instant,
    /// The current state, which is checked every few seconds.
    Polled,
}

impl Condition {
    /// Its word in JSON.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Failed {} => "failed",
            Self::FailuresInRow { .. } => "failures_in_row",
            Self::FailureRate { .. } => "failure_rate",
            Self::Skipped { .. } => "skipped",
            Self::Late { .. } => "late",
            Self::NotSucceededBy { .. } => "not_succeeded_by",
            Self::NoSuccessFor { .. } => "no_success_for",
            Self::RunningLonger { .. } => "running_longer",
            Self::NoExecutor { .. } => "no_executor",
            Self::NodeLost {} => "node_lost",
            Self::LoopFailing { .. } => "loop_failing",
            Self::TokenExpiring { .. } => "token_expiring",
            Self::CertificateExpiring { .. } => "certificate_expiring",
            Self::DiskLow { .. } => "disk_low",
            Self::LedgerGrowth { .. } => "ledger_growth",
        }
    }

    /// What causes a rule with this condition to be checked again.
    #[must_use]
    pub const fn kind(&self) -> ConditionKind {
        match self {
            Self::Failed {} | Self::FailuresInRow { .. } | Self::Skipped { .. } => ConditionKind::Events,
            Self::NotSucceededBy { .. } | Self::NoSuccessFor { .. } => ConditionKind::Instant,
            Self::FailureRate { .. }
            | Self::Late { .. }
            | Self::RunningLonger { .. }
            | Self::NoExecutor { .. }
            | Self::NodeLost {}
            | Self::LoopFailing { .. }
            | Self::TokenExpiring { .. }
            | Self::CertificateExpiring { .. }
            | Self::DiskLow { .. }
            | Self::LedgerGrowth { .. } => ConditionKind::Polled,
        }
    }

    /// Whether it is about servers or tokens rather than about jobs.
    #[must_use]
    pub const fn is_about_servers(&self) -> bool {
        matches!(
            self,
            Self::NodeLost {}
                | Self::LoopFailing { .. }
                | Self::TokenExpiring { .. }
                | Self::CertificateExpiring { .. }
                | Self::DiskLow { .. }
        )
    }

    /// Whether it is computed from the summed counts of its scope, rather than for each job.
    #[must_use]
    pub const fn is_about_counts(&self) -> bool {
        matches!(self, Self::FailureRate { .. } | Self::LedgerGrowth { .. })
    }
}

/// A rule: what it watches, when it holds, and where that is reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AlertRule", description = "A rule: what it watches, when it holds, and where that is reported.")]
pub struct RuleSpec {
    /// Unique in its namespace.
    #[schemars(regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// Free text, for the reader of a message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Which jobs it watches.
    #[serde(default)]
    pub scope: Scope,
    /// When it holds.
    pub condition: Condition,
    /// How urgent its incidents are.
    #[serde(default = "warning")]
    pub severity: Severity,
    /// The channels that it is reported to, by name.
    #[serde(default)]
    pub channels: Vec<String>,
    /// How often an open incident that is not acknowledged is reported again; never if left out.
    #[serde(default, with = "crate::spec::optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DurationText>")]
    pub repeat: Option<Duration>,
    /// After a message about an incident, further occurrences are collected for this time and then reported together.
    #[serde(default = "digest", with = "duration_text")]
    #[schemars(with = "DurationText")]
    pub digest: Duration,
    /// Once this many incidents are open, further ones are reported together.
    #[serde(default = "group_over")]
    pub group_over: u32,
    /// The channel that an incident escalates to if it is not acknowledged in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate: Option<Escalation>,
    /// Whether the rule is checked.
    #[serde(default = "default_true")]
    pub enabled: bool,
}

const fn warning() -> Severity {
    Severity::Warning
}

const fn digest() -> Duration {
    DIGEST_DEFAULT
}

const fn group_over() -> u32 {
    GROUP_OVER_DEFAULT
}

const fn default_true() -> bool {
    true
}

impl RuleSpec {
    /// Checks the rule.
    ///
    /// # Errors
    /// Each invalid field, with the values that it accepts.
    pub fn check(&self) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        if let Err(message) = name::check(&self.name) {
            errors.push(FieldError::new("/name", message));
        }
        if self.description.chars().count() > DESCRIPTION_LEN_MAX {
            errors.push(FieldError::new("/description", format!("at most {DESCRIPTION_LEN_MAX} characters")));
        }
        self.check_scope(&mut errors);
        self.check_condition(&mut errors);
        self.check_delivery(&mut errors);
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn check_scope(&self, errors: &mut Vec<FieldError>) {
        let check_result = match &self.scope {
            Scope::All => Ok(()),
            Scope::App(app) => name::check(app).map_err(|message| ("/scope/app", message)),
            Scope::Job(job) => name::check(job).map_err(|message| ("/scope/job", message)),
            Scope::Label(label) => match label.split_once('=') {
                Some((key, value)) => labels::check_key(key).and_then(|()| labels::check_value(value)),
                None => Err(format!("{label:?} is not a label: expected key=value, such as team=pay")),
            }
            .map_err(|message| ("/scope/label", message)),
        };
        if let Err((pointer, message)) = check_result {
            errors.push(FieldError::new(pointer, message));
        }
        let word = self.condition.word();
        if self.condition.is_about_servers() && self.scope != Scope::All {
            errors.push(FieldError::new("/scope", format!("{word} is not about jobs: leave the scope out")));
        }
        if self.condition.is_about_counts() && matches!(self.scope, Scope::Label(_)) {
            errors.push(FieldError::new(
                "/scope",
                format!("{word} is counted for a job, an app, or all jobs, not for a label"),
            ));
        }
        if matches!(self.condition, Condition::NoExecutor { .. })
            && matches!(self.scope, Scope::Label(_) | Scope::Job(_))
        {
            errors
                .push(FieldError::new("/scope", format!("{word} is about apps: name an app, or leave the scope out")));
        }
    }

    fn check_condition(&self, errors: &mut Vec<FieldError>) {
        let word = self.condition.word();
        let mut refuse =
            |field: &str, message: String| errors.push(FieldError::new(format!("/condition/{word}/{field}"), message));
        let length_error = |length: Duration, min: Duration, max: Duration| {
            let is_allowed = (min..=max).contains(&length);
            let message = || {
                format!("{} is not from {} to {}", format_duration(length), format_duration(min), format_duration(max))
            };
            (!is_allowed).then(message)
        };
        let second = Duration::from_secs(1);
        match &self.condition {
            Condition::Failed {} | Condition::Skipped { .. } | Condition::NodeLost {} => {}
            Condition::FailuresInRow { count } => {
                if !(1..=STREAK_MAX).contains(count) {
                    refuse("count", format!("{count} is not from 1 to {STREAK_MAX}"));
                }
            }
            Condition::FailureRate { percent, window, .. } => {
                if !(1..=100).contains(percent) {
                    refuse("percent", format!("{percent} is not from 1 to 100"));
                }
                length_error(*window, WINDOW_MIN, WINDOW_MAX).into_iter().for_each(|message| refuse("window", message));
            }
            Condition::Late { by: length } => {
                length_error(*length, second, LENGTH_MAX).into_iter().for_each(|message| refuse("by", message));
            }
            Condition::NoSuccessFor { length } | Condition::LoopFailing { length } => {
                length_error(*length, second, LENGTH_MAX).into_iter().for_each(|message| refuse("length", message));
            }
            Condition::TokenExpiring { within } | Condition::CertificateExpiring { within } => {
                length_error(*within, second, LENGTH_MAX).into_iter().for_each(|message| refuse("within", message));
            }
            Condition::DiskLow { free_percent, free } => match (free_percent, free) {
                (Some(percent), None) if (1..=FREE_PERCENT_MAX).contains(percent) => {}
                (Some(percent), None) => {
                    refuse("free_percent", format!("{percent} is not from 1 to {FREE_PERCENT_MAX}"))
                }
                (None, Some(free)) if (1..=FREE_MAX).contains(free) => {}
                (None, Some(free)) => {
                    let (given_size, max_size) = (format_size(*free), format_size(FREE_MAX));
                    refuse("free", format!("{given_size} is not from 1B to {max_size}"));
                }
                _ => refuse("free_percent", "expected either free_percent, a number, or free, a size".to_owned()),
            },
            Condition::LedgerGrowth { runs, window } => {
                if !(1..=RUNS_MAX).contains(runs) {
                    refuse("runs", format!("{runs} is not from 1 to {RUNS_MAX}"));
                }
                length_error(*window, WINDOW_MIN, WINDOW_MAX).into_iter().for_each(|message| refuse("window", message));
            }
            Condition::NotSucceededBy { time, zone, weekdays, calendar } => {
                if let Err((field, message)) = Deadline::parse(time, zone, weekdays) {
                    refuse(field, message);
                }
                if let Some(Err(message)) = calendar.as_deref().map(name::check) {
                    refuse("calendar", message);
                }
            }
            Condition::RunningLonger { than, times_p95 } => match (than, times_p95) {
                (Some(than), None) => {
                    length_error(*than, second, LENGTH_MAX).into_iter().for_each(|message| refuse("than", message));
                }
                (None, Some(times)) if (1..=1000).contains(times) => {}
                (None, Some(times)) => refuse("times_p95", format!("{times} is not from 1 to 1000")),
                _ => refuse("than", "expected either than, a length, or times_p95, a number".to_owned()),
            },
            Condition::NoExecutor { handler } => {
                if let Some(Err(message)) = handler.as_deref().map(name::check_handler) {
                    refuse("handler", message);
                }
            }
        }
    }

    fn check_delivery(&self, errors: &mut Vec<FieldError>) {
        if self.channels.len() > CHANNEL_COUNT_MAX {
            errors.push(FieldError::new(
                "/channels",
                format!("{} channels; at most {CHANNEL_COUNT_MAX}", self.channels.len()),
            ));
        }
        for (index, channel) in self.channels.iter().enumerate() {
            if let Err(message) = name::check(channel) {
                errors.push(FieldError::new(format!("/channels/{index}"), message));
            } else if self.channels[..index].contains(channel) {
                errors.push(FieldError::new(format!("/channels/{index}"), format!("{channel:?} is named twice")));
            }
        }
        let lengths = [
            ("/repeat", self.repeat),
            ("/digest", Some(self.digest)),
            ("/escalate/after", self.escalate.as_ref().map(|escalation| escalation.after)),
        ];
        for (pointer, length) in lengths {
            if let Some(length) = length.filter(|length| !(DIGEST_MIN..=LENGTH_MAX).contains(length)) {
                let (min, max) = (format_duration(DIGEST_MIN), format_duration(LENGTH_MAX));
                errors
                    .push(FieldError::new(pointer, format!("{} is not from {min} to {max}", format_duration(length))));
            }
        }
        if !(1..=GROUP_OVER_MAX).contains(&self.group_over) {
            errors
                .push(FieldError::new("/group_over", format!("{} is not from 1 to {GROUP_OVER_MAX}", self.group_over)));
        }
        if let Some(Err(message)) = self.escalate.as_ref().map(|escalation| name::check(&escalation.channel)) {
            errors.push(FieldError::new("/escalate/channel", message));
        }
    }

    /// The names of its channels; the channel that incidents escalate to comes last.
    pub fn channel_names(&self) -> impl Iterator<Item = &str> {
        self.channels.iter().chain(self.escalate.iter().map(|escalation| &escalation.channel)).map(String::as_str)
    }
}
