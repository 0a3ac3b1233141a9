//! Tables for a terminal: columns side by side, no lines between them.

use comfy_table::presets::NOTHING;

use crate::terminal::harmless_text;

/// A table under construction. Its cells are made harmless for the terminal.
#[derive(Debug)]
pub(crate) struct Table {
    headers: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headers: &[impl AsRef<str>]) -> Self {
        Self { headers: headers.iter().map(|header| header.as_ref().to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row, one cell per column.
    pub(crate) fn add(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// The text, without spaces at the ends of lines.
    pub(crate) fn render(&self, no_headers: bool) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING);
        if !no_headers && self.headers.iter().any(|header| !header.is_empty()) {
            table.set_header(self.headers.clone());
        }
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| harmless_text(cell).into_owned()));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.trim_fmt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let mut table = Table::new(&["NAME", "STATUS"]);
        table.add(vec!["a".to_owned(), "succeeded".to_owned()]);
        table.add(vec!["longer\u{1b}[1m".to_owned(), "x".to_owned()]);
        assert_eq!(table.render(false), "NAME           STATUS\na              succeeded\nlonger\\x1b[1m  x");
        assert_eq!(table.render(true), "a              succeeded\nlonger\\x1b[1m  x");
    }
}
