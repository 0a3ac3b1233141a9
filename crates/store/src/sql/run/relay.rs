//! The trait `Relay` in SQL: requests to fence, and their answers, between servers.

use async_trait::async_trait;
use rondel_core::{ExecutorId, NodeId, RunId, Timestamp};

use crate::ledger::{FenceRequest, RelayedAnswer};
use crate::settle::clean_name;
use crate::sql::query::{Query, Reader, Statement};
use crate::sql::{SqlStore, failure};
use crate::{LeaseToken, Relay, Result};

const FORGET_FENCE_REQUESTS: Statement =
    Statement { name: "forget_fence_requests", text: "DELETE FROM fence_request WHERE asked_at_ms < ?" };
/// A request that is stored again keeps its answer.
const DELETE_REQUEST: Statement = Statement {
    name: "delete_fence_request",
    text: "DELETE FROM fence_request WHERE asker_id = ? AND executor_id = ? AND asked_at_ms <> ?",
};
const INSERT_REQUEST: Statement = Statement {
    name: "insert_fence_request",
    text: "INSERT {ignore} INTO fence_request (asker_id, executor_id, asked_at_ms, leases) VALUES (?, ?, ?, ?) {or_ignore}",
};
/// The cross join makes SQLite begin with the requests, which are few.
pub(in crate::sql) const READ_REQUESTS: Statement = Statement {
    name: "read_fence_requests",
    text: "SELECT asked.asker_id, asked.executor_id, asked.asked_at_ms, asked.leases FROM fence_request asked \
           CROSS JOIN executor_session heard WHERE heard.node_id = ? AND heard.executor_id = asked.executor_id \
           AND asked.asked_at_ms >= ? AND asked.asker_id <> ? AND asked.answered_at_ms IS NULL \
           AND heard.ended_at_ms IS NULL ORDER BY asked.asked_at_ms, asked.asker_id, asked.executor_id LIMIT ?",
};
const ANSWER_REQUEST: Statement = Statement {
    name: "answer_fence_request",
    text: "UPDATE fence_request SET answered_at_ms = ?, executor = ?, held = ? WHERE asker_id = ? AND executor_id = ? \
           AND asked_at_ms = ? AND answered_at_ms IS NULL",
};
pub(in crate::sql) const READ_ANSWERS: Statement = Statement {
    name: "read_fence_answers",
    text: "SELECT executor_id, asked_at_ms, executor, held FROM fence_request WHERE asked_at_ms >= ? AND asker_id = ? \
           AND answered_at_ms IS NOT NULL ORDER BY executor_id LIMIT ?",
};

#[async_trait]
impl Relay for SqlStore {
    // Not in a transaction: if the row of a request is lost, the server asks again.
    async fn ask_fences(&self, requests: &[FenceRequest], forget_before: Timestamp) -> Result<()> {
        self.execute(Query::new(&FORGET_FENCE_REQUESTS).at(forget_before)).await?;
        for request in requests {
            let (asker, executor) = (request.asker.get(), request.executor.get());
            self.execute(Query::new(&DELETE_REQUEST).int(asker).int(executor).at(request.asked_at)).await?;
            let leases: Vec<(i64, i64)> = request.leases.iter().map(|lease| (lease.node.get(), lease.epoch)).collect();
            let leases_json = json("ask_fences", &leases)?;
            self.execute(Query::new(&INSERT_REQUEST).int(asker).int(executor).at(request.asked_at).text(&leases_json))
                .await?;
        }
        Ok(())
    }

    async fn fences_to_relay(&self, token: LeaseToken, since: Timestamp, limit: u32) -> Result<Vec<FenceRequest>> {
        let node = token.node.get();
        let query = Query::new(&READ_REQUESTS).int(node).at(since).int(node).int(limit.into());
        let mut requests = Vec::new();
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "fence_request");
            let (asker, executor) =
                (NodeId::new(columns.int("asker_id")?), ExecutorId::new(columns.int("executor_id")?));
            let asked_at = columns.at("asked_at_ms")?;
            let leases: Vec<(i64, i64)> = columns.json("leases")?;
            let lease = |(node, epoch)| LeaseToken { node: NodeId::new(node), epoch };
            let leases = leases.into_iter().map(lease).collect();
            requests.push(FenceRequest { asker, executor, asked_at, leases });
        }
        Ok(requests)
    }

    async fn answer_fences(&self, answers: &[RelayedAnswer], now: Timestamp) -> Result<()> {
        for answer in answers {
            let held_attempts: Vec<(i64, i32)> =
                answer.held.iter().map(|(run, attempt)| (run.get(), *attempt)).collect();
            let held_json = json("answer_fences", &held_attempts)?;
            let query = Query::new(&ANSWER_REQUEST).at(now).text(&clean_name(&answer.name)).text(&held_json);
            let query = query.int(answer.asker.get()).int(answer.executor.get()).at(answer.asked_at);
            self.execute(query).await?;
        }
        Ok(())
    }

    async fn fence_answers(&self, asker: NodeId, since: Timestamp, limit: u32) -> Result<Vec<RelayedAnswer>> {
        let query = Query::new(&READ_ANSWERS).at(since).int(asker.get()).int(limit.into());
        let mut answers = Vec::new();
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "fence_request");
            let executor = ExecutorId::new(columns.int("executor_id")?);
            let asked_at = columns.at("asked_at_ms")?;
            let name = columns.opt_text("executor")?.unwrap_or_default();
            let held_pairs: Option<Vec<(i64, i32)>> = columns.opt_json("held")?;
            let held_attempts =
                held_pairs.unwrap_or_default().into_iter().map(|(run, attempt)| (RunId::new(run), attempt)).collect();
            answers.push(RelayedAnswer { asker, executor, asked_at, name, held: held_attempts });
        }
        Ok(answers)
    }
}

fn json<T: serde::Serialize>(operation: &'static str, value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| failure::refused(operation, &error.to_string()))
}
