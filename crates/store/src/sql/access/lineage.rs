//! Tokens and what they created: other tokens, sign-ins and links. These end with their token, and stay when the token is rotated. The
//! tokens of a series, which are one token with changing secrets, end together.

use std::collections::{BTreeMap, BTreeSet};

use rondel_core::{AccountId, Timestamp, TokenId};
use sqlx::any::AnyRow;

use crate::Result;
use crate::sql::Tx;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};

pub(in crate::sql) const LOCK_MINTED_TOKENS: Statement = Statement {
    name: "lock_minted",
    text: "SELECT id FROM api_token WHERE minted_by {in_list} ORDER BY id {for_update}",
};
const BEGIN_SERIES: Statement = Statement {
    name: "begin_token_series",
    text: "UPDATE api_token SET series_id = id WHERE id = ? AND series_id IS NULL",
};
const READ_SERIES: Statement = Statement {
    name: "read_token_series",
    text: "SELECT DISTINCT series_id AS id FROM api_token WHERE id {in_list} AND series_id IS NOT NULL",
};
pub(in crate::sql) const LOCK_SERIES: Statement = Statement {
    name: "lock_token_series",
    text: "SELECT id FROM api_token WHERE series_id {in_list} ORDER BY id {for_update}",
};
const LOCK_TOKENS_OF: Statement =
    Statement { name: "lock_tokens_of", text: "SELECT id FROM api_token WHERE owner_id = ? ORDER BY id {for_update}" };
const REVOKE_TOKENS: Statement = Statement {
    name: "revoke_tokens",
    text: "UPDATE api_token SET revoked_at_ms = ? WHERE id {in_list} AND revoked_at_ms IS NULL \
           AND (expires_at_ms IS NULL OR expires_at_ms > ?)",
};
const DELETE_TOKENS: Statement = Statement { name: "delete_tokens", text: "DELETE FROM api_token WHERE id {in_list}" };
const DELETE_GRANTS_OF_TOKENS: Statement = Statement {
    name: "delete_grants_of_tokens",
    text: "DELETE FROM role_grant WHERE subject_kind = 'token' AND subject_id {in_list}",
};
/// Deletes the sign-ins and links that tokens created. They would remain valid otherwise, because using them does not require the token's
/// secret.
pub(in crate::sql) const DELETE_SIGN_INS_AND_LINKS: [Statement; 4] = [
    Statement { name: "delete_token_sessions", text: "DELETE FROM web_session WHERE token_id {in_list}" },
    Statement { name: "delete_minted_sessions", text: "DELETE FROM web_session WHERE minted_by {in_list}" },
    Statement { name: "delete_token_links", text: "DELETE FROM sign_in_link WHERE token_id {in_list}" },
    Statement { name: "delete_minted_links", text: "DELETE FROM sign_in_link WHERE minted_by {in_list}" },
];
const MOVE_MINTED_TOKENS: Statement = Statement {
    name: "move_minted_tokens",
    text: "UPDATE api_token SET minted_by = ? WHERE minted_by = ? AND id <> ?",
};
const SET_MINTED_BY: Statement =
    Statement { name: "set_minted_by", text: "UPDATE api_token SET minted_by = ? WHERE id = ?" };
const READ_CREATORS: Statement = Statement {
    name: "read_minted_by",
    text: "SELECT id, minted_by FROM api_token WHERE id {in_list} ORDER BY id {for_update}",
};
const READ_MINTED_TOKENS: Statement = Statement {
    name: "read_minted",
    text: "SELECT id, minted_by FROM api_token WHERE minted_by {in_list} ORDER BY id {for_update}",
};
/// Moves the sign-ins and links of a token to the token that replaces it.
const MOVE_SIGN_INS_AND_LINKS: [Statement; 4] = [
    Statement { name: "move_token_sessions", text: "UPDATE web_session SET token_id = ? WHERE token_id = ?" },
    Statement { name: "move_minted_sessions", text: "UPDATE web_session SET minted_by = ? WHERE minted_by = ?" },
    Statement { name: "move_token_links", text: "UPDATE sign_in_link SET token_id = ? WHERE token_id = ?" },
    Statement { name: "move_minted_links", text: "UPDATE sign_in_link SET minted_by = ? WHERE minted_by = ?" },
];

impl Tx<'_> {
    /// Revokes a token with its series and everything that the tokens of the series created. Returns whether the token
    /// itself was valid until now.
    pub(super) async fn revoke_token(&mut self, token: TokenId, now: Timestamp) -> Result<bool> {
        let revoked_count = self.execute(revocation(&[token.get()], now)).await?;
        let family = self.family([token.get()].into()).await?;
        self.revoke(&family, now).await?;
        Ok(revoked_count == 1)
    }

    /// Revokes the tokens of an account, and everything that they created.
    pub(super) async fn revoke_tokens_of(&mut self, account: AccountId, now: Timestamp) -> Result<()> {
        let family = self.family_of(account).await?;
        self.revoke(&family, now).await
    }

    /// Removes the tokens of an account, and everything that they created.
    pub(super) async fn delete_tokens_of(&mut self, account: AccountId) -> Result<()> {
        let family = self.family_of(account).await?;
        for chunk in family.chunks(CHUNK_MAX) {
            self.end_access(chunk).await?;
            for statement in [&DELETE_GRANTS_OF_TOKENS, &DELETE_TOKENS] {
                self.execute(Query::new(statement).list(chunk.iter().copied())).await?;
            }
        }
        Ok(())
    }

    /// Moves everything that a token created to the token that replaces it. The new token may itself descend from the old one.
    pub(super) async fn move_access(&mut self, old_token: TokenId, new_token: TokenId) -> Result<()> {
        self.execute(Query::new(&MOVE_MINTED_TOKENS).int(new_token.get()).int(old_token.get()).int(new_token.get()))
            .await?;
        for statement in &MOVE_SIGN_INS_AND_LINKS {
            self.execute(Query::new(statement).int(new_token.get()).int(old_token.get())).await?;
        }
        Ok(())
    }

    /// Writes the series into the row of its first token. A server of an older version leaves that column empty.
    pub(super) async fn begin_series(&mut self, first: TokenId) -> Result<()> {
        self.execute(Query::new(&BEGIN_SERIES).int(first.get())).await.map(drop)
    }

    async fn set_minted_by(&mut self, token: TokenId, parent: Option<TokenId>) -> Result<()> {
        let parent = parent.map(TokenId::get);
        self.execute(Query::new(&SET_MINTED_BY).opt_int(parent).int(token.get())).await.map(drop)
    }

    /// Before ended tokens are removed, makes the nearest remaining ancestor the creator of each token that one of them created.
    pub(super) async fn splice_out(&mut self, dead_ids: &[i64]) -> Result<()> {
        let creator_rows = self.rows(Query::new(&READ_CREATORS).list(dead_ids.iter().copied())).await?;
        let creators = creator_rows.iter().map(token_and_creator).collect::<Result<BTreeMap<_, _>>>()?;
        let minted_rows = self.rows(Query::new(&READ_MINTED_TOKENS).list(dead_ids.iter().copied())).await?;
        for row in &minted_rows {
            let (token, mut ancestor) = token_and_creator(row)?;
            // The loop ends, because each step leads to an older token.
            while let Some(creator) = ancestor.and_then(|ancestor| creators.get(&ancestor)) {
                ancestor = *creator;
            }
            self.set_minted_by(token, ancestor).await?;
        }
        Ok(())
    }

    async fn family_of(&mut self, account: AccountId) -> Result<Vec<i64>> {
        let token_rows = self.rows(Query::new(&LOCK_TOKENS_OF).int(account.get())).await?;
        let token_ids = ids(&token_rows)?;
        self.family(token_ids).await
    }

    /// These tokens and their series, the tokens that all of these created and their series, and so on. A series is read in one step,
    /// whatever its length.
    async fn family(&mut self, roots: BTreeSet<i64>) -> Result<Vec<i64>> {
        let (mut family, mut unexpanded_ids, mut known_series) = (roots.clone(), roots, BTreeSet::new());
        while !unexpanded_ids.is_empty() {
            let parents: Vec<i64> = std::mem::take(&mut unexpanded_ids).into_iter().collect();
            for chunk in parents.chunks(CHUNK_MAX) {
                let series_rows = self.rows(Query::new(&READ_SERIES).list(chunk.iter().copied())).await?;
                let series: Vec<i64> = ids(&series_rows)?.into_iter().filter(|id| known_series.insert(*id)).collect();
                let minted_rows = self.rows(Query::new(&LOCK_MINTED_TOKENS).list(chunk.iter().copied())).await?;
                let new_family_ids = self.locked_series(&series).await?.into_iter().chain(ids(&minted_rows)?);
                unexpanded_ids.extend(new_family_ids.filter(|id| family.insert(*id)));
            }
        }
        Ok(family.into_iter().collect())
    }

    /// All tokens of these series, locked. While this call waits for a lock, the rotation that has the lock can add a successor, so the
    /// rows are read again until there are no new ones.
    async fn locked_series(&mut self, series: &[i64]) -> Result<BTreeSet<i64>> {
        let mut token_ids = BTreeSet::new();
        if series.is_empty() {
            return Ok(token_ids);
        }
        loop {
            let rows = self.rows(Query::new(&LOCK_SERIES).list(series.iter().copied())).await?;
            let count = token_ids.len();
            token_ids.extend(ids(&rows)?);
            if token_ids.len() == count {
                return Ok(token_ids);
            }
        }
    }

    async fn revoke(&mut self, family: &[i64], now: Timestamp) -> Result<()> {
        for chunk in family.chunks(CHUNK_MAX) {
            self.execute(revocation(chunk, now)).await?;
            self.end_access(chunk).await?;
        }
        Ok(())
    }

    async fn end_access(&mut self, tokens: &[i64]) -> Result<()> {
        for statement in &DELETE_SIGN_INS_AND_LINKS {
            self.execute(Query::new(statement).list(tokens.iter().copied())).await?;
        }
        Ok(())
    }
}

fn revocation(tokens: &[i64], now: Timestamp) -> Query {
    Query::new(&REVOKE_TOKENS).at(now).list(tokens.iter().copied()).at(now)
}

fn token_and_creator(row: &AnyRow) -> Result<(TokenId, Option<TokenId>)> {
    let mut columns = Reader::new(row, "api_token");
    Ok((TokenId::new(columns.int("id")?), columns.opt_int("minted_by")?.map(TokenId::new)))
}

fn ids(rows: &[AnyRow]) -> Result<BTreeSet<i64>> {
    rows.iter().map(|row| Reader::new(row, "api_token").int("id")).collect()
}
