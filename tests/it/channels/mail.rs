//! Mail by a real SMTP server: Python's aiosmtpd, with TLS by a certificate of the test's own.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rondel_tests::{Backend, Process, Server, left_out_without, scratch, variable, wait_until};
use serde_json::{Value, json};

/// How long a program may take to start.
const LIMIT: Duration = Duration::from_secs(30);

/// An SMTP server in the mode that its first argument names. It writes each mail into a file, and refuses the recipients
/// `refuse@` and `later@`.
const PROGRAM: &str = r#"
import asyncio, email, json, ssl, sys
from email.policy import default
from aiosmtpd.smtp import SMTP, AuthResult

class Handler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith('refuse@'):
            return '550 no such user'
        if address.startswith('later@'):
            return '451 try again later'
        envelope.rcpt_tos.append(address)
        return '250 OK'

    async def handle_DATA(self, server, session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=default)
        part = lambda kind: (mail.get_body((kind,)).get_content() if mail.get_body((kind,)) else None)
        with open('mails', 'a') as out:
            out.write(json.dumps({'from': envelope.mail_from, 'to': envelope.rcpt_tos, 'subject': mail['subject'],
                'id': mail['message-id'], 'plain': part('plain'), 'html': part('html'),
                'tls': session.ssl is not None, 'login': str(session.login_data)}) + '\n')
        return '250 taken'

def login(server, session, envelope, mechanism, data):
    is_right = (data.login, data.password) == (b'rondel', b'secret')
    return AuthResult(success=is_right, handled=False, auth_data=data.login if is_right else None)

async def main():
    way = sys.argv[1]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain('server.pem', 'server.key')
    options = {'plain': {}, 'tls': {}, 'starttls': {'tls_context': tls, 'require_starttls': True,
        'authenticator': login, 'auth_required': True}}[way]
    make = lambda: SMTP(Handler(), hostname='mail.test', **options)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(make, '127.0.0.1', 0, ssl=tls if way == 'tls' else None)
    print('port', server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"#;

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split_whitespace()).current_dir(folder).output();
    let output = output.expect("openssl is installed");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn make_certificates(folder: &Path) {
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(folder, &format!("req -x509 {curve} -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"));
    openssl(folder, &format!("req {curve} -keyout server.key -out server.csr -subj /CN=server"));
    std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").expect("a file");
    openssl(
        folder,
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
    );
}

struct MailServer {
    _process: Process,
    port: String,
}

async fn mail_server(python: &str, folder: &Path, mode: &str) -> MailServer {
    std::fs::write(folder.join("server.py"), PROGRAM).expect("a file");
    let mut command = Command::new(python);
    command.args(["server.py", mode]).current_dir(folder);
    let process = Process::start(&format!("mail server {mode}"), command);
    let port = wait_until(LIMIT, "the mail server listens", async || {
        let line = process.stdout();
        line.strip_prefix("port ").map(|port| port.trim().to_owned()).ok_or_else(|| process.last_words())
    })
    .await;
    MailServer { _process: process, port }
}

fn mails(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("mails")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Saves the channel and tests it; returns the delivery.
async fn run_test(server: &Server, settings: Value, password: Option<&str>) -> Value {
    let api = server.api();
    let mut body = json!({"kind": "email", "settings": {"host": "127.0.0.1", "from": "rondel@example.com", "to": "oncall@example.com, boss@example.com"}});
    body["settings"].as_object_mut().expect("an object").extend(settings.as_object().expect("an object").clone());
    body["secrets"] = json!({"password": password.unwrap_or_default()});
    let answer = api.put("/api/v1/channels/mail", body).await;
    assert!([200, 201].contains(&answer.status), "{answer:?}");
    api.post("/api/v1/channels/mail/test", json!({})).await.expect(200)
}

#[track_caller]
fn check_refused(delivery: &Value, status: u16, words: &str) {
    assert_eq!((&delivery["verdict"], &delivery["status"]), (&json!("given_up"), &json!(status)), "{delivery:#}");
    assert!(delivery["error"].as_str().is_some_and(|text| text.contains(words)), "{words}: {delivery:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_goes_by_tls_and_refusals_keep_their_reason() {
    let Some(python) = variable("RONDEL_TEST_AIOSMTPD") else {
        return left_out_without("aiosmtpd", "there is no Python with aiosmtpd");
    };
    let folder = tempfile::tempdir().expect("a folder");
    make_certificates(folder.path());
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let ca_file = folder.path().join("ca.pem");
    let args = ["--outgoing-allow", "127.0.0.1", "--advertise", "https://rondel.example.com"];
    let server = Server::start_with_variables(&db, &args, &[("SSL_CERT_FILE", &ca_file.to_string_lossy())]).await;

    let starttls = mail_server(&python, folder.path(), "starttls").await;
    let login = json!({"port": starttls.port, "username": "rondel"});
    let delivery = run_test(&server, login.clone(), Some("secret")).await;
    assert_eq!((&delivery["verdict"], &delivery["status"]), (&json!("sent"), &json!(250)), "{delivery:#}");
    let mail = mails(folder.path()).pop().expect("a mail");
    assert_eq!(mail["to"], json!(["oncall@example.com", "boss@example.com"]));
    assert_eq!((&mail["subject"], &mail["tls"]), (&json!("[Test] Rondel: mail"), &json!(true)), "{mail:#}");
    let link = "https://rondel.example.com/n/default/alerts/channels";
    for part in ["plain", "html"] {
        assert!(mail[part].as_str().is_some_and(|text| text.contains(link)), "{mail:#}");
    }
    assert!(
        mail["id"].as_str().is_some_and(|id| id.starts_with("<alert_") && id.ends_with("@example.com>")),
        "{mail:#}"
    );
    check_refused(&run_test(&server, login, Some("wrong")).await, 535, "");

    let tls = mail_server(&python, folder.path(), "tls").await;
    let by_tls = json!({"port": tls.port, "security": "tls"});
    assert_eq!(run_test(&server, by_tls, None).await["verdict"], "sent");
    // In each case, the server's mode differs from the one in the channel's settings.
    let plain = mail_server(&python, folder.path(), "plain").await;
    check_refused(&run_test(&server, json!({"port": plain.port}), None).await, 0, "STARTTLS is not supported");
    check_refused(&run_test(&server, json!({"port": plain.port, "security": "tls"}), None).await, 0, "");
    let unencrypted = json!({"port": plain.port, "security": "none"});
    assert_eq!(run_test(&server, unencrypted.clone(), None).await["verdict"], "sent");
    for (recipient, status, words) in [("refuse@example.com", 550, "no such user"), ("later@example.com", 451, "later")]
    {
        let mut settings = unencrypted.clone();
        settings["to"] = json!(recipient);
        check_refused(&run_test(&server, settings, None).await, status, words);
    }
    assert_eq!(mails(folder.path()).len(), 3);
    // A refused address does not keep the mail from the other addresses.
    let mut settings = unencrypted;
    settings["to"] = json!("refuse@example.com, oncall@example.com, later@example.com");
    let delivery = run_test(&server, settings, None).await;
    assert_eq!((&delivery["verdict"], &delivery["status"]), (&json!("sent"), &json!(250)), "{delivery:#}");
    let refusal_text = delivery["error"].as_str().unwrap_or_default();
    assert!(
        refusal_text.contains("refuse@example.com: ") && refusal_text.contains("; later@example.com: "),
        "{delivery:#}"
    );
    assert_eq!(mails(folder.path()).pop().expect("a mail")["to"], json!(["oncall@example.com"]));
}
