//! Deletes an object and reports it, for every command that deletes.

use crate::client::Client;
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::job::queued_sentence;
use crate::output;

/// Deletes the object at `path`, whose last segment is the object's name. Prints `sentence` and, if there are queued runs,
/// what happens to them.
pub(crate) async fn delete(
    client: &Client,
    path: &[&str],
    query: &[(&str, &str)],
    sentence: &str,
    format: FormatArgs,
) -> Result<(), Failure> {
    let answer = client.delete(path, query).await?;
    let queued_text = answer.value().ok().and_then(|answer| queued_sentence(&answer["queued"]));
    let sentence = queued_text.map_or_else(|| sentence.to_owned(), |queued_text| format!("{sentence}; {queued_text}"));
    match format.format {
        Format::Name => output::print_names(path.last()),
        Format::Table | Format::Wide => {
            output::print_message(&sentence);
            Ok(())
        }
        // The server's answer is empty, unless runs were queued.
        Format::Json | Format::Jsonl | Format::Yaml if answer.text().is_empty() => Ok(()),
        Format::Json | Format::Jsonl | Format::Yaml => output::print_document(answer.text(), format.format),
    }
}
