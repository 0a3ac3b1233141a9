//! Zones as Java names them.

/// Java's short ids (`ZoneId.SHORT_IDS`). Outside of Java, they name another zone or none.
const SHORT_IDS: [(&str, &str); 28] = [
    ("ACT", "Australia/Darwin"),
    ("AET", "Australia/Sydney"),
    ("AGT", "America/Argentina/Buenos_Aires"),
    ("ART", "Africa/Cairo"),
    ("AST", "America/Anchorage"),
    ("BET", "America/Sao_Paulo"),
    ("BST", "Asia/Dhaka"),
    ("CAT", "Africa/Harare"),
    ("CNT", "America/St_Johns"),
    ("CST", "America/Chicago"),
    ("CTT", "Asia/Shanghai"),
    ("EAT", "Africa/Addis_Ababa"),
    ("ECT", "Europe/Paris"),
    ("EST", "America/Panama"),
    ("HST", "Pacific/Honolulu"),
    ("IET", "America/Indiana/Indianapolis"),
    ("IST", "Asia/Kolkata"),
    ("JST", "Asia/Tokyo"),
    ("MIT", "Pacific/Apia"),
    ("MST", "America/Phoenix"),
    ("NET", "Asia/Yerevan"),
    ("NST", "Pacific/Auckland"),
    ("PLT", "Asia/Karachi"),
    ("PNT", "America/Phoenix"),
    ("PRT", "America/Puerto_Rico"),
    ("PST", "America/Los_Angeles"),
    ("SST", "Pacific/Guadalcanal"),
    ("VST", "Asia/Ho_Chi_Minh"),
];

/// The zone that a short id of Java means.
pub(super) fn zone_of_short_id(zone: &str) -> Option<&'static str> {
    SHORT_IDS.iter().find(|(id, _)| *id == zone).map(|(_, zone)| *zone)
}

/// Converts a zone of Java: `GMT+08:00` in Java is `Etc/GMT-8` elsewhere.
pub(super) fn zone_of_java(zone: &str) -> String {
    if let Some(zone_name) = zone_of_short_id(zone) {
        return zone_name.to_owned();
    }
    let offset_with_sign = |sign: char| {
        Some((sign, zone.strip_prefix("GMT")?.strip_prefix(sign)?.strip_suffix(":00")?.parse::<u8>().ok()?))
    };
    match offset_with_sign('+').or_else(|| offset_with_sign('-')) {
        Some((_, 0)) => "UTC".to_owned(),
        Some(('+', hours)) => format!("Etc/GMT-{hours}"),
        Some((_, hours)) => format!("Etc/GMT+{hours}"),
        None => zone.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::cron::parse_zone;

    use super::*;

    #[test]
    fn zones_of_java_are_zones_here() {
        for (java, zone) in [
            ("PST", "America/Los_Angeles"),
            ("EST", "America/Panama"),
            ("MST", "America/Phoenix"),
            ("IST", "Asia/Kolkata"),
            ("GMT+08:00", "Etc/GMT-8"),
            ("GMT-03:00", "Etc/GMT+3"),
            ("GMT+00:00", "UTC"),
            ("Europe/Berlin", "Europe/Berlin"),
        ] {
            assert_eq!(zone_of_java(java), zone);
        }
        for (id, zone) in SHORT_IDS {
            parse_zone(zone).unwrap_or_else(|error| panic!("{id}: {error}"));
        }
    }
}
