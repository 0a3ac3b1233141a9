//! The trait `RequestKeys` in SQL.

use async_trait::async_trait;
use rondel_core::Timestamp;

use super::query::{Query, Reader, Statement};
use super::{SqlStore, failure};
use crate::request_keys::{CallState, KeyedCall, StoredAnswer};
use crate::{RequestKeys, Result};

const INSERT_CALL: Statement = Statement {
    name: "insert_call",
    text: "INSERT {ignore} INTO request_key (scope, request_key, fingerprint, began_at_ms) VALUES (?, ?, ?, ?) \
           {or_ignore}",
};
const READ_CALL: Statement = Statement {
    name: "read_call",
    text: "SELECT began_at_ms, fingerprint, status, headers, body FROM request_key WHERE scope = ? AND request_key = ?",
};
/// Of several callers that find the call's server dead, only one takes the call over.
const TAKE_UP_CALL: Statement = Statement {
    name: "take_up_call",
    text: "UPDATE request_key SET began_at_ms = ? WHERE scope = ? AND request_key = ? AND status IS NULL \
           AND began_at_ms = ?",
};
const RENEW_CALL: Statement = Statement {
    name: "renew_call",
    text: "UPDATE request_key SET began_at_ms = ? WHERE scope = ? AND request_key = ? AND fingerprint = ? \
           AND status IS NULL",
};
const STORE_ANSWER: Statement = Statement {
    name: "store_answer",
    text: "UPDATE request_key SET status = ?, headers = ?, body = ? WHERE scope = ? AND request_key = ? \
           AND fingerprint = ? AND status IS NULL",
};
const DELETE_CALL: Statement = Statement {
    name: "delete_call",
    text: "DELETE FROM request_key WHERE scope = ? AND request_key = ? AND fingerprint = ? AND status IS NULL",
};
pub(super) const FIND_OLD_CALL: Statement = Statement {
    name: "find_old_call",
    text: "SELECT began_at_ms FROM request_key WHERE began_at_ms < ? ORDER BY began_at_ms LIMIT 1 OFFSET ?",
};
const DELETE_CALLS: Statement =
    Statement { name: "delete_calls", text: "DELETE FROM request_key WHERE began_at_ms < ?" };

/// The context with which a call's answer is sealed. A text that was sealed with another context cannot be opened with it.
fn seal_context(call: KeyedCall<'_>) -> String {
    format!("request_key.body {} {}", call.scope, call.key)
}

#[async_trait]
impl RequestKeys for SqlStore {
    async fn begin_call(&self, call: KeyedCall<'_>, now: Timestamp, given_up_before: Timestamp) -> Result<CallState> {
        let insert = Query::new(&INSERT_CALL).text(call.scope).text(call.key).text(call.fingerprint).at(now);
        if self.execute(insert).await? == 1 {
            return Ok(CallState::New);
        }
        let Some(row) = self.row(Query::new(&READ_CALL).text(call.scope).text(call.key)).await? else {
            // The call was removed between the two statements.
            return Ok(CallState::InFlight);
        };
        let mut columns = Reader::new(&row, "request_key");
        let began_at = columns.at("began_at_ms")?;
        if columns.text("fingerprint")? != call.fingerprint {
            return Ok(CallState::KeyReused);
        }
        if let Some(status) = columns.opt_int32("status")? {
            let headers = columns.opt_text("headers")?.unwrap_or_default();
            let sealed_body = columns.opt_text("body")?.unwrap_or_default();
            let corrupt_body = |message: String| columns.corrupt("body", message);
            let body = self.sealer.open(&seal_context(call), &sealed_body).map_err(corrupt_body)?;
            let status = u16::try_from(status).map_err(|error| columns.corrupt("status", error))?;
            return Ok(CallState::Answered(StoredAnswer { status, headers, body }));
        }
        if began_at >= given_up_before {
            return Ok(CallState::InFlight);
        }
        let take_up = Query::new(&TAKE_UP_CALL).at(now).text(call.scope).text(call.key).at(began_at);
        Ok(if self.execute(take_up).await? == 1 { CallState::New } else { CallState::InFlight })
    }

    async fn renew_call(&self, call: KeyedCall<'_>, now: Timestamp) -> Result<()> {
        let query = Query::new(&RENEW_CALL).at(now).text(call.scope).text(call.key).text(call.fingerprint);
        self.execute(query).await.map(drop)
    }

    async fn end_call(&self, call: KeyedCall<'_>, answer: Option<&StoredAnswer>) -> Result<()> {
        // The answer is sealed, because it may contain a token that is shown only once.
        let seal = |answer: &StoredAnswer| self.sealer.seal(&seal_context(call), &answer.body);
        let body = answer.map(seal).transpose().map_err(|message| failure::refused("end_call", &message))?;
        let query = match answer.zip(body.as_ref()) {
            Some((answer, body)) => {
                Query::new(&STORE_ANSWER).int(answer.status.into()).text(&answer.headers).text(body)
            }
            None => Query::new(&DELETE_CALL),
        };
        self.execute(query.text(call.scope).text(call.key).text(call.fingerprint)).await.map(drop)
    }

    async fn forget_calls(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let row_beyond_limit = self.row(Query::new(&FIND_OLD_CALL).at(before).int(limit.into())).await?;
        let oldest_kept_at = match row_beyond_limit {
            Some(row) => Reader::new(&row, "request_key").at("began_at_ms")?,
            None => before,
        };
        self.execute(Query::new(&DELETE_CALLS).at(oldest_kept_at)).await
    }
}
