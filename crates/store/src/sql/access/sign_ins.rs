//! Sign-in sessions, links that begin one, and the count of attempts.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::{AccountId, SessionId, Timestamp, TokenId};
use sqlx::any::AnyRow;

use crate::Result;
use crate::access::{AttemptDecision, LinkPurpose, SignInLink, SignIns, WebSession};
use crate::settle::clean_name;
use crate::sql::query::{Query, Reader, Statement};
use crate::sql::{SqlStore, Tx, transact};

macro_rules! select_session {
    ($rest:literal) => {
        concat!(
            "SELECT id, hash, account_id, token_id, minted_by, created_at_ms, last_seen_at_ms, expires_at_ms, address, \
             user_agent FROM web_session ",
            $rest
        )
    };
}

const READ_SESSION: Statement = Statement { name: "read_session", text: select_session!("WHERE hash = ?") };
pub(in crate::sql) const LIST_SESSIONS: Statement =
    Statement { name: "list_sessions", text: select_session!("WHERE account_id = ? ORDER BY id DESC") };
const INSERT_SESSION: Statement = Statement {
    name: "insert_session",
    text: "INSERT INTO web_session (id, hash, account_id, token_id, minted_by, created_at_ms, last_seen_at_ms, \
           expires_at_ms, address, user_agent) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
};
const TOUCH_SESSION: Statement = Statement {
    name: "touch_session",
    text: "UPDATE web_session SET last_seen_at_ms = ? WHERE id = ? AND last_seen_at_ms < ?",
};
const DELETE_IDLE_SESSIONS: Statement =
    Statement { name: "delete_idle_sessions", text: "DELETE FROM web_session WHERE last_seen_at_ms < ?" };
const DELETE_OLD_SESSIONS: Statement =
    Statement { name: "delete_old_sessions", text: "DELETE FROM web_session WHERE expires_at_ms <= ?" };
const READ_SESSION_IDS_OF_ACCOUNT: Statement = Statement {
    name: "read_ids_of_account",
    text: "SELECT id FROM web_session WHERE account_id = ? ORDER BY id DESC {for_update}",
};
const READ_SESSION_IDS_OF_TOKEN: Statement = Statement {
    name: "read_ids_of_token",
    text: "SELECT id FROM web_session WHERE token_id = ? ORDER BY id DESC {for_update}",
};
const DELETE_SESSIONS: Statement =
    Statement { name: "delete_sessions", text: "DELETE FROM web_session WHERE id {in_list}" };
const DELETE_SESSION: Statement = Statement { name: "delete_session", text: "DELETE FROM web_session WHERE id = ?" };
const DELETE_SESSION_OF_ACCOUNT: Statement =
    Statement { name: "delete_session_of_account", text: "DELETE FROM web_session WHERE id = ? AND account_id = ?" };
const DELETE_ACCOUNT_SESSIONS: Statement =
    Statement { name: "delete_account_sessions", text: "DELETE FROM web_session WHERE account_id = ? AND id <> ?" };
const INSERT_LINK: Statement = Statement {
    name: "insert_link",
    text: "INSERT INTO sign_in_link (hash, purpose, account_id, token_id, minted_by, expires_at_ms) VALUES (?, ?, ?, ?, ?, ?)",
};
const READ_LINK: Statement = Statement {
    name: "read_link",
    text: "SELECT hash, purpose, account_id, token_id, minted_by, expires_at_ms FROM sign_in_link WHERE hash = ?",
};
const DELETE_LINK: Statement = Statement { name: "delete_link", text: "DELETE FROM sign_in_link WHERE hash = ?" };
const DELETE_OLD_LINKS: Statement =
    Statement { name: "delete_old_links", text: "DELETE FROM sign_in_link WHERE expires_at_ms <= ?" };
const INSERT_ATTEMPT: Statement = Statement {
    name: "insert_attempt",
    text: "INSERT {ignore} INTO sign_in_attempt (bucket, attempt_count, since_at_ms) VALUES (?, 0, ?) {or_ignore}",
};
/// The count is assigned first, because it depends on the old `since_at_ms`, and MySQL and MariaDB apply assignments from left to right.
const COUNT_ATTEMPT: Statement = Statement {
    name: "count_attempt",
    text: "UPDATE sign_in_attempt SET attempt_count = CASE WHEN since_at_ms <= ? THEN 1 ELSE attempt_count + 1 END, \
           since_at_ms = CASE WHEN since_at_ms <= ? THEN ? ELSE since_at_ms END \
           WHERE bucket = ? AND (attempt_count < ? OR since_at_ms <= ?)",
};
const READ_ATTEMPT: Statement =
    Statement { name: "read_attempt", text: "SELECT since_at_ms FROM sign_in_attempt WHERE bucket = ?" };
const DELETE_ATTEMPT: Statement =
    Statement { name: "delete_attempt", text: "DELETE FROM sign_in_attempt WHERE bucket = ?" };
const IS_KNOWN_ADDRESS: Statement = Statement {
    name: "is_known_address",
    text: "SELECT network FROM account_address WHERE account_id = ? AND network = ?",
};
const TOUCH_ADDRESS: Statement = Statement {
    name: "touch_address",
    text: "UPDATE account_address SET seen_at_ms = ? WHERE account_id = ? AND network = ?",
};
const INSERT_ADDRESS: Statement = Statement {
    name: "insert_address",
    text: "INSERT {ignore} INTO account_address (account_id, network, seen_at_ms) VALUES (?, ?, ?) {or_ignore}",
};
const LIST_ADDRESSES: Statement = Statement {
    name: "list_addresses",
    text: "SELECT network FROM account_address WHERE account_id = ? ORDER BY seen_at_ms DESC, network",
};
const DELETE_ADDRESS: Statement =
    Statement { name: "delete_address", text: "DELETE FROM account_address WHERE account_id = ? AND network = ?" };
const INSERT_KEY: Statement = Statement {
    name: "insert_server_key",
    text: "INSERT {ignore} INTO server_key (name, secret, created_at_ms) VALUES (?, ?, ?) {or_ignore}",
};
const READ_KEY: Statement = Statement { name: "read_server_key", text: "SELECT secret FROM server_key WHERE name = ?" };

#[async_trait]
impl SignIns for SqlStore {
    async fn begin_sign_in(&self, session: &WebSession, idle_max: Duration, count_max: u32) -> Result<()> {
        transact!(self, "begin_sign_in", |tx| {
            let now = session.created_at;
            tx.execute(Query::new(&DELETE_IDLE_SESSIONS).at(now.saturating_sub(idle_max))).await?;
            tx.execute(Query::new(&DELETE_OLD_SESSIONS).at(now)).await?;
            tx.make_room(session, count_max).await?;
            let insert = Query::new(&INSERT_SESSION)
                .int(session.id.get())
                .text(&session.hash)
                .opt_int(session.account.map(AccountId::get))
                .opt_int(session.token.map(TokenId::get))
                .opt_int(session.minted_by.map(TokenId::get))
                .at(now)
                .at(session.last_seen_at)
                .at(session.expires_at)
                .text(&clean_name(&session.address))
                .text(&clean_name(&session.user_agent));
            tx.execute_all(insert, 1).await
        })
    }

    async fn sign_in(&self, hash: &str) -> Result<Option<WebSession>> {
        self.row(Query::new(&READ_SESSION).text(hash)).await?.as_ref().map(session).transpose()
    }

    async fn touch_sign_in(&self, id: SessionId, now: Timestamp) -> Result<()> {
        self.execute(Query::new(&TOUCH_SESSION).at(now).int(id.get()).at(now)).await?;
        Ok(())
    }

    async fn sign_ins(&self, account: AccountId) -> Result<Vec<WebSession>> {
        self.rows(Query::new(&LIST_SESSIONS).int(account.get())).await?.iter().map(session).collect()
    }

    async fn end_sign_in(&self, id: SessionId, account: Option<AccountId>) -> Result<bool> {
        let query = match account {
            None => Query::new(&DELETE_SESSION).int(id.get()),
            Some(account) => Query::new(&DELETE_SESSION_OF_ACCOUNT).int(id.get()).int(account.get()),
        };
        Ok(self.execute(query).await? == 1)
    }

    async fn add_link(&self, link: &SignInLink, now: Timestamp) -> Result<()> {
        transact!(self, "add_link", |tx| {
            tx.execute(Query::new(&DELETE_OLD_LINKS).at(now)).await?;
            let purpose = match link.purpose {
                LinkPurpose::Setup => "setup",
                LinkPurpose::SignIn => "sign_in",
            };
            let insert = Query::new(&INSERT_LINK)
                .text(&link.hash)
                .text(purpose)
                .opt_int(link.account.map(AccountId::get))
                .opt_int(link.token.map(TokenId::get))
                .opt_int(link.minted_by.map(TokenId::get))
                .at(link.expires_at);
            tx.execute_all(insert, 1).await
        })
    }

    async fn link(&self, hash: &str) -> Result<Option<SignInLink>> {
        self.row(Query::new(&READ_LINK).text(hash)).await?.as_ref().map(link).transpose()
    }

    async fn take_link(&self, hash: &str) -> Result<Option<SignInLink>> {
        transact!(self, "take_link", |tx| {
            let Some(row) = tx.row(Query::new(&READ_LINK).text(hash)).await? else { return Ok(None) };
            // Of several concurrent callers, the one that deletes the row takes the link.
            let is_ours = tx.execute(Query::new(&DELETE_LINK).text(hash)).await? == 1;
            if is_ours { link(&row).map(Some) } else { Ok(None) }
        })
    }

    async fn count_attempt(&self, bucket: i64, max: u32, window: Duration, now: Timestamp) -> Result<AttemptDecision> {
        let window_start = now.saturating_sub(window);
        transact!(self, "count_attempt", |tx| {
            let count_query = || {
                let max = i64::from(max);
                Query::new(&COUNT_ATTEMPT)
                    .at(window_start)
                    .at(window_start)
                    .at(now)
                    .int(bucket)
                    .int(max)
                    .at(window_start)
            };
            if tx.execute(count_query()).await? == 1 {
                return Ok(AttemptDecision::Allowed);
            }
            tx.execute(Query::new(&INSERT_ATTEMPT).int(bucket).at(now)).await?;
            if tx.execute(count_query()).await? == 1 {
                return Ok(AttemptDecision::Allowed);
            }
            let since = match tx.row(Query::new(&READ_ATTEMPT).int(bucket)).await? {
                Some(row) => Reader::new(&row, "sign_in_attempt").at("since_at_ms")?,
                None => now,
            };
            Ok(AttemptDecision::Blocked(since + window))
        })
    }

    async fn server_key(&self, name: &str, new_key: &str, now: Timestamp) -> Result<String> {
        let read_query = || Query::new(&READ_KEY).text(name);
        if let Some(row) = self.row(read_query()).await? {
            return Reader::new(&row, "server_key").text("secret");
        }
        self.execute(Query::new(&INSERT_KEY).text(name).text(new_key).at(now)).await?;
        let row = self.row(read_query()).await?;
        row.map_or_else(|| Ok(new_key.to_owned()), |row| Reader::new(&row, "server_key").text("secret"))
    }

    async fn forget_attempts(&self, bucket: i64) -> Result<()> {
        self.execute(Query::new(&DELETE_ATTEMPT).int(bucket)).await?;
        Ok(())
    }

    async fn is_known_address(&self, account: AccountId, network: &str) -> Result<bool> {
        Ok(self.row(Query::new(&IS_KNOWN_ADDRESS).int(account.get()).text(network)).await?.is_some())
    }

    async fn remember_address(&self, account: AccountId, network: &str, now: Timestamp, count_max: u32) -> Result<()> {
        let account = account.get();
        if self.execute(Query::new(&TOUCH_ADDRESS).at(now).int(account).text(network)).await? > 0 {
            return Ok(());
        }
        self.execute(Query::new(&INSERT_ADDRESS).int(account).text(network).at(now)).await?;
        let rows = self.rows(Query::new(&LIST_ADDRESSES).int(account)).await?;
        for row in rows.iter().skip(usize::try_from(count_max).unwrap_or(usize::MAX)) {
            let network = Reader::new(row, "account_address").text("network")?;
            self.execute(Query::new(&DELETE_ADDRESS).int(account).text(&network)).await?;
        }
        Ok(())
    }
}

impl Tx<'_> {
    /// Ends the oldest sign-ins of the account or token of a new sign-in, so that at most `count_max` remain including the new one.
    async fn make_room(&mut self, session: &WebSession, count_max: u32) -> Result<()> {
        let id_query = match (session.account, session.token) {
            (Some(account), _) => Query::new(&READ_SESSION_IDS_OF_ACCOUNT).int(account.get()),
            (None, Some(token)) => Query::new(&READ_SESSION_IDS_OF_TOKEN).int(token.get()),
            (None, None) => return Ok(()),
        };
        let mut ids = self
            .rows(id_query)
            .await?
            .iter()
            .map(|row| Reader::new(row, "web_session").int("id"))
            .collect::<Result<Vec<_>>>()?;
        let kept_count = usize::try_from(count_max.saturating_sub(1)).unwrap_or(usize::MAX);
        if ids.len() > kept_count {
            let surplus_ids = ids.split_off(kept_count);
            for chunk in surplus_ids.chunks(crate::sql::query::CHUNK_MAX) {
                self.execute(Query::new(&DELETE_SESSIONS).list(chunk.iter().copied())).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn end_account_sessions(
        &mut self,
        account: AccountId,
        kept_session: Option<SessionId>,
    ) -> Result<u64> {
        let kept_session_id = kept_session.map_or(0, SessionId::get);
        self.execute(Query::new(&DELETE_ACCOUNT_SESSIONS).int(account.get()).int(kept_session_id)).await
    }
}

fn session(row: &AnyRow) -> Result<WebSession> {
    let mut columns = Reader::new(row, "web_session");
    Ok(WebSession {
        id: SessionId::new(columns.int("id")?),
        hash: columns.text("hash")?,
        account: columns.opt_int("account_id")?.map(AccountId::new),
        token: columns.opt_int("token_id")?.map(TokenId::new),
        minted_by: columns.opt_int("minted_by")?.map(TokenId::new),
        created_at: columns.at("created_at_ms")?,
        last_seen_at: columns.at("last_seen_at_ms")?,
        expires_at: columns.at("expires_at_ms")?,
        address: columns.text("address")?,
        user_agent: columns.text("user_agent")?,
    })
}

fn link(row: &AnyRow) -> Result<SignInLink> {
    let mut columns = Reader::new(row, "sign_in_link");
    Ok(SignInLink {
        hash: columns.text("hash")?,
        purpose: match columns.text("purpose")?.as_str() {
            "setup" => LinkPurpose::Setup,
            "sign_in" => LinkPurpose::SignIn,
            other => return Err(columns.corrupt("purpose", format!("{other:?} is not the purpose of a link"))),
        },
        account: columns.opt_int("account_id")?.map(AccountId::new),
        token: columns.opt_int("token_id")?.map(TokenId::new),
        minted_by: columns.opt_int("minted_by")?.map(TokenId::new),
        expires_at: columns.at("expires_at_ms")?,
    })
}
