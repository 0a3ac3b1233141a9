//! Mail by SMTP, to allowed addresses only.

use std::time::Duration;

use lettre::address::Envelope;
use lettre::message::{Mailbox, MultiPart};
use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{AsyncSmtpConnection, CertificateStore, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{Address, Message};
use rondel_core::error_chain::chain_in_one_line;
use rondel_core::outgoing::AllowedAddresses;
use tokio::time::timeout;

use crate::resolve::resolve_allowed;

/// How a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// TLS from the first byte.
    Tls,
    /// TLS after `STARTTLS`; a server without it is refused.
    Starttls,
    /// No encryption.
    None,
}

/// The mail server.
#[derive(Clone)]
pub struct MailServer {
    /// Its name or address. With TLS, its certificate must be valid for it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How the connection is encrypted.
    pub security: Security,
    /// The user and its password, if the server requires them.
    pub credentials: Option<(String, String)>,
    /// Time limit for the whole SMTP conversation.
    pub timeout: Duration,
}

impl std::fmt::Debug for MailServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port, security, .. } = self;
        f.debug_struct("MailServer")
            .field("host", host)
            .field("port", port)
            .field("security", security)
            .finish_non_exhaustive()
    }
}

/// A mail.
#[derive(Clone, Debug)]
pub struct Mail {
    /// The sender's address.
    pub from: String,
    /// The recipients' addresses.
    pub to: Vec<String>,
    /// The subject.
    pub subject: String,
    /// The text.
    pub text: String,
    /// The text as HTML.
    pub html: String,
    /// The part before the `@` of `Message-ID`: the same at each try, so that mailboxes recognize duplicates.
    pub id: String,
}

/// Why a mail was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub struct MailError {
    /// Whether further tries are useless.
    pub is_final: bool,
    /// The server's status; 0 if it did not answer.
    pub status: i32,
    /// The reason.
    pub text: String,
}

impl MailError {
    fn new(is_final: bool, text: impl Into<String>) -> Self {
        Self { is_final, status: 0, text: text.into() }
    }
}

/// Sends a mail once; returns the status with which the server accepted it.
///
/// # Errors
/// [`MailError`].
pub async fn send_mail(server: &MailServer, mail: &Mail, allowed: &AllowedAddresses) -> Result<i32, MailError> {
    let (envelope, message) = build(mail)?;
    let talk = talk(server, &envelope, &message, allowed);
    match timeout(server.timeout, talk).await {
        Ok(done) => done,
        Err(_) => Err(MailError::new(false, format!("no answer within {} s", server.timeout.as_secs()))),
    }
}

fn build(mail: &Mail) -> Result<(Envelope, Vec<u8>), MailError> {
    let wrong = |text: String| MailError::new(true, text);
    let address = |text: &str| text.parse::<Address>().map_err(|error| wrong(format!("address {text:?}: {error}")));
    let from = address(&mail.from)?;
    let mut builder = Message::builder()
        .message_id(Some(format!("<{}@{}>", mail.id, from.domain())))
        .from(Mailbox::new(Some("Rondel".to_owned()), from))
        .subject(mail.subject.as_str());
    for recipient in &mail.to {
        builder = builder.to(Mailbox::new(None, address(recipient)?));
    }
    let parts = MultiPart::alternative_plain_html(mail.text.clone(), mail.html.clone());
    let message = builder.multipart(parts).map_err(|error| wrong(chain_in_one_line(&error)))?;
    Ok((message.envelope().clone(), message.formatted()))
}

async fn talk(
    server: &MailServer,
    envelope: &Envelope,
    message: &[u8],
    allowed: &AllowedAddresses,
) -> Result<i32, MailError> {
    let addresses = resolve_allowed(&server.host, server.port, allowed)
        .await
        .map_err(|(is_final, text)| MailError::new(is_final, text))?;
    let tls = || tls_parameters(&server.host);
    let wrapped = if server.security == Security::Tls { Some(tls()?) } else { None };
    let hello = envelope.from().map_or_else(ClientId::default, |from| ClientId::Domain(from.domain().to_owned()));
    let limit = Some(server.timeout);
    let connected = AsyncSmtpConnection::connect_tokio1(addresses.as_slice(), limit, &hello, wrapped, None).await;
    let mut connection = connected.map_err(|error| mail_error(&error))?;
    let sent = async {
        if server.security == Security::Starttls {
            connection.starttls(tls()?, &hello).await.map_err(|error| mail_error(&error))?;
        }
        if let Some((user, password)) = &server.credentials {
            let credentials = Credentials::new(user.clone(), password.clone());
            let ways = [Mechanism::Plain, Mechanism::Login];
            connection.auth(&ways, &credentials).await.map_err(|error| mail_error(&error))?;
        }
        let response = connection.send(envelope, message).await.map_err(|error| mail_error(&error))?;
        Ok(i32::from(u16::from(response.code())))
    };
    let sent = sent.await;
    // By now the mail is accepted or refused, whatever happens to the connection.
    connection.abort().await;
    sent
}

fn tls_parameters(host: &str) -> Result<TlsParameters, MailError> {
    let store = if rustls_native_certs::load_native_certs().certs.is_empty() {
        CertificateStore::WebpkiRoots
    } else {
        CertificateStore::Default
    };
    let parameters = TlsParameters::builder(host.to_owned()).certificate_store(store).build_rustls();
    parameters.map_err(|error| MailError::new(true, format!("TLS for {host:?}: {}", chain_in_one_line(&error))))
}

fn mail_error(error: &SmtpError) -> MailError {
    let is_final = error.is_permanent() || error.is_client();
    let status = error.status().map_or(0, |code| i32::from(u16::from(code)));
    MailError { is_final, status, text: chain_in_one_line(error) }
}
