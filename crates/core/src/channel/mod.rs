//! The channels that alerts are sent to.

use crate::word_enum::word_enum;

word_enum! {
    /// The service that a channel sends to.
    ChannelKind {
        /// Electronic mail, by SMTP.
        Email = "email",
        /// An HTTP receiver; requests are signed as Standard Webhooks defines it.
        Webhook = "webhook",
        /// Slack, by an incoming webhook.
        Slack = "slack",
        /// Microsoft Teams, by the webhook of a workflow.
        Teams = "teams",
        /// `PagerDuty`, by its Events API v2.
        Pagerduty = "pagerduty",
        /// `DingTalk`, by a group robot.
        Dingtalk = "dingtalk",
        /// `WeCom`, by a group robot.
        Wecom = "wecom",
        /// Feishu or Lark, by a group robot.
        Feishu = "feishu",
        /// ntfy, at ntfy.sh or on your own server.
        Ntfy = "ntfy",
    }
}

mod check;
mod fields;

pub use check::{check, parse_reference};
pub use fields::{Field, FieldForm, REFERENCES, Reference, fields};

use std::collections::BTreeMap;

/// The longest setting or secret, in bytes.
pub const VALUE_BYTES_MAX: usize = 2_000;
/// The longest template, in bytes.
pub const TEMPLATE_BYTES_MAX: usize = 4_000;
/// Maximum number of recipients of an e-mail channel.
pub const RECIPIENT_COUNT_MAX: usize = 20;

/// Settings or secrets of a channel, keyed by the names of their fields.
pub type Values = BTreeMap<String, String>;
