//! The log of what was done, by whom and from where. A change is written down before it is made, and once more when it is
//! known what became of it; then an entry never changes again.

use async_trait::async_trait;
use rondel_core::{AuditId, Timestamp, TokenId};

use crate::error::Result;

/// The most bytes of a document that an entry keeps.
pub(super) const DOCUMENT_LEN_MAX: usize = 64 * 1024;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// The word for it in SQL and JSON.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(word: &str) -> std::result::Result<Self, String> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    other => Err(format!("{other:?} is none of {}", [$($word),+].join(", "))),
                }
            }
        }
    };
}

words! {
    /// How the caller was authenticated.
    Means {
        /// A user who signed in.
        Session = "session",
        /// A token of the API.
        Token = "token",
        /// An executor.
        Executor = "executor",
        /// The server itself.
        System = "system",
        /// An unknown caller: a sign-in that failed.
        Anonymous = "anonymous",
    }
}

words! {
    /// What became of it.
    Verdict {
        /// It was done.
        Allowed = "allowed",
        /// The caller may not.
        Denied = "denied",
        /// The caller may, and it could not be done.
        Failed = "failed",
    }
}

/// What an entry has as its state after the call while the outcome is unknown: its server still works on
/// it, or died over it.
pub const UNANSWERED: &str = r#"{"unanswered":true}"#;

/// One thing that was done, or tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its id, which rises with time.
    pub id: AuditId,
    /// When.
    pub at: Timestamp,
    /// Who: the name of an account or of a token.
    pub actor: String,
    /// By what means.
    pub means: Means,
    /// The token that the caller used: names of tokens are not unique.
    pub token: Option<TokenId>,
    /// From where.
    pub address: Option<String>,
    /// Under which id the request stands in the server's log.
    pub request_id: Option<String>,
    /// What: a noun and a verb, such as `job.pause`.
    pub action: String,
    /// To what: the name or id that the noun goes with.
    pub object: String,
    /// Name of the namespace that it lies in.
    pub namespace: Option<String>,
    /// What became of it.
    pub verdict: Verdict,
    /// What it was before, as JSON, without secrets.
    pub before: Option<String>,
    /// What it was afterwards.
    pub after: Option<String>,
}

/// A page of the log, the newest first.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    /// Only by this actor.
    pub actor: Option<String>,
    /// Only this action.
    pub action: Option<String>,
    /// Only to this object.
    pub object: Option<String>,
    /// Only in this namespace.
    pub namespace: Option<String>,
    /// Only with this verdict.
    pub verdict: Option<Verdict>,
    /// Only from then on.
    pub from: Option<Timestamp>,
    /// Only before then.
    pub to: Option<Timestamp>,
    /// Only entries older than this one.
    pub after: Option<AuditId>,
    /// At most so many.
    pub limit: u32,
}

/// The log of what was done.
#[async_trait]
pub trait AuditLog {
    /// Writes an entry.
    async fn add_audit(&self, entry: &AuditEntry) -> Result<()>;

    /// Completes an entry that is [`UNANSWERED`]: its object, namespace, verdict, before and after. False where there
    /// is none, or another word was first.
    async fn answer_audit(&self, entry: &AuditEntry) -> Result<bool>;

    /// A page of entries.
    async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>>;
}

/// A document as it is kept: one that is too long is replaced by its length.
pub(crate) fn kept(document: &str) -> String {
    if document.len() <= DOCUMENT_LEN_MAX {
        return document.replace("\\u0000", "\\ufffd").replace('\0', "\u{fffd}");
    }
    format!("{{\"left_out_bytes\":{}}}", document.len())
}
