//! The settings and secrets of each kind of channel. API, console and command line read this one table.

use super::ChannelKind;

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldForm {
    /// A line of text.
    Text,
    /// An http or https URL.
    Url,
    /// The name or the IP address of a host, without a port.
    Host,
    /// A whole number within these bounds.
    Number(u32, u32),
    /// One of these words; the first one is the default.
    Choice(&'static [&'static str]),
    /// Mail addresses, separated by commas.
    Addresses,
    /// A template for the title or the body of a message.
    Template,
}

/// A setting or a secret of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    /// Whether it is stored encrypted and never shown.
    pub is_secret: bool,
    /// Whether a channel needs it.
    pub is_required: bool,
    /// What it holds.
    pub form: FieldForm,
    /// The default; for a secret or a required setting, an example. May be empty.
    pub default: &'static str,
}

const fn setting(name: &'static str, form: FieldForm, default: &'static str) -> Field {
    Field { name, is_secret: false, is_required: false, form, default }
}

const fn secret(name: &'static str, form: FieldForm, example: &'static str) -> Field {
    Field { name, is_secret: true, is_required: false, form, default: example }
}

const fn required(field: Field) -> Field {
    Field { is_required: true, ..field }
}

use FieldForm::{Addresses, Choice, Host, Number, Template, Text, Url};

const TITLE: Field = setting("title_template", Template, "");
const BODY: Field = setting("body_template", Template, "");

const EMAIL: &[Field] = &[
    required(setting("host", Host, "smtp.example.com")),
    setting("security", Choice(&["starttls", "tls", "none"]), "starttls"),
    setting("port", Number(1, 65_535), "587, 465 with tls, 25 with none"),
    setting("username", Text, ""),
    secret("password", Text, ""),
    required(setting("from", Addresses, "rondel@example.com")),
    required(setting("to", Addresses, "oncall@example.com")),
    TITLE,
    BODY,
];
const WEBHOOK: &[Field] =
    &[required(secret("url", Url, "https://example.com/alerts")), secret("signing_key", Text, "whsec_…"), TITLE, BODY];
const SLACK: &[Field] = &[required(secret("url", Url, "https://hooks.slack.com/services/…")), TITLE, BODY];
const TEAMS: &[Field] = &[required(secret("url", Url, "https://….logic.azure.com/workflows/…")), TITLE, BODY];
const PAGERDUTY: &[Field] = &[
    required(secret("routing_key", Text, "32 letters and digits")),
    setting("url", Url, "https://events.pagerduty.com/v2/enqueue"),
    TITLE,
    BODY,
];
const DINGTALK: &[Field] = &[
    required(secret("url", Url, "https://oapi.dingtalk.com/robot/send?access_token=…")),
    secret("signing_key", Text, "SEC…"),
    TITLE,
    BODY,
];
const WECOM: &[Field] =
    &[required(secret("url", Url, "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=…")), TITLE, BODY];
const FEISHU: &[Field] = &[
    required(secret("url", Url, "https://open.feishu.cn/open-apis/bot/v2/hook/…")),
    secret("signing_key", Text, ""),
    TITLE,
    BODY,
];
const NTFY: &[Field] = &[
    setting("url", Url, "https://ntfy.sh"),
    required(secret("topic", Text, "rondel-oncall-3f9c")),
    secret("token", Text, "tk_…"),
    setting("priority", Choice(&["by_severity", "1", "2", "3", "4", "5"]), "by_severity"),
    TITLE,
    BODY,
];

/// The fields of a kind of channel, in the order in which a form shows them.
#[must_use]
pub const fn fields(kind: ChannelKind) -> &'static [Field] {
    match kind {
        ChannelKind::Email => EMAIL,
        ChannelKind::Webhook => WEBHOOK,
        ChannelKind::Slack => SLACK,
        ChannelKind::Teams => TEAMS,
        ChannelKind::Pagerduty => PAGERDUTY,
        ChannelKind::Dingtalk => DINGTALK,
        ChannelKind::Wecom => WECOM,
        ChannelKind::Feishu => FEISHU,
        ChannelKind::Ntfy => NTFY,
    }
}

/// The prefixes that mark a secret as a reference to a file or a variable outside the database.
pub const REFERENCES: [&str; 2] = ["file:", "env:"];

/// The place of a secret that is kept outside of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference<'a> {
    /// A file in the folder of the server's setting `alert_secrets_dir`, by its name.
    File(&'a str),
    /// A variable of the server's environment, by its name.
    Variable(&'a str),
}
