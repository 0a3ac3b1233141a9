//! Random: any executor (XXL-JOB's RANDOM). Remembers nothing. The shards of a fire are dealt from one drawn start, so that they spread.

use super::ask::{Choice, RouteRequest};
use super::memory::Memory;

pub(super) fn pick(ask: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    ask.dealt(ask.draw).into()
}
