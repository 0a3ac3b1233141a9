//! Sentences that name runs by their ids, split into parts so that pages can link these runs.

use rondel_core::RunId;

/// The words before the id of a run in a sentence, in both languages.
const WORDS_BEFORE_ID: [&str; 3] = ["run ", "Run ", "运行 "];
/// Minimum number of digits in the id of a run. Shorter numbers after these words are counts.
const ID_LEN_MIN: usize = 15;

/// A part of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentencePart {
    pub(crate) text: String,
    /// The run, if the text is its id.
    pub(crate) run: Option<RunId>,
}

/// Splits a sentence at the ids of runs. A message in the sentence may name a run too: the page of that run checks whether the caller may
/// see it.
pub(crate) fn split_at_runs(sentence: &str) -> Vec<SentencePart> {
    let mut pieces = Vec::new();
    let (mut part_index, mut search_index) = (0, 0);
    while let Some(start_index) =
        sentence[search_index..].find(|c: char| c.is_ascii_digit()).map(|offset| search_index + offset)
    {
        let end_index =
            sentence[start_index..].find(|c: char| !c.is_ascii_digit()).map_or(sentence.len(), |len| start_index + len);
        if let Some(run) = named_run(&sentence[..start_index], &sentence[start_index..end_index]) {
            pieces.push(SentencePart { text: sentence[part_index..start_index].to_owned(), run: None });
            pieces.push(SentencePart { text: sentence[start_index..end_index].to_owned(), run: Some(run) });
            part_index = end_index;
        }
        search_index = end_index;
    }
    pieces.push(SentencePart { text: sentence[part_index..].to_owned(), run: None });
    pieces.retain(|piece| !piece.text.is_empty());
    pieces
}

fn named_run(text_before: &str, digits: &str) -> Option<RunId> {
    let is_marked = WORDS_BEFORE_ID.iter().any(|word| text_before.ends_with(*word));
    if is_marked && digits.len() >= ID_LEN_MIN { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked(sentence: &str) -> Vec<String> {
        let found = split_at_runs(sentence);
        let whole: String = found.iter().map(|piece| piece.text.as_str()).collect();
        assert_eq!(whole, sentence);
        found.into_iter().filter(|piece| piece.run.is_some()).map(|piece| piece.text).collect()
    }

    #[test]
    fn ids_of_runs_are_links() {
        let id = "385377842201886722";
        for sentence in [
            format!("waits behind run {id} of the job."),
            format!("Run {id} has been running since 2026-11-29 10:24 UTC on w1."),
            format!("Shard 2/2 (run {id}) on w1 ended as failed."),
            format!("正在等待该任务的运行 {id} 结束。"),
            format!("run {id}"),
        ] {
            assert_eq!(linked(&sentence), [id], "{sentence}");
        }
        assert_eq!(linked(&format!("behind run {id}, then run 385377842201886723.")).len(), 2);
    }

    #[test]
    fn other_numbers_are_text() {
        for sentence in
            ["", "of run 7", "order 385377842201886722", "exit code 3 at 10:24:00.019", "run 99999999999999999999"]
        {
            assert!(linked(sentence).is_empty(), "{sentence}");
        }
    }
}
