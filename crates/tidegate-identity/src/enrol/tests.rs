use std::{net::SocketAddr, path::Path, time::Duration};

use super::*;
use crate::pki::{self, InitRequest, Kind};

const HOUR: Duration = Duration::from_secs(3600);

fn invitation(kind: Kind, name: &str) -> Invitation {
    Invitation { name: name.to_owned(), kind, hosts: Vec::new(), valid_for_s: 3600 }
}

/// A site whose node redeems invitations.
struct Site {
    folder: tempfile::TempDir,
    address: SocketAddr,
    serving: tokio::task::JoinHandle<()>,
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        pki::init(&folder.path().join("pki"), &InitRequest::default()).unwrap();
        let credentials = pki::load(&folder.path().join("pki"), "edge").unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let invitations = Invitations::in_folder(&folder.path().join("state"));
        let pki_dir = folder.path().join("pki");
        let enrolment = Enrolment::bind(any, &credentials, &pki_dir, invitations).await.unwrap();
        let address = enrolment.address().unwrap();
        Self { folder, address, serving: tokio::spawn(enrolment.serve()) }
    }

    fn invite(&self, invitation: Invitation, open_for: Duration) -> Token {
        let invitations = Invitations::in_folder(&self.folder.path().join("state"));
        let authority = std::fs::read(self.folder.path().join("pki/ca.pem")).unwrap();
        let authority = pki::fingerprint(&authority).unwrap();
        invitations.invite(invitation, open_for, self.address.to_string(), authority).unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_invitation_makes_credentials_that_the_site_accepts_and_only_once() {
    let site = Site::new().await;
    let token = site.invite(invitation(Kind::Camera, "cam7"), HOUR);
    let token: Token = token.to_string().parse().unwrap();
    let away = tempfile::tempdir().unwrap();
    let pki_dir = away.path().join("pki");
    let joined = join(&token, &pki_dir).await.unwrap();
    assert_eq!((&*joined.kind, &*joined.name), ("camera", "cam7"));
    assert_eq!(files(&pki_dir), ["ca.pem", "cam7.key", "cam7.pem"]);
    let credentials = pki::load(&pki_dir, "cam7").unwrap();
    assert_eq!(credentials.identity().kind, Kind::Camera);
    let again = join(&token, &away.path().join("again")).await.unwrap_err().to_string();
    assert!(again.contains("no such invitation"), "{again}");
    let kept = std::fs::read_to_string(site.folder.path().join("state/invitations.json")).unwrap();
    assert_eq!(kept, "[]");
}

#[tokio::test]
async fn silent_connections_shut_out_no_machine_that_joins() {
    let site = Site::new().await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(tokio::net::TcpStream::connect(site.address).await.unwrap());
    }
    let token = site.invite(invitation(Kind::Camera, "cam7"), HOUR);
    let away = tempfile::tempdir().unwrap();
    // While all of those say nothing, which each may do for ten seconds.
    join(&token, &away.path().join("pki")).await.unwrap();
    drop(silent);
}

#[tokio::test]
async fn altered_expired_and_foreign_invitations_are_refused() {
    let site = Site::new().await;
    let token = site.invite(invitation(Kind::Node, "edge2"), HOUR);
    let away = tempfile::tempdir().unwrap();
    let refused = async |token: Token| {
        let error = join(&token, &away.path().join("pki")).await.unwrap_err();
        tidegate_message::error_chain(&error)
    };
    let mut wrong = token.clone();
    wrong.secret[0] ^= 1;
    assert!(refused(wrong).await.contains("no such invitation"));
    let mut other_site = token.clone();
    other_site.authority[0] ^= 1;
    assert!(refused(other_site).await.contains("another authority"));
    let expired = site.invite(invitation(Kind::Camera, "late"), Duration::ZERO);
    assert!(refused(expired).await.contains("no such invitation"));
    let elsewhere = Token { address: "127.0.0.1:1".to_owned(), ..token.clone() };
    assert!(refused(elsewhere).await.contains("cannot be reached"));
    assert_eq!(files(&away.path().join("pki")), [""; 0]);
    // None of that has spent it.
    join(&token, &away.path().join("pki")).await.unwrap();
    // Nothing is overwritten, and nothing is spent for it.
    let next = site.invite(invitation(Kind::Node, "edge3"), HOUR);
    assert!(refused(next.clone()).await.contains("is not overwritten"));
    join(&next, &away.path().join("other")).await.unwrap();
}

#[tokio::test]
async fn a_key_that_the_asker_does_not_have_is_not_certified() {
    let site = Site::new().await;
    let token = site.invite(invitation(Kind::Camera, "cam1"), HOUR);
    let (own, others) = (pki::NewKey::generate().unwrap(), pki::NewKey::generate().unwrap());
    let message = proof_of(&token.id, &token.secret);
    assert!(pki::signed(own.public(), &message, &own.sign(&message).unwrap()));
    assert!(!pki::signed(others.public(), &message, &own.sign(&message).unwrap()));
    assert!(
        !pki::signed(&[4; 65], &message, &own.sign(&message).unwrap()),
        "no point of the curve"
    );
    assert!(!pki::signed(&[], &message, &[]));
}

#[test]
fn a_token_says_what_is_wrong_with_it_and_never_its_secret() {
    let folder = tempfile::tempdir().unwrap();
    let invitations = Invitations::in_folder(folder.path());
    let address = "edge.local:7444".to_owned();
    let made =
        invitations.invite(invitation(Kind::Camera, "cam1"), HOUR, address, [7; 32]).unwrap();
    let text = made.to_string();
    assert_eq!(text.parse::<Token>().unwrap(), made);
    assert_eq!(format!(" {text}\n").parse::<Token>().unwrap(), made);
    assert!(!format!("{made:?}").contains(text.rsplit('.').next().unwrap()));
    let secret = text.rsplit('.').next().unwrap();
    for wrong in [
        String::new(),
        text.replace("tidegate1", "tidegate2"),
        text[..text.len() - 1].to_owned(),
        text.replace('.', ":"),
        format!("{text}.x"),
    ] {
        let error = wrong.parse::<Token>().unwrap_err().to_string();
        assert!(error.contains("tidegate invite") && !error.contains(secret), "{error}");
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(folder.path().join("invitations.json")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let error =
        invitations.invite(invitation(Kind::Camera, "../x"), HOUR, "a:1".to_owned(), [0; 32]);
    assert!(matches!(error, Err(InvitationError::Name(_))));
    let hosts = vec!["edge.local".to_owned(), "no host".to_owned()];
    let bad = Invitation { hosts, ..invitation(Kind::Node, "edge2") };
    let error = invitations.invite(bad, HOUR, "a:1".to_owned(), [0; 32]).unwrap_err();
    assert!(error.to_string().contains("no host"), "{error}");
}
