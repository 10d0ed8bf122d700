//! Where a broker is and how it is reached, as people write it.
//!
//! ```text
//!  [SCHEME://] HOST [:PORT] [/PATH]     mqtt 1883 · mqtts 8883 · ws 8083 · wss 8084, at /mqtt
//! ```
//!
//! Always true: a [`BrokerUrl`] names a host that can be asked for and, if any, a port and a path that can be; text and value
//! are each other's.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use tidegate_message::host::Authority;

/// Where MQTT over WebSocket is, unless a URL says otherwise.
pub const PATH: &str = "/mqtt";
/// Longest name of a host (RFC 1035 section 2.3.4, without the root's dot).
pub const HOST_BYTES_MAX: usize = 253;
/// Longest path: the request that it stands in has a bound as well.
pub const PATH_BYTES_MAX: usize = 2048;
const _: () =
    assert!(PATH_BYTES_MAX + HOST_BYTES_MAX < tidegate_wire::websocket::REQUEST_BYTES_MAX / 2);

/// A broker as it is named: by a URL, or by its host alone.
///
/// ```
/// let url: tidegate_load::url::BrokerUrl = "wss://broker.example".parse()?;
/// let endpoint = url.endpoint(None, true)?;
/// assert_eq!((endpoint.port, endpoint.websocket.as_deref()), (8084, Some("/mqtt")));
/// # Ok::<(), tidegate_load::url::UrlError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerUrl {
    scheme: Option<Scheme>,
    /// Without brackets.
    host: String,
    port: Option<u16>,
    path: Option<String>,
}

/// How a broker is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// TCP.
    Mqtt,
    /// TLS.
    Mqtts,
    /// WebSocket.
    Ws,
    /// WebSocket in TLS.
    Wss,
}

/// The parts of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The path of a WebSocket; none without one.
    pub websocket: Option<String>,
}

impl BrokerUrl {
    /// Where to connect. `port` was named apart from the URL; `trusts` says whether there are authorities for TLS, which a host
    /// without a scheme is then reached through.
    ///
    /// # Errors
    /// `TwoPorts`, `NobodyToTrust` and `NoTls` of [`UrlError`].
    pub fn endpoint(&self, port: Option<u16>, trusts: bool) -> Result<Endpoint, UrlError> {
        let scheme = self.scheme.unwrap_or(if trusts { Scheme::Mqtts } else { Scheme::Mqtt });
        match (scheme.is_tls(), trusts) {
            (true, false) => return Err(UrlError::NobodyToTrust { scheme }),
            (false, true) => return Err(UrlError::NoTls { scheme, other: scheme.with_tls() }),
            _ => {}
        }
        let port = match (self.port, port) {
            (Some(port), Some(other)) if port != other => {
                return Err(UrlError::TwoPorts { port, other });
            }
            (port, other) => port.or(other).unwrap_or(scheme.port()),
        };
        let path = || self.path.clone().unwrap_or(PATH.to_owned());
        Ok(Endpoint { host: self.host.clone(), port, websocket: scheme.is_websocket().then(path) })
    }
}

impl Scheme {
    const ALL: [Self; 4] = [Self::Mqtt, Self::Mqtts, Self::Ws, Self::Wss];

    fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Mqtts => "mqtts",
            Self::Ws => "ws",
            Self::Wss => "wss",
        }
    }

    /// The port that brokers have for it by custom.
    fn port(self) -> u16 {
        match self {
            Self::Mqtt => 1883,
            Self::Mqtts => 8883,
            Self::Ws => 8083,
            Self::Wss => 8084,
        }
    }

    fn is_tls(self) -> bool {
        matches!(self, Self::Mqtts | Self::Wss)
    }

    fn with_tls(self) -> Self {
        if self.is_websocket() { Self::Wss } else { Self::Mqtts }
    }

    fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.name())
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scheme) = self.scheme {
            write!(f, "{scheme}")?;
        }
        match self.port {
            Some(port) => write!(f, "{}", Authority(&self.host, port))?,
            None if self.scheme.is_some() && self.host.contains(':') => {
                write!(f, "[{}]", self.host)?;
            }
            None => f.write_str(&self.host)?,
        }
        f.write_str(self.path.as_deref().unwrap_or_default())
    }
}

impl FromStr for BrokerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = match text.split_once("://") {
            None => (None, text),
            Some((name, rest)) => {
                // The case of a scheme means nothing (RFC 3986 section 3.1).
                let known = |scheme: &Scheme| name.eq_ignore_ascii_case(scheme.name());
                let scheme = Scheme::ALL.into_iter().find(known);
                (Some(scheme.ok_or_else(|| UrlError::Scheme { name: name.to_owned() })?), rest)
            }
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(UrlError::User);
        }
        let (host, port) = host_and_port(authority, scheme.is_some())?;
        Ok(Self { scheme, host, port, path: checked_path(scheme, path)? })
    }
}

/// A host, without brackets, and a port if there is one; a bare IPv6 address is a host outside of a URL alone.
pub(crate) fn host_and_port(text: &str, in_url: bool) -> Result<(String, Option<u16>), UrlError> {
    let wrong = || UrlError::Host { host: text.to_owned() };
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
        if !is_ipv6(host) {
            return Err(wrong());
        }
        match rest.strip_prefix(':') {
            None if rest.is_empty() => (host, None),
            None => return Err(wrong()),
            Some(port) => (host, Some(port)),
        }
    } else if !in_url && is_ipv6(text) {
        (text, None)
    } else {
        text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
    };
    let sound = |byte: u8| byte.is_ascii_graphic() && !b"[]<>\"\\^`{|}".contains(&byte);
    if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.bytes().all(sound) {
        return Err(wrong());
    }
    Ok((host.to_owned(), port.map(checked_port).transpose()?))
}

/// An address, with a zone perhaps: `fe80::1%eth0`.
fn is_ipv6(text: &str) -> bool {
    text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

fn checked_port(text: &str) -> Result<u16, UrlError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()); // `parse` would take a sign
    let port = text.parse().ok().filter(|&port| digits && port > 0);
    port.ok_or_else(|| UrlError::Port { port: text.to_owned() })
}

fn checked_path(scheme: Option<Scheme>, path: &str) -> Result<Option<String>, UrlError> {
    if !scheme.is_some_and(Scheme::is_websocket) {
        return match path {
            "" | "/" => Ok(None),
            _ => Err(UrlError::PathWithoutWebSocket { path: path.to_owned() }),
        };
    }
    if path.is_empty() {
        return Ok(None);
    }
    // A WebSocket's URL has no fragment (RFC 6455 section 3).
    let sound = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    if !path.starts_with('/') || path.len() > PATH_BYTES_MAX || !path.bytes().all(sound) {
        return Err(UrlError::Path { path: path.to_owned() });
    }
    Ok(Some(path.to_owned()))
}

/// Reason why the name of a broker cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// No scheme of MQTT.
    #[error(
        "{name:?} is not a URL scheme of a broker; write mqtt://, mqtts://, ws://, wss://, or the host alone"
    )]
    Scheme {
        /// The text there.
        name: String,
    },
    /// A user in the URL, which would show in lists of processes and in reports.
    #[error("there is a user in the URL; give it with --username and --password-file")]
    User,
    /// No host, or one that cannot be.
    #[error(
        "{host:?} is not a host; write a name of at most {HOST_BYTES_MAX} bytes without blanks or an address, and IPv6 in \
         brackets, such as [::1]:1883"
    )]
    Host {
        /// The text there.
        host: String,
    },
    /// No port.
    #[error("{port:?} is not a port; write 1 to 65535, or leave it out for the usual one")]
    Port {
        /// The text there.
        port: String,
    },
    /// A path that cannot stand in a request.
    #[error(
        "{path:?} is not a path of a WebSocket; begin it with /, without blanks and #, and keep it within {PATH_BYTES_MAX} bytes"
    )]
    Path {
        /// The text there.
        path: String,
    },
    /// A path where there is none.
    #[error("only WebSocket has a path such as {path:?}; leave it out, or write ws:// or wss://")]
    PathWithoutWebSocket {
        /// The text there.
        path: String,
    },
    /// The URL has another port than the one that was named apart from it.
    #[error("the URL names port {port}, --port names {other}; leave one of them out")]
    TwoPorts {
        /// In the URL.
        port: u16,
        /// Beside it.
        other: u16,
    },
    /// TLS without certificates to trust.
    #[error("{scheme} needs a trusted authority; name its certificates with --cafile FILE")]
    NobodyToTrust {
        /// Which scheme.
        scheme: Scheme,
    },
    /// Certificates to trust without TLS.
    #[error("{scheme} is without TLS, --cafile is for TLS; write {other}, or leave --cafile out")]
    NoTls {
        /// Which scheme.
        scheme: Scheme,
        /// The one with TLS.
        other: Scheme,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str, trusts: bool) -> Result<(String, u16, Option<String>), UrlError> {
        let endpoint = text.parse::<BrokerUrl>()?.endpoint(None, trusts)?;
        Ok((endpoint.host, endpoint.port, endpoint.websocket))
    }

    #[test]
    fn names_come_to_endpoints() {
        for (text, trusts, host, port, websocket) in [
            ("broker", false, "broker", 1883, None),
            ("broker", true, "broker", 8883, None), // --cafile alone asks for TLS
            ("broker:1", true, "broker", 1, None),
            ("127.0.0.1:1884", false, "127.0.0.1", 1884, None),
            ("::1", false, "::1", 1883, None),
            ("fe80::1%eth0", false, "fe80::1%eth0", 1883, None),
            ("[::1]:1884", false, "::1", 1884, None),
            ("[::1]", false, "::1", 1883, None),
            ("mqtt://broker", false, "broker", 1883, None),
            ("mqtt://broker/", false, "broker", 1883, None),
            ("mqtts://broker", true, "broker", 8883, None),
            ("MQTTS://broker:65535", true, "broker", 65535, None),
            ("ws://broker", false, "broker", 8083, Some("/mqtt")),
            ("ws://broker/", false, "broker", 8083, Some("/")),
            ("ws://[::1]:80/a/b?c=d", false, "::1", 80, Some("/a/b?c=d")),
            ("wss://broker_1.example/mqtt", true, "broker_1.example", 8084, Some("/mqtt")),
        ] {
            let expected = Ok((host.to_owned(), port, websocket.map(str::to_owned)));
            assert_eq!(endpoint(text, trusts), expected, "{text}");
        }
    }

    #[test]
    fn wrong_names_are_told_with_a_way_out() {
        let long = format!("ws://b/{}", "a".repeat(PATH_BYTES_MAX));
        for (text, trusts, thing, way_out) in [
            ("http://broker", false, "\"http\" is not a URL scheme", "write mqtt://"),
            ("://broker", false, "\"\" is not a URL scheme", "the host alone"),
            ("mqtt://me:secret@broker", false, "a user in the URL", "--username"),
            ("", false, "\"\" is not a host", "write a name"),
            ("mqtt://", false, "\"\" is not a host", "write a name"),
            ("mqtt://:1883", false, "\":1883\" is not a host", "write a name"),
            ("a b", false, "\"a b\" is not a host", "without blanks"),
            (&"a".repeat(254), false, "is not a host", "at most 253 bytes"),
            ("[::1", false, "\"[::1\" is not a host", "IPv6 in brackets"),
            ("[::1]1883", false, "\"[::1]1883\" is not a host", "[::1]:1883"),
            ("[broker]:1883", false, "is not a host", "IPv6 in brackets"),
            ("broker:", false, "\"\" is not a port", "1 to 65535"),
            ("broker:0", false, "\"0\" is not a port", "1 to 65535"),
            ("broker:65536", false, "\"65536\" is not a port", "1 to 65535"),
            ("broker:+1", false, "\"+1\" is not a port", "leave it out"),
            ("mqtt://::1", false, "\"::1\" is not a host", "IPv6 in brackets"),
            ("broker/mqtt", false, "\"/mqtt\"", "write ws://"),
            ("mqtt://broker/mqtt", false, "\"/mqtt\"", "leave it out"),
            ("ws://broker?a", false, "\"?a\" is not a path", "begin it with /"),
            ("ws://broker/a#b", false, "\"/a#b\" is not a path", "without blanks and #"),
            ("ws://broker/a b", false, "\"/a b\" is not a path", "without blanks and #"),
            (&*long, false, "is not a path", "within 2048 bytes"),
            ("mqtts://broker", false, "mqtts:// needs a trusted authority", "--cafile FILE"),
            ("wss://broker", false, "wss:// needs a trusted authority", "--cafile FILE"),
            ("mqtt://broker", true, "mqtt:// is without TLS", "write mqtts://"),
            ("ws://broker", true, "ws:// is without TLS", "write wss://"),
        ] {
            let error = endpoint(text, trusts).expect_err(text).to_string();
            assert!(error.contains(thing) && error.contains(way_out), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_port_is_named_once() {
        let of = |text: &str, port| text.parse::<BrokerUrl>().unwrap().endpoint(port, false);
        assert_eq!(of("ws://broker", Some(9001)).unwrap().port, 9001);
        assert_eq!(of("broker:9001", Some(9001)).unwrap().port, 9001);
        let error = of("broker:9001", Some(9002)).unwrap_err();
        assert_eq!(error, UrlError::TwoPorts { port: 9001, other: 9002 });
    }

    #[test]
    fn text_and_value_are_each_others() {
        for text in ["::1", "[::1]:1883", "b", "b:1", "mqtt://[::1]", "ws://b/", "wss://b:1/c?d"] {
            assert_eq!(text.parse::<BrokerUrl>().unwrap().to_string(), text);
        }
    }
}
