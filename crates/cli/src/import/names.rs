//! The names of imported jobs.

use std::collections::BTreeSet;

use rondel_core::name::NAME_LEN_MAX;

/// Maximum length of the prefix and the text of a name together; a hash or a number may follow.
const STEM_LEN_MAX: usize = NAME_LEN_MAX - 10;
/// Maximum length of a prefix: the rest of a name needs room too.
const PREFIX_LEN_MAX: usize = 40;

/// The names that are taken, and the prefix of all names.
#[derive(Debug, Default)]
pub(super) struct Names {
    prefix: String,
    used_names: BTreeSet<String>,
    /// The first identity of each job that has a name.
    named_identities: BTreeSet<String>,
}

/// Checks that names can begin with this text.
///
/// # Errors
/// A sentence with what is allowed.
pub(super) fn check_prefix(prefix: &str) -> Result<(), String> {
    let is_name_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    let has_valid_start = prefix.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if has_valid_start && prefix.len() <= PREFIX_LEN_MAX && prefix.chars().all(is_name_char) {
        return Ok(());
    }
    Err(format!(
        "no name begins with {prefix:?}: 1 to {PREFIX_LEN_MAX} of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit, \
         such as web1-"
    ))
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..Self::default() }
    }

    /// A name that no other job has: the prefix, and the letters, digits and dashes of the text. `identities` are texts that
    /// distinguish the job from others in its source. If the name is taken or cut, a hash of the first identity is appended,
    /// so that the name does not depend on other jobs. If another job has the same first identity, the hash of the next
    /// identity is used. A number is appended only if all these names are taken.
    pub(super) fn unique_name(&mut self, text: &str, identities: &[&str]) -> String {
        let free_len = self.free_len();
        let stem = format!("{}{}", self.prefix, cut_slug(&slug(text), free_len));
        let hashed_names: Vec<String> =
            identities.iter().map(|identity| format!("{stem}-{:08x}", hash(identity))).collect();
        let is_identity_taken =
            identities.first().is_some_and(|identity| !self.named_identities.insert((*identity).to_owned()));
        let skipped_count = usize::from(is_identity_taken && identities.len() > 1);
        let last_hashed_name = hashed_names.last().unwrap_or(&stem).clone();
        let fits_whole = text.trim().chars().count() <= free_len;
        let plain_name = fits_whole.then_some(stem);
        let numbered_names = (2_u32..).map(|number| format!("{last_hashed_name}-{number}"));
        let mut candidates =
            plain_name.into_iter().chain(hashed_names.into_iter().skip(skipped_count)).chain(numbered_names);
        candidates.find(|name| self.used_names.insert(name.clone())).unwrap_or_default()
    }

    /// The name of a job that has its own id: the text, cut if it is long, and the id.
    pub(super) fn unique_name_with_id(&mut self, text: &str, id: &str) -> String {
        let free_len = self.free_len().saturating_sub(id.len() + 1);
        self.unique_name(&format!("{}-{id}", cut_slug(&slug(text), free_len)), &[id])
    }

    const fn free_len(&self) -> usize {
        STEM_LEN_MAX.saturating_sub(self.prefix.len())
    }
}

/// Turns any text into a name; never empty.
pub(super) fn slug(text: &str) -> String {
    let mut slug = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        match c {
            'a'..='z' | '0'..='9' | '.' | '_' => slug.push(c),
            _ if slug.ends_with('-') => {}
            _ => slug.push('-'),
        }
    }
    let slug = cut_slug(slug.trim_matches(['-', '.', '_']), STEM_LEN_MAX);
    if slug.is_empty() { "job".to_owned() } else { slug }
}

fn cut_slug(slug: &str, len: usize) -> String {
    let slug_start: String = slug.chars().take(len).collect();
    slug_start.trim_end_matches(['-', '.', '_']).to_owned()
}

/// FNV-1a: a text has the same hash in each import.
pub(super) fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_any_text_and_each_once() {
        let mut names = Names::default();
        for (text, name) in [
            ("Backup.SH", "backup.sh"),
            ("backup.sh", "backup.sh-HASH"),
            ("每晚结算", "job"),
            ("  --x__", "x"),
            ("new", "new"),
            ("", "job-HASH"),
            (&"a".repeat(300), &format!("{}-HASH", "a".repeat(90))),
        ] {
            let expected = name.replace("HASH", &format!("{:08x}", hash(text)));
            let given = names.unique_name(text, &[text]);
            assert_eq!(given, expected, "{text:?}");
            assert!(given.len() <= NAME_LEN_MAX, "{given}");
        }
    }

    #[test]
    fn a_second_identity_counts_only_where_the_first_is_equal() {
        let mut names = Names::default();
        let given =
            [["a", "1"], ["a", "1"], ["b", "1"], ["a", "2"], ["a", "2"]].map(|both| names.unique_name("x", &both));
        let hashed = |text: &str| format!("x-{:08x}", hash(text));
        assert_eq!(given, ["x".to_owned(), hashed("1"), hashed("b"), hashed("2"), format!("{}-2", hashed("2"))]);
    }

    #[test]
    fn a_prefix_is_before_each_name_and_leaves_room_for_it() {
        let mut names = Names::new("web1-");
        assert_eq!([names.unique_name("x", &["x"]), names.unique_name_with_id("y", "7")], ["web1-x", "web1-y-7"]);
        let long = "a".repeat(300);
        let mut names = Names::new(&"p".repeat(PREFIX_LEN_MAX));
        for name in [
            names.unique_name(&long, &["1"]),
            names.unique_name(&long, &["2"]),
            names.unique_name_with_id(&long, "2147483647"),
        ] {
            rondel_core::name::check(&name).unwrap();
        }
        check_prefix("web1-").unwrap();
        for prefix in ["", "-a", "Web", "a b", "ä", &"a".repeat(PREFIX_LEN_MAX + 1)] {
            let error = check_prefix(prefix).unwrap_err();
            assert!(error.contains(&format!("{prefix:?}")) && error.contains("such as web1-"), "{error}");
        }
    }

    #[test]
    fn long_names_keep_the_id_whatever_else_is_there() {
        let long = "a".repeat(95);
        let mut both = Names::default();
        let names = [both.unique_name_with_id(&long, "1"), both.unique_name_with_id(&long, "2147483647")];
        assert_eq!(Names::default().unique_name_with_id(&long, "2147483647"), names[1], "without the first one, too");
        assert!(names[0].ends_with("a-1") && names[1].ends_with("a-2147483647"), "{names:?}");
        for name in names {
            rondel_core::name::check(&name).unwrap();
        }
        assert_eq!(Names::default().unique_name_with_id("数据", "7"), "job-7");
    }
}
