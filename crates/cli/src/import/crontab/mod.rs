//! Reads crontabs as cron does (Vixie cron and cronie). A command becomes a run of the agent's handler `shell`. The
//! jobs follow cron's other rules: runs may overlap, missed fires are skipped, and no run is retried.

mod subject;
#[cfg(test)]
mod tests;

use rondel_core::cron::CronExpr;
use serde_json::{Map, Value, json};

use self::subject::subject;
use super::result::{Entry, ImportResult, origin_labels};

/// Where a crontab is from, and the app of its jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrontabSource<'a> {
    pub(super) app: &'a str,
    pub(super) zone: Option<&'a str>,
    pub(super) executor: Option<&'a str>,
    /// The crontab's name; `None` for stdin.
    pub(super) file: Option<&'a str>,
    /// The prefix of the jobs' names.
    pub(super) prefix: &'a str,
    /// Whether each command has a user before it.
    pub(super) has_user: bool,
}

/// The variables that the crontab sets before the current line.
#[derive(Debug, Default)]
struct Variables {
    env: Map<String, Value>,
    shell: Option<String>,
    zone: Option<String>,
    home: Option<String>,
    mail_to: Option<String>,
}

/// Reads a crontab.
///
/// # Errors
/// A sentence, if neither the crontab nor `source` names a time zone.
pub(super) fn read(text: &str, source: &CrontabSource<'_>) -> Result<ImportResult, String> {
    let mut result = ImportResult::with_prefix(source.prefix);
    let mut variables = Variables::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some((name, value)) = parse_assignment(line) {
            variables.set(name, value);
            if name == "TZ" {
                result.remarks.push(format!(
                    "line {}: TZ is the zone of the commands: as in cron, schedules are read in that of CRON_TZ, else of --time-zone",
                    index + 1
                ));
            }
            continue;
        }
        read_line(line, index + 1, source, &variables, &mut result)?;
    }
    Ok(result)
}

/// A line with a command.
#[derive(Debug)]
struct Line<'a> {
    cron: String,
    user: Option<String>,
    /// The command with its input, which begins after the first `%`.
    command: &'a str,
}

impl<'a> Line<'a> {
    /// Reads a line. The error is the reason why the line is left out, and the part of the line that the report shows.
    fn read(line: &'a str, has_user: bool) -> Result<Self, (String, &'a str)> {
        // A minus before the first field only keeps a run out of the system's log.
        let is_field = |text: &&str| text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '*' | '@'));
        let line = line.strip_prefix('-').filter(is_field).unwrap_or(line);
        let field_count = if line.starts_with('@') { 1 } else { 5 };
        let Some((cron, user_and_command)) = split_words(line, field_count) else {
            return Err(("is neither NAME=value nor five fields and a command".to_owned(), line));
        };
        if cron.eq_ignore_ascii_case("@reboot") {
            return Err(("@reboot has no instant: let the host's init system start it".to_owned(), user_and_command));
        }
        if let Err(error) = CronExpr::parse(&cron) {
            return Err((error.to_string(), user_and_command));
        }
        let (user, command) = match split_words(user_and_command, 1) {
            Some((user, command)) if has_user => (Some(user), command),
            _ => (None, user_and_command),
        };
        if let Some(user) = user.as_deref().filter(|user| !may_be_user(user)) {
            let reason = format!(
                "its user is {user:?}, which is not a name: a line has five fields of time, the user, and the command"
            );
            return Err((reason, line));
        }
        let first_word = command.split_whitespace().next().unwrap_or_default();
        if is_time_field(first_word) {
            let reason = format!("its command begins with {first_word:?}: a line has five fields of time, and not six");
            return Err((reason, line));
        }
        if command.is_empty() || (has_user && user.is_none()) {
            return Err(("has no command".to_owned(), line));
        }
        Ok(Self { cron, user, command })
    }
}

/// Whether a word can be a user's name and is not a time field.
fn may_be_user(word: &str) -> bool {
    word.contains(char::is_alphabetic) && !word.contains(['*', '?', '='])
}

/// Whether a word is a time field and cannot be a program.
fn is_time_field(word: &str) -> bool {
    let is_time_char = |c: char| c.is_ascii_digit() || matches!(c, '*' | '?' | '/' | ',' | '-');
    word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '*' | '?')) && word.chars().all(is_time_char)
}

fn read_line(
    text: &str,
    number: usize,
    source: &CrontabSource<'_>,
    variables: &Variables,
    result: &mut ImportResult,
) -> Result<(), String> {
    let place = format!("line {number}");
    // A title is one line without tabs.
    let new_entry = |title: &str| Entry::new(place.clone(), title.split_whitespace().collect::<Vec<_>>().join(" "));
    let line = match Line::read(text, source.has_user) {
        Ok(line) => line,
        Err((reason, shown_part)) => {
            result.leave_out(new_entry(if shown_part.is_empty() { text } else { shown_part }), reason);
            return Ok(());
        }
    };
    let Some(zone) = variables.zone.as_deref().or(source.zone) else {
        return Err(format!(
            "{place}: the crontab sets no CRON_TZ: add --time-zone with the zone of its host, such as --time-zone Europe/Berlin"
        ));
    };
    let (command, stdin) = split_input(line.command);
    // The identity leaves out the schedule, so that a job keeps its name when its schedule changes.
    let identity = format!("{} {}", line.user.as_deref().unwrap_or_default(), line.command);
    let name = result.names.unique_name(&subject(&command), &[&identity, &format!("{identity} {}", line.cron)]);
    let mut entry = new_entry(&command);
    add_notes(&mut entry, &command, line.user.as_deref(), variables);
    let mut job = Map::new();
    for (field, value) in [
        ("name", json!(name)),
        ("app", json!(source.app)),
        ("handler", json!("shell")),
        ("description", json!("From a crontab.")),
        ("params", variables.params(&command, stdin)),
        ("schedule", json!({"cron": line.cron, "time_zone": zone})),
        ("misfire", json!({"policy": "skip"})),
        ("overlap", json!({"policy": "allow"})),
        ("delivery", json!("at_most_once")),
    ] {
        job.insert(field.to_owned(), value);
    }
    let origins = [("cron-user", line.user.as_deref()), ("cron-file", source.file), ("cron-host", source.executor)];
    let labels = origin_labels(&origins.map(|(key, value)| (key, value.unwrap_or_default())));
    if !labels.is_empty() {
        job.insert("labels".to_owned(), Value::Object(labels));
    }
    if let Some(executor) = source.executor {
        job.insert("select".to_owned(), json!({"executors": [executor]}));
    }
    result.add(entry, job);
    Ok(())
}

fn add_notes(entry: &mut Entry, command: &str, user: Option<&str>, variables: &Variables) {
    if let Some(user) = user {
        entry.note_change(format!("ran as user {user}: runs have the agent's user (its --run-as)"));
    }
    if let Some(mail_to) = &variables.mail_to {
        entry.note_change(format!("its output was mailed to {mail_to}: it is in the run's log"));
    }
    if command.contains("/dev/null") {
        entry.note_change("its output goes to /dev/null: without that it would be in the run's log");
    }
    if command.split_whitespace().any(|word| word == "flock" || word.ends_with("/flock")) {
        entry.note_change(
            "flock still keeps its runs apart, on one host: to keep them apart on all hosts, set overlap.policy to discard, \
             which also shows as skipped what did not run",
        );
    }
    if variables.home.is_none() {
        entry.note_change(
            "began in the user's home folder: runs begin in an empty folder of their own; params.cwd sets another",
        );
    }
}

impl Variables {
    fn set(&mut self, name: &str, value: &str) {
        let nonempty_value = || Some(value.to_owned()).filter(|value| !value.is_empty());
        match name {
            "SHELL" => self.shell = nonempty_value(),
            // TZ stays in `env`: by crontab(5), it is the zone of the commands and not of the schedule.
            "CRON_TZ" => self.zone = nonempty_value(),
            "HOME" => self.home = nonempty_value(),
            "MAILTO" => self.mail_to = nonempty_value(),
            "LOGNAME" | "USER" => {}
            _ => drop(self.env.insert(name.to_owned(), value.into())),
        }
    }

    /// The parameters of the handler `shell`.
    fn params(&self, command: &str, stdin: Option<String>) -> Value {
        let mut params = json!({"argv": [self.shell.as_deref().unwrap_or("/bin/sh"), "-c", command]});
        if let Some(stdin) = stdin {
            params["stdin"] = stdin.into();
        }
        let mut env = self.env.clone();
        if let Some(home) = &self.home {
            params["cwd"] = home.as_str().into();
            env.insert("HOME".to_owned(), home.as_str().into());
        }
        if !env.is_empty() {
            params["env"] = Value::Object(env);
        }
        params
    }
}

/// The name and the value of an assignment: `NAME=value`, `NAME = "value"`. `None` for any other line.
fn parse_assignment(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let unquoted = |quote: char| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
    is_name.then(|| (name, unquoted('"').or_else(|| unquoted('\'')).unwrap_or(value)))
}

/// The first `count` words, joined by single blanks, and the rest of the line; `None` if there are fewer words.
fn split_words(line: &str, count: usize) -> Option<(String, &str)> {
    let mut unread_text = line.trim_start();
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let end = unread_text.find(char::is_whitespace).unwrap_or(unread_text.len());
        let (word, text_after) = unread_text.split_at(end);
        if word.is_empty() {
            return None;
        }
        words.push(word);
        unread_text = text_after.trim_start();
    }
    Some((words.join(" "), unread_text))
}

/// Splits a command from its input: cron cuts at the first `%`, reads each further `%` as a line break, and `\%` as `%`.
/// Input that does not end with a line break gets one.
fn split_input(text: &str) -> (String, Option<String>) {
    let (mut parts, mut chars) = (vec![String::new()], text.chars().peekable());
    while let Some(c) = chars.next() {
        let part = match c {
            '\\' if chars.peek() == Some(&'%') => chars.next(),
            '%' => None,
            c => Some(c),
        };
        match (part, parts.last_mut()) {
            (Some(c), Some(last_part)) => last_part.push(c),
            _ => parts.push(String::new()),
        }
    }
    let command = parts.remove(0).trim_end().to_owned();
    let mut input = parts.join("\n");
    if !input.is_empty() && !input.ends_with('\n') {
        input.push('\n');
    }
    (command, Some(input).filter(|input| !input.is_empty()))
}
