//! Resolves `{{secret.NAME}}` in the string values of params.

use serde_json::Value;

use crate::job_error::JobError;
use crate::masks::Masks;
use crate::run::parents::{self, PARENTS};
use crate::secrets::Secrets;

const PLACEHOLDER_START: &str = "{{secret.";
const PLACEHOLDER_END: &str = "}}";

/// Params with the secrets filled in, and the masks that hide these secrets in the run's output.
pub(crate) struct ResolvedParams {
    pub(crate) params: String,
    pub(crate) masks: Masks,
}

/// Fills the secrets into `params`. Returns `None` if `params` names no secret.
pub(crate) async fn resolve(params: &str, secrets: &Secrets) -> Result<Option<ResolvedParams>, JobError> {
    if !params.contains(PLACEHOLDER_START) {
        return Ok(None);
    }
    let mut value: Value = serde_json::from_str(params).map_err(JobError::terminal)?;
    // Results of other runs are data: a secret's name in them must not fetch the secret.
    let parents = parents::take(&mut value);
    let mut secret_values = Vec::new();
    let mut texts = Vec::new();
    collect_texts(&mut value, &mut texts);
    for text in texts {
        *text = fill_secrets(text, secrets, &mut secret_values).await?;
    }
    if let (Some(fields), Some(parents)) = (value.as_object_mut(), parents) {
        fields.insert(PARENTS.to_owned(), Value::Object(parents));
    }
    Ok(Some(ResolvedParams { params: value.to_string(), masks: Masks::new(secret_values) }))
}

/// Collects every string value that names a secret, in document order. The keys of objects are not searched.
fn collect_texts<'a>(value: &'a mut Value, texts: &mut Vec<&'a mut String>) {
    match value {
        Value::String(text) if text.contains(PLACEHOLDER_START) => texts.push(text),
        Value::Array(items) => items.iter_mut().for_each(|item| collect_texts(item, texts)),
        Value::Object(fields) => fields.values_mut().for_each(|field| collect_texts(field, texts)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

async fn fill_secrets(text: &str, secrets: &Secrets, secret_values: &mut Vec<String>) -> Result<String, JobError> {
    let mut output = String::with_capacity(text.len());
    let mut remaining_text = text;
    while let Some(start) = remaining_text.find(PLACEHOLDER_START) {
        let (text_before, text_after) = (&remaining_text[..start], &remaining_text[start + PLACEHOLDER_START.len()..]);
        let Some(end) = text_after.find(PLACEHOLDER_END) else { break };
        let secret = secrets.get(text_after[..end].trim()).await?;
        output.push_str(text_before);
        output.push_str(&secret);
        secret_values.push(secret);
        remaining_text = &text_after[end + PLACEHOLDER_END.len()..];
    }
    output.push_str(remaining_text);
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn resolved(params: &str) -> Result<Option<String>, JobError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("key"), "a\"b\n").unwrap();
        std::fs::write(dir.path().join("user"), "root").unwrap();
        let secrets = Secrets::from_env().dir(dir.path());
        Ok(resolve(params, &secrets).await?.map(|resolved| resolved.params))
    }

    #[tokio::test]
    async fn string_values_are_filled_and_stay_valid_json() {
        let filled = resolved(r#"{"h":{"auth":"{{secret.user}}:{{secret.key}}!"},"n":1,"list":["{{secret.key}}"]}"#);
        let expected = r#"{"h":{"auth":"root:a\"b!"},"n":1,"list":["a\"b"]}"#;
        let (filled, expected): (Value, Value) =
            (serde_json::from_str(&filled.await.unwrap().unwrap()).unwrap(), serde_json::from_str(expected).unwrap());
        assert_eq!(filled, expected);
    }

    #[tokio::test]
    async fn params_without_secrets_are_unchanged() {
        assert_eq!(resolved(r#"{"a":"{{other}}"}"#).await.unwrap(), None);
        assert_eq!(resolved(r#""{{secret.open""#).await.unwrap().as_deref(), Some(r#""{{secret.open""#));
    }

    #[tokio::test]
    async fn results_of_parents_fetch_no_secret() {
        let parent = r#"{"run_id":"7","status":"succeeded","result":"{{secret.key}}"}"#;
        let filled = resolved(&format!(r#"{{"own":"{{{{secret.user}}}}","parents":{{"b":{parent}}}}}"#)).await;
        let filled: Value = serde_json::from_str(&filled.unwrap().unwrap()).unwrap();
        assert_eq!((&filled["own"], &filled["parents"]["b"]["result"]), (&"root".into(), &"{{secret.key}}".into()));
    }

    #[tokio::test]
    async fn a_parameter_that_is_only_named_like_the_parents_is_filled() {
        let filled = resolved(r#"{"parents":{"b":{"user":"{{secret.user}}"}}}"#).await.unwrap();
        assert_eq!(filled.as_deref(), Some(r#"{"parents":{"b":{"user":"root"}}}"#));
    }

    #[tokio::test]
    async fn an_unknown_secret_is_named() {
        let error = resolved(r#""{{secret.missing_one}}""#).await.unwrap_err();
        assert!(error.message().contains("missing_one") && !error.is_retryable());
    }
}
