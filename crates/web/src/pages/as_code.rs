//! Shows an action of a page as an API request and as a command, for use in scripts.

use serde_json::Value;

/// The line that ends the here-document of a command.
const DOCUMENT_END: &str = "END";

/// An action as a `curl` call, and as a command.
#[derive(Clone, Debug)]
pub(crate) struct AsCode {
    pub(crate) curl: String,
    pub(crate) command: String,
}

impl AsCode {
    /// An API request to `path`, which may have a query. `command` is the command line after `rondel`.
    pub(crate) fn new(namespace: &str, (method, path): (&str, &str), body: Option<&Value>, command: &str) -> Self {
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}namespace={namespace}");
        Self::without_namespace((method, &path), body, &format!("{command} --namespace {namespace}"))
    }

    /// A request with a document, which the command reads from its standard input.
    pub(crate) fn with_document(
        namespace: &str,
        request: (&str, &str),
        body: &Value,
        (command, document): (&str, &str),
    ) -> Self {
        let code = Self::new(namespace, request, Some(body), &format!("{command} -f -"));
        // No line of these documents equals `DOCUMENT_END`: within a text of several lines, each line is indented.
        let command = format!("{} <<'{DOCUMENT_END}'\n{}\n{DOCUMENT_END}", code.command, document.trim_end());
        Self { command, ..code }
    }

    /// An action that belongs to no namespace.
    pub(crate) fn without_namespace((method, path): (&str, &str), body: Option<&Value>, command: &str) -> Self {
        let method_option = if method == "GET" { String::new() } else { format!("-X {method} ") };
        let body_options = body
            .map(|body| format!(" \\\n  -H 'Content-Type: application/json' -d {}", shell_quoted(&body.to_string())));
        Self {
            curl: format!(
                "curl {method_option}-H \"Authorization: Bearer $RONDEL_TOKEN\" \\\n  \"$RONDEL_SERVER{path}\"{}",
                body_options.unwrap_or_default()
            ),
            command: format!("rondel {command}"),
        }
    }
}

/// Quotes a text as one word of a shell.
pub(crate) fn shell_quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@,+=%".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_action_is_written_for_a_shell() {
        let body = json!({"reason": "it's late"});
        let code = AsCode::new("ops", ("POST", "/api/v1/jobs/a/runs"), Some(&body), "job trigger a");
        assert!(code.curl.starts_with("curl -X POST -H \"Authorization: Bearer $RONDEL_TOKEN\""), "{}", code.curl);
        assert!(code.curl.contains("\"$RONDEL_SERVER/api/v1/jobs/a/runs?namespace=ops\""), "{}", code.curl);
        assert!(code.curl.ends_with("-d '{\"reason\":\"it'\\''s late\"}'"), "{}", code.curl);
        assert_eq!(code.command, "rondel job trigger a --namespace ops");
        assert_eq!(shell_quoted("$(date)"), "'$(date)'");
        let code = AsCode::with_document("ops", ("PUT", "/x"), &json!({"a": "'"}), ("job apply", "- a: \"'$(x)\"\n"));
        assert_eq!(code.command, "rondel job apply -f - --namespace ops <<'END'\n- a: \"'$(x)\"\nEND");
        assert!(code.curl.contains("-X PUT") && code.curl.ends_with("-d '{\"a\":\"'\\''\"}'"), "{}", code.curl);
    }
}
