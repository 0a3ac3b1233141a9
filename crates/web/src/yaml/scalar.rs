//! The values of plain scalars, according to the core schema of YAML 1.2.

use serde_json::{Number, Value};

/// The value of a plain scalar, or why JSON cannot express it.
pub(super) fn parse_plain(text: &str) -> Result<Value, String> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" | ".nan" | ".NaN"
        | ".NAN" => return Err(format!("{text} is not a number in JSON; write \"{text}\" for the text")),
        plain_text => parse_number(plain_text).map_or_else(|| Value::String(plain_text.to_owned()), Value::Number),
    })
}

fn parse_number(text: &str) -> Option<Number> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+')).map(Number::from);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return u64::from_str_radix(digits, 8).ok().filter(|_| !digits.starts_with('+')).map(Number::from);
    }
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !body.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if body.bytes().all(|byte| byte.is_ascii_digit()) {
        let without_plus = text.strip_prefix('+').unwrap_or(text);
        let integer =
            without_plus.parse::<u64>().map(Number::from).or_else(|_| without_plus.parse::<i64>().map(Number::from));
        return integer.ok().or_else(|| parse_float(text));
    }
    is_float(body).then(|| parse_float(text)).flatten()
}

fn parse_float(text: &str) -> Option<Number> {
    text.parse::<f64>().ok().and_then(Number::from_f64)
}

/// Whether a text is an unsigned float: `1.5`, `.5`, `1.`, `1e3`.
fn is_float(body: &str) -> bool {
    let (mantissa, exponent) = match body.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (body, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (integer_part, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let has_digits = !integer_part.is_empty() || !fraction.is_empty();
    let is_exponent_valid = exponent.is_none_or(|exponent| {
        let body = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !body.is_empty() && digits(body)
    });
    has_digits && digits(integer_part) && digits(fraction) && is_exponent_valid
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_are_those_of_the_core_schema() {
        for (text, value) in [
            ("", json!(null)),
            ("~", json!(null)),
            ("true", json!(true)),
            ("yes", json!("yes")),
            ("on", json!("on")),
            ("12", json!(12)),
            ("-7", json!(-7)),
            ("+7", json!(7)),
            ("0x1F", json!(31)),
            ("0o17", json!(15)),
            ("18446744073709551615", json!(u64::MAX)),
            ("1.5", json!(1.5)),
            ("1e3", json!(1000.0)),
            (".5", json!(0.5)),
            ("1.2.3", json!("1.2.3")),
            ("30s", json!("30s")),
            ("1e", json!("1e")),
            (".", json!(".")),
            ("-", json!("-")),
            ("0 30 2 * * ?", json!("0 30 2 * * ?")),
            ("2026-03-08T07:00:00Z", json!("2026-03-08T07:00:00Z")),
        ] {
            assert_eq!(parse_plain(text), Ok(value), "{text:?}");
        }
        assert!(parse_plain(".nan").is_err());
    }
}
