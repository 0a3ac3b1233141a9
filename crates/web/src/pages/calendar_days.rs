//! A calendar as form fields: weekdays, added days, removed days, and times of day. Rules that do not fit these fields are edited as
//! JSON.

use rondel_core::calendar::{Day, Rule, Weekday};

use super::form::Fields;
use super::texts::Texts;

/// The prefix of the names of the checkboxes for weekdays.
const WEEKDAY_FIELD_PREFIX: &str = "weekday.";
/// How many rows of date pickers the form has.
pub(super) const PICKER_COUNT: usize = 2;

const WEEKDAYS: [Weekday; 7] =
    [Weekday::Mon, Weekday::Tue, Weekday::Wed, Weekday::Thu, Weekday::Fri, Weekday::Sat, Weekday::Sun];

/// The values of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CalendarDays {
    weekdays: Vec<Weekday>,
    /// One day or span per line, followed by its name.
    pub(super) added: String,
    pub(super) removed: String,
    /// One span per line.
    pub(super) times: String,
}

impl CalendarDays {
    /// The weekdays with their names, and whether each is chosen.
    pub(super) fn weekdays(&self, t: &Texts) -> Vec<(&'static str, &'static str, bool)> {
        let names = WEEKDAYS.iter().zip(t.weekdays_short.split(' '));
        names.map(|(day, name)| (day.as_str(), name, self.weekdays.contains(day))).collect()
    }

    /// The field values of a rule; `None` if the rule does not fit the fields.
    pub(super) fn from_rule(rule: &Rule) -> Option<Self> {
        let mut days = Self::default();
        let mut remaining_rule = rule;
        if let Rule::All(parts) = remaining_rule
            && let [inner, Rule::Times(times)] = &parts[..]
        {
            days.times = times.join("\n");
            remaining_rule = inner;
        }
        if let Rule::Any(parts) = remaining_rule
            && let [inner, Rule::Days(added)] = &parts[..]
        {
            days.added = day_lines(added);
            remaining_rule = inner;
        }
        if let Rule::All(parts) = remaining_rule
            && let [inner, Rule::Not(removed)] = &parts[..]
            && let Rule::Days(removed) = &**removed
        {
            days.removed = day_lines(removed);
            remaining_rule = inner;
        }
        match remaining_rule {
            Rule::Weekdays(weekdays) => days.weekdays.clone_from(weekdays),
            Rule::Days(added) if days.added.is_empty() && days.removed.is_empty() => days.added = day_lines(added),
            _ => return None,
        }
        Some(days)
    }

    /// The field values of a submitted form. Days chosen in the pickers are appended to the lists.
    pub(super) fn from_fields(fields: &Fields) -> Self {
        let weekdays = WEEKDAYS
            .into_iter()
            .filter(|day| !fields.get(&format!("{WEEKDAY_FIELD_PREFIX}{}", day.as_str())).is_empty());
        let text = |field| fields.get(field).to_owned();
        let mut days =
            Self { weekdays: weekdays.collect(), added: text("added"), removed: text("removed"), times: text("times") };
        for row in 0..PICKER_COUNT {
            let picker_value = |name: &str| fields.get(&format!("pick.{row}.{name}"));
            let line = match (picker_value("from"), picker_value("to")) {
                ("", _) => continue,
                (from, "") => from.to_owned(),
                (from, to) if from == to => from.to_owned(),
                (from, to) => format!("{from}..{to}"),
            };
            let line = format!("{line} {}", picker_value("name"));
            let day_list = if picker_value("kind") == "out" { &mut days.removed } else { &mut days.added };
            if !day_list.is_empty() {
                day_list.push('\n');
            }
            day_list.push_str(line.trim_end());
        }
        days
    }

    /// The rule that the fields describe.
    pub(super) fn rule(&self) -> Rule {
        let (added_days, removed_days) = (parse_days(&self.added), parse_days(&self.removed));
        let mut rule = match (self.weekdays.is_empty(), added_days.is_empty()) {
            (true, false) if removed_days.is_empty() => return self.with_times(Rule::Days(added_days)),
            _ => Rule::Weekdays(self.weekdays.clone()),
        };
        if !removed_days.is_empty() {
            rule = Rule::All(vec![rule, Rule::Not(Box::new(Rule::Days(removed_days)))]);
        }
        if !added_days.is_empty() {
            rule = Rule::Any(vec![rule, Rule::Days(added_days)]);
        }
        self.with_times(rule)
    }

    fn with_times(&self, rule: Rule) -> Rule {
        let times: Vec<String> =
            self.times.split(['\n', ',']).map(str::trim).filter(|span| !span.is_empty()).map(str::to_owned).collect();
        if times.is_empty() { rule } else { Rule::All(vec![rule, Rule::Times(times)]) }
    }
}

fn day_lines(days: &[Day]) -> String {
    let line = |day: &Day| match day {
        Day::Date(date) => date.clone(),
        Day::Named { date, name } => format!("{date} {name}"),
    };
    days.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn parse_days(text: &str) -> Vec<Day> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let day = |line: &str| {
        let (date, name) = split_day(line);
        if name.is_empty() { Day::Date(date) } else { Day::Named { date, name: name.to_owned() } }
    };
    lines.map(day).collect()
}

/// Splits a line into its day or span, and the name of the day. A span may have blanks around its dots, as in the rule of a calendar:
/// without its second date it would be a single day.
fn split_day(line: &str) -> (String, &str) {
    let first_blank = |text: &str| text.find(char::is_whitespace).unwrap_or(text.len());
    if let Some((first, rest)) = line.split_once("..")
        && !first.trim_end().contains(char::is_whitespace)
    {
        let rest = rest.trim_start();
        let (last, name) = rest.split_at(first_blank(rest));
        return (format!("{}..{last}", first.trim_end()), name.trim());
    }
    let (date, name) = line.split_at(first_blank(line));
    (date.to_owned(), name.trim())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::texts::Lang;
    use super::*;

    #[test]
    fn rules_go_into_the_fields_and_back() {
        for rule in [
            json!({"weekdays": ["mon", "fri"]}),
            json!({"days": ["2026-10-01..2026-10-07", {"date": "2026-12-25", "name": "Christmas Day"}]}),
            json!({"all": [{"weekdays": ["mon"]}, {"not": {"days": ["2026-01-05"]}}]}),
            json!({"any": [{"all": [{"weekdays": ["mon"]}, {"not": {"days": ["2026-01-05"]}}]}, {"days": ["2026-02-28"]}]}),
            json!({"all": [{"weekdays": ["sat", "sun"]}, {"times": ["22:00-06:00"]}]}),
        ] {
            let read: Rule = serde_json::from_value(rule.clone()).unwrap();
            let days = CalendarDays::from_rule(&read).unwrap();
            assert_eq!(serde_json::to_value(days.rule()).unwrap(), rule);
        }
        let other = serde_json::from_value(json!({"not": {"weekdays": ["sun"]}})).unwrap();
        assert_eq!(CalendarDays::from_rule(&other), None);
    }

    #[test]
    fn a_span_with_blanks_around_its_dots_stays_a_span() {
        let week = |name: &str| json!({"date": "2026-10-01..2026-10-07", "name": name});
        for (line, day) in [
            ("2026-10-01 .. 2026-10-07", json!("2026-10-01..2026-10-07")),
            ("2026-10-01.. 2026-10-07 Golden Week", week("Golden Week")),
            (" 2026-10-01 ..2026-10-07\tto .. be", week("to .. be")),
            ("2026-10-01 from 8 .. 10", json!({"date": "2026-10-01", "name": "from 8 .. 10"})),
            ("2026-10-01 ..", json!("2026-10-01..")),
        ] {
            assert_eq!(serde_json::to_value(parse_days(line)).unwrap(), json!([day]), "{line}");
        }
        // The API accepts such blanks, and the form must not change the calendar.
        let rule: Rule = serde_json::from_value(json!({"days": ["2026-10-01 .. 2026-10-07"]})).unwrap();
        let expected: Rule = serde_json::from_value(json!({"days": ["2026-10-01..2026-10-07"]})).unwrap();
        assert_eq!(CalendarDays::from_rule(&rule).unwrap().rule(), expected);
    }

    #[test]
    fn picked_days_are_added_to_their_lists() {
        let fields = Fields::from([
            ("weekday.mon", "1"),
            ("added", "2026-01-01"),
            ("pick.0.from", "2026-10-01"),
            ("pick.0.to", "2026-10-07"),
            ("pick.0.name", "Golden Week"),
            ("pick.0.kind", "out"),
            ("pick.1.from", "2026-02-28"),
            ("pick.1.kind", "in"),
        ]);
        let days = CalendarDays::from_fields(&fields);
        assert_eq!(
            (days.added.as_str(), days.removed.as_str()),
            ("2026-01-01\n2026-02-28", "2026-10-01..2026-10-07 Golden Week")
        );
        assert_eq!(days.weekdays(Lang::En.texts()).iter().filter(|(.., chosen)| *chosen).count(), 1);
    }
}
