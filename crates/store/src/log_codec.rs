//! Lines of a log as bytes: one JSON array per line, compressed where that is worth it.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use rondel_core::Timestamp;

use crate::logs::LogLine;

/// Shorter chunks stay as they are.
const COMPRESS_FROM: usize = 512;
const PLAIN: &str = "plain";
const DEFLATE: &str = "deflate";

/// The codec's name and the bytes.
pub(crate) fn encode(lines: &[LogLine]) -> std::io::Result<(&'static str, Vec<u8>)> {
    let mut plain = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut plain, &(line.at.as_millis(), &line.level, &line.text))?;
        plain.push(b'\n');
    }
    if plain.len() < COMPRESS_FROM {
        return Ok((PLAIN, plain));
    }
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::fast());
    encoder.write_all(&plain)?;
    Ok((DEFLATE, encoder.finish()?))
}

/// What [`encode`] wrote.
pub(crate) fn decode(codec: &str, data: &[u8]) -> std::io::Result<Vec<LogLine>> {
    let mut plain = Vec::new();
    match codec {
        PLAIN => plain.extend_from_slice(data),
        DEFLATE => {
            DeflateDecoder::new(data).read_to_end(&mut plain)?;
        }
        other => return Err(std::io::Error::other(format!("{other:?} is not a codec"))),
    }
    let line = |line: &[u8]| {
        let (at, level, text): (i64, String, String) = serde_json::from_slice(line)?;
        Ok(LogLine { at: Timestamp::from_millis(at), level, text })
    };
    plain.split(|byte| *byte == b'\n').filter(|part| !part.is_empty()).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive() {
        let line =
            |text: &str| LogLine { at: Timestamp::from_secs(7), level: "info".to_owned(), text: text.to_owned() };
        for lines in [vec![], vec![line("a\nb\0\u{1f980}")], vec![line(&"long ".repeat(500)), line("")]] {
            let (codec, data) = encode(&lines).unwrap();
            assert_eq!(decode(codec, &data).unwrap(), lines);
        }
        assert_eq!(encode(&[line(&"long ".repeat(500))]).unwrap().0, DEFLATE);
    }
}
