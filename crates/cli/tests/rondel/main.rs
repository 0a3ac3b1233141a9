//! Tests of the real binary, run as a user or a script runs it.

#[cfg(test)]
mod agent;
#[cfg(test)]
mod apply;
#[cfg(test)]
mod bad_starts;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod client;
#[cfg(test)]
mod cron;
#[cfg(test)]
mod dev;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod process;
#[cfg(test)]
mod settings;
