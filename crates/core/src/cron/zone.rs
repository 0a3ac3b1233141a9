//! Time zones by name.

pub use chrono_tz::Tz;

/// How much of an unknown name an error repeats, in characters.
const NAME_LENGTH_MAX: usize = 64;

/// A name that is not a time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not an IANA time zone; {hint}")]
pub struct ZoneError {
    /// The name, shortened if it is long.
    pub name: String,
    /// What to write instead.
    pub hint: String,
}

/// Finds a time zone by its exact IANA name.
///
/// ```
/// use rondel_core::cron::parse_zone;
///
/// assert_eq!(parse_zone("Asia/Shanghai")?.name(), "Asia/Shanghai");
/// let unknown = parse_zone("shanghai").unwrap_err();
/// assert_eq!(unknown.to_string(), "\"shanghai\" is not an IANA time zone; did you mean Asia/Shanghai");
/// # Ok::<(), rondel_core::cron::ZoneError>(())
/// ```
///
/// # Errors
/// [`ZoneError`] for any other name. It suggests the zone with the same name in other case, the zone of a city with that name, or the
/// zone that an offset such as `GMT+8` means.
pub fn parse_zone(name: &str) -> Result<Tz, ZoneError> {
    name.parse().map_err(|_| ZoneError { name: name.chars().take(NAME_LENGTH_MAX).collect(), hint: suggest(name) })
}

/// The zone that a user means by `GMT+8`: eight hours ahead of UTC. Its IANA name, `Etc/GMT-8`, has the opposite sign.
fn zone_by_offset(name: &str) -> Option<Tz> {
    let uppercase = name.trim().to_ascii_uppercase();
    let offset = ["GMT", "UTC"].iter().find_map(|zone| uppercase.strip_prefix(zone))?;
    let (sign, hours) = (offset.get(..1)?, offset.get(1..)?);
    let hours: u8 = hours.strip_suffix(":00").unwrap_or(hours).parse().ok()?;
    let opposite_sign = match sign {
        "+" => '-',
        "-" => '+',
        _ => return None,
    };
    format!("Etc/GMT{opposite_sign}{hours}").parse().ok()
}

fn suggest(name: &str) -> String {
    if let Some(zone) = zone_by_offset(name) {
        return format!(
            "did you mean {}, whose sign is the other way round; better write the name of a city",
            zone.name()
        );
    }
    let city_name = name.trim().replace(' ', "_");
    let is_meant = |zone: &&Tz| {
        let city = zone.name().rsplit('/').next().unwrap_or_default();
        zone.name().eq_ignore_ascii_case(&city_name) || city.eq_ignore_ascii_case(&city_name)
    };
    match chrono_tz::TZ_VARIANTS.iter().find(is_meant) {
        Some(zone) => format!("did you mean {}", zone.name()),
        None => "write a name such as Europe/London, Asia/Shanghai or UTC".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_not_taken_for_their_opposites() {
        for (name, zone) in
            [("GMT+8", "Etc/GMT-8"), ("utc+08:00", "Etc/GMT-8"), ("GMT-5", "Etc/GMT+5"), ("UTC+0", "Etc/GMT-0")]
        {
            let hint = parse_zone(name).unwrap_err().hint;
            assert!(hint.starts_with(&format!("did you mean {zone}, whose sign")), "{name}: {hint}");
        }
        for name in ["GMT+99", "GMT+8:30", "UTC8", "GMT+", "GMTé"] {
            assert!(!parse_zone(name).unwrap_err().hint.contains("sign"), "{name}");
        }
    }
}
