//! First: the first by name (XXL-JOB's FIRST). Remembers nothing. Shards are dealt from the first on.

use super::{Ask, Choice, Memory};

pub(super) fn pick(ask: &Ask<'_>, _: &mut Memory) -> Choice {
    ask.dealt(0).into()
}
