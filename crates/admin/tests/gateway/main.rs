//! The gateway for executors: with one node, and with several nodes that die, sleep and lose their streams.

#![cfg(test)]

mod admission;
mod adopting;
mod ahead;
mod alert_turns;
mod answers;
mod bounds;
mod claims;
mod cluster;
mod declares;
mod housekeeping;
mod late_reports;
mod leaving;
mod leaving_pumps;
mod local;
mod logs;
mod overload;
mod permissions;
mod pump_requests;
mod pumps;
mod rejoining;
mod resting_pumps;
mod same_app;
mod second_streams;
mod slow;
mod tenants;
mod token_scopes;
mod world;
