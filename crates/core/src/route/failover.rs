//! Failover: the first executor by name that answers (XXL-JOB's FAILOVER). Remembers nothing.

use super::answers;
use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    answers::first_yes(request)
}
