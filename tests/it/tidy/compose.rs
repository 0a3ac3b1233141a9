//! Checks `docker-compose.yml` as far as this is possible without Docker.

use std::path::Path;

use rondel_tests::rondel;
use yaml_rust2::{Yaml, YamlLoader};

use super::read;

const SERVERS: [&str; 2] = ["server-1", "server-2"];
const AGENTS: [&str; 2] = ["agent-1", "agent-2"];
/// The service that creates the token of the agents.
const AGENT_TOKEN: &str = "agent-token";

struct Compose(Yaml);

impl Compose {
    fn load() -> Self {
        let mut documents = YamlLoader::load_from_str(&read(Path::new("docker-compose.yml"))).expect("it is YAML");
        assert_eq!(documents.len(), 1);
        Self(documents.remove(0))
    }

    fn service(&self, name: &str) -> &Yaml {
        let service = &self.0["services"][name];
        assert!(service.as_hash().is_some(), "there is no service {name}");
        service
    }

    /// The elements of a list of strings.
    fn list(&self, service: &str, key: &str) -> Vec<String> {
        let list = get(self.service(service), key);
        let list = list.and_then(Yaml::as_vec).expect("a list");
        list.iter().map(|item| item.as_str().expect("a text").to_owned()).collect()
    }
}

/// The value under a key, in the mapping itself or in the mapping that it merges.
fn get<'y>(mapping: &'y Yaml, key: &str) -> Option<&'y Yaml> {
    let hash = mapping.as_hash()?;
    let own = hash.get(&Yaml::String(key.to_owned()));
    own.or_else(|| get(hash.get(&Yaml::String("<<".to_owned()))?, key))
}

/// Every scalar, with the path to it.
fn scalars(path: &str, yaml: &Yaml, found: &mut Vec<(String, String)>) {
    match yaml {
        Yaml::Hash(hash) => {
            for (key, value) in hash {
                scalars(&format!("{path}.{}", key.as_str().unwrap_or_default()), value, found);
            }
        }
        Yaml::Array(items) => items.iter().for_each(|item| scalars(path, item, found)),
        Yaml::String(text) => found.push((path.to_owned(), text.clone())),
        _ => {}
    }
}

#[test]
fn the_services_are_there_and_built_from_here() {
    let compose = Compose::load();
    let services = compose.0["services"].as_hash().expect("services").len();
    assert_eq!(services, SERVERS.len() + AGENTS.len() + 2);
    compose.service("postgres");
    for name in SERVERS.iter().chain(&AGENTS).chain([&AGENT_TOKEN]) {
        let build = get(compose.service(name), "build").unwrap_or_else(|| panic!("{name} is built"));
        let image = build["dockerfile_inline"].as_str().unwrap_or_else(|| panic!("{name} has dockerfile_inline"));
        assert_eq!(image.matches("\nFROM ").count() + 1, 2, "a builder and an image without one: {image}");
        assert!(image.starts_with("FROM rust:") && image.contains("\nFROM debian:"), "{image}");
        let last = image.rsplit("\nFROM ").next().expect("the last stage");
        assert!(last.contains("\nUSER rondel\n"), "{name} must not run as root");
        assert!(!image.contains('$'), "Compose would take it for a variable of its own");
    }
}

#[test]
fn no_secret_is_shipped() {
    let compose = Compose::load();
    let mut found = Vec::new();
    scalars("", &compose.0, &mut found);
    let mut seen = 0;
    for (path, text) in &found {
        if path.to_uppercase().ends_with("PASSWORD") {
            assert!(text.starts_with("${RONDEL_DB_PASSWORD:?") && text.ends_with('}'), "{path}: {text}");
            seen += 1;
        }
        if let Some((_, rest)) = text.split_once("postgres://") {
            let (_, password) = rest.split_once(':').unwrap_or_else(|| panic!("{path}: {text}"));
            assert!(password.starts_with("${RONDEL_DB_PASSWORD:?"), "{path}: {text}");
            seen += 1;
        }
    }
    assert!(seen >= 2, "{found:#?}");
    assert!(read(Path::new(".gitignore")).lines().any(|line| line == "/.env"), ".env holds the password");
}

#[test]
fn ports_are_open_to_this_machine_only() {
    let compose = Compose::load();
    for name in ["postgres", AGENT_TOKEN, "agent-1", "agent-2"] {
        assert!(get(compose.service(name), "ports").is_none(), "{name}");
    }
    for name in SERVERS {
        for port in compose.list(name, "ports") {
            assert!(port.starts_with("127.0.0.1:") && port.ends_with(":8080"), "{name}: {port}");
        }
    }
}

#[test]
fn servers_are_asked_whether_they_are_ready() {
    let compose = Compose::load();
    for name in SERVERS {
        let check = get(compose.service(name), "healthcheck").unwrap_or_else(|| panic!("{name} has a health check"));
        let test = check["test"].as_vec().expect("test is a list").last().and_then(Yaml::as_str).expect("a command");
        assert!(test.contains("GET /readyz "), "{test}");
        let url = format!("--advertise=http://{name}:8080");
        assert!(compose.list(name, "command").contains(&url), "{name} sets the address for executors");
        assert!(compose.list(name, "command").contains(&format!("--node-name={name}")));
    }
}

/// A job can read all that its agent can read.
#[tokio::test]
async fn agents_have_a_token_of_executors_and_not_the_administrators() {
    let compose = Compose::load();
    for name in AGENTS {
        let volumes = compose.list(name, "volumes");
        assert!(volumes.iter().all(|volume| !volume.starts_with("token:")), "{name}: {volumes:?}");
        let token = volumes.iter().find(|volume| volume.starts_with("agent-token:"));
        assert!(token.is_some_and(|volume| volume.ends_with(":ro")), "{name} only reads the token");
        let command = compose.list(name, "command");
        for word in ["--token-file=/var/lib/rondel-agent/agent.token", "--app=demo"] {
            assert!(command.iter().any(|one| one == word), "{name}: {command:?}");
        }
    }
    let script = compose.list(AGENT_TOKEN, "command").concat();
    let (_, command) = script.split_once("rondel token create ").expect("it creates a token");
    let (arguments, _) = command.split_once(" > agent.token").expect("it writes the token to the file");
    let words: Vec<&str> = arguments.split_whitespace().collect();
    assert_eq!(words, ["agents", "--kind", "executor", "--role", "executor:default/demo"]);
    let help = rondel(&["token", "create", "--help"], &[]).await.stdout;
    assert!(help.contains("--kind") && help.contains("--role"), "{help}");
}

#[tokio::test]
async fn commands_are_understood_by_the_binary() {
    let compose = Compose::load();
    let database = [("RONDEL_SERVER_DATABASE", "postgres://rondel:x@postgres:5432/rondel")];
    for name in SERVERS.iter().chain(&AGENTS) {
        let command = compose.list(name, "command");
        let help = rondel(&[&command[0], "--help"], &[]).await.stdout;
        for flag in command.iter().filter_map(|word| word.split('=').next()).filter(|word| word.starts_with("--")) {
            let mut names = help.split_whitespace().map(|word| word.split([',', '=', '[']).next().unwrap_or_default());
            let is_known = names.any(|name| name == flag);
            assert!(is_known, "{name}: rondel {} has no {flag}", command[0]);
        }
        let words: Vec<&str> = command.iter().map(String::as_str).chain(["check-config"]).collect();
        let checked = rondel(&words, &database).await;
        assert_eq!(checked.code, Some(0), "{name}: {}", checked.stderr);
    }
}
