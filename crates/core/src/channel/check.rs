//! Checks the settings and secrets of a channel against the fields of its kind. URLs and templates are checked
//! elsewhere, beside their parsers.

use std::net::IpAddr;

use super::{
    ChannelKind, Field, FieldForm, RECIPIENT_COUNT_MAX, Reference, TEMPLATE_BYTES_MAX, VALUE_BYTES_MAX, Values, fields,
};
use crate::FieldError;
use crate::near::near_misses;

/// The longest name of a file or variable that a secret refers to.
const REFERENCE_LEN_MAX: usize = 200;
/// The longest part of a host's name between two dots, as in DNS.
const LABEL_LEN_MAX: usize = 63;

/// Reads the text of a secret as a reference; `None` if the text is the secret itself.
///
/// ```
/// use rondel_core::channel::{Reference, parse_reference};
///
/// assert_eq!(parse_reference("file:slack-url"), Some(Reference::File("slack-url")));
/// assert_eq!(parse_reference("https://hooks.example.com"), None);
/// ```
#[must_use]
pub fn parse_reference(secret: &str) -> Option<Reference<'_>> {
    let file = secret.strip_prefix("file:").map(Reference::File);
    file.or_else(|| secret.strip_prefix("env:").map(Reference::Variable))
}

/// Checks the settings and secrets of a channel, and returns every error.
#[must_use]
pub fn check(kind: ChannelKind, settings: &Values, secrets: &Values) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (part, values, is_secret) in [("settings", settings, false), ("secrets", secrets, true)] {
        for (name, value) in values {
            let pointer = format!("/{part}/{name}");
            let field = fields(kind).iter().find(|field| field.name == name && field.is_secret == is_secret);
            let sentence = match field {
                None => Some(unknown_field_message(kind, name, is_secret)),
                Some(_) if is_secret && parse_reference(value).is_some() => check_reference(value).err(),
                Some(field) => check_value(field, value).err(),
            };
            errors.extend(sentence.map(|sentence| FieldError::new(pointer, sentence)));
        }
        for field in fields(kind).iter().filter(|field| field.is_required && field.is_secret == is_secret) {
            if values.get(field.name).is_none_or(|value| value.trim().is_empty()) {
                let sentence = format!("is needed for a channel of kind {kind}, such as {}", field.default);
                errors.push(FieldError::new(format!("/{part}/{}", field.name), sentence));
            }
        }
    }
    let is_given = |values: &Values, name| values.get(name).is_some_and(|value| !value.is_empty());
    if kind == ChannelKind::Email && is_given(settings, "username") != is_given(secrets, "password") {
        let sentence = "username and password belong together: give both or neither";
        errors.push(FieldError::new("/settings/username", sentence));
    }
    errors
}

fn unknown_field_message(kind: ChannelKind, name: &str, is_secret: bool) -> String {
    if fields(kind).iter().any(|field| field.name == name) {
        let (wrong_group, right_group) = if is_secret { ("secrets", "settings") } else { ("settings", "secrets") };
        return format!("{name:?} does not belong in {wrong_group}: put it in {right_group}");
    }
    let known_names: Vec<&str> =
        fields(kind).iter().filter(|field| field.is_secret == is_secret).map(|field| field.name).collect();
    match near_misses(name, known_names.iter().copied(), 1).first() {
        Some(similar_name) => format!("a channel of kind {kind} has no field {name:?}; did you mean {similar_name}?"),
        None => format!("a channel of kind {kind} has no field {name:?}; it has {}", known_names.join(", ")),
    }
}

fn check_reference(value: &str) -> Result<(), String> {
    let (Some(Reference::File(name)) | Some(Reference::Variable(name))) = parse_reference(value) else { return Ok(()) };
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > REFERENCE_LEN_MAX || name.starts_with('.') || !name.chars().all(is_name_char) {
        return Err(format!(
            "{value:?} is not a reference: write file:NAME or env:NAME with 1 to {REFERENCE_LEN_MAX} of letters, digits, \
             '.', '_' and '-'; a file is looked up in the folder that the server's setting alert_secrets_dir names"
        ));
    }
    Ok(())
}

fn check_value(field: &Field, value: &str) -> Result<(), String> {
    let is_template = field.form == FieldForm::Template;
    let bytes_max = if is_template { TEMPLATE_BYTES_MAX } else { VALUE_BYTES_MAX };
    if value.len() > bytes_max {
        return Err(format!("has {} bytes, the most is {bytes_max}", value.len()));
    }
    if !is_template && value.chars().any(char::is_control) {
        return Err("holds a line break or another control character".to_owned());
    }
    if value.is_empty() {
        return Ok(());
    }
    match field.form {
        FieldForm::Text | FieldForm::Url | FieldForm::Template => Ok(()),
        FieldForm::Host if is_host(value) => Ok(()),
        FieldForm::Host => {
            Err(format!("{value:?} is not the name or the IP address of a host, such as {}", field.default))
        }
        FieldForm::Number(min, max) => match value.parse::<u32>() {
            Ok(number) if (min..=max).contains(&number) => Ok(()),
            _ => Err(format!("{value:?} is not a number from {min} to {max}")),
        },
        FieldForm::Choice(words) if words.contains(&value) => Ok(()),
        FieldForm::Choice(words) => Err(format!("{value:?} is none of {}", words.join(", "))),
        // A mail has one sender.
        FieldForm::Addresses => check_addresses(value, if field.name == "from" { 1 } else { RECIPIENT_COUNT_MAX }),
    }
}

/// Whether this is a host without a port. A name may have underscores: internal DNS zones and container networks have such names.
fn is_host(value: &str) -> bool {
    let is_label = |label: &str| {
        let is_label_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        (1..=LABEL_LEN_MAX).contains(&label.len()) && label.chars().all(is_label_char)
    };
    let is_host_name = || value.strip_suffix('.').unwrap_or(value).split('.').all(is_label);
    value.parse::<IpAddr>().is_ok() || is_host_name()
}

fn check_addresses(value: &str, count_max: usize) -> Result<(), String> {
    let addresses: Vec<&str> = value.split(',').map(str::trim).collect();
    if addresses.len() > count_max {
        return Err(format!("has {} addresses, the most is {count_max}", addresses.len()));
    }
    let is_address = |address: &str| {
        let parts = address.split_once('@');
        parts.is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@'))
            && !address.contains(|c: char| c.is_whitespace() || matches!(c, '<' | '>' | '"'))
    };
    match addresses.iter().find(|address| !is_address(address)) {
        Some(address) => Err(format!("{address:?} is not a mail address such as oncall@example.com")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> Values {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[track_caller]
    fn check_refused(
        kind: ChannelKind,
        settings: &[(&str, &str)],
        secrets: &[(&str, &str)],
        expected: &[(&str, &str)],
    ) {
        let errors = check(kind, &values(settings), &values(secrets));
        let found: Vec<(&str, &str)> = errors.iter().map(|it| (it.pointer.as_str(), it.message.as_str())).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((pointer, message), (wanted, words)) in found.iter().zip(expected) {
            assert!(pointer == wanted && message.contains(words), "{pointer}: {message}");
        }
    }

    #[test]
    fn good_values_pass_and_wrong_ones_are_named() {
        use ChannelKind::{Email, Ntfy, Slack};
        const MAIL: [(&str, &str); 3] = [("host", "smtp.example.com"), ("from", "a@b.c"), ("to", "d@e.f, g@h.i")];
        check_refused(Email, &MAIL, &[], &[]);
        check_refused(Slack, &[], &[("url", "https://hooks.slack.com/x")], &[]);
        check_refused(Slack, &[], &[("url", "env:RONDEL_SLACK")], &[]);
        check_refused(Slack, &[], &[], &[("/secrets/url", "is needed")]);
        check_refused(Slack, &[("url", "x")], &[("url", "y")], &[("/settings/url", "put it in secrets")]);
        check_refused(Slack, &[], &[("url", "x"), ("urk", "y")], &[("/secrets/urk", "has no field")]);
        check_refused(Slack, &[], &[("url", "file:../etc/passwd")], &[("/secrets/url", "is not a reference")]);
        check_refused(Slack, &[], &[("url", "file:..")], &[("/secrets/url", "is not a reference")]);
        check_refused(Slack, &[], &[("url", "https://x\r\nHost: y")], &[("/secrets/url", "control character")]);
        check_refused(Ntfy, &[("priority", "9")], &[("topic", "t")], &[("/settings/priority", "none of by_severity")]);
        let with = |more: &[(&'static str, &'static str)]| [MAIL.as_slice(), more].concat();
        check_refused(Email, &with(&[("port", "0")]), &[], &[("/settings/port", "from 1 to 65535")]);
        let senders = [("from", "a@b.c, d@e.f")];
        check_refused(Email, &with(&senders), &[], &[("/settings/from", "has 2 addresses, the most is 1")]);
        for host in ["h h", "mail.example.com:25", "https://mail", "a..b", ".", "mail/"] {
            check_refused(Email, &with(&[("host", host)]), &[], &[("/settings/host", "is not the name")]);
        }
        for host in ["mail", "mail.example.com.", "192.0.2.1", "2001:db8::1", "smtp_relay-1.internal"] {
            check_refused(Email, &with(&[("host", host)]), &[], &[]);
        }
        check_refused(Email, &with(&[("username", "u")]), &[], &[("/settings/username", "belong together")]);
        check_refused(Email, &with(&[("username", "u")]), &[("password", "p")], &[]);
        let long = "x".repeat(VALUE_BYTES_MAX + 1);
        check_refused(Slack, &[], &[("url", &long)], &[("/secrets/url", "the most is 2000")]);
        let many = vec!["a@b.c"; RECIPIENT_COUNT_MAX + 1].join(",");
        check_refused(
            Email,
            &[("host", "h"), ("from", "a"), ("to", &many)],
            &[],
            &[("/settings/from", "is not a mail address"), ("/settings/to", "21 addresses")],
        );
    }

    #[test]
    fn every_kind_has_fields_with_names_of_their_own() {
        for kind in ChannelKind::ALL {
            let mut names: Vec<&str> = fields(*kind).iter().map(|field| field.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), fields(*kind).len(), "{kind}");
        }
    }
}
