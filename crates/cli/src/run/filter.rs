//! The filter of a list of runs, from flags and from the grammar of the console.

use clap::Args;

/// The conditions on runs in addition to their job and status.
#[derive(Debug, Args)]
pub(super) struct FilterArgs {
    /// Only runs of this app; several with commas between them, `*` for any part of a name
    #[arg(long, value_name = "APP")]
    app: Option<String>,
    /// Only runs planned or made since: 8h, 7d, yesterday, 2026-11-22, 2026-11-22T10:00 (UTC)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only runs planned and made until then, in the forms of --since
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only runs that this executor has or had
    #[arg(long, value_name = "NAME")]
    executor: Option<String>,
    /// Only runs with this cause: cron, interval, once, manual, api, parent, backfill, misfire
    #[arg(long, value_name = "CAUSE")]
    trigger: Option<String>,
    /// Only runs with this duration: '>5m', '<=1s'
    #[arg(long, value_name = "BOUND")]
    duration: Option<String>,
    /// Only runs that began late by this much: '>1s'
    #[arg(long, value_name = "BOUND")]
    late: Option<String>,
    /// Only runs of jobs with this label: team=pay, or team
    #[arg(long, value_name = "LABEL")]
    label: Vec<String>,
    /// Only runs with this text in their message or the name of their job
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// A filter as in the console, such as 'status:failed,unknown -app:test duration:>5m'
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,
}

impl FilterArgs {
    /// The filter as text; `None` if nothing is given.
    pub(super) fn text(&self, extra_condition: Option<(&str, &str)>) -> Option<String> {
        let flags = [
            ("app", &self.app),
            ("since", &self.since),
            ("until", &self.until),
            ("executor", &self.executor),
            ("trigger", &self.trigger),
            ("duration", &self.duration),
            ("late", &self.late),
        ];
        let conditions = flags.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
        let conditions =
            conditions.chain(self.label.iter().map(|label| ("label", label.as_str()))).chain(extra_condition);
        let mut terms: Vec<String> = conditions.map(|(key, value)| format!("{key}:{}", quoted_values(value))).collect();
        terms.extend(self.text.as_deref().map(in_quotes));
        terms.extend(self.filter.clone());
        (!terms.is_empty()).then(|| terms.join(" "))
    }
}

/// Values separated by commas, each in quotes if it has blanks.
fn quoted_values(text: &str) -> String {
    let to_quoted = |value: &str| if value.contains(char::is_whitespace) { in_quotes(value) } else { value.to_owned() };
    text.split(',').map(to_quoted).collect::<Vec<_>>().join(",")
}

fn in_quotes(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use rondel_core::filter::{Filter, Scope};

    use super::*;

    #[test]
    fn flags_become_terms() {
        let args = FilterArgs {
            app: Some("orders,pay".to_owned()),
            since: Some("8h".to_owned()),
            until: None,
            executor: Some("w 2".to_owned()),
            trigger: None,
            duration: Some(">5m".to_owned()),
            late: None,
            label: vec!["team=pay".to_owned()],
            text: Some("write \"no\" \\".to_owned()),
            filter: Some("-trigger:manual".to_owned()),
        };
        let text = args.text(Some(("job", "orders.*"))).unwrap();
        let filter = Filter::parse(&text, Scope::Runs).unwrap();
        let expected = "app:orders,pay job:orders.* since:8h executor:\"w 2\" -trigger:manual duration:>5m label:team=pay \"write \\\"no\\\" \\\\\"";
        assert_eq!(filter.to_string(), expected);
    }
}
