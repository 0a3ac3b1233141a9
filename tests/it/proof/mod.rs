//! Tests of the promises under failures: processes die, are paused and lose their connections. Afterwards the checker
//! compares the journal of the handlers with the ledger. `docs/RELIABILITY.md` describes each promise.

mod database;
mod executors;
mod failover;
mod fixture;
mod galera;
mod mariadb;
mod matrix;
mod matrix_upkeep;
mod matrix_users;
mod pooler;
mod proxy;
mod pumps;
mod sleepers;
mod two_servers;
mod xxl;
mod xxl_load;
