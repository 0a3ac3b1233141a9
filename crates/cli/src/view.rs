//! Prints objects of the API on stdout, in each format.

use rondel_core::Timestamp;
use serde_json::Value;

use crate::client::{Body, object_fields, text_of, time_text};
use crate::clock;
use crate::exit::Failure;
use crate::format::{Columns, Format, FormatArgs};
use crate::output;
use crate::table::Table;

/// How one kind of object is printed.
#[derive(Debug)]
pub(crate) struct View {
    /// The field with the object's name or id.
    pub(crate) name: &'static str,
    /// The columns of a list.
    pub(crate) headers: &'static [&'static str],
    /// Makes a line of a list.
    pub(crate) row: fn(&Value, Timestamp) -> Vec<String>,
}

impl View {
    /// Prints a list that the server answered. JSON and YAML print the body of the answer unchanged.
    pub(crate) fn print_list(&self, body: &Body, format: FormatArgs) -> Result<(), Failure> {
        match format.format {
            Format::Json | Format::Yaml => output::print_document(body.text(), format.format),
            Format::Jsonl => {
                let items = body.page()?.items;
                output::print_json(&items.iter().map(|item| item.get()).collect::<Vec<_>>().join("\n"))
            }
            Format::Name | Format::Table | Format::Wide => {
                let page = body.page()?;
                let items: Vec<Value> =
                    page.items.iter().map(|item| serde_json::from_str(item.get())).collect::<Result<_, _>>()?;
                self.print_items(&items, format)
            }
        }
    }

    /// Prints one object as a line of a list: the output of commands that change the object.
    pub(crate) fn print_row(&self, body: &Body, format: FormatArgs) -> Result<(), Failure> {
        match format.format {
            Format::Json | Format::Jsonl | Format::Yaml => output::print_document(body.text(), format.format),
            Format::Name | Format::Table | Format::Wide => self.print_items(&[body.value()?], format),
        }
    }

    /// Prints one object with all its fields.
    pub(crate) fn print_object(&self, body: &Body, format: FormatArgs) -> Result<(), Failure> {
        self.print_object_with(body, format, |_, _| None)
    }

    /// Prints one object with all its fields. A field of an inner object is named by its path, also in `--columns`.
    /// `value_text` replaces some of the values.
    pub(crate) fn print_object_with(
        &self,
        body: &Body,
        format: FormatArgs,
        value_text: impl Fn(&str, &Value) -> Option<String>,
    ) -> Result<(), Failure> {
        let shows_all_fields = matches!(format.format, Format::Table | Format::Wide) && format.columns.is_none();
        if !shows_all_fields {
            return self.print_row(body, format);
        }
        clock::set_display_in_utc(format.utc);
        let mut table = Table::new(&["", ""]);
        let now = clock::now();
        for (key, value) in object_fields(body.text())? {
            match value_text(&key, &value) {
                Some(text) => table.add(vec![key, text]),
                None => field_lines(key, &value, now).into_iter().for_each(|(key, text)| table.add(vec![key, text])),
            }
        }
        output::print_lines(&table.render(true))
    }

    /// Prints these objects as a table or, with `-o name`, only their names.
    pub(crate) fn print_items(&self, items: &[Value], format: FormatArgs) -> Result<(), Failure> {
        if format.format == Format::Name {
            let names: Vec<_> = items.iter().map(|item| text_of(&item[self.name])).collect();
            return output::print_names(names);
        }
        if items.is_empty() {
            output::print_message("nothing found");
            return Ok(());
        }
        clock::set_display_in_utc(format.utc);
        let columns = self.columns(items, format)?;
        let mut table = Table::new(&columns.iter().map(Column::header).collect::<Vec<_>>());
        let now = clock::now();
        for item in items {
            let cells = (self.row)(item, now);
            table.add(columns.iter().map(|column| column.cell(item, &cells, now)).collect());
        }
        output::print_lines(&table.render(format.no_headers))
    }

    /// The requested columns. Without a request, the columns of the view and, with `-o wide`, the further fields of the items.
    fn columns(&self, items: &[Value], format: FormatArgs) -> Result<Vec<Column>, Failure> {
        if let Some(Columns(names)) = format.columns {
            return names.iter().map(|name| self.column(name, items)).collect();
        }
        let mut columns: Vec<Column> =
            self.headers.iter().enumerate().map(|(index, header)| Column::Cell(index, header)).collect();
        if format.format == Format::Wide {
            columns.extend(self.further_fields(items).map(Column::Field));
        }
        Ok(columns)
    }

    fn column(&self, name: &str, items: &[Value]) -> Result<Column, Failure> {
        let spaced_name = name.replace('_', " ");
        if let Some(index) = self.headers.iter().position(|header| header.eq_ignore_ascii_case(&spaced_name)) {
            return Ok(Column::Cell(index, self.headers[index]));
        }
        if items.iter().any(|item| item.pointer(&json_pointer(name)).is_some()) {
            return Ok(Column::Field(name.to_owned()));
        }
        let mut column_names: Vec<String> =
            self.headers.iter().map(|header| header.replace(' ', "_").to_lowercase()).collect();
        column_names.extend(self.further_fields(items));
        Err(Failure::refused(format!("--columns: there is no {name:?}; there are {}", column_names.join(", "))))
    }

    /// The fields of the items that no column of the view shows, and that fit into a cell.
    fn further_fields(&self, items: &[Value]) -> impl Iterator<Item = String> {
        let mut names: Vec<&String> = Vec::new();
        for (name, _) in items.iter().filter_map(Value::as_object).flatten() {
            let full_name = name.replace('_', " ");
            let short_name = full_name.strip_suffix(" at").unwrap_or(&full_name);
            let is_header = [short_name, &full_name]
                .iter()
                .any(|text| self.headers.iter().any(|header| header.eq_ignore_ascii_case(text)));
            let is_large = |item: &Value| item[name].is_object() || item[name].is_array();
            if !is_header && *name != self.name && !names.contains(&name) && !items.iter().any(is_large) {
                names.push(name);
            }
        }
        names.into_iter().cloned().collect::<Vec<_>>().into_iter()
    }
}

/// Fields that hold a user's own JSON, which is shown as it is.
const JSON_FIELDS: [&str; 2] = ["params", "result"];

/// The lines for a field, each a name and a text. An object has a line for each of its fields.
fn field_lines(key: String, value: &Value, now: Timestamp) -> Vec<(String, String)> {
    match value {
        Value::Object(fields) if !fields.is_empty() && !JSON_FIELDS.contains(&key.as_str()) => {
            fields.iter().flat_map(|(name, value)| field_lines(format!("{key}.{name}"), value, now)).collect()
        }
        Value::Array(items) if !items.iter().any(|item| item.is_object() || item.is_array()) => {
            vec![(key, items.iter().map(text_of).collect::<Vec<_>>().join(", "))]
        }
        _ if key.ends_with("_at") => vec![(key, time_text(value, now))],
        _ => vec![(key, text_of(value))],
    }
}

/// A column of a table.
enum Column {
    /// A column that the view makes.
    Cell(usize, &'static str),
    /// A field of the object.
    Field(String),
}

impl Column {
    fn header(&self) -> String {
        match self {
            Self::Cell(_, header) => (*header).to_owned(),
            Self::Field(name) => name.to_uppercase().replace('_', " "),
        }
    }

    fn cell(&self, item: &Value, cells: &[String], now: Timestamp) -> String {
        match self {
            Self::Cell(index, _) => cells.get(*index).cloned().unwrap_or_default(),
            Self::Field(name) => match item.pointer(&json_pointer(name)) {
                Some(value) if name.ends_with("_at") => time_text(value, now),
                Some(value) => text_of(value),
                None => String::new(),
            },
        }
    }
}

fn json_pointer(name: &str) -> String {
    format!("/{}", name.replace('.', "/"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const VIEW: View = View {
        name: "name",
        headers: &["NAME", "NEXT FIRE"],
        row: |item, _| vec![text_of(&item["name"]), "soon".to_owned()],
    };

    fn shown(format: Format, columns: Option<&'static [String]>) -> Result<Vec<(String, String)>, Failure> {
        let items = [json!({"name": "a", "retry": {"max": 3}, "version": 2, "list": []})];
        let args = FormatArgs { format, no_headers: false, columns: columns.map(Columns), utc: true };
        let columns = VIEW.columns(&items, args)?;
        let cells = (VIEW.row)(&items[0], Timestamp::EPOCH);
        Ok(columns.iter().map(|column| (column.header(), column.cell(&items[0], &cells, Timestamp::EPOCH))).collect())
    }

    #[test]
    fn inner_objects_have_a_line_for_each_field() {
        let shown = |key: &str, value: Value| {
            let lines = field_lines(key.to_owned(), &value, Timestamp::EPOCH);
            lines.into_iter().map(|(key, text)| format!("{key}={text}")).collect::<Vec<_>>()
        };
        assert_eq!(shown("retry", json!({"max": 3, "backoff": "10s"})), ["retry.backoff=10s", "retry.max=3"]);
        assert_eq!(shown("a", json!({"b": {"c": null}})), ["a.b.c="]);
        assert_eq!(shown("children", json!(["x", "y"])), ["children=x, y"]);
        assert_eq!(shown("children", json!([])), ["children="]);
        assert_eq!(shown("roles", json!([{"role": "viewer"}])), [r#"roles=[{"role":"viewer"}]"#]);
        assert_eq!(shown("params", json!({"day": {"of": 1}})), [r#"params={"day":{"of":1}}"#], "a user's own JSON");
    }

    #[test]
    fn a_field_with_a_column_of_its_own_has_no_second_one() {
        let view = View { name: "id", headers: &["RUN", "FIRE AT", "LAST SEEN"], row: |_, _| Vec::new() };
        let items = [json!({"id": "7", "fire_at": "x", "last_seen_at": "y", "attempt": 1})];
        assert_eq!(view.further_fields(&items).collect::<Vec<_>>(), ["attempt"]);
    }

    #[test]
    fn columns_are_headers_or_fields() {
        let pairs =
            |list: &[(&str, &str)]| list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>();
        assert_eq!(shown(Format::Table, None).unwrap(), pairs(&[("NAME", "a"), ("NEXT FIRE", "soon")]));
        let wide = shown(Format::Wide, None).unwrap();
        assert_eq!(wide, pairs(&[("NAME", "a"), ("NEXT FIRE", "soon"), ("VERSION", "2")]));
        let asked = Vec::leak(vec!["next_fire".to_owned(), "retry.max".to_owned()]);
        assert_eq!(shown(Format::Table, Some(asked)).unwrap(), pairs(&[("NEXT FIRE", "soon"), ("RETRY.MAX", "3")]));
        let unknown = Vec::leak(vec!["nosuch".to_owned()]);
        assert!(shown(Format::Table, Some(unknown)).unwrap_err().message().contains("name, next_fire, version"));
    }
}
