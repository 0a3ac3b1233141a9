//! The executors' door: one node, and several that die, sleep and lose their streams.

#![cfg(test)]

mod ahead;
mod answers;
mod bounds;
mod claims;
mod cluster;
mod declares;
mod door;
mod housekeeping;
mod local;
mod overload;
mod pass;
mod permissions;
mod pumps;
mod resting_pumps;
mod same_app;
mod slow;
mod tenants;
mod world;
