//! The text of the weekly report, in both languages.

use rondel_core::words::Lang;

use super::{Failure, Row};

/// The data of the report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Week<'a> {
    /// The seven days of the report.
    pub(super) this_week: Option<&'a Row>,
    /// The seven days before.
    pub(super) previous_week: Option<&'a Row>,
    /// The most frequent failures.
    pub(super) failures: &'a [Failure],
}

/// A few lines: the number of runs, the shares that succeeded and that started on time, and the number of runs and the succeeded share of the
/// week before.
pub(super) fn summary_text(week: &Week<'_>, lang: Lang) -> String {
    let row_with_runs = week.this_week.filter(|row| row.verdicts.total() > 0);
    let Some(row) = row_with_runs else {
        return match lang {
            Lang::En => "No run was planned in this week.".to_owned(),
            Lang::Zh => "本周没有计划的运行。".to_owned(),
        };
    };
    let mut lines = vec![counts_text(row, lang), shares_text(row, lang)];
    if let Some(previous_row) = week.previous_week.filter(|row| row.verdicts.total() > 0) {
        let (runs, succeeded) = (previous_row.verdicts.total(), percent(previous_row.shares.succeeded));
        lines.push(match lang {
            Lang::En => format!("The week before: {runs} runs, {succeeded} succeeded."),
            Lang::Zh => format!("上一周：运行 {runs} 次，成功率 {succeeded}。"),
        });
    }
    if week.failures.is_empty() {
        lines.push(match lang {
            Lang::En => "No run failed.".to_owned(),
            Lang::Zh => "没有失败的运行。".to_owned(),
        });
    }
    lines.join("\n")
}

fn counts_text(row: &Row, lang: Lang) -> String {
    let (run_count, failed_count, skipped_count) =
        (row.verdicts.total(), row.verdicts.failure_count(), row.verdicts.skipped);
    match lang {
        Lang::En => format!("Runs: {run_count}. Failed: {failed_count}. Skipped: {skipped_count}."),
        Lang::Zh => format!("运行 {run_count} 次，失败 {failed_count} 次，跳过 {skipped_count} 次。"),
    }
}

fn shares_text(row: &Row, lang: Lang) -> String {
    let (succeeded, on_time) = (percent(row.shares.succeeded), percent(row.shares.on_time));
    match lang {
        Lang::En => format!("Succeeded: {succeeded}. On time: {on_time}."),
        Lang::Zh => format!("成功率 {succeeded}，准时率 {on_time}。"),
    }
}

/// A share as a percentage with one decimal; `–` if nothing was counted.
fn percent(per_mille: Option<u32>) -> String {
    per_mille.map_or_else(|| "–".to_owned(), |share| format!("{}.{} %", share / 10, share % 10))
}

#[cfg(test)]
mod tests {
    use rondel_core::Timestamp;
    use rondel_core::report::PerMilleShares;
    use rondel_core::sketch::Sketch;
    use rondel_store::rollups::Verdicts;

    use super::*;

    fn row(succeeded: u64, failed: u64) -> Row {
        Row {
            name: "default".to_owned(),
            app: None,
            at: Timestamp::EPOCH,
            verdicts: Verdicts { succeeded, failed, ..Verdicts::default() },
            durations: Sketch::default(),
            lateness: Sketch::default(),
            shares: PerMilleShares { succeeded: Some(995), on_time: None },
        }
    }

    #[test]
    fn a_week_is_a_few_lines_in_both_languages() {
        let (this, before, none) = (row(995, 5), row(10, 0), row(0, 0));
        let failures = [Failure { message: "exit status #".to_owned(), count: 5, ..Failure::default() }];
        let week = Week { this_week: Some(&this), previous_week: Some(&before), failures: &failures };
        assert_eq!(
            summary_text(&week, Lang::En),
            "Runs: 1000. Failed: 5. Skipped: 0.\nSucceeded: 99.5 %. On time: –.\nThe week before: 10 runs, 99.5 % succeeded."
        );
        assert!(summary_text(&week, Lang::Zh).contains("成功率 99.5 %"));
        let quiet = Week { this_week: Some(&none), previous_week: None, failures: &[] };
        assert_eq!(summary_text(&quiet, Lang::En), "No run was planned in this week.");
        let well = Week { this_week: Some(&before), previous_week: Some(&none), failures: &[] };
        assert!(summary_text(&well, Lang::En).ends_with("No run failed."));
    }
}
