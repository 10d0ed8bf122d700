use std::{fs, os::unix::fs::PermissionsExt};

use super::*;

fn request() -> InitRequest {
    InitRequest {
        cameras: vec!["cam1".to_owned()],
        hosts: vec!["edge.example".to_owned(), "10.0.0.7".to_owned()],
        ..InitRequest::default()
    }
}

fn made() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    init(dir.path(), &request()).unwrap();
    dir
}

#[test]
fn certificates_carry_kind_name_and_hosts() {
    let dir = made();
    for (name, kind) in
        [("edge", Kind::Node), ("cam1", Kind::Camera), ("application", Kind::Application)]
    {
        let credentials = load(dir.path(), name).unwrap();
        assert_eq!((credentials.identity().kind, &*credentials.identity().name), (kind, name));
    }
    let edge = load(dir.path(), "edge").unwrap();
    let parsed = webpki::EndEntityCert::try_from(&edge.certified.cert[0]).unwrap();
    for host in ["localhost", "127.0.0.1", "::1", "edge.example", "10.0.0.7", NODE_SERVER_NAME] {
        let name = rustls_pki_types::ServerName::try_from(host).unwrap();
        assert!(parsed.verify_is_valid_for_subject_name(&name).is_ok(), "{host}");
    }
}

#[test]
fn node_ids_are_stable_and_differ() {
    let dir = made();
    let id = |name| load(dir.path(), name).unwrap().identity().node;
    assert_eq!(id("edge"), id("edge"));
    assert_ne!(id("edge"), id("cam1"));
}

#[test]
fn files_are_private_and_never_overwritten() {
    let dir = made();
    for file in fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", file.path());
    }
    let before = fs::read(dir.path().join("ca.pem")).unwrap();
    assert!(matches!(init(dir.path(), &request()), Err(PkiError::Exists { .. })));
    assert_eq!(fs::read(dir.path().join("ca.pem")).unwrap(), before);
}

#[test]
fn an_authority_makes_more_certificates_later() {
    let dir = made();
    add(dir.path(), Kind::Camera, "cam2", &[], VALID_FOR_DEFAULT).unwrap();
    assert_eq!(load(dir.path(), "cam2").unwrap().identity().kind, Kind::Camera);
    let again = add(dir.path(), Kind::Camera, "cam2", &[], VALID_FOR_DEFAULT);
    assert!(matches!(again, Err(PkiError::Exists { .. })));
}

#[test]
fn wrong_files_are_named() {
    let dir = made();
    let path = |name: &str| dir.path().join(name);

    let missing = load(dir.path(), "cam9").unwrap_err();
    assert!(matches!(&missing, PkiError::Missing { path: p } if *p == path("cam9.pem")));
    assert!(missing.to_string().contains("tidegate init"), "{missing}");

    let stranger = made();
    fs::copy(stranger.path().join("edge.pem"), path("stranger.pem")).unwrap();
    fs::copy(stranger.path().join("edge.key"), path("stranger.key")).unwrap();
    assert!(matches!(load(dir.path(), "stranger"), Err(PkiError::Untrusted { .. })));

    fs::copy(path("cam1.pem"), path("mixed.pem")).unwrap();
    fs::copy(path("edge.key"), path("mixed.key")).unwrap();
    assert!(matches!(load(dir.path(), "mixed"), Err(PkiError::KeyMismatch { .. })));

    fs::write(path("cam1.pem"), "not a certificate").unwrap();
    assert!(matches!(load(dir.path(), "cam1"), Err(PkiError::Malformed { .. })));
}

#[test]
fn an_expired_certificate_is_named() {
    let dir = tempfile::tempdir().unwrap();
    init(dir.path(), &InitRequest { valid_for: Duration::from_secs(60), ..request() }).unwrap();
    let at = |seconds: i64| {
        let now = UnixTime::now().as_secs().saturating_add_signed(seconds);
        load_at(dir.path(), "cam1", UnixTime::since_unix_epoch(Duration::from_secs(now)))
    };
    assert!(at(0).is_ok());
    assert!(matches!(at(-2 * 24 * 3600), Err(PkiError::NotYetValid { .. })));
    let error = at(120).unwrap_err();
    assert!(matches!(&error, PkiError::Expired { path } if path.ends_with("cam1.pem")), "{error}");
}

#[test]
fn names_that_cannot_be_are_refused() {
    for (nodes, hosts, expected) in [
        (vec!["../edge"], vec![], "\"../edge\" cannot be the name of a certificate"),
        (vec!["ca"], vec![], "\"ca\" cannot be the name of a certificate"),
        (vec!["a", "a"], vec![], "the name \"a\" is given twice"),
        (vec!["a"], vec!["not a host"], "\"not a host\" is neither a host name nor"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let strings = |texts: Vec<&str>| texts.into_iter().map(str::to_owned).collect();
        let request =
            InitRequest { nodes: strings(nodes), hosts: strings(hosts), ..InitRequest::default() };
        let error = init(dir.path(), &request).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written");
    }
}

#[test]
fn only_a_node_may_serve() {
    let dir = made();
    let camera = load(dir.path(), "cam1").unwrap();
    assert!(matches!(camera.server_tls(&[b"x"]), Err(PkiError::Kind { .. })));
    assert!(camera.client_tls(b"x").is_ok());
    assert!(load(dir.path(), "edge").unwrap().server_tls(&[b"x"]).is_ok());
}
