//! Crontabs, as cron reads them (Vixie cron and cronie). A command becomes a run of the agent's handler `shell`. The
//! other rules of cron are kept: runs may overlap, missed fires are skipped, and no run is repeated.

use rondel_core::cron::CronExpr;
use serde_json::{Map, Value, json};

use super::found::{Entry, Found};

/// The host that the crontab is from, and the app of its jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a> {
    pub(super) app: &'a str,
    pub(super) zone: Option<&'a str>,
    pub(super) executor: Option<&'a str>,
    /// Whether each command has a user before it.
    pub(super) has_user: bool,
}

/// Words before a command that do not describe it.
const WRAPPERS: [&str; 22] = [
    "sudo", "nice", "ionice", "env", "nohup", "time", "timeout", "flock", "chronic", "exec", "setsid", "sh", "bash",
    "dash", "zsh", "python", "python3", "perl", "php", "node", "ruby", "java",
];

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
/// A sentence, if the zone is not known.
pub(super) fn read(text: &str, host: &Host<'_>) -> Result<Found, String> {
    let mut found = Found::default();
    let mut variables = Variables::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some((name, value)) = assignment(line) {
            variables.set(name, value);
            if name == "TZ" {
                found.remarks.push(format!(
                    "line {}: TZ is the zone of the commands: as in cron, schedules are read in that of CRON_TZ, else of --time-zone",
                    index + 1
                ));
            }
            continue;
        }
        read_line(line, index + 1, host, &variables, &mut found)?;
    }
    Ok(found)
}

fn read_line(
    line: &str,
    number: usize,
    host: &Host<'_>,
    variables: &Variables,
    found: &mut Found,
) -> Result<(), String> {
    let place = format!("line {number}");
    let entry = |title: &str| Entry::new(place.clone(), title);
    let count = if line.starts_with('@') { 1 } else { 5 };
    let Some((cron, rest)) = split_words(line, count) else {
        found.leave_out(entry(line), "is neither NAME=value nor five fields and a command");
        return Ok(());
    };
    if cron.eq_ignore_ascii_case("@reboot") {
        found.leave_out(entry(rest), "@reboot has no instant: let the host's init system start it");
        return Ok(());
    }
    if let Err(error) = CronExpr::parse(&cron) {
        found.leave_out(entry(rest), error.to_string());
        return Ok(());
    }
    let (user, command) = match split_words(rest, 1) {
        Some((user, command)) if host.has_user => (Some(user), command),
        _ => (None, rest),
    };
    if command.is_empty() || (host.has_user && user.is_none()) {
        found.leave_out(entry(line), "has no command");
        return Ok(());
    }
    let Some(zone) = variables.zone.as_deref().or(host.zone) else {
        return Err(format!(
            "{place}: the crontab sets no CRON_TZ: add --time-zone with the zone of its host, such as --time-zone Europe/Berlin"
        ));
    };
    let (command, stdin) = split_input(command);
    let name = found.name(subject(&command), &format!("{cron} {} {command}", user.as_deref().unwrap_or_default()));
    let mut entry = entry(&command);
    note(&mut entry, &command, user.as_deref(), variables);
    let mut params = json!({"argv": [variables.shell.as_deref().unwrap_or("/bin/sh"), "-c", command]});
    if let Some(stdin) = stdin {
        params["stdin"] = stdin.into();
    }
    if let Some(home) = &variables.home {
        params["cwd"] = home.as_str().into();
    }
    if !variables.env.is_empty() {
        params["env"] = Value::Object(variables.env.clone());
    }
    let mut job = Map::new();
    for (field, value) in [
        ("name", json!(name)),
        ("app", json!(host.app)),
        ("handler", json!("shell")),
        ("description", json!("From a crontab.")),
        ("params", params),
        ("schedule", json!({"cron": cron, "time_zone": zone})),
        ("misfire", json!({"policy": "skip"})),
        ("overlap", json!({"policy": "allow"})),
        ("delivery", json!("at_most_once")),
    ] {
        job.insert(field.to_owned(), value);
    }
    if let Some(user) = user {
        job.insert("labels".to_owned(), json!({"cron-user": user}));
    }
    if let Some(executor) = host.executor {
        job.insert("select".to_owned(), json!({"executors": [executor]}));
    }
    found.add(entry, job);
    Ok(())
}

fn note(entry: &mut Entry, command: &str, user: Option<&str>, variables: &Variables) {
    if let Some(user) = user {
        entry.changed(format!("ran as user {user}: runs have the agent's user (its --run-as)"));
    }
    if let Some(mail_to) = &variables.mail_to {
        entry.changed(format!("its output was mailed to {mail_to}: it is in the run's log"));
    }
    if command.contains("/dev/null") {
        entry.changed("its output goes to /dev/null: without that it would be in the run's log");
    }
    if command.split_whitespace().any(|word| word == "flock" || word.ends_with("/flock")) {
        entry.changed("flock keeps runs of one host apart: overlap.policy discard does that for all hosts, and is shown as skipped");
    }
    if variables.home.is_none() {
        entry.changed(
            "began in the user's home folder: runs begin in an empty folder of their own; params.cwd sets another",
        );
    }
}

impl Variables {
    fn set(&mut self, name: &str, value: &str) {
        let some = || Some(value.to_owned()).filter(|value| !value.is_empty());
        match name {
            "SHELL" => self.shell = some(),
            // Not TZ: as in crontab(5), it is only the zone of the commands.
            "CRON_TZ" => self.zone = some(),
            "HOME" => self.home = some(),
            "MAILTO" => self.mail_to = some(),
            "LOGNAME" | "USER" => {}
            _ => drop(self.env.insert(name.to_owned(), value.into())),
        }
    }
}

/// `NAME=value`, `NAME = "value"`.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let unquoted = |quote: char| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
    is_name.then(|| (name, unquoted('"').or_else(|| unquoted('\'')).unwrap_or(value)))
}

/// The first `count` words, joined by single blanks, and the rest of the line.
fn split_words(line: &str, count: usize) -> Option<(String, &str)> {
    let mut rest = line.trim_start();
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            return None;
        }
        words.push(word);
        rest = after.trim_start();
    }
    Some((words.join(" "), rest))
}

/// Splits a command from its input: cron cuts at the first `%`, reads each further one as a line break, and `\%` as
/// `%`.
fn split_input(text: &str) -> (String, Option<String>) {
    let (mut parts, mut chars) = (vec![String::new()], text.chars().peekable());
    while let Some(c) = chars.next() {
        let part = match c {
            '\\' if chars.peek() == Some(&'%') => chars.next(),
            '%' => None,
            c => Some(c),
        };
        match (part, parts.last_mut()) {
            (Some(c), Some(last)) => last.push(c),
            _ => parts.push(String::new()),
        }
    }
    let command = parts.remove(0).trim_end().to_owned();
    (command, (!parts.is_empty()).then(|| parts.join("\n") + "\n"))
}

/// The word that describes a command: its program or script, without wrappers.
fn subject(command: &str) -> &str {
    let last = command.rsplit("&&").find(|part| !part.trim().is_empty()).unwrap_or(command);
    let last = last.split(['|', ';', '>']).find(|part| !part.trim().is_empty()).unwrap_or(last);
    let name = |word: &str| word.rsplit('/').find(|part| !part.is_empty()).unwrap_or_default().to_owned();
    let is_about = |word: &&str| {
        let is_option = word.starts_with('-') || word.starts_with(|c: char| c.is_ascii_digit());
        let is_lock = word.contains(".lock") || word.starts_with("/var/lock") || word.starts_with("/run/");
        !is_option && !is_lock && !word.contains('=') && !WRAPPERS.contains(&name(word).as_str())
    };
    let word = last.split_whitespace().find(is_about).unwrap_or(last);
    word.rsplit('/').find(|part| !part.is_empty()).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Host<'_> = Host { app: "backups", zone: Some("Europe/Berlin"), executor: None, has_user: false };

    fn job<'a>(found: &'a Found, name: &str) -> &'a Value {
        let jobs = found.entries.iter().filter_map(|entry| entry.job.as_ref());
        jobs.into_iter().find(|job| job["name"] == name).unwrap_or_else(|| panic!("no {name} in {found:?}"))
    }

    #[test]
    fn lines_become_jobs_that_mean_the_same() {
        let text = "# nightly\nSHELL=/bin/bash\nMAILTO=\"ops@example.com\"\nPATH = /usr/local/bin:/usr/bin\n\n\
            15 2 * * mon-fri  /usr/local/bin/backup.sh --full\n@daily cd /srv && ./report.py > /dev/null 2>&1\n\
            */5 * * * * /usr/bin/flock -n /tmp/x.lock /opt/sync.sh\n0 0 1 * * mail -s done ops%All is\\% well%bye\n";
        let found = read(text, &HOST).unwrap();
        let backup = job(&found, "backup.sh");
        assert_eq!(backup["params"]["argv"], json!(["/bin/bash", "-c", "/usr/local/bin/backup.sh --full"]));
        assert_eq!(backup["params"]["env"], json!({"PATH": "/usr/local/bin:/usr/bin"}));
        assert_eq!(backup["schedule"], json!({"cron": "15 2 * * mon-fri", "time_zone": "Europe/Berlin"}));
        assert_eq!((&backup["overlap"]["policy"], &backup["delivery"]), (&json!("allow"), &json!("at_most_once")));
        assert_eq!(job(&found, "report.py")["schedule"]["cron"], "@daily");
        assert!(job(&found, "sync.sh")["params"]["argv"][2].as_str().unwrap().contains("flock"));
        let mail = job(&found, "mail");
        assert_eq!(
            (&mail["params"]["argv"][2], &mail["params"]["stdin"]),
            (&json!("mail -s done ops"), &json!("All is% well\nbye\n"))
        );
        let report = found.text("x");
        for expected in ["mailed to ops@example.com", "/dev/null", "flock keeps runs", "home folder"] {
            assert!(report.contains(expected), "{expected}: {report}");
        }
    }

    #[test]
    fn a_system_crontab_names_users_and_zones_may_change_between_lines() {
        let text = "CRON_TZ=Asia/Shanghai\n17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly\nTZ=UTC\nCRON_TZ=Europe/Paris\n1 1 * * * www-data php /srv/x.php\n";
        let found = read(text, &Host { has_user: true, zone: None, executor: Some("web1"), ..HOST }).unwrap();
        let first = job(&found, "run-parts");
        assert_eq!(
            (&first["labels"]["cron-user"], &first["schedule"]["time_zone"]),
            (&json!("root"), &json!("Asia/Shanghai"))
        );
        assert_eq!(first["select"]["executors"], json!(["web1"]));
        let second = job(&found, "x.php");
        assert_eq!(
            (&second["schedule"]["time_zone"], &second["params"]["env"]),
            (&json!("Europe/Paris"), &json!({"TZ": "UTC"})),
            "TZ is for the command alone"
        );
        assert!(found.text("x").contains("line 3: TZ is the zone of the commands"), "{}", found.text("x"));
    }

    #[test]
    fn what_cannot_be_taken_is_said_by_its_line() {
        let text = "@reboot /usr/bin/start\n61 * * * * x\n* * * * *\nnonsense\n1 2 3\n";
        let found = read(text, &HOST).unwrap();
        assert!(found.entries.iter().all(|entry| entry.job.is_none()), "{found:?}");
        let report = found.text("x");
        for expected in [
            "line 1): left out: @reboot",
            "minute at position 0: \"61\"",
            "line 3): left out: has no command",
            "line 4)",
            "line 5)",
        ] {
            assert!(report.contains(expected), "{expected}: {report}");
        }
        let unknown = read("1 1 * * * x", &Host { zone: None, ..HOST }).unwrap_err();
        assert!(unknown.contains("line 1") && unknown.contains("--time-zone"), "{unknown}");
    }

    #[test]
    fn read_again_it_is_the_same() {
        let text = "1 1 * * * a\n2 2 * * * a\n";
        let first = read(text, &HOST).unwrap().yaml();
        assert_eq!(first, read(text, &HOST).unwrap().yaml());
        // Neither a comment nor a line between the two changes the names and definitions.
        let commented = read("# more\n1 1 * * * a\n3 3 * * * a\n2 2 * * * a\n", &HOST).unwrap();
        for job in read(text, &HOST).unwrap().entries.iter().filter_map(|entry| entry.job.as_ref()) {
            assert!(
                commented.entries.iter().any(|entry| entry.job.as_ref() == Some(job)),
                "{job} {}",
                commented.yaml()
            );
        }
        let same = read("1 1 * * * a\n1 1 * * * a\n1 1 * * * a\n", &HOST).unwrap();
        assert_eq!(same.entries.iter().filter(|entry| entry.job.is_some()).count(), 3);
    }
}
