//! The report of an import as one page of HTML, without scripts or other files. All texts are escaped.

use std::fmt::Write as _;

use super::result::{Entry, ImportResult, Outcome};
use crate::terminal::harmless_text;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--faint:#5b6675;--paper:#fff;--line:#d5dbe3;--raised:#f4f6f9;--kept:#1a7f4b;--changed:#8a5a00;--gone:#b3261e}
@media (prefers-color-scheme:dark){:root{--ink:#e6eaf0;--faint:#9aa5b4;--paper:#12161c;--line:#2c3542;--raised:#1a2029;--kept:#5fd39a;--changed:#e0b354;--gone:#ff8a80}}
body{margin:0 auto;padding:1.5rem;max-width:75rem;font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1rem}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th{color:var(--faint);font-weight:600}
code,pre{font:13px/1.5 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
pre{background:var(--raised);border:1px solid var(--line);border-radius:6px;padding:.8rem}
details{border-bottom:1px solid var(--line);padding:.4rem 0}summary{cursor:pointer;overflow-wrap:anywhere}
.faint{color:var(--faint)}.kept{color:var(--kept)}.changed{color:var(--changed)}.gone{color:var(--gone)}
ul{margin:.3rem 0 .3rem 1.2rem;padding:0}";

impl ImportResult {
    /// The report as a page; `source` is where the jobs come from.
    pub(super) fn page(&self, source: &str) -> String {
        let mut page = String::from(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
        );
        write!(
            page,
            "<title>Import from {0}</title><style>{STYLE}</style></head><body>\n<h1>Import from {0}</h1>\n",
            escape(source)
        )
        .ok();
        writeln!(page, "<p>{}.</p>", escape(&self.counts_text())).ok();
        if !self.remarks.is_empty() {
            page.push_str("<h2>Not read, and what else to know</h2>\n<ul>");
            self.remarks.iter().for_each(|remark| write!(page, "<li>{}</li>", escape(remark)).unwrap_or_default());
            page.push_str("</ul>\n");
        }
        for (title, is_in) in SECTIONS {
            let mut entries = self.entries.iter().filter(|entry| is_in(entry)).peekable();
            if entries.peek().is_some() {
                writeln!(page, "<h2>{title}</h2>").ok();
                entries.for_each(|entry| write_entry(&mut page, entry));
            }
        }
        let script = self.script();
        if !script.is_empty() {
            writeln!(page, "<h2>Commands for what is no definition</h2>\n<pre>{}</pre>", escape_lines(&script)).ok();
        }
        page.push_str("</body></html>\n");
        page
    }
}

type Section = (&'static str, fn(&Entry) -> bool);
const SECTIONS: [Section; 4] = [
    ("Left out", |entry| entry.is_left_out()),
    ("With notes", |entry| !entry.is_left_out() && !entry.notes.is_empty() && entry.is_job()),
    ("As they were", |entry| !entry.is_left_out() && entry.notes.is_empty() && entry.is_job()),
    ("Groups and users", |entry| !entry.is_job() && !entry.is_left_out()),
];

fn write_entry(page: &mut String, entry: &Entry) {
    let name = entry.name();
    write!(page, "<details><summary><strong>{}</strong> <span class=\"faint\">{}", escape(name), escape(&entry.from))
        .ok();
    if !entry.title.is_empty() && entry.title != name {
        write!(page, ", {}", escape(&entry.title)).ok();
    }
    page.push_str("</span>");
    if !entry.notes.is_empty() {
        page.push_str("<ul>");
        for note in &entry.notes {
            let (class, word) = entry.class_and_word(note);
            write!(page, "<li><span class=\"{class}\">{word}</span>: {}</li>", escape(&note.text)).ok();
        }
        page.push_str("</ul>");
    }
    page.push_str("</summary>\n");
    if !entry.fields.is_empty() {
        page.push_str(
            "<table><thead><tr><th>field</th><th>value</th><th>what happens</th><th>here</th></tr></thead><tbody>\n",
        );
        for field in &entry.fields {
            let class = match field.outcome {
                Outcome::Kept => "kept",
                Outcome::Changed => "changed",
                Outcome::NotSupported => "gone",
                Outcome::NotNeeded => "faint",
            };
            writeln!(
                page,
                "<tr><td><code>{}</code></td><td><code>{}</code></td><td class=\"{class}\">{}</td><td>{}</td></tr>",
                escape(&field.name),
                escape(&field.value),
                field.outcome.words(),
                escape(&field.counterpart)
            )
            .ok();
        }
        page.push_str("</tbody></table>\n");
    }
    page.push_str("</details>\n");
}

/// Escapes a text, so that nothing in it is markup.
fn escape(text: &str) -> String {
    let mut escaped_text = String::with_capacity(text.len());
    for c in harmless_text(text).chars() {
        match c {
            '&' => escaped_text.push_str("&amp;"),
            '<' => escaped_text.push_str("&lt;"),
            '>' => escaped_text.push_str("&gt;"),
            '"' => escaped_text.push_str("&quot;"),
            '\'' => escaped_text.push_str("&#39;"),
            c => escaped_text.push(c),
        }
    }
    escaped_text
}

fn escape_lines(text: &str) -> String {
    text.lines().map(|line| escape(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hostile_texts_are_texts() {
        let hostile = "</pre><script>alert('\"&')</script>\u{202e}";
        let mut result = ImportResult::default();
        let mut entry = Entry::new(hostile, hostile);
        entry.record_field(hostile, hostile, Outcome::Changed, hostile);
        entry.commands.push(format!("# {hostile}"));
        result.add(entry, json!({"name": "n", "app": "a", "handler": "h"}).as_object().cloned().unwrap());
        let mut other = Entry::new("job 2", hostile);
        other.record_field("a", "b", Outcome::NotNeeded, "c");
        result.leave_out(other, hostile);
        result.remarks.push(hostile.to_owned());
        let page = result.page(hostile);
        assert!(!page.contains("<script") && !page.contains('\u{202e}') && !page.contains("alert('"), "{page}");
        assert!(page.contains("&lt;script&gt;alert(&#39;&quot;&amp;&#39;)"), "{page}");
        for words in ["<h2>Left out</h2>", "<h2>With notes</h2>", "not needed", "prefers-color-scheme:dark"] {
            assert!(page.contains(words), "{words}: {page}");
        }
    }
}
