use rondel_core::RunStatus;
use rondel_proto::v1::ScriptRequest;
use serde_json::json;

use super::*;
use crate::extract::Params;
use crate::test_run::{TestOutcome, TestRun};

/// A public key whose private key is unknown, so no text of these tests has a valid signature.
fn key() -> ScriptKey {
    let text = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAPUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=\n-----END PUBLIC KEY-----";
    ScriptKey::from_pem(text).unwrap()
}

/// Runs a handler that requests the script `a`; `answer` makes the server's replies.
async fn ask(
    scripts: StoredScripts,
    answer: impl Fn(ScriptRequest) -> ScriptReply + Clone + Send + Sync + 'static,
) -> TestOutcome {
    let scripts = std::sync::Arc::new(scripts);
    let handler = move |Params(script): Params<serde_json::Value>, run: RunContext, cancel: Cancel, log: Log| {
        let (scripts, answer) = (std::sync::Arc::clone(&scripts), answer.clone());
        async move {
            let script: Script = serde_json::from_value(script)?;
            let server = async {
                loop {
                    run.setup().script_requests.wait_until_ready().await;
                    for (_, request) in run.setup().script_requests.take_unsent() {
                        let ScriptRequest { run_id, attempt, with_source } = request;
                        run.setup().script_requests.answer(ScriptReply {
                            run_id,
                            attempt,
                            with_source,
                            ..answer(request)
                        });
                    }
                }
            };
            tokio::select! {
                found = scripts.text(script, &run, &cancel, &log) => found,
                () = server => unreachable!(),
            }
        }
    };
    TestRun::of(handler).params(json!({"name": "a"})).run().await
}

fn reply(request: &ScriptRequest, language: &str, text: &str) -> ScriptReply {
    let source = if request.with_source { text.to_owned() } else { String::new() };
    ScriptReply {
        name: "a".to_owned(),
        version: 1,
        language: language.to_owned(),
        hash: hash(b"date"),
        source,
        ..ScriptReply::default()
    }
}

/// The language of the script: the name of the handler that [`TestRun`] uses.
fn language() -> String {
    "test".to_owned()
}

#[tokio::test]
async fn a_text_is_fetched_once_and_again_if_its_file_was_changed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(hash(b"date"));
    let open = || StoredScripts::open(Some(folder.path()), Vec::new()).unwrap();
    let asked = std::sync::Arc::new(Mutex::new(Vec::new()));
    let server = {
        let asked = std::sync::Arc::clone(&asked);
        move |request: ScriptRequest| {
            lock(&asked).push(request.with_source);
            reply(&request, &language(), "date")
        }
    };
    for (written, expected) in [(None, &[false, true][..]), (None, &[false]), (Some("rm -rf /"), &[false, true])] {
        if let Some(text) = written {
            std::fs::write(&file, text).unwrap();
        }
        let outcome = ask(open(), server.clone()).await;
        assert_eq!(outcome.result(), Some(&json!("date")), "{outcome:?}");
        assert_eq!(std::mem::take(&mut *lock(&asked)), expected);
        assert_eq!(outcome.lines("warn").count(), usize::from(written.is_some()), "{outcome:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "date");
    }
}

#[tokio::test]
async fn a_text_that_is_not_the_script_does_not_run() {
    let open = |keys| StoredScripts::open(None, keys).unwrap();
    let signed = |request: ScriptRequest| ScriptReply {
        signature: "c2lnbmVk".to_owned(),
        ..reply(&request, &language(), "date")
    };
    let named = |request: ScriptRequest| ScriptReply { name: "b".to_owned(), ..reply(&request, &language(), "date") };
    let path =
        |request: ScriptRequest| ScriptReply { hash: "../../a".to_owned(), ..reply(&request, &language(), "date") };
    let none = |_| ScriptReply { error: "there is no script \"a\"".to_owned(), ..ScriptReply::default() };
    for (outcome, message, is_retryable) in [
        (ask(open(Vec::new()), |request| reply(&request, &language(), "rm")).await, "but the server names", true),
        (ask(open(Vec::new()), |request| reply(&request, "php", "date")).await, "another script", true),
        (ask(open(Vec::new()), named).await, "another script", true),
        (ask(open(Vec::new()), path).await, "another script", true),
        (ask(open(Vec::new()), none).await, "there is no script", false),
        (ask(open(vec![key()]), |request| reply(&request, &language(), "date")).await, "is not signed", false),
        (ask(open(vec![key()]), signed).await, "not made with a key that this agent knows", false),
    ] {
        assert_eq!(outcome.status(), RunStatus::Failed);
        let found = (outcome.message().contains(message), outcome.is_retryable());
        assert_eq!(found, (true, is_retryable), "{message}: {outcome:?}");
    }
}

#[test]
fn the_oldest_files_make_room() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::Folder(folder.path().to_owned());
    for number in 0..FILE_COUNT_MAX + 5 {
        cache.put(&format!("{number:064x}"), "date").unwrap();
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), FILE_COUNT_MAX);
    assert_eq!(
        cache.get(&format!("{:064x}", FILE_COUNT_MAX + 4)),
        CacheLookup::Changed,
        "another text than its name stands for"
    );
    assert_eq!(cache.get(&"0".repeat(HASH_LEN)), CacheLookup::Missing);
}
