//! An executor with a pump over a table of orders in PostgreSQL, for tests that kill processes.
//!
//! Each execution of an order is recorded in the database: the first one in the table `journal`, each further one in `twice`. With
//! `--token`, an execution is recorded only if no group has selected or executed rows of the order's item at a higher epoch.
//!
//! `orders --server URL… --token-file FILE --app APP --name NAME --database URL [--token] [--row-ms N] [--slots N]`
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rondel::{Executor, Item, JobError, Pump, PumpContext};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

/// A session of psql. Dropping it kills psql, even in the middle of a statement.
struct Session {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Session {
    fn open(database: &str) -> Result<Self, JobError> {
        let mut child = Command::new("psql")
            .args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--field-separator=\t", database])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| JobError::failed(format!("psql: {error}")))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { return Err(JobError::failed("psql has no pipes")) };
        Ok(Self { _child: child, input, output: BufReader::new(output).lines() })
    }

    /// Runs a statement, and returns its rows.
    async fn rows(&mut self, statement: &str) -> Result<Vec<String>, JobError> {
        let failed = |error: std::io::Error| JobError::failed(format!("psql: {error}"));
        self.input.write_all(format!("{statement};\n\\echo --over\n").as_bytes()).await.map_err(failed)?;
        let mut rows = Vec::new();
        while let Some(line) = self.output.next_line().await.map_err(failed)? {
            if line == "--over" {
                return Ok(rows);
            }
            rows.push(line);
        }
        Err(JobError::failed("psql has ended"))
    }
}

#[derive(Clone, Debug)]
struct Order {
    id: i64,
    item: String,
}

struct Orders(Arc<Table>);

struct Table {
    database: String,
    idle: Mutex<Vec<Session>>,
    with_token: bool,
    name: String,
    row: Duration,
}

impl Table {
    async fn rows(&self, statement: &str) -> Result<Vec<String>, JobError> {
        let idle = self.idle.lock().await.pop();
        let mut session = match idle {
            Some(session) => session,
            None => Session::open(&self.database)?,
        };
        let rows = session.rows(statement).await?;
        self.idle.lock().await.push(session);
        Ok(rows)
    }

    fn execution(&self, order: &Order, epoch: i64) -> String {
        let (Order { id, item }, name) = (order, &self.name);
        let fence = if self.with_token { format!("epoch <= {epoch}") } else { "true".to_owned() };
        format!(
            "WITH fence AS (UPDATE item_epoch SET epoch = greatest(epoch, {epoch}) WHERE item = '{item}' AND {fence} RETURNING 1), \
             first AS (INSERT INTO journal SELECT {id}, '{item}', {epoch}, '{name}' FROM fence ON CONFLICT DO NOTHING RETURNING 1), \
             again AS (INSERT INTO twice SELECT {id}, '{item}', {epoch}, '{name}' FROM fence WHERE NOT EXISTS (SELECT 1 FROM first)), \
             done AS (UPDATE orders SET done = true WHERE id = {id} AND EXISTS (SELECT 1 FROM fence)) \
             SELECT 1 FROM fence"
        )
    }
}

impl Table {
    /// Records an execution of the order; returns whether its epoch was accepted.
    async fn close(&self, order: &Order, epoch: i64) -> Result<bool, JobError> {
        tokio::time::sleep(self.row).await;
        Ok(!self.rows(&self.execution(order, epoch)).await?.is_empty())
    }
}

impl Pump for Orders {
    type Row = Order;
    type Error = JobError;

    async fn select(&self, _: &PumpContext, items: &[Item], limit: usize) -> Result<Vec<Order>, JobError> {
        let mut statement = String::new();
        if self.0.with_token {
            // From here on, executions by an earlier owner of the items are refused.
            for Item { name, epoch, .. } in items {
                statement.push_str(&format!(
                    "UPDATE item_epoch SET epoch = {epoch} WHERE item = '{name}' AND epoch < {epoch}; "
                ));
            }
        }
        let names: Vec<String> = items.iter().map(|item| format!("'{}'", item.name)).collect();
        let names = names.join(", ");
        statement.push_str(&format!(
            "SELECT id, item FROM orders WHERE NOT done AND item IN ({names}) ORDER BY id LIMIT {limit}"
        ));
        let order = |row: &String| {
            let (id, item) = row.split_once('\t')?;
            Some(Order { id: id.parse().ok()?, item: item.to_owned() })
        };
        Ok(self.0.rows(&statement).await?.iter().filter_map(order).collect())
    }

    async fn execute(&self, cx: &PumpContext, rows: Vec<Order>) -> Result<(), JobError> {
        for order in rows {
            let (table, epoch) = (Arc::clone(&self.0), cx.epoch(&order.item));
            let id = order.id;
            // The statement runs in a task of its own, so that aborting the run does not stop it: a statement that is
            // on its way to the database cannot be called back either.
            #[expect(clippy::disallowed_methods, reason = "it is to outlive the run")]
            let closed = tokio::spawn(async move { table.close(&order, epoch).await });
            if !closed.await?? {
                return Err(JobError::failed(format!("order {id}: the item is another group's by now")));
            }
        }
        Ok(())
    }

    fn item(row: &Order) -> String {
        row.item.clone()
    }

    fn key(row: &Order) -> String {
        row.id.to_string()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let subscriber =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).finish();
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        return ExitCode::from(2);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tracing::error!("{problem}");
            ExitCode::from(2)
        }
    }
}

async fn run(args: &[String]) -> Result<(), String> {
    let all = |name: &'static str| args.windows(2).filter(move |pair| pair[0] == name).map(|pair| pair[1].as_str());
    let one = |name: &'static str| all(name).next().ok_or_else(|| format!("{name} is missing"));
    let number = |name: &'static str, default: &'static str| {
        one(name).unwrap_or(default).parse::<u32>().map_err(|error| format!("{name}: {error}"))
    };
    let orders = Orders(Arc::new(Table {
        database: one("--database")?.to_owned(),
        idle: Mutex::default(),
        with_token: args.iter().any(|arg| arg == "--token"),
        name: one("--name")?.to_owned(),
        row: Duration::from_millis(number("--row-ms", "0")?.into()),
    }));
    let mut builder = Executor::builder(one("--app")?)
        .token_file(one("--token-file")?)
        .name(one("--name")?)
        .slots(number("--slots", "8")?)
        .pump("orders.close", orders);
    for server in all("--server") {
        builder = builder.server(server);
    }
    builder.run_until(rondel::signal::terminate()).await.map_err(|error| format!("{error:?}"))
}
