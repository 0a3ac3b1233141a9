//! Parses text into a compiled expression: chooses the dialect, and reads the fields in their order.

use super::days::DayRule;
use super::dst::HourForm;
use super::error::{CronError, CronField};
use super::field::{Bits, QUARTZ, UNIX};
use super::search::Fields;
use super::token::Token;
use super::{CronExpr, Dialect, EXPRESSION_LENGTH_MAX};

/// Each macro with the expression that it stands for.
const MACROS: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

const MACRO_NAMES: &str = "@hourly, @daily, @midnight, @weekly, @monthly, @yearly and @annually";

/// A compiled expression, without its text.
struct CompiledExpression {
    dialect: Dialect,
    hour_form: HourForm,
    fields: Fields,
}

pub(super) fn expression(text: &str) -> Result<CronExpr, CronError> {
    let compiled = match fields_of(text)?.as_slice() {
        [name] if name.text.starts_with('@') => read_macro(*name),
        &[minute, hour, day, month, weekday] => read_unix([minute, hour, day, month, weekday]),
        &[second, minute, hour, day, month, weekday] => read_quartz([second, minute, hour, day, month, weekday], None),
        &[second, minute, hour, day, month, weekday, year] => {
            read_quartz([second, minute, hour, day, month, weekday], Some(year))
        }
        other => {
            Err(wrong_count(text, other, "5 fields (Unix cron), 6 or 7 fields (Quartz) or a macro such as @daily"))
        }
    }?;
    Ok(to_expression(text, compiled))
}

pub(super) fn quartz_expression(text: &str) -> Result<CronExpr, CronError> {
    let compiled = match fields_of(text)?.as_slice() {
        &[second, minute, hour, day, month, weekday] => read_quartz([second, minute, hour, day, month, weekday], None),
        &[second, minute, hour, day, month, weekday, year] => {
            read_quartz([second, minute, hour, day, month, weekday], Some(year))
        }
        other => Err(wrong_count(text, other, "6 or 7 fields (Quartz)")),
    }?;
    Ok(to_expression(text, compiled))
}

fn fields_of(text: &str) -> Result<Vec<Token<'_>>, CronError> {
    let whole_text = Token::of_text(text);
    if text.chars().count() > EXPRESSION_LENGTH_MAX {
        return Err(
            whole_text.refuse(CronField::Expression, format!("a text of up to {EXPRESSION_LENGTH_MAX} characters"))
        );
    }
    Ok(whole_text.fields())
}

/// The error for a wrong number of fields. It points at the first field beyond the seventh, or else at the whole text.
fn wrong_count(text: &str, fields: &[Token<'_>], allowed: &str) -> CronError {
    let count = fields.len();
    let wrong_token = fields.get(7).copied().unwrap_or(Token::of_text(text));
    wrong_token.refuse(CronField::Expression, format!("{allowed}; it has {count}"))
}

fn to_expression(text: &str, CompiledExpression { dialect, hour_form, fields }: CompiledExpression) -> CronExpr {
    CronExpr { source: text.to_owned(), dialect, hour_form, fields }
}

fn read_macro(name: Token<'_>) -> Result<CompiledExpression, CronError> {
    let macro_and_expression = MACROS.iter().find(|(macro_name, _)| macro_name.eq_ignore_ascii_case(name.text));
    let Some((_, expanded_text)) = macro_and_expression else {
        return Err(name.refuse(CronField::Expression, MACRO_NAMES));
    };
    match Token::of_text(expanded_text).fields().as_slice() {
        &[minute, hour, day, month, weekday] => {
            let compiled = read_unix([minute, hour, day, month, weekday])?;
            Ok(CompiledExpression { dialect: Dialect::Macro, ..compiled })
        }
        _ => Err(name.refuse(CronField::Expression, MACRO_NAMES)),
    }
}

fn read_quartz(fields: [Token<'_>; 6], year: Option<Token<'_>>) -> Result<CompiledExpression, CronError> {
    let [second, minute, hour, day, month, weekday] = fields;
    let specs = &QUARTZ;
    let seconds = specs[0].read(second)?.bits_below_64();
    let minutes = specs[1].read(minute)?.bits_below_64();
    let hours = specs[2].read(hour)?.bits_below_64();
    let months = specs[4].read(month)?.bits_below_64();
    let days = DayRule::read_quartz([&specs[3], &specs[5]], [day, weekday])?;
    let years = specs[6].read(year.unwrap_or(Token::of_text("*")))?;
    let dialect = if year.is_some() { Dialect::Quartz7 } else { Dialect::Quartz6 };
    Ok(CompiledExpression {
        dialect,
        hour_form: hour_form(hour),
        fields: Fields { seconds, minutes, hours, months, days, years },
    })
}

fn read_unix([minute, hour, day, month, weekday]: [Token<'_>; 5]) -> Result<CompiledExpression, CronError> {
    let mut second_zero = Bits::default();
    second_zero.insert(0);
    let fields = Fields {
        seconds: second_zero.bits_below_64(),
        minutes: UNIX[0].read(minute)?.bits_below_64(),
        hours: UNIX[1].read(hour)?.bits_below_64(),
        months: UNIX[3].read(month)?.bits_below_64(),
        days: DayRule::read_unix([&UNIX[2], &UNIX[4]], [day, weekday])?,
        years: QUARTZ[6].read(Token::of_text("*"))?,
    };
    Ok(CompiledExpression { dialect: Dialect::Unix5, hour_form: hour_form(hour), fields })
}

fn hour_form(hour: Token<'_>) -> HourForm {
    let has_fixed_hours = hour.text.bytes().all(|byte| byte.is_ascii_digit() || byte == b',');
    if has_fixed_hours { HourForm::WallClock } else { HourForm::Interval }
}
