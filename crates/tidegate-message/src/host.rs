//! Hosts and ports as people write them: `core.example:7443`, `[fe80::1%eth0]:7443`.

use std::{fmt, net::Ipv6Addr};

/// A host without the brackets in which an IPv6 address stands.
pub fn without_brackets(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// A host, without the brackets of an IPv6 address, and a port from `HOST:PORT`; none where one of them is missing, the port is 0, or what
/// stands before it is no host: a user or a password there would be looked up by name, and be printed.
pub fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = without_brackets(host);
    let port = port.parse().ok().filter(|port| *port > 0)?;
    is_host(host).then_some((host, port))
}

/// Whether it is an IPv6 address, with a scope or without, or may be an IPv4 address or a name.
fn is_host(host: &str) -> bool {
    if host.contains(':') {
        let address = host.split_once('%').map_or(host, |(address, _)| address);
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let is_none = |c: char| c.is_control() || c.is_whitespace() || "@/\\?#,;=&%".contains(c);
    !host.is_empty() && !host.contains(is_none)
}

/// A host and a port as a URL has them: an IPv6 address in brackets.
#[derive(Clone, Copy, Debug)]
pub struct Authority<'a>(pub &'a str, pub u16);

impl fmt::Display for Authority<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(host, port) = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_read_and_written() {
        for (text, expected) in [
            ("core.example:7443", Some(("core.example", 7443))),
            ("127.0.0.1:1", Some(("127.0.0.1", 1))),
            ("[fe80::1%eth0]:1883", Some(("fe80::1%eth0", 1883))),
            ("core.example", None),
            ("core.example:", None),
            ("core.example:0", None),
            ("core.example:65536", None),
            (":1", None),
            ("[]:1", None),
            // A user and a password are no part of it.
            ("user@core.example:1", None),
            ("user:secret@core.example:1", None),
            ("user:secret:1", None),
            ("core.example/x:1", None),
        ] {
            assert_eq!(host_and_port(text), expected, "{text}");
            if let Some((host, port)) = expected {
                assert_eq!(Authority(host, port).to_string(), text);
            }
        }
    }
}
