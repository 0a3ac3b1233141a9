//! Tests against running servers: the client connects only to allowed addresses, however a URL, a name or a redirect refers to
//! them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on panics")]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use rondel_core::outgoing::{AddressKind, AllowedAddresses, kind};
use rondel_outgoing::header::{HeaderName, HeaderValue};
use rondel_outgoing::posts::{Limits, PostClient, PostError, PostResponse};
use rondel_outgoing::{
    Addrs, Method, Name, Options, Outgoing, RequestError, Resolve, Resolving, Response, Url, check_host, refusal,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const ALLOWED_ADDRESS: &str = "127.0.0.2";
const FORBIDDEN_ADDRESS: &str = "127.0.0.1";
const ECHO: &str = "echo";

/// A server that counts its connections and gives every client the same answer. `ECHO` returns the request.
struct Receiver {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    async fn start(address: &str, answer: String) -> Self {
        Self::on(TcpListener::bind(address).await.unwrap(), answer)
    }

    /// Two servers on the same port: one at `ALLOWED_ADDRESS`, one at `FORBIDDEN_ADDRESS`.
    async fn pair() -> (Self, Self) {
        loop {
            let local_receiver = TcpListener::bind(format!("{ALLOWED_ADDRESS}:0")).await.unwrap();
            let port = local_receiver.local_addr().unwrap().port();
            // If another program uses this port at `FORBIDDEN_ADDRESS`, the loop tries another port.
            if let Ok(elsewhere) = TcpListener::bind(format!("{FORBIDDEN_ADDRESS}:{port}")).await {
                return (Self::on(local_receiver, ok()), Self::on(elsewhere, ok()));
            }
        }
    }

    fn on(listener: TcpListener, answer: String) -> Self {
        let address = listener.local_addr().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        #[expect(clippy::disallowed_methods, reason = "the test ends it")]
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let mut request = [0; 4096];
                let Ok(len @ 1..) = stream.read(&mut request).await else { continue };
                let answer = match answer.as_str() {
                    ECHO => ok_with(&String::from_utf8_lossy(&request[..len])),
                    answer => answer.to_owned(),
                };
                stream.write_all(answer.as_bytes()).await.ok();
            }
        });
        Self { address, count, task }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

fn ok() -> String {
    ok_with("ok")
}

fn ok_with(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn redirect(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

/// A resolver that answers each query with the next list of addresses, and repeats the last list.
struct ScriptedResolver {
    answers: Vec<Vec<&'static str>>,
    asked: Mutex<usize>,
}

impl ScriptedResolver {
    fn new(answers: Vec<Vec<&'static str>>) -> Arc<Self> {
        Arc::new(Self { answers, asked: Mutex::new(0) })
    }

    fn asked(&self) -> usize {
        *self.asked.lock().unwrap()
    }
}

impl Resolve for ScriptedResolver {
    fn resolve(&self, _: Name) -> Resolving {
        let mut asked = self.asked.lock().unwrap();
        let answer = self.answers[(*asked).min(self.answers.len() - 1)].clone();
        *asked += 1;
        let addresses: Vec<SocketAddr> =
            answer.into_iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect();
        Box::pin(async move { Ok(Box::new(addresses.into_iter()) as Addrs) })
    }
}

fn options(allowed_addresses: &[&str]) -> Options {
    let allowed_addresses = AllowedAddresses::parse(allowed_addresses).unwrap();
    Options { allowed_addresses, redirect_count_max: 3, user_agent: "test" }
}

async fn get(client: &Outgoing, url: &str) -> Result<Response, RequestError> {
    let request = client.request(Method::GET, url.parse().unwrap()).unwrap();
    request.timeout(Duration::from_secs(10)).send().await
}

fn refused(answer: Result<Response, RequestError>) -> String {
    let error = answer.unwrap_err();
    refusal(&error).unwrap_or_else(|| panic!("another failure: {error:?}")).to_string()
}

#[tokio::test]
async fn a_name_that_leads_inside_is_refused_with_address_and_setting() {
    let inside = Receiver::start("127.0.0.1:0", ok()).await;
    let url = format!("http://localhost:{}/", inside.address.port());
    let client = Outgoing::new(options(&[])).unwrap();
    let text = refused(get(&client, &url).await);
    assert!(text.contains("a loopback address, which the setting outgoing_allow does not name"), "{text}");
    assert_eq!(inside.count(), 0);
    let client = Outgoing::new(options(&["127.0.0.1", "::1"])).unwrap();
    assert_eq!(get(&client, &url).await.unwrap().status(), 200);
}

/// The name server's answer changes after the check. The client connects to the checked address and does not resolve the name again.
#[tokio::test]
async fn a_name_that_is_rebound_is_connected_to_as_it_was_checked() {
    let (local_receiver, inside) = Receiver::pair().await;
    let resolver = ScriptedResolver::new(vec![vec![ALLOWED_ADDRESS], vec![FORBIDDEN_ADDRESS]]);
    let client =
        Outgoing::with_resolver(options(&[ALLOWED_ADDRESS]), Arc::clone(&resolver) as Arc<dyn Resolve>).unwrap();
    let url = format!("http://rebound.example:{}/", local_receiver.address.port());
    assert_eq!(get(&client, &url).await.unwrap().status(), 200);
    assert_eq!((resolver.asked(), local_receiver.count(), inside.count()), (1, 1, 0));
    // The next connection resolves the name again, and the new addresses are checked.
    let text = refused(get(&client, &url).await);
    assert!(text.starts_with("127.0.0.1 is a loopback address"), "{text}");
    assert_eq!((resolver.asked(), local_receiver.count(), inside.count()), (2, 1, 0));
}

/// If a name has allowed and forbidden addresses, the client never tries a forbidden one, even if no allowed address answers.
#[tokio::test]
async fn of_many_addresses_only_the_allowed_ones_are_tried() {
    let inside = Receiver::start(&format!("{FORBIDDEN_ADDRESS}:0"), ok()).await;
    let resolver = ScriptedResolver::new(vec![vec![FORBIDDEN_ADDRESS, ALLOWED_ADDRESS, "10.0.0.1"]]);
    let client = Outgoing::with_resolver(options(&[ALLOWED_ADDRESS]), resolver).unwrap();
    let answer = get(&client, &format!("http://many.example:{}/", inside.address.port())).await;
    assert!(answer.unwrap_err().is_connect());
    assert_eq!(inside.count(), 0);
}

#[tokio::test]
async fn a_redirect_inside_is_refused() {
    let inside = Receiver::start(&format!("{FORBIDDEN_ADDRESS}:0"), ok()).await;
    let port = inside.address.port();
    for (location, address) in [
        (format!("http://127.0.0.1:{port}/"), "127.0.0.1"),
        (format!("http://2130706433:{port}/"), "127.0.0.1"),
        (format!("http://0x7f.0.1:{port}/"), "127.0.0.1"),
        (format!("http://[::ffff:127.0.0.1]:{port}/"), "127.0.0.1"),
        (format!("//0177.1:{port}/"), "127.0.0.1"),
        (format!("http://localhost:{port}/"), ""),
        ("http://169.254.169.254/latest/meta-data/".to_owned(), "169.254.169.254"),
    ] {
        let local_receiver = Receiver::start(&format!("{ALLOWED_ADDRESS}:0"), redirect(&location)).await;
        let client = Outgoing::new(options(&[ALLOWED_ADDRESS])).unwrap();
        let text = refused(get(&client, &format!("http://{}/", local_receiver.address)).await);
        assert!(text.starts_with(address) && text.contains("outgoing_allow"), "{location}: {text}");
        assert_eq!((local_receiver.count(), inside.count()), (1, 0), "{location}");
    }
}

#[tokio::test]
async fn redirects_are_followed_so_often_and_not_at_all_where_they_are_not_wanted() {
    let local_receiver = Receiver::start(&format!("{ALLOWED_ADDRESS}:0"), redirect("/again")).await;
    let client = Outgoing::new(options(&[ALLOWED_ADDRESS])).unwrap();
    let error = get(&client, &format!("http://{}/", local_receiver.address)).await.unwrap_err();
    let cause = error.source().map(ToString::to_string);
    assert_eq!((cause.as_deref(), local_receiver.count()), (Some("more than 3 redirects"), 4), "{error:?}");
    let client = Outgoing::new(Options { redirect_count_max: 0, ..options(&[ALLOWED_ADDRESS]) }).unwrap();
    assert_eq!(get(&client, &format!("http://{}/", local_receiver.address)).await.unwrap().status(), 302);
    assert_eq!(local_receiver.count(), 5);
}

fn posts(allowed_addresses: &[&str], resolver: Arc<ScriptedResolver>) -> PostClient {
    let allowed_addresses = AllowedAddresses::parse(allowed_addresses).unwrap();
    PostClient::with_resolver(allowed_addresses, "test", Duration::from_secs(3), resolver).unwrap()
}

const LIMITS: Limits = Limits { timeout: Duration::from_secs(10), len_max: 1_000 };

async fn post(client: &PostClient, url: &str, limits: Limits) -> Result<PostResponse, PostError> {
    let target = client.target(&url.parse().unwrap()).unwrap();
    let header = (HeaderName::from_static("token"), HeaderValue::from_static("secret"));
    client.send(&target, "run", header, b"{}".to_vec(), limits).await
}

#[tokio::test]
async fn posts_go_to_allowed_addresses_only() {
    let (local_receiver, inside) = Receiver::pair().await;
    let resolver = ScriptedResolver::new(vec![vec![FORBIDDEN_ADDRESS, ALLOWED_ADDRESS], vec![FORBIDDEN_ADDRESS]]);
    let client = posts(&[ALLOWED_ADDRESS], Arc::clone(&resolver));
    let url = format!("http://rebound.example:{}/", local_receiver.address.port());
    assert_eq!(post(&client, &url, LIMITS).await.unwrap().status, 200);
    let Err(PostError::NotSent(words)) = post(&client, &url, LIMITS).await else {
        panic!("it went to {FORBIDDEN_ADDRESS}")
    };
    assert!(words.starts_with("no connection: 127.0.0.1 is a loopback address"), "{words}");
    assert_eq!((resolver.asked(), local_receiver.count(), inside.count()), (2, 1, 0));
    for host in ["127.0.0.1", "2130706433", "0x7f.0.1", "[::ffff:127.0.0.1]", "169.254.169.254"] {
        let words = client.target(&format!("http://{host}/").parse().unwrap()).unwrap_err();
        assert!(words.contains("outgoing_allow"), "{host}: {words}");
    }
    let words = client.target(&"ftp://example.com/".parse().unwrap()).unwrap_err();
    assert_eq!(words, "ftp://example.com/ is not an HTTP URL");
}

#[tokio::test]
async fn posts_have_a_length_and_follow_no_redirect() {
    let echo = Receiver::start(&format!("{ALLOWED_ADDRESS}:0"), ECHO.to_owned()).await;
    let client = posts(&[ALLOWED_ADDRESS], ScriptedResolver::new(vec![vec![ALLOWED_ADDRESS]]));
    let answer = post(&client, &format!("http://{}/job/", echo.address), LIMITS).await.unwrap();
    let request = String::from_utf8_lossy(&answer.body).to_lowercase();
    assert!(request.starts_with("post /job/run http/1.1\r\n"), "{request}");
    for line in
        ["content-type: application/json;charset=utf-8", "content-length: 2", "token: secret", "user-agent: test"]
    {
        assert!(request.contains(&format!("\r\n{line}\r\n")), "{line} is missing in {request}");
    }
    let local_receiver = Receiver::start(&format!("{ALLOWED_ADDRESS}:0"), redirect("/again")).await;
    let answer = post(&client, &format!("http://{}/", local_receiver.address), LIMITS).await.unwrap();
    assert_eq!((answer.status.as_u16(), local_receiver.count()), (302, 1));
}

#[tokio::test]
async fn posts_without_an_answer_were_not_sent_or_are_unclear() {
    let client = posts(&[ALLOWED_ADDRESS], ScriptedResolver::new(vec![vec![ALLOWED_ADDRESS]]));
    let closed = TcpListener::bind(format!("{ALLOWED_ADDRESS}:0")).await.unwrap().local_addr().unwrap();
    let error = post(&client, &format!("http://{closed}/"), LIMITS).await.unwrap_err();
    assert!(matches!(&error, PostError::NotSent(words) if words.starts_with("no connection: ")), "{error:?}");
    let silent = TcpListener::bind(format!("{ALLOWED_ADDRESS}:0")).await.unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let short = Limits { timeout: Duration::from_millis(500), ..LIMITS };
    let error = post(&client, &url, short).await.unwrap_err();
    assert_eq!(error, PostError::Unclear("no answer in time".to_owned()));
    let broken =
        Receiver::start(&format!("{ALLOWED_ADDRESS}:0"), "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok".to_owned())
            .await;
    let error = post(&client, &format!("http://{}/", broken.address), LIMITS).await.unwrap_err();
    assert!(matches!(&error, PostError::Unclear(_)), "{error:?}");
    let long = Receiver::start(&format!("{ALLOWED_ADDRESS}:0"), ok_with(&"x".repeat(1_001))).await;
    let error = post(&client, &format!("http://{}/", long.address), LIMITS).await.unwrap_err();
    assert_eq!(error, PostError::TooLong(1_000));
}

/// The TLS handshake is part of establishing the connection. A server that does not complete it has received no part of the request.
#[tokio::test(start_paused = true)]
async fn a_post_whose_connection_is_not_established_was_not_sent() {
    let silent = TcpListener::bind(format!("{ALLOWED_ADDRESS}:0")).await.unwrap();
    let client = posts(&[ALLOWED_ADDRESS], ScriptedResolver::new(vec![vec![ALLOWED_ADDRESS]]));
    let patient = Limits { timeout: Duration::from_secs(15), ..LIMITS };
    let error = post(&client, &format!("https://{}/", silent.local_addr().unwrap()), patient).await.unwrap_err();
    assert_eq!(error, PostError::NotSent("no connection: not established in time".to_owned()));
}

/// Ways to write an IPv4 address that some parsers have read as something else.
fn spellings(address: u32) -> Vec<String> {
    let [a, b, c, d] = address.to_be_bytes();
    let fullwidth = |c: char| c.to_digit(10).and_then(|digit| char::from_u32(0xff10 + digit)).unwrap_or(c);
    let wide: String = format!("{a}.{b}.{c}.{d}").chars().map(fullwidth).collect();
    let percent: String = format!("{a}.{b}.{c}.{d}").bytes().map(|byte| format!("%{byte:02x}")).collect();
    let low = u32::from(c) << 8 | u32::from(d);
    vec![
        format!("{a}.{b}.{c}.{d}"),
        format!("{a}.{b}.{c}.{d}."),
        format!("{address}"),
        format!("0{address:o}"),
        format!("0x{address:x}"),
        format!("0X{address:X}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
        format!("000000{a:o}.{b}.0x{low:x}"),
        format!("{a}.{}", address & 0xff_ffff),
        format!("{a}.{b}.{low}"),
        wide,
        percent,
        format!("{a}\u{3002}{b}\u{ff0e}{c}\u{ff61}{d}"),
        format!("user@{a}.{b}.{c}.{d}"),
        format!("example.com@{a}.{b}.{c}.{d}"),
        format!("[::ffff:{a}.{b}.{c}.{d}]"),
        format!("[::ffff:{:x}:{:x}]", address >> 16, address & 0xffff),
        format!("[0:0:0:0:0:FFFF:{a}.{b}.{c}.{d}]"),
        format!("[::{a}.{b}.{c}.{d}]"),
        format!("[64:ff9b::{a}.{b}.{c}.{d}]"),
        format!("[2002:{:x}:{:x}::]", address >> 16, address & 0xffff),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Every spelling of an internal address is either refused or not a valid URL.
    #[test]
    fn an_inner_address_gets_through_in_no_spelling(place in 0_usize..8, bits in any::<u32>()) {
        let inside = [0x7f00_0000, 0x0a00_0000, 0xc0a8_0000, 0xa9fe_a9fe, 0xac10_0000, 0x6440_0000, 0, 0xe000_0000][place];
        let address = inside | (bits & 0xffff);
        prop_assert!(kind(std::net::Ipv4Addr::from(address).into()) != AddressKind::Public);
        for spelling in spellings(address) {
            let Ok(url) = Url::parse(&format!("http://{spelling}:80/")) else { continue };
            let refused = check_host(&url, &AllowedAddresses::default()).is_err();
            prop_assert!(refused, "{} is {:?}", spelling, url.host_str());
        }
    }
}
