//! The table of all failpoints: only these can be armed, and each of them occurs in the sources (a test in `tests/it` compares).

/// The names of the store's transactions. Each has two failpoints: `NAME.written`, when everything is written and COMMIT is not yet sent,
/// and `NAME.committed`, when COMMIT has been answered and no caller has been notified.
pub const TRANSACTIONS: &[&str] = &[
    "acknowledge_incident",
    "add_link",
    "add_maintenance",
    "add_silence",
    "add_token",
    "adopt",
    "append_logs",
    "ask_cancel",
    "ask_cancels",
    "begin_sign_in",
    "change_account",
    "change_items",
    "change_job",
    "claim",
    "count_attempt",
    "create_account",
    "create_first_admin",
    "create_job",
    "create_jobs",
    "delete_account",
    "delete_alert_rule",
    "delete_calendar",
    "delete_channel",
    "delete_job",
    "delete_namespace",
    "delete_script",
    "end_maintenance",
    "end_silence",
    "ensure_app",
    "expand",
    "fence",
    "finish",
    "finish_unwritable",
    "forget_nodes",
    "forget_pump",
    "forget_tokens",
    "free_homeless",
    "free_jobs",
    "hand_over",
    "heal_job",
    "join",
    "limit_homes",
    "mark",
    "move_jobs",
    "note_running",
    "note_waits",
    "open_session",
    "purge",
    "put_failure_webhook",
    "read_changes",
    "record_try",
    "remove_logs",
    "report_xxl",
    "request_run",
    "revoke_token",
    "roll_up",
    "rotate_token",
    "save_alert_rule",
    "save_calendar",
    "save_channel",
    "save_report_schedule",
    "save_script",
    "send_xxl",
    "set_password",
    "shelve",
    "take_link",
    "take_outbox",
    "take_waiting",
    "unmark",
    "write_alerts",
    "write_messages",
    "write_report",
];

/// The other failpoints of a server, roughly in the order in which a server and its runs reach them.
pub const SERVER: &[Point] = &[
    Point { name: "migrate.begun", description: "the schema is locked, and has not changed yet" },
    Point { name: "next_migration.begun", description: "a migration is applied, but the next one is not" },
    Point { name: "migrate.applied", description: "the schema is up to date, and still locked" },
    Point { name: "renew.written", description: "the lease is renewed in the database, but the node does not know it" },
    Point { name: "claim.locked", description: "due jobs are locked, but their next fires are not set" },
    Point { name: "claim.moved", description: "the next fires of due jobs are set, but their runs are not inserted" },
    Point { name: "ring.put", description: "claimed runs are in the ring" },
    Point { name: "tick.checked", description: "due runs were read, but not handed to the dispatcher" },
    Point { name: "send.checked", description: "the lease was checked, but the triggers are not on the stream" },
    Point { name: "send.written", description: "the triggers are on the stream" },
    Point { name: "accept.received", description: "an executor's answer to triggers was received, but not processed" },
    Point { name: "result.received", description: "results were received, but not passed to the store" },
    Point { name: "finish.settled", description: "the verdicts are written, but not what follows from them" },
    Point { name: "acknowledge.sent", description: "results are acknowledged, but the dispatcher does not know it" },
    Point { name: "adopt.fenced", description: "the dead node is fenced, but its runs are not taken over" },
    Point { name: "alert.sent", description: "a message was sent, but not removed from the outbox" },
    Point {
        name: "alert_send.sent",
        description: "a service accepted the message of an alert, but the try is not recorded",
    },
    Point { name: "alert_send.recorded", description: "the try is recorded, but the channel's lease has not ended" },
    Point { name: "purge.deleted", description: "the logs of old runs are deleted, but not the runs" },
];

/// The failpoints of an executor, in the order in which a run passes them.
pub const EXECUTOR: &[Point] = &[
    Point { name: "executor.accepted", description: "triggers are accepted, but no handler has begun" },
    Point { name: "executor.starting", description: "a handler is about to begin" },
    Point { name: "executor.finished", description: "a handler has ended, but its result is not stored" },
    Point { name: "executor.journaled", description: "results are on disk, but not sent" },
    Point { name: "executor.reported", description: "results are on the stream" },
    Point { name: "executor.acknowledged", description: "results are acknowledged, but not removed" },
];

/// A failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The name by which it is armed.
    pub name: &'static str,
    /// What has happened when a process reaches it, and what has not.
    pub description: &'static str,
}

/// All failpoints of a server.
pub fn server() -> impl Iterator<Item = String> {
    let written_names = TRANSACTIONS.iter().map(|operation| format!("{operation}.written"));
    let committed_names = TRANSACTIONS.iter().map(|operation| format!("{operation}.committed"));
    SERVER.iter().map(|point| point.name.to_owned()).chain(written_names).chain(committed_names)
}

/// All failpoints of an executor.
pub fn executor() -> impl Iterator<Item = String> {
    EXECUTOR.iter().map(|point| point.name.to_owned())
}
