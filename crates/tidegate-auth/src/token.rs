//! Tokens: JWTs (RFC 7519) signed with a key of a set, as identity providers give them out.
//!
//! ```text
//!  HEADER.CLAIMS.SIGNATURE ──▶ key by `kid` ──▶ signature ──▶ times, issuer, audience ──▶ name and groups
//! ```
//!
//! After RFC 8725: the algorithm must be that of the key, `none` and shared secrets are no algorithms here, keys come from
//! the configuration and never from the token, and a token must be for this node (`aud`) and must end (`exp`).
//!
//! Always true: nothing of the claims is read before the signature has been checked; no error holds any of the token but the
//! name of a key or an algorithm, cut short.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};
use tidegate_message::Instant;

use crate::keys::{Algorithm, KEY_ID_BYTES_MAX, KeyDigest, KeySet};

/// Largest token, in bytes: the usual limits on a password of MQTT and on a header of HTTP/2.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Most groups that a token may name.
pub const GROUPS_MAX: usize = 256;
/// Longest name of a user or group, in bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// The claims that a token must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenConfig {
    /// The required issuer (`iss`). Default none: any owner of a key of the set.
    pub issuer: Option<String>,
    /// The required audience (`aud`): without, a token for another service of the same issuer would do.
    pub audience: String,
    /// How far the clocks of issuer and node may differ. Default 60 s.
    pub leeway: Duration,
    /// The claim that holds the user's name; points lead into objects. Default `sub`.
    pub name_claim: String,
    /// The claim that holds the user's groups, as a list or as one text. Default `groups`.
    pub groups_claim: String,
}

impl TokenConfig {
    /// For tokens to that audience.
    pub fn new(audience: &str) -> Self {
        Self {
            issuer: None,
            audience: audience.to_owned(),
            leeway: Duration::from_secs(60),
            name_claim: "sub".to_owned(),
            groups_claim: "groups".to_owned(),
        }
    }
}

/// The claims that a token proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The user.
    pub name: Arc<str>,
    /// Groups that the issuer counts the user to, sorted.
    pub groups: Arc<[Arc<str>]>,
    /// It holds until then, leeway included.
    pub until: Instant,
    /// The key that signed it.
    pub key: KeyDigest,
}

/// Whether a password is meant to be a token: three parts between points, the first a header.
pub fn looks_like_token(password: &[u8]) -> bool {
    // `{"` in base64, with which every header begins that is written without blanks.
    password.starts_with(b"eyJ") && password.iter().filter(|byte| **byte == b'.').count() == 2
}

/// Checks a token with the keys of `keys` at the wall-clock time `now`.
///
/// # Errors
/// [`TokenError`].
pub fn verify(
    token: &[u8],
    keys: &KeySet,
    config: &TokenConfig,
    now: Instant,
) -> Result<Claims, TokenError> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenError::TooLarge { bytes: token.len() });
    }
    let token = str::from_utf8(token).map_err(|_| TokenError::Malformed)?;
    let mut parts = token.split('.');
    let (Some(header), Some(claims), Some(signature), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(TokenError::Malformed);
    };
    let signed = &token[..header.len() + 1 + claims.len()];
    let header = Header::parse(&object(header)?)?;
    let Some(key) = keys.find(header.key.as_deref(), header.algorithm) else {
        return Err(match &header.key {
            Some(key) if !keys.holds(key) => TokenError::UnknownKey { key: short(key) },
            Some(key) => {
                let algorithm = header.algorithm.word();
                TokenError::OtherAlgorithm { key: short(key), algorithm }
            }
            None => TokenError::NoKey { algorithm: header.algorithm.word() },
        });
    };
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenError::Malformed)?;
    if !key.verify(signed.as_bytes(), &signature) {
        return Err(TokenError::Signature);
    }
    // From here on it is the issuer who speaks.
    let claims = object(claims)?;
    let until = times(&claims, config.leeway, now)?;
    if let Some(issuer) = &config.issuer
        && claims.get("iss").and_then(Value::as_str) != Some(issuer)
    {
        return Err(TokenError::Issuer);
    }
    let is_for_us = match claims.get("aud") {
        Some(Value::String(audience)) => *audience == config.audience,
        Some(Value::Array(all)) => {
            all.iter().any(|audience| audience.as_str() == Some(&config.audience))
        }
        _ => false,
    };
    if !is_for_us {
        return Err(TokenError::Audience);
    }
    Ok(Claims {
        name: name(&claims, &config.name_claim)?,
        groups: groups(&claims, &config.groups_claim)?,
        until,
        key: key.digest(),
    })
}

struct Header {
    algorithm: Algorithm,
    key: Option<String>,
}

impl Header {
    fn parse(members: &Map<String, Value>) -> Result<Self, TokenError> {
        let word = members.get("alg").and_then(Value::as_str).ok_or(TokenError::Malformed)?;
        let algorithm = Algorithm::named(word)
            .ok_or_else(|| TokenError::Algorithm { algorithm: short(word) })?;
        // A critical header that is not understood (RFC 7515 section 4.1.11).
        if members.contains_key("crit") {
            return Err(TokenError::Critical);
        }
        // A token of another kind, such as one for logging out, is no token for coming in (RFC 8725 section 3.11).
        let is_of_kind = match members.get("typ") {
            None => true,
            Some(Value::String(kind)) => {
                let kind = kind.to_ascii_lowercase();
                ["jwt", "at+jwt"].contains(&kind.strip_prefix("application/").unwrap_or(&kind))
            }
            Some(_) => false,
        };
        if !is_of_kind {
            return Err(TokenError::Kind);
        }
        let key = match members.get("kid") {
            None => None,
            Some(Value::String(key)) if key.len() <= KEY_ID_BYTES_MAX => Some(key.clone()),
            Some(_) => return Err(TokenError::Malformed),
        };
        Ok(Self { algorithm, key })
    }
}

fn object(part: &str) -> Result<Map<String, Value>, TokenError> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed)
}

/// Until when a token holds that holds now.
fn times(
    claims: &Map<String, Value>,
    leeway: Duration,
    now: Instant,
) -> Result<Instant, TokenError> {
    let time = |name: &str| match claims.get(name) {
        None => Ok(None),
        Some(value) => {
            // NumericDate may have a fraction (RFC 7519 section 2); values too far away saturate.
            let seconds = value.as_f64().filter(|seconds| seconds.is_finite());
            let seconds = seconds.ok_or(TokenError::Malformed)?;
            Ok(Some(Instant::from_nanos((seconds * 1e9) as i64)))
        }
    };
    let until = time("exp")?.ok_or(TokenError::Endless)? + leeway;
    if now >= until {
        return Err(TokenError::Expired { ago: now.since(until - leeway) });
    }
    if let Some(from) = time("nbf")?
        && now + leeway < from
    {
        return Err(TokenError::NotYet { ahead: from.since(now) });
    }
    Ok(until)
}

fn name(claims: &Map<String, Value>, claim: &str) -> Result<Arc<str>, TokenError> {
    let name = find(claims, claim).and_then(Value::as_str);
    name.filter(|name| is_name(name))
        .map(Into::into)
        .ok_or_else(|| TokenError::Name { claim: claim.to_owned() })
}

fn groups(claims: &Map<String, Value>, claim: &str) -> Result<Arc<[Arc<str>]>, TokenError> {
    let wrong = || TokenError::Groups { claim: claim.to_owned() };
    let texts: Vec<&str> = match find(claims, claim) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(all)) if all.len() <= GROUPS_MAX => {
            all.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    if !texts.iter().all(|text| is_name(text)) {
        return Err(wrong());
    }
    let mut groups: Vec<Arc<str>> = texts.into_iter().map(Into::into).collect();
    groups.sort();
    groups.dedup();
    Ok(groups.into())
}

/// The claim of that name; if there is none, `a.b` is `b` in the object `a`.
fn find<'a>(claims: &'a Map<String, Value>, claim: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(claim) {
        return Some(value);
    }
    let (first, rest) = claim.split_once('.')?;
    find(claims.get(first)?.as_object()?, rest)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control)
}

/// As much of a text from elsewhere as a person needs.
fn short(text: &str) -> String {
    text.chars().take(32).flat_map(char::escape_debug).collect()
}

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is too large.
    #[error("the token has {bytes} bytes, and {TOKEN_BYTES_MAX} is the most")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It is no JWT.
    #[error("the token is not a JWT of three parts (RFC 7519)")]
    Malformed,
    /// It is signed in a way that is not accepted, or not at all.
    #[error("the token is signed with {algorithm:?}; RS256, ES256 and EdDSA are accepted")]
    Algorithm {
        /// The algorithm in the token, cut short.
        algorithm: String,
    },
    /// It asks for extensions.
    #[error("the token asks for extensions (`crit`) that are not known here")]
    Critical,
    /// It is a token of another kind.
    #[error("the token is of another kind than JWT and at+jwt")]
    Kind,
    /// No key has that name.
    #[error("no key is called {key:?}, by which the token is signed")]
    UnknownKey {
        /// The name, cut short.
        key: String,
    },
    /// The key is for another algorithm.
    #[error("the key {key:?} is not for {algorithm}, with which the token claims to be signed")]
    OtherAlgorithm {
        /// The name, cut short.
        key: String,
        /// The algorithm in the token.
        algorithm: &'static str,
    },
    /// It names no key, and there is not exactly one that it could mean.
    #[error("the token names no key (`kid`), and there is not exactly one for {algorithm}")]
    NoKey {
        /// The algorithm in the token.
        algorithm: &'static str,
    },
    /// The signature is wrong.
    #[error("the signature of the token is wrong")]
    Signature,
    /// It does not end.
    #[error("the token does not say when it expires (`exp`)")]
    Endless,
    /// It has expired.
    #[error("the token expired {} s ago", .ago.as_secs())]
    Expired {
        /// How long ago.
        ago: Duration,
    },
    /// It does not hold yet.
    #[error("the token holds only in {} s; are the clocks right?", .ahead.as_secs())]
    NotYet {
        /// When it will.
        ahead: Duration,
    },
    /// Another issuer gave it out.
    #[error("the token is of another issuer (`iss`)")]
    Issuer,
    /// It is for another service.
    #[error("the token is for another audience (`aud`)")]
    Audience,
    /// The name in it is not valid.
    #[error("the claim {claim:?} of the token is not a name of 1 to {NAME_BYTES_MAX} bytes")]
    Name {
        /// The claim, as configured.
        claim: String,
    },
    /// Its groups are no groups.
    #[error(
        "the claim {claim:?} of the token is neither a name nor a list of at most {GROUPS_MAX} names"
    )]
    Groups {
        /// The claim, as configured.
        claim: String,
    },
    /// It belongs to another user than the user name of the login.
    #[error("the token is not that of the user name that came with it")]
    OtherUser,
    /// There are no keys to check it with.
    #[error("no token can be checked: no keys are configured, or none were fetched yet")]
    NoKeys,
}

#[cfg(test)]
mod tests;
