//! Random: any executor (XXL-JOB's RANDOM). Remembers nothing. The shards of a fire are dealt in turn, from one random executor
//! on.

use super::ask::{Choice, RouteRequest};
use super::memory::Memory;

pub(super) fn pick(ask: &RouteRequest<'_>, _: &mut Memory) -> Choice {
    ask.dealt(ask.draw).into()
}
