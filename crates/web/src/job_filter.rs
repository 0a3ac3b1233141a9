//! Matches the labels of a job against a filter.

use rondel_core::filter::Filter;
use rondel_core::labels::Labels;

pub(crate) fn labels_match(filter: &Filter, labels: &Labels) -> bool {
    filter.labels.iter().all(|term| {
        let has_label = term.any.iter().any(|test| labels.iter().any(|(key, value)| test.matches(key, value)));
        has_label != term.is_not
    })
}

#[cfg(test)]
mod tests {
    use rondel_core::filter::Scope;

    use super::*;

    #[test]
    fn each_term_must_hold() {
        let labels: Labels = [("team".to_owned(), "pay".to_owned()), ("tier".to_owned(), "1".to_owned())].into();
        for (filter, passes) in [
            ("", true),
            ("label:team", true),
            ("label:team=pay", true),
            ("label:team=ops", false),
            ("label:team=ops,team=pay", true),
            ("label:team=pay label:tier=2", false),
            ("-label:team", false),
            ("-label:team=ops", true),
        ] {
            assert_eq!(labels_match(&Filter::parse(filter, Scope::Jobs).unwrap(), &labels), passes, "{filter}");
        }
    }
}
