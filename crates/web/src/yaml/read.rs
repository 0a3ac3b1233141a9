//! Reads YAML: turns the events of the parser into nodes that know their positions in the text.

use std::collections::{HashMap, HashSet};
use std::str::Chars;
use std::sync::Arc;

use serde_json::{Map, Value};
use yaml_rust2::Event;
use yaml_rust2::parser::{Parser, Tag};
use yaml_rust2::scanner::{Marker, ScanError, TScalarStyle};

use super::scalar;

/// Maximum nesting depth, with aliases expanded.
const DEPTH_MAX: usize = 64;
/// Maximum number of nodes in all documents of a text, with aliases expanded.
pub(crate) const NODE_COUNT_MAX: usize = 500_000;
/// The number of nodes for which a map counts: even a small one takes as much memory as several scalars.
pub(crate) const MAP_NODE_COUNT: usize = 4;
/// Maximum number of bytes in all scalars and keys, with aliases expanded.
const TEXT_LEN_MAX: usize = 32 * 1024 * 1024;
const CORE_TAG_HANDLE: &str = "tag:yaml.org,2002:";

/// An error in a text, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct YamlError {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// The message, without a final full stop.
    pub message: String,
}

/// A value that knows its position in the text.
#[derive(Clone, Debug)]
pub struct Node {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    content: Content,
    size: NodeSize,
}

/// The content of a node. Anchors and their aliases share it.
#[derive(Clone, Debug)]
enum Content {
    Scalar(Arc<Value>),
    List(Arc<Vec<Node>>),
    Map(Arc<Vec<(String, Node)>>),
}

/// The size of a node with its aliases expanded.
#[derive(Clone, Copy, Debug, Default)]
struct NodeSize {
    node_count: usize,
    /// The number of bytes in its scalars and keys.
    text_len: usize,
    /// The number of levels: 1 for a scalar.
    depth: usize,
}

impl NodeSize {
    fn of_scalar(value: &Value) -> Self {
        Self { node_count: 1, text_len: value.as_str().map_or(0, str::len), depth: 1 }
    }

    /// The size of a node after one more child is added.
    fn plus(self, child: Self) -> Self {
        Self {
            node_count: self.node_count + child.node_count,
            text_len: self.text_len + child.text_len,
            depth: self.depth.max(child.depth + 1),
        }
    }
}

/// The documents of a stream. Empty documents are left out.
///
/// # Errors
/// The text is not YAML, or contains something that JSON cannot express.
pub fn documents(text: &str) -> Result<Vec<Node>, YamlError> {
    let mut loader =
        Loader { parser: Parser::new_from_str(text), anchors: HashMap::new(), total_size: NodeSize::default() };
    let mut documents = Vec::new();
    loop {
        match loader.next()? {
            (Event::StreamEnd, _) => return Ok(documents),
            (Event::DocumentStart, _) => {
                loader.anchors.clear();
                let node = loader.node()?;
                if !matches!(&node.content, Content::Scalar(value) if value.is_null()) {
                    documents.push(node);
                }
            }
            _ => {}
        }
    }
}

impl Node {
    /// The items of a list. For any other node, the node itself.
    #[must_use]
    pub fn items(self) -> Vec<Self> {
        match self.content {
            Content::List(items) => Arc::unwrap_or_clone(items),
            Content::Scalar(_) | Content::Map(_) => vec![self],
        }
    }

    /// The node as a JSON value.
    #[must_use]
    pub fn value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => (**value).clone(),
            Content::List(items) => items.iter().map(Self::value).collect(),
            Content::Map(fields) => {
                fields.iter().map(|(key, node)| (key.clone(), node.value())).collect::<Map<_, _>>().into()
            }
        }
    }

    /// Drops texts that are not shared with other nodes. The positions of all nodes remain.
    pub fn forget_texts(&mut self) {
        match &mut self.content {
            Content::Scalar(value) => *value = Arc::new(Value::Null),
            Content::List(items) => Arc::get_mut(items).into_iter().flatten().for_each(Self::forget_texts),
            Content::Map(fields) => {
                Arc::get_mut(fields).into_iter().flatten().for_each(|(_, node)| node.forget_texts());
            }
        }
    }

    /// The line and column of the value to which a JSON pointer refers. If that value does not exist, those of the nearest existing node
    /// above it.
    #[must_use]
    pub fn place(&self, pointer: &str) -> (usize, usize) {
        let mut node = self;
        for segment in pointer.split('/').skip(1) {
            let segment = segment.replace("~1", "/").replace("~0", "~");
            let child = match &node.content {
                Content::Scalar(_) => None,
                Content::List(items) => segment.parse::<usize>().ok().and_then(|index| items.get(index)),
                Content::Map(fields) => fields.iter().find(|(key, _)| *key == segment).map(|(_, node)| node),
            };
            let Some(child) = child else { break };
            node = child;
        }
        (node.line, node.column)
    }
}

/// A list or map whose end has not been read yet.
enum OpenCollection {
    List { at: Marker, anchor: usize, items: Vec<Node> },
    Map { at: Marker, anchor: usize, fields: MapFields, key: Option<(String, Marker)> },
}

/// The fields of a map, in the order in which the text has them.
#[derive(Default)]
struct MapFields {
    entries: Vec<(String, Node)>,
    names: HashSet<String>,
}

impl MapFields {
    /// Adds a field. `false` if the map already has a field with this name.
    fn add(&mut self, name: String, node: Node) -> bool {
        let is_new = self.names.insert(name.clone());
        if is_new {
            self.entries.push((name, node));
        }
        is_new
    }
}

struct Loader<'a> {
    parser: Parser<Chars<'a>>,
    anchors: HashMap<usize, Node>,
    /// The size of all nodes read so far. Its depth is not used.
    total_size: NodeSize,
}

impl Loader<'_> {
    fn next(&mut self) -> Result<(Event, Marker), YamlError> {
        self.parser.next_token().map_err(|error: ScanError| error_at(*error.marker(), error.info()))
    }

    /// Reads the next node with everything below it. Uses no recursion: a text may be nested as deeply as it is long.
    fn node(&mut self) -> Result<Node, YamlError> {
        let mut open_nodes: Vec<OpenCollection> = Vec::new();
        loop {
            let (event, at) = self.next()?;
            let finished_node = match event {
                Event::SequenceStart(anchor, tag) => {
                    check_tag(tag.as_ref(), at)?;
                    open_nodes.push(OpenCollection::List { at, anchor, items: Vec::new() });
                    None
                }
                Event::MappingStart(anchor, tag) => {
                    check_tag(tag.as_ref(), at)?;
                    open_nodes.push(OpenCollection::Map { at, anchor, fields: MapFields::default(), key: None });
                    None
                }
                Event::Scalar(text, style, anchor, tag) => {
                    let value = scalar_value(text, style, tag.as_ref(), at)?;
                    let size = NodeSize::of_scalar(&value);
                    self.charge(size, at)?;
                    Some((node_at(at, Content::Scalar(Arc::new(value)), size), anchor))
                }
                Event::Alias(anchor) => Some((self.expand_alias(anchor, open_nodes.len(), at)?, 0)),
                Event::SequenceEnd | Event::MappingEnd => match open_nodes.pop() {
                    Some(ended) => Some(self.close(ended)?),
                    None => return Err(error_at(at, "an end without a beginning")),
                },
                Event::DocumentEnd | Event::StreamEnd => return Err(error_at(at, "the document breaks off")),
                Event::Nothing | Event::StreamStart | Event::DocumentStart => None,
            };
            if open_nodes.len() > DEPTH_MAX {
                return Err(too_deep_error(at));
            }
            let Some((node, anchor)) = finished_node else { continue };
            if anchor > 0 {
                self.anchors.insert(anchor, node.clone());
            }
            match open_nodes.last_mut() {
                None => return Ok(node),
                Some(parent) => add_child(parent, node, at)?,
            }
        }
    }

    /// Adds the size of a single node, or of everything that an alias stands for, and checks the limits.
    fn charge(&mut self, size: NodeSize, at: Marker) -> Result<(), YamlError> {
        self.total_size = self.total_size.plus(size);
        if self.total_size.node_count > NODE_COUNT_MAX {
            let message = format!("has more than {NODE_COUNT_MAX} values, with those that aliases repeat");
            return Err(error_at(at, message));
        }
        if self.total_size.text_len > TEXT_LEN_MAX {
            let message = format!("has more than {TEXT_LEN_MAX} bytes of text, with those that aliases repeat");
            return Err(error_at(at, message));
        }
        Ok(())
    }

    fn expand_alias(&mut self, anchor: usize, depth: usize, at: Marker) -> Result<Node, YamlError> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return Err(error_at(at, "is an alias of something that is not complete before it"));
        };
        // The depth is checked here as well, since aliases of aliases nest more deeply than the text.
        if depth + node.size.depth > DEPTH_MAX + 1 {
            return Err(too_deep_error(at));
        }
        self.charge(node.size, at)?;
        Ok(node)
    }

    fn close(&mut self, open_collection: OpenCollection) -> Result<(Node, usize), YamlError> {
        match open_collection {
            OpenCollection::List { at, anchor, items } => {
                let own_size = NodeSize { node_count: 1, text_len: 0, depth: 1 };
                self.charge(own_size, at)?;
                let size = items.iter().fold(own_size, |size, node| size.plus(node.size));
                Ok((node_at(at, Content::List(Arc::new(items)), size), anchor))
            }
            OpenCollection::Map { at, anchor, fields, .. } => {
                let own_size = NodeSize { node_count: MAP_NODE_COUNT, text_len: 0, depth: 1 };
                self.charge(own_size, at)?;
                let fields = merge_fields(fields)?;
                let size = fields.iter().fold(own_size, |size, (key, node)| {
                    size.plus(NodeSize { node_count: 1, text_len: key.len(), depth: 1 }).plus(node.size)
                });
                Ok((node_at(at, Content::Map(Arc::new(fields)), size), anchor))
            }
        }
    }
}

fn node_at(at: Marker, content: Content, size: NodeSize) -> Node {
    let (line, column) = line_and_column(at);
    Node { line, column, content, size }
}

fn too_deep_error(at: Marker) -> YamlError {
    error_at(at, format!("is nested deeper than {DEPTH_MAX} levels"))
}

/// Adds a node to a list, or to a map as a key or value.
fn add_child(parent: &mut OpenCollection, node: Node, at: Marker) -> Result<(), YamlError> {
    match parent {
        OpenCollection::List { items, .. } => items.push(node),
        OpenCollection::Map { at: begin, fields, key, .. } => match key.take() {
            Some((name, key_marker)) => {
                if !fields.add(name.clone(), node) {
                    return Err(error_at(key_marker, format!("{name:?} occurs twice")));
                }
            }
            None => {
                // The parser recognises a block map only at its first colon, and then reports a position after the first key. The map
                // begins at that key.
                if fields.entries.is_empty() && at.index() < begin.index() {
                    *begin = at;
                }
                *key = Some((key_text(&node, at)?, at));
            }
        },
    }
    Ok(())
}

fn key_text(node: &Node, at: Marker) -> Result<String, YamlError> {
    let text = match &node.content {
        Content::Scalar(value) => match &**value {
            Value::String(text) => Some(text.clone()),
            scalar @ (Value::Bool(_) | Value::Number(_)) => Some(scalar.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        },
        Content::List(_) | Content::Map(_) => None,
    };
    text.ok_or_else(|| error_at(at, "a key is a word, not a list, a map or nothing"))
}

/// Adds the fields of the maps that `<<` refers to. Fields of the map itself take precedence.
fn merge_fields(mut fields: MapFields) -> Result<Vec<(String, Node)>, YamlError> {
    let Some(position) = fields.entries.iter().position(|(key, _)| key == "<<") else { return Ok(fields.entries) };
    let (_, merge_source) = fields.entries.remove(position);
    for map in merge_source.items() {
        let (line, column) = (map.line, map.column);
        let Content::Map(merged_fields) = map.content else {
            return Err(YamlError { line, column, message: "<< expects a map, or a list of maps".to_owned() });
        };
        for (key, node) in merged_fields.iter() {
            fields.add(key.clone(), node.clone());
        }
    }
    Ok(fields.entries)
}

fn scalar_value(text: String, style: TScalarStyle, tag: Option<&Tag>, at: Marker) -> Result<Value, YamlError> {
    check_tag(tag, at)?;
    let is_text = tag.is_some_and(|tag| tag.suffix == "str") || style != TScalarStyle::Plain;
    if is_text { Ok(Value::String(text)) } else { scalar::parse_plain(&text).map_err(|message| error_at(at, message)) }
}

fn check_tag(tag: Option<&Tag>, at: Marker) -> Result<(), YamlError> {
    match tag {
        Some(tag) if tag.handle != CORE_TAG_HANDLE && tag.handle != "!!" => {
            Err(error_at(at, format!("the tag {}{} is not understood", tag.handle, tag.suffix)))
        }
        _ => Ok(()),
    }
}

fn line_and_column(at: Marker) -> (usize, usize) {
    (at.line(), at.col() + 1)
}

fn error_at(at: Marker, message: impl Into<String>) -> YamlError {
    let (line, column) = line_and_column(at);
    YamlError { line, column, message: message.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_stay_where_texts_are_dropped() {
        let mut node = documents("a: &x {b: some text}\nc: [*x, d]\n").unwrap().remove(0);
        let places = |node: &Node| ["/a/b", "/c/0", "/c/1"].map(|pointer| node.place(pointer));
        let before = places(&node);
        node.forget_texts();
        assert_eq!(places(&node), before);
        assert_eq!(node.value()["c"][1], Value::Null);
    }

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
    fn errors_have_a_position() {
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
    fn a_long_text_is_not_repeated_without_bound() {
        let aliases = |count: usize| format!("- &a {}\n- [{}]\n", "x".repeat(100_000), "*a, ".repeat(count));
        assert_eq!(documents(&aliases(300)).unwrap().len(), 1);
        let error = documents(&aliases(490_000)).unwrap_err();
        assert!(error.message.contains("bytes of text"), "{error}");
        let keys = format!("- &a {{{}: 1}}\n- [{}]\n", "x".repeat(1_000), "*a, ".repeat(50_000));
        assert!(documents(&keys).unwrap_err().message.contains("bytes of text"));
    }

    #[test]
    fn nested_anchors_share_their_contents() {
        let items = "1, ".repeat(400_000);
        let opened: String = (0..60).map(|level| format!("&a{level} [")).collect();
        let found = documents(&format!("{opened}{items}{}", "]".repeat(60))).unwrap();
        assert_eq!(found[0].size.node_count, 400_060);
    }

    #[test]
    fn aliases_nest_no_deeper_than_a_text() {
        let mut text = format!("- &a0 {}1{}\n", "[".repeat(60), "]".repeat(60));
        assert!(documents(&text).is_ok());
        for level in 1..120 {
            text.push_str(&format!("- &a{level} {}*a{}{}\n", "[".repeat(60), level - 1, "]".repeat(60)));
        }
        assert!(documents(&text).unwrap_err().message.contains("deeper"));
    }

    #[test]
    fn a_map_may_have_many_keys() {
        let keys: String = (0..100_000).map(|key| format!("k{key}: 1\n")).collect();
        let merged = format!("- &base\n  {}\n- <<: *base\n  own: 1\n", keys.trim_end().replace('\n', "\n  "));
        let found = documents(&merged).unwrap().remove(0).value();
        assert_eq!(found[1].as_object().unwrap().len(), 100_001);
        assert!(documents(&format!("{keys}k99999: 2\n")).unwrap_err().message.contains("twice"));
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
