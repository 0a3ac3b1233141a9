//! Makes `Texts` out of `web/locales`: a key that one language lacks, or whose gaps differ, does not build.
//!
//! A locale is a TOML file of `key = "text"` lines. A text with gaps (`"{n} runs"`) becomes a method with an argument for
//! each gap, the others become fields. An unused key is a dead field, which the compiler finds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

const LOCALES: [(&str, &str); 2] = [("EN", "en"), ("ZH", "zh")];

fn main() {
    println!("cargo:rerun-if-changed=../../web/locales");
    println!("cargo:rerun-if-changed=build.rs");
    let locales: Vec<_> = LOCALES.iter().map(|(constant, name)| (*constant, *name, read(name))).collect();
    let (_, first_name, first) = &locales[0];
    for (_, name, texts) in &locales[1..] {
        let missing: Vec<_> = first.keys().filter(|key| !texts.contains_key(*key)).collect();
        assert!(missing.is_empty(), "web/locales/{name}.toml lacks {missing:?}");
        let strange: Vec<_> = texts.keys().filter(|key| !first.contains_key(*key)).collect();
        assert!(strange.is_empty(), "web/locales/{first_name}.toml lacks {strange:?}");
        for (key, text) in texts {
            assert_eq!(gaps(text), gaps(&first[key]), "web/locales/{name}.toml: other gaps in {key}");
        }
    }
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&out).join("texts.rs"), code(&locales)).expect("write texts.rs");
}

fn read(name: &str) -> BTreeMap<String, String> {
    let path = format!("../../web/locales/{name}.toml");
    let file = std::fs::read_to_string(&path).expect("read a locale");
    let mut texts = BTreeMap::new();
    for (index, line) in file.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = format!("web/locales/{name}.toml:{}", index + 1);
        let (key, value) = line.split_once(" = ").expect(&place);
        let text = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect(&place);
        assert!(!text.is_empty() && !text.contains(['"', '\\']), "{place}: empty, or with quotes or backslashes");
        assert!(texts.insert(key.to_owned(), text.to_owned()).is_none(), "{place}: {key} comes twice");
    }
    texts
}

/// The names in braces, sorted.
fn gaps(text: &str) -> Vec<&str> {
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
        writeln!(code, "        fill(self.{key}, &[{}])\n    }}", pairs.join(", ")).expect("write to a string");
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
