//! Tokens and sets of keys, good ones and those of attackers.

use proptest::prelude::*;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _},
};
use serde_json::json;

use super::*;
use crate::keys::KeySetError;

/// Of a key pair made for this test by `openssl genrsa`, whose private half is gone.
const RSA_MODULUS: &str = concat!(
    "pr4Z8cEuQNzN8U2OSX_Xqrrx0mxT3ZMj9VC_UlPTrpZ4Bj2CqEv2wmUnBu5fKFZX4TM76LxTnyFyHCLo7DQzWeIDkUc3CzBR",
    "TqbBmvxPPIMaoMy95KTtB0PQpJQZhrBZU0WM44H1JIwxjzAuO8i6fBv0bKPSyXSjBJHA8db2fz_F4eD5kUhkzx2zEQ2w__cs",
    "kymgE1WGOMi4xgMm9tBE5kajCnytc1rwGQcE2dbOBzCw3vPX9gMnBWbv3dySU8XX3zeZ31j1mkO8ddCBff6cdn-GPnz6TUBf",
    "WGSZCzoJ13MdC07MCpb2w3w3TrfKwpZy0fLGHTQz2kK2f3h8ruid9w",
);
/// Signed with it by `openssl dgst -sha256 -sign`: iss https://id.example, aud tidegate, sub ada, groups family, exp 1700003600.
const RSA_TOKEN: &str = concat!(
    "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUiLCJhdWQ",
    "iOiJ0aWRlZ2F0ZSIsInN1YiI6ImFkYSIsImdyb3VwcyI6WyJmYW1pbHkiXSwiZXhwIjoxNzAwMDAzNjAwfQ.AT4vtCjruTEz",
    "uUsfVb683MN5LxceTZdZFJrrvPwWkkA63Y18HVFil3_MDQEFv4QEmYXjyldUufiDipLubT85B-DKJY4dE9C1NW73w053U8Vi",
    "h-cglmWdh4GDFvUw2qA8aLjBicbGhQl-Q8R1J-ET1Ms4Al5vymMgwd-MrYMpVMfPNr_dpE4CDEw9Px9d09r4CjeA6EjDK1V3",
    "3d5JSrJCt4O5-0a1fKOz-MIC__Wp4WTmK0qsnJvw6bCdMy6W7OQhP_buGkXlNeTXMI2iR7k6YnBSq43AYkeNafelhWYzX0Om",
    "ZfNgbrx08DOUAQpvXfitTmlRkxXmef5NJSW3ec55DQ",
);

/// 2023-11-14T22:13:20Z
const NOW: i64 = 1_700_000_000;

fn at(seconds: i64) -> Instant {
    Instant::from_millis(seconds * 1000)
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// An issuer with a key for each algorithm but RS256, of which there is one signed token.
struct Issuer {
    p256: EcdsaKeyPair,
    ed25519: Ed25519KeyPair,
}

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let p256 =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random);
        let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let ed25519 = Ed25519KeyPair::from_pkcs8(document.as_ref());
        Self { p256: p256.unwrap(), ed25519: ed25519.unwrap() }
    }

    fn jwks(&self) -> Value {
        let point = self.p256.public_key().as_ref();
        json!({"keys": [
            {"kty": "RSA", "kid": "rsa", "use": "sig", "alg": "RS256", "n": RSA_MODULUS, "e": "AQAB"},
            {"kty": "EC", "kid": "ec", "crv": "P-256", "x": base64(&point[1..33]), "y": base64(&point[33..])},
            {"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": base64(self.ed25519.public_key())},
        ]})
    }

    fn keys(&self) -> KeySet {
        KeySet::parse(self.jwks().to_string().as_bytes()).unwrap()
    }

    /// A token signed with the key that goes with `alg`, whatever else the header says.
    fn sign(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
        let signature = match header["alg"].as_str() {
            Some("EdDSA") => base64(self.ed25519.sign(signed.as_bytes())),
            _ => base64(self.p256.sign(&SystemRandom::new(), signed.as_bytes()).unwrap()),
        };
        format!("{signed}.{signature}")
    }
}

fn config() -> TokenConfig {
    TokenConfig { issuer: Some("https://id.example".to_owned()), ..TokenConfig::new("tidegate") }
}

fn claims() -> Value {
    json!({
        "iss": "https://id.example", "aud": "tidegate", "sub": "ada", "exp": NOW + 3600,
        "groups": ["staff", "family", "staff"],
    })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    match value {
        Value::Null => _ = claims.as_object_mut().unwrap().remove(name),
        value => claims[name] = value,
    }
    claims
}

#[test]
fn tokens_of_each_algorithm_are_taken() {
    let issuer = Issuer::new();
    let keys = issuer.keys();
    for (token, key, groups) in [
        (RSA_TOKEN.to_owned(), "rsa", &["family"][..]),
        (issuer.sign(&json!({"alg": "ES256", "kid": "ec"}), &claims()), "ec", &["family", "staff"]),
        (
            issuer.sign(&json!({"alg": "EdDSA", "kid": "ed", "typ": "at+JWT"}), &claims()),
            "ed",
            &["family", "staff"],
        ),
        (issuer.sign(&json!({"alg": "EdDSA"}), &claims()), "ed", &["family", "staff"]),
    ] {
        assert!(looks_like_token(token.as_bytes()), "{token}");
        let proved = verify(token.as_bytes(), &keys, &config(), at(NOW)).unwrap();
        let all = [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa];
        let signed = all.into_iter().find_map(|algorithm| keys.find(Some(key), algorithm));
        assert_eq!(
            (&*proved.name, Some(proved.key)),
            ("ada", signed.map(|signed| signed.digest()))
        );
        assert_eq!(proved.groups.iter().map(|group| &**group).collect::<Vec<_>>(), groups);
        assert_eq!(proved.until, at(NOW + 3600 + 60), "leeway included");
    }
}

#[test]
fn a_byte_more_or_less_or_another_is_refused() {
    let issuer = Issuer::new();
    let keys = issuer.keys();
    let tokens = [
        RSA_TOKEN.to_owned(),
        issuer.sign(&json!({"alg": "ES256", "kid": "ec"}), &claims()),
        issuer.sign(&json!({"alg": "EdDSA", "kid": "ed"}), &claims()),
    ];
    for token in tokens {
        let is_taken = |token: &[u8]| verify(token, &keys, &config(), at(NOW)).is_ok();
        assert!(is_taken(token.as_bytes()));
        for at in 0..token.len() {
            let mut other = token.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            assert!(!is_taken(&other), "{at} of {token}");
        }
        assert!(!is_taken(&token.as_bytes()[..token.len() - 1]));
        assert!(
            !is_taken(format!("{token}A").as_bytes()) && !is_taken(format!("{token}.").as_bytes())
        );
        assert!(!is_taken(format!("{token}=").as_bytes()), "padding is not in a token");
    }
}

#[test]
fn tokens_of_attackers_are_refused_with_a_reason() {
    let issuer = Issuer::new();
    let keys = issuer.keys();
    let part = |value: Value| base64(value.to_string());
    let signed = |header: Value| issuer.sign(&header, &claims());
    let algorithm = |word: &str| TokenError::Algorithm { algorithm: word.to_owned() };
    let unsigned = |alg: &str| format!("{}.{}.", part(json!({"alg": alg})), part(claims()));
    for (token, expected) in [
        (unsigned("none"), algorithm("none")),
        (unsigned("None"), algorithm("None")),
        (unsigned(""), algorithm("")),
        (unsigned("HS256"), algorithm("HS256")), // with the public key as the secret
        (unsigned("RS512"), algorithm("RS512")),
        (unsigned("ES256"), TokenError::Signature),
        (unsigned(&"x".repeat(99)), algorithm(&"x".repeat(32))),
        (format!("{}.{}.AA", part(json!({"typ": "JWT"})), part(claims())), TokenError::Malformed),
        // A key of one type with the algorithm of another.
        (
            signed(json!({"alg": "ES256", "kid": "rsa"})),
            TokenError::OtherAlgorithm { key: "rsa".to_owned(), algorithm: "ES256" },
        ),
        (
            signed(json!({"alg": "RS256", "kid": "ec"})),
            TokenError::OtherAlgorithm { key: "ec".to_owned(), algorithm: "RS256" },
        ),
        (signed(json!({"alg": "RS256", "kid": "rsa"})), TokenError::Signature),
        (
            signed(json!({"alg": "ES256", "kid": "evil\n"})),
            TokenError::UnknownKey { key: "evil\\n".to_owned() },
        ),
        (signed(json!({"alg": "ES256", "kid": 7})), TokenError::Malformed),
        (signed(json!({"alg": "ES256", "kid": "x".repeat(257)})), TokenError::Malformed),
        (signed(json!({"alg": "ES256", "kid": "ec", "crit": ["exp"]})), TokenError::Critical),
        (signed(json!({"alg": "ES256", "kid": "ec", "typ": "logout+jwt"})), TokenError::Kind),
        (signed(json!({"alg": "ES256", "kid": "ec", "typ": 1})), TokenError::Kind),
        ("a.b".to_owned(), TokenError::Malformed),
        ("a.b.c.d".to_owned(), TokenError::Malformed),
        ("..".to_owned(), TokenError::Malformed),
        ("x".repeat(TOKEN_BYTES_MAX + 1), TokenError::TooLarge { bytes: TOKEN_BYTES_MAX + 1 }),
    ] {
        let got = verify(token.as_bytes(), &keys, &config(), at(NOW));
        assert_eq!(got, Err(expected), "{token}");
    }
    // A key in the header is not looked at.
    let point = issuer.p256.public_key().as_ref();
    let own =
        json!({"kty": "EC", "crv": "P-256", "x": base64(&point[1..33]), "y": base64(&point[33..])});
    let other = Issuer::new().keys();
    let token = signed(json!({"alg": "ES256", "kid": "ec", "jwk": own}));
    assert_eq!(verify(token.as_bytes(), &other, &config(), at(NOW)), Err(TokenError::Signature));
}

#[test]
fn claims_decide() {
    let issuer = Issuer::new();
    let keys = issuer.keys();
    let name = || TokenError::Name { claim: "sub".to_owned() };
    let groups = || TokenError::Groups { claim: "groups".to_owned() };
    let expired = |ago| Err(TokenError::Expired { ago: Duration::from_secs(ago) });
    for (claims, expected) in [
        (claims(), Ok("ada")),
        // Times, with 60 s of leeway.
        (with("exp", Value::Null), Err(TokenError::Endless)),
        (with("exp", json!("tomorrow")), Err(TokenError::Malformed)),
        (with("exp", json!(NOW - 59)), Ok("ada")),
        (with("exp", json!(NOW - 60)), expired(60)),
        (with("exp", json!(NOW - 61)), expired(61)),
        (with("exp", json!(-1e300)), expired(u64::MAX)),
        (with("exp", json!(1e300)), Ok("ada")),
        (with("exp", json!(NOW as f64 + 0.5)), Ok("ada")),
        (with("nbf", json!(NOW + 60)), Ok("ada")),
        (with("nbf", json!(NOW + 61)), Err(TokenError::NotYet { ahead: Duration::from_secs(61) })),
        (with("nbf", json!([])), Err(TokenError::Malformed)),
        (with("iss", Value::Null), Err(TokenError::Issuer)),
        (with("iss", json!("https://id.example/")), Err(TokenError::Issuer)),
        (with("iss", json!(["https://id.example"])), Err(TokenError::Issuer)),
        (with("aud", Value::Null), Err(TokenError::Audience)),
        (with("aud", json!("other")), Err(TokenError::Audience)),
        (with("aud", json!([])), Err(TokenError::Audience)),
        (with("aud", json!({"tidegate": 1})), Err(TokenError::Audience)),
        (with("aud", json!(["other", "tidegate"])), Ok("ada")),
        (with("sub", Value::Null), Err(name())),
        (with("sub", json!("")), Err(name())),
        (with("sub", json!(7)), Err(name())),
        (with("sub", json!("a\nb")), Err(name())),
        (with("sub", json!("a".repeat(257))), Err(name())),
        (with("sub", json!("bob smith")), Ok("bob smith")),
        (with("groups", Value::Null), Ok("ada")),
        (with("groups", json!("family")), Ok("ada")),
        (with("groups", json!(7)), Err(groups())),
        (with("groups", json!(["a", 7])), Err(groups())),
        (with("groups", json!([""])), Err(groups())),
        (with("groups", json!(vec!["g"; 257])), Err(groups())),
    ] {
        let token = issuer.sign(&json!({"alg": "EdDSA", "kid": "ed"}), &claims);
        let got = verify(token.as_bytes(), &keys, &config(), at(NOW));
        match (&got, &expected) {
            // How long ago the end of time was is of no interest.
            (Err(TokenError::Expired { .. }), Err(TokenError::Expired { ago }))
                if *ago == Duration::from_secs(u64::MAX) => {}
            _ => assert_eq!(got.map(|claims| claims.name), expected.map(Into::into), "{claims}"),
        }
    }
}

#[test]
fn names_of_claims_lead_into_objects() {
    let issuer = Issuer::new();
    let mut claims = with("realm", json!({"roles": ["staff"]}));
    claims["https://id.example/name"] = json!("ada@example");
    let token = issuer.sign(&json!({"alg": "EdDSA", "kid": "ed"}), &claims);
    let config = TokenConfig {
        name_claim: "https://id.example/name".to_owned(), // the points in it lead nowhere
        groups_claim: "realm.roles".to_owned(),
        ..config()
    };
    let proved = verify(token.as_bytes(), &issuer.keys(), &config, at(NOW)).unwrap();
    assert_eq!((&*proved.name, &*proved.groups[0]), ("ada@example", "staff"));
}

#[test]
fn errors_hold_nothing_of_the_token() {
    let issuer = Issuer::new();
    for claims in [
        with("aud", json!("hunter2")),
        with("sub", json!("hunter2\n")),
        with("iss", json!("hunter2")),
    ] {
        let token = issuer.sign(&json!({"alg": "EdDSA", "kid": "ed"}), &claims);
        let error = verify(token.as_bytes(), &issuer.keys(), &config(), at(NOW)).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[test]
fn key_sets_are_taken_as_a_whole_or_not_at_all() {
    let issuer = Issuer::new();
    let good = issuer.jwks()["keys"].as_array().unwrap().clone();
    let one = |key: Value| json!({"keys": [good[0], key]});
    let changed = |index: usize, member: &str, value: Value| {
        let mut key = good[index].clone();
        key["kid"] = json!("other");
        key[member] = value;
        one(key)
    };
    let damaged = |member| Err(KeySetError::Damaged { index: 1, member });
    for (set, expected) in [
        (issuer.jwks(), Ok(3)),
        (json!({"keys": []}), Err(KeySetError::NoneFits { count: 0 })),
        (json!({}), Err(KeySetError::NoKeys)),
        (json!([]), Err(KeySetError::NoKeys)),
        (json!({"keys": [7]}), Err(KeySetError::NoKeys)),
        (json!({"keys": vec![good[0].clone(); 129]}), Err(KeySetError::TooMany { count: 129 })),
        (one(good[0].clone()), Err(KeySetError::Double { id: "rsa".to_owned() })),
        // Passed over.
        (changed(1, "crv", json!("P-384")), Ok(1)),
        (changed(2, "crv", json!("X25519")), Ok(1)),
        (changed(1, "kty", json!("XYZ")), Ok(1)),
        (changed(1, "use", json!("enc")), Ok(1)),
        (changed(1, "key_ops", json!(["encrypt"])), Ok(1)),
        (changed(1, "key_ops", json!(["verify"])), Ok(2)),
        (changed(0, "alg", json!("PS256")), Ok(1)),
        // A reader of these could make tokens.
        (changed(0, "d", json!("AQAB")), Err(KeySetError::Private { index: 1 })),
        (changed(1, "d", json!("AQAB")), Err(KeySetError::Private { index: 1 })),
        (changed(1, "k", json!("AQAB")), Err(KeySetError::Private { index: 1 })),
        // Damaged.
        (changed(0, "n", json!("AQAB")), damaged("n")),
        (changed(0, "n", json!(7)), damaged("n")),
        (changed(0, "e", json!("!")), damaged("e")),
        (changed(1, "x", json!("AQAB")), damaged("x")),
        (changed(1, "y", Value::Null), damaged("y")),
        (changed(2, "x", json!("AQAB")), damaged("x")),
        (changed(2, "kid", json!(7)), damaged("kid")),
    ] {
        let got = KeySet::parse(set.to_string().as_bytes());
        assert_eq!(got.map(|keys| keys.len()), expected, "{set}");
    }
    let text = "x".repeat(crate::keys::KEY_SET_BYTES_MAX + 1);
    assert!(matches!(KeySet::parse(text.as_bytes()), Err(KeySetError::TooLarge { .. })));
    assert!(matches!(
        KeySet::parse(b"{\n\"keys\": nonsense"),
        Err(KeySetError::Json { line: 2, .. })
    ));
}

/// RFC 8037 appendix A.4: Ed25519 over a fixed text.
#[test]
fn the_signature_of_rfc_8037_verifies() {
    let set = json!({"keys": [
        {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
    ]});
    let keys = KeySet::parse(set.to_string().as_bytes()).unwrap();
    let signed = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    let signature =
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    let key = keys.find(None, Algorithm::EdDsa).unwrap();
    assert!(key.verify(signed.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap()));
}

proptest! {
    #[test]
    fn any_bytes_end_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[A-Za-z0-9_.-]{0,200}") {
        let keys = Issuer::new().keys();
        prop_assert!(verify(&bytes, &keys, &config(), at(NOW)).is_err());
        prop_assert!(verify(text.as_bytes(), &keys, &config(), at(NOW)).is_err());
        let _ = KeySet::parse(&bytes);
    }
}
