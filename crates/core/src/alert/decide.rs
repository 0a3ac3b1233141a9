//! The decision about a rule: which of its incidents change, and which messages are sent about them.
//!
//! An incident begins when a rule begins to hold for a subject. It is reported once when it begins and once when it ends; in
//! between, its further occurrences are collected in digests. If a rule has many open incidents, further ones become members of
//! one group, and the group is reported in their place.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::incident::{Incident, IncidentState, keep_samples, new_incident};
use super::judge::{ConditionState, Observation};
use super::rule::{ConditionKind, RuleSpec, SubjectKind};
use super::sentence::{self, notice};
use super::silence::Silence;
use super::subject::Subject;
use crate::id::IncidentId;
use crate::notice::{Notice, NoticeKind};
use crate::time::Timestamp;

/// Shortest wait before an open incident is checked again.
const RECHECK_MIN: Duration = Duration::from_secs(2);
/// Longest wait before an open incident is checked again.
const RECHECK_MAX: Duration = Duration::from_secs(30);
/// An open incident is checked again after its age divided by this, but within [`RECHECK_MIN`] and [`RECHECK_MAX`].
const RECHECK_AGE_DIVISOR: u32 = 20;
/// Maximum number of open incidents in a group. For further subjects, no incident is opened, and the group does not count them: only their
/// incidents would show that they have been counted.
const OPEN_INCIDENTS_MAX: u64 = 10_000;

/// A rule, with the facts that its messages depend on.
#[derive(Clone, Copy, Debug)]
pub struct RuleView<'a> {
    pub spec: &'a RuleSpec,
    /// The name of its namespace.
    pub namespace: &'a str,
    /// The channels that the rule names but that do not exist.
    pub missing_channels: &'a [String],
}

/// The open incidents that a decision about a rule needs.
#[derive(Clone, Debug, Default)]
pub struct OpenIncidents {
    /// The incidents of the observed subjects, and those whose next check is due.
    pub incidents: Vec<Incident>,
    pub group: Option<Incident>,
    /// How many incidents are open outside the group.
    pub single_count: u64,
    /// The subjects of the open incidents outside the group that were not reported.
    pub unreported_subjects: Vec<Subject>,
    /// How many incidents are in the group.
    pub member_count: u64,
    /// The observed subjects that the group has counted: those that have or had an incident in it.
    pub counted_subjects: BTreeSet<(SubjectKind, i64)>,
}

/// A message to send about an incident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageDraft {
    pub incident: IncidentId,
    /// Its number among the messages about the incident, from 1.
    pub number: u32,
    /// The name of the channel.
    pub channel: String,
    pub notice: Notice,
}

/// The changes that a decision makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The new and the changed incidents, in their new state.
    pub incidents: Vec<Incident>,
    /// The messages to send.
    pub messages: Vec<MessageDraft>,
    /// The message about the end of each reported incident, with an empty channel. The rule may name no channel any more.
    pub ends: Vec<MessageDraft>,
    /// Incidents that ended because the rule no longer watches their subject.
    pub unwatched: BTreeSet<IncidentId>,
}

/// Decides what the observations of a rule change.
#[must_use]
pub fn decide(
    rule: RuleView<'_>,
    open_incidents: OpenIncidents,
    observations: &[Observation],
    silences: &[Silence],
    (now, next_id): (Timestamp, &mut dyn FnMut() -> IncidentId),
) -> Decision {
    let mut builder = DecisionBuilder::new(rule, open_incidents, silences, now);
    for incident in std::mem::take(&mut builder.open_incidents.incidents) {
        builder.incidents.insert(incident.id, incident);
    }
    if let Some(group) = builder.open_incidents.group.take() {
        builder.open_incidents.group = Some(group.clone());
        builder.incidents.insert(group.id, group);
    }
    for observation in observations {
        builder.observe(observation, next_id);
    }
    builder.close_group();
    let ids: Vec<IncidentId> = builder.incidents.keys().copied().collect();
    for id in ids {
        builder.write_due_messages(id);
    }
    Decision {
        incidents: builder.incidents.into_values().collect(),
        messages: builder.messages,
        ends: builder.ends,
        unwatched: builder.unwatched,
    }
}

/// Acknowledges an open incident. Returns the messages about the acknowledgement, one for each channel that the incident was reported
/// to; none if it was not reported, or while a silence holds its messages back.
#[must_use]
pub fn acknowledge(
    rule: RuleView<'_>,
    (incident, by): (&mut Incident, &str),
    silences: &[Silence],
    now: Timestamp,
) -> Vec<MessageDraft> {
    (incident.acknowledged_by, incident.acknowledged_at) = (Some(by.to_owned()), Some(now));
    let mut builder = DecisionBuilder::new(rule, OpenIncidents::default(), silences, now);
    let is_reported = incident.fired_at.is_some() || incident.escalated_at.is_some();
    if is_reported && !builder.is_silent(incident) {
        builder.add_messages(incident, NoticeKind::Acknowledged);
    }
    builder.messages
}

struct DecisionBuilder<'a> {
    rule: RuleView<'a>,
    silences: &'a [Silence],
    now: Timestamp,
    open_incidents: OpenIncidents,
    /// How many of the open incidents outside the group were not reported and are silenced. Each of the others has one of the places for
    /// incidents that are reported themselves.
    silenced_count: u64,
    incidents: BTreeMap<IncidentId, Incident>,
    messages: Vec<MessageDraft>,
    ends: Vec<MessageDraft>,
    unwatched: BTreeSet<IncidentId>,
}

impl<'a> DecisionBuilder<'a> {
    fn new(rule: RuleView<'a>, open_incidents: OpenIncidents, silences: &'a [Silence], now: Timestamp) -> Self {
        let (incidents, messages, ends, unwatched) = (BTreeMap::new(), Vec::new(), Vec::new(), BTreeSet::new());
        let silenced_count = 0;
        let mut builder =
            Self { rule, silences, now, open_incidents, silenced_count, incidents, messages, ends, unwatched };
        let unreported_subjects = builder.open_incidents.unreported_subjects.iter();
        let silenced_subjects = unreported_subjects.filter(|subject| builder.silenced_until(subject).is_some());
        builder.silenced_count = u64::try_from(silenced_subjects.count()).unwrap_or(u64::MAX);
        builder
    }

    fn observe(&mut self, observation: &Observation, next_id: &mut dyn FnMut() -> IncidentId) {
        let (since, new_count, has_ended) = match observation.state {
            ConditionState::Holds { since, new_count } => (since, new_count, false),
            ConditionState::HasEnded { since, new_count } => (since, new_count, true),
            ConditionState::Clear | ConditionState::Unwatched => {
                if let Some(id) = self.find_open_incident(&observation.subject) {
                    if observation.state == ConditionState::Unwatched {
                        self.unwatched.insert(id);
                    }
                    self.resolve(id);
                }
                return;
            }
            ConditionState::Unknown => return,
        };
        let open_id = self.find_open_incident(&observation.subject);
        let id = match open_id {
            Some(id) => id,
            None => match self.open_incident(observation, since, next_id) {
                Some(id) => id,
                None => return,
            },
        };
        let (now, mut group) = (self.now, None);
        if let Some(incident) = self.incidents.get_mut(&id) {
            incident.count =
                incident.count.saturating_add(if open_id.is_some() { new_count } else { new_count.max(1) });
            incident.seen_at = now;
            incident.subject.clone_from(&observation.subject);
            keep_samples(&mut incident.samples, &observation.samples);
            group = incident.group;
        }
        if let Some(group) = group.and_then(|group| self.incidents.get_mut(&group)) {
            // A message about a group has the number of its subjects, however often each of them fails or recovers.
            let subject = (observation.subject.kind, observation.subject.id);
            let is_new = open_id.is_none() && self.open_incidents.counted_subjects.insert(subject);
            group.count = group.count.saturating_add(u64::from(is_new));
            group.seen_at = now;
            keep_samples(&mut group.samples, &observation.samples);
        }
        if has_ended {
            self.resolve(id);
        }
    }

    fn find_open_incident(&self, subject: &Subject) -> Option<IncidentId> {
        let is_match = |incident: &&Incident| {
            let open_subject = &incident.subject;
            incident.state == IncidentState::Firing
                && open_subject.kind == subject.kind
                && open_subject.id == subject.id
        };
        self.incidents.values().find(is_match).map(|incident| incident.id)
    }

    /// Opens an incident; `None` if the group already has [`OPEN_INCIDENTS_MAX`] open incidents.
    fn open_incident(
        &mut self,
        observation: &Observation,
        since: Timestamp,
        next_id: &mut dyn FnMut() -> IncidentId,
    ) -> Option<IncidentId> {
        // A silenced incident leaves its place to others. Silenced incidents alone get no more places than others, because they are all
        // reported when the silence ends.
        let is_silenced = self.silenced_until(&observation.subject).is_some();
        let single_count = self.open_incidents.single_count;
        let place_count = if is_silenced { single_count } else { single_count.saturating_sub(self.silenced_count) };
        let is_single = place_count < u64::from(self.rule.spec.group_over);
        if !is_single && self.open_incidents.member_count >= OPEN_INCIDENTS_MAX {
            return None;
        }
        let group = (!is_single).then(|| self.open_group(since, next_id));
        match is_single {
            true => {
                self.open_incidents.single_count += 1;
                self.silenced_count += u64::from(is_silenced);
            }
            false => self.open_incidents.member_count += 1,
        }
        let incident = new_incident(next_id(), observation.subject.clone(), group, (since, self.now));
        let id = incident.id;
        self.incidents.insert(id, incident);
        Some(id)
    }

    fn open_group(&mut self, since: Timestamp, next_id: &mut dyn FnMut() -> IncidentId) -> IncidentId {
        if let Some(group) = &self.open_incidents.group {
            return group.id;
        }
        let name = sentence::scope_name(&self.rule.spec.scope, self.rule.namespace).to_owned();
        let app = match &self.rule.spec.scope {
            super::Scope::App(app) => Some(app.clone()),
            super::Scope::All | super::Scope::Label(_) | super::Scope::Job(_) => None,
        };
        let subject = Subject { kind: SubjectKind::Group, id: 0, name, app };
        let group = new_incident(next_id(), subject, None, (since, self.now));
        let id = group.id;
        self.incidents.insert(id, group.clone());
        self.open_incidents.group = Some(group);
        id
    }

    fn resolve(&mut self, id: IncidentId) {
        let Some(incident) = self.incidents.get_mut(&id) else { return };
        (incident.state, incident.resolved_at) = (IncidentState::Resolved, Some(self.now));
        let is_unreported_single = incident.group.is_none() && incident.fired_at.is_none();
        let unreported_subject = is_unreported_single.then(|| incident.subject.clone());
        let count = if incident.group.is_some() {
            &mut self.open_incidents.member_count
        } else {
            &mut self.open_incidents.single_count
        };
        *count = count.saturating_sub(1);
        if unreported_subject.is_some_and(|subject| self.silenced_until(&subject).is_some()) {
            self.silenced_count = self.silenced_count.saturating_sub(1);
        }
    }

    /// Resolves the group if it has no open members.
    fn close_group(&mut self) {
        let Some(id) =
            self.open_incidents.group.as_ref().filter(|_| self.open_incidents.member_count == 0).map(|group| group.id)
        else {
            return;
        };
        // If the rule stopped watching one of the group's last members, the end of the group must not be reported as a recovery.
        if self.incidents.values().any(|incident| incident.group == Some(id) && self.unwatched.contains(&incident.id)) {
            self.unwatched.insert(id);
        }
        if let Some(group) = self.incidents.get_mut(&id) {
            (group.state, group.resolved_at) = (IncidentState::Resolved, Some(self.now));
        }
    }

    /// Writes the messages of an incident, and sets when it is checked again.
    fn write_due_messages(&mut self, id: IncidentId) {
        let Some(mut incident) = self.incidents.remove(&id) else { return };
        if incident.group.is_none() {
            self.report_incident(&mut incident);
        }
        incident.check_at = (incident.state == IncidentState::Firing).then(|| self.next_check_at(&incident));
        self.incidents.insert(id, incident);
    }

    fn report_incident(&mut self, incident: &mut Incident) {
        let spec = self.rule.spec;
        let is_silent = self.is_silent(incident);
        let has_channel = self.has_channel();
        if incident.fired_at.is_none() && !is_silent && has_channel {
            incident.fired_at = Some(self.now);
            self.add_messages(incident, NoticeKind::Firing);
        }
        if incident.state == IncidentState::Resolved {
            // A silence does not hold back the end of a reported incident: the readers of the first message wait for
            // it.
            if incident.fired_at.is_some() || incident.escalated_at.is_some() {
                self.add_messages(incident, NoticeKind::Resolved);
            }
            return;
        }
        if is_silent || incident.acknowledged_at.is_some() {
            return;
        }
        if self.escalates_at(incident).is_some_and(|at| at <= self.now) {
            incident.escalated_at = Some(self.now);
            self.add_messages(incident, NoticeKind::Escalated);
        }
        let Some(reported_at) = incident.reported_at.filter(|_| has_channel) else { return };
        if incident.count > incident.reported_count && reported_at + spec.digest <= self.now {
            self.add_messages(incident, NoticeKind::Digest);
        } else if spec.repeat.is_some_and(|repeat| reported_at + repeat <= self.now) {
            self.add_messages(incident, NoticeKind::Reminder);
        }
    }

    /// When the incident is reported to the escalation channel; `None` if the rule names no such channel, the channel does not
    /// exist, or the incident was already reported to it. An incident that could not be reported to the other channels
    /// escalates too.
    fn escalates_at(&self, incident: &Incident) -> Option<Timestamp> {
        let escalation = self
            .rule
            .spec
            .escalate
            .as_ref()
            .filter(|escalation| !self.rule.missing_channels.contains(&escalation.channel))?;
        let from = incident.fired_at.unwrap_or(incident.started_at).max(incident.started_at);
        incident.escalated_at.is_none().then(|| from + escalation.after)
    }

    /// Whether at least one channel of the rule exists. A rule without channels is for the console only, which counts as a channel.
    fn has_channel(&self) -> bool {
        let names = &self.rule.spec.channels;
        names.is_empty() || names.iter().any(|name| !self.rule.missing_channels.contains(name))
    }

    fn add_messages(&mut self, incident: &mut Incident, kind: NoticeKind) {
        let spec = self.rule.spec;
        incident.message_count += 1;
        let escalation_channel = spec.escalate.iter().map(|escalation| &escalation.channel);
        let channels: Vec<&String> = match kind {
            NoticeKind::Escalated => escalation_channel.collect(),
            NoticeKind::Resolved | NoticeKind::Acknowledged if incident.escalated_at.is_some() => {
                spec.channels.iter().chain(escalation_channel).collect()
            }
            _ => spec.channels.iter().collect(),
        };
        if kind != NoticeKind::Escalated {
            (incident.reported_at, incident.reported_count) = (Some(self.now), incident.count);
        }
        // If the rule no longer watches the subject, the message is written as if the rule were off: it must not report a recovery.
        let ended_rule = self.unwatched.contains(&incident.id).then(|| RuleSpec { enabled: false, ..spec.clone() });
        let rule = RuleView { spec: ended_rule.as_ref().unwrap_or(spec), ..self.rule };
        // The message about the beginning is sent even if the incident has ended since the last check. It describes the
        // incident as open.
        let state = if kind == NoticeKind::Resolved { IncidentState::Resolved } else { IncidentState::Firing };
        let notice = notice(rule, &Incident { state, ..incident.clone() }, kind, self.now);
        let number = incident.message_count;
        let mut sent_channels: Vec<&String> = Vec::new();
        for channel in channels {
            if !sent_channels.contains(&channel) && !self.rule.missing_channels.contains(channel) {
                sent_channels.push(channel);
                let (channel, notice) = (channel.clone(), notice.clone());
                self.messages.push(MessageDraft { incident: incident.id, number, channel, notice });
            }
        }
        if kind == NoticeKind::Resolved {
            self.ends.push(MessageDraft { incident: incident.id, number, channel: String::new(), notice });
        }
    }

    /// Whether the incident's messages are held back. The first message of a group is held back while all members of the group
    /// are silenced.
    fn is_silent(&self, incident: &Incident) -> bool {
        let is_unsilenced_member =
            |member: &Incident| member.group == Some(incident.id) && self.silenced_until(&member.subject).is_none();
        let is_unreported_group = incident.subject.kind == SubjectKind::Group && incident.fired_at.is_none();
        self.silenced_until(&incident.subject).is_some()
            || is_unreported_group && !self.incidents.values().any(is_unsilenced_member)
    }

    fn silenced_until(&self, subject: &Subject) -> Option<Timestamp> {
        let matching_silences = self
            .silences
            .iter()
            .filter(|silence| silence.ends_at > self.now && silence.matches(self.rule.spec, subject));
        matching_silences.map(|silence| silence.ends_at).max()
    }

    fn next_check_at(&self, incident: &Incident) -> Timestamp {
        let spec = self.rule.spec;
        let incident_age = self.now.since(incident.started_at);
        let recheck_wait = match spec.condition.kind() {
            // A polled rule is checked every few seconds anyway, so the longest wait suffices.
            ConditionKind::Polled => RECHECK_MAX,
            ConditionKind::Events | ConditionKind::Instant => {
                (incident_age / RECHECK_AGE_DIVISOR).clamp(RECHECK_MIN, RECHECK_MAX)
            }
        };
        let mut next = self.now + recheck_wait;
        if let Some(until) = self.silenced_until(&incident.subject) {
            return next.min(until);
        }
        if incident.group.is_some() || incident.acknowledged_at.is_some() || self.is_silent(incident) {
            return next;
        }
        if let Some(at) = self.escalates_at(incident) {
            next = next.min(at);
        }
        if let Some(reported_at) = incident.reported_at.filter(|_| self.has_channel()) {
            if incident.count > incident.reported_count {
                next = next.min(reported_at + spec.digest);
            }
            if let Some(repeat) = spec.repeat {
                next = next.min(reported_at + repeat);
            }
        }
        next
    }
}
