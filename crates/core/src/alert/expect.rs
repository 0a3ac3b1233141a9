//! Expectations of jobs: the alert rule for each, whether it was met, and when it is checked next.
//!
//! Each part of a definition's `expect` becomes a rule that is checked for its job. Jobs with the same expectation share one
//! rule, so that many misses at the same time form one group. A check that comes too early does no harm: it only computes when
//! to check next.

use std::time::Duration;

use chrono::NaiveDate;

use super::deadline::Deadline;
use super::judge::{self, ConditionState};
use super::rule::{Condition, DIGEST_DEFAULT, GROUP_OVER_DEFAULT, RuleSpec, Scope};
use crate::id::{AlertRuleId, NamespaceId};
use crate::spec::ExpectSpec;
use crate::time::Timestamp;
use crate::word_enum::word_enum;

/// Maximum number of deadlines that one search skips: those that the newest success has already met, and all but the
/// last of those that passed while no server ran.
const DEADLINE_COUNT_MAX: u32 = 1_000;

/// The prefix of the names of rules for expectations.
const RULE_PREFIX: &str = "expect:";

word_enum! {
    /// What is expected.
    ExpectKind {
        /// A run succeeded by a time of day.
        SuccessBy = "success_by",
        /// A run succeeds at least once in each period of a length.
        NoSuccessFor = "no_success_for",
        /// No run takes longer than a length.
        LongerThan = "longer_than",
        /// Each run starts within a length after its planned instant.
        Late = "late",
    }
}

impl ExpectKind {
    /// Whether the expectation is checked against open runs rather than against the newest success.
    #[must_use]
    pub const fn is_about_open_runs(self) -> bool {
        matches!(self, Self::LongerThan | Self::Late)
    }
}

/// The facts about a job that its expectations are compared with.
#[derive(Clone, Copy, Debug)]
pub struct SuccessFacts {
    /// The planned instant of the newest run that succeeded; `None` if no run has.
    pub newest: Option<Timestamp>,
    /// When the job was created.
    pub created_at: Timestamp,
}

/// The expectations of a job, with the time zone of their times of day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectations {
    spec: ExpectSpec,
    zone: String,
}

impl Expectations {
    pub(crate) fn new(spec: &ExpectSpec, zone: &str) -> Self {
        Self { spec: spec.clone(), zone: zone.to_owned() }
    }

    /// The expectations that are set.
    pub fn kinds(&self) -> impl Iterator<Item = ExpectKind> + '_ {
        ExpectKind::ALL.iter().copied().filter(|kind| self.condition(*kind).is_some())
    }

    /// The expectation that a rule belongs to; `None` for a rule that a user wrote.
    #[must_use]
    pub fn kind_of(rule: &RuleSpec) -> Option<ExpectKind> {
        rule.name.strip_prefix(RULE_PREFIX)?.parse().ok()
    }

    /// The alert condition that holds if an expectation is not met; `None` if the expectation is not set.
    #[must_use]
    pub fn condition(&self, kind: ExpectKind) -> Option<Condition> {
        let spec = &self.spec;
        match kind {
            ExpectKind::SuccessBy => spec.success_by.as_ref().map(|by| Condition::NotSucceededBy {
                time: by.time.clone(),
                zone: self.zone.clone(),
                weekdays: by.weekdays.clone(),
                calendar: by.calendar.clone(),
            }),
            ExpectKind::NoSuccessFor => spec.no_success_for.map(|length| Condition::NoSuccessFor { length }),
            ExpectKind::LongerThan => {
                spec.longer_than.map(|than| Condition::RunningLonger { than: Some(than), times_p95: None })
            }
            ExpectKind::Late => spec.late.map(|by| Condition::Late { by }),
        }
    }

    /// The alert rule for an expectation; `None` if the expectation is not set. The rule's name is reserved: users cannot give it
    /// to a rule of their own.
    #[must_use]
    pub fn rule(&self, kind: ExpectKind) -> Option<RuleSpec> {
        Some(RuleSpec {
            name: format!("{RULE_PREFIX}{kind}"),
            description: String::new(),
            scope: Scope::All,
            condition: self.condition(kind)?,
            severity: self.spec.severity,
            channels: self.spec.channel_names(),
            repeat: None,
            digest: DIGEST_DEFAULT,
            group_over: GROUP_OVER_DEFAULT,
            escalate: None,
            enabled: true,
        })
    }

    /// When an expectation of a job is first checked; `is_new` if the job is being created and has no run yet. `None`
    /// for an expectation that is checked against open runs, or that is not set.
    #[must_use]
    pub fn first_check_at(&self, kind: ExpectKind, now: Timestamp, is_new: bool) -> Option<Timestamp> {
        match kind {
            ExpectKind::SuccessBy => self.deadline()?.next_after(now, |_| true),
            ExpectKind::NoSuccessFor if is_new => Some(now + self.spec.no_success_for?),
            ExpectKind::NoSuccessFor => Some(now),
            ExpectKind::LongerThan | ExpectKind::Late => None,
        }
    }

    /// Whether the condition of an expectation holds, for a check that was due at `check_at`.
    #[must_use]
    pub fn judge(
        &self,
        kind: ExpectKind,
        success: SuccessFacts,
        (check_at, now): (Timestamp, Timestamp),
        is_day: impl Fn(NaiveDate) -> bool,
    ) -> ConditionState {
        match kind {
            ExpectKind::SuccessBy => self.judge_deadline(success, (check_at, now), is_day),
            ExpectKind::NoSuccessFor => {
                let length = self.spec.no_success_for.unwrap_or(Duration::MAX);
                judge::overdue(Some(success.newest.unwrap_or(success.created_at)), length, now)
            }
            ExpectKind::LongerThan | ExpectKind::Late => ConditionState::Clear,
        }
    }

    fn judge_deadline(
        &self,
        success: SuccessFacts,
        (check_at, now): (Timestamp, Timestamp),
        is_day: impl Fn(NaiveDate) -> bool,
    ) -> ConditionState {
        let Some(deadline) = self.deadline() else { return ConditionState::Clear };
        let before_check = check_at - Duration::from_millis(1);
        let (mut last_deadline, mut count) = (None, 0);
        while count < DEADLINE_COUNT_MAX
            && let Some(deadline_at) = deadline
                .next_after(last_deadline.unwrap_or(before_check), &is_day)
                .filter(|deadline_at| *deadline_at <= now)
        {
            (last_deadline, count) = (Some(deadline_at), count + 1);
        }
        // Of the deadlines that passed while no server ran, only the last counts.
        match last_deadline.map(|at| judge::missed_deadline(at, deadline.counts_from(at), success.newest)) {
            Some(ConditionState::Holds { since, .. }) => ConditionState::Holds { since, new_count: 1 },
            _ => ConditionState::Clear,
        }
    }

    /// When an expectation is checked next, after a check at `now` or after a run has succeeded; `None` for an expectation that
    /// is checked against open runs, or that is not set. Ignores the calendar, because its days may change before the check;
    /// the check itself reads the calendar.
    #[must_use]
    pub fn next_check_at(&self, kind: ExpectKind, success: SuccessFacts, now: Timestamp) -> Option<Timestamp> {
        match kind {
            ExpectKind::SuccessBy => {
                let deadline = self.deadline()?;
                let mut next_deadline = deadline.next_after(now, |_| true)?;
                for _ in 0..DEADLINE_COUNT_MAX {
                    if success.newest.is_none_or(|at| at < deadline.counts_from(next_deadline)) {
                        break;
                    }
                    next_deadline = deadline.next_after(next_deadline, |_| true)?;
                }
                Some(next_deadline)
            }
            ExpectKind::NoSuccessFor => {
                let length = self.spec.no_success_for?;
                let due_at = success.newest.unwrap_or(success.created_at).saturating_add(length);
                Some(if due_at > now { due_at } else { now + length })
            }
            ExpectKind::LongerThan | ExpectKind::Late => None,
        }
    }

    /// If a success postpones the next check, the instant to which the check moves; `None` if the check is not moved. A check
    /// that is already due is not moved, because it has yet to judge its deadline.
    #[must_use]
    pub fn postponed_check_at(
        &self,
        kind: ExpectKind,
        success: SuccessFacts,
        (check_at, now): (Timestamp, Timestamp),
    ) -> Option<Timestamp> {
        let from = self.counts_from(kind, check_at, now).filter(|_| check_at > now)?;
        success.newest.filter(|newest| *newest >= from)?;
        let next_check = self.next_check_at(kind, success, now)?;
        // Moving the check costs a write. That is always worth it for a deadline at a time of day. For a length of
        // time, it is worth it only if the wait more than doubles.
        let is_worth_moving = kind == ExpectKind::SuccessBy || check_at.since(now) * 2 < next_check.since(now);
        (next_check > check_at && is_worth_moving).then_some(next_check)
    }

    /// The earliest planned instant of a run whose success counts, for a check that was due at `check_at`; `None` for an expectation that
    /// is checked against open runs, or that is not set.
    #[must_use]
    pub fn counts_from(&self, kind: ExpectKind, check_at: Timestamp, now: Timestamp) -> Option<Timestamp> {
        match kind {
            ExpectKind::SuccessBy => Some(self.deadline()?.counts_from(check_at)),
            ExpectKind::NoSuccessFor => Some(now - self.spec.no_success_for?),
            ExpectKind::LongerThan | ExpectKind::Late => None,
        }
    }

    /// The length that open runs are compared with; `None` for an expectation about the newest success, or one that is not set.
    #[must_use]
    pub const fn bound(&self, kind: ExpectKind) -> Option<Duration> {
        match kind {
            ExpectKind::LongerThan => self.spec.longer_than,
            ExpectKind::Late => self.spec.late,
            ExpectKind::SuccessBy | ExpectKind::NoSuccessFor => None,
        }
    }

    /// The calendar of the days on which the deadline applies; `None` if every day counts, or there is no deadline.
    #[must_use]
    pub fn calendar(&self) -> Option<&str> {
        self.spec.success_by.as_ref()?.calendar.as_deref()
    }

    fn deadline(&self) -> Option<Deadline> {
        let by = self.spec.success_by.as_ref()?;
        Deadline::parse(&by.time, &self.zone, &by.weekdays).ok()
    }
}

/// The id of an expectation's rule. All jobs of a namespace with the same expectation share the id. It is negative; the ids of
/// users' rules are positive.
#[must_use]
pub fn rule_id(namespace: NamespaceId, rule: &RuleSpec) -> AlertRuleId {
    let text = serde_json::to_string(rule).unwrap_or_default();
    let bytes = namespace.get().to_be_bytes().into_iter().chain(text.into_bytes());
    // FNV-1a.
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    AlertRuleId::new(-1 - i64::try_from(hash >> 1).unwrap_or_default())
}

/// Whether a rule of this name belongs to an expectation of jobs.
#[must_use]
pub fn is_rule_name(name: &str) -> bool {
    name.strip_prefix(RULE_PREFIX).is_some_and(|kind| kind.parse::<ExpectKind>().is_ok())
}

/// Whether the rule with this id belongs to an expectation of jobs.
#[must_use]
pub const fn is_expectation(rule: AlertRuleId) -> bool {
    rule.get() < 0
}
