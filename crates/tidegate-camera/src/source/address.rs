//! The address of a network camera, and the login for it: two things that never travel together but to the camera.
//!
//! Always true: neither `Debug` nor `Display` of an address shows a user, a password or a value that may be one.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    sync::Arc,
};

use tidegate_message::{
    confidential::{names_secret, without_secrets},
    host::without_brackets,
};
use tidegate_sys::net::own_addresses;
use zeroize::Zeroizing;

/// A protocol that cameras are asked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Rtsp,
    Http,
}

impl Protocol {
    /// The protocol of a scheme, and whether it is encrypted.
    fn of(scheme: &str) -> Option<(Self, bool)> {
        let known = [Self::Rtsp, Self::Http].into_iter().flat_map(|it| [(it, false), (it, true)]);
        known.into_iter().find(|(it, is_tls)| scheme.eq_ignore_ascii_case(it.scheme(*is_tls)))
    }

    const fn scheme(self, is_tls: bool) -> &'static str {
        match (self, is_tls) {
            (Self::Rtsp, false) => "rtsp",
            (Self::Rtsp, true) => "rtsps",
            (Self::Http, false) => "http",
            (Self::Http, true) => "https",
        }
    }

    /// The usual port (RFC 7826, section 4.2; RFC 9110, section 4.2).
    const fn port(self, is_tls: bool) -> u16 {
        match (self, is_tls) {
            (Self::Rtsp, false) => 554,
            (Self::Rtsp, true) => 322,
            (Self::Http, false) => 80,
            (Self::Http, true) => 443,
        }
    }
}

/// An address of a camera: `rtsp://HOST/PATH`, `http://HOST/PATH`, or one of the two encrypted, `rtsps` and `https`.
#[derive(Clone, PartialEq, Eq)]
pub struct CameraAddress {
    protocol: Protocol,
    is_tls: bool,
    /// As it was written, an IPv6 address in its brackets.
    host: String,
    port: u16,
    /// From the slash behind the host on.
    path: Arc<Zeroizing<String>>,
    login: Option<Login>,
}

/// A user and its password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    /// The user.
    pub(super) user: String,
    /// Its password.
    pub(super) password: Zeroizing<String>,
}

/// Addresses at which clouds give their machines the keys of these. No camera is there.
const METADATA: [IpAddr; 6] = [
    // Most clouds.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    // OpenStack.
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // Oracle Cloud.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // AWS.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // Google Cloud.
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // Alibaba Cloud.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
];

/// How far an address reaches: a camera that redirects to a nearer place than its own would have this machine ask its own services, or
/// those of its link, such as the metadata of a cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// This machine.
    Machine,
    /// The link.
    Link,
    /// Further.
    Network,
    /// The metadata of a cloud.
    Metadata,
}

impl Scope {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if METADATA.contains(&address) => Self::Metadata,
            // All of 0.0.0.0/8 is "this host" (RFC 1122, section 3.2.1.3), and connects to it.
            IpAddr::V4(v4) if v4.is_loopback() || v4.octets()[0] == 0 => Self::Machine,
            IpAddr::V6(v6) if v6.is_loopback() || v6.is_unspecified() => Self::Machine,
            // Its services listen at these as well.
            address if is_own(address) => Self::Machine,
            IpAddr::V4(v4) if v4.is_link_local() => Self::Link,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Self::Link,
            _ => Self::Network,
        }
    }

    /// Whether a camera that is there may redirect to `address`.
    fn may_send_to(self, address: IpAddr) -> bool {
        let to = Self::of(address);
        to == Self::Network || to == self && to != Self::Metadata
    }
}

/// The port that a route is asked for (RFC 863); which one it is does not matter.
const DISCARD: u16 = 9;

/// Whether `address` is one of this machine's interfaces: what is sent there comes from there. No packet is sent to find that out.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, DISCARD))?;
        socket.local_addr()
    });
    match source {
        Ok(source) => source.ip() == address,
        // Without a route there, or without the interface of an address of a link: one of ours would stand in the list of them.
        Err(_) => own_addresses().is_ok_and(|own| own.contains(&address)),
    }
}

/// Where a camera was found, and so where its redirections may lead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Home(Option<Scope>);

impl Home {
    /// The first address that has answered is the camera's own.
    pub(super) fn found(&mut self, address: IpAddr) {
        self.0.get_or_insert(Scope::of(address));
    }

    /// Whether a request may go to `address`. One to the address that the user gave may go anywhere; one that follows a redirection to no
    /// nearer place than the camera's, whatever name it has: the same name may resolve to another address by then.
    pub(super) fn allows(self, address: IpAddr, is_redirected: bool) -> bool {
        !is_redirected || self.0.is_some_and(|home| home.may_send_to(address))
    }
}

/// Whether a source's description is an address of a camera, right or wrong.
pub fn is_address(text: &str) -> bool {
    let scheme = text.split(':').next().unwrap_or_default();
    text.contains(':') && Protocol::of(scheme).is_some()
}

impl CameraAddress {
    /// Reads an address; `None` if it is none.
    ///
    /// User and password may have `%XX` for characters that mean something in an address; `/`, `?`, `#` and `@` in a password are
    /// understood as they are where the address has only one meaning.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let (protocol, is_tls) = Protocol::of(scheme)?;
        let end = |text: &str| text.find(['/', '?', '#']).unwrap_or(text.len());
        let authority = &rest[..end(rest)];
        let at = authority.rfind('@').or_else(|| {
            // `user:pass/word@host`: the text behind the colon is no port.
            let (_, port) = authority.rsplit_once(':').filter(|_| !authority.ends_with(']'))?;
            rest.rfind('@').filter(|_| !port.is_empty() && port.parse::<u16>().is_err())
        });
        let (login, place) = match at {
            Some(at) => (Some(Login::parse(&rest[..at])), &rest[at + 1..]),
            None => (None, rest),
        };
        let (authority, path) = place.split_at(end(place));
        let (host, port) = match authority.rsplit_once(':').filter(|_| !authority.ends_with(']')) {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (authority, protocol.port(is_tls)),
        };
        let is_host = |c: char| c.is_alphanumeric() || ".-_:[]%".contains(c);
        if host.is_empty()
            || !host.chars().all(is_host)
            || path.chars().any(|c| c.is_control() || c == ' ')
        {
            return None;
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let path = Arc::new(Zeroizing::new(path));
        let login = login.filter(|login| !login.user.is_empty() || !login.password.is_empty());
        let address = Self { protocol, is_tls, host: host.to_owned(), port, path, login };
        // A client of HTTP is stricter than those of RTSP.
        let is_known = !address.is_http() || address.request().parse::<hyper::Uri>().is_ok();
        is_known.then_some(address)
    }

    /// Reads an address of RTSP; `None` if it is none.
    pub(super) fn parse_rtsp(text: &str) -> Option<Self> {
        Self::parse(text).filter(|address| !address.is_http())
    }

    /// The address of HTTP that this one redirects to, which may be relative to it (RFC 3986, section 5.2); `None` if it is none.
    pub(super) fn redirected(&self, place: &str) -> Option<Self> {
        let scheme = self.protocol.scheme(self.is_tls);
        let own = self.path.split(['?', '#']).next().unwrap_or("/");
        let folder = &own[..=own.rfind('/').unwrap_or(0)];
        let is_absolute =
            place.split(['/', '?', '#']).next().is_some_and(|part| part.contains(':'));
        let text = match place {
            "" => return None,
            _ if is_absolute => place.to_owned(),
            _ if place.starts_with("//") => format!("{scheme}:{place}"),
            _ if place.starts_with('/') => format!("{scheme}://{}:{}{place}", self.host, self.port),
            _ if place.starts_with('?') => {
                format!("{scheme}://{}:{}{own}{place}", self.host, self.port)
            }
            _ => format!("{scheme}://{}:{}{folder}{place}", self.host, self.port),
        };
        Self::parse(&text).filter(Self::is_http)
    }

    /// Whether the camera is asked by HTTP.
    pub(super) const fn is_http(&self) -> bool {
        matches!(self.protocol, Protocol::Http)
    }

    /// The host, and the port where it is not the usual one.
    pub(super) fn authority(&self) -> String {
        match self.port == self.protocol.port(self.is_tls) {
            true => self.host.clone(),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Path and query.
    pub(super) fn path(&self) -> &str {
        self.path.split('#').next().unwrap_or("/")
    }

    /// The same address with another password, or with another user as well if it is `USER:PASSWORD` and the address names no user.
    pub fn with_password(mut self, text: &str) -> Self {
        self.login = Some(match self.login {
            Some(Login { user, .. }) if !user.is_empty() => {
                Login { user, password: Zeroizing::new(text.to_owned()) }
            }
            _ => match text.split_once(':') {
                Some((user, password)) => {
                    Login { user: user.to_owned(), password: Zeroizing::new(password.to_owned()) }
                }
                None => Login { user: String::new(), password: Zeroizing::new(text.to_owned()) },
            },
        });
        self
    }

    /// Has the login of another address; a user of its own stays.
    pub(super) fn take_login_of(&mut self, other: &Self) {
        let Some(Login { user, password }) = &other.login else { return };
        let own = self.login.take().map(|login| login.user).filter(|user| !user.is_empty());
        let user = own.unwrap_or_else(|| user.clone());
        self.login = Some(Login { user, password: password.clone() });
    }

    /// Whether a password stands in it: in its login, or as a value of that name in its path and query.
    pub fn has_password(&self) -> bool {
        let has_login = self.login.as_ref().is_some_and(|login| !login.password.is_empty());
        // Some cameras join values by an underscore.
        let mut parts = self.path.split(['/', '?', '&', ';', '#', '_']);
        has_login || parts.any(is_password)
    }

    /// The address with its user and without its password, as a configuration may have it, and the password as a file has it that
    /// [`CameraAddress::with_password`] is given; none if it has none.
    pub(super) fn parted(&self) -> (String, Option<Zeroizing<String>>) {
        let scheme = self.protocol.scheme(self.is_tls);
        let (mut user, mut password) = (String::new(), None);
        if let Some(login) = &self.login {
            if !login.user.is_empty() {
                user = format!("{}@", encoded(&login.user));
            }
            // Without a user before it, a colon would part it.
            password = Some(match login.user.is_empty() {
                true => Zeroizing::new(format!(":{}", *login.password)),
                false => login.password.clone(),
            })
            .filter(|_| !login.password.is_empty());
        }
        (format!("{scheme}://{user}{}{}", self.authority(), self.path.as_str()), password)
    }

    /// The same address with the login of another.
    pub(super) fn with_login_of(self, other: &Self) -> Self {
        Self { login: other.login.clone(), ..self }
    }

    pub(super) const fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The host without the brackets of an IPv6 address.
    pub(super) fn host(&self) -> &str {
        without_brackets(&self.host)
    }

    /// Whether both have one host, however it is written.
    pub(super) fn is_same_host(&self, other: &Self) -> bool {
        self.host.eq_ignore_ascii_case(&other.host)
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    pub(super) const fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    /// The address as the camera is asked by it: without its login, but with secrets that stand in its path.
    pub(super) fn request(&self) -> Zeroizing<String> {
        let scheme = self.protocol.scheme(self.is_tls);
        Zeroizing::new(match self.protocol {
            Protocol::Rtsp => {
                format!("{scheme}://{}:{}{}", self.host, self.port, self.path.as_str())
            }
            Protocol::Http => format!("{scheme}://{}{}", self.authority(), self.path()),
        })
    }
}

impl Login {
    fn parse(text: &str) -> Self {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        Self { user: decoded(user), password: Zeroizing::new(decoded(password)) }
    }
}

/// Text in which each character that may mean something in an address is `%XX`.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let each = text.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    each.collect()
}

/// Text with each `%XX` as its character; as it is if that gives no text.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let hex =
            behind.get(..2).filter(|_| first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
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
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

impl fmt::Display for CameraAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.protocol.scheme(self.is_tls);
        let login = if self.login.is_some() { "***@" } else { "" };
        let shown = format!("{scheme}://{login}{}{}", self.authority(), self.path.as_str());
        f.write_str(&without_secrets(&shown))
    }
}

impl fmt::Debug for CameraAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CameraAddress({self})")
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(***)")
    }
}

/// Whether this is `name=value` with a name that cameras have for secrets.
fn is_password(part: &str) -> bool {
    let Some((name, value)) = part.split_once('=') else { return false };
    names_secret(&decoded(name)) && !value.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, Option<(String, String)>)> {
        let address = CameraAddress::parse(text)?;
        let login = address.login.as_ref();
        Some((
            address.request().to_string(),
            login.map(|login| (login.user.clone(), login.password.to_string())),
        ))
    }

    #[test]
    fn a_camera_sends_to_no_nearer_place_than_its_own() {
        use Scope::{Link, Machine, Metadata, Network};
        for (address, scope) in [
            ("127.0.0.1", Machine),
            ("127.9.9.9", Machine),
            ("0.0.0.0", Machine),
            ("0.1.2.3", Machine),
            ("::1", Machine),
            ("::", Machine),
            ("::ffff:127.0.0.1", Machine),
            ("169.254.1.1", Link),
            ("169.254.169.254", Metadata),
            ("::ffff:169.254.169.254", Metadata),
            ("fe80::a9fe:a9fe", Metadata),
            ("::ffff:169.254.1.1", Link),
            ("fe80::1", Link),
            ("192.168.1.7", Network),
            ("10.0.0.1", Network),
            ("fd00::1", Network),
            ("fd00:ec2::254", Metadata),
            ("fd20:ce::254", Metadata),
            ("100.100.100.200", Metadata),
            ("::ffff:100.100.100.200", Metadata),
            ("100.100.100.201", Network),
            ("2001:db8::1", Network),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(Scope::of(address), scope, "{address}");
            for home in [Machine, Link, Network, Metadata] {
                let allowed = scope == Network || scope == home && scope != Metadata;
                assert_eq!(home.may_send_to(address), allowed, "{home:?} {address}");
            }
        }
    }

    #[test]
    fn camera_elsewhere_sends_us_to_no_address_of_this_machine() {
        let own = own_addresses().expect("the interfaces");
        let [camera, loopback]: [IpAddr; 2] =
            ["198.51.100.7", "127.0.0.1"].map(|text| text.parse().unwrap());
        if own.iter().all(|address| address.is_unspecified()) {
            println!("skipped: this machine has no address but loopback");
        }
        for address in own {
            let (mut home, mut ours) = (Home::default(), Home::default());
            home.found(camera);
            assert!(!home.allows(address, true), "{address}");
            // A camera of this machine, such as a restreamer, may.
            ours.found(address);
            assert!(ours.allows(address, true) && ours.allows(loopback, true), "{address}");
        }
    }

    #[test]
    fn a_redirection_to_the_same_name_is_checked_as_any_other() {
        let places = ["127.0.0.1", "169.254.1.1", "169.254.169.254", "192.168.1.7"];
        let places = places.map(|text| text.parse::<IpAddr>().unwrap());
        let [machine, link, _, network] = places;
        for (own, allowed) in [
            (network, [false, false, false, true]),
            (machine, [true, false, false, true]),
            (link, [false, true, false, true]),
        ] {
            let mut home = Home::default();
            for to in places {
                assert!(home.allows(to, false), "the user gave it");
                assert!(!home.allows(to, true), "where the camera is is not known");
            }
            home.found(own);
            // An answer by a redirection does not change where the camera is.
            home.found(network);
            assert_eq!(places.map(|to| home.allows(to, true)), allowed, "{own}");
        }
    }

    #[test]
    fn an_address_is_read_and_its_login_kept_apart() {
        let login = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        for (text, request, expected) in [
            ("rtsp://cam/1", "rtsp://cam:554/1", None),
            ("RTSP://cam", "rtsp://cam:554/", None),
            ("rtsps://cam/1", "rtsps://cam:322/1", None),
            ("rtsp://[fe80::1]:8554/a?b=c", "rtsp://[fe80::1]:8554/a?b=c", None),
            ("rtsp://[fe80::1]/a", "rtsp://[fe80::1]:554/a", None),
            ("rtsp://me:s3cret@cam:8554/1", "rtsp://cam:8554/1", login("me", "s3cret")),
            ("RtSp://me:s3cret@cam/1", "rtsp://cam:554/1", login("me", "s3cret")),
            ("rtsp://me:a@b@cam/1", "rtsp://cam:554/1", login("me", "a@b")),
            ("rtsp://me:a%40b%2f@cam/1", "rtsp://cam:554/1", login("me", "a@b/")),
            ("rtsp://me:100%@cam/1", "rtsp://cam:554/1", login("me", "100%")),
            ("rtsp://me:a/b@cam/1", "rtsp://cam:554/1", login("me", "a/b")),
            ("rtsp://me:a?b#c@cam/1", "rtsp://cam:554/1", login("me", "a?b#c")),
            ("rtsp://me@cam/1", "rtsp://cam:554/1", login("me", "")),
            ("rtsp://cam/a@b", "rtsp://cam:554/a@b", None),
            ("rtsp://cam:8554/a@b", "rtsp://cam:8554/a@b", None),
            ("rtsp://cam?user=a&password=b", "rtsp://cam:554/?user=a&password=b", None),
            ("http://cam", "http://cam/", None),
            ("HTTPS://me:a/b@cam:443/x?y=z#part", "https://cam/x?y=z", login("me", "a/b")),
            ("http://me:s3cret@[::1]:81/x", "http://[::1]:81/x", login("me", "s3cret")),
        ] {
            assert_eq!(read(text), Some((request.to_owned(), expected)), "{text}");
        }
        for text in [
            "rtsp:u:p@h",
            "rtsp://",
            "rtsp://u:p@",
            "rtsp://h h/",
            "ftp://u:p@h",
            "http://",
            "http://cam/a\"b<c>",
            "rtsp://cam:99999/",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_redirection_is_relative_to_the_address() {
        let address = CameraAddress::parse("http://cam:81/a/b?c=d").unwrap();
        for (place, expected) in [
            ("https://other/x", "https://other/x"),
            ("//other/x", "http://other/x"),
            ("/x?y", "http://cam:81/x?y"),
            ("x", "http://cam:81/a/x"),
            ("x?to=http://z/", "http://cam:81/a/x?to=http://z/"),
            ("?y=z", "http://cam:81/a/b?y=z"),
        ] {
            let next = address.redirected(place).map(|next| next.request().to_string());
            assert_eq!(next.as_deref(), Some(expected), "{place}");
        }
        for place in ["", "rtsp://cam/1", "mailto:x", "http://"] {
            assert!(address.redirected(place).is_none(), "{place}");
        }
    }

    #[test]
    fn no_message_shows_a_secret() {
        for text in [
            "rtsp://u5er:s3cret@cam/1",
            "RTSP://u5er:s3cret@cam/1",
            "rtsp:u5er:s3cret@cam/1",
            "http://u5er:s3cret@cam/1",
            "rtsp://u5er:s3cret/w@cam/1",
            "rtsp://u5er:7/s3cret@cam/1",
            "rtsp://u5er:s3cret?w@cam/1",
            "rtsp://u5er:s3c:s3cret@cam",
            "rtsp://u5er:a@s3cret@cam",
            "rtsp://s3cret@cam/1",
            "rtsp://cam/1?user=u5er&password=s3cret&channel=1",
            "rtsp://cam/1?USR=u5er&Pwd=s3cret",
            "rtsp://cam/1?u=u5er&p=s3cret",
            "rtsp://cam/1?loginuse=u5er;loginpas=s3cret",
            "rtsp://cam/1?channel=s3cret@cam:u5er@x",
            "rtsp://cam/user=u5er_password=s3cret_channel=1_stream=0.sdp?real_stream",
            "rtsp://cam/user=u5er&password=s3cret&channel=1/x",
            "rtsp://cam/1?token=s3cret#frag=u5er",
            "u5er:s3cret@cam",
            "rtsp://u5er:s3cret@",
            "rtmp://u5er:s3cret@cam/1?key=s3cret",
        ] {
            let mut shown = vec![without_secrets(text)];
            if let Some(address) = CameraAddress::parse(text) {
                shown.push(address.to_string());
                shown.push(format!("{address:?} {:?}", address.login()));
            }
            // The text before the colon of `u5er:…` looks like a scheme.
            for shown in shown {
                assert!(!shown.contains("s3cret"), "{text}: {shown}");
                assert!(!shown.contains("u5er") || text.starts_with("u5er:"), "{text}: {shown}");
                assert!(shown.contains("***"), "{text}: {shown}");
            }
        }
        for (text, shown) in [
            ("rtsp://cam/a@b", "rtsp://cam/a@b"),
            (
                "rtsp://cam:8554/live/ch1?channel=1&subtype=0",
                "rtsp://cam:8554/live/ch1?channel=1&subtype=0",
            ),
            ("rtsp://me:x@cam/1?channel=2&k=v", "rtsp://***@cam/1?channel=2&k=***"),
        ] {
            assert_eq!(without_secrets(text), shown);
            assert_eq!(CameraAddress::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_password_is_seen_wherever_it_stands() {
        for text in [
            "http://me:s3cret@cam/1",
            "http://cam/s.cgi?user=a&pwd=x",
            "http://cam/s.cgi?channel=1;PassWord=x",
            "http://cam/s.cgi?loginuse=a&loginpas=x",
            "http://cam/s.cgi?p%77d=x",
            "http://cam/s.cgi?api_key=x",
            "rtsp://cam/user=a_password=x_channel=1_stream=0.sdp",
            "rtsp://cam/1?token=x#y",
        ] {
            assert!(CameraAddress::parse(text).unwrap().has_password(), "{text}");
        }
        for text in [
            "http://me@cam/1",
            "http://cam/pass/1?channel=1&user=a&res=half&keyframe=1",
            "http://cam/s.cgi?pwd=&user=a",
        ] {
            assert!(!CameraAddress::parse(text).unwrap().has_password(), "{text}");
        }
    }

    #[test]
    fn a_password_comes_from_elsewhere() {
        let with = |text: &str, password: &str| {
            let login = CameraAddress::parse(text).unwrap().with_password(password).login.unwrap();
            (login.user, login.password.to_string())
        };
        let is = |user: &str, password: &str| (user.to_owned(), password.to_owned());
        assert_eq!(with("rtsp://me@cam/1", "a:b"), is("me", "a:b"));
        assert_eq!(with("rtsp://me:old@cam/1", "new"), is("me", "new"));
        assert_eq!(with("rtsp://cam/1", "me:a:b"), is("me", "a:b"));
        assert_eq!(with("rtsp://cam/1", "alone"), is("", "alone"));
    }
}
