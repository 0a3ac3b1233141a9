//! Which values of a job's parameters look like secrets: by the name of a field, by the flag or the variable before a value in a list of
//! arguments, and by the value itself. This is guesswork by names, not a security boundary.

use serde_json::{Map, Value};

use super::{HIDDEN, hide_values};
use crate::access::TOKEN_PREFIX;

/// A value anywhere in the parameters is a secret if its name contains one of these words.
const SECRET_WORDS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "passwort",
    "pwd",
    "secret",
    "token",
    "authorization",
    "api_key",
    "apikey",
    "private_key",
    "privatekey",
    "access_key",
    "accesskey",
    "credential",
    "cookie",
    "dsn",
    "webhook",
    "connection_string",
    "signature",
];
/// The short flag for a password in most programs; its value follows, with or without a blank.
const SHORT_PASSWORD: &str = "-p";
/// The kinds of Rondel's tokens, as they are written after [`TOKEN_PREFIX`].
const TOKEN_KINDS: &[&str] = &["pat_", "exec_", "xxl_"];
/// Fields that name the content of a field next to them: `{"name": "DB_PASSWORD", "value": "…"}`.
const NAME_FIELDS: &[&str] = &["name", "key", "header"];
const VALUE_FIELDS: &[&str] = &["value", "values"];

/// Parameters in which everything that looks like a secret is hidden.
pub(super) fn without_secrets(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(hide_in_fields(map)),
        Value::Array(items) => Value::Array(hide_in_list(items)),
        Value::String(text) => Value::from(text_without_secrets(&text)),
        other => other,
    }
}

fn hide_in_fields(map: Map<String, Value>) -> Map<String, Value> {
    let names_secret =
        NAME_FIELDS.iter().any(|field| map.get(*field).and_then(Value::as_str).is_some_and(is_secret_name));
    let shown_fields = map.into_iter().map(|(key, value)| {
        let is_hidden = is_secret_name(&key) || (names_secret && VALUE_FIELDS.contains(&key.as_str()));
        let value = if is_hidden { hide_values(value) } else { without_secrets(value) };
        (key, value)
    });
    shown_fields.collect()
}

/// Hides secrets in a list, which may be the arguments of a program: after a flag such as `--password`, the next item
/// is hidden.
fn hide_in_list(items: Vec<Value>) -> Vec<Value> {
    let mut follows_flag = false;
    let without_secret = |item: Value| {
        let is_value = std::mem::take(&mut follows_flag);
        let Value::String(text) = item else { return if is_value { hide_values(item) } else { without_secrets(item) } };
        if is_value && !text.starts_with("--") {
            return Value::from(HIDDEN);
        }
        follows_flag = is_secret_flag(&text) || text == SHORT_PASSWORD;
        match text.strip_prefix(SHORT_PASSWORD) {
            Some(password) if !password.is_empty() => Value::from(format!("{SHORT_PASSWORD}{HIDDEN}")),
            _ => Value::from(text_without_secrets(&text)),
        }
    };
    items.into_iter().map(without_secret).collect()
}

/// Hides, line by line, the values that flags, assignments and headers assign to names of secrets.
fn text_without_secrets(text: &str) -> String {
    if is_secret_text(text) {
        return HIDDEN.to_owned();
    }
    text.split_inclusive('\n').map(line_without_secrets).collect()
}

/// `curl --token X https://h` is shown as `curl --token *** https://h`. If the value is more than one plain word, the rest of the line is
/// hidden too, because only the program knows where a quoted or escaped value ends.
fn line_without_secrets(line: &str) -> String {
    let line_end = line.strip_suffix('\n').map_or("", |_| "\n");
    let mut shown_line = String::with_capacity(line.len());
    let mut remaining_text = line.trim_end_matches('\n');
    while let Some(word_len) =
        remaining_text.find(char::is_whitespace).or((!remaining_text.is_empty()).then_some(remaining_text.len()))
    {
        let (word, text_after) = remaining_text.split_at(word_len);
        let blank_len = text_after.find(|c: char| !c.is_whitespace()).unwrap_or(text_after.len());
        let (space, text_after) = text_after.split_at(blank_len);
        if let Some((name, value)) = split_assignment(word) {
            shown_line.extend([name, HIDDEN]);
            if value.contains(QUOTES) {
                return shown_line + line_end;
            }
            shown_line.push_str(space);
            remaining_text = text_after;
        } else if is_secret_flag(word) || is_secret_header(word) {
            shown_line.extend([word, space]);
            if text_after.is_empty() {
                return shown_line + line_end;
            }
            shown_line.push_str(HIDDEN);
            let value_len = text_after.find(char::is_whitespace).unwrap_or(text_after.len());
            if is_secret_header(word) || text_after[..value_len].contains(QUOTES) {
                return shown_line + line_end;
            }
            remaining_text = &text_after[value_len..];
        } else {
            shown_line.extend([word, space]);
            remaining_text = text_after;
        }
    }
    shown_line + line_end
}

const QUOTES: [char; 4] = ['"', '\'', '\\', '`'];

/// Splits `--password=X` or `"password":X` after the `=` or `:`, if a name of a secret is before it and a value after it.
fn split_assignment(word: &str) -> Option<(&str, &str)> {
    let sign_positions = word.match_indices(['=', ':']).map(|(at, _)| at);
    let at = sign_positions.into_iter().find(|at| names_secret(&word[..*at]))?;
    let (name, value) = word.split_at(at + 1);
    (!value.is_empty()).then_some((name, value))
}

/// Whether a word is a flag such as `--password`, so that the next word is the secret.
fn is_secret_flag(word: &str) -> bool {
    word.starts_with('-') && word.chars().all(is_name_char) && is_secret_name(word)
}

/// Whether a word ends with the name of a header that holds a secret: `Authorization:`, or `-H'Authorization:`.
fn is_secret_header(word: &str) -> bool {
    word.strip_suffix(':').is_some_and(names_secret)
}

/// Whether a text ends with the name of a secret, quoted or not.
fn names_secret(text: &str) -> bool {
    let text = text.trim_end_matches(QUOTES);
    let name = text.rfind(|c| !is_name_char(c)).map_or(text, |at| &text[at..]);
    is_secret_name(name)
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '.')
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// Whether a text is a secret whatever its name: a key, one of Rondel's tokens, or a URL with a password anywhere in it.
fn is_secret_text(text: &str) -> bool {
    let has_password = text.split("://").skip(1).any(|after_scheme| {
        let is_url_end = |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#');
        let authority = after_scheme.split(is_url_end).next().unwrap_or_default();
        authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
    });
    let has_token = text.match_indices(TOKEN_PREFIX).any(|(at, _)| {
        let after_prefix = &text[at + TOKEN_PREFIX.len()..];
        TOKEN_KINDS.iter().any(|kind| after_prefix.starts_with(kind))
    });
    has_password || has_token || text.contains("-----BEGIN ") || text.starts_with(TOKEN_PREFIX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_after_flags_of_secrets_are_hidden() {
        for (given, shown) in [
            (json!(["mysql", "--password", "X", "-h", "db"]), json!(["mysql", "--password", "***", "-h", "db"])),
            (json!(["mysql", "--password=X", "shop"]), json!(["mysql", "--password=***", "shop"])),
            (json!(["mysql", "-pX", "shop"]), json!(["mysql", "-p***", "shop"])),
            (json!(["sshpass", "-p", "X", "ssh"]), json!(["sshpass", "-p", "***", "ssh"])),
            (json!(["t", "--api-key", "--verbose"]), json!(["t", "--api-key", "--verbose"])),
            (json!(["t", "--token", 12345]), json!(["t", "--token", "***"])),
            (json!(["t", "--db-dsn", ["X"]]), json!(["t", "--db-dsn", ["***"]])),
            (json!(["env", "PGPASSWORD=X", "psql"]), json!(["env", "PGPASSWORD=***", "psql"])),
            (json!(["curl", "-H", "Authorization: Bearer X"]), json!(["curl", "-H", "Authorization: ***"])),
            (json!(["--password=", "--password"]), json!(["--password=", "--password"])),
            (json!(["ls", "-l", "--port=80", "a=b"]), json!(["ls", "-l", "--port=80", "a=b"])),
        ] {
            assert_eq!(without_secrets(given.clone()), shown, "{given}");
        }
    }

    #[test]
    fn lines_of_scripts_are_shown_without_secrets() {
        for (given, shown) in [
            ("set -e\nexport DB_PASSWORD=X\npsql\n", "set -e\nexport DB_PASSWORD=***\npsql\n"),
            ("curl --token X https://h", "curl --token *** https://h"),
            ("curl --token 'X Y' https://h\nexit", "curl --token ***\nexit"),
            ("curl -H 'Authorization: Bearer X'", "curl -H 'Authorization: ***"),
            ("SECRET='a b' run", "SECRET=***"),
            ("{\"password\":\"X\", \"a\": 1}", "{\"password\":***"),
            ("{\"password\": \"X\"}", "{\"password\": ***"),
            ("curl https://h/?token=X&a=b", "curl https://h/?token=***"),
            ("login with rondel_pat_00ff now", "***"),
            ("login with rondel_xxl_00ff now", "***"),
            ("from=https://h/x to=mysql://u:p@h/d", "***"),
            ("curl http://h:80 to a@b", "curl http://h:80 to a@b"),
            ("open http://rondel_db:80/", "open http://rondel_db:80/"),
            ("a token is a word", "a token is a word"),
            ("échelle --mot-de-passe", "échelle --mot-de-passe"),
        ] {
            assert_eq!(without_secrets(json!(given)), json!(shown), "{given}");
        }
    }

    #[test]
    fn a_value_beside_the_name_of_a_secret_is_hidden() {
        let given = json!({"env": [{"name": "DB_PASSWORD", "value": "X"}, {"name": "HOST", "value": "h"}]});
        let shown = json!({"env": [{"name": "DB_PASSWORD", "value": "***"}, {"name": "HOST", "value": "h"}]});
        assert_eq!(without_secrets(given), shown);
    }
}
