//! Shell commands for settings that no definition can contain: alarm mail, executors with fixed addresses, users.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rondel_core::name;

use super::context::{ImportContext, ImportOptions, JobDraft};
use super::tables::{Tables, text};
use crate::import::dump::Row;
use crate::import::names::{hash, slug};
use crate::import::result::Outcome::{Changed, Kept, NotNeeded, NotSupported};
use crate::import::result::{Entry, ImportResult, Subject, shell_quoted};

/// Maximum number of recipients of one channel.
const RECIPIENT_COUNT_MAX: usize = 20;
/// The name of a channel for alarm mail lists its recipients. A longer name is cut to this length before its hash is
/// appended.
const ALARM_NAME_LEN_BEFORE_HASH: usize = 60;
/// Maximum number of rules of a namespace.
const RULE_COUNT_MAX: usize = 100;

/// The recipients of mail about failures.
pub(super) struct Alarm {
    /// The name of its channel and its rule, and the value of the jobs' label.
    pub(super) name: String,
    recipients: Vec<String>,
}

/// The alarm for a list of addresses; `None` if it has no address.
pub(super) fn parse_alarm(address_list: &str) -> Option<Alarm> {
    let mut recipients: Vec<String> = address_list
        .split([',', ';'])
        .map(|address| address.trim().to_owned())
        .filter(|address| address.contains('@'))
        .collect();
    recipients.sort();
    recipients.dedup();
    let recipients_text = recipients.join("-");
    let mut name = format!("mail-{}", slug(&recipients_text));
    if recipients.is_empty() {
        return None;
    }
    // With a dash in an address, the name would also be that of other addresses: a-b@c and a@b-c.
    let is_plain = |address: &String| !address.contains('-') && address.matches('@').count() == 1;
    let is_unique = recipients.iter().all(is_plain) && name == format!("mail-{}", recipients_text.replace('@', "-"));
    if name.len() > ALARM_NAME_LEN_BEFORE_HASH || !is_unique {
        name.truncate(ALARM_NAME_LEN_BEFORE_HASH);
        write!(name, "-{:08x}", hash(&recipients.join(","))).ok();
    }
    Some(Alarm { name, recipients })
}

/// Flags for what the mail server may need in addition to its name. The shell leaves out each flag whose variable is
/// not set, except `security`, which has a default.
const SMTP_OPTIONS: &str = "--set security=\"${SMTP_SECURITY:-starttls}\" ${SMTP_PORT:+--set port=\"$SMTP_PORT\"} ${SMTP_USER:+--set username=\"$SMTP_USER\" \
     --secret-file password=\"${SMTP_PASSWORD_FILE:?set it to a file with the password of $SMTP_USER}\"}";

/// Adds a channel for each list of recipients, with two rules: one for failed runs and one for fires without an executor.
/// XXL-JOB sends mail about both. If the namespace has no room for two rules per list, only the rules for failed runs are
/// added.
pub(super) fn add_alarms(drafts: &[JobDraft<'_>], options: ImportOptions<'_>, result: &mut ImportResult) {
    result.commands.push(format!("export RONDEL_NAMESPACE={}", shell_quoted(options.namespace)));
    let recipients_by_alarm: BTreeMap<String, Vec<String>> = drafts
        .iter()
        .filter(|draft| draft.job.is_ok())
        .filter_map(|draft| parse_alarm(text(draft.row, "alarm_email")?))
        .map(|alarm| (alarm.name, alarm.recipients))
        .collect();
    if recipients_by_alarm.is_empty() {
        return;
    }
    if recipients_by_alarm.len() > RULE_COUNT_MAX {
        let omitted_names: Vec<&str> = recipients_by_alarm.keys().skip(RULE_COUNT_MAX).map(String::as_str).collect();
        result.remarks.push(format!(
            "alarm mail: {} different lists of recipients, and a namespace has at most {RULE_COUNT_MAX} rules: make fewer lists of them. The commands make \
             no rule for {}",
            recipients_by_alarm.len(),
            omitted_names.join(", ")
        ));
    }
    let has_room_for_both_rules = recipients_by_alarm.len() * 2 <= RULE_COUNT_MAX;
    if !has_room_for_both_rules {
        result.remarks.push(format!(
            "alarm mail: with {} lists of recipients there is no room for rules about fires that no executor takes (skipped: no_executor), about which \
             XXL-JOB mails too: make one for all jobs, rondel alert rule set no-executor --skipped --reason no_executor --channel NAME",
            recipients_by_alarm.len()
        ));
    }
    // The script checks these variables before it creates anything.
    result.commands.push(": \"${SMTP_HOST:?set it to spring.mail.host of XXL-JOB}\" \"${SMTP_FROM:?set it to spring.mail.from of XXL-JOB}\"".to_owned());
    for (name, recipients) in recipients_by_alarm.into_iter().take(RULE_COUNT_MAX) {
        if recipients.len() > RECIPIENT_COUNT_MAX {
            result.remarks.push(format!(
                "alarm mail: {name} has {} recipients, and a channel at most {RECIPIENT_COUNT_MAX}",
                recipients.len()
            ));
        }
        let first_recipients: Vec<String> = recipients.into_iter().take(RECIPIENT_COUNT_MAX).collect();
        let shell_name = shell_quoted(&name);
        // XXL-JOB accepts any text as an address. If the server refuses one, the script continues with the other lists.
        let mut push = |command: String, object: &str| {
            let failure_text = shell_quoted(&format!("not set: {object}"));
            result.last_commands.push(format!("{command} || {{ echo {failure_text} >&2; failed=1; }}"));
        };
        let channel_command = format!(
            "rondel alert channel set {shell_name} --kind email --set host=\"$SMTP_HOST\" --set from=\"$SMTP_FROM\" {SMTP_OPTIONS} --set {}",
            shell_quoted(&format!("to={}", first_recipients.join(",")))
        );
        push(channel_command, &format!("the alert channel {name}"));
        let rule_command = format!(
            "rondel alert rule set {shell_name} --label xxl-alarm={shell_name} --failed --channel {shell_name}"
        );
        push(rule_command, &format!("the alert rule {name}"));
        if has_room_for_both_rules {
            let rule = format!("{name}-no-executor");
            let (shell_rule, condition) = (shell_quoted(&rule), "--skipped --reason no_executor");
            let rule_command = format!(
                "rondel alert rule set {shell_rule} --label xxl-alarm={shell_name} {condition} --channel {shell_name}"
            );
            push(rule_command, &format!("the alert rule {rule}"));
        }
    }
}

/// The name of a group's app: the group's `app_name` in lower case, as its executors register. If that is no valid name in
/// Rondel, a similar name with the group's id. `None` if the group has no `app_name`.
pub(super) fn app_name(row: &Row) -> Option<String> {
    let group_name = text(row, "app_name")?;
    let lower_name = group_name.trim().to_lowercase();
    let is_name = name::check(&lower_name).is_ok();
    Some(if is_name { lower_name } else { format!("{}-{}", slug(group_name), text(row, "id").unwrap_or_default()) })
}

/// The name of a user's account: the user's name in lower case or, if that is no valid name in Rondel, a similar name.
fn account_name(user_name: &str, id: &str) -> String {
    let lower_name = user_name.trim().to_lowercase();
    if name::check_account(&lower_name).is_ok() {
        lower_name
    } else if user_name.contains(|c: char| c.is_ascii_alphanumeric()) {
        slug(user_name)
    } else {
        format!("user-{id}")
    }
}

/// Converts a group, and adds the commands for its app, its token and its executors with fixed addresses.
pub(super) fn convert_group(row: &Row, options: ImportOptions<'_>) -> Entry {
    let (id, group_name) = (text(row, "id").unwrap_or("?"), text(row, "app_name").unwrap_or_default());
    let title = text(row, "title").or_else(|| text(row, "name")).unwrap_or_default();
    let mut entry = Entry::with_subject(
        Subject::Group,
        format!("group {id}"),
        if group_name.is_empty() { title } else { group_name },
    );
    let (app, is_manual) = (app_name(row).unwrap_or_default(), text(row, "address_type") == Some("1"));
    let is_registered_name = group_name.trim().to_lowercase() == app;
    for (column, value) in row {
        let (outcome, counterpart) = match column.as_str() {
            "id" => (NotNeeded, "stands for the app in its jobs".to_owned()),
            "app_name" if group_name.is_empty() => {
                (NotSupported, "is empty: the jobs of this group are left out".to_owned())
            }
            "app_name" if app == group_name => (Kept, format!("app {app}")),
            "app_name" if is_manual || is_registered_name => (Changed, format!("the app is called {app} here")),
            "app_name" => (
                Changed,
                format!(
                    "the app is called {app} here: set the AppName of its executors to {app}, or they cannot register"
                ),
            ),
            "title" | "name" => (NotSupported, "an app has no title: its name is shown".to_owned()),
            "address_type" if is_manual => (Kept, "executors by address: rondel app address list".to_owned()),
            "address_type" => (Kept, "executors register themselves".to_owned()),
            "address_list" if is_manual => {
                (Changed, "the commands register them, with a token of their own".to_owned())
            }
            "address_list" => (NotNeeded, "executors register with Rondel themselves".to_owned()),
            "update_time" | "order" => (NotNeeded, "belongs to XXL-JOB's console".to_owned()),
            _ => (NotSupported, UNKNOWN_COLUMN_NOTE.to_owned()),
        };
        entry.record_field(column, value, outcome, counterpart);
    }
    if group_name.is_empty() {
        return entry;
    }
    let token = format!("{app}-xxl");
    let (file, role_place) =
        (shell_quoted(&format!("{token}.token")), shell_quoted(&format!("executor:{}/{app}", options.namespace)));
    entry.commands.push(format!(
        "# {} for the executors of {app}: configure them with it",
        if is_manual { "Token" } else { "Token, where there is none yet," }
    ));
    entry.commands.push(format!(
        "[ -s {file} ] || {{ (umask 077; rondel token create {} --kind xxl --role {role_place} > {file}); echo {} >&2; }}",
        shell_quoted(&token),
        shell_quoted(&format!("the secret of token {token} is in the file {token}.token"))
    ));
    if is_manual {
        let addresses = text(row, "address_list").unwrap_or_default();
        for address in addresses.split(',').map(str::trim).filter(|address| !address.is_empty()) {
            let failure_text = shell_quoted(&format!("not added: the address {address} of app {app}"));
            // If the server refuses an address, the script continues with the other addresses and the later commands.
            entry.commands.push(format!(
                "rondel app address add {} {} --executor-token-file {file} || {{ echo {failure_text} >&2; failed=1; }}",
                shell_quoted(&app),
                shell_quoted(address)
            ));
        }
    }
    entry
}

/// Converts a user, and adds the command that creates the account with the roles for the user's groups.
pub(super) fn convert_user(row: &Row, context: &ImportContext<'_>) -> Entry {
    let (id, user_name) = (text(row, "id").unwrap_or("?"), text(row, "username").unwrap_or_default());
    let mut entry = Entry::with_subject(Subject::User, format!("user {id}"), user_name);
    let account = account_name(user_name, id);
    let (namespace, is_admin) = (context.options.namespace, text(row, "role") == Some("1"));
    let groups: Vec<&str> =
        text(row, "permission").unwrap_or_default().split(',').map(str::trim).filter(|id| !id.is_empty()).collect();
    let apps: Vec<String> = groups.iter().filter_map(|id| context.apps.get(id).cloned()).collect();
    let unknown_groups: Vec<&str> = groups.iter().copied().filter(|id| !context.apps.contains_key(id)).collect();
    for (column, value) in row {
        let (outcome, counterpart) = match column.as_str() {
            "id" => (NotNeeded, "a user has a new one".to_owned()),
            "username" if account == user_name => (Kept, format!("user {account}; {EXISTING_ACCOUNT_NOTE}")),
            "username" => (Changed, format!("is called {account} here; {EXISTING_ACCOUNT_NOTE}")),
            "role" if is_admin => (Kept, format!("admin of the namespace {namespace}")),
            "role" => (Kept, "editor of the apps of their groups".to_owned()),
            "permission" if is_admin => (NotNeeded, "an admin has all groups".to_owned()),
            "permission" if unknown_groups.is_empty() => (Kept, format!("editor of {}", apps.join(", "))),
            "permission" => (NotSupported, format!("there is no group {}", unknown_groups.join(", "))),
            _ => (NotSupported, UNKNOWN_COLUMN_NOTE.to_owned()),
        };
        entry.record_field(column, value, outcome, counterpart);
    }
    entry.record_field(
        "password",
        "",
        Changed,
        "is not taken: the user sets a new one by the link that the command prints",
    );
    let roles: Vec<String> = match is_admin {
        true => vec![format!("admin:{namespace}")],
        false => apps.iter().map(|app| format!("editor:{namespace}/{app}")).collect(),
    };
    let quoted_account = shell_quoted(&account);
    let mut role_flags = String::new();
    roles.iter().for_each(|role| write!(role_flags, " --role {}", shell_quoted(role)).unwrap_or_default());
    entry
        .commands
        .push(format!("# Prints a link to set a password, for 15 minutes; later: rondel user link {quoted_account}"));
    entry.commands.push(format!(
        "if rondel user get {quoted_account} >/dev/null 2>&1; then echo {} >&2; else rondel user create {quoted_account}{role_flags}; fi",
        shell_quoted(&format!(
            "user {account} is there already and stays as it is; its rights in XXL-JOB:{role_flags}"
        ))
    ));
    entry
}

/// The remark on the block strategy that most jobs have: its runs wait for each other without a limit in XXL-JOB, but not in
/// Rondel.
const SERIAL_WAIT_REMARK: &str = "SERIAL_EXECUTION: a run that waits for an earlier one of its job longer than queue_timeout (1m, if the job does not set it) \
     is skipped: overlap; in XXL-JOB it waits without a limit. Set queue_timeout in jobs whose runs may take longer than their period";

/// The note on an account of the same name that exists already.
const EXISTING_ACCOUNT_NOTE: &str = "an account of this name that is there already stays as it is, with its own rights";

/// The remark on a column that no version of XXL-JOB has.
const UNKNOWN_COLUMN_NOTE: &str = "is no column of XXL-JOB 2.x or 3.x: of a version of your own?";

/// Records the columns of a row that no version of XXL-JOB has.
pub(super) fn record_unknown_columns(row: &Row, entry: &mut Entry) {
    let known_columns: Vec<String> = entry.fields.iter().map(|field| field.name.clone()).collect();
    for (column, value) in row.iter().filter(|(column, _)| !known_columns.contains(column)) {
        entry.record_field(column, value, NotSupported, UNKNOWN_COLUMN_NOTE);
    }
}

pub(super) fn add_remarks(tables: &Tables, result: &mut ImportResult) {
    result.remarks.extend(tables.omissions.iter().cloned());
    let is_serial = |row: &Row| text(row, "executor_block_strategy") == Some("SERIAL_EXECUTION");
    if tables.jobs.iter().any(is_serial) {
        result.remarks.push(SERIAL_WAIT_REMARK.to_owned());
    }
    result.remarks.push("not read: xxl_job_log and xxl_job_log_report (the runs of XXL-JOB stay there), xxl_job_registry (executors register anew), xxl_job_lock".to_owned());
}
