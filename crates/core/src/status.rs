//! The status of a run, and the triggers that create runs.

use crate::word_enum::word_enum;

word_enum! {
    /// The status of a run. The first three are open, the others are verdicts.
    RunStatus {
        /// Claimed by its home: kept in memory until it is due or an executor is free, or sent and not known to have begun.
        Pending = "pending",
        /// Due later (a retry, a delay): the scan takes it up again near its `due_at`.
        Waiting = "waiting",
        /// Its executor has reported that its handler began, or it waits for its shards or child runs. A run that waits for none and ends within
        /// about a second never gets this status.
        // The store also has it for a run of a dead server until the roll call: see `Run::awaits_roll_call`.
        Running = "running",
        /// The handler returned without an error.
        Succeeded = "succeeded",
        /// The handler failed, and no further attempt followed: none was left, or none could begin for the reason given.
        Failed = "failed",
        /// The handler was stopped at its deadline.
        TimedOut = "timed_out",
        /// A user, a program or the server cancelled it.
        Cancelled = "cancelled",
        /// How it ended is not known: its executor was lost and the job is at-most-once, or its executor reported no end in time.
        Unknown = "unknown",
        /// No attempt of it began, or its handler skipped it, for the reason given.
        Skipped = "skipped",
    }
}

impl RunStatus {
    /// Whether this is a verdict.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Pending | Self::Waiting | Self::Running)
    }
}

word_enum! {
    /// Why a run exists.
    Trigger {
        /// A cron schedule.
        Cron = "cron",
        /// A fixed interval.
        Interval = "interval",
        /// A single instant.
        Once = "once",
        /// A user, in the console or on the command line.
        Manual = "manual",
        /// A program, by the API.
        Api = "api",
        /// A parent job's run.
        Parent = "parent",
        /// A request for fires of the past.
        Backfill = "backfill",
        /// A missed fire that the misfire policy runs late.
        Misfire = "misfire",
    }
}
