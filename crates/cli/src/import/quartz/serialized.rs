//! A `JobDataMap` as Java serializes it. It is read only if all of its keys and values are texts.

use serde_json::{Map, Value};

const STREAM_HEADER: [u8; 4] = [0xac, 0xed, 0x00, 0x05];
const NULL: u8 = 0x70;
const REFERENCE: u8 = 0x71;
const CLASS: u8 = 0x72;
const OBJECT: u8 = 0x73;
const STRING: u8 = 0x74;
const BLOCK: u8 = 0x77;
const END: u8 = 0x78;
/// The handle of the first class, object or text of a stream.
const FIRST_HANDLE: u32 = 0x007e_0000;

/// A class: its name, its flags, and the types and names of its fields.
struct Class {
    name: &'static str,
    flags: u8,
    fields: &'static [(u8, &'static str)],
}

/// Quartz's class of job data, and the classes that it extends.
const JOB_DATA: [Class; 3] = [
    Class { name: "org.quartz.JobDataMap", flags: 2, fields: &[] },
    Class { name: "org.quartz.utils.StringKeyDirtyFlagMap", flags: 2, fields: &[(b'Z', "allowsTransientData")] },
    Class { name: "org.quartz.utils.DirtyFlagMap", flags: 2, fields: &[(b'Z', "dirty"), (b'L', "map")] },
];
const MAP: [Class; 1] =
    [Class { name: "java.util.HashMap", flags: 3, fields: &[(b'F', "loadFactor"), (b'I', "threshold")] }];

/// The texts of a map by their keys; `None` for anything else.
pub(super) fn parse_text_map(bytes: &[u8]) -> Option<Map<String, Value>> {
    let mut stream = Stream { unread_bytes: bytes, handles: Vec::new() };
    stream.expect_bytes(&STREAM_HEADER)?;
    stream.read_object_header(&JOB_DATA)?;
    stream.take_bytes(1)?; // dirty
    stream.read_object_header(&MAP)?;
    stream.take_bytes(8)?; // loadFactor, threshold
    let entries = stream.read_entries()?;
    stream.take_bytes(1)?; // allowsTransientData
    stream.unread_bytes.is_empty().then_some(entries)
}

struct Stream<'a> {
    unread_bytes: &'a [u8],
    /// The texts to which later parts of the stream may refer by handle; `None` for classes and objects.
    handles: Vec<Option<String>>,
}

impl<'a> Stream<'a> {
    fn take_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, remaining_bytes) = self.unread_bytes.split_at_checked(count)?;
        self.unread_bytes = remaining_bytes;
        Some(bytes)
    }

    fn expect_bytes(&mut self, bytes: &[u8]) -> Option<()> {
        (self.take_bytes(bytes.len())? == bytes).then_some(())
    }

    fn read_number(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take_bytes(4)?.try_into().ok()?))
    }

    /// Reads a text after its length. Java encodes NUL and characters outside of the basic plane differently from UTF-8:
    /// texts with these are refused.
    fn read_text(&mut self) -> Option<&'a str> {
        let len = u16::from_be_bytes(self.take_bytes(2)?.try_into().ok()?);
        std::str::from_utf8(self.take_bytes(usize::from(len))?).ok()
    }

    /// Reads the header of an object: its class, and the classes that this class extends.
    fn read_object_header(&mut self, classes: &[Class]) -> Option<()> {
        self.expect_bytes(&[OBJECT])?;
        for class in classes {
            self.read_class(class)?;
        }
        self.expect_bytes(&[NULL])?;
        self.handles.push(None);
        Some(())
    }

    fn read_class(&mut self, class: &Class) -> Option<()> {
        self.expect_bytes(&[CLASS])?;
        let name = self.read_text()?;
        self.take_bytes(8)?; // serialVersionUID
        self.handles.push(None);
        self.expect_bytes(&[class.flags])?;
        let count = u16::from_be_bytes(self.take_bytes(2)?.try_into().ok()?);
        if name != class.name || usize::from(count) != class.fields.len() {
            return None;
        }
        for (kind, name) in class.fields {
            self.expect_bytes(&[*kind])?;
            if self.read_text()? != *name {
                return None;
            }
            if *kind == b'L' {
                self.read_string()?; // its type
            }
        }
        self.expect_bytes(&[END])
    }

    /// Reads a text, or a reference to an earlier text.
    fn read_string(&mut self) -> Option<String> {
        match self.take_bytes(1)? {
            [STRING] => {
                let text = self.read_text()?.to_owned();
                self.handles.push(Some(text.clone()));
                Some(text)
            }
            [REFERENCE] => {
                let index = self.read_number()?.checked_sub(FIRST_HANDLE)?;
                self.handles.get(usize::try_from(index).ok()?)?.clone()
            }
            _ => None,
        }
    }

    fn read_entries(&mut self) -> Option<Map<String, Value>> {
        self.expect_bytes(&[BLOCK, 8])?;
        self.read_number()?; // capacity
        let count = self.read_number()?;
        let mut entries = Map::new();
        for _ in 0..count {
            let (key, value) = (self.read_string()?, self.read_string()?);
            entries.insert(key, value.into());
        }
        self.expect_bytes(&[END])?;
        Some(entries)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// The classes of a `JobDataMap`, as Java 17 with Quartz 2.3.2 writes them.
    const HEAD: &str = "aced0005737200156f72672e71756172747a2e4a6f62446174614d61709fb083e8bfa9b0cb020000787200266f72672e71756172747a2e7574696c\
        732e537472696e674b65794469727479466c61674d61708208e8c3fbc55d280200015a0013616c6c6f77735472616e7369656e74446174617872001d\
        6f72672e71756172747a2e7574696c732e4469727479466c61674d617013e62ead28760ace0200025a000564697274794c00036d617074000f4c6a61\
        76612f7574696c2f4d61703b7870";
    const MAP_HEAD: &str = "737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f6164466163746f724900097468726573686f6c\
        6478703f400000000000";

    /// An empty map.
    pub(in super::super) fn empty() -> String {
        format!("{HEAD}00{MAP_HEAD}10770800000010000000007800")
    }

    /// A map with three entries: `from` is `ops`, `to` refers to the same text, and `结算` is `a`.
    pub(in super::super) fn filled() -> String {
        let entries = "7400 0466726f6d 740003 6f7073 740002 746f 71007e0008 740006 e7bb93e7ae97 740001 61";
        format!("{HEAD}01{MAP_HEAD}0c77080000001000000003{}7800", entries.replace(' ', ""))
    }

    /// A map with the number 5.
    pub(in super::super) fn with_number() -> String {
        let number_hex = "7400016e737200116a6176612e6c616e672e496e746567657212e2a0a4f781873802000149000576616c7565787200106a6176612e6c61\
            6e672e4e756d62657286ac951d0b94e08b020000787000000005";
        format!("{HEAD}01{MAP_HEAD}0c77080000001000000001{number_hex}7800")
    }

    fn bytes(hex: &str) -> Vec<u8> {
        hex.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn maps_of_texts_are_read_and_nothing_else() {
        assert_eq!(bytes(&empty()).len(), 273);
        assert_eq!(parse_text_map(&bytes(&empty())), Some(Map::new()));
        let expected = json!({"from": "ops", "to": "ops", "结算": "a"});
        assert_eq!(parse_text_map(&bytes(&filled())).as_ref(), expected.as_object());
        assert_eq!(parse_text_map(&bytes(&with_number())), None);
        // A plain `HashMap` instead of a `JobDataMap`.
        assert_eq!(parse_text_map(&bytes(&format!("aced0005{MAP_HEAD}007708000000100000000078"))), None);
    }

    #[test]
    fn a_stream_that_is_cut_or_changed_is_not_read() {
        let stream_bytes = bytes(&filled());
        for len in 0..stream_bytes.len() {
            assert_eq!(parse_text_map(&stream_bytes[..len]), None, "{len}");
        }
        assert_eq!(parse_text_map(&[&stream_bytes[..], &[0]].concat()), None, "something follows");
        for index in 0..stream_bytes.len() {
            let mut changed_bytes = stream_bytes.clone();
            changed_bytes[index] ^= 0xff;
            // The changed bytes may be another valid map. Reading them must not panic.
            drop(parse_text_map(&changed_bytes));
        }
    }
}
