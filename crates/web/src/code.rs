//! The codes of problems, each with its HTTP status and title.

macro_rules! codes {
    ($($variant:ident = $word:literal, $status:literal, $title:literal;)+) => {
        /// The kind of a problem. Its word does not change between releases.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code { $(
            #[doc = $title]
            $variant
        ),+ }

        impl Code {
            /// Every code. `docs/API.md` lists them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The code as a word for programs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The HTTP status of answers with this code.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status),+ }
            }

            /// The kind of the problem as a title.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title),+ }
            }
        }
    };
}

codes! {
    InvalidJson = "invalid_json", 400, "The body is not JSON";
    InvalidYaml = "invalid_yaml", 400, "The body is not YAML";
    InvalidHeader = "invalid_header", 400, "A header cannot be read";
    Unauthenticated = "unauthenticated", 401, "A valid token is needed";
    Forbidden = "forbidden", 403, "The token does not allow this";
    SignInRefused = "sign_in_refused", 403, "The sign-in through the provider was refused";
    CrossOrigin = "cross_origin", 403, "The request came from another site";
    NotFound = "not_found", 404, "There is nothing at this path";
    NamespaceNotFound = "namespace_not_found", 404, "There is no such namespace";
    AppNotFound = "app_not_found", 404, "There is no such app";
    NodeNotFound = "node_not_found", 404, "There is no such node";
    JobNotFound = "job_not_found", 404, "There is no such job";
    CalendarNotFound = "calendar_not_found", 404, "There is no such calendar";
    ScriptNotFound = "script_not_found", 404, "There is no such script";
    ChannelNotFound = "channel_not_found", 404, "There is no such channel";
    AlertRuleNotFound = "alert_rule_not_found", 404, "There is no such alert rule";
    IncidentNotFound = "incident_not_found", 404, "There is no such incident";
    ReportScheduleNotFound = "report_schedule_not_found", 404, "No weekly report is sent";
    MaintenanceNotFound = "maintenance_not_found", 404, "There is no such maintenance window";
    SilenceNotFound = "silence_not_found", 404, "There is no such silence";
    RunNotFound = "run_not_found", 404, "There is no such run";
    UserNotFound = "user_not_found", 404, "There is no such user";
    TokenNotFound = "token_not_found", 404, "There is no such token";
    SessionNotFound = "session_not_found", 404, "There is no such sign-in";
    WebhookNotFound = "webhook_not_found", 404, "The namespace has no failure webhook";
    MethodNotAllowed = "method_not_allowed", 405, "The path does not have this method";
    RequestTimeout = "request_timeout", 408, "The body took too long to arrive";
    JobExists = "job_exists", 409, "A job with this name exists";
    JobIsParent = "job_is_parent", 409, "Other jobs depend on this one";
    NotAPump = "not_a_pump", 409, "The job is not a pump job";
    JobNotDeclared = "job_not_declared", 409, "No code declares this job";
    NamespaceExists = "namespace_exists", 409, "A namespace with this name exists";
    NamespaceUsed = "namespace_used", 409, "The namespace is not empty";
    UserExists = "user_exists", 409, "A user with this name exists";
    LastAdmin = "last_admin", 409, "No account with every permission would be left";
    TokenOver = "token_over", 409, "The token has already ended";
    EditConflict = "edit_conflict", 409, "Another caller keeps changing the job";
    JobDeleted = "job_deleted", 409, "The job of this run was deleted";
    RunNotFinished = "run_not_finished", 409, "The run has not ended yet";
    TriggerKeyInUse = "trigger_key_in_use", 409, "An open run of the job has this key";
    RunFinished = "run_finished", 409, "The run has already ended";
    CalendarUsed = "calendar_used", 409, "The calendar is in use";
    ScriptUsed = "script_used", 409, "The script is in use";
    ChannelUsed = "channel_used", 409, "The channel is in use";
    TooManyCalendars = "too_many_calendars", 409, "The namespace has its maximum number of calendars";
    TooManyScripts = "too_many_scripts", 409, "The namespace has its maximum number of scripts";
    TooManyChannels = "too_many_channels", 409, "The namespace has its maximum number of channels";
    TooManyAlerts = "too_many_alerts", 409, "The namespace has its maximum number of rules, silences or maintenance windows";
    TooManyTokens = "too_many_tokens", 409, "The account has its maximum number of tokens";
    ShardOfBroadcast = "shard_of_broadcast", 409, "The run is one shard of a broadcast";
    KeyInFlight = "key_in_flight", 409, "The same call is in progress";
    LinkSpent = "link_spent", 410, "The sign-in link was used or has expired";
    VersionMismatch = "version_mismatch", 412, "The object has another version now";
    BodyTooLarge = "body_too_large", 413, "The body is too large";
    UnsupportedMediaType = "unsupported_media_type", 415, "The body is not declared as JSON";
    InvalidBody = "invalid_body", 422, "The body is invalid";
    KeyReused = "key_reused", 422, "The key was used for another call";
    InvalidQuery = "invalid_query", 422, "The query is invalid";
    InvalidCursor = "invalid_cursor", 422, "The cursor does not belong to this list";
    RateLimited = "rate_limited", 429, "The caller made too many requests";
    TooManyAttempts = "too_many_attempts", 429, "There were too many attempts";
    Internal = "internal", 500, "The server failed";
    Overloaded = "overloaded", 503, "The server is overloaded";
    TimedOut = "timed_out", 503, "The server took too long";
    ProviderUnavailable = "provider_unavailable", 503, "The provider of sign-ins does not answer";
    Unavailable = "unavailable", 503, "The database is not available";
    Unreadable = "unreadable", 503, "A newer server saved the definition";
}
