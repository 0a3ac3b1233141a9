//! How the cron jobs of Kubernetes are converted.

use super::*;

const CRON_JOB: &str = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: nightly-close, namespace: prod}\nspec:\n  schedule: '30 2 * * *'\n  \
    timeZone: Europe/Berlin\n  concurrencyPolicy: Forbid\n  suspend: true\n  startingDeadlineSeconds: 200\n  jobTemplate:\n    spec:\n      \
    backoffLimit: 2\n      activeDeadlineSeconds: 600\n      completions: 4\n      parallelism: 2\n      completionMode: Indexed\n      template:\n        \
    spec:\n          volumes: [{name: v}]\n          containers:\n          - image: shop/close:7\n            command: [close]\n            \
    args: ['--all']\n            workingDir: /srv\n            env:\n            - {name: MODE, value: fast}\n            - name: DB\n              \
    valueFrom: {secretKeyRef: {name: shop-db, key: url}}\n            - name: POD\n              valueFrom: {fieldRef: {fieldPath: x}}\n";

#[test]
fn a_cron_job_becomes_a_job() {
    let mut result = ImportResult::default();
    read(CRON_JOB, "x.yaml", "shop", &mut result).unwrap();
    let job = result.entries[0].job.as_ref().unwrap_or_else(|| panic!("{result:?}"));
    let wanted = json!({
        "name": "nightly-close", "app": "shop", "handler": "shell", "description": "From the CronJob prod/nightly-close of Kubernetes.",
        "labels": {"kubernetes-namespace": "prod", "kubernetes-name": "nightly-close"},
        "params": {"argv": ["close", "--all"], "cwd": "/srv", "env": {"MODE": "fast", "DB": "{{secret.SHOP_DB_URL}}"}},
        "schedule": {"cron": "30 2 * * *", "time_zone": "Europe/Berlin"}, "overlap": {"policy": "discard"},
        "misfire": {"policy": "skip", "tolerance": "200s"}, "enabled": false, "retry": {"max": 2, "backoff": "10s..6m"},
        "timeout": "600s", "shards": 4,
    });
    assert_eq!(job, &wanted);
    let report = result.text("x.yaml");
    for expected in
        ["shop/close:7", "SHOP_DB_URL", "POD comes from the cluster", "volumes", "parallelism", "RONDEL_SHARD_INDEX"]
    {
        assert!(report.contains(expected), "{expected}: {report}");
    }
}

#[test]
fn variables_of_the_kubelet_are_filled_in_and_other_containers_are_named() {
    let job = |namespace: &str| {
        json!({"kind": "CronJob", "metadata": {"name": "a", "namespace": namespace}, "spec": {"schedule": "1 * * * *", "jobTemplate": {"spec": {
        "podFailurePolicy": {"rules": []},
        "template": {"spec": {"initContainers": [{"name": "migrate"}], "containers": [{
            "command": ["sh", "-c", "echo $HOME $$(date) $$5"], "args": ["--db", "$(DB_URL)", "$(NOPE)$", "$(open"],
            "env": [{"name": "HOST", "value": "db"}, {"name": "DB_URL", "value": "pg://$(HOST)/x"}],
        }]}}}}}})
    };
    let mut result = ImportResult::default();
    read(&json!({"items": [job("one"), job("two")]}).to_string(), "-", "shop", &mut result).unwrap();
    let names: Vec<&str> = result.entries.iter().map(Entry::name).collect();
    assert_eq!(names, ["one-a", "two-a"]);
    let params = &result.entries[0].job.as_ref().unwrap()["params"];
    assert_eq!(params["argv"], json!(["sh", "-c", "echo $HOME $(date) $5", "--db", "pg://db/x", "$(NOPE)$", "$(open"]));
    let text = result.text("-");
    for expected in ["initContainers (migrate)", "$(NOPE) is not in env", "podFailurePolicy"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let mut alone = ImportResult::default();
    read(&job("one").to_string(), "-", "shop", &mut alone).unwrap();
    assert_eq!(alone.entries[0].name(), "a");
}

#[test]
fn lists_are_read_and_other_objects_left_alone() {
    let list = json!({"kind": "List", "items": [
        {"kind": "CronJob", "metadata": {"name": "a"}, "spec": {"schedule": "1 * * * *", "jobTemplate": {"spec": {"template": {"spec": {"containers": [{"command": ["a"]}]}}}}}},
        {"kind": "CronJob", "metadata": {"name": "b"}, "spec": {"schedule": "1 * * * *", "jobTemplate": {"spec": {"template": {"spec": {"containers": [{}]}}}}}},
        {"kind": "CronJob", "metadata": {"name": "c"}},
        {"kind": "Service"},
    ]});
    let mut result = ImportResult::default();
    read(&list.to_string(), "-", "shop", &mut result).unwrap();
    let taken: Vec<bool> = result.entries.iter().map(|entry| entry.job.is_some()).collect();
    assert_eq!(taken, [true, false, false]);
    let job = result.entries[0].job.as_ref().unwrap();
    assert_eq!(
        (&job["overlap"]["policy"], &job["misfire"]["policy"], &job["retry"]["max"]),
        (&json!("allow"), &json!("once"), &json!(6))
    );
    assert!(result.text("-").contains("what its image starts by itself"));
    assert!(read("a: [", "x.yaml", "shop", &mut result).unwrap_err().starts_with("x.yaml:"));
}

/// A cron job with these fields of its spec, of its pod's job and of its container.
fn cron_job(spec: &Value, job_spec: &Value, container: &Value) -> String {
    let mut object = json!({"kind": "CronJob", "metadata": {"name": "a"}, "spec": {"schedule": "1 * * * *"}});
    let merge = |into: &mut Value, from: &Value| {
        let (into, from) = (into.as_object_mut().unwrap(), from.as_object().unwrap());
        into.extend(from.iter().map(|(key, value)| (key.clone(), value.clone())));
    };
    let (mut of_job, mut of_container) = (json!({}), json!({"command": ["a"]}));
    merge(&mut of_container, container);
    of_job["template"] = json!({"spec": {"securityContext": {"runAsUser": 1000}, "containers": [of_container]}});
    merge(&mut of_job, job_spec);
    merge(&mut object["spec"], spec);
    object["spec"]["jobTemplate"] = json!({"spec": of_job});
    object.to_string()
}

#[test]
fn bounds_of_the_container_are_named_and_a_large_limit_of_retries_is_capped() {
    let mut result = ImportResult::default();
    let limits = json!({"resources": {"limits": {"memory": "512Mi", "cpu": 1}}});
    read(&cron_job(&json!({}), &json!({"backoffLimit": 250}), &limits), "-", "shop", &mut result).unwrap();
    let job = result.entries[0].job.as_ref().unwrap_or_else(|| panic!("{result:?}"));
    assert_eq!(job["retry"]["max"], 100);
    let text = result.text("-");
    for expected in
        ["backoffLimit 250: retry.max is 100", "securityContext: runs have", "resources.limits (cpu 1, memory 512Mi)"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn a_deadline_of_the_pod_bounds_an_attempt() {
    for (job_deadline, pod_deadline, expected, is_noted) in [
        (Value::Null, json!(300), json!("300s"), false),
        (json!(600), json!(300), json!("300s"), true),
        (json!(200), json!(300), json!("200s"), true),
        (Value::Null, Value::Null, Value::Null, false),
    ] {
        let mut result = ImportResult::default();
        let pod = json!({"activeDeadlineSeconds": pod_deadline, "containers": [{"command": ["a"]}]});
        let job_spec = json!({"activeDeadlineSeconds": job_deadline, "template": {"spec": pod}});
        read(&cron_job(&json!({}), &job_spec, &json!({})), "-", "shop", &mut result).unwrap();
        let job = result.entries[0].job.as_ref().unwrap_or_else(|| panic!("{result:?}"));
        assert_eq!(job["timeout"], expected, "{job_spec}");
        assert_eq!(result.text("-").contains("activeDeadlineSeconds held for all attempts"), is_noted, "{job_spec}");
    }
}

#[test]
fn a_zone_in_a_schedule_is_refused_with_the_field_that_is_meant() {
    for prefix in ["CRON_TZ=Europe/Berlin ", "TZ=Europe/Berlin  "] {
        let mut result = ImportResult::default();
        let schedule = format!("{prefix}30 2 * * *");
        read(&cron_job(&json!({"schedule": schedule}), &json!({}), &json!({})), "-", "shop", &mut result).unwrap();
        let expected = "write timeZone: Europe/Berlin and schedule: \"30 2 * * *\"";
        assert!(result.entries[0].job.is_none() && result.text("-").contains(expected), "{}", result.text("-"));
    }
}

#[test]
fn a_schedule_fires_on_the_days_on_which_the_controller_fires() {
    for (given, expected) in [
        ("0 0 */2 * 1", "0 0 1-31/2 * 1"),
        ("0 0 1,*/10 * */2", "0 0 1,1-31/10 * 0-6/2"),
        ("0 0 */2 * *", "0 0 */2 * *"),
        ("0 0 */1 * 1", "0 0 */1 * 1"),
        ("0 0  1 * 1", "0 0  1 * 1"),
        ("0 0 ? * 1", "0 0 * * 1"),
        ("@daily", "@daily"),
    ] {
        let mut result = ImportResult::default();
        let spec = json!({"schedule": given});
        read(&cron_job(&spec, &json!({}), &json!({})), "-", "shop", &mut result).unwrap();
        let job = result.entries[0].job.as_ref().unwrap_or_else(|| panic!("{given}: {result:?}"));
        assert_eq!(job["schedule"]["cron"], expected, "{given}");
    }
}

#[test]
fn lost_parallelism_is_named_and_a_variable_may_be_empty() {
    let mut result = ImportResult::default();
    let env = json!({"args": ["[$(EMPTY)]"], "env": [{"name": "EMPTY"}]});
    let forbid = cron_job(&json!({"concurrencyPolicy": "Forbid"}), &json!({"parallelism": 4}), &env);
    read(&forbid, "-", "shop", &mut result).unwrap();
    let job = result.entries[0].job.as_ref().unwrap_or_else(|| panic!("{result:?}"));
    assert_eq!(job["params"], json!({"argv": ["a", "[]"], "env": {"EMPTY": ""}}));
    let text = result.text("-");
    for expected in ["parallelism 4 without completions", "Forbid made up for a start"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("EMPTY"), "{text}");
    for completions in [1, 4] {
        let mut result = ImportResult::default();
        let job_spec = json!({"parallelism": 4, "completions": completions});
        read(&cron_job(&json!({}), &job_spec, &json!({})), "-", "shop", &mut result).unwrap();
        assert!(!result.text("-").contains("parallelism"), "{}", result.text("-"));
    }
}

#[test]
fn equal_names_of_two_files_end_in_a_hash_and_a_file_without_cron_jobs_is_named() {
    let mut result = ImportResult::with_prefix("k8s-");
    let one = cron_job(&json!({}), &json!({}), &json!({}));
    for file in ["one.yaml", "two.yaml"] {
        read(&one, file, "shop", &mut result).unwrap();
    }
    read("kind: Service\n", "three.yaml", "shop", &mut result).unwrap();
    assert_eq!(result.entries[0].name(), "k8s-a");
    assert!(result.entries[1].name().starts_with("k8s-a-"), "{}", result.entries[1].name());
    assert!(result.text("-").contains("three.yaml has no CronJob"), "{}", result.text("-"));
}
