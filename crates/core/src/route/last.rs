//! Last: the last by name (XXL-JOB's LAST). Remembers nothing. Shards are dealt from the last on, backwards.

use super::ask::{Ask, Choice, deal};
use super::memory::Memory;

pub(super) fn pick(ask: &Ask<'_>, _: &mut Memory) -> Choice {
    deal(ask.open().rev(), ask.deal()).into()
}
