//! Names that are close to a misspelt one.

use strsim::osa_distance;

/// Maximum number of edits between the unknown name and a similar name.
const DISTANCE_MAX: usize = 2;
/// Maximum number of names to suggest.
const COUNT_MAX: usize = 3;

/// Up to [`COUNT_MAX`] names that are close to `unknown_name`, the nearest first.
pub(super) fn similar<'a>(unknown_name: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distances: Vec<(usize, &str)> = names
        .filter(|name| *name != unknown_name)
        .map(|name| (if name.starts_with(unknown_name) { 1 } else { osa_distance(unknown_name, name) }, name))
        .filter(|(distance, _)| *distance <= DISTANCE_MAX.min(unknown_name.chars().count() / 2))
        .collect();
    distances.sort_unstable();
    distances.into_iter().take(COUNT_MAX).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_found() {
        let names = ["report", "report.daily", "import", "repair", "x"];
        let near = |unknown_name| similar(unknown_name, names.into_iter());
        assert_eq!(near("reprot"), ["report"]);
        assert_eq!(near("report.dail"), ["report.daily"]);
        assert_eq!(near("repor"), ["report", "report.daily", "repair"]);
        assert_eq!(near("orders"), [""; 0]);
        assert_eq!(near("y"), [""; 0]);
    }
}
