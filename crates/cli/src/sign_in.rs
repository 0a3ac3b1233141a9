//! `rondel sign-in-link`: prints a link that opens the console.

use clap::Args;

use crate::client::{ClientArgs, text_of};
use crate::exit::Failure;
use crate::output;

/// The link signs in as the token's owner.
#[derive(Debug, Args)]
pub(crate) struct SignInLinkArgs {
    #[command(flatten)]
    client: ClientArgs,
}

impl SignInLinkArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client = self.client.client()?;
        let link = client.post(&["sign-in-links"], "{}").await?;
        output::print_lines(&format!("{}{}", client.server_url(), text_of(&link.value()?["path"])))
    }
}
