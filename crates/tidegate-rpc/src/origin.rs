//! Requests that a browser sends for a page of another site.
//!
//! A browser shows certificates, remembered passwords and, within its rules, cookies with whatever request a page makes. So requests that
//! change something, and WebSockets, count only if the page is ours: a browser says whose page it is in `Origin` or `Sec-Fetch-Site`, which
//! scripts cannot set. Other programs send neither.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderValue, Method, header, request::Parts};
use tidegate_api::ApiError;
use tidegate_message::Code;

/// The scheme by which pages of this node are reached at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// The text before the authority of an origin, and the one behind an authority that names the usual port.
    fn affixes(self) -> (&'static str, &'static str) {
        match self {
            Self::Http => ("http://", ":80"),
            Self::Https => ("https://", ":443"),
        }
    }
}

/// Lets a request pass that reads, or that comes from a page of this node, of that scheme, or from no page.
///
/// # Errors
/// [`Code::ACTION_DENIED`] for a request of another site's page.
pub fn check(parts: &Parts, scheme: Scheme) -> Result<(), ApiError> {
    let reads = matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    if reads && !parts.headers.contains_key(header::UPGRADE) {
        return Ok(());
    }
    let host = host(parts);
    let is_ours = match (text(&parts.headers, "origin"), text(&parts.headers, "sec-fetch-site")) {
        (Some(origin), _) => {
            let (before, usual_port) = scheme.affixes();
            let page = origin.strip_prefix(before);
            page.zip(host).is_some_and(|(page, host)| is_same(page, &host, usual_port))
        }
        (None, Some(site)) => matches!(site, "same-origin" | "none"),
        // A header that is no text is no browser's.
        (None, None) => !parts.headers.contains_key(header::ORIGIN),
    };
    if is_ours {
        return Ok(());
    }
    let text = "the request comes from a page of another site; open this node's own page, or send it from a program";
    Err(ApiError::new(Code::ACTION_DENIED, text))
}

/// The name and port by which a request asks, with a mark for bytes that are no text; none of a program that says none.
pub fn host(parts: &Parts) -> Option<Cow<'_, str>> {
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let host = authority.or_else(|| parts.headers.get(header::HOST).map(HeaderValue::as_bytes));
    host.map(String::from_utf8_lossy)
}

/// Whether a browser's request means this node by that host: an address, `localhost`, or one of the names `hosts`, if there are any. A
/// name of another site may lead here as well, and a page of that site would then count as one of ours.
pub fn is_meant(host: &str, hosts: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        // Of an address of IPv6 in brackets the port comes behind them.
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_address = match bracketed {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.parse::<std::net::Ipv4Addr>().is_ok(),
    };
    let is_named = |known: &str| known.eq_ignore_ascii_case(name);
    is_address || is_named("localhost") || hosts.iter().any(|known| is_named(known))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Whether two authorities are one; the usual port is the one that none stands for.
fn is_same(one: &str, other: &str, usual_port: &str) -> bool {
    let bare = |text: &str| text.strip_suffix(usual_port).unwrap_or(text).to_ascii_lowercase();
    bare(one) == bare(other)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[test]
    fn another_sites_page_changes_nothing_and_opens_no_websocket() {
        type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], bool);
        let upgrade = ("upgrade", "websocket");
        let rows: &[Row<'_>] = &[
            ("GET", "/cameras", &[("origin", "https://evil.example")], true),
            ("POST", "/v1/login", &[], true),
            ("POST", "/v1/login", &[("origin", "https://node:7080")], true),
            ("POST", "/v1/login", &[("origin", "https://NODE:7080")], true),
            ("POST", "/v1/login", &[("origin", "http://node:7080")], false),
            ("POST", "/v1/login", &[("origin", "https://node")], false),
            ("POST", "/v1/login", &[("origin", "https://node:7080.evil.example")], false),
            ("POST", "/v1/login", &[("origin", "null")], false),
            ("POST", "/v1/login", &[("origin", "\u{e9}")], false),
            ("POST", "/v1/login", &[("sec-fetch-site", "same-origin")], true),
            ("POST", "/v1/login", &[("sec-fetch-site", "same-site")], false),
            ("DELETE", "/v1/models/x", &[("sec-fetch-site", "cross-site")], false),
            ("GET", "/cameras/a/frames", &[upgrade, ("origin", "https://evil.example")], false),
            ("GET", "/cameras/a/frames", &[upgrade, ("origin", "https://node:7080")], true),
            ("GET", "/cameras/a/frames", &[upgrade], true),
            // HTTP/2: the host is in the address.
            ("POST", "https://node:7080/v1/login", &[("origin", "https://node:7080")], true),
            ("POST", "https://other:7080/v1/login", &[("origin", "https://node:7080")], false),
        ];
        for (method, uri, headers, expected) in rows {
            let mut request = Request::builder().method(*method).uri(*uri);
            for (name, value) in *headers {
                request = request.header(*name, value.as_bytes());
            }
            if uri.starts_with('/') {
                request = request.header("host", "node:7080");
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let checked = check(&parts, Scheme::Https);
            assert_eq!(checked.is_ok(), *expected, "{method} {uri} {headers:?}");
        }
    }

    #[test]
    fn a_host_is_an_address_or_a_name_that_is_known() {
        let hosts = ["Edge.example".to_owned()];
        for (host, expected) in [
            ("127.0.0.1:7081", true),
            ("192.0.2.7", true),
            ("[::1]:7081", true),
            ("[2001:db8::7]", true),
            ("localhost:7081", true),
            ("LOCALHOST", true),
            ("edge.example:7081", true),
            ("edge.example", true),
            ("evil.example:7081", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("edge.example.evil.example", false),
            ("[evil.example]", false),
            ("::1", false),
            ("", false),
            (":7081", false),
            ("edge.example:port", false),
        ] {
            assert_eq!(is_meant(host, &hosts), expected, "{host}");
        }
        assert!(!is_meant("edge.example", &[]));
    }

    #[test]
    fn a_page_is_ours_by_its_scheme_and_authority() {
        for (scheme, host, origin, expected) in [
            (Scheme::Http, "node:8008", "http://node:8008", true),
            (Scheme::Http, "node", "http://node:80", true),
            (Scheme::Http, "node:443", "http://node", false),
            (Scheme::Http, "node:8008", "https://node:8008", false),
            (Scheme::Https, "node", "https://node:443", true),
            (Scheme::Https, "node", "https://node:80", false),
        ] {
            let request = Request::post("/").header("host", host).header("origin", origin);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(check(&parts, scheme).is_ok(), expected, "{scheme:?} {host} {origin}");
        }
    }
}
