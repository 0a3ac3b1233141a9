//! The calls that scripts make to XXL-JOB's console, each with its equivalent here. Rondel serves none of these calls: the console
//! authenticates by its own sessions, and has no permissions for single calls.

use crate::api::ApiAnswer;

/// The path without the prefix, its purpose, and the equivalent here.
const EQUIVALENTS: [(&str, &str, &str); 20] = [
    ("jobinfo/insert", "adding a job", "POST /api/v1/jobs, or rondel job apply"),
    ("jobinfo/add", "adding a job", "POST /api/v1/jobs, or rondel job apply"),
    ("jobinfo/update", "changing a job", "PATCH /api/v1/jobs/{name}, or rondel job apply"),
    ("jobinfo/delete", "removing a job", "DELETE /api/v1/jobs/{name}"),
    ("jobinfo/remove", "removing a job", "DELETE /api/v1/jobs/{name}"),
    ("jobinfo/start", "starting a job", "POST /api/v1/jobs/{name}/resume"),
    ("jobinfo/stop", "stopping a job", "POST /api/v1/jobs/{name}/pause"),
    ("jobinfo/trigger", "triggering a job", "POST /api/v1/jobs/{name}/runs"),
    ("jobinfo/pageList", "listing jobs", "GET /api/v1/jobs"),
    ("jobinfo/nextTriggerTime", "the next fires of a schedule", "POST /api/v1/schedules/preview"),
    ("jobinfo", "jobs", "GET /api/v1/jobs, or /jobs in the console"),
    ("jobcode", "the script of a job", "PATCH /api/v1/jobs/{name} with the script in params"),
    ("jobgroup", "executor groups", "GET and POST /api/v1/apps, and /api/v1/apps/{app}/addresses"),
    ("joblog/logKill", "stopping a run", "POST /api/v1/runs/{id}/cancel"),
    ("joblog/logDetailCat", "the log of a run", "GET /api/v1/runs/{id}/logs"),
    ("joblog", "runs", "GET /api/v1/runs"),
    ("user", "users", "GET and POST /api/v1/users"),
    ("auth", "signing in", "the API with a token in the header Authorization, from rondel token create"),
    ("login", "signing in", "the API with a token in the header Authorization, from rondel token create"),
    ("chartInfo", "counts of runs", "GET /api/v1/reports"),
];

/// How to find the name of a job by its id in XXL-JOB, which the calls to XXL-JOB's console contain.
const NAME_HINT: &str =
    "; GET /api/v1/jobs?q=label:xxl-job-id=17 finds the name of the job that has the id 17 in XXL-JOB";

/// The answer to a call to XXL-JOB's console: it names the call to use instead.
pub(crate) fn answer(path: &str) -> ApiAnswer {
    let path = path.trim_matches('/');
    let is_path_of = |known_path: &str| {
        path == known_path || path.strip_prefix(known_path).is_some_and(|path_end| path_end.starts_with('/'))
    };
    let equivalent = EQUIVALENTS.iter().find(|(known_path, ..)| is_path_of(known_path));
    let sentence = match equivalent {
        Some((known_path, purpose, new_call)) => {
            let hint = if new_call.contains("{name}") { NAME_HINT } else { "" };
            format!("Rondel does not serve /{known_path} of XXL-JOB ({purpose}): call {new_call}{hint}")
        }
        None => "Rondel serves only /api/registry, /api/registryRemove and /api/callback of XXL-JOB: call /api/v1 \
                 (its document is /api/v1/openapi.json)"
            .to_owned(),
    };
    ApiAnswer::not_served(&sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_leads_to_its_equivalent() {
        for (path, ours) in [
            ("/jobinfo/trigger", "POST /api/v1/jobs/{name}/runs"),
            ("jobinfo/stop/", "/pause; GET /api/v1/jobs?q=label:xxl-job-id=17 finds the name"),
            ("auth/doLogin", "call the API with a token in the header Authorization"),
            ("jobinfo", "GET /api/v1/jobs"),
            ("jobgroup/save", "POST /api/v1/apps"),
            ("joblog/pageList", "GET /api/v1/runs"),
            ("user/add", "/api/v1/users"),
            ("", "its document is /api/v1/openapi.json"),
            ("jobinfos", "its document is /api/v1/openapi.json"),
        ] {
            let answer = answer(path);
            let body = String::from_utf8(answer.body).unwrap();
            assert!(answer.status == 410 && body.contains(ours), "{path}: {body}");
        }
    }
}
