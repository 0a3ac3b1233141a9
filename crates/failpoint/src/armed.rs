//! The implementation in debug builds: the armed failpoints and their actions.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::{ArmError, Injected, points};

/// Whether any failpoint is armed: checked first at each failpoint.
static ANY_ARMED: AtomicBool = AtomicBool::new(false);
static ARMED: Mutex<Vec<ArmedFailpoint>> = Mutex::new(Vec::new());

#[derive(Clone, Debug, PartialEq, Eq)]
struct ArmedFailpoint {
    name: String,
    /// How often the failpoint must still be reached until it acts.
    remaining_count: u32,
    action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Abort,
    Stop,
    Pause(Duration),
    Error,
}

pub(crate) fn arm(text: &str) -> Result<(), ArmError> {
    let armed = parse(text)?;
    ARMED.lock().unwrap_or_else(PoisonError::into_inner).push(armed);
    ANY_ARMED.store(true, Ordering::Release);
    Ok(())
}

fn parse(text: &str) -> Result<ArmedFailpoint, ArmError> {
    let (name_and_count, action) = text.split_once('=').unwrap_or((text, "abort"));
    let (name, count) = name_and_count.split_once('@').unwrap_or((name_and_count, "1"));
    if !points::server().chain(points::executor()).any(|point| point == name) {
        return Err(ArmError::Unknown(name.to_owned()));
    }
    let remaining_count =
        count.parse().ok().filter(|count| *count > 0).ok_or_else(|| ArmError::Count(count.to_owned()))?;
    let ends_transaction = || {
        points::TRANSACTIONS.iter().any(|operation| name.split_once('.').map(|parts| parts.0) == Some(operation))
            && (name.ends_with(".written") || name.ends_with(".committed"))
    };
    let refusal = || ArmError::Action(action.to_owned());
    let action = match action.split_once(':') {
        None if action == "abort" => Action::Abort,
        None if action == "stop" => Action::Stop,
        None if action == "error" && ends_transaction() => Action::Error,
        Some(("pause", millis)) => Action::Pause(Duration::from_millis(millis.parse().map_err(|_| refusal())?)),
        _ => return Err(refusal()),
    };
    Ok(ArmedFailpoint { name: name.to_owned(), remaining_count, action })
}

pub(crate) fn pass(name: &str) {
    if ANY_ARMED.load(Ordering::Acquire)
        && let Some(action) = take_due_action(|armed_name| armed_name == name)
    {
        // Only failpoints of transactions can be armed with an error, and transactions use `try_pass`.
        perform_action(name, action).ok();
    }
}

pub(crate) fn try_pass(operation: &str, step: &str) -> Result<(), Injected> {
    if !ANY_ARMED.load(Ordering::Acquire) {
        return Ok(());
    }
    let is_match = |armed_name: &str| armed_name.split_once('.') == Some((operation, step));
    take_due_action(is_match).map_or(Ok(()), |action| perform_action(&format!("{operation}.{step}"), action))
}

/// Counts that a failpoint is reached, and returns the action that is due then; `None` if no action is due.
fn take_due_action(is_match: impl Fn(&str) -> bool) -> Option<Action> {
    let mut armed_failpoints = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut due_action = None;
    armed_failpoints.retain_mut(|armed| {
        if !is_match(&armed.name) {
            return true;
        }
        armed.remaining_count -= 1;
        if armed.remaining_count == 0 {
            due_action.get_or_insert(armed.action);
        }
        armed.remaining_count > 0
    });
    due_action
}

fn perform_action(name: &str, action: Action) -> Result<(), Injected> {
    // Written to stderr, not logged: no other code may run between reaching the failpoint and its action.
    std::io::stderr().lock().write_all(format!("failpoint {name}: {action:?}\n").as_bytes()).ok();
    match action {
        Action::Abort => std::process::abort(),
        Action::Stop => {
            let id = std::process::id().to_string();
            let kill_result = Command::new("kill").args(["-STOP", &id]).stdin(Stdio::null()).status();
            debug_assert!(kill_result.is_ok(), "kill is not installed");
            // The signal may reach another thread first. This thread sleeps, so that it does not pass the failpoint in the
            // meantime. It need not know how long the stop lasts.
            pause(Duration::from_secs(1));
        }
        Action::Pause(length) => pause(length),
        Action::Error => return Err(Injected),
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the thread itself is to be held up")]
fn pause(length: Duration) {
    std::thread::sleep(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_armed_failpoint_is_read_whole_or_refused() {
        let armed =
            |name: &str, left, action| Ok(ArmedFailpoint { name: name.to_owned(), remaining_count: left, action });
        for (text, expected) in [
            ("claim.moved", armed("claim.moved", 1, Action::Abort)),
            ("claim.moved@3", armed("claim.moved", 3, Action::Abort)),
            ("send.checked=stop", armed("send.checked", 1, Action::Stop)),
            ("finish.committed@7=error", armed("finish.committed", 7, Action::Error)),
            ("executor.finished=pause:250", armed("executor.finished", 1, Action::Pause(Duration::from_millis(250)))),
            ("claim.mooved", Err(ArmError::Unknown("claim.mooved".to_owned()))),
            ("", Err(ArmError::Unknown(String::new()))),
            ("claim.moved@0", Err(ArmError::Count("0".to_owned()))),
            ("claim.moved@x=stop", Err(ArmError::Count("x".to_owned()))),
            ("claim.moved=error", Err(ArmError::Action("error".to_owned()))),
            ("claim.moved=explode", Err(ArmError::Action("explode".to_owned()))),
            ("claim.moved=pause:soon", Err(ArmError::Action("pause:soon".to_owned()))),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = points::server().chain(points::executor()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
