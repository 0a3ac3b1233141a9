//! Why a sign-in through the provider is refused: each reason is a sentence with a remedy.

/// The reason of a refusal. An email address in it is the address that the provider reports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The state does not belong to this browser.
    #[error("this sign-in did not begin in this browser, or more than 10 minutes ago; begin again on the sign-in page")]
    NotBegun,
    /// The sign-in was already finished.
    #[error("this sign-in was used already; begin again on the sign-in page")]
    Replayed(String),
    /// The provider reported an error.
    #[error("the provider answered {0:?}; try again, and if the error persists ask the operator of the provider")]
    Provider(String),
    /// The provider does not accept the code, or this server.
    #[error(
        "the provider rejected the code ({0:?}); try again, and if the error persists ask the operator of Rondel to compare \
         its client id, secret and redirect URL with the provider's"
    )]
    Code(String),
    /// The token is not valid for this sign-in.
    #[error("the provider's token is not valid: {0}; try again, and if the error persists ask the operator of Rondel")]
    Token(String),
    /// The token has no e-mail address.
    #[error(
        "the provider does not send your e-mail address; ask its operator to release the claims email and \
         email_verified"
    )]
    NoEmail,
    /// The provider has not verified the address.
    #[error("the provider has not verified the address {0}; verify it there, then sign in again")]
    NotVerified(String),
    /// The address cannot name an account.
    #[error("the address {0} cannot be the name of a user here; ask an administrator for a user with a password")]
    NotAName(String),
    /// There is no such account.
    #[error("there is no user {0} here; ask an administrator for one: rondel user create {0}")]
    NoAccount(String),
    /// The account has a password, and no admin has linked it to the provider.
    #[error(
        "the user {0} signs in by password here and is not linked to the provider; sign in by password, or ask an \
         administrator to link it: rondel user change {0} --provider-sign-in true"
    )]
    NotLinked(String),
    /// The account is locked out.
    #[error("the user {0} is locked out here; ask an administrator")]
    Disabled(String),
}

impl Refusal {
    /// The email address of the user who tried to sign in, if known.
    #[must_use]
    pub fn user_email(&self) -> Option<&str> {
        match self {
            Self::Replayed(email)
            | Self::NotVerified(email)
            | Self::NotAName(email)
            | Self::NoAccount(email)
            | Self::NotLinked(email)
            | Self::Disabled(email) => Some(email),
            Self::NotBegun | Self::Provider(_) | Self::Code(_) | Self::Token(_) | Self::NoEmail => None,
        }
    }
}
