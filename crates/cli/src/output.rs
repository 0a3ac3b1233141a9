//! The only place that writes to the terminal: data to stdout, talk to stderr.

use std::io::{ErrorKind, Write};

use crate::exit::{Exit, Failure};
use crate::format::Format;

/// Writes data: a whole line, or several.
///
/// # Errors
/// Silent success where the reader has gone (`rondel run list | head -1`); else what the system says.
pub(crate) fn data(lines: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let end = if lines.ends_with('\n') || lines.is_empty() { "" } else { "\n" };
    let written = stdout
        .write_all(lines.as_bytes())
        .and_then(|()| stdout.write_all(end.as_bytes()))
        .and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::silent(Exit::Success),
        _ => Failure::of("cannot write to stdout", &error),
    })
}

/// Writes what the server answered: as it stands, or in YAML.
///
/// # Errors
/// As [`data`], and where the answer is no JSON.
pub(crate) fn document(json: &str, format: Format) -> Result<(), Failure> {
    if format != Format::Yaml {
        return data(json);
    }
    let value: serde_json::Value =
        serde_json::from_str(json).map_err(|error| Failure::of("the server's answer is not understood", &error))?;
    data(&rondel_web::yaml::write_value(&value))
}

/// Says something to the person at the terminal. If nobody can hear it, nothing is lost.
pub(crate) fn talk(sentence: &str) {
    writeln!(std::io::stderr().lock(), "{sentence}").ok();
}
