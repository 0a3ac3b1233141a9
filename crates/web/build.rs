//! Generates `Texts` from `web/locales`. The build fails if a language lacks a key, or if the gaps of a text differ between languages.
//!
//! A locale is a folder of TOML files, one for each part of the console, with lines of the form `key = "text"`. A text with gaps, such as
//! `"{n} runs"`, becomes a method with an argument for each gap; other texts become fields. A text may have two forms, as in `"{n} run|{n}
//! runs"`: the first is used if the gap `n` or `count` is one, the second for all other counts. For an unused key, the compiler reports an
//! unused field.
//!
//! The build also joins the style sheets of `web/static/css` into one, and the scripts of `web/static/js` into one, in the order of their
//! file names. Every page loads these two. The page of a run also loads the style sheets of `web/static/css/run` and a script of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The gaps whose value decides which form of a text is used.
const COUNTED: [&str; 2] = ["n", "count"];

const LOCALES: [(&str, &str); 2] = [("EN", "en"), ("ZH", "zh")];

fn main() {
    println!("cargo:rerun-if-changed=../../web/locales");
    println!("cargo:rerun-if-changed=../../web/static");
    println!("cargo:rerun-if-changed=build.rs");
    let locales: Vec<_> = LOCALES.iter().map(|(constant, name)| (*constant, *name, read(name))).collect();
    let (_, first_name, first) = &locales[0];
    for (_, name, texts) in &locales[1..] {
        let missing: Vec<_> = first.keys().filter(|key| !texts.contains_key(*key)).collect();
        assert!(missing.is_empty(), "web/locales/{name} lacks {missing:?}");
        let strange: Vec<_> = texts.keys().filter(|key| !first.contains_key(*key)).collect();
        assert!(strange.is_empty(), "web/locales/{first_name} lacks {strange:?}");
        for (key, text) in texts {
            assert_eq!(gaps(text), gaps(&first[key]), "web/locales/{name}: other gaps in {key}");
            let counts = gaps(text).iter().any(|gap| COUNTED.contains(gap));
            assert!(counts || !text.contains('|'), "web/locales/{name}: {key} has two forms and no count");
        }
    }
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    std::fs::write(out.join("texts.rs"), code(&locales)).expect("write texts.rs");
    let log = plain(Path::new("../../web/static/js").join(LOG_SCRIPT).as_path());
    for (joined, text) in
        [("console.css", join("css")), ("run.css", join("css/run")), ("console.js", join("js")), ("log.js", log)]
    {
        pack(&out.join(format!("{joined}.br")), text.as_bytes());
        std::fs::write(out.join(joined), text).expect("write an asset");
    }
    for (source, packed) in [("vendor/htmx-4.0.1.min.js", "htmx.js.br"), ("logo.svg", "logo.svg.br")] {
        pack(&out.join(packed), &std::fs::read(format!("../../web/static/{source}")).expect("read an asset"));
    }
}

/// Compresses a file that every page loads. The build does this once, so it can afford a higher level than a server that compresses each
/// answer.
fn pack(path: &Path, bytes: &[u8]) {
    let parameters = brotli::enc::BrotliEncoderParams { size_hint: bytes.len(), ..Default::default() };
    let mut packed = Vec::new();
    brotli::BrotliCompress(&mut &*bytes, &mut packed, &parameters).expect("write to a vector");
    std::fs::write(path, packed).expect("write an asset");
}

/// The script of the page of a run. All other scripts are joined.
const LOG_SCRIPT: &str = "50-log.js";

/// Joins the files of a folder of `web/static`, without indentation and comment lines. No text in these files may span several lines.
fn join(folder: &str) -> String {
    let mut files = files(&format!("../../web/static/{folder}"));
    files.retain(|file| !file.ends_with(LOG_SCRIPT));
    files.iter().map(|file| plain(file)).collect::<Vec<_>>().join("\n")
}

fn plain(file: &Path) -> String {
    let text = std::fs::read_to_string(file).expect("read an asset");
    let lines = text.lines().map(str::trim);
    let is_comment =
        |line: &str| line.starts_with("//") || (line.starts_with("/*") && line.find("*/") == Some(line.len() - 2));
    lines.filter(|line| !line.is_empty() && !is_comment(line)).collect::<Vec<_>>().join("\n")
}

/// The files of a folder, sorted by name.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("read a folder");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("read a folder").path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

fn read(name: &str) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for path in files(&format!("../../web/locales/{name}")) {
        let file = std::fs::read_to_string(&path).expect("read a locale");
        for (index, line) in file.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("{}:{}", path.display(), index + 1);
            let (key, value) = line.split_once(" = ").expect(&place);
            let text = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect(&place);
            assert!(!text.is_empty() && !text.contains(['"', '\\']), "{place}: empty, or with quotes or backslashes");
            assert!(texts.insert(key.to_owned(), text.to_owned()).is_none(), "{place}: {key} comes twice");
        }
    }
    texts
}

/// The names in braces, sorted. If the text has two forms, both must have the same names.
fn gaps(text: &str) -> Vec<&str> {
    if let Some((one, other)) = text.split_once('|') {
        assert_eq!(gaps(one), gaps(other), "{text}: the two forms have other gaps");
        return gaps(one);
    }
    let mut gaps: Vec<_> = text.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0)).collect();
    gaps.sort_unstable();
    gaps
}

fn code(locales: &[(&str, &str, BTreeMap<String, String>)]) -> String {
    let mut code = String::from("/// Every text of the console in one language.\n#[derive(Debug)]\n");
    code.push_str("pub(crate) struct Texts {\n");
    let keys = &locales[0].2;
    for (key, text) in keys {
        let visibility = if gaps(text).is_empty() { "pub(crate) " } else { "" };
        writeln!(code, "    {visibility}{key}: &'static str,").expect("write to a string");
    }
    code.push_str("}\n\nimpl Texts {\n");
    for (key, text) in keys.iter().filter(|(_, text)| !gaps(text).is_empty()) {
        let names = gaps(text);
        let arguments: String = names.iter().map(|name| format!(", {name}: impl std::fmt::Display")).collect();
        let pairs: Vec<_> = names.iter().map(|name| format!("(\"{name}\", {name}.to_string())")).collect();
        writeln!(code, "    pub(crate) fn {key}(&self{arguments}) -> String {{").expect("write to a string");
        writeln!(code, "        fill_gaps(self.{key}, &[{}])\n    }}", pairs.join(", ")).expect("write to a string");
    }
    code.push_str("}\n");
    for (constant, _, texts) in locales {
        writeln!(code, "\npub(crate) static {constant}: Texts = Texts {{").expect("write to a string");
        for (key, text) in texts {
            writeln!(code, "    {key}: {text:?},").expect("write to a string");
        }
        code.push_str("};\n");
    }
    code
}
