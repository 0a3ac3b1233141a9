//! Labels of jobs. Users group and find jobs by their labels.

use std::collections::BTreeMap;

use crate::field_error::FieldError;
use crate::plain;

/// Maximum number of labels of a job.
pub const LABEL_COUNT_MAX: usize = 20;
/// The longest key, in characters.
pub const LABEL_KEY_LEN_MAX: usize = 63;
/// The longest value, in characters.
pub const LABEL_VALUE_LEN_MAX: usize = 100;
/// The label with the id that a job had in XXL-JOB. Consistent hash uses it as the job's key.
pub const XXL_JOB_ID: &str = "xxl-job-id";
/// The label with the address of an XXL-JOB executor. Consistent hash places the executor by this address, as XXL-JOB does.
pub const XXL_ADDRESS: &str = "xxl-address";
/// Pattern of valid keys.
pub(crate) const LABEL_KEY_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$";

/// The values of labels, keyed by the labels' keys.
pub type Labels = BTreeMap<String, String>;

/// Checks the key of a label.
///
/// # Errors
/// A sentence that describes the allowed form.
pub fn check_key(key: &str) -> Result<(), String> {
    let has_valid_start = key.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_allowed_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
    if has_valid_start && key.len() <= LABEL_KEY_LEN_MAX && key.chars().all(is_allowed_char) {
        return Ok(());
    }
    Err(format!(
        "{key:?} is not a key of a label: 1 to {LABEL_KEY_LEN_MAX} of a-z, A-Z, 0-9, '.', '_', '/' and '-', a letter or a digit first"
    ))
}

/// Checks the value of a label.
///
/// # Errors
/// A sentence that describes the allowed form.
pub fn check_value(value: &str) -> Result<(), String> {
    let len = value.chars().count();
    if len == 0 || len > LABEL_VALUE_LEN_MAX {
        return Err(format!("{len} characters; a value has 1 to {LABEL_VALUE_LEN_MAX}"));
    }
    if value.trim() != value || value.chars().any(|c| plain::is_control_or_invisible(c) && !plain::is_joiner(c)) {
        return Err("has blanks around it, or control or invisible characters in it".to_owned());
    }
    Ok(())
}

pub(crate) fn check(labels: &Labels, errors: &mut Vec<FieldError>) {
    if labels.len() > LABEL_COUNT_MAX {
        errors.push(FieldError::new(
            "/labels",
            format!("{} labels; at most {LABEL_COUNT_MAX} are allowed", labels.len()),
        ));
        return;
    }
    for (key, value) in labels {
        // A wrong key is not put into the pointer, because it may contain anything.
        if let Err(message) = check_key(key) {
            errors.push(FieldError::new("/labels", message));
        } else if let Err(message) = check_value(value) {
            errors.push(FieldError::new(format!("/labels/{}", key.replace('/', "~1")), message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_bounded() {
        for good in ["team", "a", "app.kubernetes.io/name", "A-1_b", &"k".repeat(63)] {
            assert!(check_key(good).is_ok(), "{good}");
        }
        for bad in ["", ".a", "a b", "a=b", "团队", &"k".repeat(64)] {
            assert!(check_key(bad).is_err(), "{bad}");
        }
        for good in ["pay", "支付 组", "a=b,c", &"é".repeat(100)] {
            assert!(check_value(good).is_ok(), "{good}");
        }
        for bad in ["", " a", "a\nb", "a\u{202e}b", &"é".repeat(101)] {
            assert!(check_value(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn errors_name_the_label() {
        let check = |labels: Labels| {
            let mut errors = Vec::new();
            check(&labels, &mut errors);
            errors.into_iter().map(|error| error.pointer).collect::<Vec<_>>()
        };
        assert_eq!(check([("a/b".to_owned(), String::new())].into()), ["/labels/a~1b"]);
        assert_eq!(check([("a b".to_owned(), "x".to_owned())].into()), ["/labels"]);
        assert_eq!(check((0..21).map(|n| (n.to_string(), "x".to_owned())).collect()), ["/labels"]);
        assert!(check((0..20).map(|n| (n.to_string(), "x".to_owned())).collect()).is_empty());
    }
}
