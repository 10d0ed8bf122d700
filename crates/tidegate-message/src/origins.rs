//! Requests that a browser sends for a page of another site.
//!
//! A page reaches whatever its user's machine reaches, loopback included, and a browser shows certificates, remembered passwords and,
//! within its rules, cookies with each request that a page makes. So a request of a page counts only if the page is the listener's own, or
//! one that the configuration names. A browser says whose page it is in `Origin` (RFC 6454, section 7) or `Sec-Fetch-Site` (W3C, Fetch
//! Metadata), which scripts cannot set; other programs send neither.
//!
//! | the request | counts |
//! |---|---|
//! | shows no browser | always, where the listener does not ask for a name of all |
//! | has an `Origin` that the configuration names | always |
//! | has the `Origin` of the host that it asks, by either scheme | by a name that is this node's |
//! | has another `Origin` | never |
//! | has no `Origin`, and was made by a page of this host, a person or a link | by a name that is this node's |
//! | has no `Origin`, and was made by a page of another host | never |
//!
//! The name of another site may be made to lead here (DNS rebinding), and its pages would then be of the host that they ask. So a name counts
//! if it is an address, `localhost` or a name of the configuration. Over TLS the certificate says whether a name is this node's.
//!
//! Always true: an HTTP/1.1 request has one valid host (RFC 9112, section 3.2).

use std::{borrow::Cow, net, str::FromStr, sync::Arc};

/// Bytes of an origin or a name that are shown of a request.
const SHOWN_BYTES_MAX: usize = 100;

/// The pages of other sites that may ask a listener, and the names by which pages may.
///
/// The default takes the listener's own pages, by addresses and `localhost`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    takes_all: bool,
    listed: Vec<Origin>,
    names: Vec<Box<str>>,
    /// Whether programs, too, ask by a name that is this node's.
    names_count_for_all: bool,
    /// Where pages are named, and where names are.
    page_key: Option<Arc<str>>,
    name_key: Option<Arc<str>>,
}

/// The parts of a request that say whose it is.
#[derive(Clone, Copy)]
pub struct Asked<'f, 'a> {
    /// Its method.
    pub method: &'f str,
    /// Whether it is of HTTP/1.1, which has one `Host`.
    pub is_http_1_1: bool,
    /// Whether it came over TLS.
    pub is_tls: bool,
    /// The authority in its target: of HTTP/2, or of a target that is a whole URL.
    pub authority: Option<&'a [u8]>,
    /// The values of a field, by its name in small letters.
    pub fields: &'f dyn Fn(&'static str) -> Vec<&'a [u8]>,
}

/// Why a request does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// It has no host, several, or one that cannot be one.
    #[error(
        "a request of HTTP/1.1 has one Host line with a host (RFC 9112, section 3.2); send one"
    )]
    Host,
    /// A page of another site made it.
    #[error("the request comes from a page of another site, {origin}; {}", cure(key.as_deref()))]
    Page {
        /// The site, as far as it is known.
        origin: String,
        /// The setting that would let it pass.
        key: Option<Arc<str>>,
    },
    /// It asks by a name that may be another site's.
    #[error(
        "this listener does not answer to the name {host}; ask for it by its address{}",
        key.as_deref().map(|key| format!(", or add the name to {key}")).unwrap_or_default()
    )]
    Name {
        /// The name.
        host: String,
        /// The setting that would let it pass.
        key: Option<Arc<str>>,
    },
}

impl Foreign {
    /// Its status of HTTP.
    pub fn status(&self) -> u16 {
        match self {
            Self::Host => 400,
            Self::Page { .. } => 403,
            // RFC 9110, section 15.5.20.
            Self::Name { .. } => 421,
        }
    }
}

fn cure(key: Option<&str>) -> String {
    let open = "open this node's own page, or send it from a program";
    match key {
        Some(key) => format!("{open}, or name the page's origin in {key}"),
        None => open.to_owned(),
    }
}

impl Origins {
    /// The origins of a setting: `https://HOST` or `http://HOST:PORT`, separated by commas, whose hosts are names of the listener as well; or
    /// `*` for every page there is. `key` is the setting.
    ///
    /// # Errors
    /// [`UnknownOrigin`] for the first that is none.
    pub fn parse(text: Option<&str>, key: &str) -> Result<Self, UnknownOrigin> {
        let key: Option<Arc<str>> = Some(key.into());
        let all = Self { page_key: key.clone(), name_key: key, ..Self::default() };
        let text = text.unwrap_or_default();
        if text.trim() == "*" {
            return Ok(Self { takes_all: true, ..all });
        }
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let listed = items.map(str::parse).collect::<Result<Vec<Origin>, _>>()?;
        let names = listed.iter().map(|origin| origin.host.clone()).collect();
        Ok(Self { listed, names, ..all })
    }

    /// No page but the listener's own, by those names, which programs use as well. `key` is the setting of the names.
    pub fn of_names(names: impl IntoIterator<Item = String>, key: &str) -> Self {
        let names = names.into_iter().map(String::into_boxed_str).collect();
        Self { names, names_count_for_all: true, name_key: Some(key.into()), ..Self::default() }
    }

    /// Lets a request pass that a program made, or a page that may.
    ///
    /// # Errors
    /// [`Foreign`].
    pub fn check(&self, asked: &Asked<'_, '_>) -> Result<(), Foreign> {
        let host = asked.host()?;
        let host = host.as_deref();
        let by_name = || match host {
            Some(host) if !asked.is_tls && !self.takes_all && !self.is_meant(host) => {
                Err(Foreign::Name { host: shown(host), key: self.name_key.clone() })
            }
            // A browser always sends a host.
            Some(_) | None => Ok(()),
        };
        let foreign =
            |origin: &str| Foreign::Page { origin: shown(origin), key: self.page_key.clone() };
        let origins = (asked.fields)("origin");
        if let [first, more @ ..] = &*origins {
            if self.takes_all {
                return Ok(());
            }
            let text = String::from_utf8_lossy(first);
            let page = text.parse::<Origin>().ok().filter(|_| more.is_empty());
            let page = page.ok_or_else(|| foreign(&text))?;
            if self.listed.iter().any(|listed| listed.is_same(&page)) {
                return Ok(());
            }
            let is_own = host.is_some_and(|host| page.is_at(host, asked.is_tls));
            return if is_own { by_name() } else { Err(foreign(&text)) };
        }
        match asked.text("sec-fetch-site") {
            Some("same-origin" | "none") => by_name(),
            // A link, which its person sees the answer of and the page that has it does not.
            Some(_) if asked.is_navigation() => by_name(),
            Some(_) if self.takes_all => Ok(()),
            Some(site) => Err(foreign(site)),
            // Over http:// a browser says of a read neither, and names itself as all of them do.
            None if asked.text("user-agent").is_some_and(|it| it.starts_with("Mozilla/")) => {
                by_name()
            }
            None if self.names_count_for_all => by_name(),
            None => Ok(()),
        }
    }

    /// The origin of a request that is no page of this host and may read the answer all the same.
    pub fn reader<'o>(&self, origin: &'o str) -> Option<&'o str> {
        let is_listed = |page: Origin| self.listed.iter().any(|listed| listed.is_same(&page));
        (self.takes_all || origin.parse().is_ok_and(is_listed)).then_some(origin)
    }

    /// Whether a page's request means this node by that host: an address, `localhost`, or a name of the configuration.
    fn is_meant(&self, host: &str) -> bool {
        let (name, _) = split(host);
        let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let is_address = match bracketed {
            Some(inner) => inner.parse::<net::Ipv6Addr>().is_ok(),
            None => name.parse::<net::Ipv4Addr>().is_ok(),
        };
        let is_named = |known: &str| known.eq_ignore_ascii_case(name);
        is_address || is_named("localhost") || self.names.iter().any(|known| is_named(known))
    }
}

impl<'a> Asked<'_, 'a> {
    /// The host that it asks, with its port if it names one; none of an old program that says none.
    fn host(&self) -> Result<Option<Cow<'a, str>>, Foreign> {
        let hosts = (self.fields)("host");
        if hosts.len() > 1 || (self.is_http_1_1 && hosts.is_empty()) {
            return Err(Foreign::Host);
        }
        // RFC 9112, section 3.2.2: the authority of the target counts.
        let Some(host) = self.authority.or(hosts.first().copied()) else { return Ok(None) };
        let is_of_host = |byte: &u8| byte.is_ascii_graphic() && !b"/@?#,\"<>\\^`{|}".contains(byte);
        // An empty one is of a target without a host.
        if !host.iter().all(is_of_host) {
            return Err(Foreign::Host);
        }
        Ok(Some(String::from_utf8_lossy(host)))
    }

    fn text(&self, name: &'static str) -> Option<&'a str> {
        (self.fields)(name).first().and_then(|value| str::from_utf8(value).ok())
    }

    /// Whether a person follows a link with it.
    fn is_navigation(&self) -> bool {
        matches!(self.method, "GET" | "HEAD")
            && self.text("sec-fetch-mode") == Some("navigate")
            && self.text("upgrade").is_none()
    }
}

/// The site of a page: a scheme, a host and maybe a port (RFC 6454, section 6.2).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: Box<str>,
    host: Box<str>,
    port: Option<u16>,
}

impl Origin {
    /// The port, also where it is the usual one of the scheme and not named.
    fn effective_port(&self) -> Option<u16> {
        self.port.or(match &*self.scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        self.scheme == other.scheme
            && self.host == other.host
            && self.effective_port() == other.effective_port()
    }

    /// Whether it is the site of `host`, by either scheme: some clients say `http` over TLS, or `https` without it.
    fn is_at(&self, host: &str, is_tls: bool) -> bool {
        let (name, port) = split(host);
        if !matches!(&*self.scheme, "http" | "https") || !self.host.eq_ignore_ascii_case(name) {
            return false;
        }
        match (self.port, port) {
            (None, None) => true,
            (_, Some(port)) => self.effective_port() == port.parse().ok(),
            (Some(port), None) => port == if is_tls { 443 } else { 80 },
        }
    }
}

impl FromStr for Origin {
    type Err = UnknownOrigin;

    fn from_str(text: &str) -> Result<Self, UnknownOrigin> {
        let unknown = || UnknownOrigin(shown(text));
        let (scheme, authority) = text.split_once("://").ok_or_else(unknown)?;
        let (host, port) = split(authority);
        let port = port.map(str::parse).transpose().map_err(|_| unknown())?;
        let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) => inner.parse::<net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(is_of_name),
        };
        let is_origin = !scheme.is_empty() && scheme.bytes().all(is_scheme) && is_host;
        let lower = |text: &str| text.to_ascii_lowercase().into_boxed_str();
        let origin = Self { scheme: lower(scheme), host: lower(host), port };
        is_origin.then_some(origin).ok_or_else(unknown)
    }
}

/// This is no origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no origin; one is a scheme and a host, such as https://dash.example or http://192.0.2.7:3000, and * is every page"
)]
pub struct UnknownOrigin(pub String);

/// A host and its port; of an address of IPv6 in brackets the port comes behind them.
fn split(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|it| it.is_ascii_digit()) => {
            (name, Some(port))
        }
        _ => (host, None),
    }
}

/// A text of a stranger as a line of a log or an answer may have it.
fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN_BYTES_MAX).flat_map(char::escape_debug).collect();
    shown.truncate(shown.floor_char_boundary(SHOWN_BYTES_MAX));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields<'a> = &'a [(&'a str, &'a str)];

    /// The status of the refusal, or 200.
    fn status(origins: &Origins, is_tls: bool, method: &str, fields: Fields<'_>) -> u16 {
        let of = |name: &'static str| {
            let own = fields.iter().filter(|(key, _)| *key == name);
            own.map(|(_, value)| value.as_bytes()).collect()
        };
        let asked = Asked { method, is_http_1_1: true, is_tls, authority: None, fields: &of };
        origins.check(&asked).map_or_else(|foreign| foreign.status(), |()| 200)
    }

    #[test]
    fn foreign_page_opens_nothing() {
        let origins = Origins::parse(Some("https://dash.example, http://wall.example:3000"), "k");
        let origins = origins.expect("origins");
        let upgrade = ("upgrade", "websocket");
        let rows: &[(&str, Fields<'_>, u16)] = &[
            // Programs.
            ("POST", &[("host", "node:9001")], 200),
            ("GET", &[("host", "node:9001"), upgrade], 200),
            ("GET", &[("host", "127.0.0.1:9001")], 200),
            // Own pages.
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "http://127.0.0.1:9001")], 200),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "https://127.0.0.1:9001")], 200),
            ("POST", &[("host", "LOCALHOST:9001"), ("origin", "http://localhost:9001")], 200),
            ("POST", &[("host", "[::1]:9001"), ("origin", "http://[::1]:9001")], 200),
            ("POST", &[("host", "127.0.0.1"), ("origin", "http://127.0.0.1:80")], 200),
            ("POST", &[("host", "127.0.0.1"), ("origin", "https://127.0.0.1")], 200),
            // Pages of other hosts and ports, whatever the method.
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "http://evil.example")], 403),
            ("POST", &[("host", "127.0.0.1:9001"), ("origin", "http://evil.example")], 403),
            ("OPTIONS", &[("host", "127.0.0.1:9001"), ("origin", "http://evil.example")], 403),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "http://127.0.0.1:8000")], 403),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "http://127.0.0.1")], 403),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "http://localhost:9001")], 403),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "http://127.0.0.1:9001.e.x")], 403),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "file://127.0.0.1:9001")], 403),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "null")], 403),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "")], 403),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "\u{e9}")], 403),
            (
                "GET",
                &[
                    ("host", "127.0.0.1:9001"),
                    ("origin", "http://127.0.0.1:9001"),
                    ("origin", "http://evil.example"),
                ],
                403,
            ),
            // Pages that are named.
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "https://dash.example")], 200),
            ("GET", &[("host", "x"), ("origin", "https://DASH.example:443")], 200),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "http://dash.example")], 403),
            ("GET", &[("host", "127.0.0.1:9001"), ("origin", "http://wall.example")], 403),
            // Names that lead here.
            ("GET", &[("host", "evil.example:1"), ("origin", "http://evil.example:1")], 421),
            ("GET", &[("host", "evil.example:1"), ("origin", "https://evil.example:1")], 421),
            ("POST", &[("host", "evil.example"), ("sec-fetch-site", "same-origin")], 421),
            ("GET", &[("host", "evil.example"), ("user-agent", "Mozilla/5.0 (X11)")], 421),
            ("GET", &[("host", "wall.example:1"), ("origin", "http://wall.example:1")], 200),
            // Browsers that say no origin.
            ("POST", &[("host", "localhost"), ("sec-fetch-site", "same-origin")], 200),
            ("GET", &[("host", "localhost"), ("sec-fetch-site", "none")], 200),
            ("GET", &[("host", "localhost"), ("sec-fetch-site", "cross-site")], 403),
            ("POST", &[("host", "localhost"), ("sec-fetch-site", "same-site")], 403),
            (
                "GET",
                &[
                    ("host", "localhost"),
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-mode", "navigate"),
                ],
                200,
            ),
            (
                "POST",
                &[
                    ("host", "localhost"),
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-mode", "navigate"),
                ],
                403,
            ),
            // RFC 9112, section 3.2.
            ("GET", &[], 400),
            ("GET", &[("host", "node"), ("host", "node")], 400),
            ("GET", &[("host", "node, evil.example")], 400),
            ("GET", &[("host", "node evil.example")], 400),
            ("GET", &[("host", "user@node")], 400),
        ];
        for (method, fields, expected) in rows {
            assert_eq!(status(&origins, false, method, fields), *expected, "{method} {fields:?}");
        }
    }

    #[test]
    fn over_tls_a_certificate_says_whose_a_name_is() {
        let rows: &[(Fields<'_>, u16)] = &[
            (&[("host", "node:7080"), ("origin", "https://node:7080")], 200),
            // websocket-client 0.57 says so over TLS.
            (&[("host", "node:7080"), ("origin", "http://node:7080")], 200),
            (&[("host", "node"), ("origin", "http://node")], 200),
            (&[("host", "node"), ("origin", "https://node:443")], 200),
            (&[("host", "node"), ("origin", "https://node:80")], 403),
            (&[("host", "node:7080"), ("origin", "https://node")], 403),
            (&[("host", "node:7080"), ("origin", "https://evil.example:7080")], 403),
        ];
        for (fields, expected) in rows {
            assert_eq!(status(&Origins::default(), true, "POST", fields), *expected, "{fields:?}");
        }
    }

    #[test]
    fn names_of_a_listener_without_a_login_count_for_programs_too() {
        let origins = Origins::of_names(["Edge.example".to_owned()], "web.plain_hosts");
        for (host, expected) in [
            ("127.0.0.1:7081", 200),
            ("192.0.2.7", 200),
            ("[::1]:7081", 200),
            ("[2001:db8::7]", 200),
            ("LOCALHOST:7081", 200),
            ("edge.example:7081", 200),
            ("edge.example", 200),
            ("evil.example:7081", 421),
            ("localhost.evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("edge.example.evil.example", 421),
            ("[evil.example]", 421),
            ("::1", 421),
            ("", 421),
            (":7081", 421),
            ("edge.example:port", 421),
        ] {
            assert_eq!(status(&origins, false, "GET", &[("host", host)]), expected, "{host}");
        }
    }

    #[test]
    fn every_page_may_ask_where_the_setting_says_so() {
        let origins = Origins::parse(Some(" * "), "k").expect("it is every page");
        let fields = [("host", "evil.example:1"), ("origin", "null")];
        assert_eq!(status(&origins, false, "GET", &fields), 200);
        assert_eq!(status(&origins, false, "GET", &[("origin", "null")]), 400, "a host it needs");
        assert_eq!(origins.reader("https://dash.example"), Some("https://dash.example"));
        for wrong in
            ["dash.example", "https://", "https://a/b", "https://a b", "https://a:x", "null"]
        {
            assert!(Origins::parse(Some(wrong), "k").is_err(), "{wrong}");
        }
        assert_eq!(Origins::parse(Some(" , "), "k"), Origins::parse(None, "k"));
    }

    #[test]
    fn refusals_name_the_way_out() {
        let fields = |name: &'static str| match name {
            "host" => vec![&b"evil.example:1"[..]],
            "origin" => vec![&b"http://evil.example:1"[..]],
            _ => Vec::new(),
        };
        let asked = Asked {
            method: "GET",
            is_http_1_1: true,
            is_tls: false,
            authority: None,
            fields: &fields,
        };
        let origins = Origins::parse(None, "vision.origins").expect("none is one");
        let text = origins.check(&asked).expect_err("it is foreign").to_string();
        assert!(text.contains("evil.example:1") && text.contains("vision.origins"), "{text}");
    }
}
