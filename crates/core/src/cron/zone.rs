//! Time zones by name.

pub use chrono_tz::Tz;

/// How much of an unknown name an error repeats, in characters.
const NAME_LENGTH_MAX: usize = 64;

/// A name that is not a time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not an IANA time zone; {hint}")]
pub struct ZoneError {
    /// The name, shortened where it is long.
    pub name: String,
    /// What to write instead.
    pub hint: String,
}

/// Finds a time zone by its IANA name, written exactly.
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
/// [`ZoneError`] where there is none; it proposes the zone of the same name in other letters, or of that city.
pub fn parse_zone(name: &str) -> Result<Tz, ZoneError> {
    name.parse().map_err(|_| ZoneError { name: name.chars().take(NAME_LENGTH_MAX).collect(), hint: hint(name) })
}

fn hint(name: &str) -> String {
    let wanted = name.trim().replace(' ', "_");
    let is_meant = |zone: &&Tz| {
        let city = zone.name().rsplit('/').next().unwrap_or_default();
        zone.name().eq_ignore_ascii_case(&wanted) || city.eq_ignore_ascii_case(&wanted)
    };
    match chrono_tz::TZ_VARIANTS.iter().find(is_meant) {
        Some(zone) => format!("did you mean {}", zone.name()),
        None => "write a name such as Europe/London, Asia/Shanghai or UTC".to_owned(),
    }
}
