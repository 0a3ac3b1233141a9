//! Mutants: the engine with one of its safeguards taken out, so that tests see whether they would notice. Like
//! failpoints they are only in builds with debug assertions; a release build has all of its safeguards, always.
//!
//! A mutant is on for one thread: the simulation runs a whole cluster on one.

#[cfg(debug_assertions)]
use std::cell::Cell;

macro_rules! mutants {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// The safeguard that is removed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant { $($(#[$doc])* $variant),+ }

        impl Mutant {
            /// Every one, with its name.
            pub const ALL: &'static [(&'static str, Self)] = &[$(($name, Self::$variant)),+];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

mutants! {
    /// An executor takes triggers of an epoch that it has to refuse.
    NoFenceOnExecutor = "no_fence_on_executor",
    /// An executor runs a trigger again that comes twice.
    NoDedupeOnExecutor = "no_dedupe_on_executor",
    /// An executor without a server goes on with what must not run twice.
    NoSilenceRule = "no_silence_rule",
    /// An executor forgets a result when it has sent it, not when it was acknowledged.
    ForgetResultWhenSent = "forget_result_when_sent",
    /// Adoption does not raise the dead node's epoch.
    NoFenceRow = "no_fence_row",
    /// An executor that connects learns of the leases that were over when its server read the nodes last.
    StaleWelcome = "stale_welcome",
    /// Runs have no unique key, and a claim does not look whether the job is as the scan saw it.
    NoUniqueKey = "no_unique_key",
    /// Open runs are taken from every other node, whether its lease holds or not.
    AdoptWithoutEpoch = "adopt_without_epoch",
    /// Of a job whose runs are many, a part is taken over: another server may get the rest.
    AdoptInParts = "adopt_in_parts",
    /// A claim does not look whether its lease holds.
    ClaimWithoutLease = "claim_without_lease",
    /// The fires of a claim are not written, only remembered: what XXL-JOB does.
    ClaimWithoutRows = "claim_without_rows",
    /// A run that was due before its lease ended counts as never sent.
    DueMeansUnsent = "due_means_unsent",
    /// A stream counts as ended when its executor was last noted as heard.
    StreamsEndWithTheLastBeat = "streams_end_with_the_last_beat",
    /// Each stream of an executor ends the row of its session, also beside another one.
    EachStreamEndsTheRow = "each_stream_ends_the_row",
    /// A result overwrites a verdict.
    LateResultOverwrites = "late_result_overwrites",
    /// After an outage of the database executors are lost by what rows showed before it.
    OldRowsCount = "old_rows_count",
    /// A run that goes on in silence is sent again as soon as its executor is lost.
    NoHoldInSilence = "no_hold_in_silence",
    /// An executor runs on in silence without a bound.
    ContinueWithoutEnd = "continue_without_end",
    /// A verdict that was given because the executor was lost stays when the executor reports the result.
    LostVerdictIsFinal = "lost_verdict_is_final",
    /// A result of an earlier attempt ends the later one.
    AnyAttemptEnds = "any_attempt_ends",
    /// The next attempt has the number of the one before.
    RetryKeepsAttempt = "retry_keeps_attempt",
    /// A broadcast may be expanded twice.
    ExpandTwice = "expand_twice",
    /// What follows from a verdict is not written with it.
    NoFollowers = "no_followers",
    /// A broadcast's shards are not counted.
    NoShardCount = "no_shard_count",
    /// The mark of an at-most-once run is not written.
    NoMark = "no_mark",
    /// The lease has no end for the node that holds it.
    LeaseWithoutEnd = "lease_without_end",
    /// The lease counts from the answer to its renewal.
    LeaseFromTheAnswer = "lease_from_the_answer",
    /// No check whether the lease holds before something is sent.
    NoLeaseCheckBeforeSend = "no_lease_check_before_send",
    /// Who has not answered the roll call has nothing.
    NotReportedIsNotHeld = "not_reported_is_not_held",
    /// Adopted runs have no place in their jobs' order.
    NoGatesAfterAdoption = "no_gates_after_adoption",
    /// A job fires while its open runs are being taken over.
    NoHoldWhileAdopting = "no_hold_while_adopting",
    /// Results are acknowledged before they are written.
    AckBeforeCommit = "ack_before_commit",
    /// Own runs that are overdue and not in memory are not looked for.
    NoStrays = "no_strays",
    /// The look for them begins with the earliest run each time.
    SweepFromTheStart = "sweep_from_the_start",
    /// An executor that comes back without a run is not asked about it.
    NoReconcile = "no_reconcile",
    /// What comes late out of the ring is not held against the misfire policy.
    NoMisfireAtTick = "no_misfire_at_tick",
    /// The misfire policy asks how late a fire is when it is claimed, however long the claim took.
    LateIsMissed = "late_is_missed",
    /// An offer of waiting runs looks past the same kinds each time.
    LookAheadStandsStill = "look_ahead_stands_still",
    /// What is late is claimed before what is due soon, however much it is.
    LateFirst = "late_first",
    /// The job that comes first takes all memory for open runs.
    NoShares = "no_shares",
    /// Runs in executors' hands count as much against the share of their job as those that wait.
    HandsCount = "hands_count",
    /// What a run took of that memory is not given back.
    RoomIsKept = "room_is_kept",
    /// That memory has no bound.
    NoBound = "no_bound",
    /// Runs that had no room in memory are not taken up when there is room.
    LeftForEver = "left_for_ever",
    /// A pause, or a deletion, ends what executors have.
    DropInHand = "drop_in_hand",
    /// A node does not look what became of runs that it has had in hand for long.
    NoLook = "no_look",
    /// Executors that only other servers hear are not asked by way of them.
    NoRelay = "no_relay",
    /// Serial jobs have no gate.
    NoGate = "no_gate",
    /// Queue time counts from when a run's turn has come, not from its instant.
    QueueTimeFromTurn = "queue_time_from_turn",
    /// A server that stops leaves what it has not sent as what it may have sent.
    LeaveAsPerhapsSent = "leave_as_perhaps_sent",
    /// Maintenance windows are not heeded where fires are planned.
    WindowsUnheeded = "windows_unheeded",
    /// What a maintenance window holds back is forgotten.
    HeldIsForgotten = "held_is_forgotten",
    /// A maintenance window that is over was never there.
    EndedWindowsForgotten = "ended_windows_forgotten",
    /// A run in shadow mode is sent.
    ShadowIsSent = "shadow_is_sent",
    /// A run goes to any executor although its caller named one.
    ChosenIsIgnored = "chosen_is_ignored",
    /// Fires are claimed by maintenance windows as they were read at any time.
    OldWindows = "old_windows",
    /// A wall clock a second ahead decides what is due.
    WallClock = "wall_clock",
    /// An item of a pump goes to its next owner under the epoch of the one before.
    DealKeepsEpoch = "deal_keeps_epoch",
    /// A report of an item counts whatever group makes it, and at whatever epoch.
    AnyOwnerReports = "any_owner_reports",
    /// Reports of items count in the order in which they come.
    SequenceIsIgnored = "sequence_is_ignored",
    /// Items are written whether or not the node is the home of their job, with a lease that holds.
    ItemsOfAnyNode = "items_of_any_node",
    /// An executor takes orders of a server whose lease has been fenced.
    OrdersOfFenced = "orders_of_fenced",
    /// A group takes an item again at an epoch at which it has released it.
    ReleasedIsTakenAgain = "released_is_taken_again",
    /// A group takes orders that are older than its last one.
    OlderOrderIsTaken = "older_order_is_taken",
    /// An item that is asked back is dealt at once.
    DealtBeforeReleased = "dealt_before_released",
    /// A group releases an item while rows of it are executed.
    ReleasedWithRowsInWork = "released_with_rows_in_work",
    /// A group that has released its last item does not repeat the report of it.
    ReleasedIsReportedOnce = "released_is_reported_once",
    /// Items stay with groups whose attempts are over.
    EndedAttemptsKeepItems = "ended_attempts_keep_items",
    /// An order is sent once, whether or not the group has taken it.
    OrderOnce = "order_once",
    /// An item that no group has counts as dry where its last owner found no rows.
    DryWithoutOwner = "dry_without_owner",
    /// A root run of a pump that a user has cancelled begins again.
    CancelledPumpBeginsAgain = "cancelled_pump_begins_again",
    /// A pump at rest goes on resting, whatever is noticed and however late it is.
    DeafRest = "deaf_rest",
    /// A group of a pump succeeds whatever rows it leaves.
    UnfinishedSucceeds = "unfinished_succeeds",
}

#[cfg(debug_assertions)]
thread_local! {
    static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Takes a safeguard out on this thread, or puts all of them back.
#[cfg(debug_assertions)]
pub fn set(mutant: Option<Mutant>) {
    ON.set(mutant);
}

/// Whether this safeguard is taken out.
#[inline]
#[must_use]
pub fn on(mutant: Mutant) -> bool {
    #[cfg(debug_assertions)]
    return ON.get() == Some(mutant);
    #[cfg(not(debug_assertions))]
    {
        let _: Mutant = mutant;
        false
    }
}
