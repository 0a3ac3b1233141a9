//! Reading journals: one JSON object per line, in any number of files of a folder.
//!
//! ```text
//! {"event":"start","run":"17","attempt":1,"job":"a","fire_at_ms":1000,"shard":0,"term":1,"n":5,"pid":4711,"at_ms":1003}
//! {"event":"end","run":"17","attempt":1,"pid":4711,"at_ms":1010,"ok":true}
//! {"event":"died","pid":4711,"at_ms":2000}
//! {"event":"stopped","pid":4711,"from_ms":2000,"to_ms":9000}
//! ```
//!
//! Handlers write the first two, each by one write to a file that is opened for appending; the test that kills and stops
//! processes writes the others. An `ok` that is null means that the handler was dropped.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use serde_json::Value;

use super::evidence::{Died, Evidence, Paused, Start};

/// Reads all files of a folder whose names end in `.jsonl`. An incomplete last line is left out: it is being written, or
/// its process died while writing it.
///
/// # Errors
/// If a file cannot be read, or a complete line is not an event of a journal.
pub fn read_journal(folder: &Path) -> io::Result<Evidence> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
    paths.sort();
    let mut evidence = Evidence::default();
    let mut ends = HashMap::new();
    for path in paths {
        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (index, line) in whole.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            let value: Option<Value> = serde_json::from_str(line).ok();
            if value.and_then(|value| take(&value, &mut evidence, &mut ends)).is_none() {
                let place = format!("{}:{}: no line of a journal: {line}", path.display(), index + 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, place));
            }
        }
    }
    for start in &mut evidence.starts {
        start.end = ends.get(&(start.run.clone(), start.attempt, start.pid)).copied();
    }
    evidence.starts.sort_by_key(|start| start.begin_ms);
    Ok(evidence)
}

type Ends = HashMap<(String, i64, i64), (i64, Option<bool>)>;

fn take(line: &Value, evidence: &mut Evidence, ends: &mut Ends) -> Option<()> {
    let number = |key: &str| line[key].as_i64();
    let text = |key: &str| line[key].as_str().map(str::to_owned);
    match line["event"].as_str()? {
        "start" => evidence.starts.push(Start {
            run: text("run")?,
            attempt: number("attempt")?,
            job: text("job")?,
            fire_at_ms: number("fire_at_ms")?,
            shard: number("shard").unwrap_or(0),
            token: (number("term").unwrap_or(0), number("n").unwrap_or(0)),
            pid: number("pid")?,
            begin_ms: number("at_ms")?,
            end: None,
        }),
        "end" => {
            ends.insert((text("run")?, number("attempt")?, number("pid")?), (number("at_ms")?, line["ok"].as_bool()));
        }
        "died" => evidence.died.push(Died { pid: number("pid")?, at_ms: number("at_ms")? }),
        "stopped" => {
            evidence.paused.push(Paused { pid: number("pid")?, from_ms: number("from_ms")?, to_ms: number("to_ms")? })
        }
        _ => return None,
    }
    Some(())
}
