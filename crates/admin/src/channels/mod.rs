//! Where alerts are sent: channels are saved and tested here, and a loop delivers their messages.
//!
//! `texts` and `template` make the texts of a message, `request` and `robots` put them into the form of a service, `deliver` sends
//! them and `judge` reads what the service answers. Which messages there are is decided elsewhere: the transaction that changes
//! an incident writes them. `watchdog` calls a monitoring service while this server schedules.

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

pub use save::{ChannelError, ChannelView, NewChannel, PutChannel, save, test, view};
pub use secrets::SecretSources;
pub(crate) use sender::ChannelLoop;
pub(crate) use watchdog::WatchdogLoop;
