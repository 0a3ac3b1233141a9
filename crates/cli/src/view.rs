//! How things of the API look on stdout, in each of the forms.

use rondel_core::Timestamp;
use serde_json::Value;

use crate::client::{Body, fields, text_of, time_of};
use crate::clock;
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::output;
use crate::table::Table;

/// How one kind of thing looks.
#[derive(Debug)]
pub(crate) struct View {
    /// The key of what it is called by.
    pub(crate) name: &'static str,
    /// The columns of a list.
    pub(crate) headers: &'static [&'static str],
    /// A line of a list.
    pub(crate) row: fn(&Value, Timestamp) -> Vec<String>,
}

impl View {
    /// Prints a list: a whole answer of the server.
    pub(crate) fn list(&self, body: &Body, format: FormatArgs) -> Result<(), Failure> {
        match format.format {
            Format::Json => output::data(body.text()),
            Format::Jsonl => {
                let items = body.page()?.items;
                output::data(&items.iter().map(|item| item.get()).collect::<Vec<_>>().join("\n"))
            }
            Format::Name | Format::Table => {
                let page = body.page()?;
                let items: Vec<Value> =
                    page.items.iter().map(|item| serde_json::from_str(item.get())).collect::<Result<_, _>>()?;
                self.items(&items, format)
            }
        }
    }

    /// Prints one thing as a line of a list: what a command that changed it says.
    pub(crate) fn line(&self, body: &Body, format: FormatArgs) -> Result<(), Failure> {
        match format.format {
            Format::Json | Format::Jsonl => output::data(body.text()),
            Format::Name | Format::Table => self.items(&[body.value()?], format),
        }
    }

    /// Prints one thing, whole.
    pub(crate) fn whole(&self, body: &Body, format: FormatArgs) -> Result<(), Failure> {
        self.whole_in_words(body, format, |_, _| None)
    }

    /// The same, with words of its own for some of the values.
    pub(crate) fn whole_in_words(
        &self,
        body: &Body,
        format: FormatArgs,
        words: impl Fn(&str, &Value) -> Option<String>,
    ) -> Result<(), Failure> {
        if format.format != Format::Table {
            return self.line(body, format);
        }
        let mut table = Table::new(&["", ""]);
        let now = clock::now();
        for (key, value) in fields(body.text())? {
            let plain = || if key.ends_with("_at") { time_of(&value, now) } else { text_of(&value) };
            let text = words(&key, &value).unwrap_or_else(plain);
            table.add(vec![key, text]);
        }
        output::data(&table.render(true))
    }

    fn items(&self, items: &[Value], format: FormatArgs) -> Result<(), Failure> {
        if format.format == Format::Name {
            let names: Vec<_> = items.iter().map(|item| text_of(&item[self.name])).collect();
            return output::data(&names.join("\n"));
        }
        if items.is_empty() {
            output::talk("nothing found");
            return Ok(());
        }
        let mut table = Table::new(self.headers);
        let now = clock::now();
        for item in items {
            table.add((self.row)(item, now));
        }
        output::data(&table.render(format.no_headers))
    }
}
