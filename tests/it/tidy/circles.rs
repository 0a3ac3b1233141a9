//! Circles of files: inside a crate, no more than three files may use each other's items in a circle. A file in a larger circle
//! cannot be read, tested or moved without all the others.
//!
//! A use is a path to an item of another file, in a `use` or elsewhere in the code. It is not a use if a file declares another
//! one by `mod`, or re-exports its items by `pub use`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::root;

const SIZE_MAX: usize = 3;
/// Maximum number of re-exports that are followed.
const DEPTH_MAX: usize = 8;

/// The place of a module, or of an item, in its crate.
type Place = Vec<String>;

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Module(Place),
    /// An item of the module at this place.
    Item(Place),
}

#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    /// The names that it imports, with their paths.
    names: BTreeMap<String, Place>,
    /// The imported names that it re-exports.
    re_exports: BTreeSet<String>,
    /// The imported paths that end with `*`.
    globs: Vec<Place>,
    /// The other paths in it.
    paths: BTreeSet<Place>,
}

/// The modules of a crate by their places.
#[derive(Debug, Default)]
struct Modules(BTreeMap<Place, Module>);

impl Modules {
    /// Reads the modules of a crate, beginning with its root.
    fn read(root: &Path) -> Self {
        let mut modules = Self::default();
        let mut open = vec![(Place::new(), root.to_owned())];
        while let Some((place, file)) = open.pop() {
            let text = std::fs::read_to_string(&file).expect("a module has its file");
            let folder = match file.file_stem().and_then(|stem| stem.to_str()) {
                Some("lib" | "main" | "mod") => file.with_file_name(""),
                _ => file.with_extension(""),
            };
            let (module, declared) = parse(&text);
            for name in declared {
                let files = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
                let child = [place.as_slice(), &[name]].concat();
                open.extend(files.into_iter().find(|file| file.is_file()).map(|file| (child, file)));
            }
            modules.0.insert(place, Module { file, ..module });
        }
        modules
    }

    /// Resolves a path in the module at `from`; `None` if it leads outside of the crate.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<Target> {
        let module = self.0.get(from).filter(|_| depth < DEPTH_MAX)?;
        let (first, rest) = path.split_first()?;
        let mut place = match first.as_str() {
            "crate" => Place::new(),
            "self" => from.to_vec(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            name => {
                let child = [from, &[name.to_owned()]].concat();
                match module.names.get(name) {
                    Some(imported_path) if imported_path != path => {
                        return self.resolve(from, &[imported_path.as_slice(), rest].concat(), depth + 1);
                    }
                    _ if self.0.contains_key(&child) => child,
                    _ => return None,
                }
            }
        };
        for (index, name) in rest.iter().enumerate() {
            if name == "super" {
                place.pop()?;
                continue;
            }
            let child = [place.as_slice(), std::slice::from_ref(name)].concat();
            if self.0.contains_key(&child) {
                place = child;
                continue;
            }
            let module = self.0.get(&place)?;
            if let Some(imported_path) = module.names.get(name).filter(|_| module.re_exports.contains(name)) {
                let path = [imported_path.as_slice(), &rest[index + 1..]].concat();
                return self.resolve(&place, &path, depth + 1);
            }
            return Some(Target::Item(place));
        }
        Some(Target::Module(place))
    }

    /// Which files each file uses.
    fn uses(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let mut uses: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for (place, module) in &self.0 {
            let named = module.names.iter().filter(|(name, _)| {
                let is_used = module.paths.iter().any(|path| path[0] == **name);
                is_used || !module.re_exports.contains(*name)
            });
            let items = named.map(|(_, path)| path).chain(&module.paths);
            let items = items.filter_map(|path| match self.resolve(place, path, 0)? {
                Target::Item(place) => Some(place),
                Target::Module(_) => None,
            });
            let globs = module.globs.iter().filter_map(|path| match self.resolve(place, path, 0)? {
                Target::Item(place) | Target::Module(place) => Some(place),
            });
            let files = items.chain(globs).map(|place| self.0[&place].file.as_path());
            uses.entry(&module.file).or_default().extend(files.filter(|file| *file != module.file));
        }
        uses
    }
}

/// The imports and paths of a file, and the modules that it declares; without its tests.
fn parse(text: &str) -> (Module, Vec<String>) {
    let tokens = without_tests(&tokens(text));
    let (mut module, mut declared) = (Module::default(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            "mod" if tokens.get(at + 2) == Some(&";") => {
                declared.push(tokens[at + 1].to_owned());
                at += 2;
            }
            "use" => {
                let is_public = at > 0 && matches!(tokens[at - 1], "pub" | ")");
                let end = at + tokens[at..].iter().position(|token| *token == ";").unwrap_or(0);
                visit_tree(&tokens[at + 1..end], &Place::new(), &mut |path, name| match name {
                    "*" => module.globs.extend((!is_public).then_some(path)),
                    name => {
                        module.re_exports.extend(is_public.then(|| name.to_owned()));
                        module.names.insert(name.to_owned(), path);
                    }
                });
                at = end;
            }
            token if is_word(token) && (at == 0 || tokens[at - 1] != "::") => {
                let mut path = vec![token.to_owned()];
                while tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(|next| is_word(next)) {
                    path.push(tokens[at + 2].to_owned());
                    at += 2;
                }
                module.paths.insert(path);
            }
            _ => {}
        }
        at += 1;
    }
    (module, declared)
}

/// Visits each path in a tree of `use`, with the name that it imports.
fn visit_tree(tokens: &[&str], before: &[String], found: &mut impl FnMut(Place, &str)) {
    let mut path = before.to_vec();
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "::" => {}
            "{" => {
                for branch in branches(&tokens[at + 1..tokens.len() - 1]) {
                    visit_tree_dyn(branch, &path, found);
                }
                return;
            }
            "as" => return found(path, tokens[at + 1]),
            "*" => return found(path, "*"),
            "self" if !path.is_empty() => {}
            word => path.push(word.to_owned()),
        }
    }
    if let Some(name) = path.last().cloned() {
        found(path, &name);
    }
}

fn visit_tree_dyn(tokens: &[&str], before: &[String], mut found: &mut dyn FnMut(Place, &str)) {
    visit_tree(tokens, before, &mut found);
}

/// The parts of a list, at the commas outside of inner braces.
fn branches<'t, 's>(tokens: &'t [&'s str]) -> Vec<&'t [&'s str]> {
    let mut depth = 0;
    let is_end = |token: &&str| {
        depth += i32::from(*token == "{") - i32::from(*token == "}");
        depth == 0 && *token == ","
    };
    tokens.split(is_end).filter(|branch| !branch.is_empty()).collect()
}

/// The tokens without the items marked `#[cfg(test)]`.
fn without_tests<'t>(tokens: &[&'t str]) -> Vec<&'t str> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept_tokens, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if !tokens[at..].starts_with(&MARK) {
            kept_tokens.push(tokens[at]);
            at += 1;
            continue;
        }
        let mut depth = 0;
        while at < tokens.len() {
            depth += i32::from(tokens[at] == "{") - i32::from(tokens[at] == "}");
            let is_end = depth == 0 && matches!(tokens[at], "}" | ";");
            at += 1;
            if is_end {
                break;
            }
        }
    }
    kept_tokens
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words, `::` and signs; no comments, texts, characters or lifetimes.
fn tokens(text: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(c) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let len = match c {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            'r' | 'b' if raw(rest).is_some() => raw(rest).unwrap_or(1),
            '"' => quoted(rest),
            '\'' => character(rest),
            _ if word > 0 => {
                tokens.push(&rest[..word]);
                word
            }
            _ if rest.starts_with("::") => {
                tokens.push("::");
                2
            }
            c if c.is_whitespace() => c.len_utf8(),
            c => {
                tokens.push(&rest[..c.len_utf8()]);
                c.len_utf8()
            }
        };
        rest = &rest[len..];
    }
    tokens
}

/// The length of a text in quotation marks.
fn quoted(text: &str) -> usize {
    let mut is_escaped = true;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !is_escaped => return at + 1,
            '\\' if !is_escaped => is_escaped = true,
            _ => is_escaped = false,
        }
    }
    text.len()
}

/// The length of a raw text, if it is one.
fn raw(text: &str) -> Option<usize> {
    let body = text.trim_start_matches('b').strip_prefix('r')?;
    let signs = body.len() - body.trim_start_matches('#').len();
    let inner = body[signs..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(signs));
    let len = inner.find(&end).map_or(inner.len(), |at| at + end.len());
    Some(text.len() - inner.len() + len)
}

/// The length of a character, or of the mark of a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, _))) => text[at + 1..].find('\'').map_or(text.len(), |end| at + end + 2),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// The groups of files that reach each other.
fn circles<'f>(uses: &BTreeMap<&'f Path, BTreeSet<&'f Path>>) -> Vec<BTreeSet<&'f Path>> {
    let reach = |from: &'f Path| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(file) = open.pop() {
            open.extend(uses.get(file).into_iter().flatten().filter(|next| reached.insert(**next)));
        }
        reached
    };
    let reached: BTreeMap<&Path, BTreeSet<&Path>> = uses.keys().map(|file| (*file, reach(file))).collect();
    let circle = |file: &&'f Path| {
        let others = reached[file].iter().filter(|other| reached[*other].contains(file));
        others.copied().collect::<BTreeSet<_>>()
    };
    let found: BTreeSet<_> = uses.keys().map(circle).filter(|circle| circle.len() > 1).collect();
    found.into_iter().collect()
}

#[test]
fn files_form_no_large_circles() {
    let root = root();
    let mut report = String::new();
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        let source = entry.unwrap().path().join("src");
        let start = ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().find(|file| file.is_file());
        let Some(start) = start else { continue };
        let modules = Modules::read(&start);
        let uses = modules.uses();
        for circle in circles(&uses).into_iter().filter(|circle| circle.len() > SIZE_MAX) {
            let name = |file: &Path| file.strip_prefix(root).unwrap().display().to_string();
            report.push_str(&format!("\na circle of {}:\n", circle.len()));
            for file in &circle {
                let used: Vec<_> =
                    uses[file].iter().filter(|used| circle.contains(*used)).map(|used| name(used)).collect();
                report.push_str(&format!("  {} uses {}\n", name(file), used.join(", ")));
            }
        }
    }
    assert!(report.is_empty(), "files in circles larger than {SIZE_MAX}:\n{report}");
}

mod examples {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let module = |(place, text): &(&str, &str)| {
            let parts = place.split("::").filter(|part| !part.is_empty()).map(str::to_owned);
            (parts.collect(), Module { file: format!("/{place}").into(), ..parse(text).0 })
        };
        Modules(files.iter().map(module).collect())
    }

    fn sizes(files: &[(&str, &str)]) -> Vec<usize> {
        circles(&modules(files).uses()).iter().map(BTreeSet::len).collect()
    }

    #[test]
    fn a_parent_and_its_children_are_a_circle_only_by_their_items() {
        let child = ("a", "use super::Limit; pub struct Row(Limit);");
        assert_eq!(sizes(&[("", "mod a; pub struct Limit;"), child]), [0; 0]);
        assert_eq!(sizes(&[("", "mod a; pub use a::Row; pub struct Limit;"), child]), [0; 0]);
        assert_eq!(sizes(&[("", "mod a; pub use a::Row; pub struct Limit; fn f(row: Row) {}"), child]), [2]);
        assert_eq!(sizes(&[("", "mod a; pub struct Limit; fn f() { a::read() }"), child]), [2]);
    }

    #[test]
    fn items_are_followed_to_the_file_that_has_them() {
        let facade = ("a", "mod b; mod c; pub(crate) use {b::B, c::C};");
        let files = [("", "mod a;"), facade, ("a::b", "use super::C; pub struct B;"), ("a::c", "pub struct C;")];
        assert_eq!(sizes(&files), [0; 0]);
        let files = [("", "mod a;"), facade, ("a::b", "use super::C;"), ("a::c", "use crate::a; fn f() -> a::B {}")];
        assert_eq!(sizes(&files), [2]);
    }

    #[test]
    fn tests_texts_and_comments_use_nothing() {
        let quiet =
            "#[cfg(test)] mod tests { use crate::a::A; } // crate::a::A\n fn f<'a>() -> char { \"crate::a::A\"; '\"' }";
        assert_eq!(sizes(&[("", quiet), ("a", "use crate::f;")]), [0; 0]);
        assert_eq!(sizes(&[("", "r#\"x\"#; mod a; fn f() { crate::a::A; }"), ("a", "use crate::f;")]), [2]);
    }
}
