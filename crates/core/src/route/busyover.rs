//! Busyover: the first executor by name that answers that it has no run of the job and a free slot (XXL-JOB's BUSYOVER). Remembers nothing.

use super::answers;
use super::memory::Memory;
use super::request::{Choice, RouteRequest};

pub(super) fn pick(request: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    answers::first_yes(request)
}
