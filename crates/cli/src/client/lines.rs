//! An answer that arrives line by line.

use std::time::Duration;

use reqwest::Response;

use crate::exit::{Exit, Failure};
use rondel_core::error_chain::chain_in_one_line;

/// A stream that is silent for this long is treated as lost: a live server sends at least an empty line more often.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of a line, in bytes: no log line is longer.
const LINE_LEN_MAX: usize = 4 * 1024 * 1024;

/// The lines of an answer, read as they arrive.
#[derive(Debug)]
pub(crate) struct Lines {
    response: Response,
    unread_bytes: Vec<u8>,
}

impl Lines {
    pub(super) const fn new(response: Response) -> Self {
        Self { response, unread_bytes: Vec::new() }
    }

    /// The next line that is not empty; `None` at the end of the answer. A last line without a line ending is dropped.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, Failure> {
        loop {
            while let Some(line) = take_line(&mut self.unread_bytes) {
                if !line.is_empty() {
                    return Ok(Some(line));
                }
            }
            if self.unread_bytes.len() > LINE_LEN_MAX {
                return Err(Failure::from_text("the server sends a line without an end"));
            }
            match tokio::time::timeout(SILENCE_TIMEOUT, self.response.chunk()).await {
                Ok(Ok(Some(bytes))) => self.unread_bytes.extend_from_slice(&bytes),
                Ok(Ok(None)) => return Ok(None),
                Ok(Err(error)) => {
                    let cause = chain_in_one_line(&error.without_url());
                    let sentence = format!("the connection to the server broke: {cause}");
                    return Err(Failure::new(Exit::Unreachable, sentence).temporary());
                }
                Err(_) => return Err(Failure::new(Exit::Unreachable, "the server has fallen silent").temporary()),
            }
        }
    }
}

/// Removes the first whole line from `bytes`, and returns it without its line ending; `None` if no line is whole.
fn take_line(bytes: &mut Vec<u8>) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let remaining_bytes = bytes.split_off(end + 1);
    let line = std::mem::replace(bytes, remaining_bytes);
    Some(String::from_utf8_lossy(&line[..end]).trim_end_matches('\r').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_where_they_end() {
        let mut bytes = b"one\r\n\ntw".to_vec();
        assert_eq!(take_line(&mut bytes).as_deref(), Some("one"));
        assert_eq!(take_line(&mut bytes).as_deref(), Some(""));
        assert_eq!(take_line(&mut bytes), None);
        bytes.extend_from_slice(b"o\n");
        assert_eq!(take_line(&mut bytes).as_deref(), Some("two"));
    }
}
