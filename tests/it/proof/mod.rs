//! The promises under fire: processes die, sleep and lose each other, and afterwards the checker holds what handlers wrote
//! against the ledger. `docs/RELIABILITY.md` tells of each.

mod database;
mod executors;
mod mariadb;
mod matrix;
mod matrix_people;
mod matrix_upkeep;
mod pooler;
mod proxy;
mod sleepers;
mod stage;
mod two_servers;
