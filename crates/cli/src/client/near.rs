//! Names that somebody may have meant.

/// How many letters may be wrong.
const DISTANCE_MAX: usize = 2;
/// How many names are proposed.
const COUNT_MAX: usize = 3;

/// Those of the names that are near to the one that is not there, the nearest first.
pub(super) fn near<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<(usize, &str)> = names
        .filter(|name| *name != wanted)
        .map(|name| (if name.starts_with(wanted) { 1 } else { distance(wanted, name) }, name))
        .filter(|(distance, _)| *distance <= DISTANCE_MAX.min(wanted.chars().count() / 2))
        .collect();
    found.sort_unstable();
    found.into_iter().take(COUNT_MAX).map(|(_, name)| name).collect()
}

/// How many letters must be put in, taken out, replaced, or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    if from.len().abs_diff(to.len()) > DISTANCE_MAX {
        return usize::MAX;
    }
    let (mut before, mut last): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=to.len()).collect());
    for (i, a) in from.iter().enumerate() {
        let mut line = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let mut best = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(line[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                best = best.min(before[j - 1] + 1);
            }
            line.push(best);
        }
        before = std::mem::replace(&mut last, line);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_near() {
        let names = ["report", "report.daily", "import", "repair", "x"];
        let near = |wanted| near(wanted, names.into_iter());
        assert_eq!(near("reprot"), ["report"]);
        assert_eq!(near("report.dail"), ["report.daily"]);
        assert_eq!(near("repor"), ["report", "report.daily"]);
        assert_eq!(near("orders"), [""; 0]);
        assert_eq!(near("y"), [""; 0]);
    }
}
