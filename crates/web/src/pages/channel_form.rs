//! The form of a channel: one input for each field of its kind.

use rondel_admin::channels::{self, NewChannel};
use rondel_core::Timestamp;
use rondel_core::channel::{ChannelKind, Field, FieldForm, Values, fields, parse_reference};
use rondel_core::words::Lang;
use rondel_store::channels::Channel;

use super::form::{Fields, with_line_feeds};
use super::sentences::localized;
use super::texts::Texts;
use crate::api::channels::version;
use crate::problem::Problem;

pub(super) struct ChannelForm {
    pub(super) kind: ChannelKind,
    pub(super) kind_name: &'static str,
    /// The help text. It explains where the service shows the URL to enter.
    pub(super) help: &'static str,
    pub(super) name: String,
    pub(super) name_error: Option<String>,
    pub(super) lang: &'static str,
    pub(super) is_enabled: bool,
    /// The version on which a save is based: 0 for a new channel, `None` if the form was sent without a version.
    pub(super) version: Option<i64>,
    pub(super) inputs: Vec<Input>,
    /// Errors that belong to no input.
    pub(super) errors: Vec<String>,
}

pub(super) struct Input {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    pub(super) hint: Option<&'static str>,
    pub(super) value: String,
    pub(super) example: &'static str,
    pub(super) is_required: bool,
    /// The state of the secret; `None` if the field is not a secret.
    pub(super) secret: Option<SecretState>,
    /// The words to select from.
    pub(super) choices: Vec<(&'static str, &'static str)>,
    pub(super) is_multiline: bool,
    pub(super) error: Option<String>,
}

pub(super) struct SecretState {
    pub(super) is_set: bool,
    /// Whether the user may remove it.
    pub(super) is_optional: bool,
}

impl ChannelForm {
    /// The form of an existing channel, or of a new one.
    pub(super) fn new(kind: ChannelKind, channel: Option<&Channel>, t: &Texts) -> Self {
        let view = channel.map(channels::view);
        let value = |field: &Field| {
            let saved_value = view.as_ref().and_then(|view| {
                if field.is_secret { view.secrets.get(field.name) } else { view.settings.get(field.name) }
            });
            // Secrets are not shown, but references to secrets are.
            saved_value
                .filter(|saved_value| !field.is_secret || parse_reference(saved_value).is_some())
                .cloned()
                .unwrap_or_default()
        };
        let mut form = Self {
            kind,
            kind_name: kind_name(kind, t),
            help: kind_help(kind, t),
            name: channel.map(|channel| channel.name.clone()).unwrap_or_default(),
            name_error: None,
            lang: channel.map_or(t.lang(), |channel| channel.lang).as_str(),
            is_enabled: channel.is_none_or(|channel| channel.is_enabled),
            version: channel.map(version),
            inputs: fields(kind).iter().map(|field| form_input(field, value(field), t)).collect(),
            errors: Vec::new(),
        };
        if let Some(channel) = channel {
            form.mark_set_secrets(channel, t);
        }
        form
    }

    /// The form as the user sent it.
    pub(super) fn from_fields(kind: ChannelKind, fields: &Fields, t: &Texts) -> Self {
        let mut form = Self::new(kind, None, t);
        form.name = fields.get("name").to_owned();
        form.lang = if fields.get("lang") == "zh" { "zh" } else { "en" };
        form.is_enabled = fields.get("enabled") == "1";
        form.version = fields.get("version").parse().ok();
        for input in &mut form.inputs {
            input.value = with_line_feeds(fields.get(input.name));
        }
        for (name, _) in fields.with_prefix("remove.") {
            let name = name.trim_start_matches("remove.");
            // A blank requests the removal of the secret; an empty input would leave it unchanged.
            if let Some(input) = form.inputs.iter_mut().find(|input| input.name == name && input.secret.is_some()) {
                input.value = " ".to_owned();
            }
        }
        form
    }

    /// Marks the inputs whose secret is set.
    pub(super) fn mark_set_secrets(&mut self, channel: &Channel, t: &Texts) {
        let saved_secrets = channels::view(channel).secrets;
        for input in &mut self.inputs {
            if let Some(secret) = &mut input.secret {
                secret.is_set = saved_secrets.contains_key(input.name);
                if secret.is_set {
                    input.hint = Some(t.channels_secret_set);
                }
            }
        }
    }

    pub(super) fn with_error(mut self, field: &str, message: &str) -> Self {
        match self.inputs.iter_mut().find(|input| input.name == field) {
            Some(input) => input.error = Some(message.to_owned()),
            None if field == "name" => self.name_error = Some(message.to_owned()),
            None => self.errors.push(message.to_owned()),
        }
        self
    }

    /// The form with each error at its input, in the reader's language.
    pub(super) fn with_problem(self, problem: &Problem, lang: Lang) -> Self {
        if problem.complaints().is_empty() {
            return self.with_error("", &localized(lang, problem.detail()));
        }
        problem.complaints().iter().fold(self, |form, complaint| {
            let pointer = complaint.pointer.as_deref().unwrap_or_default();
            form.with_error(pointer.rsplit('/').next().unwrap_or_default(), &localized(lang, &complaint.message))
        })
    }

    /// The channel that the form describes.
    pub(super) fn to_channel(&self) -> NewChannel {
        let (mut settings, mut secrets) = (Values::new(), Values::new());
        for input in &self.inputs {
            if input.secret.is_none() {
                settings.insert(input.name.to_owned(), input.value.clone());
            } else if !input.value.is_empty() {
                secrets.insert(input.name.to_owned(), input.value.trim().to_owned());
            }
        }
        NewChannel {
            name: self.name.clone(),
            kind: self.kind,
            settings,
            secrets,
            lang: if self.lang == "zh" { Lang::Zh } else { Lang::En },
            is_enabled: self.is_enabled,
            expected_saved_at: self.version.map(Timestamp::from_millis),
        }
    }
}

fn form_input(field: &Field, value: String, t: &Texts) -> Input {
    let choice = |word: &'static str| {
        let name = match word {
            "starttls" => t.channels_starttls,
            "tls" => t.channels_tls,
            "none" => t.channels_plain,
            "by_severity" => t.channels_by_severity,
            word => word,
        };
        (word, name)
    };
    let choices = match field.form {
        FieldForm::Choice(words) => words.iter().copied().map(choice).collect(),
        _ => Vec::new(),
    };
    let hint = match field.form {
        FieldForm::Template => Some(t.channels_template_hint),
        _ if field.is_secret => Some(t.channels_secret_hint),
        _ => None,
    };
    let secret = field.is_secret.then_some(SecretState { is_set: false, is_optional: !field.is_required });
    Input {
        name: field.name,
        label: field_label(field.name, t),
        hint,
        value,
        example: if field.name == "port" { t.channels_port_example } else { field.default },
        is_required: field.is_required,
        secret,
        choices,
        is_multiline: field.name == "body_template",
        error: None,
    }
}

/// The name of a service.
pub(super) const fn kind_name(kind: ChannelKind, t: &Texts) -> &'static str {
    match kind {
        ChannelKind::Email => t.channel_email,
        ChannelKind::Webhook => "Webhook",
        ChannelKind::Slack => "Slack",
        ChannelKind::Teams => "Microsoft Teams",
        ChannelKind::Pagerduty => "PagerDuty",
        ChannelKind::Dingtalk => t.channel_dingtalk,
        ChannelKind::Wecom => t.channel_wecom,
        ChannelKind::Feishu => t.channel_feishu,
        ChannelKind::Ntfy => "ntfy",
    }
}

const fn kind_help(kind: ChannelKind, t: &Texts) -> &'static str {
    match kind {
        ChannelKind::Email => t.channel_email_help,
        ChannelKind::Webhook => t.channel_webhook_help,
        ChannelKind::Slack => t.channel_slack_help,
        ChannelKind::Teams => t.channel_teams_help,
        ChannelKind::Pagerduty => t.channel_pagerduty_help,
        ChannelKind::Dingtalk => t.channel_dingtalk_help,
        ChannelKind::Wecom => t.channel_wecom_help,
        ChannelKind::Feishu => t.channel_feishu_help,
        ChannelKind::Ntfy => t.channel_ntfy_help,
    }
}

fn field_label(name: &'static str, t: &Texts) -> &'static str {
    match name {
        "host" => t.channel_field_host,
        "security" => t.channel_field_security,
        "port" => t.channel_field_port,
        "username" => t.channel_field_username,
        "password" => t.channel_field_password,
        "from" => t.channel_field_from,
        "to" => t.channel_field_to,
        "url" => t.channel_field_url,
        "signing_key" => t.channel_field_signing_key,
        "routing_key" => t.channel_field_routing_key,
        "topic" => t.channel_field_topic,
        "token" => t.channel_field_token,
        "priority" => t.channel_field_priority,
        "title_template" => t.channel_field_title,
        "body_template" => t.channel_field_body,
        name => name,
    }
}
