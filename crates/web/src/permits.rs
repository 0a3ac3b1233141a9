//! The permits and memory shares that requests and callers occupy. `load` and `shares` decide how many each may occupy.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Semaphore;

use crate::limits::{APPLY_ROOM_LEN, CallerKey, HttpLimits, Share, Tally};

/// The permits and tallies of everything that requests can occupy.
#[derive(Clone, Debug)]
pub(crate) struct Permits {
    pub(crate) requests: Arc<Semaphore>,
    /// The part of `requests` that unauthenticated requests may take.
    pub(crate) unauthenticated: Arc<Semaphore>,
    /// Requests by address, counted separately with (`true`) and without credentials.
    pub(crate) by_address: Tally<(IpAddr, bool)>,
    pub(crate) by_caller: Tally<CallerKey>,
    /// Unauthenticated requests whose bodies have not arrived, by address.
    pub(crate) bodies: Tally<IpAddr>,
    /// Calls of executors whose tokens are not checked yet, by address.
    pub(crate) gateway: Tally<IpAddr>,
    /// Bytes of bodies in memory, by caller; `None` counts those of all callers.
    pub(crate) body_bytes: Tally<Option<CallerKey>>,
    /// Live streams by kind and caller; `None` counts those of all callers.
    pub(crate) live_streams: Tally<(StreamKind, Option<CallerKey>)>,
    pub(crate) shares: Shares,
}

/// The kinds of long-lived answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StreamKind {
    Events,
    Log,
}

/// A stream's place among the live streams of its caller, and its place among those of all callers.
pub(crate) type LiveShare = (Share<(StreamKind, Option<CallerKey>)>, Share<(StreamKind, Option<CallerKey>)>);

impl Permits {
    pub(crate) fn new(limits: &HttpLimits) -> Self {
        Self {
            requests: Arc::new(Semaphore::new(limits.requests)),
            unauthenticated: Arc::new(Semaphore::new(limits.requests.saturating_sub(limits.requests_reserved))),
            by_address: Tally::default(),
            by_caller: Tally::default(),
            bodies: Tally::default(),
            gateway: Tally::default(),
            body_bytes: Tally::default(),
            live_streams: Tally::default(),
            shares: Shares::default(),
        }
    }
}

/// The permits and tallies of callers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    /// The permits of each caller to read from the database.
    pub(crate) read_turns: Arc<Mutex<BTreeMap<CallerKey, Weak<Semaphore>>>>,
    /// Heavy work by kind and caller; `None` counts that of all callers.
    pub(crate) heavy_work: Tally<(HeavyWork, Option<CallerKey>)>,
    pub(crate) apply_rooms: ApplyRooms,
    /// Bytes of answers that clients have not read, by caller; `None` counts those of all callers.
    pub(crate) unread_answer_bytes: Tally<Option<CallerKey>>,
}

/// Memory for the job lists of apply requests, in KiB: for all callers together, and for each caller.
#[derive(Clone, Debug)]
pub(crate) struct ApplyRooms {
    pub(crate) all_callers: Arc<Semaphore>,
    pub(crate) by_caller: Arc<Mutex<BTreeMap<CallerKey, Weak<Semaphore>>>>,
}

impl Default for ApplyRooms {
    fn default() -> Self {
        Self { all_callers: Arc::new(Semaphore::new(APPLY_ROOM_LEN / 1024)), by_caller: Arc::default() }
    }
}

/// Kinds of work that need so much time and memory that only a few may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HeavyWork {
    Export,
    Apply,
}
