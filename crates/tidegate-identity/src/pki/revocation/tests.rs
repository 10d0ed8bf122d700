use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber, date_time_ymd,
};

use super::*;
use crate::pki::{
    self, Authority, InitRequest, Kind, NewKey, PkiError, VALID_FOR_DEFAULT, issue::signer,
    read_certificate, revoke,
};

fn site() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let cameras = vec!["cam1".to_owned(), "cam2".to_owned()];
    pki::init(dir.path(), &InitRequest { cameras, ..InitRequest::default() }).unwrap();
    dir
}

fn revoked(dir: &Path, wanted: &str) -> Result<pki::Revocation, PkiError> {
    revoke(dir, &[wanted.to_owned()], Reason::KeyCompromise)
}

fn certificate(dir: &Path, name: &str) -> CertificateDer<'static> {
    read_certificate(&dir.join(format!("{name}.pem"))).unwrap().1
}

fn lists(dir: &Path) -> Revocations {
    Revocations::open(dir.join(LIST_FILE), vec![certificate(dir, "ca")]).unwrap()
}

#[test]
fn a_certificate_is_revoked_by_name_number_or_file_and_once() {
    let site = site();
    let dir = site.path();
    assert_eq!(lists(dir).count(), 0, "without a file no certificate is revoked");

    // Of one that joined, the authority has no file.
    let key = NewKey::generate().unwrap();
    let authority = Authority::load(dir).unwrap();
    let joined = authority.issue(Kind::Camera, "cam7", &[], VALID_FOR_DEFAULT, key.public());
    let joined = CertificateDer::from_pem_slice(joined.unwrap().as_bytes()).unwrap();
    let cam2 = Serial::of(&certificate(dir, "cam2")).unwrap();
    let file = dir.join("application.pem").display().to_string();
    for (number, wanted, of) in [
        (1, "cam1".to_owned(), "camera cam1"),
        (2, "cam7".to_owned(), "camera cam7"),
        (3, cam2.to_string().to_uppercase(), "camera cam2"),
        (4, file.clone(), "application application"),
    ] {
        let done = revoked(dir, &wanted).unwrap();
        assert_eq!(done.count, number, "{wanted}");
        let [(serial, Some(owner))] = &done.revoked[..] else { panic!("{done:?}") };
        assert_eq!(owner, of);
        assert_eq!(lists(dir).find_serial(serial).unwrap().reason, Reason::KeyCompromise);
        assert_eq!(lists(dir).lists()[0].number.to_string(), format!("{number:02x}"));
        assert!(matches!(revoked(dir, &wanted), Err(PkiError::RevokedBefore { .. })));
    }
    let lists = lists(dir);
    assert!(lists.find(&joined).is_some());
    for (name, is_revoked) in
        [("cam1", true), ("cam2", true), ("application", true), ("edge", false)]
    {
        assert_eq!(lists.find(&certificate(dir, name)).is_some(), is_revoked, "{name}");
        let loaded = pki::load(dir, name);
        assert_eq!(
            matches!(loaded, Err(PkiError::Revoked { .. })),
            is_revoked,
            "{name}: {loaded:?}"
        );
    }
}

#[test]
fn unknown_names_are_refused_and_nothing_changes() {
    let (site, stranger) = (site(), site());
    let dir = site.path();
    let theirs = stranger.path().join("cam1.pem").display().to_string();
    // Letters that are digits do not make a name a number.
    for wanted in ["nobody", "cafe", "", "../cam1", "no-such.pem", "ca", &theirs] {
        let both = ["cam1".to_owned(), wanted.to_owned()];
        assert!(revoke(dir, &both, Reason::Unspecified).is_err(), "{wanted:?}");
        assert!(!dir.join(LIST_FILE).exists(), "{wanted:?}");
    }
    let error = revoked(dir, "nobody").unwrap_err();
    assert!(matches!(error, PkiError::NothingToRevoke { .. }), "{error}");
    std::fs::remove_file(dir.join("ca.key")).unwrap();
    assert!(matches!(revoked(dir, "cam1"), Err(PkiError::Missing { .. })), "it takes the key");
}

#[test]
fn a_certificate_of_another_site_with_the_same_authority_name_is_on_no_list_of_ours() {
    let (ours, theirs) = (site(), site());
    revoked(ours.path(), "cam1").unwrap();
    let lists = lists(ours.path());
    assert!(lists.find(&certificate(ours.path(), "cam1")).is_some());
    assert!(lists.find(&certificate(theirs.path(), "cam1")).is_none());
}

#[test]
fn a_file_that_cannot_be_used_leaves_the_list_that_is_in_use() {
    let (site, other) = (site(), site());
    let (dir, path) = (site.path(), site.path().join(LIST_FILE));
    revoked(dir, "cam1").unwrap();
    let first = fs::read(&path).unwrap();
    let lists = lists(dir);
    revoked(dir, "cam2").unwrap();
    assert!(lists.refresh().unwrap(), "a new list is taken");
    assert!(!lists.refresh().unwrap(), "and read once");
    let second = fs::read(&path).unwrap();
    revoked(other.path(), "cam1").unwrap();
    let theirs = fs::read(other.path().join(LIST_FILE)).unwrap();
    let mut flipped = second.clone();
    flipped[second.len() / 2] ^= 1;

    type Expected = fn(&RevocationError) -> bool;
    let cases: [(&[u8], Expected); 5] = [
        (b"", |error| matches!(error, RevocationError::NotPem { .. })),
        (&second[..second.len() / 2], |error| matches!(error, RevocationError::NotPem { .. })),
        (&flipped, |error| {
            matches!(error, RevocationError::NotPem { .. } | RevocationError::List { .. })
        }),
        (&theirs, |error| {
            matches!(error, RevocationError::List { source: ListError::Foreign, .. })
        }),
        (&first, |error| matches!(error, RevocationError::Older { .. })),
    ];
    for (number, (bytes, expected)) in cases.into_iter().enumerate() {
        fs::write(&path, bytes).unwrap();
        let error = lists.refresh().unwrap_err();
        assert!(expected(&error), "{number}: {error:?}");
        assert_eq!(lists.count(), 2, "{number}");
        assert!(lists.reread().is_err(), "{number}: a second request gets the error again");
        assert!(!lists.refresh().unwrap(), "{number}: but no other");
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(lists.refresh(), Err(RevocationError::Gone { .. })));
    assert_eq!(lists.count(), 2);
    // A node that starts with a file that cannot be used accepts no client.
    fs::write(&path, &theirs).unwrap();
    assert!(matches!(pki::load(dir, "edge"), Err(PkiError::Revocations(_))));
    fs::write(&path, &second).unwrap();
    assert!(!lists.refresh().unwrap(), "the same list again is no other");
}

#[test]
fn a_list_past_its_next_update_counts() {
    let site = site();
    let dir = site.path();
    let epoch = date_time_ymd(1970, 1, 1);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let serial = Serial::of(&certificate(dir, "cam1")).unwrap();
    let list = CertificateRevocationListParams {
        this_update: epoch + now - Duration::from_secs(7200),
        next_update: epoch + now - Duration::from_secs(3600),
        crl_number: SerialNumber::from(7_u64),
        issuing_distribution_point: None,
        revoked_certs: vec![RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial.bytes()),
            revocation_time: epoch + now,
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&signer(dir).unwrap()).unwrap().pem().unwrap();
    fs::write(dir.join(LIST_FILE), list).unwrap();
    let lists = lists(dir);
    assert!(lists.lists()[0].is_overdue(Instant::from_nanos(realtime_nanos())));
    assert_eq!(lists.find_serial(&serial).unwrap().reason, Reason::Unspecified);
    pki::load(dir, "edge").expect("no other node is shut out");
}

#[test]
fn a_list_that_openssl_has_made_is_read() {
    // An authority, after two bytes with its length, and its list.
    let seed = include_bytes!("../../../../../fuzz/seeds/revocation_list/two");
    let (length, rest) = seed.split_first_chunk().unwrap();
    let (authority, list) = rest.split_at(usize::from(u16::from_be_bytes(*length)));
    let list = RevocationList::read(list, &[CertificateDer::from(authority)]).unwrap();
    assert_eq!(list.number.to_string(), "10");
    let entries: Vec<_> =
        list.entries.iter().map(|(serial, entry)| (serial.to_string(), entry.reason)).collect();
    let long = "3f07c29d".repeat(5);
    assert_eq!(entries, [("ff".to_owned(), Reason::Unspecified), (long, Reason::KeyCompromise)]);
}

#[test]
fn serial_numbers_are_read_as_they_are_written() {
    for (text, bytes, shown) in
        [("01", &[1][..], "01"), ("00:Ff", &[0, 0xff], "ff"), ("7f00", &[0x7f, 0], "7f00")]
    {
        let serial: Serial = text.parse().unwrap();
        assert_eq!(serial.bytes(), bytes, "{text}");
        assert_eq!(serial.to_string(), shown);
        assert_eq!(shown.parse::<Serial>().unwrap(), serial);
    }
    for text in ["", "0", "00", "xy", "+1"] {
        assert!(text.parse::<Serial>().is_err(), "{text}");
    }
}

#[test]
fn numbers_of_lists_end_at_the_last() {
    let mut number = ListNumber::default();
    for _ in 0..256 {
        let next = number.next().unwrap();
        assert!(next > number);
        number = next;
    }
    assert_eq!(number.to_string(), "0100");
}

#[test]
fn the_newest_list_counts_over_a_restart_whatever_became_of_its_file() {
    let (site, other) = (site(), site());
    let (dir, path) = (site.path(), site.path().join(LIST_FILE));
    let state = tempfile::tempdir().unwrap();
    // The folder is made when there is something to keep.
    let state = state.path().join("state");
    assert!(lists(dir).keep_in(&state).unwrap().is_empty(), "no certificate was revoked");
    revoked(dir, "cam1").unwrap();
    let first = fs::read(&path).unwrap();
    revoked(dir, "cam2").unwrap();
    let second = fs::read(&path).unwrap();
    let running = lists(dir);
    assert!(running.keep_in(&state).unwrap().is_empty());
    // Another list that comes while the node runs is kept as well.
    revoked(dir, "application").unwrap();
    let third = fs::read(&path).unwrap();
    assert!(running.refresh().unwrap());

    type Expected = fn(&RevocationError) -> bool;
    let gone: Expected = |error| matches!(error, RevocationError::Gone { .. });
    let older: Expected = |error| matches!(error, RevocationError::Older { .. });
    for (file, expected) in [(None, gone), (Some(&first), older), (Some(&second), older)] {
        match file {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let started = lists(dir);
        let wrong = started.keep_in(&state).unwrap();
        assert!(matches!(&wrong[..], [error] if expected(error)), "{wrong:?}");
        assert_eq!(started.count(), 3);
        assert!(started.find(&certificate(dir, "application")).is_some());
        assert!(started.reread().is_err() && started.count() == 3, "nor does a reload change it");
        // Put right, nothing is to be said any more.
        fs::write(&path, &third).unwrap();
        assert!(lists(dir).keep_in(&state).unwrap().is_empty());
    }
    // Of another site's list nothing is kept here.
    fs::remove_file(&path).unwrap();
    assert!(lists(other.path()).keep_in(&state).unwrap().is_empty());
    // A copy that cannot be read is no reason to go without.
    let copy = fs::read_dir(&state).unwrap().next().unwrap().unwrap().path();
    for bytes in [&b""[..], &third[..third.len() / 2]] {
        fs::write(&copy, bytes).unwrap();
        assert!(lists(dir).keep_in(&state).is_err());
    }
}

#[test]
fn a_list_that_cannot_be_looked_at_is_not_taken_for_none() {
    let site = site();
    let (dir, path) = (site.path(), site.path().join(LIST_FILE));
    let is_refused = || {
        let opened = Revocations::open(path.clone(), vec![certificate(dir, "ca")]);
        assert!(matches!(opened, Err(RevocationError::Read { .. })), "{opened:?}");
        assert!(matches!(pki::load(dir, "edge"), Err(PkiError::Revocations(_))));
    };
    std::os::unix::fs::symlink(dir.join("no-such-list"), &path).unwrap();
    is_refused();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    is_refused();
    fs::remove_dir(&path).unwrap();
    // Through a file, as through a folder that is for others, there is no way to it.
    let folder = dir.join("lists");
    fs::write(&folder, "").unwrap();
    std::os::unix::fs::symlink(folder.join(LIST_FILE), &path).unwrap();
    is_refused();
    fs::remove_file(&path).unwrap();
    // While it is in use, it stays in use.
    revoked(dir, "cam1").unwrap();
    let running = lists(dir);
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(dir.join("no-such-list"), &path).unwrap();
    assert!(matches!(running.refresh(), Err(RevocationError::Read { .. })));
    assert_eq!(running.count(), 1);
}
