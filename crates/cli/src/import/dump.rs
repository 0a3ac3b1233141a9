//! Reads the rows of a few tables from a dump of a MySQL database, as mysqldump writes it. The dump is read as a stream.
//! Only `INSERT`, `REPLACE` and `CREATE TABLE` for these tables are read; other statements of any size are skipped.

use std::collections::BTreeMap;
use std::io::{BufRead, ErrorKind};

/// Maximum length of a statement for one of the tables, in bytes: MySQL's own limit is 1 GiB, its default 64 MiB.
const STATEMENT_LEN_MAX: usize = 64 << 20;
/// The first bytes of a file that gzip has compressed.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Maximum number of rows read from a table.
const ROW_COUNT_MAX: usize = 200_000;
/// Maximum number of columns of a table: MySQL's own limit.
const COLUMN_COUNT_MAX: usize = 4_096;

/// A row, keyed by its columns; NULL is left out.
pub(super) use rondel_store::foreign::ForeignRow as Row;

/// Reads the rows of these tables. A table that the dump does not contain is missing from the result.
pub(super) fn read(source: &mut dyn BufRead, tables: &[&str]) -> Result<BTreeMap<String, Vec<Row>>, String> {
    if source.fill_buf().is_ok_and(|first_bytes| first_bytes.starts_with(&GZIP_MAGIC)) {
        return Err(
            "is compressed: unpack it first, such as with gunzip -c FILE | rondel import xxl-job --dump -".to_owned()
        );
    }
    let mut rows_by_table: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    let mut columns: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut statements = Statements { source, line: 1, tables };
    while let Some((line, text)) = statements.next()? {
        let line_error = |message: String| format!("line {line}: {message}");
        match Statement::read(&text).map_err(line_error)? {
            Statement::Create(table, names) => {
                columns.insert(table.clone(), names);
                rows_by_table.entry(table).or_default();
            }
            Statement::Insert(table, named_columns, rows) => {
                let names = if named_columns.is_empty() { columns.get(&table) } else { Some(&named_columns) };
                let Some(names) = names else {
                    return Err(line_error(format!(
                        "rows of {table} without the names of its columns, and no CREATE TABLE before them: dump with \
                         --complete-insert, or without --no-create-info"
                    )));
                };
                let table_rows = rows_by_table.entry(table.clone()).or_default();
                for values in rows {
                    if values.len() != names.len() {
                        let counts_text = format!("{} values for {} columns", values.len(), names.len());
                        return Err(line_error(format!("a row of {table} has {counts_text}")));
                    }
                    let pairs = names.iter().cloned().zip(values);
                    table_rows.push(pairs.filter_map(|(name, value)| Some((name, value?))).collect());
                }
                if table_rows.len() > ROW_COUNT_MAX {
                    return Err(line_error(format!("{table} has more than {ROW_COUNT_MAX} rows")));
                }
            }
            Statement::Other => {}
        }
    }
    Ok(rows_by_table)
}

/// Splits a dump into statements: at the semicolons outside of quoted texts and comments.
struct Statements<'a> {
    source: &'a mut dyn BufRead,
    line: u64,
    tables: &'a [&'a str],
}

/// The element of the dump that the next byte belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanState {
    Statement,
    Quoted(u8),
    LineComment,
    /// A comment; `has_star` is set after a `*`, because `*/` ends the comment.
    Comment {
        has_star: bool,
    },
}

impl Statements<'_> {
    /// The next statement for one of the tables, without comments, and the line in which it begins; `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, String)>, String> {
        let mut text: Vec<u8> = Vec::new();
        let (mut state, mut line, mut is_stored) = (ScanState::Statement, self.line, true);
        while let Some(byte) = self.read_byte()? {
            let last_byte = text.last().copied();
            match state {
                ScanState::Statement => match byte {
                    b';' => {
                        if is_stored && self.is_wanted(&text) {
                            let text = String::from_utf8(text).map_err(|_| {
                                format!("line {line}: is not UTF-8: dump with --default-character-set=utf8mb4")
                            })?;
                            return Ok(Some((line, text)));
                        }
                        text.clear();
                        is_stored = true;
                        continue;
                    }
                    b'\'' | b'"' | b'`' => state = ScanState::Quoted(byte),
                    b'#' => state = ScanState::LineComment,
                    b'-' if last_byte == Some(b'-') && !text.iter().rev().skip(1).any(|b| !b.is_ascii_whitespace()) => {
                        text.clear();
                        state = ScanState::LineComment;
                        continue;
                    }
                    b'*' if last_byte == Some(b'/') => {
                        text.pop();
                        state = ScanState::Comment { has_star: false };
                        continue;
                    }
                    _ if text.is_empty() && byte.is_ascii_whitespace() => {
                        line = self.line;
                        continue;
                    }
                    _ => {}
                },
                ScanState::Quoted(quote) if byte == b'\\' && quote != b'`' => {
                    push_if_stored(&mut text, byte, is_stored);
                    if let Some(next_byte) = self.read_byte()? {
                        push_if_stored(&mut text, next_byte, is_stored);
                    }
                    continue;
                }
                // A doubled quote within a text is read as the end of one text and the start of the next. That does not
                // change where the statement ends.
                ScanState::Quoted(quote) if byte == quote => state = ScanState::Statement,
                ScanState::Quoted(_) => {}
                ScanState::LineComment => {
                    if byte == b'\n' {
                        state = ScanState::Statement;
                    }
                    continue;
                }
                ScanState::Comment { has_star } => {
                    let is_over = has_star && byte == b'/';
                    state = if is_over { ScanState::Statement } else { ScanState::Comment { has_star: byte == b'*' } };
                    continue;
                }
            }
            if state == ScanState::LineComment {
                continue;
            }
            push_if_stored(&mut text, byte, is_stored);
            if is_stored && text.len() == PREFIX_LEN && !self.is_wanted(&text) {
                is_stored = false;
            }
            if text.len() > STATEMENT_LEN_MAX {
                return Err(format!("line {line}: a statement has more than {} MiB", STATEMENT_LEN_MAX >> 20));
            }
        }
        match state {
            ScanState::Quoted(_) => Err(format!("line {line}: the file ends within a text: the dump is incomplete")),
            ScanState::Comment { .. } => {
                Err(format!("line {line}: the file ends within a comment: the dump is incomplete"))
            }
            ScanState::Statement | ScanState::LineComment if !text.trim_ascii().is_empty() => Err(format!(
                "line {line}: the file ends within a statement, without its semicolon: the dump is incomplete"
            )),
            ScanState::Statement | ScanState::LineComment => Ok(None),
        }
    }

    fn read_byte(&mut self) -> Result<Option<u8>, String> {
        loop {
            match self.source.fill_buf() {
                Ok([]) => return Ok(None),
                Ok([byte, ..]) => {
                    let byte = *byte;
                    self.source.consume(1);
                    self.line += u64::from(byte == b'\n');
                    return Ok(Some(byte));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("cannot be read: {error}")),
            }
        }
    }

    /// Whether the text begins like a statement for one of the tables.
    fn is_wanted(&self, text: &[u8]) -> bool {
        let statement_start = String::from_utf8_lossy(&text[..text.len().min(PREFIX_LEN)]).to_ascii_lowercase();
        // The table's name comes before the columns and the values.
        let statement_start = statement_start.split(['(', '\'', '"']).next().unwrap_or_default();
        let mut words = statement_start.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.')));
        let is_statement = matches!(words.next(), Some("insert" | "replace" | "create"));
        is_statement && words.any(|word| self.tables.contains(&word.rsplit('.').next().unwrap_or(word)))
    }
}

/// The name of a statement's table is within this many bytes.
const PREFIX_LEN: usize = 200;

/// Appends a byte. If `is_stored` is false, the statement is skipped: only its beginning and its last byte are kept.
fn push_if_stored(text: &mut Vec<u8>, byte: u8, is_stored: bool) {
    if is_stored || text.len() < PREFIX_LEN {
        text.push(byte);
    } else if let Some(last_byte) = text.last_mut() {
        *last_byte = byte;
    }
}

enum Statement {
    Create(String, Vec<String>),
    Insert(String, Vec<String>, Vec<Vec<Option<String>>>),
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A word or a number.
    Word(String),
    /// A name in backquotes.
    Name(String),
    Text(String),
    Sign(char),
}

impl Statement {
    fn read(text: &str) -> Result<Self, String> {
        let mut tokens = Tokens { unread_chars: text.chars().peekable(), peeked_token: None };
        let verb = tokens.read_word()?;
        match verb.as_str() {
            "insert" | "replace" => Self::parse_insert(&mut tokens),
            "create" => Self::parse_create(&mut tokens),
            _ => Ok(Self::Other),
        }
    }

    fn parse_insert(tokens: &mut Tokens<'_>) -> Result<Self, String> {
        let mut word = tokens.read_word()?;
        while matches!(word.as_str(), "into" | "ignore" | "low_priority" | "delayed") {
            word = tokens.read_word()?;
        }
        let table = tokens.read_table_name(word)?;
        let mut names = Vec::new();
        let mut token = tokens.next()?;
        if token == Some(Token::Sign('(')) {
            loop {
                names.push(tokens.read_word()?);
                match tokens.next()? {
                    Some(Token::Sign(',')) if names.len() < COLUMN_COUNT_MAX => {}
                    Some(Token::Sign(')')) => break,
                    token => {
                        return Err(unexpected_token_text(
                            token.as_ref(),
                            "a comma or a bracket behind the name of a column",
                        ));
                    }
                }
            }
            token = tokens.next()?;
        }
        match token {
            Some(Token::Word(word)) if word.eq_ignore_ascii_case("values") => {}
            token => return Err(unexpected_token_text(token.as_ref(), "VALUES")),
        }
        let mut rows = Vec::new();
        loop {
            rows.push(tokens.row()?);
            match tokens.next()? {
                Some(Token::Sign(',')) => {}
                None => return Ok(Self::Insert(table, names, rows)),
                token => {
                    return Err(unexpected_token_text(token.as_ref(), "a comma or the end behind a row"));
                }
            }
        }
    }

    /// Reads the names of the columns: the first word of each entry between the outer brackets that is no key or constraint.
    fn parse_create(tokens: &mut Tokens<'_>) -> Result<Self, String> {
        let mut word = tokens.read_word()?;
        if word != "table" {
            return Ok(Self::Other);
        }
        word = tokens.read_word()?;
        while matches!(word.as_str(), "if" | "not" | "exists") {
            word = tokens.read_word()?;
        }
        let table = tokens.read_table_name(word)?;
        if tokens.next()? != Some(Token::Sign('(')) {
            return Ok(Self::Other);
        }
        let (mut names, mut depth, mut is_first) = (Vec::new(), 1_u32, true);
        while let Some(token) = tokens.next()? {
            match token {
                Token::Sign('(') => depth += 1,
                Token::Sign(')') => depth -= 1,
                Token::Sign(',') if depth == 1 => {
                    is_first = true;
                    continue;
                }
                Token::Name(name) if is_first => names.push(name.to_ascii_lowercase()),
                Token::Word(word) if is_first && !is_key(&word) => names.push(word.to_ascii_lowercase()),
                _ => {}
            }
            is_first = false;
            if depth == 0 || names.len() > COLUMN_COUNT_MAX {
                break;
            }
        }
        Ok(Self::Create(table, names))
    }
}

/// Whether an entry of CREATE TABLE that begins with this word is a key or a constraint, and not a column.
fn is_key(word: &str) -> bool {
    let keys = ["primary", "unique", "key", "index", "constraint", "fulltext", "spatial", "foreign", "check"];
    keys.iter().any(|key| word.eq_ignore_ascii_case(key))
}

struct Tokens<'a> {
    unread_chars: std::iter::Peekable<std::str::Chars<'a>>,
    peeked_token: Option<Token>,
}

impl Tokens<'_> {
    fn next(&mut self) -> Result<Option<Token>, String> {
        if let Some(token) = self.peeked_token.take() {
            return Ok(Some(token));
        }
        while self.unread_chars.next_if(|c| c.is_whitespace()).is_some() {}
        let Some(first_char) = self.unread_chars.next() else { return Ok(None) };
        Ok(Some(match first_char {
            '\'' | '"' => Token::Text(self.read_quoted(first_char, true)?),
            '`' => Token::Name(self.read_quoted('`', false)?),
            c if is_word_char(c) => {
                let mut word = String::from(c);
                while let Some(next_char) = self.unread_chars.next_if(|c| is_word_char(*c)) {
                    word.push(next_char);
                }
                Token::Word(word)
            }
            sign => Token::Sign(sign),
        }))
    }

    fn read_quoted(&mut self, quote: char, has_escapes: bool) -> Result<String, String> {
        let mut text = String::new();
        loop {
            match self.unread_chars.next() {
                None => return Err("ends within a text".to_owned()),
                Some(c) if c == quote => {
                    if self.unread_chars.next_if_eq(&quote).is_none() {
                        return Ok(text);
                    }
                    text.push(quote);
                }
                Some('\\') if has_escapes => match self.unread_chars.next() {
                    Some('n') => text.push('\n'),
                    Some('r') => text.push('\r'),
                    Some('t') => text.push('\t'),
                    Some('0') => text.push('\0'),
                    Some('b') => text.push('\u{8}'),
                    Some('Z') => text.push('\u{1a}'),
                    Some(escaped_char) => text.push(escaped_char),
                    None => return Err("ends within a text".to_owned()),
                },
                Some(c) => text.push(c),
            }
        }
    }

    /// A word or a name, in lower case.
    fn read_word(&mut self) -> Result<String, String> {
        match self.next()? {
            Some(Token::Word(word) | Token::Name(word)) => Ok(word.to_ascii_lowercase()),
            token => Err(unexpected_token_text(token.as_ref(), "a name")),
        }
    }

    /// The name of the table, without the name of its database.
    fn read_table_name(&mut self, first_part: String) -> Result<String, String> {
        let mut name = first_part;
        loop {
            match self.next()? {
                Some(Token::Sign('.')) => name = self.read_word()?,
                token => {
                    self.peeked_token = token;
                    return Ok(name.rsplit('.').next().unwrap_or_default().to_owned());
                }
            }
        }
    }

    fn row(&mut self) -> Result<Vec<Option<String>>, String> {
        let mut values = Vec::new();
        match self.next()? {
            Some(Token::Sign('(')) => {}
            token => return Err(unexpected_token_text(token.as_ref(), "a bracket before a row")),
        }
        loop {
            let mut token = self.next()?;
            let sign = if token == Some(Token::Sign('-')) { "-" } else { "" };
            if !sign.is_empty() {
                token = self.next()?;
            }
            values.push(match token {
                Some(Token::Word(word)) if word.eq_ignore_ascii_case("null") => None,
                // A character set before a text, such as _utf8mb4.
                Some(Token::Word(word)) if word.starts_with('_') => match self.next()? {
                    Some(Token::Text(text)) => Some(text),
                    token => return Err(unexpected_token_text(token.as_ref(), "a text")),
                },
                Some(Token::Word(word)) if word.starts_with(|c: char| c.is_ascii_digit()) => {
                    Some(format!("{sign}{word}"))
                }
                Some(Token::Text(text)) => Some(text),
                token => return Err(unexpected_token_text(token.as_ref(), "NULL, a number or a text")),
            });
            match self.next()? {
                Some(Token::Sign(',')) if values.len() < COLUMN_COUNT_MAX => {}
                Some(Token::Sign(')')) => return Ok(values),
                token => {
                    return Err(unexpected_token_text(token.as_ref(), "a comma or a bracket behind a value"));
                }
            }
        }
    }
}

const fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | '+')
}

fn unexpected_token_text(token: Option<&Token>, expected: &str) -> String {
    let token_text = match token {
        None => "the end".to_owned(),
        Some(Token::Word(text) | Token::Name(text) | Token::Text(text)) => {
            format!("{:?}", text.chars().take(40).collect::<String>())
        }
        Some(Token::Sign(sign)) => format!("{sign:?}"),
    };
    format!("{token_text} where {expected} is expected")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(dump: &str) -> Result<BTreeMap<String, Vec<Row>>, String> {
        read(&mut dump.as_bytes(), &["xxl_job_info", "xxl_job_user"])
    }

    #[test]
    fn dumps_of_mysqldump_are_read() {
        let dump = "-- MySQL dump 10.13; it's\n/*!40101 SET NAMES utf8mb4 */;\n# another; one\nDROP TABLE IF EXISTS `xxl_job_info`;\n\
            CREATE TABLE `xxl_job_info` (\n  `id` int(11) NOT NULL AUTO_INCREMENT,\n  `job_desc` varchar(255) NOT NULL COMMENT 'a, (b',\n  \
            glue_source mediumtext,\n  `rate` decimal(5,2) DEFAULT NULL,\n  PRIMARY KEY (`id`),\n  KEY `I_x` (`job_desc`,`id`)\n) ENGINE=InnoDB;\n\
            LOCK TABLES `xxl_job_info` WRITE;\nINSERT INTO `xxl_job_info` VALUES (1,'it''s \\'a\\'; -- no comment','a\\nb\\\\',-1.5),\
            (2,_utf8mb4'结算 /* no */ \"x\"',NULL,1e3);\n/*!40000 ALTER TABLE `x` ENABLE KEYS */;\nINSERT INTO `xxl_job_log` VALUES (1,'xxl_job_info; (');\n\
            INSERT INTO shop.xxl_job_user (`ID`, username) VALUES (7,'ann');\n";
        let found = rows(dump).unwrap();
        let jobs = &found["xxl_job_info"];
        assert_eq!(jobs.len(), 2, "{found:?}");
        assert_eq!(
            (jobs[0]["job_desc"].as_str(), jobs[0]["glue_source"].as_str()),
            ("it's 'a'; -- no comment", "a\nb\\")
        );
        assert_eq!((jobs[0]["rate"].as_str(), jobs[1]["job_desc"].as_str()), ("-1.5", "结算 /* no */ \"x\""));
        assert!(!jobs[1].contains_key("glue_source"), "NULL is left out");
        assert_eq!((found["xxl_job_user"][0]["id"].as_str(), found.len()), ("7", 2));
    }

    #[test]
    fn a_compressed_dump_is_refused_as_such() {
        let why = read(&mut &b"\x1f\x8b\x08\0dump"[..], &["xxl_job_info"]).unwrap_err();
        assert!(why.starts_with("is compressed"), "{why}");
    }

    #[test]
    fn a_file_that_is_not_a_dump_is_refused_with_its_line() {
        for (dump, words) in [
            ("\nINSERT INTO xxl_job_info VALUES (1);", "line 2: rows of xxl_job_info without the names"),
            (
                "INSERT INTO xxl_job_info (id, a) VALUES (1);",
                "line 1: a row of xxl_job_info has 1 values for 2 columns",
            ),
            ("INSERT INTO xxl_job_info (id) VALUES (1", "line 1: the file ends within a statement"),
            ("INSERT INTO xxl_job_info (id) VALUES (1)", "line 1: the file ends within a statement"),
            ("INSERT INTO xxl_job_info (id) VALUES (1);\nINSERT INTO xx", "line 2: the file ends within a statement"),
            ("INSERT INTO xxl_job_log (id) VALUES (1", "line 1: the file ends within a statement"),
            ("INSERT INTO xxl_job_info (id) VALUES (1);\n/* cut", "the file ends within a comment"),
            ("INSERT INTO xxl_job_info (id) VALUES (now());", "\"now\" where NULL, a number or a text is expected"),
            ("INSERT INTO xxl_job_info (id) SELECT 1;", "\"SELECT\" where VALUES is expected"),
            ("INSERT INTO xxl_job_info (id) VALUES ('a", "the file ends within a text"),
        ] {
            let found = rows(dump).unwrap_err();
            assert!(found.contains(words), "{dump}: {found}");
        }
        let long = format!("INSERT INTO xxl_job_info (id) VALUES ('{}');", "a".repeat(STATEMENT_LEN_MAX));
        assert!(rows(&long).unwrap_err().contains("more than 64 MiB"));
        let skipped = format!("INSERT INTO xxl_job_log (id) VALUES ('{}');", "a".repeat(STATEMENT_LEN_MAX));
        assert!(rows(&skipped).unwrap().is_empty());
    }
}
