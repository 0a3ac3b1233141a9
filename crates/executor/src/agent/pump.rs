//! The handler `pump`: one program selects rows, another executes them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::confine::Confinement;
use super::folder::AgentFolder;
use super::program::{CaptureLimit, Program};
use crate::extract::{FromRun as _, RawParams};
use crate::job_error::JobError;
use crate::pump::{CHECKPOINT_BYTES_MAX, CheckpointError, Item, Pump, PumpContext};

/// The most that a select program may print.
const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PumpParams {
    /// A program and its arguments: it reads items and prints rows.
    select: Vec<String>,
    /// A program and its arguments: it reads rows and executes them.
    execute: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
}

/// A line that the select program printed.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    item: String,
    key: String,
    /// Kept as text: a number may have more digits than a value in memory has.
    #[serde(default)]
    row: Box<RawValue>,
    #[serde(default, skip_serializing)]
    checkpoint: Option<String>,
}

/// An item as the select program reads it.
#[derive(Serialize)]
struct ItemLine<'a> {
    name: &'a str,
    params: &'a RawValue,
    epoch: i64,
    checkpoint: &'a str,
}

pub(super) struct ProgramPump {
    agent_folder: Arc<AgentFolder>,
    confinement: Arc<Confinement>,
}

impl ProgramPump {
    pub(super) fn new(agent_folder: &Arc<AgentFolder>, confinement: &Arc<Confinement>) -> Self {
        Self { agent_folder: Arc::clone(agent_folder), confinement: Arc::clone(confinement) }
    }

    /// Runs the program that `take_argv` takes from the group's parameters. Returns its standard output if `capture_limit` is
    /// set, else nothing.
    async fn run_program(
        &self,
        cx: &PumpContext,
        take_argv: impl FnOnce(&mut PumpParams) -> Vec<String>,
        (stdin, own_env): (String, Vec<(&'static str, String)>),
        capture_limit: Option<CaptureLimit>,
    ) -> Result<Vec<u8>, JobError> {
        // The parameters of a pump that follows other jobs also list the runs of those jobs. `RawParams` drops the
        // list.
        let RawParams(mut params) = RawParams::<PumpParams>::from_run(cx.run())?;
        self.confinement.check_program()?;
        let argv = take_argv(&mut params);
        let PumpParams { env, cwd, .. } = params;
        let folder = self.agent_folder.make_work_dir(cx.run())?;
        let program = Program { argv, env, cwd, stdin: Some(stdin), own_env, folder };
        program.run_to_end(&self.confinement, cx.run(), &cx.log(), capture_limit).await
    }
}

impl Pump for ProgramPump {
    type Row = Row;
    type Error = JobError;

    async fn select(&self, cx: &PumpContext, items: &[Item], limit: usize) -> Result<Vec<Row>, JobError> {
        let stdin = items.iter().map(item_line).collect::<Result<String, JobError>>()?;
        let own_env = vec![("RONDEL_PUMP_LIMIT", limit.to_string())];
        let capture_limit = CaptureLimit { bytes: OUTPUT_BYTES_MAX, lines: limit };
        let output = self
            .run_program(cx, |params| std::mem::take(&mut params.select), (stdin, own_env), Some(capture_limit))
            .await?;
        read_rows(&output)
    }

    async fn execute(&self, cx: &PumpContext, rows: Vec<Row>) -> Result<(), JobError> {
        let item = rows.first().map(|row| row.item.clone()).unwrap_or_default();
        let mut stdin = String::new();
        for row in &rows {
            stdin.push_str(&serde_json::to_string(row)?);
            stdin.push('\n');
        }
        let own_env = vec![("RONDEL_PUMP_EPOCH", cx.epoch(&item).to_string()), ("RONDEL_PUMP_ITEM", item.clone())];
        self.run_program(cx, |params| std::mem::take(&mut params.execute), (stdin, own_env), None).await?;
        if let Some(checkpoint) = rows.iter().rev().find_map(|row| row.checkpoint.as_ref())
            && let Err(error) = cx.checkpoint(&item, checkpoint)
        {
            // The rows are done even if the checkpoint is not stored.
            cx.run().log_line("warn", &error.to_string());
        }
        Ok(())
    }

    fn item(row: &Row) -> String {
        row.item.clone()
    }

    fn key(row: &Row) -> String {
        row.key.clone()
    }
}

fn item_line(item: &Item) -> Result<String, JobError> {
    let params = serde_json::from_str(item.raw_params())?;
    let line = ItemLine { name: &item.name, params, epoch: item.epoch, checkpoint: &item.checkpoint };
    Ok(serde_json::to_string(&line)? + "\n")
}

fn read_rows(output: &[u8]) -> Result<Vec<Row>, JobError> {
    let lines = output.split(|byte| *byte == b'\n').enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
    lines.map(|(number, line)| read_row(number + 1, line)).collect()
}

fn read_row(number: usize, line: &[u8]) -> Result<Row, JobError> {
    let row_error = |error: String| JobError::failed(format_args!("line {number} of the select is not a row: {error}"));
    let row: Row = serde_json::from_slice(line).map_err(|error| row_error(error.to_string()))?;
    // A checkpoint that is too long is refused here. Once the row has been executed, it is too late to fail the row.
    match row.checkpoint.as_ref().map_or(0, String::len) {
        bytes if bytes > CHECKPOINT_BYTES_MAX => Err(row_error(CheckpointError::TooLong { bytes }.to_string())),
        _ => Ok(row),
    }
}

#[cfg(test)]
mod tests;
