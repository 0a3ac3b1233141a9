//! Identifiers: newtypes over 63-bit numbers, and the generator that a node makes them with.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(i64);

        impl $name {
            /// Wraps a number that came from the store or the wire.
            #[must_use]
            pub const fn new(id: i64) -> Self {
                Self(id)
            }
            /// The number, for SQL and the wire.
            #[must_use]
            pub const fn get(self) -> i64 {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }

        /// Ids are decimal strings in JSON, because JavaScript's numbers are exact only up to 53 bits.
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                crate::schema::id()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(|_| serde::de::Error::custom(format_args!("{text:?} is not an id, a decimal number")))
            }
        }
    )+};
}

ids! {
    /// A tenant or an environment.
    NamespaceId,
    /// A group of executors that run the same handlers.
    AppId,
    /// A job, whatever the version of its definition.
    JobId,
    /// One execution of a fire (one per shard).
    RunId,
    /// One admin server of the cluster, across its restarts.
    NodeId,
    /// One live process of an app: new at each of its starts.
    ExecutorId,
    /// An API token.
    TokenId,
    /// An account that can sign in.
    AccountId,
    /// A session of a signed-in user.
    SessionId,
    /// An entry of the audit log.
    AuditId,
    /// A business calendar.
    CalendarId,
    /// A row of the outbox.
    OutboxId,
    /// A channel that alerts are sent to.
    ChannelId,
    /// An incident: the time in which an alert rule holds for one subject.
    IncidentId,
    /// A message about an incident to one channel.
    MessageId,
    /// One try to deliver a message.
    DeliveryId,
    AlertRuleId,
    /// A silence of alerts.
    SilenceId,
    /// A maintenance window.
    MaintenanceId,
    /// A script that the server keeps.
    ScriptId,
}

impl JobId {
    /// The lane that handles everything about this job, in order: one of `count` parallel queues of a server, numbered
    /// from 0.
    #[must_use]
    pub fn lane(self, count: usize) -> usize {
        // Ids of one node differ mostly in their time bits, so they are mixed before the remainder is taken.
        let hash = self.0.unsigned_abs().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        usize::try_from(hash).unwrap_or(0) % count.max(1)
    }
}

impl RunId {
    /// When its row was created, according to the id.
    #[must_use]
    pub const fn created_at(self) -> Timestamp {
        Timestamp::from_millis((self.0 >> (SEQUENCE_BITS + ORDINAL_BITS)).saturating_add(ID_EPOCH_MS))
    }
}

/// Makes ids that rise with time: 41 bits of milliseconds since 2024, 10 bits of node ordinal, 12 bits of sequence.
///
/// A node's ordinal differs from those of every other living node and of its own earlier leases. So no two generators ever make the same
/// id, not even one that restarts after the clock has stepped back. Within one millisecond the sequence counts up; if it overflows, or the
/// clock steps back, the generator continues from its last id.
///
/// ```
/// use rondel_core::{IdGen, Timestamp};
///
/// let ids = IdGen::new(3);
/// let now = Timestamp::from_secs(1_772_953_200);
/// assert!(ids.next(now) < ids.next(now));
/// ```
#[derive(Debug)]
pub struct IdGen {
    ordinal: i64,
    last_id: std::sync::atomic::AtomicI64,
}

const SEQUENCE_BITS: u32 = 12;
const ORDINAL_BITS: u32 = 10;
/// 2024-01-01T00:00:00Z.
const ID_EPOCH_MS: i64 = 1_704_067_200_000;

impl IdGen {
    /// How many nodes can make ids at the same time.
    pub const ORDINAL_COUNT: i64 = 1 << ORDINAL_BITS;

    /// A generator for the node with this ordinal (taken modulo [`Self::ORDINAL_COUNT`]).
    #[must_use]
    pub const fn new(ordinal: i64) -> Self {
        Self { ordinal: ordinal.rem_euclid(Self::ORDINAL_COUNT), last_id: std::sync::atomic::AtomicI64::new(0) }
    }

    /// A generator with the given ordinal that continues from this one: its ids are greater, whatever the clock shows.
    #[must_use]
    pub fn continued_as(&self, ordinal: i64) -> Self {
        let last_id = self.last_id.load(std::sync::atomic::Ordering::Relaxed);
        Self { last_id: std::sync::atomic::AtomicI64::new(last_id), ..Self::new(ordinal) }
    }

    /// The least id that any generator makes at `at` or later; ids that were made before are smaller.
    #[must_use]
    pub fn first_at(at: Timestamp) -> i64 {
        at.as_millis().saturating_sub(ID_EPOCH_MS).clamp(0, i64::MAX >> (SEQUENCE_BITS + ORDINAL_BITS))
            << (SEQUENCE_BITS + ORDINAL_BITS)
    }

    #[must_use]
    pub fn next(&self, now: Timestamp) -> i64 {
        use std::sync::atomic::Ordering::Relaxed;
        // (milliseconds, sequence) as one rising number; the ordinal is put between them only in the id that is returned.
        let id_min = (now.as_millis() - ID_EPOCH_MS).max(0) << SEQUENCE_BITS;
        let step = |last_id: i64| Some(id_min.max(last_id + 1));
        let last_id = self.last_id.fetch_update(Relaxed, Relaxed, step).unwrap_or_default();
        let sequence_id = id_min.max(last_id + 1);
        let (millis, sequence) = (sequence_id >> SEQUENCE_BITS, sequence_id & ((1 << SEQUENCE_BITS) - 1));
        (millis << (SEQUENCE_BITS + ORDINAL_BITS)) | (self.ordinal << SEQUENCE_BITS) | sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_even_when_the_clock_steps_back_or_the_sequence_runs_over() {
        let ids = IdGen::new(1023);
        let now = Timestamp::from_secs(1_800_000_000);
        let mut made: Vec<i64> = (0..10_000).map(|_| ids.next(now)).collect();
        made.push(ids.next(Timestamp::from_secs(1_700_000_000)));
        // Under its next lease, perhaps with another ordinal, a node makes greater ids than before.
        let next = ids.continued_as(1023);
        made.push(next.next(Timestamp::from_secs(1_700_000_000)));
        assert!(made.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(made.iter().all(|id| *id > 0));
    }

    #[test]
    fn two_nodes_never_make_the_same_id() {
        let (a, b) = (IdGen::new(1), IdGen::new(2));
        let now = Timestamp::from_secs(1_800_000_000);
        let of_a: std::collections::HashSet<i64> = (0..5_000).map(|_| a.next(now)).collect();
        assert!((0..5_000).all(|_| !of_a.contains(&b.next(now))));
    }

    #[test]
    fn ids_contain_the_instant_of_their_creation() {
        let at = Timestamp::from_millis(1_800_000_000_123);
        let first = IdGen::first_at(at);
        assert!(IdGen::new(1023).next(Timestamp::from_millis(at.as_millis() - 1)) < first);
        assert!(IdGen::new(0).next(at) >= first);
        assert_eq!(RunId::new(IdGen::new(7).next(at)).created_at(), at);
        assert_eq!(IdGen::first_at(Timestamp::EPOCH), 0);
        assert!(IdGen::first_at(Timestamp::MAX) > first);
    }

    #[test]
    fn lanes_are_shared_out() {
        let ids = IdGen::new(5);
        let mut per_lane = [0; 4];
        for step in 0..4_000 {
            per_lane[JobId::new(ids.next(Timestamp::from_millis(1_800_000_000_000 + step))).lane(4)] += 1;
        }
        assert!(per_lane.iter().all(|count| (800..1200).contains(count)), "{per_lane:?}");
    }

    #[test]
    fn ids_of_one_millisecond_follow_one_another() {
        let ids = IdGen::new(3);
        let now = Timestamp::from_secs(1_800_000_000);
        let first = ids.next(now);
        assert_eq!([ids.next(now), ids.next(now)], [first + 1, first + 2]);
        assert_eq!(first & ((1 << SEQUENCE_BITS) - 1), 0);
        assert_eq!((first >> SEQUENCE_BITS) & 1023, 3);
        // After 4,096 ids the sequence continues in the next millisecond.
        let made: Vec<i64> = (0..4_094).map(|_| ids.next(now)).collect();
        assert_eq!(*made.last().unwrap() - first, (1 << (SEQUENCE_BITS + ORDINAL_BITS)));
    }

    #[test]
    fn a_job_has_one_lane_of_those_that_there_are() {
        assert!((1..1_000).all(|id| JobId::new(id).lane(1) == 0 && JobId::new(id).lane(0) == 0));
        assert!((1..1_000).any(|id| JobId::new(id).lane(2) == 1));
    }
}
