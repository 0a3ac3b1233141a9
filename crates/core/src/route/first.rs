//! First: the first executor by name (XXL-JOB's FIRST). Remembers nothing. Shards are dealt from the first on.

use super::ask::{Ask, Choice};
use super::memory::Memory;

pub(super) fn pick(ask: &Ask<'_>, _: &mut Memory) -> Choice {
    ask.dealt(0).into()
}
