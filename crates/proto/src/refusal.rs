//! Why a server refuses an executor's session, as a code that does not depend on the text of the message.

use tonic::{Code, Status};

/// Why a server refused an executor's session: a code in addition to the status's message. The code is in the metadata
/// [`Refusal::METADATA_KEY`] of the status that ends the stream. Older servers send no code; then only the message describes
/// the refusal. For [`Self::Token`], an executor adds to the message which token it sent.
///
/// ```
/// use rondel_proto::Refusal;
///
/// let status = Refusal::Token.status("the token is expired");
/// assert_eq!(Refusal::of(&status), Some(Refusal::Token));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The token is missing, unknown, expired or revoked.
    Token,
    /// The server requires a client certificate.
    Certificate,
}

impl Refusal {
    /// The key of the code in the metadata of a status.
    pub const METADATA_KEY: &'static str = "rondel-refusal";

    const ALL: [Self; 2] = [Self::Token, Self::Certificate];

    /// The code as it is sent.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Certificate => "certificate",
        }
    }

    /// The status with which a server ends the stream.
    #[must_use]
    pub fn status(self, message: &str) -> Status {
        let mut status = Status::new(Code::Unauthenticated, message);
        let code = tonic::metadata::MetadataValue::from_static(self.as_str());
        status.metadata_mut().insert(Self::METADATA_KEY, code);
        status
    }

    /// The code in a status that a server sent; `None` if the status has no code, or an unknown one.
    #[must_use]
    pub fn of(status: &Status) -> Option<Self> {
        let code = status.metadata().get(Self::METADATA_KEY)?.to_str().ok()?;
        Self::ALL.into_iter().find(|refusal| refusal.as_str() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_counts_and_not_the_words() {
        for refusal in Refusal::ALL {
            let status = refusal.status("a message without the word");
            assert_eq!((Refusal::of(&status), status.code()), (Some(refusal), Code::Unauthenticated));
        }
        assert_eq!(Refusal::of(&Status::unauthenticated("no token")), None, "a server that sends no code");
        let mut later = Status::unauthenticated("no token");
        later.metadata_mut().insert(Refusal::METADATA_KEY, "quota".parse().unwrap());
        assert_eq!(Refusal::of(&later), None, "a code of a later server");
    }
}
