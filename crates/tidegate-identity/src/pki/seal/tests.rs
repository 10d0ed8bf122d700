use std::path::Path;

use rustls_pki_types::pem::PemObject as _;

use super::*;
use crate::pki::{
    self, Authority, InitRequest, NewKey, VALID_FOR_DEFAULT, revocation::LIST_FILE, revoke,
};

fn site() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let request = InitRequest {
        nodes: vec!["edge".to_owned(), "mast".to_owned()],
        cameras: vec!["cam1".to_owned()],
        ..InitRequest::default()
    };
    pki::init(dir.path(), &request).unwrap();
    dir
}

fn node(dir: &Path, name: &str) -> Credentials {
    pki::load(dir, name).unwrap()
}

#[test]
fn a_seal_names_the_node_that_made_it() {
    let site = site();
    let (edge, mast) = (node(site.path(), "edge"), node(site.path(), "mast"));
    for bytes in [&b""[..], b"a record", &[0xff; 100_000]] {
        let (certificate, signature) = mast.seal(bytes).unwrap();
        for opener in [&edge, &mast] {
            let peer = opener.open_sealed(&certificate, &signature, bytes).unwrap();
            assert_eq!(peer, *mast.identity());
        }
    }
}

#[test]
fn a_seal_that_a_relay_has_changed_does_not_open() {
    let site = site();
    let (edge, mast) = (node(site.path(), "edge"), node(site.path(), "mast"));
    let bytes = b"version 7 of a record";
    let (certificate, signature) = mast.seal(bytes).unwrap();
    let (other, _) = edge.seal(bytes).unwrap();
    let changed = |original: &[u8], at: usize| {
        let mut changed = original.to_vec();
        changed[at] ^= 1;
        changed
    };
    let is_forged = |certificate: &[u8], signature: &[u8], bytes: &[u8]| {
        let opened = edge.open_sealed(certificate, signature, bytes);
        matches!(opened, Err(SealError::Forged(_)))
    };
    for at in 0..bytes.len() {
        assert!(is_forged(&certificate, &signature, &changed(bytes, at)), "byte {at}");
    }
    for at in 0..signature.len() {
        assert!(is_forged(&certificate, &changed(&signature, at), bytes), "signature {at}");
    }
    assert!(is_forged(&certificate, &signature, b""));
    assert!(is_forged(&certificate, b"", bytes));
    assert!(is_forged(&other, &signature, bytes), "another node's certificate");
    for at in 0..certificate.len() {
        let opened = edge.open_sealed(&changed(&certificate, at), &signature, bytes);
        assert!(matches!(opened, Err(SealError::Untrusted(_))), "certificate {at}: {opened:?}");
    }
    let certificate: Vec<_> = certificate.iter().copied().collect();
    for bytes_of_it in 0..certificate.len() {
        let opened = edge.open_sealed(&certificate[..bytes_of_it], &signature, bytes);
        assert!(matches!(opened, Err(SealError::Untrusted(_))), "{bytes_of_it}: {opened:?}");
    }
}

#[test]
fn a_signature_for_another_purpose_is_no_seal() {
    let site = site();
    let mast = node(site.path(), "mast");
    let signer = mast.certified.key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]);
    let plain = signer.unwrap().sign(b"a record").unwrap();
    let opened = mast.open_sealed(&mast.certified.cert[0], &plain, b"a record");
    assert!(matches!(opened, Err(SealError::Forged(_))), "{opened:?}");
    // By the bytes that are signed it is one, so the key and the certificate were right.
    let whole = [DOMAIN, b"a record"].concat();
    let signer = mast.certified.key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]);
    let sealed = signer.unwrap().sign(&whole).unwrap();
    mast.open_sealed(&mast.certified.cert[0], &sealed, b"a record").unwrap();
}

#[test]
fn only_a_node_of_the_site_seals() {
    let (site, other) = (site(), site());
    let edge = node(site.path(), "edge");
    let opened = |sealer: &Credentials| {
        let (certificate, signature) = sealer.seal(b"a record").unwrap();
        edge.open_sealed(&certificate, &signature, b"a record")
    };
    let stranger = opened(&node(other.path(), "mast"));
    assert!(matches!(stranger, Err(SealError::Untrusted(_))), "{stranger:?}");
    for name in ["cam1", "application"] {
        let refused = opened(&node(site.path(), name)).unwrap_err();
        assert!(matches!(&refused, SealError::NotNode(peer) if peer.name == name));
    }
    // The authority itself is no node either.
    let (_, authority) = pki::read_certificate(&site.path().join("ca.pem")).unwrap();
    assert!(edge.open_sealed(&authority, b"", b"").is_err());
}

#[test]
fn a_certificate_seals_within_its_time() {
    let site = site();
    let (edge, mast) = (node(site.path(), "edge"), node(site.path(), "mast"));
    let (certificate, signature) = mast.seal(b"a record").unwrap();
    let (from, until) = validity(&certificate).unwrap();
    let opened = |at: Instant, second: i64| {
        let at = u64::try_from(at.as_nanos() / 1_000_000_000 + second).unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(at));
        edge.open_sealed_at(&certificate, &signature, b"a record", at)
    };
    // The memory of a certificate does not outlast it.
    for _ in 0..2 {
        assert!(opened(from, 0).is_ok() && opened(until, 0).is_ok());
        assert!(matches!(opened(from, -1), Err(SealError::NotYetValid(_))));
        assert!(matches!(opened(until, 1), Err(SealError::Expired(_))));
    }
}

#[test]
fn a_revoked_node_seals_no_more_also_where_it_was_known() {
    let site = site();
    let edge = node(site.path(), "edge");
    let mast = node(site.path(), "mast");
    let (certificate, signature) = mast.seal(b"a record").unwrap();
    let opened = || edge.open_sealed(&certificate, &signature, b"a record");
    opened().unwrap();
    revoke(site.path(), &["mast".to_owned()], Reason::KeyCompromise).unwrap();
    assert!(opened().is_ok(), "the list has not been read");
    assert!(edge.revocations().refresh().unwrap(), "{LIST_FILE} is new");
    let refused = opened().unwrap_err();
    assert!(
        matches!(&refused, SealError::Revoked { peer, reason: Reason::KeyCompromise } if peer.name == "mast"),
        "{refused}"
    );
}

#[test]
fn certificates_that_are_remembered_are_bounded() {
    let site = site();
    let edge = node(site.path(), "edge");
    let known = |number: usize| {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_be_bytes());
        digest
    };
    let verified =
        Verified { peer: edge.identity().clone(), valid: (Instant::EPOCH, Instant::EPOCH) };
    edge.sealers
        .0
        .lock()
        .unwrap()
        .extend((0..VERIFIED_MAX).map(|number| (known(number), verified.clone())));
    let (certificate, signature) = edge.seal(b"a record").unwrap();
    for _ in 0..2 {
        edge.open_sealed(&certificate, &signature, b"a record").unwrap();
        assert_eq!(edge.sealers.0.lock().unwrap().len(), VERIFIED_MAX);
    }
    let digest: [u8; 32] = Sha256::digest(&certificate).into();
    assert!(edge.sealers.0.lock().unwrap().contains_key(&digest));
}

#[test]
fn a_node_that_joined_seals_with_its_own_key() {
    let site = site();
    let edge = node(site.path(), "edge");
    let key = NewKey::generate().unwrap();
    let authority = Authority::load(site.path()).unwrap();
    let made = authority.issue(Kind::Node, "late", &[], VALID_FOR_DEFAULT, key.public());
    let certificate = CertificateDer::from_pem_slice(made.unwrap().as_bytes()).unwrap();
    let signature = key.sign(&signed_bytes(b"a record")).unwrap();
    let peer = edge.open_sealed(&certificate, &signature, b"a record").unwrap();
    assert_eq!((&*peer.name, peer.kind), ("late", Kind::Node));
    let theirs = NewKey::generate().unwrap().sign(&signed_bytes(b"a record")).unwrap();
    let opened = edge.open_sealed(&certificate, &theirs, b"a record");
    assert!(matches!(opened, Err(SealError::Forged(_))), "{opened:?}");
}
