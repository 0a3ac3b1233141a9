//! `docs/CLI.md`: the guide, and every command as its definition describes it. A flag that many commands share is listed once.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory as _, Id};

use crate::args::Cli;

/// The prose, with a placeholder for each generated part.
const GUIDE: &str = include_str!("reference/guide.md");
/// The groups of shared flags: the group's name in the guide, the id of one of its flags, and its heading in the help.
/// The commands with the group are found by that id.
const SHARED_FLAGS: [(&str, &str, &str); 2] = [("server", "server", "Server"), ("output", "no_headers", "Output")];

fn document(mut root: Command) -> String {
    root.build();
    let mut text = GUIDE.to_owned();
    for (marker, flag, heading) in SHARED_FLAGS {
        let is_shared = |arg: &&Arg| arg.is_global_set() && arg.get_help_heading() == Some(heading);
        let users: Vec<&Command> = visible(&root)
            .filter(|command| command.get_arguments().any(|arg| arg.get_id() == flag && is_shared(&arg)))
            .collect();
        let names: Vec<String> = users.iter().map(|command| format!("`{}`", command.get_name())).collect();
        let flags: Vec<&Arg> =
            users.first().map(|user| user.get_arguments().filter(is_shared).collect()).unwrap_or_default();
        text = text.replace(&format!("{{{{{marker} commands}}}}"), &name_list(&names));
        text = text.replace(&format!("{{{{{marker} flags}}}}"), table(&flags).trim_end());
    }
    let mut commands = String::new();
    // In the tree with defaults, the commands that got defaults are at the end, so the order is taken from the tree
    // without them.
    let command_names: Vec<String> =
        Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let mut nouns: Vec<&Command> = visible(&root).collect();
    nouns.sort_by_key(|command| command_names.iter().position(|name| name == command.get_name()));
    for command in nouns {
        section(command, 3, &[], &mut commands);
    }
    text.replace("{{commands}}", commands.trim_end())
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| command.get_name() != "help" && !command.is_hide_set())
}

fn name_list(names: &[String]) -> String {
    match names {
        [leading_names @ .., last_name] if !leading_names.is_empty() => {
            format!("{} and {last_name}", leading_names.join(", "))
        }
        _ => names.concat(),
    }
}

/// Writes a command under a heading of this level, and then its subcommands, without the arguments that a parent lists already.
fn section(command: &Command, level: usize, inherited_ids: &[&Id], document: &mut String) {
    let is_group = visible(command).next().is_some();
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").lines().next().unwrap_or_default().trim();
    let title = if is_group { name } else { usage };
    let about_text = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    writeln!(document, "{} `{title}`\n\n{}\n", "#".repeat(level), sentence(&about_text)).expect("write to a string");
    let own_arguments: Vec<&Arg> = command.get_arguments().filter(|arg| is_own(arg, inherited_ids)).collect();
    if !own_arguments.is_empty() {
        writeln!(document, "{}", table(&own_arguments)).expect("write to a string");
    }
    if let Some(after_text) = command.get_after_help() {
        writeln!(document, "```text\n{}\n```\n", after_text.to_string().trim()).expect("write to a string");
    }
    for subcommand in visible(command) {
        let listed_ids: Vec<&Id> =
            own_arguments.iter().map(|arg| arg.get_id()).chain(inherited_ids.iter().copied()).collect();
        section(subcommand, level + 1, &listed_ids, document);
    }
}

fn is_own(arg: &Arg, inherited_ids: &[&Id]) -> bool {
    let is_shared = SHARED_FLAGS.iter().any(|(_, _, heading)| arg.get_help_heading() == Some(heading));
    let is_listed = arg.is_global_set() && (is_shared || inherited_ids.contains(&arg.get_id()));
    // `ArgAction::Version` marks the flag of the whole program; some commands have an argument `version` of their own.
    let is_of_clap = arg.get_id() == "help" || matches!(arg.get_action(), ArgAction::Version);
    !arg.is_hide_set() && !is_listed && !is_of_clap
}

fn table(args: &[&Arg]) -> String {
    let mut text = "| argument | meaning |\n|---|---|\n".to_owned();
    for arg in args {
        let (name, meaning) = (cell(&signature(arg)), cell(&meaning(arg)));
        writeln!(text, "| `{name}` | {meaning} |").expect("write to a string");
    }
    text
}

/// How an argument is written: `-f, --file FILE`, or its name if it has no flag.
fn signature(arg: &Arg) -> String {
    let takes_values = arg.get_action().takes_values();
    let names = arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect::<Vec<_>>();
    let values = if takes_values { names.join(" ") } else { String::new() };
    let short_flag = arg.get_short().map(|short_flag| format!("-{short_flag}"));
    let long_flag = arg.get_long().map(|long_flag| format!("--{long_flag}"));
    let flags = short_flag.into_iter().chain(long_flag).collect::<Vec<_>>().join(", ");
    // A flag that requires `=` does not take the next word of the command line as its value: `--insecure-http false` is
    // refused.
    if arg.is_require_equals_set() {
        return format!("{flags}[={values}]");
    }
    [flags, values].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut sentences = vec![sentence(&help)];
    let values = if arg.get_action().takes_values() { arg.get_possible_values() } else { Vec::new() };
    let values = values.iter().filter(|value| !value.is_hide_set()).map(|value| match value.get_help() {
        Some(help) => format!("`{}` ({help})", value.get_name()),
        None => format!("`{}`", value.get_name()),
    });
    let values: Vec<String> = values.collect();
    if !values.is_empty() {
        sentences.push(format!("One of {}.", values.join(", ")));
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        sentences.push(format!("Default: `{}`.", defaults.join(" ")));
    }
    sentences.join(" ")
}

fn sentence(text: &str) -> String {
    let text = one_line(text);
    let full_stop = if text.ends_with(['.', '…']) { "" } else { "." };
    text + full_stop
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Escapes the character that would end a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn the_reference_matches_the_definitions() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CLI.md");
    let text = document(Cli::command_tree());
    if std::env::var_os("RONDEL_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
        return;
    }
    let current_text = std::fs::read_to_string(&path).unwrap();
    let first_difference = current_text.lines().zip(text.lines()).position(|(current, expected)| current != expected);
    assert!(
        current_text == text,
        "docs/CLI.md differs in line {:?}; RONDEL_BLESS=1 writes it anew",
        first_difference.map(|line| line + 1)
    );
}

#[test]
fn each_flag_of_a_command_is_listed_once() {
    let text = document(Cli::command_tree());
    assert!(!text.contains(" flags}}") && !text.contains("commands}}"), "each part has its text");
    for section in text.split("\n#") {
        let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
        let mut names: Vec<&str> = rows.iter().filter_map(|row| row.split('`').nth(1)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{rows:#?}");
    }
}
