//! The promises under fire: processes die, sleep and lose each other, and afterwards the checker holds what handlers wrote
//! against the ledger. `docs/RELIABILITY.md` tells of each.

mod matrix;
mod stage;
