//! The promises under fire: processes die, sleep and lose each other, and afterwards the checker compares the journal of
//! the handlers with the ledger. `docs/RELIABILITY.md` describes each.

mod database;
mod executors;
mod failover;
mod galera;
mod mariadb;
mod matrix;
mod matrix_upkeep;
mod matrix_users;
mod pooler;
mod proxy;
mod pumps;
mod sleepers;
mod stage;
mod two_servers;
mod xxl;
mod xxl_load;
