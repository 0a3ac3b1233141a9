//! Failover: the first executor by name that answers (XXL-JOB's FAILOVER). Remembers nothing.

use super::answers;
use super::ask::{Choice, RouteRequest};
use super::memory::Memory;

pub(super) fn pick(ask: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    answers::first_good(ask)
}
