use std::{
    fs,
    time::{Duration, SystemTime},
};

use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls_pki_types::{CertificateRevocationListDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};

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

/// The list that is in the site's file, in DER.
fn der(dir: &Path) -> Vec<u8> {
    let pem = fs::read(dir.join(LIST_FILE)).unwrap();
    CertificateRevocationListDer::from_pem_slice(&pem).unwrap().to_vec()
}

/// A list of that number without certificates, signed so many seconds from now.
fn empty_list(dir: &Path, number: u64, signed_in_s: i64) -> String {
    let epoch = date_time_ymd(1970, 1, 1);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let signed = Duration::from_secs(now.as_secs().checked_add_signed(signed_in_s).unwrap());
    let list = CertificateRevocationListParams {
        this_update: epoch + signed,
        next_update: epoch + signed + Duration::from_secs(3600),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(&signer(dir).unwrap()).unwrap().pem().unwrap()
}

/// The outcome for a list that another node sent.
fn adopt(lists: &Revocations, der: &[u8]) -> Adopted {
    let outcome = lists.adopt(der).unwrap().outcome;
    lists.keep_adopted();
    outcome
}

/// A folder with the authority of `site` and no list, as another node has it.
fn elsewhere(site: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(site.join("ca.pem"), dir.path().join("ca.pem")).unwrap();
    dir
}

#[test]
fn a_list_spreads_from_the_node_that_an_operator_brought_it_to() {
    let (site, state) = (site(), tempfile::tempdir().unwrap());
    let there = elsewhere(site.path());
    let (first, second) = (lists(site.path()), lists(there.path()));
    assert!(second.keep_in(state.path()).unwrap().is_empty());
    assert!(first.shared().is_empty() && second.shared().is_empty());
    let mut versions = Vec::new();
    for (count, name) in (1..).zip(["cam1", "cam2"]) {
        revoked(site.path(), name).unwrap();
        assert!(first.refresh().unwrap());
        let shared = first.shared();
        let [list] = &shared[..] else { panic!("{shared:?}") };
        assert_eq!(list.authority, key_of(&certificate(site.path(), "ca")));
        versions.push(list.version);
        for outcome in [Adopted::Newer, Adopted::Known] {
            let (authority, version) = (list.authority, list.version);
            let adoption = Adoption { authority, version, outcome };
            assert_eq!(second.adopt(&list.der).unwrap(), adoption);
        }
        assert_eq!(second.shared(), shared, "it goes on from there as it is");
        assert_eq!(second.count(), count);
        assert!(second.find(&certificate(site.path(), name)).is_some());
        assert!(second.refresh().unwrap(), "a look from time to time finds it");
        assert!(!second.refresh().unwrap(), "and once");
        assert!(!second.reread().unwrap(), "that this node has no file is no error");
    }
    assert!(versions.is_sorted() && versions[0] != versions[1], "{versions:?}");
    second.keep_adopted();

    // The next start knows of it, and has nothing to say of the file.
    let started = lists(there.path());
    assert_eq!(started.count(), 0);
    assert!(started.look_in(state.path()).unwrap().is_empty());
    assert!(started.keep_in(state.path()).unwrap().is_empty());
    assert_eq!((started.count(), started.shared()), (2, second.shared()));
    assert!(!started.refresh().unwrap(), "it was in use from the start");
}

fn key_of(authority: &CertificateDer<'_>) -> NodeId {
    let parsed = webpki::EndEntityCert::try_from(authority).unwrap();
    NodeId(Sha256::digest(parsed.subject_public_key_info()).into())
}

#[test]
fn of_a_file_and_a_list_of_another_node_the_newer_is_in_use() {
    let (site, state) = (site(), tempfile::tempdir().unwrap());
    let there = elsewhere(site.path());
    let file = there.path().join(LIST_FILE);
    let bring = || fs::copy(site.path().join(LIST_FILE), &file).unwrap();
    revoked(site.path(), "cam1").unwrap();
    bring();
    let running = lists(there.path());
    assert!(running.keep_in(state.path()).unwrap().is_empty());
    let first = der(site.path());
    revoked(site.path(), "cam2").unwrap();
    let second = der(site.path());
    assert_eq!(adopt(&running, &second), Adopted::Newer);
    // The file lags behind, which is no error: not while the node runs, and not at its next start.
    assert!(running.reread().unwrap() && !running.reread().unwrap());
    assert_eq!((running.count(), adopt(&running, &first)), (2, Adopted::Older));
    let started = lists(there.path());
    assert_eq!(started.count(), 1);
    assert!(started.keep_in(state.path()).unwrap().is_empty());
    assert_eq!(started.count(), 2);
    // A newer one that an operator brings counts at once, and after a start.
    revoked(site.path(), "application").unwrap();
    bring();
    for lists in [&running, &started] {
        assert!(lists.refresh().unwrap());
        assert_eq!((lists.count(), adopt(lists, &second)), (3, Adopted::Older));
        assert_eq!(adopt(lists, &der(site.path())), Adopted::Known);
    }
    let started = lists(there.path());
    assert!(started.keep_in(state.path()).unwrap().is_empty());
    assert_eq!(started.count(), 3);
    // A file that goes back behind its own former list is wrong all the same.
    fs::remove_file(&file).unwrap();
    assert!(matches!(running.refresh(), Err(RevocationError::Gone { .. })));
    let started = lists(there.path());
    let wrong = started.keep_in(state.path()).unwrap();
    assert!(matches!(&wrong[..], [RevocationError::Gone { .. }]), "{wrong:?}");
    assert_eq!(started.count(), 3);
}

#[test]
fn an_operator_learns_that_a_restored_authority_counts_from_too_low() {
    let (site, state) = (site(), tempfile::tempdir().unwrap());
    let there = elsewhere(site.path());
    let list = |number, signed_in_s| empty_list(site.path(), number, signed_in_s);
    let running = lists(there.path());
    running.keep_in(state.path()).unwrap();
    fs::write(there.path().join(LIST_FILE), list(5, -100)).unwrap();
    assert!(running.refresh().unwrap());
    fs::write(site.path().join(LIST_FILE), list(7, -50)).unwrap();
    assert_eq!(adopt(&running, &der(site.path())), Adopted::Newer);
    fs::write(there.path().join(LIST_FILE), list(6, 0)).unwrap();
    let counted_back = |error: &RevocationError| {
        assert!(matches!(error, RevocationError::CountedBack { .. }), "{error}");
        error.to_string().contains("list 06") && error.to_string().contains("above 07")
    };
    assert!(counted_back(&running.refresh().unwrap_err()));
    assert!(counted_back(&running.reread().unwrap_err()));
    let started = lists(there.path());
    assert!(counted_back(&started.look_in(state.path()).unwrap()[0]));
    assert!(counted_back(&started.keep_in(state.path()).unwrap()[0]));
    // Counted twice, the list that was signed later is the newer, and has the higher version.
    let version = running.shared()[0].version;
    fs::write(there.path().join(LIST_FILE), list(7, 0)).unwrap();
    running.refresh().unwrap();
    assert!(running.shared()[0].version > version);
    assert_eq!(adopt(&started, &running.shared()[0].der), Adopted::Newer);
}

#[test]
fn a_list_that_no_authority_here_signed_is_not_adopted() {
    let (site, other) = (site(), site());
    for dir in [site.path(), other.path()] {
        revoked(dir, "cam1").unwrap();
    }
    let there = elsewhere(site.path());
    let lists = lists(there.path());
    let right = der(site.path());
    let is_refused = |bytes: &[u8]| {
        let adopted = lists.adopt(bytes);
        assert!(matches!(adopted, Err(RevocationError::Shared(_))), "{adopted:?}");
        lists.count() == 0 && lists.shared().is_empty()
    };
    assert!(is_refused(&der(other.path())) && is_refused(b"") && is_refused(&[0x30; 4096]));
    assert!(is_refused(&certificate(site.path(), "ca")), "a certificate is no list");
    for at in 0..right.len() {
        let mut flipped = right.clone();
        flipped[at] ^= 1;
        assert!(is_refused(&flipped) && is_refused(&right[..at]), "byte {at}");
    }
    let long = lists.adopt(&vec![0; SHARED_BYTES_MAX + 1]);
    assert!(matches!(long, Err(RevocationError::SharedTooLong { .. })), "{long:?}");
    assert!(Revocations::none().adopt(&right).is_err(), "there is no authority");
    assert_eq!(adopt(&lists, &right), Adopted::Newer);
}

#[test]
fn a_list_from_a_clock_far_ahead_is_not_adopted() {
    let site = site();
    revoked(site.path(), "cam1").unwrap();
    let (list, there) = (der(site.path()), elsewhere(site.path()));
    let lists = lists(there.path());
    let signed_at = self::lists(site.path()).lists()[0].signed_at;
    let before = |ahead: Duration| {
        let ahead = i64::try_from(ahead.as_nanos()).unwrap();
        Instant::from_nanos(signed_at.as_nanos() - ahead)
    };
    let refused = lists.adopt_at(&list, before(AHEAD_MAX + Duration::from_secs(1))).unwrap_err();
    assert!(matches!(refused, RevocationError::Ahead { .. }), "{refused}");
    assert_eq!(lists.count(), 0);
    assert_eq!(lists.adopt_at(&list, before(AHEAD_MAX)).unwrap().outcome, Adopted::Newer);
    // However old a list is, it may be the newest.
    let later = Instant::from_nanos(i64::MAX);
    assert_eq!(self::lists(there.path()).adopt_at(&list, later).unwrap().outcome, Adopted::Newer);
}

#[test]
fn adoption_waits_for_no_disk() {
    let (site, state) = (site(), tempfile::tempdir().unwrap());
    revoked(site.path(), "cam1").unwrap();
    let there = elsewhere(site.path());
    let running = lists(there.path());
    running.keep_in(state.path()).unwrap();
    let copies = || fs::read_dir(state.path()).unwrap().count();
    // Another thread hangs in a file.
    let disk = running.disk();
    assert_eq!(running.adopt(&der(site.path())).unwrap().outcome, Adopted::Newer);
    assert!(running.find(&certificate(site.path(), "cam1")).is_some(), "it is in use");
    assert_eq!(copies(), 0);
    drop(disk);
    running.keep_adopted();
    assert_eq!(copies(), 1);
}

#[tokio::test]
async fn adoption_wakes_those_who_wait_for_it() {
    let (site, state) = (site(), tempfile::tempdir().unwrap());
    revoked(site.path(), "cam1").unwrap();
    let serial = Serial::of(&certificate(site.path(), "cam1")).unwrap();
    let there = elsewhere(site.path());
    let lists = Arc::new(lists(there.path()));
    lists.keep_in(state.path()).unwrap();
    let changed = lists.changed();
    let adopted = async {
        tokio::task::yield_now().await;
        adopt(&lists, &der(site.path()))
    };
    let (revoked, (), adopted) = tokio::join!(lists.revoked(&serial), changed, adopted);
    assert_eq!((revoked.reason, adopted), (Reason::KeyCompromise, Adopted::Newer));
}

#[test]
fn an_adopted_list_whose_copy_is_damaged_is_not_forgotten_in_silence() {
    let (site, state) = (site(), tempfile::tempdir().unwrap());
    revoked(site.path(), "cam1").unwrap();
    let there = elsewhere(site.path());
    let running = lists(there.path());
    running.keep_in(state.path()).unwrap();
    adopt(&running, &der(site.path()));
    let copies: Vec<_> = fs::read_dir(state.path()).unwrap().map(|it| it.unwrap().path()).collect();
    let [copy] = &copies[..] else { panic!("{copies:?}") };
    assert!(copy.file_name().unwrap().to_str().unwrap().starts_with("adopted-"));
    fs::write(copy, "").unwrap();
    let started = lists(there.path());
    assert!(started.look_in(state.path()).is_err() && started.keep_in(state.path()).is_err());
}
