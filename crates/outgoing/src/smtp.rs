//! Mail by SMTP, to allowed addresses only.

use std::time::Duration;

use lettre::address::Envelope;
use lettre::message::{Mailbox, MultiPart};
use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{AsyncSmtpConnection, CertificateStore, TlsParameters};
use lettre::transport::smtp::commands;
use lettre::transport::smtp::extension::{ClientId, Extension, MailBodyParameter, MailParameter};
use lettre::{Address, Message};
use rondel_core::error_chain::chain_in_one_line;
use rondel_core::outgoing::AllowedAddresses;
use tokio::time::timeout;

use crate::mail_stream::connect;
use crate::resolve::resolve_usable_addresses;

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

#[derive(Clone)]
pub struct MailServer {
    /// The server's name or address. With TLS, the server's certificate must be valid for it.
    pub host: String,
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

#[derive(Clone, Debug)]
pub struct Mail {
    /// The sender's address.
    pub from: String,
    /// The recipients' addresses.
    pub to: Vec<String>,
    pub subject: String,
    pub text: String,
    /// The text as HTML.
    pub html: String,
    /// The part before the `@` of `Message-ID`: the same at each try, so that mailboxes recognize duplicates.
    pub id: String,
}

/// A mail that the server accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedMail {
    /// The status code of the server's last reply.
    pub status: i32,
    /// The recipients that the server refused, each with the reason.
    pub refused: Vec<String>,
}

/// Why a mail was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailError {
    /// Whether further tries are useless.
    pub is_final: bool,
    /// The status code of the server's last reply; 0 if it did not answer.
    pub status: i32,
    /// The reason.
    pub text: String,
}

impl MailError {
    fn new(is_final: bool, text: impl Into<String>) -> Self {
        Self { is_final, status: 0, text: text.into() }
    }
}

/// Sends a mail once, to the recipients that the server accepts.
///
/// # Errors
/// [`MailError`], also if the server accepts none of the recipients.
pub async fn send_mail(
    server: &MailServer,
    mail: &Mail,
    allowed_addresses: &AllowedAddresses,
) -> Result<AcceptedMail, MailError> {
    let (envelope, message) = build(mail)?;
    let delivery = deliver(server, &envelope, &message, allowed_addresses);
    match timeout(server.timeout, delivery).await {
        Ok(result) => result,
        Err(_) => Err(MailError::new(false, format!("no answer within {} s", server.timeout.as_secs()))),
    }
}

fn build(mail: &Mail) -> Result<(Envelope, Vec<u8>), MailError> {
    let final_error = |text: String| MailError::new(true, text);
    let parse_address =
        |text: &str| text.parse::<Address>().map_err(|error| final_error(format!("address {text:?}: {error}")));
    let from = parse_address(&mail.from)?;
    let mut builder = Message::builder()
        .message_id(Some(format!("<{}@{}>", mail.id, from.domain())))
        .from(Mailbox::new(Some("Rondel".to_owned()), from))
        .subject(mail.subject.as_str());
    for recipient in &mail.to {
        builder = builder.to(Mailbox::new(None, parse_address(recipient)?));
    }
    let parts = MultiPart::alternative_plain_html(mail.text.clone(), mail.html.clone());
    let message = builder.multipart(parts).map_err(|error| final_error(chain_in_one_line(&error)))?;
    Ok((message.envelope().clone(), message.formatted()))
}

async fn deliver(
    server: &MailServer,
    envelope: &Envelope,
    message: &[u8],
    allowed_addresses: &AllowedAddresses,
) -> Result<AcceptedMail, MailError> {
    let addresses = resolve_usable_addresses(&server.host, server.port, allowed_addresses)
        .await
        .map_err(|error| MailError::new(error.is_final, error.reason))?;
    let tls_host = (server.security == Security::Tls).then_some(server.host.as_str());
    let stream = connect(&addresses, server.timeout, tls_host).await;
    let stream = stream.map_err(|error| MailError::new(false, chain_in_one_line(&error)))?;
    let hello = envelope.from().map_or_else(ClientId::default, |from| ClientId::Domain(from.domain().to_owned()));
    let connect_result = AsyncSmtpConnection::connect_with_transport(stream, &hello).await;
    let mut connection = connect_result.map_err(|error| mail_error(&error))?;
    let delivery_result = async {
        if server.security == Security::Starttls {
            if !connection.server_info().supports_feature(Extension::StartTls) {
                let text = "STARTTLS is not supported on this port of the mail server; if it expects TLS at once, set security to tls";
                return Err(MailError::new(true, text));
            }
            connection.starttls(tls_parameters(&server.host)?, &hello).await.map_err(|error| mail_error(&error))?;
        }
        if let Some((user, password)) = &server.credentials {
            let credentials = Credentials::new(user.clone(), password.clone());
            let mechanisms = [Mechanism::Plain, Mechanism::Login];
            if connection.server_info().get_auth_mechanism(&mechanisms).is_none() {
                let text = "the mail server offers neither AUTH PLAIN nor AUTH LOGIN on this connection; many offer them only with TLS \
                            (security starttls or tls)";
                return Err(MailError::new(true, text));
            }
            connection.auth(&mechanisms, &credentials).await.map_err(|error| mail_error(&error))?;
        }
        send_message(&mut connection, envelope, message).await
    };
    let delivery_result = delivery_result.await;
    // By now the server has accepted or refused the mail. An error while the connection closes changes nothing.
    connection.abort().await;
    delivery_result
}

/// Sends the message to the recipients that the server accepts. A refused recipient does not prevent delivery to the others.
async fn send_message(
    connection: &mut AsyncSmtpConnection,
    envelope: &Envelope,
    message: &[u8],
) -> Result<AcceptedMail, MailError> {
    let mail_command = commands::Mail::new(envelope.from().cloned(), mail_parameters(connection, envelope, message)?);
    connection.command(mail_command).await.map_err(|error| mail_error(&error))?;
    let mut refusals: Vec<(String, MailError)> = Vec::new();
    for recipient in envelope.to() {
        match connection.command(commands::Rcpt::new(recipient.clone(), Vec::new())).await {
            Ok(_) => {}
            // The server refused only this recipient. The session continues with the next recipient.
            Err(error) if error.status().is_some() => refusals.push((recipient.to_string(), mail_error(&error))),
            Err(error) => return Err(mail_error(&error)),
        }
    }
    if refusals.len() == envelope.to().len() {
        // A temporary refusal is returned first: another try may succeed.
        let temporary_refusal = refusals.iter().find(|(_, refusal)| !refusal.is_final);
        if let Some((_, refusal)) = temporary_refusal.or_else(|| refusals.first()) {
            return Err(refusal.clone());
        }
    }
    connection.command(commands::Data).await.map_err(|error| mail_error(&error))?;
    let response = connection.message(message).await.map_err(|error| mail_error(&error))?;
    let refusal_texts = refusals.into_iter().map(|(recipient, refusal)| {
        // The other recipients have the mail: it counts as sent.
        let retry_note = if refusal.is_final { "" } else { " (not tried again: other recipients have the mail)" };
        format!("{recipient}: {}{retry_note}", refusal.text)
    });
    Ok(AcceptedMail { status: i32::from(u16::from(response.code())), refused: refusal_texts.collect() })
}

/// The parameters of `MAIL FROM` for the SMTP extensions that a message needs; an error if the server lacks one of them.
fn mail_parameters(
    connection: &AsyncSmtpConnection,
    envelope: &Envelope,
    message: &[u8],
) -> Result<Vec<MailParameter>, MailError> {
    let missing_extension = |extension: &str| {
        MailError::new(true, format!("the server does not support {extension}, which the mail needs"))
    };
    let has_extension = |extension| connection.server_info().supports_feature(extension);
    let mut parameters = Vec::new();
    let mut addresses = envelope.from().into_iter().chain(envelope.to());
    if addresses.any(|address| !address.to_string().is_ascii()) {
        if !has_extension(Extension::SmtpUtfEight) {
            return Err(missing_extension("SMTPUTF8"));
        }
        parameters.push(MailParameter::SmtpUtfEight);
    }
    if !message.is_ascii() {
        if !has_extension(Extension::EightBitMime) {
            return Err(missing_extension("8BITMIME"));
        }
        parameters.push(MailParameter::Body(MailBodyParameter::EightBitMime));
    }
    Ok(parameters)
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::TcpListener;

    use super::*;
    use crate::mail_stream::ANSWERS_LEN_MAX;

    fn server_at(listener: &TcpListener) -> MailServer {
        MailServer {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
            security: Security::None,
            credentials: None,
            timeout: Duration::from_secs(5),
        }
    }

    fn mail_to(recipients: &[&str]) -> Mail {
        Mail {
            from: "rondel@example.com".to_owned(),
            to: recipients.iter().map(|name| format!("{name}@example.com")).collect(),
            subject: "a".to_owned(),
            text: "b".to_owned(),
            html: "c".to_owned(),
            id: "d".to_owned(),
        }
    }

    /// Takes one mail, and refuses two recipients: one for now, one for good.
    async fn take_mail(listener: &TcpListener) {
        let (client, _) = listener.accept().await.unwrap();
        let (from_client, mut to_client) = client.into_split();
        let mut lines = BufReader::new(from_client).lines();
        to_client.write_all(b"220 mail ready\r\n").await.unwrap();
        let mut is_message = false;
        while let Ok(Some(line)) = lines.next_line().await {
            is_message &= line != ".";
            let answer = match line.as_str() {
                _ if is_message => continue,
                "DATA" => "354 go on",
                line if line.contains("<late@") => "450 4.2.0 greylisted",
                line if line.contains("<gone@") => "550 5.1.1 unknown",
                _ => "250 good",
            };
            is_message = answer.starts_with("354");
            to_client.write_all(format!("{answer}\r\n").as_bytes()).await.ok();
        }
    }

    #[tokio::test]
    async fn a_recipient_that_is_refused_for_now_is_named_as_one_without_the_mail() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (server, mail) = (server_at(&listener), mail_to(&["oncall", "late", "gone"]));
        let allowed_addresses = AllowedAddresses::loopback();
        let (delivery_result, ()) = tokio::join!(send_mail(&server, &mail, &allowed_addresses), take_mail(&listener));
        let refused = delivery_result.unwrap().refused;
        assert!(refused.len() == 2 && refused[0].starts_with("late@example.com: "), "{refused:?}");
        assert!(refused[0].contains("(not tried again") && !refused[1].contains("(not tried again"), "{refused:?}");
    }

    #[tokio::test]
    async fn a_server_without_starttls_or_sign_in_is_named() {
        let login = Some(("rondel".to_owned(), "pw".to_owned()));
        for (security, credentials, words) in [
            (Security::Starttls, None, "STARTTLS is not supported"),
            (Security::None, login, "neither AUTH PLAIN nor AUTH LOGIN"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (server, mail) = (MailServer { security, credentials, ..server_at(&listener) }, mail_to(&["oncall"]));
            let allowed_addresses = AllowedAddresses::loopback();
            let (delivery_result, ()) =
                tokio::join!(send_mail(&server, &mail, &allowed_addresses), take_mail(&listener));
            let error = delivery_result.unwrap_err();
            assert!(error.is_final && error.text.contains(words), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_not_read_for_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (server, mail) = (server_at(&listener), mail_to(&["oncall"]));
        let talk = async {
            let (mut client, _) = listener.accept().await.unwrap();
            client.write_all(&vec![b'2'; 4 * ANSWERS_LEN_MAX]).await.ok();
            client.read_u8().await.ok();
        };
        let allowed_addresses = AllowedAddresses::loopback();
        let (delivery_result, ()) = tokio::join!(send_mail(&server, &mail, &allowed_addresses), talk);
        let error = delivery_result.unwrap_err();
        assert!(
            !error.is_final && error.text.contains("the server's answers have more than 1048576 bytes"),
            "{error:?}"
        );
    }
}
