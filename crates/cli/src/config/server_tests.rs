use super::*;

fn check(text: &str) -> Result<ServerConfig, String> {
    let settings: ServerSettings = toml::from_str(text).map_err(|error| error.to_string())?;
    ServerConfig::try_from(settings).map_err(|failure| format!("{failure:?}"))
}

#[test]
fn bad_settings_are_named() {
    const DB: &str = "database = \"sqlite:///x.db\"\n";
    for (text, key) in [
        ("", "database"),
        ("database = \"x\"", "database"),
        (&format!("{DB}listen = \"nowhere\""), "listen"),
        (&format!("{DB}listen = \"0.0.0.0:8080\""), "insecure_http"),
        (&format!("{DB}tls_cert = \"x.pem\""), "tls_key"),
        (&format!("{DB}executor_certificates = \"named\""), "tls_client_ca"),
        (&format!("{DB}lease = \"3s\""), "lease"),
        (&format!("{DB}beat = \"10ms\""), "beat"),
        (&format!("{DB}beat = \"199ms\""), "the minimum is 200ms"),
        (&format!("{DB}lease = \"61s\""), "the longest is 1m"),
        (&format!("{DB}lease = \"3999ms\""), "at least 4 beats of 1s"),
        (&format!("{DB}beat = \"{}s\"", u64::MAX), "lease"),
        (&format!("{DB}heartbeat = \"{}s\"", u64::MAX), "silence"),
        (&format!("{DB}silence = \"{}s\"", u64::MAX), "lost_after"),
        (&format!("{DB}claim_strategy = \"luck\""), "claim_strategy"),
        (&format!("{DB}node_weight = -1"), "node_weight"),
        (&format!("{DB}node_weight = 1000001"), "node_weight"),
        (&format!("{DB}heartbeat = \"10ms\""), "heartbeat"),
        (&format!("{DB}silence = \"5s\""), "three heartbeats of 2s"),
        (&format!("{DB}lost_after = \"24s\""), "at least 25s"),
        (&format!("{DB}continue_max = \"29s\""), "at least 30s"),
        (&format!("{DB}continue_max = \"31m\""), "at most 30m"),
        (&format!("{DB}node_name = \"Not A Name\""), "node_name"),
        (&format!("{DB}advertise = \"host:1\""), "advertise"),
        (&format!("{DB}advertise = \"https://host/rondel\""), "advertise: \\\"https://host/rondel\\\" has a path"),
        (
            &format!("{DB}tls_cert = \"c\"\ntls_key = \"k\"\nadvertise = \"http://host:8443\""),
            "advertise: \\\"http://host:8443\\\" is plain HTTP",
        ),
        (&format!("{DB}log_level = \"a=b=c\""), "log_level"),
        (&format!("{DB}drain_grace = 5"), "drain_grace"),
        (&format!("{DB}retention = \"10ms\""), "retention"),
        (&format!("{DB}log_retention = \"10ms\""), "log_retention"),
        (&format!("{DB}alert_rules_period = \"10ms\""), "alert_rules_period"),
        (&format!("{DB}script_versions = 29"), "script_versions: 29 is not from 30 to 10000"),
        (&format!("{DB}alert_concurrency = 0"), "alert_concurrency: 0 is not from 1 to 500"),
        (&format!("{DB}alert_concurrency = 501"), "alert_concurrency"),
        (&format!("{DB}log_size_max = \"10 apples\""), "log_size_max"),
        (&format!("{DB}outgoing_allow = [\"10.1.2.3/16\"]"), "the network is 10.1.0.0/16"),
        (&format!("{DB}xxl_networks = [\"10.1.2.3/16\"]"), "the network is 10.1.0.0/16"),
        (&format!("{DB}xxl_prefix = \"scheduler\""), "write it as /scheduler"),
        (&format!("{DB}xxl_prefix = \"/api\""), "is not a path of its own"),
        (&format!("{DB}xxl_prefix = \"/jobs\""), "is not a path of its own"),
        (&format!("{DB}xxl_prefix = \"/sign-in\""), "is not a path of its own"),
        (&format!("{DB}xxl_prefix = \"/static\""), "is not a path of its own"),
        (&format!("{DB}xxl_prefix = \"/xxl-job-admin/api\""), "is not a path of its own"),
        (&format!("{DB}xxl_prefix = \"/a/{{b}}\""), "is not a path of its own"),
        (&format!("{DB}xxl_prefix = \"/scheduler\""), "xxl_prefix: has no effect without xxl_networks"),
        (&format!("{DB}xxl_callback_timeout = \"1ms\""), "is not from 1s to"),
        (&format!("{DB}metrics_job_max = 5001"), "metrics_job_max"),
        (&format!("{DB}metrics_labels = [\"a b\"]"), "is not a key of a label"),
        (&format!("{DB}metrics_labels = [\"a.b\", \"a/b\"]"), "would be the same label"),
        (&format!("{DB}metrics_labels = [{}]", "\"k\",".repeat(9)), "the most is 8"),
        (&format!("{DB}executor_streams_per_token = 0"), "executor_streams_per_token"),
        (&format!("{DB}executor_streams_per_address = 0"), "executor_streams_per_address"),
        (&format!("{DB}otlp_endpoint = \"collector:4317\""), "otlp_endpoint"),
        (&format!("{DB}trace_ratio = 1.5"), "trace_ratio"),
    ] {
        let refusal = check(text).unwrap_err();
        assert!(refusal.contains(key), "{text}: {refusal}");
    }
    // A proxy in front may speak TLS for a port that does not.
    check(&format!("{DB}advertise = \"https://host\"")).unwrap();
    let good = check(&format!("{DB}lease = \"4s\"")).unwrap();
    assert_eq!(good.admin_token_file, PathBuf::from("./rondel-data/admin.token"));
}
