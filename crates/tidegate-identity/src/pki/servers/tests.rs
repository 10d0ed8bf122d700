use rustls::version::{TLS12, TLS13};
use tidegate_message::error_chain;
use tidegate_process::tls::servers_of;

use super::*;
use crate::pki::{
    self, InitRequest,
    files::{certificates, private_key},
};

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tls");

fn read(name: &str) -> Vec<CertificateDer<'static>> {
    certificates("", &Path::new(FILES).join(format!("{name}.pem"))).unwrap()
}

fn key(name: &str) -> PrivateKeyDer<'static> {
    private_key("", &Path::new(FILES).join(format!("{name}.key"))).unwrap()
}

/// The objection of a client to the server that shows a certificate; none if it is trusted.
fn objection(
    verifier: Arc<dyn ServerCertVerifier>,
    shown: Arc<SingleCertAndKey>,
    version: &'static rustls::SupportedProtocolVersion,
) -> Option<rustls::Error> {
    let server = tls::server(&[version]).unwrap().with_no_client_auth().with_cert_resolver(shown);
    let client = tls::client(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = rustls::ServerConnection::new(Arc::new(server)).unwrap();
    while client.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets().unwrap();
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            if let Err(error) = client.process_new_packets() {
                return Some(error);
            }
        }
    }
    None
}

/// They are made as mosquitto-tls(7) and OpenSSL's manual make them.
#[test]
fn server_that_names_no_host_is_trusted_where_it_is_named_itself() {
    let old = "the server's certificate is of X.509 version 1";
    let authority = "the server shows the certificate of an authority (CA:TRUE";
    let insecure = true;
    for (name, own, ca, any_name, expected) in [
        ("old", "old", &["old"][..], !insecure, None),
        ("old", "old", &["ca", "old"], !insecure, None),
        ("own", "own", &["own"], !insecure, None),
        // One of version 3 has a place for names, and these have none.
        ("leaf", "leaf", &["leaf"], !insecure, Some("not valid for")),
        ("self", "self", &["self"], !insecure, Some("not valid for")),
        ("leaf", "leaf", &["leaf"], insecure, None),
        ("self", "self", &["self"], insecure, None),
        // The word of its authority counts for no certificate that says nothing.
        ("old", "old", &["ca"], !insecure, Some(old)),
        ("old", "old", &["ca"], insecure, Some(old)),
        ("own", "own", &["ca"], !insecure, Some(old)),
        ("self", "self", &["ca"], !insecure, Some(authority)),
        ("late", "late", &["late"], !insecure, Some("Expired")),
        // The key of another.
        ("own", "leaf", &["own"], !insecure, Some("BadSignature")),
        ("leaf", "own", &["leaf"], insecure, Some("BadSignature")),
    ] {
        for version in [&TLS12, &TLS13] {
            let named = ca.iter().flat_map(|name| read(name)).collect();
            let mut verifier: Arc<dyn ServerCertVerifier> =
                Arc::new(TrustedServers::new(named).unwrap());
            if any_name {
                verifier = Arc::new(AnyName::new(verifier));
            }
            let key = provider().key_provider.load_private_key(key(own)).unwrap();
            let shown = Arc::new(CertifiedKey::new(read(name), key).into());
            let found = objection(verifier, shown, version).map(|error| error_chain(&error));
            match (&found, expected) {
                (None, None) => {}
                (Some(found), Some(expected)) => {
                    assert!(found.contains(expected), "{name} {ca:?}: {found}");
                    for debug in ["OtherError", "Fingerprint(", "UnsupportedCertVersion"] {
                        assert!(!found.contains(debug), "{name} {ca:?}: {found}");
                    }
                }
                _ => panic!("{name} {ca:?} {version:?}: {found:?}"),
            }
        }
    }
}

/// A server whose certificate is named could else name itself anything by one more that its key signs.
#[test]
fn key_of_an_old_certificate_of_an_authority_signs_no_others() {
    let (old, own) = (read("old").remove(0), read("own").remove(0));
    assert!(is_server_alone(&old));
    // Nothing tells this one from an authority of version 1.
    assert!(!is_server_alone(&own));
    assert!(!is_server_alone(&read("ca").remove(0)));
    assert!(TrustedServers::new(vec![old.clone()]).unwrap().others.is_none());
    assert!(TrustedServers::new(vec![old, own]).unwrap().others.is_some());
}

#[test]
fn any_server_has_the_key_of_what_it_shows() {
    for (name, own, is_trusted) in [
        ("old", "old", true),
        ("self", "self", true),
        ("late", "late", true),
        ("old", "own", false),
        ("leaf", "own", false),
    ] {
        for version in [&TLS12, &TLS13] {
            let key = provider().key_provider.load_private_key(key(own)).unwrap();
            let shown = Arc::new(CertifiedKey::new(read(name), key).into());
            let objection = objection(Arc::new(AnyServer::default()), shown, version);
            assert_eq!(objection.is_none(), is_trusted, "{name} {own}: {objection:?}");
        }
    }
}

#[test]
fn certificate_of_any_version_is_shown_with_its_own_key() {
    for name in ["old", "own", "self", "leaf"] {
        assert!(certified(read(name), key(name)).is_ok(), "{name}");
        let other = if name == "own" { "leaf" } else { "own" };
        let error = certified(read(name), key(other)).unwrap_err();
        assert!(matches!(error, NotCertified::OtherKey), "{name}: {error}");
    }
    assert!(matches!(certified(Vec::new(), key("own")), Err(NotCertified::Unreadable)));
}

#[test]
fn any_name_is_taken_and_all_else_is_looked_at() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let read = |folder: &Path, name: &str| certificates("", &folder.join(name)).unwrap();
    for folder in [&folder, &other] {
        pki::init(folder.path(), &InitRequest::default()).unwrap();
    }
    let usual = |folder: &Path| -> Arc<dyn ServerCertVerifier> {
        let mut roots = RootCertStore::empty();
        roots.add(read(folder, "ca.pem").remove(0)).unwrap();
        servers_of(roots).unwrap()
    };
    let shown = read(folder.path(), "edge.pem");
    let verify = |verifier: &dyn ServerCertVerifier, name: &'static str, now: UnixTime| {
        let name = ServerName::try_from(name).unwrap();
        verifier.verify_server_cert(&shown[0], &shown[1..], &name, &[], now)
    };
    let (now, verifier) = (UnixTime::now(), usual(folder.path()));
    let insecure = AnyName::new(verifier.clone());
    assert!(verify(&*verifier, "localhost", now).is_ok());
    assert!(verify(&*verifier, "other.example", now).is_err());
    for name in ["localhost", "other.example", "192.0.2.1"] {
        assert!(verify(&insecure, name, now).is_ok(), "{name}");
        let never = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1));
        assert!(verify(&insecure, name, never).is_err(), "{name}");
        let stranger = AnyName::new(usual(other.path()));
        assert!(verify(&stranger, name, now).is_err(), "{name}");
    }
}
