//! Sessions of browsers: a cookie stands for the credentials that began it.
//!
//! Always true: there are at most [`SESSIONS_MAX`], and [`OF_CALLER_MAX`] of one caller; the oldest gives way. None outlives [`LIFE`], nor,
//! since each request asks, the credentials. The table holds digests, so that a look at memory gives no cookie.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::http::{HeaderMap, HeaderValue, header};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use tidegate_api::ApiError;
use tidegate_message::{Code, Instant};

use crate::Identity;

/// Sessions at a time, and those of one caller: a user has some devices and browsers.
const SESSIONS_MAX: usize = 1024;
const OF_CALLER_MAX: usize = 16;
const LIFE: Duration = Duration::from_secs(12 * 3600);
/// Bytes of an identifier before base64.
const ID_BYTES: usize = 32;

/// The prefix has browsers refuse the cookie from other hosts, other paths and connections without TLS.
const COOKIE: &str = "__Host-tidegate";

type Key = [u8; 32];

#[derive(Default)]
pub(super) struct Sessions {
    by_key: Mutex<HashMap<Key, Session>>,
}

struct Session {
    identity: Arc<Identity>,
    until: Instant,
}

impl Sessions {
    /// Begins a session of `identity` and returns its identifier.
    pub(super) fn begin(&self, identity: Arc<Identity>, now: Instant) -> Result<String, ApiError> {
        let mut bytes = [0; ID_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| {
            let text = "the system gives no random bytes for a session";
            ApiError::new(Code::INTERNAL, text).caused_by(error.to_string())
        })?;
        let id = URL_SAFE_NO_PAD.encode(bytes);
        let mut sessions = self.by_key.lock().expect("no panic while it is held");
        sessions.retain(|_, session| now < session.until);
        let is_own = |session: &Session| session.identity.key == identity.key;
        let own = sessions.values().filter(|session| is_own(session)).count();
        if own >= OF_CALLER_MAX {
            end_oldest(&mut sessions, is_own);
        } else if sessions.len() >= SESSIONS_MAX {
            end_oldest(&mut sessions, |_| true);
        }
        sessions.insert(key(&id), Session { identity, until: now + LIFE });
        Ok(id)
    }

    /// The caller that began the session of that identifier; none if there is none now.
    pub(super) fn find(&self, id: &str, now: Instant) -> Option<Arc<Identity>> {
        let sessions = self.by_key.lock().expect("no panic while it is held");
        let session = sessions.get(&key(id)).filter(|session| now < session.until)?;
        Some(session.identity.clone())
    }

    pub(super) fn end(&self, id: &str) {
        self.by_key.lock().expect("no panic while it is held").remove(&key(id));
    }
}

fn end_oldest(sessions: &mut HashMap<Key, Session>, among: impl Fn(&Session) -> bool) {
    let of_those = sessions.iter().filter(|(_, session)| among(session));
    if let Some(oldest) = of_those.min_by_key(|(_, session)| session.until).map(|(key, _)| *key) {
        sessions.remove(&oldest);
    }
}

/// A digest has no length or prefix by which identifiers could be guessed from the time that a look-up takes.
fn key(id: &str) -> Key {
    Sha256::digest(id).into()
}

/// The identifier that a request shows; none if it shows none.
pub(super) fn id_of(headers: &HeaderMap) -> Option<&str> {
    // HTTP/2 may split them over several headers (RFC 9113, section 8.2.3).
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// The header that has a browser keep an identifier.
pub(super) fn cookie(id: &str) -> HeaderValue {
    let seconds = LIFE.as_secs();
    let text =
        format!("{COOKIE}={id}; Path=/; Max-Age={seconds}; HttpOnly; Secure; SameSite=Strict");
    HeaderValue::from_str(&text).expect("base64 stands in headers")
}

/// The header that has a browser forget it.
pub(super) fn no_cookie() -> HeaderValue {
    let text = format!("{COOKIE}=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Strict");
    HeaderValue::from_str(&text).expect("it is of visible characters")
}

#[cfg(test)]
mod tests {
    use tidegate_identity::auth::Admitted;
    use tidegate_message::IdentityKind;

    use super::*;

    fn user(name: &str) -> Arc<Identity> {
        let identity = tidegate_message::Identity::new(IdentityKind::User, name, "");
        Arc::new(Identity::of_user(Admitted::by_certificate(identity)))
    }

    #[test]
    fn sessions_are_bounded_and_end_with_their_time() {
        let (sessions, at) =
            (Sessions::default(), |second: u64| Instant::EPOCH + Duration::from_secs(second));
        let (ada, bob) = (user("ada"), user("bob"));
        let first = sessions.begin(bob, at(0)).unwrap();
        let ids: Vec<_> = (0..OF_CALLER_MAX as u64)
            .map(|n| sessions.begin(ada.clone(), at(n)).unwrap())
            .collect();
        let there = |id: &str, second| sessions.find(id, at(second)).is_some();
        assert!(there(&first, 1) && ids.iter().all(|id| there(id, 20)));
        let one_more = sessions.begin(ada, at(20)).unwrap();
        assert!(
            !there(&ids[0], 20) && there(&ids[1], 20) && there(&one_more, 20) && there(&first, 20)
        );
        assert_eq!(sessions.find(&one_more, at(21)).unwrap().name(), "ada");
        assert!(!there("", 20) && !there(&one_more[1..], 20));
        let life = LIFE.as_secs();
        assert!(there(&first, life - 1) && !there(&first, life));
        sessions.end(&one_more);
        assert!(!there(&one_more, 20));
        for number in 0..2 * SESSIONS_MAX {
            sessions.begin(user(&number.to_string()), at(30)).unwrap();
        }
        assert_eq!(sessions.by_key.lock().unwrap().len(), SESSIONS_MAX);
        assert!(!there(&first, 31), "it was the oldest");
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        for (headers, expected) in [
            (&["__Host-tidegate=abc"][..], Some("abc")),
            (&["a=b; __Host-tidegate=abc; c=d"], Some("abc")),
            (&["a=b", "__Host-tidegate=abc"], Some("abc")),
            (&["x__Host-tidegate=abc"], None),
            (&["__Host-tidegate2=abc", "a"], None),
            (&[], None),
        ] {
            let mut map = HeaderMap::new();
            for value in headers {
                map.append(header::COOKIE, value.parse().unwrap());
            }
            assert_eq!(id_of(&map), expected, "{headers:?}");
        }
        let cookie = cookie("abc");
        let text = cookie.to_str().unwrap();
        for word in ["HttpOnly", "Secure", "SameSite=Strict", "Path=/"] {
            assert!(text.contains(word), "{text}");
        }
        assert!(!text.contains("Domain"));
    }
}
