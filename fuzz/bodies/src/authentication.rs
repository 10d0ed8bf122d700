//! Authentication and access: proofs, users, rules and names.

use std::{path::Path, sync::LazyLock};

use rustls_pki_types::CertificateDer;
use tidegate_identity::{
    auth::{
        acl::Acl,
        keys::KeySet,
        password::{DecoyKey, Passwords, remove_user, set_user},
        roles::Roles,
        scram::{Credentials, Lookup, Scram, ScramClient},
        token::{TOKEN_BYTES_MAX, TokenConfig, verify},
    },
    pki::{Serial, revocation::RevocationList},
};
use tidegate_message::{
    Action, Authorize as _, Identity, IdentityKind, Instant, Target, check_topic_name,
    topic_matches,
};
use tidegate_server::certificate::common_name;

static CREDENTIALS: LazyLock<Credentials> =
    LazyLock::new(|| Credentials::derive(b"pencil", b"salt of sixteen.", 4096));

/// Messages of SCRAM, a line each: the client's first and last, as a server reads them, then the server's first and last, as a
/// client reads them. The user that a server reads is the one that a client names; a client continues with its own nonce
/// alone.
pub fn scram(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let lookup = |_: &str| Lookup { credentials: CREDENTIALS.clone(), known: true };
    let (client_first, client_final) = (line(), line());
    if let Ok((exchange, server_first)) = Scram::begin(client_first, [7; 18], lookup) {
        assert!(server_first.starts_with(b"r=") && server_first.len() <= client_first.len() + 100);
        let user = exchange.claimed_user().to_owned();
        assert!(!user.is_empty());
        let (_, first) = ScramClient::begin(&user, b"", [7; 18]);
        let (again, _) = Scram::begin(&first, [7; 18], lookup).expect("a client of ours is read");
        assert_eq!(again.claimed_user(), user);
        if let Ok((proved, server_final)) = exchange.finish(client_final) {
            assert_eq!(proved, user);
            assert!(server_final.starts_with(b"v="));
        }
    }

    let (mut client, _) = ScramClient::begin("user", b"pencil", [7; 18]);
    let (server_first, server_final) = (line(), line());
    assert!(client.verify(server_final).is_err(), "nothing was proved yet");
    // A client's result for more rounds is the same, and takes seconds.
    if server_first.windows(3).any(|bytes| bytes == b",i=") && !server_first.ends_with(b",i=4096") {
        return;
    }
    if let Ok(answer) = client.answer(server_first) {
        assert!(answer.starts_with(b"c=biws,r=BwcHBwcHBwcHBwcHBwcHBwcH"));
        assert!(answer.len() <= server_first.len() + 100);
        let _ = client.verify(server_final);
    }
}

/// A password file: each of its users can be taken out and put in again, is shown the same salt each time, and no error
/// repeats a secret.
pub fn password_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let parse = |text: &str| Passwords::parse(Path::new("passwords"), text, DecoyKey([7; 32]));
    let passwords = match parse(text) {
        Ok(passwords) => passwords,
        Err(error) => {
            // A file without a line has an error in its first one all the same.
            let Some(line) = text.lines().nth(error.line - 1) else { return };
            let (user, secret) = line.split_once(':').unwrap_or_default();
            let said = error.to_string();
            // A message that it prints of any secret of this length, it does not print of this one.
            let other = text.replacen(line, &format!("{user}:{}", "x".repeat(secret.len())), 1);
            let says_always = parse(&other).is_err_and(|other| other.to_string() == said);
            let is_told = secret.len() >= 16 && said.contains(secret) && !user.contains(secret);
            assert!(!is_told || says_always, "{said}");
            return;
        }
    };
    let users = passwords.users();
    assert_eq!(users.len(), passwords.len());
    assert_eq!(passwords.changed(&parse(text).expect("it parsed")), [""; 0]);
    for user in users.iter().take(3) {
        let without = remove_user(text, user).expect("the user is there");
        if users.len() == 1 {
            assert!(parse(&without).is_err(), "a file without a user is refused");
            continue;
        }
        let fewer = parse(&without).expect("the remaining file parses");
        assert_eq!(fewer.len() + 1, users.len());
        assert_eq!(passwords.changed(&fewer), [user.as_str()]);
        let with = set_user(&without, user, &CREDENTIALS.encode()).expect("the name is one");
        let again = parse(&with).expect("the written file parses");
        assert_eq!(again.users(), users);
        assert_eq!(again.scram(user).credentials, *CREDENTIALS);
        assert!(!fewer.scram(user).known);
        assert_eq!(fewer.scram(user).credentials, fewer.scram(user).credentials);
    }
}

/// An ACL file, after a line with a user, a client and a topic: a client that may receive a topic may subscribe to it, a rule
/// that denies wins, and each decision says why.
pub fn acl_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some((asked, rules)) = text.split_once('\n') else { return };
    let mut asked = asked.splitn(3, ' ');
    let mut word = || asked.next().unwrap_or_default();
    let (user, client, topic) = (word(), word(), word());
    let identity = match user {
        "" => Identity::anonymous(client),
        _ => Identity::new(IdentityKind::User, user, client),
    };
    let parse = |rules: &str| Acl::parse(Path::new("acl"), rules);
    let acl = match parse(rules) {
        Ok(acl) => acl,
        Err(error) => return assert!(!error.to_string().is_empty() && error.line > 0),
    };
    let rules_count = acl.len();
    assert_eq!(acl.is_empty(), rules_count == 0);
    let may = |acl: &Acl, action, target| {
        let decision = acl.decide(&identity, action, target);
        assert!(decision.rule.starts_with("acl:"), "{decision:?}");
        decision.allow
    };
    let subscribes = may(&acl, Action::Subscribe, Target::Filter(topic));
    if check_topic_name(topic, usize::MAX).is_err() || topic.starts_with("$share/") {
        return;
    }
    let receives = may(&acl, Action::Receive, Target::Topic(topic));
    assert!(!receives || subscribes, "{topic} is sent to who may not subscribe to it");
    assert!(receives || !(subscribes && acl.receives_all()), "{topic} is not checked");
    let publishes = may(&acl, Action::Publish, Target::Topic(topic));
    if !topic_matches("#", topic) {
        return;
    }
    assert!(!receives || may(&acl, Action::Subscribe, Target::Filter("#")));
    let denied = parse(&format!("{rules}\npattern deny #\n")).expect("one more rule");
    assert!(!may(&denied, Action::Receive, Target::Topic(topic)));
    assert!(!publishes || !may(&denied, Action::Publish, Target::Topic(topic)));
}

/// A set of keys, then a line feed and a token. A set that is read is read again to the same. A token that is accepted is
/// accepted with the same keys again, names a user, and is refused with another byte; with a key that is not its own no token
/// is accepted.
pub fn token(data: &[u8]) {
    let (keys, token) = match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &data[..0]),
    };
    let now = Instant::from_millis(1_700_000_000_000);
    let config = TokenConfig::new("tidegate");
    let taken = |keys: &KeySet, token: &[u8]| verify(token, keys, &config, now);
    // RFC 8037 appendix A.2: the private half is not here.
    static OTHER: LazyLock<KeySet> = LazyLock::new(|| {
        let set = br#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
        KeySet::parse(set).expect("the set of the standard")
    });
    assert!(taken(&OTHER, token).is_err(), "it cannot have been signed");
    let Ok(keys) = KeySet::parse(keys) else { return };
    assert!(!keys.is_empty());
    let Ok(claims) = taken(&keys, token) else { return };
    assert!(!claims.name.is_empty() && claims.until > now && token.len() <= TOKEN_BYTES_MAX);
    assert_eq!(taken(&keys, token).expect("it was taken before"), claims);
    for at in [0, token.len() / 3, token.len() / 2, token.len() - 1] {
        let mut other = token.to_vec();
        other[at] = if other[at] == b'A' { b'B' } else { b'A' };
        assert!(taken(&keys, &other).is_err(), "{at}");
    }
}

/// A roles file, after a line with a user, a client and a topic: a client that may receive a topic may subscribe to it, a role
/// that denies all of it to everyone wins, and each decision says why.
pub fn roles_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some((asked, rules)) = text.split_once('\n') else { return };
    let mut asked = asked.splitn(3, ' ');
    let mut word = || asked.next().unwrap_or_default();
    let (user, client, topic) = (word(), word(), word());
    let identity = match user {
        "" => Identity::anonymous(client),
        _ => Identity::new(IdentityKind::User, user, client),
    };
    let roles = match Roles::parse(Path::new("roles"), rules) {
        Ok(roles) => roles,
        Err(error) => return assert!(!error.to_string().is_empty() && error.line > 0),
    };
    let roles_count = roles.len();
    assert_eq!(roles.is_empty(), roles_count == 0);
    let may = |action, target| {
        let decision = roles.decide(&identity, action, target);
        assert!(decision.rule.starts_with("roles:"), "{decision:?}");
        decision.allow
    };
    for action in [Action::Frames, Action::FetchOriginal, Action::Admin, Action::Publish] {
        may(action, Target::Camera(topic));
    }
    let subscribes = may(Action::Subscribe, Target::Filter(topic));
    if check_topic_name(topic, usize::MAX).is_err() || topic.starts_with("$share/") {
        return;
    }
    let receives = may(Action::Receive, Target::Topic(topic));
    assert!(!receives || subscribes, "{topic} is sent to who may not subscribe to it");
    assert!(receives || !(subscribes && roles.receives_all()), "{topic} is not checked");
}

/// An authority, after two bytes with its length, and a list of it: each number that is read is read again as it is written, and
/// another authority's list is refused.
pub fn revocation_list(data: &[u8]) {
    let Some((&length, rest)) = data.split_first_chunk() else { return };
    let length = usize::from(u16::from_be_bytes(length));
    let Some((authority, list)) = rest.split_at_checked(length) else { return };
    let authority = [CertificateDer::from(authority)];
    let Ok(read) = RevocationList::read(list, &authority) else { return };
    for serial in read.entries.keys() {
        let again: Serial = serial.to_string().parse().expect("a written number is read");
        assert_eq!(again.to_string(), serial.to_string());
    }
    let stranger = [certificate(b"")];
    assert!(RevocationList::read(list, &stranger).is_err(), "it is taken for another's");
}

/// A certificate, and the same bytes as the subject of one and as the name in it: a name that is read stands there, and one
/// that is written is read.
pub fn certificate_name(data: &[u8]) {
    let _ = common_name(&CertificateDer::from(data));
    let data = &data[..data.len().min(1 << 15)];
    if let Some(name) = common_name(&certificate(data)) {
        assert!(!name.is_empty() && !name.contains(char::is_control));
        assert!(data.windows(name.len()).any(|bytes| bytes == name.as_bytes()));
    }
    let attribute = der(0x30, &[b"\x06\x03\x55\x04\x03", &der(0x0c, &[data])]);
    let name = common_name(&certificate(&der(0x31, &[&attribute])));
    let text = std::str::from_utf8(data).ok();
    let is_name = |text: &&str| !text.is_empty() && !text.contains(char::is_control);
    assert_eq!(name.as_deref(), text.filter(is_name));
}

/// An X.509 certificate of version 3 whose subject has this content (RFC 5280 section 4.1).
fn certificate(subject: &[u8]) -> CertificateDer<'static> {
    let algorithm = der(0x30, &[b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02"]);
    let validity = der(0x30, &[&der(0x17, &[b"200101000000Z"]), &der(0x17, &[b"400101000000Z"])]);
    let curve = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
    let key = der(0x30, &[&der(0x30, &[curve]), &der(0x03, &[b"\x00\x04", &[1; 64]])]);
    let certified = der(
        0x30,
        &[
            &der(0xa0, &[b"\x02\x01\x02"]),
            b"\x02\x01\x01",
            &algorithm,
            &der(0x30, &[]),
            &validity,
            &der(0x30, &[subject]),
            &key,
        ],
    );
    let signature = der(0x03, &[b"\x00", &[1; 8]]);
    der(0x30, &[&certified, &algorithm, &signature]).into()
}

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut bytes = vec![tag];
    match u16::try_from(content.len()).expect("the parts are short").to_be_bytes() {
        [0, low @ ..0x80] => bytes.push(low),
        [0, low] => bytes.extend([0x81, low]),
        [high, low] => bytes.extend([0x82, high, low]),
    }
    bytes.extend(content);
    bytes
}
