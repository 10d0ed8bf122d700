//! Proofs in, identities and decisions out, while texts are exchanged.

use std::{path::Path, time::Duration};

use ring::signature::{Ed25519KeyPair, KeyPair as _};

use super::*;
use crate::{
    password::{hash, set_user},
    scram::{Credentials, ScramClient},
};

const START: Now =
    Now { steady: Instant::from_millis(5_000_000), wall: Instant::from_millis(1_700_000_000_000) };

fn later(seconds: u64) -> Now {
    let time = Duration::from_secs(seconds);
    Now { steady: START.steady + time, wall: START.wall + time }
}

fn source(name: &str, text: &str) -> Option<Source> {
    Some(Source { path: name.into(), text: text.to_owned().into() })
}

/// Where alice's password is `tide`, and bob's `ebb`; weak ones, to be fast.
fn users() -> String {
    let bob = Credentials::derive(b"ebb", b"salt of bob", 4096).encode();
    let alice = Credentials::derive(b"tide", b"salt of ali", 4096).encode();
    format!("alice:{alice}\nbob:{bob}\n")
}

fn sources(passwords: bool, acl: Option<&str>, allow_anonymous: bool) -> Sources {
    Sources {
        passwords: if passwords { source("passwords", &users()) } else { None },
        acl: acl.and_then(|text| source("acl", text)),
        roles: None,
        tokens: None,
        allow_anonymous,
        administrator: None,
        decoy_key: DecoyKey([1; 32]),
    }
}

fn with_roles(text: &str, acl: Option<&str>) -> Sources {
    Sources { roles: source("roles", text), ..sources(false, acl, true) }
}

/// An issuer with one key of Ed25519, whose tokens say what is asked.
struct Issuer(Ed25519KeyPair, &'static str);

impl Issuer {
    fn new(seed: u8, key: &'static str) -> Self {
        Self(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap(), key)
    }

    fn keys(&self) -> KeySet {
        let x = base64(self.0.public_key());
        let set =
            serde_json::json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": self.1, "x": x}]});
        KeySet::parse(set.to_string().as_bytes()).unwrap()
    }

    fn token(&self, name: &str) -> String {
        let header = serde_json::json!({"alg": "EdDSA", "kid": self.1});
        let claims =
            serde_json::json!({"aud": "us", "sub": name, "exp": 1_700_001_000, "groups": ["g"]});
        let signed = format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
        let signature = base64(self.0.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn source(&self, can_renew: bool) -> Option<TokenSource> {
        let renewed_from = can_renew.then(|| "https://id.example/keys".to_owned());
        Some(TokenSource { config: TokenConfig::new("us"), keys: Some(self.keys()), renewed_from })
    }
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

fn reload(
    authenticator: &Authenticator,
    sources: &Sources,
) -> Result<Reloaded, AuthenticatorError> {
    Ok(authenticator.exchange(authenticator.prepare(sources.clone())?))
}

fn proof(user: Option<&str>, password: Option<&str>, certificate: Option<&str>) -> Proof {
    Proof {
        username: user.map(Into::into),
        password: password.map(Into::into),
        certificate: certificate.map(|name| (IdentityKind::Certificate, name.into())),
        client: "c".into(),
        address: Some([192, 0, 2, 1].into()),
        ..Proof::default()
    }
}

fn refusal(result: Result<Admitted, Rejected>) -> Option<Refusal> {
    result.err().map(|rejected| rejected.refusal)
}

#[test]
fn proofs_lead_to_identities_or_refusals() {
    use IdentityKind::{Anonymous, Certificate, User};
    let bad = Err(Refusal::BadCredentials);
    for (passwords, anonymous, user, password, certificate, expected) in [
        (true, false, Some("alice"), Some("tide"), None, Ok((User, "alice"))),
        (true, false, Some("alice"), Some("ebb"), None, bad),
        (true, false, Some("alice"), None, None, bad),
        (true, false, Some("eve"), Some("tide"), None, bad),
        (true, false, None, Some("tide"), None, bad),
        (true, false, None, None, None, Err(Refusal::ProofRequired)),
        (true, true, None, None, None, Ok((Anonymous, ""))),
        (true, true, Some("alice"), Some("ebb"), None, bad), // a wrong proof is not none
        (true, false, None, None, Some("dev-1"), Ok((Certificate, "dev-1"))),
        (true, false, Some("alice"), Some("tide"), Some("dev-1"), Ok((User, "alice"))),
        (true, false, Some("alice"), Some("ebb"), Some("dev-1"), bad),
        (true, false, None, None, Some(""), Err(Refusal::ProofRequired)),
        // Without a password file no name can be proved, so names are ignored.
        (false, true, Some("alice"), Some("tide"), None, Ok((Anonymous, ""))),
        (false, false, Some("alice"), Some("tide"), None, bad),
        (false, false, Some("alice"), None, Some("dev-1"), Ok((Certificate, "dev-1"))),
    ] {
        let authenticator = Authenticator::new(sources(passwords, None, anonymous)).unwrap();
        let proof = proof(user, password, certificate);
        let result = authenticator.authenticate(&proof, START);
        if let Ok(admitted) = &result {
            assert_eq!(admitted.identity.address, proof.address);
            assert!(authenticator.is_current(admitted, START));
        }
        let got = result.map(|who| who.identity).map_err(|rejected| rejected.refusal);
        let got = got.as_ref().map(|who| (who.kind, &*who.name)).map_err(|refusal| *refusal);
        assert_eq!(got, expected, "{proof:?}");
    }
}

#[test]
fn scram_proves_a_user_without_the_password() {
    let authenticator = Authenticator::new(sources(true, None, false)).unwrap();
    let log_in = |user: &str, password: &str| {
        let (mut client, first) = ScramClient::begin(user, password.as_bytes(), [3; 18]);
        let (server, answer) = authenticator.begin_scram(&first)?;
        let last = client.answer(&answer).unwrap();
        let proof = proof(None, None, None);
        let (admitted, last) = authenticator.finish_scram(server, &last, &proof, START)?;
        assert_eq!(client.verify(&last), Ok(()));
        Ok::<_, Rejected>(admitted.identity)
    };
    assert_eq!(&*log_in("bob", "ebb").unwrap().name, "bob");
    for (user, password) in [("bob", "tide"), ("eve", "tide")] {
        assert_eq!(log_in(user, password), Err(Refusal::BadCredentials.into()));
    }
}

#[test]
fn tokens_are_taken_as_tokens_and_as_passwords() {
    let issuer = Issuer::new(1, "one");
    let own = issuer.token("alice");
    let other = Issuer::new(2, "one").token("alice");
    for (passwords, user, password, token, expected) in [
        (false, None, None, Some(&*own), None),
        (true, None, Some(&*own), None, None),
        (true, Some(""), Some(&*own), None, None),
        (true, Some("alice"), Some(&*own), None, None),
        (true, Some("bob"), Some(&*own), None, Some(Refusal::BadToken)),
        (true, Some("alice"), Some(&*other), None, Some(Refusal::BadToken)),
        (true, Some("bob"), Some("ebb"), Some(&*other), Some(Refusal::BadToken)), // shown, so it counts
        (true, Some("alice"), Some("tide"), None, None),
        (true, Some("alice"), Some("eyJ"), None, Some(Refusal::BadCredentials)),
    ] {
        let tokens = issuer.source(false);
        let authenticator =
            Authenticator::new(Sources { tokens, ..sources(passwords, None, false) }).unwrap();
        let proof = Proof { token: token.map(Into::into), ..proof(user, password, None) };
        let result = authenticator.authenticate(&proof, START);
        if let Ok(admitted) = &result {
            assert_eq!(
                (&*admitted.identity.name, admitted.identity.kind),
                ("alice", IdentityKind::User)
            );
            assert_eq!(
                admitted.identity.groups.len(),
                usize::from(admitted.identity.until.is_some())
            );
        }
        assert_eq!(refusal(result), expected, "{user:?} {password:?} {token:?}");
    }
    // Where none are accepted, a token is a wrong password, and nothing else.
    let authenticator = Authenticator::new(sources(true, None, true)).unwrap();
    let result = authenticator.authenticate(&proof(Some("alice"), Some(&own), None), START);
    assert_eq!(refusal(result), Some(Refusal::BadCredentials));
    let proof = Proof { token: Some((&*own).into()), ..Proof::default() };
    assert_eq!(refusal(authenticator.authenticate(&proof, START)), Some(Refusal::BadToken));
}

#[test]
fn wall_clock_that_is_set_back_lengthens_no_token() {
    let issuer = Issuer::new(1, "one");
    let tokens = issuer.source(false);
    let authenticator =
        Authenticator::new(Sources { tokens, ..sources(false, None, false) }).unwrap();
    let proof = Proof { token: Some((&*issuer.token("alice")).into()), ..Proof::default() };
    // Tokens end a thousand seconds after the start, and the leeway.
    let at = |steady: u64, wall: u64| Now {
        steady: START.wall + Duration::from_secs(steady),
        wall: START.wall + Duration::from_secs(wall),
    };
    let admitted = authenticator.authenticate(&proof, at(0, 0)).expect("it is good");
    for (steady, wall, is_good) in [
        (900, 900, true),
        (2000, 2000, false),
        (2000, 0, false),
        (100, 2000, false),
        (900, 0, true),
    ] {
        let now = at(steady, wall);
        assert_eq!(authenticator.is_current(&admitted, now), is_good, "{steady} {wall}");
        assert_eq!(authenticator.authenticate(&proof, now).is_ok(), is_good, "{steady} {wall}");
    }
}

#[test]
fn keys_are_wished_for_at_a_bounded_rate() {
    let (old, new) = (Issuer::new(1, "old"), Issuer::new(2, "new"));
    let tokens = old.source(true);
    let authenticator =
        Authenticator::new(Sources { tokens, ..sources(false, None, false) }).unwrap();
    let proof = Proof { token: Some((&*new.token("alice")).into()), ..Proof::default() };
    let shown = |at: Now| refusal(authenticator.authenticate(&proof, at));
    assert!(!authenticator.takes_wish_for_keys());
    assert_eq!(shown(START), Some(Refusal::KeysAwaited));
    assert!(
        authenticator.takes_wish_for_keys() && !authenticator.takes_wish_for_keys(),
        "requested once"
    );
    assert_eq!(shown(later(1)), Some(Refusal::KeysAwaited), "they are on their way");
    assert_eq!(shown(later(10)), Some(Refusal::BadToken), "they did not help");
    assert!(!authenticator.takes_wish_for_keys());
    assert_eq!(shown(later(30)), Some(Refusal::KeysAwaited));
    assert!(authenticator.takes_wish_for_keys());
    assert_eq!(
        authenticator.set_keys(Some(new.keys())),
        KeysChanged::Withdrawn,
        "the old one is gone"
    );
    assert_eq!(authenticator.set_keys(Some(new.keys())), KeysChanged::Same);
    assert_eq!(shown(later(31)), None);
}

#[test]
fn a_proof_holds_as_long_as_it_is_valid() {
    let issuer = Issuer::new(1, "one");
    let all = Sources { tokens: issuer.source(false), ..sources(true, None, true) };
    let authenticator = Authenticator::new(all.clone()).unwrap();
    let admit = |proof: &Proof| authenticator.authenticate(proof, START).unwrap();
    let by_password = admit(&proof(Some("bob"), Some("ebb"), None));
    let by_token = admit(&proof(None, Some(&issuer.token("eve")), None));
    let by_certificate = admit(&proof(None, None, Some("dev")));
    let by_nothing = admit(&proof(None, None, None));
    let current = |now: Now| {
        [&by_password, &by_token, &by_certificate, &by_nothing]
            .map(|who| authenticator.is_current(who, now))
    };
    assert_eq!(current(START), [true; 4]);
    assert_eq!(current(later(1059)), [true; 4], "leeway included");
    assert_eq!(current(later(1060)), [true, false, true, true]);

    // An issuer that withdraws all of its keys invalidates every token.
    assert_eq!(authenticator.set_keys(None), KeysChanged::Withdrawn);
    assert_eq!(current(START), [true, false, true, true]);
    assert_eq!(authenticator.set_keys(Some(issuer.keys())), KeysChanged::Added);
    assert_eq!(current(START), [true; 4]);

    // Nor does another key of the same name stand for the one that is gone.
    let namesake = Issuer::new(3, "one");
    assert_eq!(authenticator.set_keys(Some(namesake.keys())), KeysChanged::Withdrawn);
    assert_eq!(current(START), [true, false, true, true]);
    assert_eq!(authenticator.set_keys(Some(issuer.keys())), KeysChanged::Withdrawn);
    assert_eq!(current(START), [true; 4]);

    reload(&authenticator, &Sources { tokens: Issuer::new(1, "two").source(false), ..all.clone() })
        .unwrap();
    assert_eq!(current(START), [true, false, true, true]);
    let users = set_user(&users(), "bob", &hash(b"ebb").unwrap()).unwrap();
    reload(&authenticator, &Sources { passwords: source("p", &users), ..all.clone() }).unwrap();
    assert_eq!(
        current(START),
        [false, true, true, true],
        "another secret, even of the same password"
    );
    reload(
        &authenticator,
        &Sources { passwords: None, allow_anonymous: false, tokens: None, ..all },
    )
    .unwrap();
    assert_eq!(current(START), [false, false, true, false]);
}

#[test]
fn wrong_guesses_are_slowed_and_forgotten() {
    let authenticator = Authenticator::new(sources(true, None, false)).unwrap();
    let (wrong, right) =
        (proof(Some("bob"), Some("x"), None), proof(Some("bob"), Some("ebb"), None));
    let shown = |proof: &Proof, at: Now| refusal(authenticator.authenticate(proof, at));
    for _ in 0..5 {
        assert_eq!(shown(&wrong, START), Some(Refusal::BadCredentials));
    }
    assert_eq!(shown(&right, START), Some(Refusal::TooMany));
    let other = Proof { address: Some([192, 0, 2, 2].into()), ..right.clone() };
    assert_eq!(shown(&other, START), None, "another address is not slowed");
    assert_eq!(shown(&right, later(1)), None);
    assert_eq!(shown(&wrong, START), Some(Refusal::BadCredentials), "it was forgotten");
}

#[test]
fn reload_takes_all_or_nothing() {
    let first = Sources {
        roles: source(
            "roles",
            "[role.r]\nfetch-original = [\"cam1\"]\n[authenticated]\nroles = [\"r\"]\n",
        ),
        ..sources(true, Some("user alice\ntopic read a\n"), false)
    };
    let authenticator = Authenticator::new(first.clone()).unwrap();
    let alice = Identity::new(IdentityKind::User, "alice", "c");
    let reads =
        |topic: &str| authenticator.decide(&alice, Action::Receive, Target::Topic(topic)).allow;
    let fetches = |camera: &str| {
        authenticator.decide(&alice, Action::FetchOriginal, Target::Camera(camera)).allow
    };
    let comes_in = |user, password| {
        authenticator.authenticate(&proof(Some(user), Some(password), None), START).is_ok()
    };
    let is_as_first = || {
        reads("a")
            && !reads("b")
            && fetches("cam1")
            && !fetches("cam2")
            && comes_in("bob", "ebb")
            && authenticator.generation() == 0
    };
    assert!(is_as_first());
    assert_eq!(reload(&authenticator, &first).unwrap().users_changed, Vec::<String>::new());
    assert_eq!(authenticator.generation(), 0, "nothing changed");

    // A good file with a broken one: neither is taken, whichever it is.
    let fewer = users().lines().next().unwrap().to_owned();
    let second = Sources {
        passwords: source("passwords", &fewer),
        acl: source("acl", "user alice\ntopic read b\ntopic read c\n"),
        roles: source(
            "roles",
            "[role.r]\nfetch-original = [\"cam2\"]\n[user.alice]\nroles = [\"r\"]\n",
        ),
        ..first.clone()
    };
    for (broken, expected) in [
        (
            Sources { passwords: source("passwords", "bob:secret"), ..second.clone() },
            "passwords:1: the password stands here in plain text",
        ),
        (
            Sources { acl: source("acl", "user alice\ntopic raed b\n"), ..second.clone() },
            "acl:2: \"raed\" is not an access",
        ),
        (
            Sources { roles: source("roles", "[role.r]\nfetch = [\"cam2\"]\n"), ..second.clone() },
            "roles:2: role r has no right \"fetch\"",
        ),
        (Sources { roles: source("roles", "[role.r"), ..second.clone() }, "roles:1: "),
    ] {
        let error = reload(&authenticator, &broken).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        assert!(is_as_first(), "{expected}");
    }

    let reloaded = reload(&authenticator, &second).unwrap();
    assert_eq!(reloaded.users_changed, ["bob"]);
    assert_eq!(authenticator.users().unwrap(), ["alice"]);
    assert_eq!((reloaded.users, reloaded.acl_changed, reloaded.acl_rules), (1, true, 2));
    assert_eq!((reloaded.roles_changed, reloaded.roles_rules), (true, 1));
    assert!(!reads("a") && reads("b") && !fetches("cam1") && fetches("cam2"));
    assert!(!comes_in("bob", "ebb") && authenticator.generation() == 1);

    // Other files, or none.
    let others = Sources { passwords: source("others", &users()), ..second.clone() };
    let reloaded = reload(&authenticator, &others).unwrap();
    assert_eq!(reloaded.users_changed, ["bob"]);
    assert!(comes_in("bob", "ebb"));
    let none = Sources { passwords: None, ..second };
    assert_eq!(reload(&authenticator, &none).unwrap().users_changed, ["alice", "bob"]);
    assert!(!comes_in("bob", "ebb") && authenticator.generation() == 3);
}

#[test]
fn fetched_keys_outlive_a_reload_that_brings_none() {
    let issuer = Issuer::new(1, "one");
    let mut all = Sources { tokens: issuer.source(true), ..sources(false, None, false) };
    all.tokens.as_mut().unwrap().keys = None;
    let authenticator = Authenticator::new(all.clone()).unwrap();
    let proof = Proof { token: Some((&*issuer.token("a")).into()), ..Proof::default() };
    assert!(authenticator.authenticate(&proof, START).is_err());
    assert_eq!(authenticator.set_keys(Some(issuer.keys())), KeysChanged::Added);
    assert!(!reload(&authenticator, &all).unwrap().tokens_changed);
    assert!(authenticator.authenticate(&proof, START).is_ok());
    // From elsewhere others may come.
    all.tokens.as_mut().unwrap().renewed_from = Some("https://other.example/keys".to_owned());
    assert!(reload(&authenticator, &all).unwrap().tokens_changed);
    assert!(authenticator.authenticate(&proof, START).is_err());
}

#[test]
fn broken_texts_open_no_door() {
    assert!(matches!(
        Authenticator::new(sources(true, Some("nonsense"), true)),
        Err(AuthenticatorError::Acl(_))
    ));
    assert!(matches!(
        Authenticator::new(with_roles("nonsense", None)),
        Err(AuthenticatorError::Roles(_))
    ));
}

#[test]
fn without_rules_strangers_and_those_from_afar_are_kept_from_the_node() {
    use Action::{Admin, Detect, FetchOriginal, Frames, Functions, Publish, Subscribe};
    let (topic, filter) = (Target::Topic("a"), Target::Filter("#"));
    let (camera, model, node) = (Target::Camera("cam1"), Target::Model("face"), Target::Node);
    let authenticator = Authenticator::new(sources(false, None, true)).unwrap();
    assert!(authenticator.receives_all());
    let (here, there) = (Some([127, 0, 0, 1].into()), Some([192, 0, 2, 1].into()));
    let from = |address, kind| Identity { address, ..Identity::new(kind, "x", "c") };
    use IdentityKind::{Anonymous, Certificate, Internal, Node, User};
    for (identity, expected) in [
        // publish, subscribe, frames; publish frames, originals, detect, functions, admin, admin of a model
        (from(here, Anonymous), [true, true, true, false, false, false, false, false, false]),
        (from(there, Anonymous), [true, true, true, false, false, false, false, false, false]),
        (from(here, User), [true; 9]),
        (from(there, User), [true, true, true, true, true, true, false, false, false]),
        (from(here, Certificate), [true; 9]),
        (from(there, Certificate), [true, true, true, true, true, true, false, false, false]),
        (from(None, Certificate), [true, true, true, true, true, true, false, false, false]),
        (from(there, Node), [true; 9]),
        (from(None, Internal), [true; 9]),
    ] {
        let got = [
            (Publish, topic),
            (Subscribe, filter),
            (Frames, camera),
            (Publish, camera),
            (FetchOriginal, camera),
            (Detect, model),
            (Functions, node),
            (Admin, camera),
            (Admin, model),
        ]
        .map(|(action, target)| authenticator.decide(&identity, action, target).allow);
        assert_eq!(got, expected, "{identity:?}");
    }
}

#[test]
fn two_files_count_together_and_deny_wins() {
    let acl = "topic read both\ntopic read acl\ntopic deny acl-denied\ntopic read roles-denied\n";
    let roles = "[role.r]\nsubscribe = [\"both\", \"roles\", \"acl-denied\"]\nframes = true\n\
                 [role.r.deny]\nsubscribe = [\"roles-denied\"]\n[anonymous]\nroles = [\"r\"]\n";
    let who = Identity::anonymous("c");
    for (has_acl, has_roles, expected) in [
        (
            true,
            true,
            "both:acl:1 acl:acl:2 roles:roles:2 acl-denied:!acl:3 roles-denied:!roles:5 neither:!roles",
        ),
        (
            true,
            false,
            "both:acl:1 acl:acl:2 roles:!acl acl-denied:!acl:3 roles-denied:acl:4 neither:!acl",
        ),
        (
            false,
            true,
            "both:roles:2 acl:!roles roles:roles:2 acl-denied:roles:2 roles-denied:!roles:5 neither:!roles",
        ),
    ] {
        let acl = has_acl.then_some(acl).and_then(|text| source("acl", text));
        let roles = has_roles.then_some(roles).and_then(|text| source("roles", text));
        let authenticator =
            Authenticator::new(Sources { acl, roles, ..sources(false, None, true) }).unwrap();
        let got = ["both", "acl", "roles", "acl-denied", "roles-denied", "neither"].map(|topic| {
            let decision = authenticator.decide(&who, Action::Receive, Target::Topic(topic));
            let place = decision.rule.split(": ").next().unwrap();
            format!("{topic}:{}{place}", if decision.allow { "" } else { "!" })
        });
        assert_eq!(got.join(" "), expected);
        // The ACL file speaks of topics alone.
        assert!(authenticator.decide(&who, Action::Frames, Target::Camera("x")).allow);
        assert!(!authenticator.receives_all());
    }
}

#[test]
fn a_camera_may_be_itself_unless_a_role_denies_it() {
    let cam1 = Identity::new(IdentityKind::Node, "cam1", "");
    let publishes = |text: &str, camera: &str| {
        let authenticator = Authenticator::new(with_roles(text, None)).unwrap();
        authenticator.decide(&cam1, Action::Publish, Target::Camera(camera)).allow
    };
    let denied = "[role.lost.deny]\npublish = true\n[node.cam1]\nroles = [\"lost\"]\n";
    for (text, camera, expected) in
        [("[anonymous]", "cam1", true), ("[anonymous]", "cam2", false), (denied, "cam1", false)]
    {
        assert_eq!(publishes(text, camera), expected, "{text} {camera}");
    }
}

#[test]
fn limits_of_a_reload_hold_for_those_who_are_there() {
    let limit = |max: &str| with_roles(&format!("[user.ada]\nconnections_max = {max}\n"), None);
    let authenticator = Authenticator::new(limit("2")).unwrap();
    let ada = Identity::new(IdentityKind::User, "ada", "c");
    let _one = authenticator.meter(&ada).enter().unwrap();
    let two = authenticator.meter(&ada).enter().unwrap();
    assert_eq!(authenticator.meter(&ada).enter().unwrap_err(), Refusal::Connections);
    drop(two);
    reload(&authenticator, &limit("1")).unwrap();
    assert_eq!(authenticator.meter(&ada).enter().unwrap_err(), Refusal::Connections);
}

#[test]
fn nothing_that_is_shown_holds_a_secret() {
    let sources = sources(true, Some("topic a"), false);
    let authenticator = Authenticator::new(sources.clone()).unwrap();
    let proof =
        Proof { token: Some("hunter2".into()), ..proof(Some("bob"), Some("hunter2"), None) };
    let admitted = authenticator.authenticate(&self::proof(Some("bob"), Some("ebb"), None), START);
    let shown =
        format!("{sources:?} {authenticator:?} {proof:?} {admitted:?} {:?}", Path::new("x"));
    for secret in ["hunter2", "scram-sha-256", "c2FsdCBvZiBib2I"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn the_administrator_may_everything_until_a_roles_file_speaks() {
    let administrator = Some("alice".into());
    let sources = Sources { administrator, ..sources(true, None, false) };
    let authenticator = Authenticator::new(sources.clone()).unwrap();
    let somewhere = |kind, name| Identity {
        address: Some([192, 0, 2, 1].into()),
        ..Identity::new(kind, name, "c")
    };
    let administers = |authenticator: &Authenticator, kind, name| {
        authenticator.decide(&somewhere(kind, name), Action::Admin, Target::Node).allow
    };
    assert!(administers(&authenticator, IdentityKind::User, "alice"));
    for (kind, name) in [
        (IdentityKind::User, "bob"),
        (IdentityKind::Certificate, "alice"),
        (IdentityKind::Anonymous, "alice"),
    ] {
        assert!(!administers(&authenticator, kind, name), "{kind:?} {name}");
    }
    let with = Sources { roles: source("roles", "[role.r]\nadmin = true\n"), ..sources };
    assert!(!administers(&Authenticator::new(with).unwrap(), IdentityKind::User, "alice"));
}

#[test]
fn a_password_that_was_verified_is_not_hashed_again_until_its_line_changes() {
    let authenticator = Authenticator::new(sources(true, None, false)).unwrap();
    let proof = |user: &str, word: &str| Proof {
        username: Some(user.to_owned()),
        password: Some(word.as_bytes().to_vec().into()),
        client: "c".to_owned(),
        ..Proof::default()
    };
    let (right, wrong) = (proof("alice", "tide"), proof("alice", "ebb"));
    for shown in [&right, &wrong, &proof("nobody", "tide"), &proof("bob", "tide")] {
        assert!(authenticator.recall(shown, START).is_none(), "nothing was verified yet");
    }
    let first = authenticator.authenticate(&right, START).unwrap();
    let again = authenticator.recall(&right, START).expect("it is remembered").unwrap();
    assert_eq!(again.identity, first.identity);
    assert!(authenticator.is_current(&again, START));
    // A token is valid for any client, from anywhere.
    let other =
        Proof { client: "d".to_owned(), address: Some([192, 0, 2, 1].into()), ..right.clone() };
    assert_eq!(&*authenticator.recall(&other, START).unwrap().unwrap().identity.client, "d");
    for shown in [&wrong, &proof("nobody", "tide"), &proof("bob", "tide"), &proof("alice", "")] {
        assert!(authenticator.recall(shown, START).is_none());
        assert!(authenticator.authenticate(shown, START).is_err());
    }
    // An exchange that leaves the line as it is forgets nothing; one that changes it, or takes it away, does.
    authenticator
        .exchange(authenticator.prepare(sources(true, Some("topic read a\n"), false)).unwrap());
    assert!(authenticator.recall(&right, START).is_some());
    let new = Credentials::derive(b"tide", b"another salt", 4096).encode();
    for text in [format!("alice:{new}\n"), "bob:".to_owned() + &new + "\n"] {
        let passwords = source("passwords", &text);
        authenticator.exchange(
            authenticator.prepare(Sources { passwords, ..sources(true, None, false) }).unwrap(),
        );
        assert!(authenticator.recall(&right, START).is_none(), "{text}");
    }
    assert!(authenticator.authenticate(&right, START).is_err(), "alice is gone");
    let none = sources(false, None, false);
    authenticator.exchange(authenticator.prepare(none).unwrap());
    assert!(authenticator.recall(&right, START).is_none());
}

#[test]
fn a_client_that_guessed_too_often_is_refused_without_a_hash() {
    let authenticator = Authenticator::new(sources(true, None, false)).unwrap();
    let proof = |word: &str| Proof {
        username: Some("alice".to_owned()),
        password: Some(word.as_bytes().to_vec().into()),
        address: Some([192, 0, 2, 1].into()),
        ..Proof::default()
    };
    authenticator.authenticate(&proof("tide"), START).unwrap();
    for _ in 0..5 {
        assert!(authenticator.recall(&proof("x"), START).is_none());
        assert_eq!(
            authenticator.authenticate(&proof("x"), START).unwrap_err().refusal,
            Refusal::BadCredentials
        );
    }
    for word in ["x", "tide"] {
        let refused = authenticator.recall(&proof(word), START).expect("it is known").unwrap_err();
        assert_eq!(refused.refusal, Refusal::TooMany, "{word}");
    }
    assert!(authenticator.recall(&proof("tide"), later(2)).unwrap().is_ok());
}
