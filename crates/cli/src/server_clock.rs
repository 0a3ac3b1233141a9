//! The clock of a server, for decisions about its runs and alerts: the clock of this machine may be wrong.

use rondel_core::Timestamp;

use crate::client::Client;
use crate::clock;

/// The current time by the server's clock, in whole seconds; by the clock of this machine if the server does not report
/// its time.
pub(crate) async fn server_now(client: &Client) -> Timestamp {
    let answer = client.get_outside_api("livez").await;
    answer.ok().and_then(|answer| answer.date).unwrap_or_else(clock::now)
}
