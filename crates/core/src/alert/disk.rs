//! How much of a disk must be free, as text: `10%` or `20GiB`.

use super::Condition;
use crate::size::{format_size, parse_size};

/// Reads the bound of a rule about disks.
///
/// # Errors
/// A sentence with the text and an example.
pub fn parse(text: &str) -> Result<Condition, String> {
    let text = text.trim();
    let format_error = || {
        let shown_text: String = text.chars().take(40).collect();
        format!("{shown_text:?} is neither a percentage nor a size, such as 10% or 20GiB")
    };
    match text.strip_suffix('%') {
        Some(number) => {
            let percent = number.trim().parse().map_err(|_| format_error())?;
            Ok(Condition::DiskLow { free_percent: Some(percent), free: None })
        }
        None => {
            let free_bytes = parse_size(text).map_err(|_| format_error())?;
            Ok(Condition::DiskLow { free_percent: None, free: Some(free_bytes) })
        }
    }
}

/// The text that [`parse`] reads as this bound.
#[must_use]
pub fn format(free_percent: Option<u32>, free: Option<u64>) -> String {
    match (free_percent, free) {
        (None, Some(bytes)) => format_size(bytes),
        (percent, _) => format!("{}%", percent.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_percentage_or_a_size() {
        for text in ["10%", "20GiB"] {
            let Ok(Condition::DiskLow { free_percent, free }) = parse(text) else { panic!("{text}") };
            assert_eq!(format(free_percent, free), text);
        }
        for wrong in ["", "10", "%", "-1%", "10.5%", "20GB"] {
            assert!(parse(wrong).is_err_and(|message| message.contains("such as 10% or 20GiB")), "{wrong}");
        }
    }
}
