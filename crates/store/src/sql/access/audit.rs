//! The trait `AuditLog` in SQL.

use async_trait::async_trait;
use rondel_core::{AuditId, IdGen, TokenId};
use sqlx::any::AnyRow;

use crate::Result;
use crate::access::stored_document;
use crate::access::{AuditEntry, AuditLog, AuditQuery, INCOMPLETE, Verdict};
use crate::settle::clean_name;
use crate::sql::SqlStore;
use crate::sql::query::{Query, Reader, Statement};

const INSERT_AUDIT: Statement = Statement {
    name: "insert_audit",
    text: "INSERT INTO audit (id, at_ms, actor, means, address, request_id, action, object, namespace, verdict, \
           before_document, after_document, token_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
};

const ANSWER_AUDIT: Statement = Statement {
    name: "answer_audit",
    text: "UPDATE audit SET object = ?, namespace = ?, verdict = ?, before_document = ?, after_document = ? \
           WHERE id = ? AND after_document = ?",
};

/// Filters for which no index exists are checked row by row. An empty text disables a filter.
macro_rules! select_audit {
    ($first:literal) => {
        concat!(
            "SELECT id, at_ms, actor, means, address, request_id, action, object, namespace, verdict, before_document, \
             after_document, token_id FROM audit WHERE ",
            $first,
            "id < ? AND id >= ? AND (? = '' OR actor = ?) AND (? = '' OR action = ?) AND (? = '' OR object = ?) \
             AND (? = '' OR namespace = ?) AND (? = '' OR verdict = ?) ORDER BY id DESC LIMIT ?"
        )
    };
}

const LIST_AUDIT: Statement = Statement { name: "list_audit", text: select_audit!("") };
pub(in crate::sql) const LIST_AUDIT_OF_ACTOR: Statement =
    Statement { name: "list_audit_of_actor", text: select_audit!("actor = ? AND ") };
pub(in crate::sql) const LIST_AUDIT_OF_OBJECT: Statement =
    Statement { name: "list_audit_of_object", text: select_audit!("object = ? AND ") };
pub(in crate::sql) const LIST_AUDIT_OF_NAMESPACE: Statement =
    Statement { name: "list_audit_of_namespace", text: select_audit!("namespace = ? AND ") };

#[async_trait]
impl AuditLog for SqlStore {
    async fn add_audit(&self, entry: &AuditEntry) -> Result<()> {
        let shortened = |text: &Option<String>| text.as_deref().map(|text| clean_name(text).into_owned());
        let insert = Query::new(&INSERT_AUDIT)
            .int(entry.id.get())
            .at(entry.at)
            .text(&clean_name(&entry.actor))
            .text(entry.auth_method.as_str())
            .opt_text(shortened(&entry.address).as_deref())
            .opt_text(shortened(&entry.request_id).as_deref())
            .text(&clean_name(&entry.action))
            .text(&clean_name(&entry.object))
            .opt_text(shortened(&entry.namespace).as_deref())
            .text(entry.verdict.as_str())
            .opt_text(entry.before.as_deref().map(stored_document).as_deref())
            .opt_text(entry.after.as_deref().map(stored_document).as_deref())
            .opt_int(entry.token.map(TokenId::get));
        self.execute(insert).await?;
        Ok(())
    }

    async fn complete_audit(&self, entry: &AuditEntry) -> Result<bool> {
        let answer = Query::new(&ANSWER_AUDIT)
            .text(&clean_name(&entry.object))
            .opt_text(entry.namespace.as_deref().map(|text| clean_name(text).into_owned()).as_deref())
            .text(entry.verdict.as_str())
            .opt_text(entry.before.as_deref().map(stored_document).as_deref())
            .opt_text(entry.after.as_deref().map(stored_document).as_deref())
            .int(entry.id.get())
            .text(INCOMPLETE);
        Ok(self.execute(answer).await? == 1)
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>> {
        let page = match (&query.object, &query.actor, &query.namespace) {
            (Some(object), _, _) => Query::new(&LIST_AUDIT_OF_OBJECT).text(object),
            (None, Some(actor), _) => Query::new(&LIST_AUDIT_OF_ACTOR).text(actor),
            (None, None, Some(namespace)) => Query::new(&LIST_AUDIT_OF_NAMESPACE).text(namespace),
            (None, None, None) => Query::new(&LIST_AUDIT),
        };
        // Ids rise with time.
        let id_limit = query.to.map_or(i64::MAX, IdGen::first_at).min(query.after.map_or(i64::MAX, AuditId::get));
        let mut page = page.int(id_limit).int(query.from.map_or(0, IdGen::first_at));
        let verdict = query.verdict.map(Verdict::as_str);
        for filter in [
            query.actor.as_deref(),
            query.action.as_deref(),
            query.object.as_deref(),
            query.namespace.as_deref(),
            verdict,
        ] {
            let text = filter.unwrap_or_default();
            page = page.text(text).text(text);
        }
        self.rows(page.int(query.limit.into())).await?.iter().map(entry).collect()
    }
}

fn entry(row: &AnyRow) -> Result<AuditEntry> {
    let mut columns = Reader::new(row, "audit");
    Ok(AuditEntry {
        id: AuditId::new(columns.int("id")?),
        at: columns.at("at_ms")?,
        actor: columns.text("actor")?,
        auth_method: columns.word("means")?,
        address: columns.opt_text("address")?,
        request_id: columns.opt_text("request_id")?,
        action: columns.text("action")?,
        object: columns.text("object")?,
        namespace: columns.opt_text("namespace")?,
        verdict: columns.word("verdict")?,
        before: columns.opt_text("before_document")?,
        after: columns.opt_text("after_document")?,
        token: columns.opt_int("token_id")?.map(TokenId::new),
    })
}
