//! Requests that a browser sends for a page of another site.
//!
//! A browser shows certificates, remembered passwords and, within its rules, cookies with whatever request a page makes. So requests that
//! change something, and WebSockets, count only if the page is ours: a browser says whose page it is in `Origin` or `Sec-Fetch-Site`, which
//! scripts cannot set. Other programs send neither.

use axum::http::{HeaderMap, Method, header, request::Parts};
use tidegate_api::ApiError;
use tidegate_message::Code;

/// Lets a request pass that reads, or that comes from a page of this node or from no page.
pub(super) fn check(parts: &Parts) -> Result<(), ApiError> {
    let reads = matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    if reads && !parts.headers.contains_key(header::UPGRADE) {
        return Ok(());
    }
    let host = parts.uri.authority().map(|authority| authority.as_str());
    let host = host.or_else(|| text(&parts.headers, "host"));
    let is_ours = match (text(&parts.headers, "origin"), text(&parts.headers, "sec-fetch-site")) {
        (Some(origin), _) => {
            let page = origin.strip_prefix("https://");
            page.zip(host).is_some_and(|(page, host)| is_same(page, host))
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

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Whether two authorities are one; 443 is the port that none stands for.
fn is_same(one: &str, other: &str) -> bool {
    let bare = |text: &str| text.strip_suffix(":443").unwrap_or(text).to_ascii_lowercase();
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
            assert_eq!(check(&parts).is_ok(), *expected, "{method} {uri} {headers:?}");
        }
    }
}
