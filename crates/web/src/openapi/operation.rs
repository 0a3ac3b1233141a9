//! Generates one operation of the document.

use std::collections::BTreeMap;

use http::Method;
use rondel_core::access::Permission;
use serde_json::{Map, Value, json};

use super::RouteDoc;
use super::doc::{BodyKind, ResponseDoc};
use super::inputs::HandlerInputs;
use super::schemas::Schemas;
use crate::keyed;
use crate::parameter::Parameter;
use crate::problem::Code;
use crate::route_info::{Access, KeyUse, RouteInfo};

/// The codes with which every call can be refused or fail, whatever its handler.
const COMMON_REFUSALS: [Code; 9] = [
    Code::InvalidHeader,
    Code::Unauthenticated,
    Code::Forbidden,
    Code::RateLimited,
    Code::Internal,
    Code::Overloaded,
    Code::TimedOut,
    Code::Unavailable,
    Code::Unreadable,
];
/// Statuses whose problems are the same for every operation, with the names of these responses in the document.
const SHARED_RESPONSES: [(u16, &str); 5] =
    [(401, "Unauthenticated"), (403, "Forbidden"), (429, "RateLimited"), (500, "Internal"), (503, "Unavailable")];

/// The word of a permission in `x-permission`.
const fn permission_word(permission: Permission) -> &'static str {
    match permission {
        Permission::SignedIn => "own",
        Permission::View => "view",
        Permission::Operate => "operate",
        Permission::Edit => "edit",
        Permission::Admin => "admin",
        Permission::ViewEverywhere => "watch",
        Permission::Cluster => "cluster",
    }
}

pub(super) fn operation(info: &RouteInfo, route: &RouteDoc, schemas: &mut Schemas) -> Value {
    let RouteDoc { doc, describe_inputs } = route;
    let mut inputs = describe_inputs();
    inputs.headers.extend(&doc.headers);
    let mut refusals: Vec<Code> = COMMON_REFUSALS.to_vec();
    match info.key_use() {
        KeyUse::Stored => {
            inputs.headers.push(keyed::KEY_PARAMETER);
            refusals.extend(keyed::KEY_REFUSALS);
        }
        KeyUse::Refused | KeyUse::Ignored => {}
    }
    if inputs.body.is_none() && info.key_use() != KeyUse::Ignored {
        // A change that takes no body refuses a request that has one.
        refusals.push(Code::InvalidBody);
    }
    refusals.extend(&inputs.refusals);
    refusals.extend(&doc.refusals);
    let mut operation = Map::new();
    operation.insert("operationId".to_owned(), json!(operation_id(&info.method, info.path)));
    operation.insert("tags".to_owned(), json!([path_nouns(info.path).next().unwrap_or_default()]));
    operation.insert("summary".to_owned(), json!(doc.summary));
    operation.insert("description".to_owned(), json!(doc.about));
    if let Access::Needs(permission) = info.access {
        operation.insert("x-permission".to_owned(), json!(permission_word(permission)));
    }
    let parameters = parameter_values(&inputs);
    if !parameters.is_empty() {
        operation.insert("parameters".to_owned(), Value::Array(parameters));
    }
    if let Some(body) = &inputs.body {
        let schema = schemas.of_request(body.schema);
        let mut content = Map::new();
        for media_type in body.media_types {
            let mut media_type_object = json!({"schema": schema});
            if let Some(example) = doc.example.as_ref().filter(|_| media_type.ends_with("json")) {
                media_type_object["example"] = example.clone();
            }
            content.insert((*media_type).to_owned(), media_type_object);
        }
        operation.insert("requestBody".to_owned(), json!({"required": body.is_required, "content": content}));
    }
    let answers = doc.answers.iter().map(|answer| (answer.status.to_string(), answer_response(answer, info, schemas)));
    let mut responses: Map<String, Value> = answers.collect();
    responses.extend(problem_responses(&refusals).into_iter().map(|(status, value)| (status.to_string(), value)));
    operation.insert("responses".to_owned(), Value::Object(responses));
    Value::Object(operation)
}

/// The parts of a path that are not parameters.
fn path_nouns(path: &str) -> impl Iterator<Item = &str> {
    path.trim_start_matches("/api/v1/").split(['/', ':']).filter(|part| !part.starts_with('{'))
}

/// The operation id: `GET /api/v1/jobs/{name}/fires` has `get_jobs_name_fires`.
fn operation_id(method: &Method, path: &str) -> String {
    let parts = path.trim_start_matches("/api/v1/").split('/').map(|part| part.trim_matches(['{', '}']));
    let words: Vec<String> = parts.map(|part| part.replace(['-', '.', ':'], "_")).collect();
    format!("{}_{}", method.as_str().to_ascii_lowercase(), words.join("_"))
}

fn parameter_values(inputs: &HandlerInputs) -> Vec<Value> {
    let parameter_json = |place: &str, parameter: &Parameter| {
        json!({
            "name": parameter.name,
            "in": place,
            "required": place == "path" || parameter.is_required,
            "description": parameter.about,
            "schema": parameter.schema(),
        })
    };
    let path = inputs.path.iter().map(|parameter| parameter_json("path", parameter));
    let query = inputs.query.iter().map(|parameter| parameter_json("query", parameter));
    path.chain(query).chain(inputs.headers.iter().map(|parameter| parameter_json("header", parameter))).collect()
}

fn answer_response(answer: &ResponseDoc, info: &RouteInfo, schemas: &mut Schemas) -> Value {
    let mut names = vec!["X-Request-Id", "RateLimit", "RateLimit-Policy"];
    names.extend(&answer.headers);
    if info.is_keyed() {
        names.push("Idempotency-Replayed");
    }
    let mut response = json!({"description": answer.about, "headers": header_references(&names)});
    if !answer.bodies.is_empty() {
        let mut content = Map::new();
        for (media_type, kind) in &answer.bodies {
            let body = match kind {
                BodyKind::Json(schema) => json!({"schema": schemas.of_answer(*schema)}),
                BodyKind::Short(schema) => json!({"schema": schemas.of_request(*schema)}),
                BodyKind::Text => json!({"schema": {"type": "string"}}),
            };
            content.insert((*media_type).to_owned(), body);
        }
        response["content"] = Value::Object(content);
    }
    response
}

fn header_references(names: &[&str]) -> Map<String, Value> {
    let header_reference = |name: &&str| ((*name).to_owned(), json!({"$ref": format!("#/components/headers/{name}")}));
    names.iter().map(header_reference).collect()
}

/// The headers that answers have.
pub(super) fn answer_headers() -> Value {
    let header = |about: &str, is_required: bool, example: &str| json!({"description": about, "required": is_required, "schema": {"type": "string"}, "example": example});
    json!({
        "X-Request-Id": header("The id of the request in the server's log: the one that the client sent, or a generated one.", true, "6f1d0c2a"),
        "RateLimit": header("How many requests the caller has left, and how many seconds it must wait.", false, "\"token\";r=4999;t=0"),
        "RateLimit-Policy": header("How many requests a caller may make in how many seconds.", false, "\"token\";q=5000;w=5"),
        "Retry-After": header("After how many seconds to try again.", true, "1"),
        "WWW-Authenticate": header("How to authenticate.", true, "Bearer realm=\"rondel\""),
        "ETag": header("The version of the object, for If-Match.", true, "\"v3\""),
        "Location": header("The path of the new object.", true, "/api/v1/jobs/report"),
        "Idempotency-Replayed": header("Present, and true, if this is the answer of an earlier call with the same key.", false, "true"),
    })
}

/// The responses with the problems that are the same for every operation.
pub(super) fn shared_responses(problem: &Value) -> Value {
    let mut shared_responses = Map::new();
    for (status, name) in SHARED_RESPONSES {
        let codes: Vec<Code> = COMMON_REFUSALS.into_iter().filter(|code| code.status() == status).collect();
        let headers: &[&str] = match status {
            401 => &["X-Request-Id", "WWW-Authenticate"],
            429 => &["X-Request-Id", "Retry-After", "RateLimit", "RateLimit-Policy"],
            503 => &["X-Request-Id", "Retry-After"],
            _ => &["X-Request-Id"],
        };
        shared_responses.insert(name.to_owned(), refusal_response(&codes, problem, headers));
    }
    Value::Object(shared_responses)
}

fn problem_responses(refusals: &[Code]) -> Vec<(u16, Value)> {
    let mut codes_by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in Code::ALL.iter().filter(|code| refusals.contains(code)) {
        codes_by_status.entry(code.status()).or_default().push(*code);
    }
    let problem = json!({"$ref": "#/components/schemas/Problem"});
    let response_entry = |(status, codes): (u16, Vec<Code>)| match SHARED_RESPONSES
        .iter()
        .find(|(shared_status, _)| *shared_status == status)
    {
        Some((_, name)) => (status, json!({"$ref": format!("#/components/responses/{name}")})),
        None if status == 412 => (status, refusal_response(&codes, &problem, &["X-Request-Id", "ETag"])),
        None => (status, refusal_response(&codes, &problem, &["X-Request-Id"])),
    };
    codes_by_status.into_iter().map(response_entry).collect()
}

/// The response with a problem that has one of these codes.
fn refusal_response(codes: &[Code], problem: &Value, headers: &[&str]) -> Value {
    let lines: Vec<String> = codes.iter().map(|code| format!("`{}`: {}.", code.as_str(), code.title())).collect();
    let code_names: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
    let schema = json!({"allOf": [problem, {"properties": {"code": {"enum": code_names}}}]});
    json!({
        "description": lines.join("\n\n"),
        "headers": header_references(headers),
        "content": {"application/problem+json": {"schema": schema}},
    })
}
