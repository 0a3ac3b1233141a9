//! The texts of the console in each language. `build.rs` generates `Texts` from `web/locales`.

use rondel_admin::jobs::JobWarning;
use rondel_core::alert::SubjectKind;
use rondel_core::folded_state::FoldedState;
use rondel_core::spec::{Delivery, MisfirePolicy, OnSilence, OverlapPolicy};
use rondel_core::tree::Link;
use rondel_core::{Route, RunStatus, Trigger};

use crate::problem::Code;

include!(concat!(env!("OUT_DIR"), "/texts.rs"));

rondel_core::plain_word_enum! {
    pub(crate) Lang {
        En = "en",
        Zh = "zh",
    }
}

impl Lang {
    /// Its BCP 47 tag.
    pub(crate) const fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh-CN",
        }
    }

    /// The name of the language in the language itself.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::En => "English",
            Self::Zh => "中文",
        }
    }

    /// The supported language with the greatest weight in an `Accept-Language` header.
    pub(crate) fn from_header(header: &str) -> Option<Self> {
        let mut ranges: Vec<(u16, &str)> = header.split(',').map(parse_language_range).collect();
        ranges.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        ranges.into_iter().filter(|(weight, _)| *weight > 0).find_map(|(_, range)| {
            let primary_tag = range.split('-').next().unwrap_or_default().to_ascii_lowercase();
            Self::from_word(&primary_tag)
        })
    }

    pub(crate) const fn texts(self) -> &'static Texts {
        match self {
            Self::En => &EN,
            Self::Zh => &ZH,
        }
    }
}

/// Parses a language range and its weight, in thousandths.
fn parse_language_range(weighted_range: &str) -> (u16, &str) {
    let (range, quality) = weighted_range.split_once(';').unwrap_or((weighted_range, ""));
    let quality = quality.trim().strip_prefix("q=");
    let thousandths = quality.map_or(1000, |quality| match quality.split_once('.') {
        Some(("0", digits)) => format!("{digits:0<3.3}").parse().unwrap_or(0),
        Some(_) => 1000,
        None => u16::from(quality == "1") * 1000,
    });
    (thousandths, range.trim())
}

/// Fills the gaps of a text with values. A text with two forms, `one|other`, uses the first form for a count of 1.
fn fill_gaps(text: &str, values: &[(&str, String)]) -> String {
    let mut filled_text = String::with_capacity(text.len() + 16);
    let is_one = values.iter().any(|(key, value)| matches!(*key, "n" | "count") && value == "1");
    let mut unread_text =
        text.split_once('|').map_or(text, |(singular, plural)| if is_one { singular } else { plural });
    while let Some((before, after)) = unread_text.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        filled_text.push_str(before);
        let value = values.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str());
        filled_text.push_str(value.unwrap_or_default());
        unread_text = after;
    }
    filled_text.push_str(unread_text);
    filled_text
}

impl Texts {
    /// The language of these texts, for sentences that other crates compose.
    pub(crate) fn lang(&self) -> rondel_core::words::Lang {
        if std::ptr::eq(self, &ZH) { rondel_core::words::Lang::Zh } else { rondel_core::words::Lang::En }
    }

    /// Translates a sentence of the engine into this language.
    pub(super) fn sentence(&self, english: &str) -> String {
        super::sentences::localized(self.lang(), english).into_owned()
    }

    pub(crate) const fn status(&self, status: RunStatus) -> &'static str {
        match status {
            RunStatus::Pending => self.status_pending,
            RunStatus::Waiting => self.status_waiting,
            RunStatus::Running => self.status_running,
            RunStatus::Succeeded => self.status_succeeded,
            RunStatus::Failed => self.status_failed,
            RunStatus::TimedOut => self.status_timed_out,
            RunStatus::Cancelled => self.status_cancelled,
            RunStatus::Unknown => self.status_unknown,
            RunStatus::Skipped => self.status_skipped,
        }
    }

    pub(crate) const fn job_state(&self, state: FoldedState) -> &'static str {
        match state {
            FoldedState::Error => self.state_error,
            FoldedState::Running => self.state_running,
            FoldedState::Paused => self.state_paused,
            FoldedState::Complete => self.state_complete,
            FoldedState::Waiting => self.state_waiting,
        }
    }

    pub(crate) const fn trigger(&self, trigger: Trigger) -> &'static str {
        match trigger {
            Trigger::Cron => self.trigger_cron,
            Trigger::Interval => self.trigger_interval,
            Trigger::Once => self.trigger_once,
            Trigger::Manual => self.trigger_manual,
            Trigger::Api => self.trigger_api,
            Trigger::Parent => self.trigger_parent,
            Trigger::Backfill => self.trigger_backfill,
            Trigger::Misfire => self.trigger_misfire,
        }
    }

    pub(crate) const fn link(&self, link: Link) -> &'static str {
        match link {
            Link::Shard => self.link_shard,
            Link::Child => self.link_child,
            Link::Retry => self.link_retry,
        }
    }

    /// The routers to select from, with their names.
    pub(crate) const fn routes(&self) -> [(Route, &'static str); 12] {
        [
            (Route::Round, self.route_round),
            (Route::Random, self.route_random),
            (Route::First, self.route_first),
            (Route::Last, self.route_last),
            (Route::ConsistentHash, self.route_consistent_hash),
            (Route::Lfu, self.route_lfu),
            (Route::Lru, self.route_lru),
            (Route::Failover, self.route_failover),
            (Route::Busyover, self.route_busyover),
            (Route::Weight, self.route_weight),
            (Route::LeastActive, self.route_least_active),
            (Route::Broadcast, self.route_broadcast),
        ]
    }

    pub(crate) fn route(&self, route: Route) -> &'static str {
        let route_text =
            self.routes().into_iter().find(|(known_route, _)| *known_route == route).map(|(_, route_text)| route_text);
        route_text.unwrap_or(route.as_str())
    }

    /// The label of an incident's count. A group counts its subjects, however often each of them fails.
    pub(crate) const fn incident_count(&self, kind: SubjectKind) -> &'static str {
        match kind {
            SubjectKind::Group => self.alerts_total,
            _ => self.alerts_count,
        }
    }

    /// A warning to the author of a job.
    pub(crate) fn warning(&self, warning: &JobWarning) -> String {
        match warning {
            JobWarning::NoHandler { app, handler } => self.warning_no_handler(app, handler),
            JobWarning::Shadow => self.warning_shadow.to_owned(),
            JobWarning::LeavesShadow => self.warning_leaves_shadow.to_owned(),
            JobWarning::MovesApp { from, to } => self.warning_moves_app(from, to),
            JobWarning::NeverFires => self.warning_never_fires.to_owned(),
            JobWarning::CalendarRemovesAll { calendar } => self.warning_calendar_removes_all(calendar),
        }
    }

    /// The reason why an executor did not get a run, from its word in the trace.
    pub(crate) fn refusal<'a>(&self, word: &'a str) -> &'a str
    where
        'static: 'a,
    {
        match word {
            "full" => self.refusal_full,
            "draining" => self.refusal_draining,
            "had_it_before" => self.refusal_had_it_before,
            "busy" => self.refusal_busy,
            "silent" => self.refusal_silent,
            _ => word,
        }
    }

    pub(crate) const fn overlap(&self, policy: OverlapPolicy) -> &'static str {
        match policy {
            OverlapPolicy::Serial => self.overlap_serial,
            OverlapPolicy::Discard => self.overlap_discard,
            OverlapPolicy::Allow => self.overlap_allow,
            OverlapPolicy::Cover => self.overlap_cover,
        }
    }

    pub(crate) const fn misfire(&self, policy: MisfirePolicy) -> &'static str {
        match policy {
            MisfirePolicy::Skip => self.misfire_skip,
            MisfirePolicy::Once => self.misfire_once,
            MisfirePolicy::All => self.misfire_all,
        }
    }

    pub(crate) const fn delivery(&self, delivery: Delivery) -> &'static str {
        match delivery {
            Delivery::AtLeastOnce => self.delivery_least,
            Delivery::AtMostOnce => self.delivery_most,
        }
    }

    pub(crate) const fn on_silence(&self, on_silence: Option<OnSilence>) -> &'static str {
        match on_silence {
            None => self.silence_default,
            Some(OnSilence::Continue) => self.silence_continue,
            Some(OnSilence::Stop) => self.silence_stop,
        }
    }

    /// The title of a problem, and a hint about what to do.
    pub(crate) const fn problem(&self, code: Code) -> (&'static str, &'static str) {
        match code {
            Code::Unauthenticated => (self.problem_signed_out, self.problem_signed_out_hint),
            Code::LinkSpent => (self.problem_link_spent, self.problem_link_spent_hint),
            Code::SignInRefused => (self.problem_sign_in, self.problem_sign_in_hint),
            Code::ProviderUnavailable => (self.problem_provider, self.problem_provider_hint),
            Code::Forbidden | Code::CrossOrigin => (self.problem_forbidden, self.problem_forbidden_hint),
            Code::NotFound
            | Code::NamespaceNotFound
            | Code::AppNotFound
            | Code::NodeNotFound
            | Code::CalendarNotFound
            | Code::ScriptNotFound
            | Code::ChannelNotFound
            | Code::AlertRuleNotFound
            | Code::IncidentNotFound
            | Code::ReportScheduleNotFound
            | Code::MaintenanceNotFound
            | Code::SilenceNotFound
            | Code::UserNotFound
            | Code::TokenNotFound
            | Code::SessionNotFound
            | Code::WebhookNotFound
            | Code::MethodNotAllowed => (self.problem_not_found, self.problem_not_found_hint),
            Code::JobNotFound | Code::JobDeleted => (self.problem_no_job, self.problem_no_job_hint),
            Code::RunNotFound => (self.problem_no_run, self.problem_no_run_hint),
            Code::JobExists
            | Code::EditConflict
            | Code::JobNotDeclared
            | Code::NotAPump
            | Code::NamespaceExists
            | Code::NamespaceUsed
            | Code::UserExists
            | Code::LastAdmin
            | Code::TokenOver
            | Code::VersionMismatch
            | Code::KeyInFlight
            | Code::KeyReused
            | Code::TooManyCalendars
            | Code::TooManyScripts
            | Code::TooManyChannels
            | Code::TooManyAlerts
            | Code::TooManyTokens => (self.problem_conflict, self.problem_conflict_hint),
            Code::CalendarUsed | Code::ScriptUsed | Code::ChannelUsed => (self.problem_used, self.problem_used_hint),
            Code::JobIsParent => (self.problem_is_parent, self.problem_is_parent_hint),
            Code::RunFinished | Code::RunNotFinished | Code::ShardOfBroadcast | Code::TriggerKeyInUse => {
                (self.problem_too_late, self.problem_too_late_hint)
            }
            Code::InvalidQuery | Code::InvalidCursor => (self.problem_query, self.problem_query_hint),
            Code::InvalidJson
            | Code::InvalidYaml
            | Code::InvalidHeader
            | Code::InvalidBody
            | Code::UnsupportedMediaType
            | Code::BodyTooLarge
            | Code::RequestTimeout => (self.problem_input, self.problem_input_hint),
            Code::Overloaded | Code::TimedOut | Code::Unavailable | Code::RateLimited => {
                (self.problem_busy, self.problem_busy_hint)
            }
            Code::Unreadable => (self.problem_unreadable, self.problem_unreadable_hint),
            Code::TooManyAttempts => (self.problem_attempts, self.problem_attempts_hint),
            Code::Internal => (self.problem_internal, self.problem_internal_hint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_read_by_weight() {
        for (header, expected) in [
            ("zh-CN,zh;q=0.9,en;q=0.8", Some(Lang::Zh)),
            ("de, en-GB;q=0.7, zh;q=0.3", Some(Lang::En)),
            ("en;q=0.1, zh-TW;q=0.25", Some(Lang::Zh)),
            ("en;q=0, fr", None),
            ("", None),
            (";;,;q=,q", None),
        ] {
            assert_eq!(Lang::from_header(header), expected, "{header}");
        }
    }

    #[test]
    fn gaps_are_filled_once() {
        let values = [("a", "{b}".to_owned()), ("b", "x".to_owned())];
        assert_eq!(fill_gaps("1 {a} 2 {b} 3", &values), "1 {b} 2 x 3");
        assert_eq!(fill_gaps("broken {", &[]), "broken ");
    }

    #[test]
    fn the_languages_differ() {
        assert_ne!(EN.status(RunStatus::Failed), ZH.status(RunStatus::Failed));
        assert_eq!(EN.rel_in("3 s"), "in 3 s");
    }
}
