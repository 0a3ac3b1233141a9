//! Sizes of files and disks as text: `10GiB`.

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// Reads a size.
///
/// # Errors
/// A sentence with the text and an example.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let parsed_size = UNITS.iter().find_map(|(unit, shift)| {
        let number: u64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(1 << shift)
    });
    parsed_size.ok_or_else(|| {
        let shown_text: String = text.chars().take(40).collect();
        format!("{shown_text:?} is not a size such as 64KiB, 10MiB or 5GiB")
    })
}

/// The shortest text that gives the same size.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let is_whole_number = |shift: u32| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift);
    let (unit, shift) = UNITS.iter().find(|(_, shift)| is_whole_number(*shift)).unwrap_or(&("B", 0));
    format!("{}{unit}", bytes >> shift)
}

/// For `#[serde(with = "…")]`: an optional size, written as text.
pub(crate) mod optional_text {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde gives a reference")]
    pub(crate) fn serialize<S: Serializer>(size: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match size {
            Some(bytes) => serializer.serialize_some(&super::format_size(*bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| super::parse_size(&text).map_err(serde::de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_the_same_after_it_was_written() {
        for (text, bytes) in [("10GiB", 10 << 30), ("1536MiB", 1536 << 20), ("1TiB", 1 << 40), ("1B", 1), ("0B", 0)] {
            assert_eq!((parse_size(text), format_size(bytes).as_str()), (Ok(bytes), text));
        }
        for wrong in ["", "10", "GiB", "-1GiB", "1.5GiB", "10GB", "99999999999999TiB"] {
            assert!(parse_size(wrong).is_err_and(|message| message.contains("such as 64KiB")), "{wrong}");
        }
    }
}
