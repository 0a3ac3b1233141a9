//! A type has its methods in the file that declares it and in at most one other. Code elsewhere that needs its data is a
//! function with the type as an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{files, root};

/// Maximum number of files with methods of a type, apart from the file that declares it.
const OTHER_COUNT_MAX: usize = 1;

/// The name after `keyword` at the start of a line, without the visibility before the keyword and generics after it.
fn name_after<'t>(line: &'t str, keyword: &str) -> Option<&'t str> {
    let visible = line
        .trim_start()
        .trim_start_matches("pub(crate) ")
        .trim_start_matches("pub(super) ")
        .trim_start_matches("pub ");
    let mut rest = visible.strip_prefix(keyword)?;
    if let Some(generic) = rest.strip_prefix('<') {
        let mut depth = 1;
        let end = generic.find(|letter| {
            depth += i32::from(letter == '<') - i32::from(letter == '>');
            depth == 0
        })?;
        rest = &generic[end + 1..];
    }
    let rest = rest.strip_prefix(' ')?;
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

/// The types that have methods in each text and are not declared there, with the files.
fn scattered<'t>(texts: &[(&Path, &'t str)]) -> BTreeMap<&'t str, BTreeSet<PathBuf>> {
    let mut elsewhere: BTreeMap<&str, BTreeSet<PathBuf>> = BTreeMap::new();
    for (file, text) in texts {
        let declared: BTreeSet<&str> =
            text.lines().filter_map(|line| name_after(line, "struct").or_else(|| name_after(line, "enum"))).collect();
        let has_methods =
            text.lines().filter(|line| !line.contains(" for ")).filter_map(|line| name_after(line, "impl"));
        for name in has_methods.filter(|name| !declared.contains(name)) {
            elsewhere.entry(name).or_default().insert(file.to_path_buf());
        }
    }
    elsewhere.retain(|_, files| files.len() > OTHER_COUNT_MAX);
    elsewhere
}

#[test]
fn the_methods_of_a_type_are_in_two_files_at_most() {
    let sources = files().into_iter().filter(|file| file.starts_with("crates/admin/src"));
    let sources = sources.filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    let texts: Vec<(PathBuf, String)> =
        sources.map(|file| (file.clone(), std::fs::read_to_string(root().join(&file)).expect("a source"))).collect();
    assert!(texts.len() > 100, "{} sources were found", texts.len());
    let texts: Vec<(&Path, &str)> = texts.iter().map(|(file, text)| (file.as_path(), text.as_str())).collect();
    let scattered = scattered(&texts);
    assert!(scattered.is_empty(), "methods in more than two files: {scattered:#?}");
}

#[test]
fn methods_in_a_third_file_are_found() {
    let own =
        (Path::new("a.rs"), "pub struct Row<T> {}\nimpl<T: Into<Vec<u8>>> Row<T> {\n}\nimpl Default for Row<T> {\n}");
    let (second, third) = ((Path::new("b.rs"), "impl Row<u8> {}"), (Path::new("c.rs"), "impl<'a> Row<&'a u8> {}"));
    assert!(scattered(&[own, second]).is_empty());
    assert_eq!(scattered(&[own, second, third]).keys().collect::<Vec<_>>(), [&"Row"]);
    let same_name = (Path::new("d.rs"), "enum Row {}\nimpl Row {}");
    assert!(scattered(&[own, second, same_name]).is_empty());
}
