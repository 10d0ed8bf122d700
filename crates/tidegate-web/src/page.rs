//! The page: static files that are part of the program.

use axum::{
    Router,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};

/// A file of the page: its path, what it is, and its bytes.
struct File(&'static str, &'static str, &'static [u8]);

static FILES: [File; 7] = [
    File("/", "text/html; charset=utf-8", include_bytes!("../page/index.html")),
    File("/page.css", "text/css; charset=utf-8", include_bytes!("../page/page.css")),
    File("/page.js", "text/javascript; charset=utf-8", include_bytes!("../page/page.js")),
    File("/messages.js", "text/javascript; charset=utf-8", include_bytes!("../page/messages.js")),
    File("/nodes.js", "text/javascript; charset=utf-8", include_bytes!("../page/nodes.js")),
    File("/icon.svg", "image/svg+xml", include_bytes!("../page/icon.svg")),
    File(
        "/page.webmanifest",
        "application/manifest+json",
        include_bytes!("../page/page.webmanifest"),
    ),
];

/// Bytes of all files at most: the page is loaded over the same narrow lines as the pictures.
#[cfg(test)]
const PAGE_BYTES_MAX: usize = 64_000;

/// The files of the page, for everybody: they say nothing about the node.
pub fn page() -> Router {
    // The icon that browsers ask for without being told of one.
    let router =
        Router::new().route("/favicon.ico", get(|headers: HeaderMap| answer(headers, &FILES[5])));
    FILES.iter().fold(router, |router, file| {
        router.route(file.0, get(move |headers: HeaderMap| answer(headers, file)))
    })
}

async fn answer(headers: HeaderMap, &File(_, kind, bytes): &'static File) -> Response {
    // One program has one page, so its version and length tell pages apart.
    let tag = format!("\"{}-{}\"", env!("CARGO_PKG_VERSION"), fingerprint(bytes));
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let tag_value = HeaderValue::from_str(&tag).expect("it is of visible characters");
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::ETAG, tag_value),
    ];
    match known {
        Some(known) if known.split(',').any(|one| one.trim() == tag) => {
            (StatusCode::NOT_MODIFIED, headers).into_response()
        }
        _ => (headers, bytes).into_response(),
    }
}

/// FNV-1a of some bytes, as hexadecimal digits.
fn fingerprint(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_needs_nothing_from_elsewhere() {
        let bytes: usize = FILES.iter().map(|file| file.2.len()).sum();
        assert!(bytes <= PAGE_BYTES_MAX, "{bytes} bytes");
        for File(path, _, bytes) in &FILES {
            let text = str::from_utf8(bytes).expect("all of it is text");
            let links = text.split("https://").skip(1).chain(text.split("http://").skip(1));
            // The names of namespaces in pictures lead nowhere.
            let elsewhere: Vec<_> = links.filter(|rest| !rest.starts_with("www.w3.org/")).collect();
            assert!(elsewhere.is_empty(), "{path} names {elsewhere:?}");
            // The policy of the answers forbids both.
            assert!(!text.contains(" style=\"") && !text.contains(" onclick"), "{path}");
        }
    }

    #[tokio::test]
    async fn a_file_that_a_browser_has_is_not_sent_again() {
        let first = answer(HeaderMap::new(), &FILES[0]).await;
        assert_eq!(
            (first.status(), &first.headers()["content-type"]),
            (StatusCode::OK, &"text/html; charset=utf-8".parse().unwrap())
        );
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, first.headers()["etag"].clone());
        assert_eq!(answer(headers.clone(), &FILES[0]).await.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer(headers, &FILES[1]).await.status(), StatusCode::OK);
    }
}
