//! Texts of a configuration that may hold a secret, such as an address with a password in it.
//!
//! Always true: neither `Debug` nor `Display` shows a user, a password or a value that may be one; more is hidden rather than less.

use std::fmt;

use zeroize::Zeroizing;

/// Stands in a message for a secret.
pub const HIDDEN: &str = "***";

/// Names of values in an address that say what is shown or where it is kept; the value of any other name may be a secret, and cameras
/// have many names for those.
const HARMLESS: [&str; 28] = [
    "application_name",
    "audio",
    "bucket",
    "cam",
    "camera",
    "ch",
    "channel",
    "codec",
    "connect_timeout",
    "db",
    "dbname",
    "fps",
    "loop",
    "multicast",
    "org",
    "precision",
    "profile",
    "proto",
    "resolution",
    "size",
    "sslmode",
    "stream",
    "streamtype",
    "substream",
    "subtype",
    "transportmode",
    "unicast",
    "video",
];

/// The kinds of sources of frames that are no addresses: a path or a word follows the colon.
pub const PLACES: [&str; 6] = ["folder", "watch", "mjpeg", "video", "v4l2", "scene"];

/// A text that may hold a secret: an address, or a program with its arguments. It is printed without what may be secret, and its memory
/// is cleared when it is dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Confidential(Zeroizing<String>);

impl Confidential {
    /// The text itself, for the part of the program that it is for.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Confidential {
    fn from(text: &str) -> Self {
        Self(Zeroizing::new(text.to_owned()))
    }
}

impl fmt::Display for Confidential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.0))
    }
}

impl fmt::Debug for Confidential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Confidential({self})")
    }
}

/// A text of any form without what may be secret in it.
fn shown(text: &str) -> String {
    let begins = text.split(char::is_whitespace).next().unwrap_or_default();
    // An address is one however many blanks its password has.
    if begins.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['=', '-'])) {
        return without_secrets(text);
    }
    let kind = begins.split_once(':').map(|(kind, _)| kind);
    match kind {
        _ if text.starts_with(['/', '.']) => text.to_owned(),
        Some(kind) if PLACES.contains(&kind) => text.to_owned(),
        Some(_) if begins.len() == text.len() => hosts_alone(text),
        _ => words_alone(text),
    }
}

/// `HOST:PORT`, several with commas between, without what stands before an at sign, or in the place of a port and is none.
fn hosts_alone(text: &str) -> String {
    let (login, hosts) = match text.rfind('@') {
        Some(at) => (format!("{HIDDEN}@"), &text[at + 1..]),
        None => (String::new(), text),
    };
    let end = hosts.find('/').unwrap_or(hosts.len());
    let (hosts, rest) = hosts.split_at(end);
    login + &ports_alone(hosts) + &parts_shown(rest)
}

fn ports_alone(hosts: &str) -> String {
    let one = |host: &str| match host.rsplit_once(':') {
        Some((name, port)) if !port.bytes().all(|byte| byte.is_ascii_digit()) => {
            // An IPv6 address in brackets ends in no port.
            if host.ends_with(']') { host.to_owned() } else { format!("{name}:{HIDDEN}") }
        }
        _ => host.to_owned(),
    };
    hosts.split(',').map(one).collect::<Vec<_>>().join(",")
}

/// Words such as those of a command, or `name=value` as libpq takes them: from the first secret on nothing is shown, because a secret
/// in quotes may have blanks.
fn words_alone(text: &str) -> String {
    let mut shown = String::new();
    let mut is_hidden = false;
    for part in text.split_inclusive(char::is_whitespace) {
        let word = part.trim_end();
        let (name, value) =
            word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let is_secret = names_secret(name) && !name.contains("://");
        let one = match value {
            _ if is_hidden => HIDDEN.to_owned(),
            Some(_) if is_secret => format!("{name}={HIDDEN}"),
            _ if word.contains("://") => without_secrets(word),
            _ if word.contains('@') && !word.starts_with(['/', '.']) => hosts_alone(word),
            _ => word.to_owned(),
        };
        // The value of `--token` is the next word.
        is_hidden |= is_secret && (value.is_some() || name.starts_with('-'));
        shown.push_str(&one);
        shown.push_str(&part[word.len()..]);
    }
    shown
}

/// A text that is or was to be an address, for messages: without a user, a password, or a value of a name that is not known to be
/// harmless. A text that is no address, such as `folder:a@b?fps=5`, is for the caller to keep away from here.
pub fn without_secrets(text: &str) -> String {
    let (scheme, rest) = text.split_once(':').map_or(("", text), |(scheme, rest)| (scheme, rest));
    let slashes = rest.len() - rest.trim_start_matches('/').len();
    let (slashes, rest) = rest.split_at(slashes);
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // Up to the last at sign, since a password may have any character; a path may have one, too, and a colon tells them apart.
    let last = rest.rfind('@').filter(|&at| at < authority || rest[..at].contains(':'));
    let at = last.or_else(|| rest[..authority].rfind('@'));
    let (login, rest) = match at {
        Some(at) => ("***@", &rest[at + 1..]),
        None => ("", rest),
    };
    let mut shown = String::new();
    if !scheme.is_empty() || text.starts_with(':') {
        shown = format!("{scheme}:");
    }
    shown.push_str(slashes);
    shown.push_str(login);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (hosts, parts) = rest.split_at(end);
    let hosts = value_shown(hosts);
    // Behind `scheme://` is a host; a text without the slashes may be anything.
    shown.push_str(&if slashes.is_empty() { hosts } else { ports_alone(&hosts) });
    shown.push_str(&parts_shown(parts));
    shown
}

/// Each part of a path and a query with what stands before it. Behind a hidden value only harmless ones are shown: a secret may hold
/// what parts others.
fn parts_shown(text: &str) -> String {
    let mut shown = String::new();
    let mut parts = text;
    let mut is_query = false;
    let mut is_hidden = false;
    while let Some(separator) = parts.chars().next() {
        is_query |= separator == '?';
        shown.push(separator);
        parts = &parts[separator.len_utf8()..];
        // In a query a slash, a question mark and others are parts of a value (RFC 3986, section 3.4).
        let ends: &[char] = if is_query { &['&'] } else { &['/', '?', '&', ';', '#'] };
        let end = parts.find(ends).unwrap_or(parts.len());
        let (part, behind) = parts.split_at(end);
        let one = value_shown(part);
        let is_known = part.is_empty() || (part.contains('=') && one == part);
        shown.push_str(if is_hidden && !is_known { HIDDEN } else { &one });
        is_hidden |= one != part;
        parts = behind;
    }
    shown
}

/// `name=value` with its value hidden, unless the name is harmless and the value is short and plain.
fn value_shown(part: &str) -> String {
    let Some((name, value)) = part.split_once('=') else { return part.to_owned() };
    // `user=admin_password=secret_channel=1` is one part to us, all of which is hidden.
    let is_plain = value.len() <= 16
        && value.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-' || c == '_');
    let is_harmless = HARMLESS.iter().any(|known| name.eq_ignore_ascii_case(known));
    if is_harmless && is_plain { part.to_owned() } else { format!("{name}={HIDDEN}") }
}

/// Whether it is a name that programs and cameras have for secrets.
pub fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pas", "pwd", "psw", "secret", "token", "auth"].iter().any(|of| name.contains(of))
        || name == "pw"
        || name.ends_with("key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_shows_a_secret() {
        for text in [
            "postgresql://u5er:s3cret@db/site",
            "postgresql://u5er:s3/cret@db/site",
            "postgresql://u5er:a b s3cret@db/site",
            "postgresql:///site?host=db&user=u5er&password=s3cret",
            "postgresql:///site?password=a/s3cret",
            "postgresql:///site?password=a&s3cret",
            "postgresql:///site?password=a#s3cret",
            "postgresql:///site?sslmode=require&password=a?s3cret&dbname=x",
            "postgresql://db:s3cret/site",
            "host=db password=s3cret",
            "host=db password='a s3cret' user=u5er",
            "http://db:8086/write?u=u5er&p=s3cret",
            "http://db:8086/write?db=site&p=a;s3cret",
            "kafka://u5er:s3cret@one:9092",
            "kafka://u5er:s3cret@one:9092,u5er:s3cret@two:9092",
            "kafka://one:s3cret,two:9092",
            "u5er:s3cret@broker:1883",
            "s3cret@broker:1883",
            "u5er:/s3cret@broker:1883",
            "broker:s3cret",
            "look --token s3cret --model a",
            "look --token 'a s3cret'",
            "look --api-key=s3cret",
            "look --url http://u5er:s3cret@cam/1 --model a",
            "look --url=http://cam/1?p=s3cret",
            "rtsp:u5er:s3cret@cam/1",
            "rtsp://cam/user=u5er&password=a/s3cret",
            "rtsp://u5er:s3cret@cam/1",
            "https://id.example/keys?access=s3cret",
        ] {
            let text = Confidential::from(text);
            for shown in [text.to_string(), format!("{text:?}"), format!("{:?}", Some(&text))] {
                assert!(!shown.contains("s3cret"), "{}: {shown}", text.expose());
                assert!(!shown.contains("u5er") || text.expose().starts_with("host="), "{shown}");
                assert!(shown.contains(HIDDEN), "{shown}");
            }
        }
    }

    #[test]
    fn a_text_without_a_secret_is_shown_whole() {
        for text in [
            "",
            "postgresql://db/site?sslmode=require",
            "host=db dbname=site",
            "http://db:8086/api/v2/write?org=home&bucket=site",
            "kafka://one:9092,two:9092",
            "broker.example:1883",
            "[::1]:7443",
            "folder:/srv/my clips/a@b",
            "folder:a@b?fps=5",
            "/srv/clips/a@b:c",
            "scene:street?fps=2",
            "rtsp://cam:8554/live/ch1?channel=1&subtype=0",
            "s3://bucket/prefix",
            "python3 look.py --model 'a b' --threads 4",
        ] {
            assert_eq!(Confidential::from(text).to_string(), text);
        }
        for (text, expected) in [
            (
                "postgresql://me:x@db/site?sslmode=require",
                "postgresql://***@db/site?sslmode=require",
            ),
            ("kafka://me:x@one:9092,two:9092", "kafka://***@one:9092,two:9092"),
            ("me:x@broker:1883", "***@broker:1883"),
            ("look --token x --model a", "look --token *** *** ***"),
            ("http://me@cam/a@b", "http://***@cam/a@b"),
            ("rtsp://me:x@cam/1?channel=2&k=v", "rtsp://***@cam/1?channel=2&k=***"),
        ] {
            assert_eq!(Confidential::from(text).to_string(), expected);
        }
    }
}
