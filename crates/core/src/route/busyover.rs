//! Busyover: the first executor by name that answers that it has no run of the job and a free slot (XXL-JOB's BUSYOVER). Remembers nothing.

use super::answers;
use super::ask::{Choice, RouteRequest};
use super::memory::Memory;

pub(super) fn pick(ask: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    answers::first_good(ask)
}
