//! The content of `/.well-known/core` (RFC 6690).

use std::fmt::Write as _;

use super::ContentFormat;

/// One resource that a device may look for.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Link {
    /// Its path, without a slash before it.
    pub path: String,
    /// Its resource type (`rt`): words with blanks between them.
    pub resource_type: Option<String>,
    /// How to talk to it (`if`): words with blanks between them.
    pub interface: Option<String>,
    /// The formats that it can be read or written in (`ct`).
    pub content_formats: Vec<ContentFormat>,
    /// Whether it can be followed (`obs`).
    pub is_observable: bool,
}

/// The links that a query asks for, as `application/link-format`: all without a query; else those that each of its parts is true of.
/// A part is `attribute=value`, or `attribute=begin*`; of attributes with several words one must be it (section 4.1).
pub(super) fn links(links: &[Link], query: &str) -> String {
    let mut out = String::new();
    let wanted = |link: &&Link| query.split('&').all(|part| part.is_empty() || matches(link, part));
    for link in links.iter().filter(wanted) {
        let separator = if out.is_empty() { "" } else { "," };
        let _ = write!(out, "{separator}<{}>", target(&link.path));
        for (name, words) in [("rt", &link.resource_type), ("if", &link.interface)] {
            if let Some(words) = words {
                let _ = write!(out, ";{name}=\"{}\"", quoted(words));
            }
        }
        match &link.content_formats[..] {
            [] => {}
            [one] => {
                let _ = write!(out, ";ct={}", one.0);
            }
            several => {
                let numbers: Vec<String> = several.iter().map(|it| it.0.to_string()).collect();
                let _ = write!(out, ";ct=\"{}\"", numbers.join(" "));
            }
        }
        if link.is_observable {
            out.push_str(";obs");
        }
    }
    out
}

fn matches(link: &Link, part: &str) -> bool {
    let Some((name, wanted)) = part.split_once('=') else { return false };
    let is = |found: &str| match wanted.strip_suffix('*') {
        Some(begin) => found.starts_with(begin),
        None => found == wanted,
    };
    let has = |words: &Option<String>| words.as_ref().is_some_and(|it| it.split(' ').any(is));
    match name {
        "href" => is(&target(&link.path)),
        "rt" => has(&link.resource_type),
        "if" => has(&link.interface),
        "ct" => link.content_formats.iter().any(|format| is(&format.0.to_string())),
        _ => false,
    }
}

/// The path as a reference (RFC 3986): all bytes but the plainest are escaped.
fn target(path: &str) -> String {
    let mut out = String::from("/");
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' | b'$' => out.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

fn quoted(words: &str) -> String {
    words.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_listed_and_chosen() {
        let list = [
            Link {
                path: "plant/1/temperature".to_owned(),
                resource_type: Some("temperature-c outdoor".to_owned()),
                interface: Some("sensor".to_owned()),
                content_formats: vec![ContentFormat::TEXT, ContentFormat::SENML_JSON],
                is_observable: true,
            },
            Link {
                path: "späte schicht".to_owned(),
                content_formats: vec![ContentFormat::JSON],
                ..Link::default()
            },
        ];
        let first =
            "</plant/1/temperature>;rt=\"temperature-c outdoor\";if=\"sensor\";ct=\"0 110\";obs";
        let second = "</sp%C3%A4te%20schicht>;ct=50";
        let both = format!("{first},{second}");
        for (query, expected) in [
            ("", &both[..]),
            ("rt=outdoor", first),
            ("rt=temp*", first),
            ("rt=temp", ""),
            ("href=/plant/*", first),
            ("ct=50", second),
            ("ct=0&if=sensor", first),
            ("ct=50&if=sensor", ""),
            ("unknown=1", ""),
        ] {
            assert_eq!(links(&list, query), expected, "{query}");
        }
    }
}
