//! Settings: their sources, and the messages about wrong ones.

use std::path::Path;

use crate::process::{end, rondel, run, run_in};

fn write(folder: &Path, text: &str) {
    std::fs::write(folder.join("rondel.toml"), text).expect("write a config file");
}

#[test]
fn the_settings_that_hold_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "[server]\ndatabase = \"postgres://me:secret@db/rondel\"\nlease = \"8s\"\nbeat = \"2s\"\n");
    let mut command = rondel();
    command.args(["server", "check-config", "--config", "rondel.toml", "--listen", "127.0.0.1:1"]);
    command.current_dir(folder.path()).env("RONDEL_SERVER_LISTEN", "127.0.0.1:2").env("RONDEL_SERVER_LEASE", "9s");
    let output = end(command.env("RONDEL_SERVER_TRUSTED_PROXIES", "10.0.0.1"));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains("RONDEL_SERVER_TRUSTED_PROXIES is named like a setting"), "{}", output.stderr);
    let mut agent = rondel();
    agent.args(["agent", "check-config", "--app", "work", "--server", "http://127.0.0.1:1"]);
    let checked = end(agent.current_dir(folder.path()).env("RONDEL_AGENT_SLOT", "4"));
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(checked.stderr.contains("RONDEL_AGENT_SLOT is named like a setting"), "{}", checked.stderr);
    let printed: toml::Table = output.stdout.parse().unwrap();
    let server = &printed["server"];
    for (key, value) in [
        ("database", "postgres://me:***@db/rondel"),
        ("listen", "127.0.0.1:1"),
        ("lease", "9s"),
        ("beat", "2s"),
        ("drain_grace", "30s"),
    ] {
        assert_eq!(server[key].as_str(), Some(value), "{key}");
    }
    let made: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(made, ["rondel.toml"], "check-config makes nothing");
}

#[test]
fn bad_settings_are_refused_before_anything_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let db = "database = \"sqlite://rondel.db\"\n";
    for (text, words) in [
        ("[server]\n", &["server.database", "--database", "RONDEL_SERVER_DATABASE", "postgres://"][..]),
        (&format!("[server]\n{db}lease = \"2s\"\n"), &["server.lease", "4 beats"]),
        (&format!("[server]\n{db}listen = \"nowhere\"\n"), &["rondel.toml, line 3", "\"nowhere\""]),
        (&format!("[server]\n{db}litsen = \"127.0.0.1:1\"\n"), &["rondel.toml, line 3", "litsen"]),
        ("[sever]\n", &["rondel.toml, line 1", "sever"]),
    ] {
        write(folder.path(), text);
        for command in [&["server", "check-config"][..], &["server"]] {
            run_in(folder.path(), &[command, &["--config", "rondel.toml"]].concat()).refused(2, words);
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was made");
    run(&["server", "check-config", "--config", "/nowhere/rondel.toml"]).refused(2, &["/nowhere/rondel.toml"]);
    run(&["agent", "check-config", "--server", "http://127.0.0.1:1"]).refused(2, &["agent.app", "--app"]);
    run(&["agent", "check-config", "--app", "work"]).refused(2, &["agent.servers", "--server"]);
}

#[test]
fn a_database_url_that_is_wrong_keeps_its_password() {
    let refusal = |command: &mut std::process::Command| {
        let output = end(command.current_dir("/"));
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{}", output.stderr);
        assert!(!output.stderr.contains("hunter2"), "{}", output.stderr);
        output.stderr
    };
    for url in ["pg://rondel:hunter2@db/rondel", "rondel:hunter2@db", "postgres:/rondel:hunter2@db/rondel"] {
        for command in ["server", "bench"] {
            assert!(refusal(rondel().args([command, "--database", url])).contains("is not a database URL"));
        }
        let by_variable = refusal(rondel().arg("server").env("RONDEL_SERVER_DATABASE", url));
        assert!(by_variable.contains("is not a database URL"), "{by_variable}");
    }
    let unencoded = refusal(rondel().args(["server", "--database", "postgres://rondel:hun@ter2/w#hunter2@db/rondel"]));
    assert!(unencoded.contains("write @ as %40"), "{unencoded}");
}

#[test]
fn a_token_in_the_place_of_its_file_is_not_repeated() {
    let token = format!("rondel_exec_{}", "0123456789abcdef".repeat(4));
    let server = ["--server", "http://127.0.0.1:1"];
    for command in [&["job", "list"][..], &["agent", "--app", "work"]] {
        let output = run(&[command, &server, &["--token-file", &token]].concat());
        output.refused(2, &["a token file is named by its path"]);
        assert!(!output.stderr.contains(&token), "{}", output.stderr);
    }
    let folder = tempfile::tempdir().unwrap();
    let args = ["server", "--database", "sqlite://x.db", "--listen", "127.0.0.1:0", "--admin-token-file", &token];
    run_in(folder.path(), &args).refused(2, &["a token file is named by its path"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn the_reference_config_is_a_config() {
    let folder = tempfile::tempdir().unwrap();
    let reference = run(&["config-reference"]);
    assert_eq!(reference.code, Some(0), "{}", reference.stderr);
    write(folder.path(), &reference.stdout);
    let args = ["server", "check-config", "--config", "rondel.toml", "--database", "sqlite://x.db"];
    assert_eq!(run_in(folder.path(), &args).code, Some(0));
}

#[test]
fn the_doctor_makes_the_checks_of_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let verdict = |name: &str, text: &str| {
        write(folder.path(), text);
        let args = ["doctor", "--config", "rondel.toml", "--server", "http://127.0.0.1:1", "-o", "json"];
        let output = run_in(folder.path(), &args);
        let found: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
        let check = found["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap();
        let text = |key: &str| check[key].as_str().unwrap().to_owned();
        (text("verdict"), text("found"))
    };
    let place = folder.path().display();
    let database = format!("[server]\ndatabase = \"sqlite://{place}/data/rondel.db\"\n");
    assert_eq!(verdict("settings", &database).0, "ok");
    for (section, key) in
        [("[oidc]\nclient_id = \"rondel\"", "oidc.client_id"), ("[http]\nrequests = 0", "http.requests")]
    {
        let (verdict, found) = verdict("settings", &format!("{database}{section}\n"));
        assert!(verdict == "failed" && found.contains(key), "{verdict}: {found}");
    }
    for (data_dir, expected) in [("elsewhere", "failed"), ("data", "warning")] {
        let (verdict, found) = verdict("database", &format!("{database}data_dir = \"{place}/{data_dir}\"\n"));
        assert!(verdict == expected && found.contains("there is no folder"), "{data_dir}: {verdict}: {found}");
    }
}

#[test]
fn the_doctor_reads_the_variables_that_a_start_reads() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "[server]\nlease = \"8s\"\n");
    let verdict = |lease: &str| {
        let mut command = rondel();
        command.args(["doctor", "--config", "rondel.toml", "--server", "http://127.0.0.1:1", "-o", "json"]);
        command.current_dir(folder.path()).env("RONDEL_SERVER_DATABASE", "sqlite://rondel.db");
        let output = end(command.env("RONDEL_SERVER_LEASE", lease));
        let found: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
        let check = found["checks"].as_array().unwrap().iter().find(|check| check["name"] == "settings").unwrap();
        format!("{} {}", check["verdict"], check["found"])
    };
    assert!(verdict("9s").starts_with("\"ok\""), "{}", verdict("9s"));
    for (lease, word) in [("3s", "server.lease"), ("long", "--lease")] {
        assert!(verdict(lease).starts_with("\"failed\"") && verdict(lease).contains(word), "{}", verdict(lease));
    }
}

#[test]
fn the_help_is_there_and_mistakes_are_usage_errors() {
    for args in [&["--help"][..], &["server", "--help"], &["job", "create", "--help"], &["--version"], &["version"]] {
        let output = run(args);
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{args:?}");
    }
    for (program, defaults) in [
        ("server", &["[default: 127.0.0.1:8080]", "[default: ./rondel-data]", "[default: 30days]"][..]),
        ("agent", &["[default: default]", "[default: 16]", "[default: 1m]"]),
    ] {
        let help = run(&[program, "--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        for default in defaults {
            assert!(help.contains(default), "{default} is not in the help of {program}");
        }
    }
    for args in [
        &[][..],
        &["serve"],
        &["job"],
        &["job", "trigger"],
        &["run", "list", "--limit", "0"],
        &["server", "--port", "1"],
    ] {
        let output = run(args);
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{args:?}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completions", shell]).stdout.contains("rondel"), "{shell}");
    }
}
