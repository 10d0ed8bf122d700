//! SCRAM-SHA-256 (RFC 5802, RFC 7677): a password is proved without being sent, and the server proves itself too.
//!
//! ```text
//!  client                                server
//!  n,,n=user,r=CLIENTNONCE ───────────▶  begin
//!                          ◀───────────  r=CLIENTNONCE+SERVERNONCE,s=SALT,i=ITERATIONS
//!  c=biws,r=NONCES,p=PROOF ───────────▶  finish
//!                          ◀───────────  v=SIGNATURE
//! ```
//!
//! MQTT 5 carries these in AUTH and CONNACK packets as authentication data of the method `SCRAM-SHA-256`.
//!
//! There is no channel binding (`n,,` and `y,,` only) and no acting for another user (`a=`). SASLprep is left out:
//! ASCII is the same with and without it, and all other text is taken byte for byte as the client sends it.
//!
//! Always true: an unknown user gets a salt that stays the same, goes through the same steps, and is refused
//! where a wrong password is; input of any kind ends in a refusal, never in a panic.

use std::{fmt, num::NonZeroU32};

use base64::{Engine as _, engine::general_purpose};
use hmac::{Hmac, KeyInit as _, Mac as _};
use ring::pbkdf2;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidegate_message::Refusal;
use zeroize::{Zeroize as _, Zeroizing};

use crate::secret::{BASE64, DecoyKey, ITERATIONS_MAX, RandomError, random};

/// Name of the authentication method in MQTT's CONNECT and AUTH packets.
pub const METHOD: &str = "SCRAM-SHA-256";
/// Longest message of either side that is read.
pub const MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Iterations of new credentials: RFC 7677 asks for 4096, and a client on a small device has to do them as well.
pub const ITERATIONS: u32 = 15_000;

/// The stored form of a password; a thief of it can neither log in with it nor read the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Rounds of PBKDF2.
    pub iterations: u32,
    /// Salt of PBKDF2.
    pub salt: Vec<u8>,
    /// Checks the client.
    pub stored_key: [u8; 32],
    /// Proves the server.
    pub server_key: [u8; 32],
}

impl Credentials {
    /// For a new user: a new salt and [`ITERATIONS`].
    ///
    /// # Errors
    /// [`RandomError`] if the system gives no salt.
    pub fn new(password: &[u8]) -> Result<Self, RandomError> {
        Ok(Self::derive(password, &random::<16>()?, ITERATIONS))
    }

    /// The stored form of `password`.
    pub fn derive(password: &[u8], salt: &[u8], iterations: u32) -> Self {
        let salted = salted_password(password, salt, iterations);
        Self {
            iterations,
            salt: salt.to_vec(),
            stored_key: Sha256::digest(hmac(&salted, b"Client Key")).into(),
            server_key: hmac(&salted, b"Server Key"),
        }
    }

    /// As it stands in a password file after `user:`. A secret.
    pub fn encode(&self) -> String {
        let text = |bytes: &[u8]| general_purpose::STANDARD.encode(bytes);
        format!(
            "$scram-sha-256${}${}${}${}",
            self.iterations,
            text(&self.salt),
            text(&self.stored_key),
            text(&self.server_key),
        )
    }

    /// Whether `password` is the one, for clients that send it.
    pub fn verify(&self, password: &[u8]) -> bool {
        Self::derive(password, &self.salt, self.iterations)
            .stored_key
            .ct_eq(&self.stored_key)
            .into()
    }

    /// Credentials for an unknown user: as costly as `alike`, a salt of its own, and keys without a secret.
    pub(crate) fn decoy(key: &DecoyKey, user: &str, alike: Option<&Self>) -> Self {
        let salt_bytes = alike.map_or(16, |alike| alike.salt.len());
        let mut salt = Vec::with_capacity(salt_bytes);
        for part in 0_u32.. {
            if salt.len() >= salt_bytes {
                break;
            }
            salt.extend(key.digest(&format!("salt {part}"), user));
        }
        salt.truncate(salt_bytes);
        Self {
            iterations: alike.map_or(ITERATIONS, |alike| alike.iterations),
            salt,
            stored_key: key.digest("stored key", user),
            server_key: key.digest("server key", user),
        }
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        self.stored_key.zeroize();
        self.server_key.zeroize();
    }
}

/// Says nothing of the keys.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// The stored credentials of a user, or a decoy.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// Those of the user, or made up ones.
    pub credentials: Credentials,
    /// Whether there is such a user.
    pub known: bool,
}

/// The server's side of one exchange, between the client's first message and its last.
pub struct Scram {
    user: String,
    lookup: Lookup,
    /// The client's first message up to `n=`.
    header: String,
    /// `r=` of both sides.
    nonce: String,
    /// Client's first message without its header, and the answer to it.
    exchanged: String,
}

impl Scram {
    /// Reads the client's first message; returns the exchange and the server's first message. `nonce` is fresh
    /// random bytes; `lookup` is asked for the user, known or not.
    ///
    /// # Errors
    /// [`Refusal::BadCredentials`] if the message is not one of SCRAM, or asks for what is not offered here.
    pub fn begin(
        client_first: &[u8],
        nonce: [u8; 18],
        lookup: impl FnOnce(&str) -> Lookup,
    ) -> Result<(Self, Vec<u8>), Refusal> {
        Self::begin_with(client_first, &general_purpose::STANDARD.encode(nonce), lookup)
            .ok_or(Refusal::BadCredentials)
    }

    fn begin_with(
        client_first: &[u8],
        server_nonce: &str,
        lookup: impl FnOnce(&str) -> Lookup,
    ) -> Option<(Self, Vec<u8>)> {
        let message = text(client_first)?;
        let header = ["n,,", "y,,"].into_iter().find(|header| message.starts_with(header))?;
        let bare = &message[header.len()..];
        let mut attributes = bare.split(',');
        // `m=` would stand first; RFC 5802 section 5.1 wants it refused.
        let user = decode_name(attributes.next()?.strip_prefix("n=")?)?;
        let client_nonce = attributes.next()?.strip_prefix("r=")?;
        if !is_nonce(client_nonce) || !attributes.all(is_extension) {
            return None;
        }
        let lookup = lookup(&user);
        let nonce = format!("{client_nonce}{server_nonce}");
        let salt = general_purpose::STANDARD.encode(&lookup.credentials.salt);
        let first = format!("r={nonce},s={salt},i={}", lookup.credentials.iterations);
        let exchanged = format!("{bare},{first}");
        Some((
            Self { user, lookup, header: header.to_owned(), nonce, exchanged },
            first.into_bytes(),
        ))
    }

    /// The user that the client claims to be; not proved yet.
    pub fn claimed_user(&self) -> &str {
        &self.user
    }

    /// Reads the client's last message; returns the authenticated user and the server's last message.
    ///
    /// # Errors
    /// [`Refusal::BadCredentials`] if the proof is wrong, the user unknown, or the message is not one of SCRAM.
    pub fn finish(self, client_final: &[u8]) -> Result<(String, Vec<u8>), Refusal> {
        let signature = self.check(client_final).ok_or(Refusal::BadCredentials)?;
        let last = format!("v={}", general_purpose::STANDARD.encode(signature));
        Ok((self.user, last.into_bytes()))
    }

    /// The server's signature.
    fn check(&self, client_final: &[u8]) -> Option<[u8; 32]> {
        let message = text(client_final)?;
        let (without_proof, proof) = message.rsplit_once(",p=")?;
        let mut attributes = without_proof.split(',');
        let binding = BASE64.decode(attributes.next()?.strip_prefix("c=")?).ok()?;
        let nonce = attributes.next()?.strip_prefix("r=")?;
        if binding != self.header.as_bytes() || nonce != self.nonce || !attributes.all(is_extension)
        {
            return None;
        }
        let proof: [u8; 32] = BASE64.decode(proof).ok()?.try_into().ok()?;
        let credentials = &self.lookup.credentials;
        let signed = format!("{},{without_proof}", self.exchanged);
        let client_key = xor(proof, hmac(&credentials.stored_key, signed.as_bytes()));
        let stored_key: [u8; 32] = Sha256::digest(client_key).into();
        let proved = bool::from(stored_key.ct_eq(&credentials.stored_key)) & self.lookup.known;
        proved.then(|| hmac(&credentials.server_key, signed.as_bytes()))
    }
}

/// Says whose exchange it is, and nothing of the keys.
impl fmt::Debug for Scram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scram").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The client's side of one exchange.
pub struct ScramClient {
    password: Zeroizing<Vec<u8>>,
    nonce: String,
    /// The client's first message without its header.
    bare: String,
    /// The expected last message of the server, once it is known.
    expected: Option<[u8; 32]>,
}

impl ScramClient {
    /// An exchange and the client's first message. `nonce` is fresh random bytes.
    pub fn begin(user: &str, password: &[u8], nonce: [u8; 18]) -> (Self, Vec<u8>) {
        Self::begin_with(user, password, general_purpose::STANDARD.encode(nonce))
    }

    fn begin_with(user: &str, password: &[u8], nonce: String) -> (Self, Vec<u8>) {
        let bare = format!("n={},r={nonce}", user.replace('=', "=3D").replace(',', "=2C"));
        let first = format!("n,,{bare}").into_bytes();
        (Self { password: password.to_vec().into(), nonce, bare, expected: None }, first)
    }

    /// The client's last message, which answers the server's first. Takes milliseconds by design.
    ///
    /// # Errors
    /// [`ScramError::Malformed`] if it is not one of SCRAM, [`ScramError::Nonce`] if it answers another
    /// client, [`ScramError::Iterations`] if it asks for too few or too many.
    pub fn answer(&mut self, server_first: &[u8]) -> Result<Vec<u8>, ScramError> {
        let first = text(server_first).ok_or(ScramError::Malformed)?;
        let (nonce, salt, iterations) = server_attributes(first).ok_or(ScramError::Malformed)?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::Nonce);
        }
        if !(4096..=ITERATIONS_MAX).contains(&iterations) {
            return Err(ScramError::Iterations { iterations });
        }
        let without_proof = format!("c=biws,r={nonce}");
        let signed = format!("{},{first},{without_proof}", self.bare);
        let salted = salted_password(&self.password, &salt, iterations);
        let client_key = hmac(&salted, b"Client Key");
        let stored_key: [u8; 32] = Sha256::digest(client_key).into();
        let proof = xor(client_key, hmac(&stored_key, signed.as_bytes()));
        self.expected = Some(hmac(&hmac(&salted, b"Server Key"), signed.as_bytes()));
        let proof = general_purpose::STANDARD.encode(proof);
        Ok(format!("{without_proof},p={proof}").into_bytes())
    }

    /// Checks that the server's last message proves that it knows the user too.
    ///
    /// # Errors
    /// [`ScramError::Server`] if it does not, [`ScramError::Malformed`] if it is not one of SCRAM.
    pub fn verify(&self, server_final: &[u8]) -> Result<(), ScramError> {
        let signature = text(server_final)
            .and_then(|message| message.split(',').next())
            .and_then(|attribute| attribute.strip_prefix("v="))
            .and_then(|signature| BASE64.decode(signature).ok())
            .ok_or(ScramError::Malformed)?;
        match &self.expected {
            Some(expected) if bool::from(signature.as_slice().ct_eq(expected)) => Ok(()),
            _ => Err(ScramError::Server),
        }
    }
}

/// Says nothing of the password.
impl fmt::Debug for ScramClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramClient").finish_non_exhaustive()
    }
}

/// Why a client ends the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// The server's message is not one of SCRAM.
    #[error("the server's message is not one of {METHOD}")]
    Malformed,
    /// The server's message belongs to another exchange.
    #[error("the server's message belongs to another exchange")]
    Nonce,
    /// Too few iterations protect nothing, too many stop the client.
    #[error(
        "the server asks for {iterations} iterations; from 4096 to {ITERATIONS_MAX} are accepted"
    )]
    Iterations {
        /// How many.
        iterations: u32,
    },
    /// The server does not prove that it knows the user.
    #[error("the server does not prove that it knows this user; it may be another's")]
    Server,
}

fn server_attributes(message: &str) -> Option<(&str, Vec<u8>, u32)> {
    let mut attributes = message.split(',');
    let nonce = attributes.next()?.strip_prefix("r=")?;
    let salt = BASE64.decode(attributes.next()?.strip_prefix("s=")?).ok()?;
    let iterations = attributes.next()?.strip_prefix("i=")?.parse().ok()?;
    (is_nonce(nonce) && !salt.is_empty() && attributes.all(is_extension))
        .then_some((nonce, salt, iterations))
}

fn text(message: &[u8]) -> Option<&str> {
    if message.len() > MESSAGE_BYTES_MAX { None } else { str::from_utf8(message).ok() }
}

/// `=2C` is a comma and `=3D` an equals sign; no other `=` may stand in a name.
fn decode_name(text: &str) -> Option<String> {
    let mut parts = text.split('=');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (letter, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            _ => return None,
        };
        name.push(letter);
        name.push_str(rest);
    }
    (!name.is_empty() && !name.contains('\0')).then_some(name)
}

fn is_nonce(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

/// An attribute that may be ignored: a letter other than `m`, which means that it may not, and a value.
fn is_extension(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() > 2 && bytes[0].is_ascii_alphabetic() && bytes[0] != b'm' && bytes[1] == b'='
}

fn salted_password(password: &[u8], salt: &[u8], iterations: u32) -> [u8; 32] {
    let mut salted = [0; 32];
    derive(pbkdf2::PBKDF2_HMAC_SHA256, password, salt, iterations, &mut salted);
    salted
}

/// PBKDF2 (RFC 8018, section 5.2), with one iteration at least.
pub(crate) fn derive(
    algorithm: pbkdf2::Algorithm,
    password: &[u8],
    salt: &[u8],
    iterations: u32,
    out: &mut [u8],
) {
    let iterations = NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN);
    pbkdf2::derive(algorithm, iterations, salt, password, out);
}

fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text);
    mac.finalize().into_bytes().into()
}

fn xor(mut one: [u8; 32], other: [u8; 32]) -> [u8; 32] {
    one.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
    one
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // RFC 7677 section 3.
    const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const SERVER_FIRST: &str =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn pencil(user: &str) -> Lookup {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        Lookup { credentials: Credentials::derive(b"pencil", &salt, 4096), known: user == "user" }
    }

    #[test]
    fn exchange_of_rfc_7677_is_reproduced() {
        let (mut client, first) =
            ScramClient::begin_with("user", b"pencil", "rOprNGfwEbeRWgbNEkqO".to_owned());
        assert_eq!(str::from_utf8(&first).unwrap(), CLIENT_FIRST);
        let (server, answer) = Scram::begin_with(&first, SERVER_NONCE, pencil).unwrap();
        assert_eq!(str::from_utf8(&answer).unwrap(), SERVER_FIRST);
        let last = client.answer(&answer).unwrap();
        assert_eq!(str::from_utf8(&last).unwrap(), CLIENT_FINAL);
        let (user, signature) = server.finish(&last).unwrap();
        assert_eq!((user.as_str(), str::from_utf8(&signature).unwrap()), ("user", SERVER_FINAL));
        assert_eq!(client.verify(&signature), Ok(()));
    }

    #[test]
    fn wrong_password_and_unknown_user_are_refused_at_the_same_step() {
        for (user, password, right) in
            [("user", "pencil", true), ("user", "pen", false), ("nobody", "pencil", false)]
        {
            let (mut client, first) = ScramClient::begin(user, password.as_bytes(), [1; 18]);
            let (server, answer) = Scram::begin(&first, [2; 18], pencil).unwrap();
            assert_eq!(server.claimed_user(), user);
            let last = client.answer(&answer).unwrap();
            assert_eq!(server.finish(&last).is_ok(), right, "{user} {password}");
        }
    }

    #[test]
    fn names_with_commas_and_equals_signs_pass() {
        let (mut client, first) = ScramClient::begin("a=b,c", b"pencil", [1; 18]);
        let known = |user: &str| Lookup { known: user == "a=b,c", ..pencil("user") };
        let (server, answer) = Scram::begin(&first, [2; 18], known).unwrap();
        assert_eq!(server.finish(&client.answer(&answer).unwrap()).unwrap().0, "a=b,c");
    }

    #[test]
    fn unsupported_exchanges_are_refused() {
        for (first, taken) in [
            ("n,,n=user,r=abc", true),
            ("y,,n=user,r=abc", true),
            ("n,,n=user,r=abc,x=ignored", true),
            ("p=tls-exporter,,n=user,r=abc", false), // channel binding
            ("n,a=admin,n=user,r=abc", false),       // acting for another
            ("n,,m=must,n=user,r=abc", false),
            ("n,,n=user,r=abc,m=must", false),
            ("n,,n=us=er,r=abc", false),
            ("n,,n=user,r=", false),
            ("n,,n=,r=abc", false),
            ("n,,n=user", false),
            ("", false),
        ] {
            assert_eq!(Scram::begin(first.as_bytes(), [2; 18], pencil).is_ok(), taken, "{first}");
        }
        let finish = |last: &str| {
            let (server, _) =
                Scram::begin_with(CLIENT_FIRST.as_bytes(), SERVER_NONCE, pencil).unwrap();
            server.finish(last.as_bytes()).is_ok()
        };
        assert!(finish(CLIENT_FINAL));
        for (from, to) in
            [("biws", "eSws"), ("r=rO", "r=ro"), ("p=d", "p=e"), ("k0,", "k0,m=x,"), (",p=", "p=")]
        {
            assert!(!finish(&CLIENT_FINAL.replace(from, to)), "{from} {to}");
        }
    }

    #[test]
    fn client_refuses_another_server() {
        let (mut client, _) =
            ScramClient::begin_with("user", b"pencil", "rOprNGfwEbeRWgbNEkqO".into());
        assert_eq!(client.verify(SERVER_FINAL.as_bytes()), Err(ScramError::Server));
        for (answer, error) in [
            (SERVER_FIRST.replace("r=rO", "r=xO"), ScramError::Nonce),
            (SERVER_FIRST.replace(SERVER_NONCE, ""), ScramError::Nonce),
            (SERVER_FIRST.replace("4096", "1"), ScramError::Iterations { iterations: 1 }),
            (SERVER_FIRST.replace(",i=", ",j="), ScramError::Malformed),
        ] {
            assert_eq!(client.answer(answer.as_bytes()), Err(error), "{answer}");
        }
        client.answer(SERVER_FIRST.as_bytes()).unwrap();
        assert_eq!(client.verify(b"v=AAAA"), Err(ScramError::Server));
        assert_eq!(client.verify(b"e=other-error"), Err(ScramError::Malformed));
    }

    #[test]
    fn debug_text_holds_no_secret() {
        let (server, _) = Scram::begin(CLIENT_FIRST.as_bytes(), [2; 18], pencil).unwrap();
        let (client, _) = ScramClient::begin("user", b"pencil", [1; 18]);
        let text = format!("{server:?} {client:?} {:?}", pencil("user"));
        assert!(!text.contains("pencil") && !text.contains("key"), "{text}");
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_panic(first in ".{0,64}", last in prop::collection::vec(any::<u8>(), 0..128)) {
            let _ = Scram::begin(first.as_bytes(), [2; 18], |_| pencil("user"));
            let _ = Scram::begin(format!("n,,{first}").as_bytes(), [2; 18], |_| pencil("user"));
            let (server, _) = Scram::begin(CLIENT_FIRST.as_bytes(), [2; 18], pencil).unwrap();
            let _ = server.finish(&last);
            let _ = ScramClient::begin("user", b"pencil", [1; 18]).0.answer(&last);
        }
    }
}
