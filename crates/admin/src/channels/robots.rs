//! The group robots of `DingTalk`, `WeCom` and Feishu.

use rondel_core::notice::cut;
use rondel_core::words::Lang;
use serde_json::json;

use super::request::{ChannelRequest, RequestInput, json_request};
use super::sign::{dingtalk_signature, feishu_signature};

/// Maximum size of the text, in bytes: `DingTalk` accepts 20,000 per request, and JSON escapes may double a text.
const DINGTALK_BYTES_MAX: usize = 9_000;
/// `WeCom` accepts 4,096 bytes of content.
const WECOM_BYTES_MAX: usize = 4_096;
/// Maximum size of the text, in bytes: Feishu accepts 20 KB per request.
const FEISHU_BYTES_MAX: usize = 9_000;

/// A text message, so that nothing is read as markup. With a signing key, the URL is signed.
pub(super) fn dingtalk(input: &RequestInput<'_>) -> Result<ChannelRequest, String> {
    let texts = input.texts;
    let content = format!("{}\n{}", texts.title, texts.plain_text(DINGTALK_BYTES_MAX));
    let body = json!({"msgtype": "text", "text": {"content": content}, "at": {"isAtAll": false}});
    let mut url = input.url()?;
    if let Some(key) = input.value("signing_key") {
        let timestamp = input.now.as_millis();
        let signature = dingtalk_signature(key, timestamp).ok_or("the message cannot be signed")?;
        url.query_pairs_mut().append_pair("timestamp", &timestamp.to_string()).append_pair("sign", &signature);
    }
    Ok(json_request(url, &body))
}

/// Markdown, in which markup characters of names and messages are replaced by their full-width forms.
pub(super) fn wecom(input: &RequestInput<'_>) -> Result<ChannelRequest, String> {
    let texts = input.texts;
    let heading = format!("**{}**\n", without_markup(&texts.title));
    let link_text = texts.link.as_ref().map(|(words, url)| format!("\n[{words}]({})", url.replace([')', '('], "")));
    let link_text = link_text.unwrap_or_default();
    let mut lines = vec![without_markup(&texts.body)];
    lines.extend(texts.facts.iter().map(|(label, value)| format!("> {label}: {}", without_markup(value))));
    lines.extend(texts.samples.iter().map(|sample| format!("> {}", without_markup(sample))));
    let bytes_left = WECOM_BYTES_MAX.saturating_sub(heading.len() + link_text.len());
    let content = format!("{heading}{}{link_text}", cut(&lines.join("\n"), bytes_left));
    let body = json!({"msgtype": "markdown", "markdown": {"content": content}});
    Ok(json_request(input.url()?, &body))
}

/// `WeCom` has no escapes, so markup characters are replaced by their full-width forms.
fn without_markup(text: &str) -> String {
    let without_mark = |c| match c {
        '<' => '＜',
        '>' => '＞',
        '[' => '［',
        ']' => '］',
        '*' => '＊',
        '`' => '｀',
        '#' => '＃',
        c => c,
    };
    text.chars().map(without_mark).collect()
}

/// A post of text elements, so that nothing is read as markup. With a signing key, the body carries a signature.
pub(super) fn feishu(input: &RequestInput<'_>) -> Result<ChannelRequest, String> {
    let texts = input.texts;
    let mut lines: Vec<Vec<serde_json::Value>> = Vec::new();
    let message = super::texts::Texts { link: None, ..texts.clone() }.plain_text(FEISHU_BYTES_MAX);
    lines.extend(message.lines().map(|line| vec![json!({"tag": "text", "text": line})]));
    if let Some((words, url)) = &texts.link {
        lines.push(vec![json!({"tag": "a", "text": words, "href": url})]);
    }
    let lang = match input.lang {
        Lang::En => "en_us",
        Lang::Zh => "zh_cn",
    };
    let mut body = json!({
        "msg_type": "post",
        "content": {"post": {lang: {"title": texts.title, "content": lines}}},
    });
    if let Some(key) = input.value("signing_key") {
        let timestamp = input.now.second();
        body["timestamp"] = json!(timestamp.to_string());
        body["sign"] = json!(feishu_signature(key, timestamp).ok_or("the message cannot be signed")?);
    }
    Ok(json_request(input.url()?, &body))
}
