//! Alert channels: saving and testing them, and the loop that delivers their messages.
//!
//! `texts` and `template` write the texts of a message, `request` and `robots` convert them to the format of a service, `deliver` sends the
//! request, and `judge` interprets the answer. The messages are created elsewhere: by the transaction that changes an incident. `watchdog`
//! calls a monitoring service while this server schedules.

mod deliver;
mod judge;
mod request;
mod robots;
mod samples;
mod save;
mod secrets;
mod sender;
mod sign;
mod template;
mod texts;
mod url;
mod watchdog;

pub use save::{ChannelError, ChannelView, NewChannel, SavedChannel, find, save, test, view};
pub use secrets::SecretSources;
pub(crate) use sender::ChannelLoop;
pub(crate) use watchdog::WatchdogLoop;
