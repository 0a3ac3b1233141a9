//! A pump of orders: `cargo run -p rondel-executor --example pump -- http://127.0.0.1:8080 TOKEN_FILE`. Its job needs
//! `"handler": "orders.close"` and `"pump": {"items": {"count": 4}, "groups": 2}`.
use std::sync::{Mutex, PoisonError};

use rondel::{Executor, ExecutorError, Item, JobError, Pump, PumpContext};

/// The numbers of the open orders. A list in memory stands in for a table, so that the example needs no database.
struct CloseOrders(Mutex<Vec<u64>>);

#[rondel::pump("orders.close")]
impl Pump for CloseOrders {
    type Row = u64;
    type Error = JobError;

    // With a database: SELECT id FROM orders WHERE state = 'open' AND id % 4 = ANY($1) ORDER BY id LIMIT $2 FOR UPDATE
    // SKIP LOCKED
    async fn select(&self, _: &PumpContext, items: &[Item], limit: usize) -> Result<Vec<u64>, JobError> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ours = |id: &&u64| items.iter().any(|item| item.name == Self::item(id));
        Ok(open.iter().filter(is_ours).take(limit).copied().collect())
    }

    // With a database: UPDATE orders SET state = 'closed', epoch = $1 WHERE id = $2 AND state = 'open' AND epoch <= $1
    // The epoch is the fencing token: an executor that lost the item during a pause writes nothing.
    async fn execute(&self, cx: &PumpContext, rows: Vec<u64>) -> Result<(), JobError> {
        for id in rows {
            tracing::info!(id, epoch = cx.epoch(&Self::item(&id)), "closing"); // lands in the log of the group's run
            self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|open| *open != id);
        }
        Ok(())
    }

    fn item(row: &u64) -> String {
        (row % 4).to_string()
    }

    fn key(row: &u64) -> String {
        row.to_string()
    }
}

impl Default for CloseOrders {
    fn default() -> Self {
        Self(Mutex::new((1..=1_000).collect()))
    }
}

#[tokio::main]
async fn main() -> Result<(), ExecutorError> {
    let mut args = std::env::args().skip(1);
    Executor::builder("orders")
        .server(args.next().unwrap_or_else(|| "http://127.0.0.1:8080".to_owned()))
        .token_file(args.next().unwrap_or_else(|| "executor.token".to_owned()))
        .named_pump::<CloseOrders>()
        .run_until(rondel::signal::terminate())
        .await
}
