//! Reads cron jobs of Kubernetes (`batch/v1`). A container's command becomes a run of the agent's handler `shell`, on
//! an agent that has the programs of the image, such as an agent in the same image.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use rondel_web::yaml;
use serde_json::{Map, Value, json};

use super::result::{Entry, ImportResult, RETRY_MAX, origin_labels};

/// The default of Kubernetes for `backoffLimit`.
const BACKOFF_LIMIT: u64 = 6;

/// Reads the cron jobs of a text with YAML or JSON documents; other objects are ignored.
///
/// # Errors
/// A sentence, if the text is not YAML.
pub(super) fn read(text: &str, file: &str, app: &str, result: &mut ImportResult) -> Result<(), String> {
    let documents =
        yaml::documents(text).map_err(|error| format!("{file}:{}:{}: {}", error.line, error.column, error.message))?;
    let values: Vec<Value> = documents.iter().map(|document| document.value()).collect();
    let items =
        values.iter().flat_map(|value| value["items"].as_array().map_or(std::slice::from_ref(value), Vec::as_slice));
    let cron_jobs: Vec<&Value> = items.filter(|item| item["kind"] == "CronJob").collect();
    if cron_jobs.is_empty() {
        result.remarks.push(format!("{file} has no CronJob"));
    }
    let namespaces: BTreeSet<Option<&str>> =
        cron_jobs.iter().map(|item| item.pointer("/metadata/namespace").and_then(Value::as_str)).collect();
    cron_jobs.iter().for_each(|item| read_object(item, namespaces.len() > 1, app, result));
    Ok(())
}

/// Reads a cron job. With `has_several_namespaces`, the name of the job includes its namespace.
fn read_object(object: &Value, has_several_namespaces: bool, app: &str, result: &mut ImportResult) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
    let title = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    let mut entry = Entry::new(format!("CronJob {title}"), name);
    let spec = &object["spec"];
    if let Some(reason) = zone_in_schedule(spec) {
        return result.leave_out(entry, reason);
    }
    let job_spec = &spec["jobTemplate"]["spec"];
    let pod = &job_spec["template"]["spec"];
    let containers = pod["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [container] = containers else {
        let reason = format!("has {} containers: a run is one program", containers.len());
        return result.leave_out(entry, reason);
    };
    let word_list = |field: &str| container[field].as_array().cloned().unwrap_or_default();
    let argv: Vec<Value> = word_list("command").into_iter().chain(word_list("args")).collect();
    let env = environment(container, &mut entry);
    let argv: Vec<Value> = argv.into_iter().map(|word| expand_variables(&word, &env, &mut entry)).collect();
    if word_list("command").is_empty() {
        return result
            .leave_out(entry, "has no command: what its image starts by itself is not known here; give it one");
    }
    let mut params = json!({"argv": argv});
    if let Some(cwd) = container["workingDir"].as_str() {
        params["cwd"] = cwd.into();
    }
    if !env.is_empty() {
        params["env"] = Value::Object(env);
    }
    let mut job = Map::new();
    let image = container["image"].as_str().unwrap_or("its image");
    entry.note_change(format!(
        "ran in {image}: it runs where the agent is, which must have its programs (an agent in that image has)"
    ));
    let mut set_field = |field: &str, value: Value| drop(job.insert(field.to_owned(), value));
    let slug = if has_several_namespaces { title.replace('/', "-") } else { name.to_owned() };
    set_field("name", result.names.unique_name(&slug, &[&title]).into());
    set_field("app", app.into());
    set_field("handler", "shell".into());
    set_field("description", format!("From the CronJob {title} of Kubernetes.").into());
    set_field("labels", origin_labels(&[("kubernetes-namespace", namespace), ("kubernetes-name", name)]).into());
    set_field("params", params);
    let zone = spec["timeZone"].as_str().unwrap_or("UTC");
    if spec["timeZone"].is_null() {
        entry.note_change(
            "names no timeZone: it is read in UTC, as most clusters do; the controller's own zone may differ",
        );
    }
    set_field("schedule", json!({"cron": cron_schedule(spec), "time_zone": zone}));
    set_field("overlap", json!({"policy": overlap_policy(spec["concurrencyPolicy"].as_str())}));
    if spec["concurrencyPolicy"] == "Forbid" {
        entry.note_change(
            "concurrencyPolicy Forbid made up for a start that fell into a run once that run had ended: here it is skipped, and with \
             overlap.policy serial it waits",
        );
    }
    set_field("misfire", misfire_policy(spec, &mut entry));
    set_field("enabled", (spec["suspend"] != true).into());
    set_field("retry", json!({"max": retry_count(job_spec, &mut entry), "backoff": "10s..6m"}));
    let [job_deadline, pod_deadline] = [job_spec, pod].map(|spec| spec["activeDeadlineSeconds"].as_u64());
    if let Some(seconds) = job_deadline.into_iter().chain(pod_deadline).min() {
        set_field("timeout", format!("{seconds}s").into());
    }
    if job_deadline.is_some() {
        entry.note_change("activeDeadlineSeconds held for all attempts together: timeout is that of one");
    }
    if let Some(shards) = shard_count(job_spec, &mut entry) {
        set_field("shards", shards.into());
    }
    note_volumes(pod, &mut entry);
    note_bounds(pod, container, &mut entry);
    note_containers(pod, job_spec, &mut entry);
    result.add(entry, job);
}

/// Expands a word as the kubelet does: `$(NAME)` becomes the value in `env`, unknown names stay, and `$$` becomes `$`.
fn expand_variables(word: &Value, env: &Map<String, Value>, entry: &mut Entry) -> Value {
    let Some(text) = word.as_str() else { return word.clone() };
    let (mut remaining_text, mut expanded_text) = (text, String::new());
    while let Some(dollar_position) = remaining_text.find('$') {
        expanded_text.push_str(&remaining_text[..dollar_position]);
        let text_after = &remaining_text[dollar_position + 1..];
        let name = text_after.strip_prefix('(').and_then(|text_after| Some(text_after.split_once(')')?.0));
        remaining_text = match name {
            _ if text_after.starts_with('$') => {
                expanded_text.push('$');
                &text_after[1..]
            }
            Some(name) => {
                match env.get(name).and_then(Value::as_str) {
                    Some(value) => expanded_text.push_str(value),
                    None => {
                        entry.note_unsupported(format!("$({name}) is not in env, and stays as it is: write its value"));
                        write!(expanded_text, "$({name})").ok();
                    }
                }
                &text_after[name.len() + 2..]
            }
            None => {
                expanded_text.push('$');
                text_after
            }
        };
    }
    expanded_text.push_str(remaining_text);
    expanded_text.into()
}

fn note_containers(pod: &Value, job_spec: &Value, entry: &mut Entry) {
    let names = |field: &str| -> Vec<&str> {
        pod[field].as_array().into_iter().flatten().map(|object| object["name"].as_str().unwrap_or("?")).collect()
    };
    let init_names = names("initContainers");
    if !init_names.is_empty() {
        entry.note_unsupported(format!(
            "initContainers ({}): they ran before the command, or beside it as sidecars: let the command do their work, or make a job of \
             each that this one follows from",
            init_names.join(", ")
        ));
    }
    if job_spec["podFailurePolicy"].is_object() {
        entry.note_unsupported("podFailurePolicy: each failure is tried again up to retry.max");
    }
}

/// Why a cron job with a zone in its schedule is left out; `None` if its schedule has no zone. Kubernetes never documented
/// that form, and refuses it in new objects.
fn zone_in_schedule(spec: &Value) -> Option<String> {
    let schedule = spec["schedule"].as_str()?.trim();
    let zone_and_cron = schedule.strip_prefix("CRON_TZ=").or_else(|| schedule.strip_prefix("TZ="))?;
    let (zone, cron) = zone_and_cron.split_once(char::is_whitespace).unwrap_or((zone_and_cron, ""));
    Some(format!(
        "schedule: {schedule:?} has a zone in it, for which timeZone is meant: write timeZone: {zone} and schedule: {:?}",
        cron.trim()
    ))
}

/// The schedule in cron's terms. The controller of Kubernetes reads `?` as `*`, and a day field with a step, such as
/// `*/2`, as a list of days: a day then has to match only one of the two day fields. Cron requires a match of both day
/// fields if one begins with `*`. Therefore a `*` before a step is replaced by a range.
fn cron_schedule(spec: &Value) -> Value {
    let Some(text) = spec["schedule"].as_str() else { return spec["schedule"].clone() };
    let plain_field = |field: &str| if field == "?" { "*".to_owned() } else { field.to_owned() };
    let mut fields: Vec<String> = text.split_whitespace().map(plain_field).collect();
    if let [_, _, day, _, weekday] = fields.as_mut_slice()
        && !is_any_day(day)
        && !is_any_day(weekday)
    {
        *day = with_range(day, "1-31");
        *weekday = with_range(weekday, "0-6");
    }
    let is_unchanged = fields.iter().map(String::as_str).eq(text.split_whitespace());
    if is_unchanged { text.into() } else { fields.join(" ").into() }
}

/// Whether a day field matches every day, so that the other day field decides.
fn is_any_day(field: &str) -> bool {
    field.split(',').any(|item| matches!(item, "*" | "*/1"))
}

/// Replaces each `*` before a step with the range.
fn with_range(field: &str, range: &str) -> String {
    let replace_star =
        |item: &str| item.strip_prefix("*/").map_or_else(|| item.to_owned(), |step| format!("{range}/{step}"));
    field.split(',').map(replace_star).collect::<Vec<_>>().join(",")
}

fn retry_count(job_spec: &Value, entry: &mut Entry) -> u64 {
    let limit = job_spec["backoffLimit"].as_u64().unwrap_or(BACKOFF_LIMIT);
    if limit > RETRY_MAX {
        entry.note_change(format!("backoffLimit {limit}: retry.max is {RETRY_MAX}, which is the most"));
    }
    limit.min(RETRY_MAX)
}

/// Notes the container's security context and limits, which are not imported: a run has the user, rights and memory of
/// its agent.
fn note_bounds(pod: &Value, container: &Value, entry: &mut Entry) {
    if [pod, container].iter().any(|spec| spec["securityContext"].as_object().is_some_and(|map| !map.is_empty())) {
        entry.note_unsupported("securityContext: runs have the agent's user and rights (its --run-as)");
    }
    let limits = container.pointer("/resources/limits").and_then(Value::as_object);
    let limit_text = |(name, value): (&String, &Value)| match value.as_str() {
        Some(text) => format!("{name} {text}"),
        None => format!("{name} {value}"),
    };
    let limits: Vec<String> = limits.into_iter().flatten().map(limit_text).collect();
    if !limits.is_empty() {
        entry.note_unsupported(format!(
            "resources.limits ({}): a run may use what the agent may; bound the agent where it is started",
            limits.join(", ")
        ));
    }
}

fn overlap_policy(policy: Option<&str>) -> &'static str {
    match policy {
        Some("Forbid") => "discard",
        Some("Replace") => "cover",
        _ => "allow",
    }
}

fn misfire_policy(spec: &Value, entry: &mut Entry) -> Value {
    match spec["startingDeadlineSeconds"].as_u64() {
        None => json!({"policy": "once"}),
        Some(seconds) => {
            entry.note_change(format!(
                "a start that was missed by up to {seconds} s was made up for: here a fire runs that is up to {seconds} s late, and is skipped beyond"
            ));
            json!({"policy": "skip", "tolerance": format!("{}s", seconds.max(1))})
        }
    }
}

/// The container's variables with a value or a secret. The others refer to data that only the cluster has, and get a note.
fn environment(container: &Value, entry: &mut Entry) -> Map<String, Value> {
    let mut env = Map::new();
    for variable in container["env"].as_array().into_iter().flatten() {
        let Some(name) = variable["name"].as_str() else { continue };
        if let Some(value) = variable["value"].as_str() {
            // The value may refer to variables that precede this variable.
            let value = expand_variables(&value.into(), &env, entry);
            env.insert(name.to_owned(), value);
        } else if let Some(secret) = variable.pointer("/valueFrom/secretKeyRef") {
            let place = format!(
                "{}.{}",
                secret["name"].as_str().unwrap_or_default(),
                secret["key"].as_str().unwrap_or_default()
            );
            let secret_name = place.replace(|c: char| !c.is_ascii_alphanumeric(), "_").to_uppercase();
            env.insert(name.to_owned(), format!("{{{{secret.{secret_name}}}}}").into());
            entry.note_change(format!("{name} comes from the secret {place}: give the agent the secret {secret_name}"));
        } else if variable["valueFrom"].is_null() {
            env.insert(name.to_owned(), "".into());
        } else {
            entry.note_unsupported(format!("{name} comes from the cluster (valueFrom): give it a value in params.env"));
        }
    }
    if container["envFrom"].is_array() {
        entry.note_unsupported("envFrom: its variables are not known here; write them into params.env");
    }
    env
}

/// The number of shards: as many as the job has completions. `None` for a job with one completion.
fn shard_count(job_spec: &Value, entry: &mut Entry) -> Option<u64> {
    let parallelism = job_spec["parallelism"].as_u64().unwrap_or(1);
    if job_spec["completions"].is_null() && parallelism > 1 {
        entry.note_unsupported(format!(
            "parallelism {parallelism} without completions: that many pods shared the work, and here is one run; shards makes several"
        ));
    }
    let count = job_spec["completions"].as_u64().filter(|count| *count > 1)?;
    if job_spec["completionMode"] == "Indexed" {
        entry.note_change("its index is in RONDEL_SHARD_INDEX, in the place of JOB_COMPLETION_INDEX");
    } else {
        entry.note_change(format!("{count} completions became {count} shards, each of which runs once"));
    }
    if parallelism < count {
        entry.note_unsupported("parallelism: all shards may run concurrently; concurrency limits them");
    }
    Some(count)
}

fn note_volumes(pod: &Value, entry: &mut Entry) {
    if pod["volumes"].as_array().is_some_and(|volumes| !volumes.is_empty()) {
        entry.note_unsupported("volumes: the agent needs what is mounted in them");
    }
    if pod["serviceAccountName"].is_string() {
        entry.note_unsupported("serviceAccountName: runs have the agent's rights");
    }
    if pod["nodeSelector"].is_object() || pod["affinity"].is_object() {
        entry.note_unsupported("nodeSelector and affinity: give agents labels, and the job select.labels");
    }
}
