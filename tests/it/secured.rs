//! From a first start to a signed-in administrator and an agent with its own token, over TLS, as a new user would.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rondel_tests::{Backend, Process, binary, scratch, wait_until};

/// How long a start may take on a slow machine.
const LIMIT: Duration = Duration::from_secs(30);

fn openssl(folder: &Path, arguments: &str) {
    let done = Command::new("openssl").args(arguments.split_whitespace()).current_dir(folder).output();
    let done = done.expect("openssl is installed");
    assert!(done.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Makes a CA and its certificates: for this machine, for executors of the app `billing`, for that app without the name
/// of an executor, and for another app.
fn certificates(folder: &Path) {
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(folder, &format!("req -x509 {curve} -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"));
    for (name, names) in [
        ("server", "DNS:localhost,IP:127.0.0.1"),
        ("billing", "DNS:*.billing.default"),
        ("nameless", "DNS:billing,DNS:billing.default"),
        ("other", "DNS:*.other.default"),
    ] {
        openssl(folder, &format!("req {curve} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        std::fs::write(folder.join("names"), format!("subjectAltName={names}\n")).expect("a file");
        openssl(
            folder,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out {name}.pem"
            ),
        );
    }
}

/// Runs a command of the client to its end.
fn client(folder: &Path, url: &str, token_file: &Path, arguments: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(binary());
    command.args(arguments).args(["--server", url, "--ca-file", "ca.pem"]).arg("--token-file").arg(token_file);
    let done = command.current_dir(folder).output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.success(), text(&done.stdout), text(&done.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_beyond_this_machine_needs_a_setting() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(binary());
    command.args(["server", "--database", "sqlite://x.db", "--listen", "0.0.0.0:0"]).current_dir(folder.path());
    let done = command.output().expect("the binary starts");
    assert_eq!(done.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(errors.contains("insecure_http") && errors.contains("tls_cert"), "{errors}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing was made");
}

/// Each error names the wrong file.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_another_certificate_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    certificates(folder.path());
    let server = ["server", "--database", "sqlite://x.db", "--listen", "127.0.0.1:0", "--tls-cert", "server.pem"];
    let agent = ["agent", "--server", "https://127.0.0.1:1", "--app", "billing", "--cert-file", "billing.pem"];
    for (arguments, flag, expected) in [
        (server, "--tls-key", "the key in other.key does not belong to the certificate in server.pem"),
        (agent, "--key-file", "the files for TLS cannot be used with \"https://127.0.0.1:1\""),
    ] {
        let mut command = Command::new(binary());
        command.args(arguments).args([flag, "other.key"]).current_dir(folder.path());
        command.env("RONDEL_TOKEN", "rondel_exec_".to_owned() + &"0".repeat(64));
        let done = command.output().expect("the binary starts");
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && errors.contains(expected), "{errors}");
    }
}

/// The serial number of the certificate that a server presents.
fn shown(folder: &Path, address: &str) -> String {
    let command = format!("echo | openssl s_client -connect {address} 2>/dev/null | openssl x509 -noout -serial");
    let done = Command::new("sh").args(["-c", &command]).current_dir(folder).output().expect("openssl is installed");
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// A renewed certificate is used without a restart, but not while its files are only half written.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_taken_while_the_server_runs() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    certificates(at);
    let mut command = Command::new(binary());
    command.args(["server", "--database", db.url(), "--listen", "127.0.0.1:0", "--data-dir", "data"]);
    command.args(["--tls-cert", "server.pem", "--tls-key", "server.key"]).current_dir(at);
    let mut server = Process::start("the server", command);
    let line = server.wait_for_line(LIMIT, "listening on https://").await;
    let address = line.split_once("https://").expect("an address").1.trim().to_owned();
    let first = shown(at, &address);
    assert!(first.starts_with("serial="), "{first}");
    std::fs::write(at.join("server.pem"), "-----BEGIN CERTIFICATE-----\nhalf").expect("a file");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(shown(at, &address), first, "half a file changes nothing");
    // A new signer and new certificates, with other serial numbers.
    certificates(at);
    wait_until(LIMIT, "the new certificate is shown", async || {
        let now = shown(at, &address);
        if now.starts_with("serial=") && now != first { Ok(()) } else { Err(now) }
    })
    .await;
    server.terminate(LIMIT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn executors_come_in_by_token_and_certificate_over_tls() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    certificates(at);
    let arguments = [
        "server",
        "--database",
        db.url(),
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        "data",
        "--tls-cert",
        "server.pem",
        "--tls-key",
        "server.key",
        "--tls-client-ca",
        "ca.pem",
        "--executor-certificates",
        "named",
    ];
    let mut command = Command::new(binary());
    command.args(arguments).current_dir(at);
    let mut server = Process::start("the server", command);
    let line = server.wait_for_line(LIMIT, "listening on https://").await;
    let url = format!("https://{}", line.split_once("https://").expect("an address").1.trim());
    let set_up = server.wait_for_line(LIMIT, "set up: ").await;
    assert!(set_up.contains("/set-up?token=rondel_"), "{set_up}");
    let admin = at.join("data/admin.token");
    let (done, _, errors) = client(at, &url, &admin, &["node", "list"]);
    assert!(done, "{errors}");
    let (done, secret, errors) = client(
        at,
        &url,
        &admin,
        &["token", "create", "agents", "--kind", "executor", "--role", "executor:default/billing"],
    );
    assert!(done && secret.starts_with("rondel_exec_"), "{errors}");
    let token = at.join("billing.token");
    std::fs::write(&token, secret).expect("a file");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&token, private).expect("its owner's alone");
    let (done, _, errors) = client(at, &url, &token, &["job", "list"]);
    assert!(!done && errors.contains("opens sessions only"), "{errors}");
    let agent = |app: &str, certificate: Option<&str>| {
        let mut command = Command::new(binary());
        command.args(["agent", "--server", &url, "--app", app, "--token-file", "billing.token", "--ca-file", "ca.pem"]);
        if let Some(name) = certificate {
            command.args(["--cert-file", &format!("{name}.pem"), "--key-file", &format!("{name}.key")]);
        }
        command.current_dir(at);
        Process::start("the agent", command)
    };
    let refused =
        [(None, "need a client certificate"), (Some("other"), "is made out to"), (Some("nameless"), "not to executor")];
    for (certificate, why) in refused {
        let mut agent = agent("billing", certificate);
        agent.wait_for_line(LIMIT, why).await;
        agent.kill().await;
    }
    let mut stranger = agent("other", Some("other"));
    stranger.wait_for_line(LIMIT, "does not admit executors of app").await;
    stranger.kill().await;
    let is_online = async || {
        let (_, listed, _) = client(at, &url, &admin, &["executor", "list"]);
        if listed.contains("online") { Ok(()) } else { Err(listed) }
    };
    let mut good = agent("billing", Some("billing"));
    wait_until(LIMIT, "the agent is online", async || is_online().await).await;
    good.terminate(LIMIT).await;
    // The certificate is replaced while the agent runs.
    let replace = |name: &str| {
        for ending in ["key", "pem"] {
            std::fs::copy(at.join(format!("{name}.{ending}")), at.join(format!("renewed.{ending}"))).expect("a file");
        }
    };
    replace("other");
    let mut renewed = agent("billing", Some("renewed"));
    renewed.wait_for_line(LIMIT, "is made out to").await;
    let is_offline = async || is_online().await.err().ok_or("it is online");
    wait_until(LIMIT, "the first agent is not online any more", is_offline).await;
    replace("billing");
    wait_until(LIMIT, "the agent is online with its new certificate", async || is_online().await).await;
    renewed.terminate(LIMIT).await;
    let (done, listed, errors) = client(at, &url, &admin, &["audit", "--action", "token.create"]);
    assert!(done && listed.contains("agents"), "{listed}{errors}");
    server.terminate(LIMIT).await;
}
