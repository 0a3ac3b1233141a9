//! Starts that cannot succeed end with one sentence and exit code 1, and leave nothing half made behind.

use std::net::TcpListener;
use std::path::Path;

use rustix::process::Signal;

use crate::process::{Program, run, run_in, until};

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_port_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let starts = [&["dev"][..], &["server", "--database", "sqlite://rondel.db"]];
    for command in starts {
        let ended = run_in(folder.path(), &[command, &["--listen", &address]].concat());
        ended.refused(1, &[&format!("cannot listen on {address}"), "in use", "another rondel", "--listen"]);
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn the_database_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://me:secret@127.0.0.1:1/rondel");
        let ended = run_in(folder.path(), &["server", "--database", &url, "--listen", "127.0.0.1:0"]);
        ended.refused(1, &["cannot reach the database", "127.0.0.1:1", "refused"]);
        assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn the_data_folder_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    for data_dir in ["file/data", "/proc/rondel-data"] {
        let ended = run_in(folder.path(), &["dev", "--listen", "127.0.0.1:0", "--data-dir", data_dir]);
        ended.refused(1, &["cannot make the folder", data_dir]);
        let database = ["server", "--database", "sqlite://rondel.db", "--listen", "127.0.0.1:0"];
        let ended = run_in(folder.path(), &[&database[..], &["--data-dir", data_dir]].concat());
        ended.refused(1, &["cannot make the folder", data_dir]);
    }
    assert_eq!(names(folder.path()), ["file"], "the database that was made stays as little as the rest");
}

#[test]
fn the_database_file_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["server", "--database", "sqlite:///nowhere/rondel.db", "--listen", "127.0.0.1:0"];
    run_in(folder.path(), &args).refused(1, &["/nowhere/rondel.db", "No such file"]);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn the_token_file_holds_no_token() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "\n").unwrap();
    let args = ["server", "--database", "sqlite://rondel.db", "--listen", "127.0.0.1:0", "--admin-token-file", "token"];
    run_in(folder.path(), &args).refused(1, &["token holds no token"]);
    assert_eq!(names(folder.path()), ["token"]);
}

/// The failed start has encrypted the database's plain secrets with this key, so the key must stay.
#[test]
fn the_key_of_a_database_that_was_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rondel.db"), "").unwrap();
    std::fs::write(folder.path().join("token"), "\n").unwrap();
    let args = ["server", "--database", "sqlite://rondel.db", "--listen", "127.0.0.1:0", "--data-dir", "data"];
    run_in(folder.path(), &[&args[..], &["--admin-token-file", "token"]].concat())
        .refused(1, &["token holds no token"]);
    assert!(folder.path().join("data/secret.key").is_file());
}

#[test]
fn the_key_file_holds_no_key() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cert.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();
    let args = ["server", "--database", "sqlite://rondel.db", "--listen", "127.0.0.1:0"];
    let tls = ["--tls-cert", "cert.pem", "--tls-key", "cert.pem"];
    run_in(folder.path(), &[&args[..], &tls].concat()).refused(1, &["cert.pem contains no private key in PEM"]);
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    std::fs::write(folder.path().join("key.pem"), encrypted).unwrap();
    let tls = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    run_in(folder.path(), &[&args[..], &tls].concat())
        .refused(1, &["key.pem contains no private key in PEM", "an encrypted one cannot be used"]);
}

#[test]
fn a_second_server_on_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("rondel.db").display());
    let data_dir = folder.path().join("one");
    let args = ["server", "--database", &url, "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()];
    let mut first = Program::start(&args);
    first.url();
    let before = names(folder.path());
    let second = ["server", "--database", &url, "--listen", "127.0.0.1:0", "--data-dir", "two"];
    run_in(folder.path(), &second).refused(1, &["rondel.db", "in use by another rondel server"]);
    assert_eq!(names(folder.path()), before);
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), Some(0), "{}", first.output("stderr"));
}

#[test]
fn a_token_file_with_a_token_that_permits_little() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("rondel.db").display());
    let data_dir = folder.path().join("data");
    let file = data_dir.join("admin.token");
    let args = ["server", "--database", &url, "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()];
    let mut server = Program::start(&args);
    let address = server.url();
    let create = ["token", "create", "reader", "--role", "viewer", "--server", &address, "--token-file"];
    let made = run(&[&create[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0), "{}", server.output("stderr"));
    std::fs::write(&file, made.stdout).unwrap();
    let mut server = Program::start(&args);
    server.url();
    until("it warns", || server.output("stderr").contains("has ended or lacks rights"));
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0), "{}", server.output("stderr"));
}
