use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use rondel_core::RunStatus;
use serde_json::{Value, json};

use super::*;
use crate::agent::confine::Confinement;
use crate::extract::{Cancel, Log, Params};
use crate::run::RunContext;
use crate::test_run::{TestOutcome, TestRun};

/// A folder with programs of these names, each of which prints how it was called.
fn host(programs: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in programs {
        let path = folder.path().join(name);
        fs::write(&path, "#!/bin/sh\necho \"$(basename \"$0\") $*\"\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

fn names(found: &[Interpreter]) -> Vec<(&str, &str)> {
    found.iter().map(|found| (found.language.name, found.program)).collect()
}

#[test]
fn only_interpreters_that_are_there_are_offered() {
    let host = host(&["python", "nodejs", "pwsh"]);
    fs::write(host.path().join("php"), "not a program").unwrap();
    let path = host.path().as_os_str();
    assert_eq!(
        names(&find_interpreters(path, &[])),
        [("python", "python"), ("node", "nodejs"), ("powershell", "pwsh")]
    );
    assert_eq!(names(&find_interpreters(path, &["node".to_owned()])), [("python", "python"), ("powershell", "pwsh")]);
    assert!(find_interpreters(OsStr::new("/nowhere"), &[]).is_empty());
}

#[test]
fn a_script_that_cannot_be_written_is_named() {
    let gone = Path::new("/nonexistent/run-1");
    let error = script_argv(vec!["sh".to_owned()], "echo", "sh", gone, Call::Check).unwrap_err();
    let message = error.message();
    assert!(message.starts_with("cannot write the script to /nonexistent/run-1/script.sh: No such file"), "{message}");
    assert!(error.is_retryable());
}

#[test]
fn a_script_gets_the_arguments_that_xxl_job_passes() {
    let shard = Shard { index: 1, total: 4 };
    for (args, expected) in [
        (None, &["", "1", "4"][..]),
        (Some(Args::Text("2026-03-08 full".to_owned())), &["2026-03-08 full", "1", "4"]),
        (Some(Args::List(vec!["a".to_owned(), "b".to_owned()])), &["a", "b", "1", "4"]),
        (Some(Args::List(Vec::new())), &["1", "4"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let argv = script_argv(vec!["sh".to_owned()], "true", "sh", folder.path(), Call::Run(args, shard)).unwrap();
        assert_eq!((argv[0].as_str(), Path::new(&argv[1])), ("sh", folder.path().join("script.sh").as_path()));
        assert_eq!(argv[2..], *expected);
    }
}

fn with_text(mut params: ScriptParams) -> (ScriptParams, &'static str) {
    match std::mem::replace(&mut params.script, Script::Text(String::new())) {
        Script::Text(text) => (params, text.leak()),
        Script::Stored(named) => unreachable!("{named}"),
    }
}

/// Runs a script with this host's interpreter for the language; `None` if the host has none.
async fn run(language: &str, params: Value) -> Option<TestOutcome> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let interpreter = find_interpreters(&path, &[]).into_iter().find(|found| found.language.name == language)?;
    let handler = move |Params(params): Params<ScriptParams>, run: RunContext, cancel: Cancel, log: Log| async move {
        interpreter
            .program(with_text(params), run.shard(), tempfile::tempdir()?)?
            .run(&Confinement::default(), run, cancel, log)
            .await
    };
    Some(TestRun::of(handler).params(params).shard(2, 3).run().await)
}

#[test]
fn each_known_interpreter_can_check_a_script_without_running_it() {
    let checked = |interpreter: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let interpreter = interpreter.iter().map(|part| (*part).to_owned()).collect();
        let argv = script_argv(interpreter, "", "sh", folder.path(), Call::Check)?;
        let (path, before) = argv.split_last().unwrap();
        assert!(path.ends_with("/script.sh"), "{argv:?}");
        Ok::<_, JobError>(before.join(" "))
    };
    assert_eq!(checked(&["sh"]).unwrap(), "sh -n");
    assert_eq!(checked(&["/usr/bin/bash", "-e"]).unwrap(), "/usr/bin/bash -n -e");
    assert_eq!(checked(&["nodejs"]).unwrap(), "nodejs --check");
    assert_eq!(checked(&["php"]).unwrap(), "php -l");
    let python = checked(&["python3", "-c", "print('run')"]).unwrap();
    assert!(python.starts_with("python3 -c import sys; compile("), "{python}");
    for unknown in ["perl", "pwsh", "env"] {
        let error = checked(&[unknown, "sh"]).unwrap_err().to_string();
        assert!(error.contains(&format!("how {unknown} checks a script")), "{error}");
    }
}

/// A script with a syntax error fails the check; a correct one passes it, and is not run.
#[tokio::test]
async fn a_check_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let path = trace.display();
    for (language, right, wrong) in [
        ("python", format!("open('{path}', 'w')"), "def f(:\n  pass"),
        ("node", format!("require('fs').writeFileSync('{path}', '')"), "let = ;"),
        ("php", format!("<?php touch('{path}');"), "<?php if (;"),
    ] {
        let Some(outcome) = run(language, json!({"script": right, "check": true})).await else { continue };
        assert_eq!(outcome.status(), RunStatus::Succeeded, "{language}: {outcome:?}");
        let outcome = run(language, json!({"script": wrong, "check": true})).await.unwrap();
        assert_eq!(outcome.status(), RunStatus::Failed, "{language}: {outcome:?}");
        assert!(outcome.message().starts_with("exit code "), "{language}: {outcome:?}");
        assert!(!trace.exists(), "{language}");
        if language == "python" {
            let other = json!({"script": right, "check": true, "interpreter": ["python3", "-c", right]});
            assert_eq!(run(language, other).await.unwrap().status(), RunStatus::Succeeded);
            assert!(!trace.exists(), "an option of the interpreter has nothing run");
        }
        run(language, json!({"script": right})).await.unwrap();
        assert!(trace.exists(), "{language}");
        fs::remove_file(&trace).unwrap();
    }
}

#[tokio::test]
async fn python_gets_arguments_and_environment() {
    let script = "import os, sys\nprint(sys.argv[1:], os.environ['RONDEL_SHARD_INDEX'], flush=False)\n\
                  print('oops', file=sys.stderr)\nsys.exit(3 if sys.argv[1] == 'bad' else 0)";
    let Some(outcome) = run("python", json!({"script": script, "args": "day one"})).await else { return };
    assert_eq!(outcome.status(), RunStatus::Succeeded, "{outcome:?}");
    assert_eq!(outcome.lines("stdout").collect::<Vec<_>>(), ["['day one', '2', '3'] 2"]);
    let failed = run("python", json!({"script": script, "args": ["bad"]})).await.unwrap();
    assert_eq!(failed.message(), "exit code 3: oops");
}

#[tokio::test]
async fn node_gets_arguments() {
    let script = "console.log(JSON.stringify(process.argv.slice(2))); process.exitCode = 77";
    let Some(outcome) = run("node", json!({"script": script})).await else { return };
    assert_eq!(outcome.lines("stdout").collect::<Vec<_>>(), [r#"["","2","3"]"#], "{outcome:?}");
    assert_eq!((outcome.status(), outcome.message()), (RunStatus::Skipped, "exit code 77"));
}

#[tokio::test]
async fn another_interpreter_may_be_named() {
    let params = json!({"script": "print 'x'", "interpreter": ["cat"], "args": []});
    let host = host(&["python"]);
    let interpreter = find_interpreters(host.path().as_os_str(), &[])[0];
    let handler = move |Params(params): Params<ScriptParams>, run: RunContext, cancel: Cancel, log: Log| async move {
        let shard = Shard { index: 0, total: 1 };
        interpreter
            .program(with_text(params), shard, tempfile::tempdir()?)?
            .run(&Confinement::default(), run, cancel, log)
            .await
    };
    let outcome = TestRun::of(handler).params(params).run().await;
    assert!(outcome.log().contains("stdout print 'x'"), "{outcome:?}");
}

#[tokio::test]
async fn params_that_make_no_sense_are_refused_by_name() {
    for (params, expected) in [
        (json!({}), "missing field `script`"),
        (json!({"script": "x", "argv": ["x"]}), "unknown field `argv`"),
        (json!({"script": "x", "interpreter": []}), "interpreter must begin with a program"),
        (json!({"script": "x", "args": ["a\u{0}b"]}), "contains a NUL"),
    ] {
        let Some(outcome) = run("python", params).await else { return };
        assert!(outcome.message().contains(expected) && !outcome.is_retryable(), "{outcome:?}");
    }
}
