//! The audit log: what was done, by whom and from where. The server writes an entry before it makes the change, and completes the entry
//! when the outcome is known. A complete entry never changes.

use async_trait::async_trait;
use rondel_core::{AuditId, Timestamp, TokenId};

use crate::error::Result;

/// Maximum size of each of the two documents of an entry, the states before and after, in bytes.
pub(super) const DOCUMENT_LEN_MAX: usize = 64 * 1024;

rondel_core::plain_word_enum! {
    /// How the caller was authenticated.
    pub AuthMethod {
        /// A user who signed in.
        Session = "session",
        /// A token of the API.
        Token = "token",
        Executor = "executor",
        /// The server itself.
        System = "system",
        /// An unknown caller: a sign-in that failed.
        Anonymous = "anonymous",
    }
}

rondel_core::plain_word_enum! {
    /// The outcome of an action.
    pub Verdict {
        /// It was done.
        Allowed = "allowed",
        /// The caller lacks the permission.
        Denied = "denied",
        /// The caller has the permission, but the action failed.
        Failed = "failed",
    }
}

/// The value of [`AuditEntry::after`] while the outcome is unknown: the server still works on the action, or died during it.
pub const INCOMPLETE: &str = r#"{"unanswered":true}"#;

/// One action that was done, or attempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its id, which rises with time.
    pub id: AuditId,
    /// When it was requested.
    pub at: Timestamp,
    /// Name of the account or the token that acted.
    pub actor: String,
    pub auth_method: AuthMethod,
    /// The token that the caller used, if any. It is stored by its id, because names of tokens are not unique.
    pub token: Option<TokenId>,
    /// Address of the caller.
    pub address: Option<String>,
    /// Id of the request in the server's log.
    pub request_id: Option<String>,
    /// The action: a noun and a verb, such as `job.pause`.
    pub action: String,
    /// The name or id of the object; the noun in `action` gives its kind.
    pub object: String,
    /// Name of the object's namespace; `None` if the object is in no namespace.
    pub namespace: Option<String>,
    pub verdict: Verdict,
    /// The object's state before, as JSON, without secrets.
    pub before: Option<String>,
    /// The object's state afterwards, as JSON, without secrets; [`INCOMPLETE`] while the outcome is unknown.
    pub after: Option<String>,
}

/// Selects a page of the audit log, the newest entries first.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    /// Only entries by this actor.
    pub actor: Option<String>,
    /// Only entries with this action.
    pub action: Option<String>,
    /// Only entries about this object.
    pub object: Option<String>,
    /// Only entries in this namespace.
    pub namespace: Option<String>,
    /// Only entries with this verdict.
    pub verdict: Option<Verdict>,
    /// Only entries from this instant on.
    pub from: Option<Timestamp>,
    /// Only entries before this instant.
    pub to: Option<Timestamp>,
    /// Only entries older than this one.
    pub after: Option<AuditId>,
    /// Maximum number of entries.
    pub limit: u32,
}

#[async_trait]
pub trait AuditLog {
    async fn add_audit(&self, entry: &AuditEntry) -> Result<()>;

    /// Completes an entry that is [`INCOMPLETE`]: sets its object, namespace, verdict, before and after. `false` if there is no such entry,
    /// or it is complete already.
    async fn complete_audit(&self, entry: &AuditEntry) -> Result<bool>;

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>>;
}

/// A document as it is stored. A document longer than [`DOCUMENT_LEN_MAX`] is replaced by its length. NUL is replaced by U+FFFD, because
/// PostgreSQL stores no NUL.
pub(crate) fn stored_document(document: &str) -> String {
    if document.len() <= DOCUMENT_LEN_MAX {
        return document.replace("\\u0000", "\\ufffd").replace('\0', "\u{fffd}");
    }
    format!("{{\"left_out_bytes\":{}}}", document.len())
}
