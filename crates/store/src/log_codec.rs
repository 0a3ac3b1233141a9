//! Encodes the lines of a log as bytes: one JSON array per line. Large chunks are compressed.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use rondel_core::Timestamp;

use crate::logs::LogLine;

/// Smallest size of a chunk that is compressed, in bytes.
const COMPRESSED_LEN_MIN: usize = 512;
/// Maximum size of a chunk after it is decompressed, in bytes of text, because a few stored kilobytes can decompress to any size. The
/// chunks that the gateway accepts are smaller, even after their text is escaped.
const PLAIN_BYTES_MAX: usize = 4 * 1024 * 1024;
const PLAIN: &str = "plain";
const DEFLATE: &str = "deflate";

/// Encodes lines. Returns the name of the codec and the bytes.
pub(crate) fn encode(lines: &[LogLine]) -> std::io::Result<(&'static str, Vec<u8>)> {
    let mut plain_bytes = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut plain_bytes, &(line.at.as_millis(), &line.level, &line.text))?;
        plain_bytes.push(b'\n');
    }
    if plain_bytes.len() < COMPRESSED_LEN_MIN {
        return Ok((PLAIN, plain_bytes));
    }
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(plain_bytes.len() / 4), Compression::fast());
    encoder.write_all(&plain_bytes)?;
    Ok((DEFLATE, encoder.finish()?))
}

/// Decodes what [`encode`] wrote. A chunk that is too large yields its first lines, and a line that reports the cut.
pub(crate) fn decode(codec: &str, data: &[u8]) -> std::io::Result<Vec<LogLine>> {
    let (mut plain_bytes, read_len_max) = (Vec::new(), PLAIN_BYTES_MAX as u64 + 1);
    match codec {
        PLAIN => data.take(read_len_max).read_to_end(&mut plain_bytes)?,
        DEFLATE => DeflateDecoder::new(data).take(read_len_max).read_to_end(&mut plain_bytes)?,
        other => return Err(std::io::Error::other(format!("{other:?} is not a codec"))),
    };
    let is_cut = plain_bytes.len() > PLAIN_BYTES_MAX;
    if is_cut {
        let end = plain_bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        plain_bytes.truncate(end);
    }
    let parse_line = |line: &[u8]| {
        let (at, level, text): (i64, String, String) = serde_json::from_slice(line)?;
        Ok(LogLine { at: Timestamp::from_millis(at), level, text })
    };
    let lines = plain_bytes.split(|byte| *byte == b'\n').filter(|part| !part.is_empty()).map(parse_line);
    let mut lines: Vec<LogLine> = lines.collect::<std::io::Result<_>>()?;
    if is_cut {
        let at = lines.last().map_or(Timestamp::EPOCH, |line| line.at);
        let text = format!("… the rest of this part of the log is not shown: it has more than {PLAIN_BYTES_MAX} bytes");
        lines.push(LogLine { at, level: "warn".to_owned(), text });
    }
    Ok(lines)
}

/// Approximate size of these lines as uncompressed text, in bytes.
pub(crate) fn plain_len(lines: &[LogLine]) -> usize {
    const OVERHEAD: usize = 32;
    lines.iter().map(|line| line.text.len() + OVERHEAD).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk can be far smaller in its stored form than after it is decompressed.
    #[test]
    fn a_small_chunk_is_not_read_as_any_number_of_lines() {
        let line = |text: String| LogLine { at: Timestamp::from_secs(7), level: "info".to_owned(), text };
        let envelope_len = encode(&[line("x".repeat(400))]).unwrap().1.len() - 400;
        let fits = vec![line("x".repeat(PLAIN_BYTES_MAX - envelope_len))];
        let (codec, data) = encode(&fits).unwrap();
        assert_eq!(decode(codec, &data).unwrap(), fits);
        let mut much = vec![line("first".to_owned())];
        much.extend(vec![line("x".repeat(64 * 1024)); 400]);
        let (codec, data) = encode(&much).unwrap();
        assert!(data.len() < 256 * 1024, "{}", data.len());
        let read = decode(codec, &data).unwrap();
        assert!(read.len() < 70 && read[..read.len() - 1] == much[..read.len() - 1], "{}", read.len());
        assert!(read.last().unwrap().text.contains("more than 4194304 bytes"));
        assert_eq!(decode(PLAIN, "x".repeat(PLAIN_BYTES_MAX + 2).as_bytes()).unwrap().len(), 1);
    }

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
