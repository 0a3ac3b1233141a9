//! Mutants: the engine with one of its safeguards removed, to show whether tests notice the removal. Like failpoints they exist
//! only in builds with debug assertions; a release build always has all its safeguards.
//!
//! A mutant is enabled for one thread only, because the simulation runs a whole cluster on one thread.

#[cfg(debug_assertions)]
use std::cell::Cell;

macro_rules! mutants {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// The safeguard that is removed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant { $($(#[$doc])* $variant),+ }

        impl Mutant {
            /// All mutants, each with its name.
            pub const ALL: &'static [(&'static str, Self)] = &[$(($name, Self::$variant)),+];

            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

mutants! {
    /// An executor accepts triggers of an epoch that it must refuse.
    NoFenceOnExecutor = "no_fence_on_executor",
    /// An executor runs a trigger again if it arrives twice.
    NoDedupeOnExecutor = "no_dedupe_on_executor",
    /// An executor that no server answers continues the runs that it must stop.
    NoSilenceRule = "no_silence_rule",
    /// An executor begins a run that was sent ahead as soon as it receives the run.
    BeginsOnReceipt = "begins_on_receipt",
    /// When a lease is fenced, an executor drops all runs whose instants are still ahead, although its hello may have listed
    /// them as held.
    FenceDropsAhead = "fence_drops_ahead",
    /// Reports of an executor leave out its runs whose instants are still ahead.
    AheadIsNotListed = "ahead_is_not_listed",
    /// A run is sent ahead although its instant lies beyond the end of the lease.
    AheadOfTheLease = "ahead_of_the_lease",
    /// The end of a stream, or of a lease that is given back, is set without regard to runs that were sent ahead.
    EndBeforeAhead = "end_before_ahead",
    /// If the next server takes over a lease immediately, the lease counts as ended at that moment. Runs that were sent
    /// ahead under it then count as never sent.
    TakenOverEndsAtOnce = "taken_over_ends_at_once",
    /// An executor forgets a result when it has sent it, not when the result is acknowledged.
    ForgetResultWhenSent = "forget_result_when_sent",
    /// Adoption does not raise the dead node's epoch.
    NoFenceRow = "no_fence_row",
    /// The welcome names only the leases that had ended when the server last read the nodes.
    StaleWelcome = "stale_welcome",
    /// Runs have no unique key, and a claim does not check that the job is unchanged since the scan read it.
    NoUniqueKey = "no_unique_key",
    /// Open runs are adopted from every other node, even if its lease holds.
    AdoptWithoutEpoch = "adopt_without_epoch",
    /// If a job has many runs, only some of them are adopted: another server may get the rest.
    AdoptInParts = "adopt_in_parts",
    /// A claim does not check that its lease holds.
    ClaimWithoutLease = "claim_without_lease",
    /// The fires of a claim are kept only in memory, as XXL-JOB does.
    ClaimWithoutRows = "claim_without_rows",
    /// A run that was due before its lease ended counts as never sent.
    DueMeansUnsent = "due_means_unsent",
    /// A stream counts as ended at the time at which its executor was last recorded as seen.
    StreamsEndWithTheLastBeat = "streams_end_with_the_last_beat",
    /// The end of any stream of an executor ends the row of its session, even if another stream is open.
    EachStreamEndsTheRow = "each_stream_ends_the_row",
    /// A stream is used although its session was stored under a lease that has ended since.
    StreamOfEndedLease = "stream_of_ended_lease",
    /// A result overwrites a verdict.
    LateResultOverwrites = "late_result_overwrites",
    /// After a node was cut off from the database, rows from before the outage still make executors count as lost.
    OldRowsCount = "old_rows_count",
    /// A run that its executor continues while no server answers is sent again as soon as the executor is lost.
    NoHoldInSilence = "no_hold_in_silence",
    /// While no server answers, an executor continues runs without a time limit.
    ContinueWithoutEnd = "continue_without_end",
    /// A verdict given because the executor was lost is not replaced when the executor reports the result.
    LostVerdictIsFinal = "lost_verdict_is_final",
    /// A result of an earlier attempt ends a later attempt.
    AnyAttemptEnds = "any_attempt_ends",
    /// The end of a run that was taken for unsent is stored although an executor may have the run.
    StaleUnsentEnd = "stale_unsent_end",
    /// The next attempt has the same number as the previous attempt.
    RetryKeepsAttempt = "retry_keeps_attempt",
    /// Nothing prevents a broadcast from being expanded twice.
    ExpandTwice = "expand_twice",
    /// The runs that follow from a verdict are not written together with the verdict.
    NoFollowers = "no_followers",
    /// A broadcast's shards are not counted.
    NoShardCount = "no_shard_count",
    /// The mark of an at-most-once run is not written.
    NoMark = "no_mark",
    /// The lease has no end for the node that holds it.
    LeaseWithoutEnd = "lease_without_end",
    /// The lease counts from the answer to its renewal, not from when the renewal was sent.
    LeaseFromTheAnswer = "lease_from_the_answer",
    /// The lease is not checked before triggers are sent.
    NoLeaseCheckBeforeSend = "no_lease_check_before_send",
    /// An executor that has not answered the roll call counts as having no runs.
    NotReportedIsNotHeld = "not_reported_is_not_held",
    /// Adopted runs do not enter the overlap gates of their jobs.
    NoGatesAfterAdoption = "no_gates_after_adoption",
    /// A job fires while its open runs are being adopted.
    NoHoldWhileAdopting = "no_hold_while_adopting",
    /// Results are acknowledged before they are written.
    AckBeforeCommit = "ack_before_commit",
    /// The node does not search for its overdue runs that are not in memory.
    NoStrays = "no_strays",
    /// The search for overdue runs that are not in memory starts from the earliest run each time.
    SweepFromTheStart = "sweep_from_the_start",
    /// If an executor reconnects and no longer reports a run that it was sent, the run does not count as lost.
    NoReconcile = "no_reconcile",
    /// The misfire policy is not applied to runs that the timer ring returns late.
    NoMisfireAtTick = "no_misfire_at_tick",
    /// The misfire policy judges a fire's lateness at the time of its claim, even if the claim itself was late.
    LateIsMissed = "late_is_missed",
    /// Each offer of waiting runs tries the same kinds of runs again, and never reaches the others.
    OfferRetriesSameKinds = "offer_retries_same_kinds",
    /// Late jobs are always claimed before jobs that are due soon, however many late jobs there are.
    LateFirst = "late_first",
    /// One job can take all the memory for open runs.
    NoShares = "no_shares",
    /// Runs that are with executors count against their job's share of the memory, like runs that wait.
    HandsCount = "hands_count",
    /// The memory of a run is not released when it ends.
    RoomIsKept = "room_is_kept",
    /// The number of open runs in memory has no bound.
    NoBound = "no_bound",
    /// Runs for which memory had no room are not loaded when there is room again.
    LeftForEver = "left_for_ever",
    /// Pausing or deleting a job ends runs that executors have.
    DropInHand = "drop_in_hand",
    /// A node does not check the rows of runs that have been with executors for a long time.
    NoLook = "no_look",
    /// Executors connected only to other servers are not asked through these servers.
    NoRelay = "no_relay",
    /// Serial jobs have no gate.
    NoGate = "no_gate",
    /// Queue time counts from the time when a run's turn comes, not from its instant.
    QueueTimeFromTurn = "queue_time_from_turn",
    /// A server that stops records unsent runs as possibly sent.
    LeaveAsPerhapsSent = "leave_as_perhaps_sent",
    /// Maintenance windows are ignored when fires are planned.
    WindowsUnheeded = "windows_unheeded",
    /// Fires held back by a maintenance window are lost.
    HeldIsForgotten = "held_is_forgotten",
    /// Fires that already have a row are planned again, alone or within a span of missed fires.
    SpanOverRow = "span_over_row",
    /// A maintenance window that has ended is treated as if it had never existed.
    EndedWindowsForgotten = "ended_windows_forgotten",
    /// A run in shadow mode is sent.
    ShadowIsSent = "shadow_is_sent",
    /// A run goes to any executor although its caller named one.
    ChosenIsIgnored = "chosen_is_ignored",
    /// A limit on runs at the same time always has room.
    NoLimit = "no_limit",
    /// Runs that were taken over from another server do not count for the limit of their job.
    AdoptedBesideLimit = "adopted_beside_limit",
    /// A server joins again before another server has taken over all runs of the joining server's previous lease, and takes
    /// over the remaining runs itself.
    JoinsDuringTakeover = "joins_during_takeover",
    /// A server takes over runs of a lease although another living server, which has the limits of these runs, has fenced
    /// the lease.
    HeirBesideFencer = "heir_beside_fencer",
    /// Runs under a limit start while open runs of another server, which may be under the same limit, are being taken over.
    LimitsWhileAdopting = "limits_while_adopting",
    /// Fires are claimed under maintenance windows that may have been read long ago.
    OldWindows = "old_windows",
    /// A wall clock that is one second ahead decides what is due.
    WallClock = "wall_clock",
    /// An item of a pump goes to its next owner with the epoch of the previous owner.
    DealKeepsEpoch = "deal_keeps_epoch",
    /// A report of an item is accepted from any group and at any epoch.
    AnyOwnerReports = "any_owner_reports",
    /// Reports of items are applied in the order of their arrival, regardless of their sequence numbers.
    SequenceIsIgnored = "sequence_is_ignored",
    /// Items are written even if the node is not the home of their job or its lease has ended.
    ItemsOfAnyNode = "items_of_any_node",
    /// An executor accepts orders of a server whose lease has been fenced.
    OrdersOfFenced = "orders_of_fenced",
    /// A group accepts an item again at an epoch at which it has released it.
    ReleasedIsTakenAgain = "released_is_taken_again",
    /// A group accepts orders that are older than its last order.
    OlderOrderIsTaken = "older_order_is_taken",
    /// An item whose release was requested is dealt immediately.
    DealtBeforeReleased = "dealt_before_released",
    /// A group releases an item while rows of it are being executed.
    ReleasedWithRowsInWork = "released_with_rows_in_work",
    /// A group reports the release of an item only once, even if no order confirms the report.
    ReleasedIsReportedOnce = "released_is_reported_once",
    /// Items stay with groups whose attempts have ended.
    EndedAttemptsKeepItems = "ended_attempts_keep_items",
    /// An order is sent only once, whether or not the group has received it.
    OrderOnce = "order_once",
    /// An item without a group counts as dry if its last owner found no rows.
    DryWithoutOwner = "dry_without_owner",
    /// A root run of a pump that a user has cancelled starts again.
    CancelledPumpBeginsAgain = "cancelled_pump_begins_again",
    /// The store is never searched again for rows of a pump at rest, whatever event occurs and however long the pump has rested.
    DeafRest = "deaf_rest",
    /// A group of a pump succeeds even if rows are left that failed for good.
    UnfinishedSucceeds = "unfinished_succeeds",
}

#[cfg(debug_assertions)]
thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Removes a safeguard on this thread, or restores all of them.
#[cfg(debug_assertions)]
pub fn set(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}

/// Whether this safeguard is removed.
#[inline]
#[must_use]
pub fn on(mutant: Mutant) -> bool {
    #[cfg(debug_assertions)]
    return ACTIVE.get() == Some(mutant);
    #[cfg(not(debug_assertions))]
    {
        let _: Mutant = mutant;
        false
    }
}
