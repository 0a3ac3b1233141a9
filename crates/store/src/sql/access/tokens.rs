//! The trait `Tokens` in SQL.

use async_trait::async_trait;
use rondel_core::time::earlier_of;
use rondel_core::{AccountId, NamespaceId, Timestamp, TokenId};
use sqlx::any::AnyRow;

use super::accounts::Subject;
use crate::Result;
use crate::access::{TokenKind, TokenQuery, TokenRecord, TokenScope, Tokens};
use crate::settle::clean_name;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::saved_filters::DELETE_ORPHANED_FILTERS;
use crate::sql::{SqlStore, Tx, transact};

macro_rules! select_token {
    ($rest:literal) => {
        concat!(
            "SELECT id, kind, is_xxl, name, owner_id, namespace_id, hash, prefix, minted_by, line_id, series_id, \
             declares, created_at_ms, expires_at_ms, last_used_at_ms, revoked_at_ms FROM api_token ",
            $rest
        )
    };
}

const READ_TOKEN: Statement = Statement { name: "read_token", text: select_token!("WHERE hash = ?") };
const READ_TOKEN_BY_ID: Statement = Statement { name: "read_token_by_id", text: select_token!("WHERE id = ?") };
const LOCK_TOKEN: Statement = Statement { name: "lock_token", text: select_token!("WHERE id = ? {for_update}") };
const LIST_TOKENS: Statement =
    Statement { name: "list_tokens", text: select_token!("WHERE id < ? ORDER BY id DESC LIMIT ?") };
pub(in crate::sql) const LIST_TOKENS_OF_ACCOUNT: Statement =
    Statement { name: "list_tokens_of", text: select_token!("WHERE owner_id = ? AND id < ? ORDER BY id DESC LIMIT ?") };
/// A role for an app is found by the id of the app, and a role for a whole namespace by the id of the namespace.
const LIST_TOKENS_IN_SCOPE: Statement = Statement {
    name: "list_tokens_in",
    text: select_token!(
        "WHERE id < ? AND (owner_id = ? OR (kind = 'executor' AND EXISTS (SELECT 1 FROM role_grant \
         WHERE subject_kind = 'token' AND subject_id = api_token.id \
         AND COALESCE(NULLIF(app_id, 0), namespace_id) {in_list}))) ORDER BY id DESC LIMIT ?"
    ),
};
const COUNT_VALID_TOKENS: Statement = Statement {
    name: "count_living_tokens",
    text: "SELECT COUNT(*) FROM api_token WHERE owner_id = ? AND revoked_at_ms IS NULL \
           AND (expires_at_ms IS NULL OR expires_at_ms > ?)",
};
pub(in crate::sql) const COUNT_VALID_TOKENS_OF_LINE: Statement = Statement {
    name: "count_living_tokens_of_line",
    text: "SELECT COUNT(*) FROM api_token WHERE line_id = ? AND owner_id IS NULL AND kind = 'api' \
           AND revoked_at_ms IS NULL AND (expires_at_ms IS NULL OR expires_at_ms > ?)",
};
/// Leaves out the servers' own tokens. At its start, a server adds the token from its token file unless the token has a row, so a removed
/// token would become valid again.
const READ_DEAD_TOKENS: Statement = Statement {
    name: "read_dead_tokens",
    text: "SELECT id FROM api_token WHERE (revoked_at_ms < ? OR expires_at_ms < ?) \
           AND NOT (owner_id IS NULL AND kind = 'api' AND name = 'admin') ORDER BY id LIMIT ?",
};
const DELETE_DEAD_TOKENS: [Statement; 4] = [
    Statement {
        name: "delete_dead_grants",
        text: "DELETE FROM role_grant WHERE subject_kind = 'token' AND subject_id {in_list}",
    },
    Statement { name: "delete_dead_sessions", text: "DELETE FROM web_session WHERE token_id {in_list}" },
    Statement { name: "delete_dead_links", text: "DELETE FROM sign_in_link WHERE token_id {in_list}" },
    Statement { name: "delete_dead_tokens", text: "DELETE FROM api_token WHERE id {in_list}" },
];
const INSERT_TOKEN: Statement = Statement {
    name: "insert_token",
    text: "INSERT {ignore} INTO api_token (id, kind, name, owner_id, namespace_id, hash, prefix, minted_by, line_id, series_id, \
           declares, is_xxl, created_at_ms, expires_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) {or_ignore}",
};
const TOUCH_TOKEN: Statement =
    Statement { name: "touch_token", text: "UPDATE api_token SET last_used_at_ms = ? WHERE id = ?" };
const SHORTEN_TOKEN: Statement = Statement {
    name: "shorten_token",
    text: "UPDATE api_token SET expires_at_ms = CASE WHEN expires_at_ms IS NULL OR expires_at_ms > ? THEN ? \
           ELSE expires_at_ms END WHERE id = ? AND revoked_at_ms IS NULL AND (expires_at_ms IS NULL OR expires_at_ms > ?)",
};

#[async_trait]
impl Tokens for SqlStore {
    async fn add_token(&self, token: &TokenRecord) -> Result<bool> {
        transact!(self, "add_token", |tx| tx.insert_token(token).await)
    }

    async fn token(&self, hash: &str) -> Result<Option<TokenRecord>> {
        let row = self.row(Query::new(&READ_TOKEN).text(hash)).await?;
        self.with_grants(row.as_ref()).await
    }

    async fn token_by_id(&self, id: TokenId) -> Result<Option<TokenRecord>> {
        let row = self.row(Query::new(&READ_TOKEN_BY_ID).int(id.get())).await?;
        self.with_grants(row.as_ref()).await
    }

    async fn tokens(&self, query: &TokenQuery) -> Result<Vec<TokenRecord>> {
        let after = query.after.map_or(i64::MAX, TokenId::get);
        let page = match (query.owner, query.scope.as_ref().and_then(scope_ids)) {
            (Some(owner), _) => Query::new(&LIST_TOKENS_OF_ACCOUNT).int(owner.get()).int(after),
            (None, None) => Query::new(&LIST_TOKENS).int(after),
            (None, Some((account, scope_ids))) => {
                Query::new(&LIST_TOKENS_IN_SCOPE).int(after).int(account).list(scope_ids.into_iter())
            }
        };
        let page = page.int(query.limit.into());
        let mut tokens = self.rows(page).await?.iter().map(token).collect::<Result<Vec<_>>>()?;
        let ids: Vec<i64> = tokens.iter().map(|token| token.id.get()).collect();
        let mut grants = self.grants(Subject::Token, &ids).await?;
        for token in &mut tokens {
            token.grants = grants.remove(&token.id.get()).unwrap_or_default();
        }
        Ok(tokens)
    }

    async fn count_valid_tokens(&self, owner: AccountId, now: Timestamp) -> Result<u64> {
        self.count_tokens(Query::new(&COUNT_VALID_TOKENS).int(owner.get()).at(now)).await
    }

    async fn count_valid_tokens_of_line(&self, line: TokenId, now: Timestamp) -> Result<u64> {
        self.count_tokens(Query::new(&COUNT_VALID_TOKENS_OF_LINE).int(line.get()).at(now)).await
    }

    async fn forget_tokens(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let limit = limit.clamp(1, u32::try_from(CHUNK_MAX).unwrap_or(u32::MAX));
        let mut dead_ids = Vec::new();
        for row in self.rows(Query::new(&READ_DEAD_TOKENS).at(before).at(before).int(limit.into())).await? {
            dead_ids.push(Reader::new(&row, "api_token").int("id")?);
        }
        if dead_ids.is_empty() {
            return Ok(0);
        }
        // An ended token is never valid again, so the rows that were read cannot change before they are deleted.
        transact!(self, "forget_tokens", |tx| {
            let mut count = 0;
            tx.splice_out(&dead_ids).await?;
            for statement in &DELETE_DEAD_TOKENS {
                count = tx.execute(Query::new(statement).list(dead_ids.iter().copied())).await?;
            }
            tx.execute(Query::new(&DELETE_ORPHANED_FILTERS)).await?;
            Ok(count)
        })
    }

    async fn touch_token(&self, id: TokenId, now: Timestamp) -> Result<()> {
        self.execute(Query::new(&TOUCH_TOKEN).at(now).int(id.get())).await?;
        Ok(())
    }

    async fn revoke_token(&self, id: TokenId, now: Timestamp) -> Result<bool> {
        transact!(self, "revoke_token", |tx| tx.revoke_token(id, now).await)
    }

    async fn rotate_token(&self, old_id: TokenId, old_ends_at: Timestamp, new: &TokenRecord) -> Result<bool> {
        transact!(self, "rotate_token", |tx| {
            // The lock keeps the token valid until the transaction ends.
            let Some(old_token) = tx.lock_valid_token(old_id, new.created_at).await? else { return Ok(false) };
            if new.series == old_token.series {
                tx.begin_series(old_id).await?;
                tx.write_token(new, earlier_of(new.expires_at, old_token.expires_at)).await?;
            } else if !tx.insert_token(new).await? {
                return Ok(false);
            }
            let shorten =
                Query::new(&SHORTEN_TOKEN).at(old_ends_at).at(old_ends_at).int(old_id.get()).at(new.created_at);
            tx.execute(shorten).await?;
            tx.move_access(old_id, new.id).await?;
            Ok(true)
        })
    }
}

/// The account of a scope, and the ids of its namespaces and apps in one list, since no namespace and app have the same id. `None` if there
/// are too many for one statement.
fn scope_ids(scope: &TokenScope) -> Option<(i64, Vec<i64>)> {
    let account = scope.account.map_or(0, AccountId::get);
    // No namespace or app has this id. It keeps the list from being empty.
    let mut scope_ids = vec![-1];
    scope_ids.extend(scope.namespaces.iter().map(|namespace| namespace.get()));
    scope_ids.extend(scope.apps.iter().map(|app| app.get()));
    (scope_ids.len() <= CHUNK_MAX).then_some((account, scope_ids))
}

impl SqlStore {
    async fn count_tokens(&self, query: Query) -> Result<u64> {
        let row = self.row(query).await?;
        let count = row.map(|row| Reader::new(&row, "api_token").int("count")).transpose()?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or_default())
    }

    async fn with_grants(&self, row: Option<&AnyRow>) -> Result<Option<TokenRecord>> {
        let Some(mut token) = row.map(token).transpose()? else { return Ok(None) };
        let id = token.id.get();
        token.grants = self.grants(Subject::Token, &[id]).await?.remove(&id).unwrap_or_default();
        Ok(Some(token))
    }
}

impl Tx<'_> {
    /// The token without its roles, locked until the transaction ends, if it is valid.
    async fn lock_valid_token(&mut self, id: TokenId, now: Timestamp) -> Result<Option<TokenRecord>> {
        let row = self.row(Query::new(&LOCK_TOKEN).int(id.get())).await?;
        Ok(row.as_ref().map(token).transpose()?.filter(|token| token.is_valid(now)))
    }

    async fn insert_token(&mut self, token: &TokenRecord) -> Result<bool> {
        let mut expires_at = token.expires_at;
        if let Some(parent) = token.minted_by {
            let Some(parent) = self.lock_valid_token(parent, token.created_at).await? else { return Ok(false) };
            expires_at = earlier_of(expires_at, parent.expires_at);
        }
        self.write_token(token, expires_at).await?;
        Ok(true)
    }

    async fn write_token(&mut self, token: &TokenRecord, expires_at: Option<Timestamp>) -> Result<()> {
        let insert = Query::new(&INSERT_TOKEN)
            .int(token.id.get())
            .text(if token.kind.is_of_executors() { TokenKind::Executor } else { TokenKind::Api }.as_str())
            .text(&clean_name(&token.name))
            .opt_int(token.owner.map(AccountId::get))
            .opt_int(token.namespace.map(NamespaceId::get))
            .text(&token.hash)
            .text(&clean_name(&token.prefix))
            .opt_int(token.minted_by.map(TokenId::get))
            .int(token.line.get())
            .int(token.series.get())
            .int(token.declares.into())
            .int((token.kind == TokenKind::Xxl).into())
            .at(token.created_at)
            .opt_at(expires_at);
        if self.execute(insert).await? == 1 {
            self.write_grants(Subject::Token, token.id.get(), &token.grants).await?;
        }
        Ok(())
    }
}

fn token(row: &AnyRow) -> Result<TokenRecord> {
    let mut columns = Reader::new(row, "api_token");
    let id = TokenId::new(columns.int("id")?);
    Ok(TokenRecord {
        id,
        kind: match (columns.text("kind")?.as_str(), columns.int("is_xxl")? != 0) {
            ("api", _) => TokenKind::Api,
            ("executor", true) => TokenKind::Xxl,
            ("executor", false) => TokenKind::Executor,
            (other, _) => return Err(columns.corrupt("kind", format!("{other:?} is not a kind of token"))),
        },
        name: columns.text("name")?,
        owner: columns.opt_int("owner_id")?.map(AccountId::new),
        namespace: columns.opt_int("namespace_id")?.map(NamespaceId::new),
        hash: columns.text("hash")?,
        prefix: columns.text("prefix")?,
        minted_by: columns.opt_int("minted_by")?.map(TokenId::new),
        line: columns.opt_int("line_id")?.map_or(id, TokenId::new),
        series: columns.opt_int("series_id")?.map_or(id, TokenId::new),
        declares: columns.int("declares")? != 0,
        created_at: columns.at("created_at_ms")?,
        expires_at: columns.opt_at("expires_at_ms")?,
        last_used_at: columns.opt_at("last_used_at_ms")?,
        revoked_at: columns.opt_at("revoked_at_ms")?,
        grants: Vec::new(),
    })
}
