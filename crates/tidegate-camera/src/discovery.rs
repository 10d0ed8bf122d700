//! Cameras of the local networks that speak ONVIF: a question by multicast, and their answers (WS-Discovery, ONVIF Core Specification,
//! section 7).
//!
//! ```text
//!  Probe ─▶ 239.255.255.250:3702, by each interface, twice ─▶ ProbeMatches of each camera ─▶ name, hardware, address of its service
//! ```
//!
//! An answer says where a camera's service is, and not where its stream is: that is asked for with a login. Answers come from any machine of
//! the network, and are believed no more than that.
//!
//! Always true: answers to other questions are left out; a camera is named once; no more than [`FOUND_MAX`] are.

mod xml;

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    net::UdpSocket,
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};

use self::xml::{Part, parts};

/// Where cameras listen for questions (WS-Discovery 1.0, section 2.4).
pub const MULTICAST: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 255, 255, 250)), 3702);

/// Cameras that are named at most.
pub const FOUND_MAX: usize = 1_024;
/// A question is asked again after this, since a datagram may be lost (SOAP-over-UDP 1.0, appendix I).
const AGAIN_AFTER: Duration = Duration::from_millis(300);
/// The kinds that are asked for: cameras, and devices of those that answer to that alone.
const KINDS: [&str; 2] = ["dn:NetworkVideoTransmitter", "tds:Device"];
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Characters of a name that are kept.
const NAME_MAX: usize = 100;

/// A camera that has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Where it is; of several addresses, the one that its answer came from.
    pub address: Option<IpAddr>,
    /// Its name, as it says; empty if it says none.
    pub name: String,
    /// Its make, as it says; empty if it says none.
    pub hardware: String,
    /// Its place, as it says; empty if it says none.
    pub location: String,
    /// The addresses of its ONVIF service.
    pub services: Vec<String>,
    /// Its lasting name, by which it is told from others.
    pub id: String,
}

/// Asks `to` by each of our own addresses, and gives those that have answered within `wait`, by their addresses.
///
/// # Errors
/// The system's, if there is no address by which can be asked.
///
/// # Cancel safety
/// Dropping it ends the search.
pub async fn search(own: &[IpAddr], to: SocketAddr, wait: Duration) -> io::Result<Vec<Found>> {
    let until = Instant::now() + wait;
    let mut asking = JoinSet::new();
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for own in own {
        match UdpSocket::bind((*own, 0)).await {
            Ok(socket) => {
                asking.spawn(ask(socket, to, until));
            }
            Err(error) => failed = error,
        }
    }
    let mut found: BTreeMap<String, Found> = BTreeMap::new();
    let mut has_asked = false;
    while let Some(asked) = asking.join_next().await {
        match asked.map_err(io::Error::other)? {
            Ok(answers) => {
                has_asked = true;
                for answer in answers {
                    if found.len() < FOUND_MAX || found.contains_key(&answer.id) {
                        found.insert(answer.id.clone(), answer);
                    }
                }
            }
            // An interface without a way to the others.
            Err(error) => failed = error,
        }
    }
    if !has_asked {
        return Err(failed);
    }
    let mut found: Vec<Found> = found.into_values().collect();
    found.sort_by(|a, b| (a.address, &a.id).cmp(&(b.address, &b.id)));
    Ok(found)
}

/// Asks by one socket, twice, and takes answers until then.
async fn ask(socket: UdpSocket, to: SocketAddr, until: Instant) -> io::Result<Vec<Found>> {
    let questions = KINDS.map(|kind| (unique(), kind));
    let mut again_at = Some(Instant::now() + AGAIN_AFTER);
    send(&socket, to, &questions).await?;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let mut found = Vec::new();
    loop {
        let received = tokio::select! {
            received = timeout_at(until, socket.recv_from(&mut buffer)) => received,
            () = sleep_until(again_at.unwrap_or(until)), if again_at.is_some() => {
                again_at = None;
                send(&socket, to, &questions).await?;
                continue;
            }
        };
        match received {
            Err(_) => return Ok(found),
            Ok(Ok((length, from))) => {
                let text = String::from_utf8_lossy(&buffer[..length]);
                let is_ours =
                    |id: &str| questions.iter().any(|(ours, _)| digits(ours) == digits(id));
                let room = FOUND_MAX.saturating_sub(found.len());
                found.extend(answers(&text, from.ip(), is_ours).into_iter().take(room));
            }
            // Of a machine that does not listen there.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Ok(Err(error)) => return Err(error),
        }
    }
}

async fn send(socket: &UdpSocket, to: SocketAddr, questions: &[(String, &str)]) -> io::Result<()> {
    for (id, kind) in questions {
        socket.send_to(question(id, kind).as_bytes(), to).await?;
    }
    Ok(())
}

fn question(id: &str, kind: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <e:Envelope xmlns:e=\"http://www.w3.org/2003/05/soap-envelope\" xmlns:w=\"http://schemas.xmlsoap.org/ws/2004/08/addressing\" \
         xmlns:d=\"http://schemas.xmlsoap.org/ws/2005/04/discovery\" xmlns:dn=\"http://www.onvif.org/ver10/network/wsdl\" \
         xmlns:tds=\"http://www.onvif.org/ver10/device/wsdl\"><e:Header><w:MessageID>{id}</w:MessageID>\
         <w:To e:mustUnderstand=\"true\">urn:schemas-xmlsoap-org:ws:2005:04:discovery</w:To>\
         <w:Action e:mustUnderstand=\"true\">http://schemas.xmlsoap.org/ws/2005/04/discovery/Probe</w:Action></e:Header>\
         <e:Body><d:Probe><d:Types>{kind}</d:Types></d:Probe></e:Body></e:Envelope>"
    )
}

/// The name of a question, which no other has (RFC 9562, section 5.4).
fn unique() -> String {
    let random = || RandomState::new().build_hasher().finish();
    let (high, low) = (random(), random());
    let (high, low) = (high & !0xf000 | 0x4000, low & !(3 << 62) | (2 << 62));
    format!(
        "urn:uuid:{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// The digits of a UUID, which cameras write with or without `urn:` and in either case (RFC 9562, section 4).
fn digits(id: &str) -> String {
    let id = id.trim().to_ascii_lowercase();
    let id = id.strip_prefix("urn:").unwrap_or(&id);
    id.strip_prefix("uuid:").unwrap_or(id).trim_matches(['{', '}']).to_owned()
}

/// The cameras that an answer names; none if it is no answer to a question of ours.
fn answers(text: &str, from: IpAddr, is_ours: impl Fn(&str) -> bool) -> Vec<Found> {
    let (mut found, mut related) = (Vec::new(), None);
    let mut open: Option<Match> = None;
    let mut element = String::new();
    for part in parts(text) {
        match part {
            Part::Open(name) => {
                if name == "ProbeMatch" {
                    open = Some(Match::default());
                }
                element = name.to_owned();
            }
            Part::Text(text) => match (&mut open, &*element) {
                (None, "RelatesTo") => {
                    related = Some(related == Some(true) || is_ours(text.trim()));
                }
                (Some(open), "Address") => open.id.push_str(text.trim()),
                (Some(open), "Scopes") => open.scopes.push_str(&text),
                (Some(open), "XAddrs") => open.services.push_str(&text),
                _ => {}
            },
            Part::Close(name) => {
                if name == "ProbeMatch"
                    && let Some(open) = open.take()
                {
                    found.push(open.found(from));
                }
                element.clear();
            }
        }
    }
    // Some cameras do not say what they answer: what comes to our port does.
    if related == Some(false) { Vec::new() } else { found }
}

/// A match as it is read.
#[derive(Default)]
struct Match {
    id: String,
    scopes: String,
    services: String,
}

impl Match {
    fn found(self, from: IpAddr) -> Found {
        let scope = |kind: &str| {
            let mut scopes = self.scopes.split_ascii_whitespace();
            let value = scopes
                .find_map(|scope| scope.strip_prefix("onvif://www.onvif.org/")?.strip_prefix(kind));
            let text = value.map(decoded).unwrap_or_default();
            text.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect::<String>()
        };
        let is_service = |text: &&str| text.starts_with("http://") || text.starts_with("https://");
        let services: Vec<String> = self
            .services
            .split_ascii_whitespace()
            .filter(is_service)
            .take(8)
            .map(|text| text.chars().filter(|c| !c.is_control()).take(300).collect())
            .collect();
        let id = match self.id.is_empty() {
            true => from.to_string(),
            false => self.id.chars().filter(|c| !c.is_control()).take(200).collect(),
        };
        Found {
            address: Some(from),
            name: scope("name/"),
            hardware: scope("hardware/"),
            location: scope("location/"),
            services,
            id,
        }
    }
}

/// Text with each `%XX` as its byte.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let hex = behind.get(..2).filter(|_| first == b'%');
        let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    /// The answer of a camera, as one writes it.
    fn answer(to: &str, id: &str) -> String {
        format!(
            "<?xml version=\"1.0\"?><SOAP-ENV:Envelope><SOAP-ENV:Header><wsa:MessageID>urn:uuid:1</wsa:MessageID>\
             <wsa:RelatesTo>\n {to} </wsa:RelatesTo></SOAP-ENV:Header><SOAP-ENV:Body><d:ProbeMatches><d:ProbeMatch>\
             <wsa:EndpointReference><wsa:Address>{id}</wsa:Address></wsa:EndpointReference><d:Types>dn:NetworkVideoTransmitter</d:Types>\
             <d:Scopes>onvif://www.onvif.org/type/video_encoder onvif://www.onvif.org/name/Hall%20%26%20Yard \
             onvif://www.onvif.org/hardware/X&amp;1 onvif://www.onvif.org/location/%1b[2Jhere</d:Scopes>\
             <d:XAddrs>http://192.0.2.7/onvif/device_service javascript:x https://192.0.2.7/s</d:XAddrs><d:MetadataVersion>1</d:MetadataVersion>\
             </d:ProbeMatch></d:ProbeMatches></SOAP-ENV:Body></SOAP-ENV:Envelope>"
        )
    }

    /// A camera on loopback that answers what it is asked, each time with that.
    async fn camera(
        reply: impl Fn(&str) -> Vec<String> + Send + 'static,
    ) -> (SocketAddr, AbortOnDropHandle<()>) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let address = socket.local_addr().expect("it has one");
        let task = tokio::spawn(async move {
            let mut buffer = vec![0; 65_535];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let asked = String::from_utf8_lossy(&buffer[..length]).into_owned();
                assert!(asked.contains("/discovery/Probe</w:Action>"), "{asked}");
                let id =
                    asked.split("<w:MessageID>").nth(1).and_then(|rest| rest.split('<').next());
                for answer in reply(id.expect("it has a name")) {
                    socket.send_to(answer.as_bytes(), from).await.expect("it is sent");
                }
            }
        });
        (address, AbortOnDropHandle::new(task))
    }

    const OWN: [IpAddr; 1] = [IpAddr::V4(Ipv4Addr::LOCALHOST)];

    #[tokio::test]
    async fn cameras_that_answer_are_named_once_and_others_are_not() {
        let reply = |id: &str| {
            vec![
                answer(id, "urn:uuid:cam"),
                answer("urn:uuid:of-another-question", "urn:uuid:other"),
                "no XML <at <all".to_owned(),
                String::new(),
                answer(id, ""),
            ]
        };
        let (address, _camera) = camera(reply).await;
        let found = search(&OWN, address, Duration::from_secs(2)).await.expect("it is asked");
        let [by_address, cam] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&*by_address.id, &*cam.id), ("127.0.0.1", "urn:uuid:cam"));
        assert_eq!((&*cam.name, &*cam.hardware), ("Hall & Yard", "X&1"));
        assert_eq!(cam.location, "[2Jhere", "nothing that steers a terminal");
        assert_eq!(cam.services, ["http://192.0.2.7/onvif/device_service", "https://192.0.2.7/s"]);
        assert_eq!(cam.address, Some(OWN[0]));
    }

    #[tokio::test]
    async fn a_question_is_asked_again_since_one_may_be_lost() {
        let count = std::sync::atomic::AtomicUsize::new(0);
        let reply = move |id: &str| {
            // The first of each kind is lost.
            let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            if number < KINDS.len() { Vec::new() } else { vec![answer(id, "urn:uuid:cam")] }
        };
        let (address, _camera) = camera(reply).await;
        let found = search(&OWN, address, Duration::from_secs(2)).await.expect("it is asked");
        assert_eq!(found.len(), 1);
    }

    #[tokio::test]
    async fn a_search_that_finds_nothing_ends_and_one_without_an_address_says_so() {
        let (address, _camera) = camera(|_| Vec::new()).await;
        let found = search(&OWN, address, Duration::from_millis(400)).await;
        assert_eq!(found.expect("it is asked"), []);
        let none = search(&[], address, Duration::from_millis(1)).await;
        assert_eq!(none.expect_err("no address").kind(), io::ErrorKind::AddrNotAvailable);
        let foreign = [IpAddr::from([192, 0, 2, 1])];
        search(&foreign, address, Duration::from_millis(1)).await.expect_err("it is not ours");
    }

    #[tokio::test]
    async fn a_flood_of_answers_is_bounded() {
        let reply = |id: &str| -> Vec<String> {
            (0..700).map(|number| answer(id, &format!("urn:{number}"))).collect()
        };
        let (address, _camera) = camera(reply).await;
        let found = search(&OWN, address, Duration::from_secs(2)).await.expect("it is asked");
        assert!(found.len() <= FOUND_MAX, "{}", found.len());
    }

    #[test]
    fn questions_have_names_of_their_own() {
        let id = unique();
        assert_ne!(id, unique());
        let digits: Vec<&str> = id.strip_prefix("urn:uuid:").expect("a UUID").split('-').collect();
        assert_eq!(digits.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(digits[2].starts_with('4') && "89ab".contains(&digits[3][..1]), "{id}");
        assert_eq!(question("a", "b").matches("<w:MessageID>a</w:MessageID>").count(), 1);
    }

    #[test]
    fn an_answer_is_known_by_the_digits_of_its_question() {
        let ours = "urn:uuid:0a1b2c3d-0000-4000-8000-0123456789ab";
        let is_ours = |id: &str| digits(id) == digits(ours);
        let from = IpAddr::from([192, 0, 2, 1]);
        let text = |to: &str| answer(to, "urn:uuid:cam");
        for (to, count) in [
            (ours, 1),
            ("uuid:0a1b2c3d-0000-4000-8000-0123456789ab", 1),
            ("URN:UUID:0A1B2C3D-0000-4000-8000-0123456789AB", 1),
            ("0A1B2C3D-0000-4000-8000-0123456789AB", 1),
            ("urn:uuid:0a1b2c3d-0000-4000-8000-0123456789ac", 0),
        ] {
            assert_eq!(answers(&text(to), from, is_ours).len(), count, "{to}");
        }
        let silent = text("x").replace("<wsa:RelatesTo>\n x </wsa:RelatesTo>", "");
        assert!(!silent.contains("RelatesTo"));
        assert_eq!(answers(&silent, from, is_ours).len(), 1, "it does not say");
    }
}
