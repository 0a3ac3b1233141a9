//! Finds the word after which a crontab's job is named: the program or script of its command, not a wrapper that only
//! starts it.

/// Shell keywords that precede a command.
const KEYWORDS: [&str; 9] = ["if", "then", "else", "elif", "while", "until", "do", "!", "{"];
/// Commands that only prepare the main command of a line.
const PREPARATIONS: [&str; 24] = [
    "cd", "pushd", "test", "[", "[[", "command", "which", "type", "true", ":", "export", "unset", "set", "umask",
    "ulimit", "sleep", "echo", "mkdir", ".", "source", "for", "fi", "done", "}",
];

/// The kind of content of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InlineKind {
    /// A command for a shell.
    Command,
    /// Code in another language, which gives no name.
    Code,
}

/// A program that starts another program, or runs a script.
struct Launcher {
    names: &'static [&'static str],
    options_with_value: &'static [&'static str],
    /// The number of arguments before the program that is started.
    argument_count: usize,
    /// The options whose value is the command or code to start.
    inline: (&'static [&'static str], InlineKind),
    /// Whether it starts any program, and not only scripts.
    is_wrapper: bool,
}

const fn wrapper(
    names: &'static [&'static str],
    options_with_value: &'static [&'static str],
    argument_count: usize,
) -> Launcher {
    Launcher {
        names,
        options_with_value,
        argument_count,
        inline: (&["-c", "--command"], InlineKind::Command),
        is_wrapper: true,
    }
}

const fn interpreter(
    names: &'static [&'static str],
    options_with_value: &'static [&'static str],
    inline: (&'static [&'static str], InlineKind),
) -> Launcher {
    Launcher { names, options_with_value, argument_count: 0, inline, is_wrapper: false }
}

const NO_INLINE: (&[&str], InlineKind) = (&[], InlineKind::Code);

const LAUNCHERS: [Launcher; 19] = [
    // In these three, -c is an ordinary option: it contains no command.
    Launcher {
        inline: NO_INLINE,
        ..wrapper(&["ionice"], &["-c", "-n", "-p", "-P", "-u", "--class", "--classdata"], 0)
    },
    Launcher { inline: NO_INLINE, ..wrapper(&["exec", "time"], &["-a", "-f", "-o"], 0) },
    Launcher { inline: NO_INLINE, ..wrapper(&["taskset", "chrt"], &[], 1) },
    wrapper(
        &["sudo", "doas"],
        &["-u", "-g", "-h", "-p", "-C", "-r", "-t", "-T", "-D", "-R", "--user", "--group", "--host", "--chdir"],
        0,
    ),
    wrapper(&["su", "runuser"], &["-s", "-g", "-G", "-w", "--shell", "--group"], 1),
    wrapper(&["nice"], &["-n", "--adjustment"], 0),
    wrapper(&["timeout"], &["-k", "-s", "--kill-after", "--signal"], 1),
    wrapper(&["flock"], &["-w", "-E", "--wait", "--timeout", "--conflict-exit-code"], 1),
    wrapper(&["env"], &["-u", "-C", "--unset", "--chdir"], 0),
    wrapper(&["stdbuf"], &["-i", "-o", "-e"], 0),
    wrapper(&["systemd-cat"], &["-t", "-p", "--identifier", "--priority"], 0),
    wrapper(&["nohup", "setsid", "chronic", "cronic", "run-one", "builtin"], &[], 0),
    interpreter(
        &["sh", "bash", "dash", "zsh", "ksh", "ash"],
        &["-o", "+o", "-O", "--rcfile", "--init-file"],
        (&["-c", "-lc", "-ec", "-xc", "-ic"], InlineKind::Command),
    ),
    interpreter(&["python", "python2", "python3"], &["-W", "-X"], (&["-c"], InlineKind::Code)),
    interpreter(&["perl"], &["-I"], (&["-e", "-E"], InlineKind::Code)),
    interpreter(&["php"], &["-d", "-c"], (&["-r"], InlineKind::Code)),
    interpreter(&["node"], &["-r", "--require", "--import"], (&["-e", "--eval"], InlineKind::Code)),
    interpreter(&["ruby"], &["-I", "-r"], (&["-e"], InlineKind::Code)),
    interpreter(&["java"], &["-cp", "-classpath", "--class-path", "-p", "--module-path", "--add-opens"], NO_INLINE),
];

/// The word after which a job with this command line is named.
pub(super) fn subject(line: &str) -> String {
    let commands = split_commands(line);
    let first_program = || commands.first().and_then(|words| words.first()).map(|word| base_name(word).to_owned());
    commands.iter().find_map(|words| program_name(words)).or_else(first_program).unwrap_or_else(|| line.to_owned())
}

/// The program or script that `words` start; `None` if they only prepare a command, or run code without a name.
fn program_name(mut words: &[String]) -> Option<String> {
    loop {
        let (first_word, following_words) = words.split_first()?;
        words = following_words;
        let name = base_name(first_word);
        if is_assignment(first_word) || KEYWORDS.contains(&first_word.as_str()) {
            continue;
        }
        if PREPARATIONS.contains(&name) {
            return None;
        }
        let Some(launcher) = LAUNCHERS.iter().find(|launcher| launcher.names.contains(&name)) else {
            return Some(name.to_owned());
        };
        match read_launch_target(launcher, following_words) {
            LaunchTarget::Words(launched_words) if launcher.is_wrapper && !launched_words.is_empty() => {
                words = launched_words
            }
            LaunchTarget::Words([script, ..]) => return Some(base_name(script).to_owned()),
            LaunchTarget::Command(text) => return Some(subject(text)),
            LaunchTarget::Words([]) => return Some(name.to_owned()),
            LaunchTarget::Code => return None,
        }
    }
}

enum LaunchTarget<'a> {
    Words(&'a [String]),
    Command(&'a str),
    Code,
}

/// The target of a launcher: the words after its options and arguments, or the value of an option.
fn read_launch_target<'a>(launcher: &Launcher, mut words: &'a [String]) -> LaunchTarget<'a> {
    let (options, inline) = launcher.inline;
    let mut argument_count = launcher.argument_count;
    let mut takes_options = true;
    while let Some((word, following_words)) = words.split_first() {
        if let (true, Some(text)) = (options.contains(&word.as_str()), following_words.first()) {
            return if inline == InlineKind::Command { LaunchTarget::Command(text) } else { LaunchTarget::Code };
        }
        if word == "--" && takes_options {
            takes_options = false;
        } else if takes_options && launcher.options_with_value.contains(&word.as_str()) {
            words = following_words.get(1..).unwrap_or_default();
            continue;
        } else if takes_options && word.starts_with('-') {
            // An option, or the minus by which su starts a login shell.
        } else if argument_count == 0 {
            break;
        } else {
            argument_count -= 1;
        }
        words = following_words;
    }
    LaunchTarget::Words(words)
}

/// The last part of a path.
fn base_name(word: &str) -> &str {
    word.rsplit('/').find(|part| !part.is_empty()).unwrap_or(word)
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The commands of a line, each as its words, without quotes and redirections.
fn split_commands(line: &str) -> Vec<Vec<String>> {
    let (mut splitter, mut chars) = (Splitter::default(), line.chars().peekable());
    let mut quote = None;
    while let Some(c) = chars.next() {
        match c {
            _ if quote == Some(c) => quote = None,
            '\\' if quote != Some('\'') => splitter.word.extend(chars.next()),
            _ if quote.is_some() => splitter.word.push(c),
            '\'' | '"' | '`' => quote = Some(c),
            '$' if chars.peek() == Some(&'(') => splitter.word.push_str(&read_substitution(&mut chars)),
            '>' | '<' => {
                splitter.redirect();
                while chars.next_if(|c| matches!(c, '>' | '<' | '&')).is_some() {}
            }
            // `&>` redirects both outputs to a file.
            '&' if chars.peek() == Some(&'>') => splitter.end_word(),
            ';' | '|' | '&' | '(' | ')' => splitter.end_command(),
            c if c.is_whitespace() => splitter.end_word(),
            c => splitter.word.push(c),
        }
    }
    splitter.end_command();
    splitter.commands
}

/// Reads the rest of `$(…)`, up to the closing bracket.
fn read_substitution(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let (mut text, mut depth) = ("$".to_owned(), 0_usize);
    for c in chars.by_ref() {
        text.push(c);
        match c {
            '(' => depth += 1,
            ')' if depth <= 1 => break,
            ')' => depth -= 1,
            _ => {}
        }
    }
    text
}

#[derive(Debug, Default)]
struct Splitter {
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    word: String,
    /// Whether the next word is the file of a redirection.
    is_redirect_target: bool,
}

impl Splitter {
    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let word = std::mem::take(&mut self.word);
        if !std::mem::take(&mut self.is_redirect_target) {
            self.words.push(word);
        }
    }

    fn redirect(&mut self) {
        // Drops the number of a redirected file, as in 2>&1.
        if self.word.chars().all(|c| c.is_ascii_digit()) {
            self.word.clear();
        }
        self.end_word();
        self.is_redirect_target = true;
    }

    fn end_command(&mut self) {
        self.end_word();
        self.is_redirect_target = false;
        if !self.words.is_empty() {
            self.commands.push(std::mem::take(&mut self.words));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_named_after_its_program() {
        for (line, name) in [
            ("/usr/local/bin/backup.sh --full", "backup.sh"),
            ("flock -n /tmp/x.lock /opt/sync.sh", "sync.sh"),
            ("/usr/bin/flock -w 10 9 /opt/sync.sh", "sync.sh"),
            ("flock -n /tmp/x.lock -c '/opt/sync.sh --all'", "sync.sh"),
            ("flock -n /tmp/x.lock tar -c /srv", "tar"),
            ("sudo -u deploy -- /srv/release", "release"),
            ("su - bob -c \"/home/bob/run it\"", "run"),
            ("runuser -l bob -c /home/bob/run", "run"),
            ("nice -n 19 ionice -c 3 rsync -a /a /b", "rsync"),
            ("nice -10 updatedb", "updatedb"),
            ("timeout -s KILL 1h /opt/slow", "slow"),
            ("timeout 60s env A=b LANG=C /opt/job", "job"),
            ("A=b C='d e' job2", "job2"),
            ("cd /srv/app && ./report.py > /dev/null 2>&1", "report.py"),
            ("cd /srv/app; . ./env.sh; php -d memory_limit=1G artisan schedule:run", "artisan"),
            ("test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )", "run-parts"),
            ("[ -x /usr/bin/certbot ] && perl -e 'sleep int(rand(43200))' && certbot renew", "certbot"),
            ("if [ -x /sbin/check ]; then /sbin/check --cron; fi", "check"),
            ("command -v debian-sa1 > /dev/null && debian-sa1 1 1", "debian-sa1"),
            ("a.sh && curl -fsS https://example.com/ping", "a.sh"),
            ("sleep 30; bash -o pipefail -c 'pg_dump x | gzip > y'", "pg_dump"),
            ("bash -lc 'cd /srv && bundle exec rake nightly'", "bundle"),
            ("python3 -m reports.daily", "reports.daily"),
            ("python3 -c 'print(1)'", "python3"),
            ("java -Xmx1g -cp a:b com.acme.Main", "com.acme.main"),
            ("java -jar /opt/close.jar", "close.jar"),
            ("tar czf /b/$(date +%F).tgz /srv", "tar"),
            ("DIR=$(mktemp -d) /opt/x", "x"),
            ("echo done | mail -s x ops", "mail"),
            ("echo done", "echo"),
            ("sudo", "sudo"),
            ("&>/dev/null /opt/quiet", "quiet"),
            ("\"/opt/with blank/run\" 1", "run"),
            ("'", "'"),
            ("%", "%"),
        ] {
            assert_eq!(subject(line).to_lowercase(), name, "{line}");
        }
    }
}
