//! The lines that `rondel dev` prints once it runs: its addresses, and commands to try.

use std::path::Path;

use crate::config::{DATA_DIR, ListenAddress};
use crate::server::Node;

/// The address that commands use by default.
const URL_DEFAULT: &str = "http://127.0.0.1:8080";

pub(super) fn lines(node: &Node, sign_in: String, data_dir: &Path, listen: ListenAddress) -> Vec<String> {
    let program =
        std::env::args_os().next().map_or_else(|| "rondel".to_owned(), |name| name.to_string_lossy().into_owned());
    let flags = connection_flags(&node.url(), data_dir);
    let loopback_note = if listen.0.ip().is_loopback() { "" } else { " (on this machine)" };
    let token_path = data_dir.join("admin.token");
    vec![
        sign_in,
        String::new(),
        format!("  API        {}/api/v1{loopback_note}", node.url()),
        format!("  API token  {}", token_path.display()),
        "  Demo jobs  demo-hello, demo-shell, demo-http".to_owned(),
        String::new(),
        "Try in another terminal:".to_owned(),
        format!("  {program} job list{flags}"),
        format!("  {program} run list{flags}"),
        format!("  {program} job trigger demo-shell --wait{flags}"),
        format!("  {program} run logs --job demo-hello{flags}"),
        String::new(),
        "Ctrl-C stops it.".to_owned(),
    ]
}

/// The flags that commands need to reach this server, if their defaults do not fit.
fn connection_flags(url: &str, data_dir: &Path) -> String {
    let mut flags = String::new();
    if url != URL_DEFAULT {
        flags.push_str(&format!(" --server {url}"));
    }
    if data_dir != Path::new(DATA_DIR) {
        flags.push_str(&format!(" --token-file {}", data_dir.join("admin.token").display()));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flags_that_differ_from_the_defaults_are_named() {
        assert_eq!(connection_flags(URL_DEFAULT, Path::new("./rondel-data")), "");
        let expected = " --server http://127.0.0.1:9 --token-file /tmp/x/admin.token";
        assert_eq!(connection_flags("http://127.0.0.1:9", Path::new("/tmp/x")), expected);
    }
}
