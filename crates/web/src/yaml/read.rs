//! Reading: events of the parser become nodes that know where they stand.

use std::collections::HashMap;
use std::str::Chars;

use serde_json::{Map, Value};
use yaml_rust2::Event;
use yaml_rust2::parser::{Parser, Tag};
use yaml_rust2::scanner::{Marker, ScanError, TScalarStyle};

use super::scalar;

/// How deep nodes may be nested.
const DEPTH_MAX: usize = 64;
/// How many nodes a text may have, with those that aliases repeat.
const NODE_COUNT_MAX: usize = 500_000;
const CORE_TAGS: &str = "tag:yaml.org,2002:";

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct YamlError {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// A sentence without an end.
    pub message: String,
}

/// A value that knows where it stands.
#[derive(Clone, Debug)]
pub struct Node {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    kind: Kind,
    /// How many nodes it consists of.
    size: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// The documents of a stream; an empty one is left out.
///
/// # Errors
/// What is no YAML, and what JSON cannot say.
pub fn documents(text: &str) -> Result<Vec<Node>, YamlError> {
    let mut loader = Loader { parser: Parser::new_from_str(text), anchors: HashMap::new(), node_count: 0 };
    let mut documents = Vec::new();
    loop {
        match loader.next()? {
            (Event::StreamEnd, _) => return Ok(documents),
            (Event::DocumentStart, _) => {
                loader.anchors.clear();
                let node = loader.node()?;
                if !matches!(node.kind, Kind::Scalar(Value::Null)) {
                    documents.push(node);
                }
            }
            _ => {}
        }
    }
}

impl Node {
    /// The items of a list; the node itself where it is none.
    #[must_use]
    pub fn items(self) -> Vec<Self> {
        match self.kind {
            Kind::List(items) => items,
            Kind::Scalar(_) | Kind::Map(_) => vec![self],
        }
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> Value {
        match &self.kind {
            Kind::Scalar(value) => value.clone(),
            Kind::List(items) => items.iter().map(Self::value).collect(),
            Kind::Map(fields) => {
                fields.iter().map(|(key, node)| (key.clone(), node.value())).collect::<Map<_, _>>().into()
            }
        }
    }

    /// The line and column of what a JSON pointer names: where that is not there, of what it would be in.
    #[must_use]
    pub fn place(&self, pointer: &str) -> (usize, usize) {
        let mut node = self;
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            let below = match &node.kind {
                Kind::Scalar(_) => None,
                Kind::List(items) => part.parse::<usize>().ok().and_then(|index| items.get(index)),
                Kind::Map(fields) => fields.iter().find(|(key, _)| *key == part).map(|(_, node)| node),
            };
            let Some(below) = below else { break };
            node = below;
        }
        (node.line, node.column)
    }
}

/// What is being put together.
enum Open {
    List { at: Marker, anchor: usize, items: Vec<Node> },
    Map { at: Marker, anchor: usize, fields: Vec<(String, Node)>, key: Option<(String, Marker)> },
}

struct Loader<'a> {
    parser: Parser<Chars<'a>>,
    anchors: HashMap<usize, Node>,
    node_count: usize,
}

impl Loader<'_> {
    fn next(&mut self) -> Result<(Event, Marker), YamlError> {
        self.parser.next_token().map_err(|error: ScanError| wrong(*error.marker(), error.info()))
    }

    /// The next node, whole. Not recursive: a text may be nested as deep as it is long.
    fn node(&mut self) -> Result<Node, YamlError> {
        let mut open: Vec<Open> = Vec::new();
        loop {
            let (event, at) = self.next()?;
            let done = match event {
                Event::SequenceStart(anchor, tag) => {
                    check_tag(tag.as_ref(), at)?;
                    open.push(Open::List { at, anchor, items: Vec::new() });
                    None
                }
                Event::MappingStart(anchor, tag) => {
                    check_tag(tag.as_ref(), at)?;
                    open.push(Open::Map { at, anchor, fields: Vec::new(), key: None });
                    None
                }
                Event::Scalar(text, style, anchor, tag) => {
                    let value = scalar_value(text, style, tag.as_ref(), at)?;
                    Some((self.made(at, Kind::Scalar(value), 1)?, anchor))
                }
                Event::Alias(anchor) => Some((self.repeated(anchor, at)?, 0)),
                Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                    Some(ended) => Some(self.closed(ended)?),
                    None => return Err(wrong(at, "an end without a beginning")),
                },
                Event::DocumentEnd | Event::StreamEnd => return Err(wrong(at, "the document breaks off")),
                Event::Nothing | Event::StreamStart | Event::DocumentStart => None,
            };
            if open.len() > DEPTH_MAX {
                return Err(wrong(at, format!("is nested deeper than {DEPTH_MAX} levels")));
            }
            let Some((node, anchor)) = done else { continue };
            if anchor > 0 {
                self.anchors.insert(anchor, node.clone());
            }
            match open.last_mut() {
                None => return Ok(node),
                Some(parent) => add(parent, node, at)?,
            }
        }
    }

    fn made(&mut self, at: Marker, kind: Kind, size: usize) -> Result<Node, YamlError> {
        self.node_count += 1;
        if self.node_count > NODE_COUNT_MAX {
            return Err(wrong(at, format!("has more than {NODE_COUNT_MAX} values, with those that aliases repeat")));
        }
        let (line, column) = place(at);
        Ok(Node { line, column, kind, size })
    }

    fn repeated(&mut self, anchor: usize, at: Marker) -> Result<Node, YamlError> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(wrong(at, "is an alias of something that is not complete before it"));
        };
        self.node_count += node.size;
        if self.node_count > NODE_COUNT_MAX {
            return Err(wrong(at, format!("has more than {NODE_COUNT_MAX} values, with those that aliases repeat")));
        }
        Ok(node.clone())
    }

    fn closed(&mut self, open: Open) -> Result<(Node, usize), YamlError> {
        match open {
            Open::List { at, anchor, items } => {
                let size = 1 + items.iter().map(|node| node.size).sum::<usize>();
                Ok((self.made(at, Kind::List(items), size)?, anchor))
            }
            Open::Map { at, anchor, fields, .. } => {
                let fields = merged(fields)?;
                let size = 1 + fields.iter().map(|(_, node)| node.size).sum::<usize>();
                Ok((self.made(at, Kind::Map(fields), size)?, anchor))
            }
        }
    }
}

/// Adds a node to the list, or to the map as a key or a value.
fn add(parent: &mut Open, node: Node, at: Marker) -> Result<(), YamlError> {
    match parent {
        Open::List { items, .. } => items.push(node),
        Open::Map { at: begin, fields, key, .. } => match key.take() {
            Some((name, place)) => {
                if fields.iter().any(|(known, _)| *known == name) {
                    return Err(wrong(place, format!("{name:?} is there twice")));
                }
                fields.push((name, node));
            }
            None => {
                // The parser sees that a block is a map at its first colon: it begins with its first key.
                if fields.is_empty() && at.index() < begin.index() {
                    *begin = at;
                }
                *key = Some((key_text(&node, at)?, at));
            }
        },
    }
    Ok(())
}

fn key_text(node: &Node, at: Marker) -> Result<String, YamlError> {
    match &node.kind {
        Kind::Scalar(Value::String(text)) => Ok(text.clone()),
        Kind::Scalar(other @ (Value::Bool(_) | Value::Number(_))) => Ok(other.to_string()),
        Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => {
            Err(wrong(at, "a key is a word, not a list, a map or nothing"))
        }
    }
}

/// What `<<` names goes where the map says nothing itself.
fn merged(mut fields: Vec<(String, Node)>) -> Result<Vec<(String, Node)>, YamlError> {
    let Some(position) = fields.iter().position(|(key, _)| key == "<<") else { return Ok(fields) };
    let (_, source) = fields.remove(position);
    for map in source.items() {
        let (line, column) = (map.line, map.column);
        let Kind::Map(more) = map.kind else {
            return Err(YamlError { line, column, message: "<< takes a map, or a list of maps".to_owned() });
        };
        for (key, node) in more {
            if !fields.iter().any(|(known, _)| *known == key) {
                fields.push((key, node));
            }
        }
    }
    Ok(fields)
}

fn scalar_value(text: String, style: TScalarStyle, tag: Option<&Tag>, at: Marker) -> Result<Value, YamlError> {
    check_tag(tag, at)?;
    let is_text = tag.is_some_and(|tag| tag.suffix == "str") || style != TScalarStyle::Plain;
    if is_text { Ok(Value::String(text)) } else { scalar::plain(&text).map_err(|message| wrong(at, message)) }
}

fn check_tag(tag: Option<&Tag>, at: Marker) -> Result<(), YamlError> {
    match tag {
        Some(tag) if tag.handle != CORE_TAGS && tag.handle != "!!" => {
            Err(wrong(at, format!("the tag {}{} is not understood", tag.handle, tag.suffix)))
        }
        _ => Ok(()),
    }
}

fn place(at: Marker) -> (usize, usize) {
    (at.line(), at.col() + 1)
}

fn wrong(at: Marker, message: impl Into<String>) -> YamlError {
    let (line, column) = place(at);
    YamlError { line, column, message: message.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, value: &Value) {
        let read: Vec<Value> = documents(text).unwrap().iter().map(Node::value).collect();
        assert_eq!(&Value::Array(read), value, "{text}");
    }

    #[track_caller]
    fn check_refused(text: &str, place: (usize, usize), part: &str) {
        let error = documents(text).unwrap_err();
        assert_eq!((error.line, error.column), place, "{error}");
        assert!(error.message.contains(part), "{error}");
    }

    #[test]
    fn documents_become_values() {
        check("", &json!([]));
        check("---\n---\n# nothing\n", &json!([]));
        check(
            "name: a\nretry: {max: 3, backoff: 10s}\n",
            &json!([{"name": "a", "retry": {"max": 3, "backoff": "10s"}}]),
        );
        check("- name: a\n- name: b\n", &json!([[{"name": "a"}, {"name": "b"}]]));
        check("name: a\n---\nname: b\n", &json!([{"name": "a"}, {"name": "b"}]));
        check("x: |\n  one\n  two\ny: \"a\\tb\"\nz: !!str 12\n", &json!([{"x": "one\ntwo\n", "y": "a\tb", "z": "12"}]));
        check("1: a\ntrue: b\n", &json!([{"1": "a", "true": "b"}]));
        check("{\"a\": [1, 2.5, null, true]}", &json!([{"a": [1, 2.5, null, true]}]));
    }

    #[test]
    fn aliases_and_merges_repeat() {
        check("a: &x {p: 1, q: 2}\nb: *x\n", &json!([{"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 2}}]));
        check(
            "- &base {app: b, retry: 1}\n- <<: *base\n  retry: 2\n",
            &json!([[{"app": "b", "retry": 1}, {"app": "b", "retry": 2}]]),
        );
    }

    #[test]
    fn what_is_wrong_has_its_place() {
        check_refused("name: a\nname: b\n", (2, 1), "twice");
        check_refused("a: b: c\n", (1, 5), "");
        check_refused("a: .nan\n", (1, 4), ".nan");
        check_refused("a: !secret x\n", (1, 12), "!secret");
        check_refused("? [1]\n: 2\n", (1, 5), "key");
        check_refused("<<: 5\n", (1, 5), "<<");
        assert!(documents("a: [1,\n").is_err());
        assert!(documents("a: *nowhere\n").is_err());
        assert!(documents(&"[".repeat(100_000)).is_err());
        assert!(documents(&format!("{}1{}", "[".repeat(65), "]".repeat(65))).is_err());
    }

    #[test]
    fn a_billion_laughs_are_too_many() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let items = vec![format!("*a{}", level - 1); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
        }
        assert!(documents(&text).unwrap_err().message.contains("more than"));
    }

    #[test]
    fn pointers_find_their_place() {
        let node = documents("name: a\nschedule:\n  - every: 5s\n  - cron: bad\n").unwrap().remove(0);
        assert_eq!(node.place("/schedule/1/cron"), (4, 11));
        assert_eq!(node.place("/schedule/1/time_zone"), (4, 5));
        assert_eq!(node.place("/name"), (1, 7));
        assert_eq!(node.place(""), (1, 1));
    }
}
