//! Logging in at a camera: Basic and Digest (RFC 7617, RFC 7616 and, for older cameras, RFC 2617).

use base64::Engine as _;
use md5::Md5;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::address::Login;

/// The login that a camera asks for before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// The password as it is.
    Basic,
    /// A digest of it.
    Digest {
        realm: String,
        nonce: String,
        opaque: Option<String>,
        algorithm: Algorithm,
        /// The challenge names the algorithm: some servers want it back, also where it is the usual one.
        is_named: bool,
        qop: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Algorithm {
    Md5,
    Sha256,
}

impl Challenge {
    /// The strongest of what the `WWW-Authenticate` lines of an answer offer; `None` if we know none of them.
    pub(super) fn choose<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Self> {
        let rank = |challenge: &Self| match challenge {
            Self::Basic => 0,
            Self::Digest { algorithm: Algorithm::Md5, .. } => 1,
            Self::Digest { algorithm: Algorithm::Sha256, .. } => 2,
        };
        lines.flat_map(challenges).filter_map(Self::parse).max_by_key(rank)
    }

    fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let (scheme, rest) = line.split_once(BLANKS).unwrap_or((line, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("digest") {
            return None;
        }
        let value = |name: &str| {
            parameters(rest)
                .find(|(known, _)| known.eq_ignore_ascii_case(name))
                .map(|(_, value)| value)
        };
        let algorithm = match value("algorithm") {
            None => Algorithm::Md5,
            Some(name) if name.eq_ignore_ascii_case("md5") => Algorithm::Md5,
            Some(name) if name.eq_ignore_ascii_case("sha-256") => Algorithm::Sha256,
            Some(_) => return None,
        };
        let qop = value("qop")
            .is_some_and(|qop| qop.split(',').any(|one| one.trim().eq_ignore_ascii_case("auth")));
        Some(Self::Digest {
            realm: value("realm")?,
            nonce: value("nonce")?,
            opaque: value("opaque"),
            algorithm,
            is_named: value("algorithm").is_some(),
            qop,
        })
    }

    /// The value of `Authorization` for a request; `count` is how often the nonce was used, from 1, and `ours` a nonce of ours.
    pub(super) fn answer(
        &self,
        login: &Login,
        method: &str,
        url: &str,
        count: u32,
        ours: &str,
    ) -> Zeroizing<String> {
        let Login { user, password } = login;
        let password = password.as_str();
        Zeroizing::new(match self {
            Self::Basic => {
                let pair = Zeroizing::new(format!("{user}:{password}"));
                format!(
                    "Basic {}",
                    base64::engine::general_purpose::STANDARD.encode(pair.as_bytes())
                )
            }
            Self::Digest { realm, nonce, opaque, algorithm, is_named, qop } => {
                let first = algorithm.hex(&Zeroizing::new(format!("{user}:{realm}:{password}")));
                let second = algorithm.hex(&format!("{method}:{url}"));
                let (response, used) = if *qop {
                    let response =
                        algorithm.hex(&format!("{first}:{nonce}:{count:08x}:{ours}:auth:{second}"));
                    (response, format!(", qop=auth, nc={count:08x}, cnonce=\"{ours}\""))
                } else {
                    (algorithm.hex(&format!("{first}:{nonce}:{second}")), String::new())
                };
                let opaque = opaque
                    .as_ref()
                    .map_or(String::new(), |opaque| format!(", opaque=\"{opaque}\""));
                let algorithm = match algorithm {
                    _ if !is_named => "",
                    Algorithm::Md5 => ", algorithm=MD5",
                    Algorithm::Sha256 => ", algorithm=SHA-256",
                };
                let user = user.replace('\\', "\\\\").replace('"', "\\\"");
                format!(
                    "Digest username=\"{user}\", realm=\"{realm}\", nonce=\"{nonce}\", uri=\"{url}\", \
                     response=\"{response}\"{used}{opaque}{algorithm}"
                )
            }
        })
    }
}

impl Algorithm {
    fn hex(self, text: &str) -> String {
        match self {
            Self::Md5 => hex(&<Md5 as md5::Digest>::digest(text.as_bytes())),
            Self::Sha256 => hex(&<Sha256 as sha2::Digest>::digest(text.as_bytes())),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Blanks within a header (RFC 9110, section 5.6.3).
const BLANKS: [char; 2] = [' ', '\t'];

/// The challenges of a line, which may hold several (RFC 9110, section 11.6.1).
fn challenges(line: &str) -> Vec<&str> {
    let mut starts = vec![0];
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, c) in line.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted && begins_with_scheme(&line[at + 1..]) => starts.push(at + 1),
            _ => {}
        }
    }
    let ends = starts.iter().skip(1).map(|start| start - 1).chain([line.len()]);
    starts.iter().zip(ends).map(|(&start, end)| &line[start..end]).collect()
}

/// Whether the text behind a comma begins a challenge, and not a further `name=value` of the one before.
fn begins_with_scheme(text: &str) -> bool {
    let text = text.trim_start_matches(BLANKS);
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let behind = text.trim_start_matches(is_token);
    let next = behind.trim_start_matches(BLANKS).chars().next();
    behind.len() < text.len()
        && next != Some('=')
        && (next.is_none_or(|c| c == ',') || behind.starts_with(BLANKS))
}

/// `name=value, name="value"`.
fn parameters(text: &str) -> impl Iterator<Item = (String, String)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (name, behind) = rest.split_once('=')?;
        let name = name.trim_matches([' ', ',', '\t']).to_owned();
        let value;
        if let Some(quoted) = behind.trim_start().strip_prefix('"') {
            let mut end = quoted.len();
            let mut escaped = false;
            for (at, c) in quoted.char_indices() {
                match c {
                    '"' if !escaped => {
                        end = at;
                        break;
                    }
                    c => escaped = c == '\\' && !escaped,
                }
            }
            value = quoted[..end].to_owned();
            rest = quoted.get(end + 1..).unwrap_or("");
        } else {
            let end = behind.find(',').unwrap_or(behind.len());
            value = behind[..end].trim().to_owned();
            rest = &behind[end..];
        }
        Some((name, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: &str, password: &str) -> Login {
        Login { user: user.to_owned(), password: Zeroizing::new(password.to_owned()) }
    }

    /// RFC 2617, section 3.5; RFC 7616, section 3.9.1.
    #[test]
    fn answers_are_those_of_the_standards() {
        let line = r#"Digest realm="testrealm@host.com", qop="auth,auth-int", nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093", opaque="5ccc069c403ebaf9f0171e9517f40e41""#;
        let challenge = Challenge::choose([line].into_iter()).unwrap();
        let mufasa = login("Mufasa", "Circle Of Life");
        let answer = challenge.answer(&mufasa, "GET", "/dir/index.html", 1, "0a4f113b");
        assert!(answer.contains("response=\"6629fae49393a05397450978507c4ef1\""), "{}", *answer);
        assert!(answer.contains("opaque=\"5ccc069c403ebaf9f0171e9517f40e41\""), "{}", *answer);

        let digest = |algorithm: &str| {
            format!(
                r#"Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm={algorithm}, nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v""#
            )
        };
        let ours = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ";
        let (md5, sha) = (digest("MD5"), digest("SHA-256"));
        let mufasa = login("Mufasa", "Circle of Life");
        for (line, expected) in [
            (&md5, "8ca523f5e9506fed4657c9700eebdbec"),
            (&sha, "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
        ] {
            let challenge = Challenge::choose([line.as_str()].into_iter()).unwrap();
            let answer = challenge.answer(&mufasa, "GET", "/dir/index.html", 1, ours);
            assert!(answer.contains(&format!("response=\"{expected}\"")), "{}", *answer);
            let named = line.split(", ").find(|part| part.starts_with("algorithm=")).unwrap();
            assert!(answer.ends_with(named), "{}", *answer);
        }
        assert!(!challenge.answer(&mufasa, "GET", "/", 1, ours).contains("algorithm"));
        let all = [
            "Basic realm=\"x\"",
            &md5,
            &sha,
            "Digest realm=\"x\", nonce=\"y\", algorithm=SHA-512-256",
        ];
        let strongest = Challenge::choose(all.into_iter()).unwrap();
        assert!(matches!(strongest, Challenge::Digest { algorithm: Algorithm::Sha256, .. }));
        assert_eq!(Challenge::choose(["Negotiate"].into_iter()), None);
        for line in [
            "Basic realm=\"x\",Digest realm=\"y\", nonce=\"z\"",
            "Basic realm=\"a \\\" b, c\"\t,\tdigest\trealm=\"y\",nonce = \"z\"",
            "Negotiate,Digest realm=\"y\",nonce=\"z\",Basic realm=\"x\"",
            "Digest realm=\"y\",nonce=\"z\", NTLM",
        ] {
            let Some(Challenge::Digest { realm, nonce, .. }) =
                Challenge::choose([line].into_iter())
            else {
                panic!("{line}")
            };
            assert_eq!((realm.as_str(), nonce.as_str()), ("y", "z"), "{line}");
        }
        let named = "Basic realm=\"x, Digest realm=y, nonce=z\"";
        assert_eq!(Challenge::choose([named].into_iter()), Some(Challenge::Basic));
        let basic = Challenge::Basic.answer(&login("Aladdin", "open sesame"), "GET", "/", 1, "");
        assert_eq!(basic.as_str(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }
}
