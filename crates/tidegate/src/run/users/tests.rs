//! Files in, an authenticator or a named mistake out.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use tidegate_message::{Action, Authorize as _, Identity, IdentityKind, Target};

use super::*;

#[path = "../../../tests/shared/poll_async.rs"]
mod poll_async;
use poll_async::poll;

/// Keys of a set with one key of Ed25519 (RFC 8037 appendix A.2).
const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"one","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

fn site(auth: &str, mqtt: &str) -> (tempfile::TempDir, Config) {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    for (name, text) in [
        ("roles", "[role.r]\nadmin = true\n[user.ada]\nroles = [\"r\"]\n"),
        ("keys", KEYS),
        ("acl", "topic read a\n"),
        (
            "passwords",
            "ada:$6$AAECAwQFBgcICQoL$Y4WPO0ICbkFB25Sxdu2LoRRrxHn+5vSWhC2EUmSYoLLtUV8GIc4CVeWWuvFv5IE5M6bpTbvMD7qDxLQrWa4e8Q==\n",
        ),
        ("broken", "[role.r"),
        ("private", &KEYS.replace("\"kid\"", "\"d\":\"AA\",\"kid\"")),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o640)).unwrap();
    }
    let text = format!("[node]\ndata_dir = \"{place}\"\n[auth]\n{auth}\n[mqtt]\n{mqtt}\n");
    let text = text.replace("FOLDER", &place);
    (folder, Config::parse(Path::new("site.toml"), &text).unwrap())
}

#[test]
fn files_are_those_of_the_configuration() {
    let (_folder, config) = site(
        "roles_file = \"FOLDER/roles\"\ntoken_keys_file = \"FOLDER/keys\"\ntoken_audience = \"us\"",
        "acl_file = \"FOLDER/acl\"\npassword_file = \"FOLDER/passwords\"",
    );
    let authenticator = open(&config).unwrap();
    let ada = Identity::new(IdentityKind::User, "ada", "");
    let stranger = Identity::anonymous("");
    assert!(authenticator.takes_proofs());
    assert!(authenticator.decide(&ada, Action::Admin, Target::Node).allow);
    assert!(!authenticator.decide(&stranger, Action::Admin, Target::Node).allow);
    assert!(authenticator.decide(&stranger, Action::Receive, Target::Topic("a")).allow);
    assert!(!authenticator.decide(&ada, Action::Receive, Target::Topic("a")).allow);
    assert_eq!(warnings(&config), Vec::<String>::new());
}

#[test]
fn unusable_settings_name_their_key_or_file() {
    for (auth, mqtt, expected) in [
        ("roles_file = \"FOLDER/none\"", "", "none cannot be read"),
        ("roles_file = \"FOLDER/broken\"", "", "broken:1: "),
        ("", "acl_file = \"FOLDER/roles\"", "roles:1: a line begins with"),
        ("", "password_file = \"FOLDER/roles\"", "roles:1: a line is USER:SECRET"),
        ("token_keys_file = \"FOLDER/keys\"", "", "auth.token_audience must be set"),
        ("token_audience = \"us\"", "", "mean nothing without keys"),
        (
            "token_keys_file = \"FOLDER/keys\"\ntoken_keys_url = \"https://x/\"\ntoken_audience = \"us\"",
            "",
            "exclude each other",
        ),
        (
            "token_keys_file = \"FOLDER/private\"\ntoken_audience = \"us\"",
            "",
            "private: key 0 of the set (from 0) is private or shared",
        ),
        (
            "token_keys_file = \"FOLDER/roles\"\ntoken_audience = \"us\"",
            "",
            "roles: the key set is not JSON",
        ),
    ] {
        let (_folder, config) = site(auth, mqtt);
        let error = tidegate_message::error_chain(&open(&config).unwrap_err());
        assert!(error.contains(expected), "{auth} {mqtt}: {error}");
    }
    for url in ["https://", "https://a b/", "https:///keys", "https://:1/"] {
        let (_folder, config) =
            site(&format!("token_keys_url = \"{url}\"\ntoken_audience = \"us\""), "");
        let error = fetcher(&config).unwrap_err().to_string();
        assert!(error.contains("must be an https:// address"), "{error}");
    }
}

#[test]
fn files_that_others_can_read_or_write_are_told() {
    let (folder, config) =
        site("roles_file = \"FOLDER/roles\"", "password_file = \"FOLDER/passwords\"");
    for (file, mode, expected) in
        [("passwords", 0o644, 1), ("passwords", 0o640, 0), ("roles", 0o644, 0), ("roles", 0o646, 1)]
    {
        let path = folder.path().join(file);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(warnings(&config).len(), expected, "{file} {mode:o}");
    }
}

#[test]
fn kept_keys_serve_until_newer_ones_come() {
    let (folder, config) =
        site("token_keys_url = \"https://id.example/keys\"\ntoken_audience = \"us\"", "");
    let keys = || sources(&config).unwrap().tokens.unwrap().keys.map(|keys| keys.len());
    assert_eq!(keys(), None);
    fs::create_dir(folder.path().join("state")).unwrap();
    let path = keys_path(&config, "https://id.example/keys");
    fs::write(&path, KEYS).unwrap();
    assert_eq!(keys(), Some(1));
    fs::write(&path, "nonsense").unwrap();
    assert_eq!(keys(), None, "a broken file of ours keeps no node from starting");
}

/// A server at an address of its own that answers each request with `answer`.
async fn server(pki: &Path, answer: String) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let credentials = tidegate_identity::pki::load(pki, "edge").unwrap();
    let tls = std::sync::Arc::new(credentials.server_tls_open(&[b"http/1.1"]).unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let acceptor = tokio_rustls::TlsAcceptor::from(tls.clone());
            // A client that does not trust it breaks off.
            let Ok(mut stream) = acceptor.accept(socket).await else { continue };
            let mut request = [0; 4096];
            let count = stream.read(&mut request).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..count]);
            assert!(request.starts_with("GET /keys?x=1 HTTP/1.1\r\n"), "{request}");
            // It may hang up in the middle of what is too long.
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    address
}

#[tokio::test]
async fn keys_are_fetched_over_https_and_bounded() {
    let pki = tempfile::tempdir().unwrap();
    tidegate_identity::pki::init(pki.path(), &tidegate_identity::pki::InitRequest::default())
        .unwrap();
    let other = tempfile::tempdir().unwrap();
    tidegate_identity::pki::init(other.path(), &tidegate_identity::pki::InitRequest::default())
        .unwrap();
    let whole =
        |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let large = format!("{}{KEYS}", " ".repeat(KEY_SET_BYTES_MAX));
    for (ca, answer, expected) in [
        (&pki, whole(KEYS), "1 keys"),
        (&pki, format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{KEYS}"), "1 keys"),
        (&other, whole(KEYS), ": invalid peer certificate"),
        (&pki, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(), "status 404"),
        (
            &pki,
            "HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n".to_owned(),
            "status 302",
        ),
        (&pki, whole(&large), "larger than"),
        (&pki, whole("{}"), "the answer is not used: the key set has no list"),
        (&pki, "SSH-2.0-x\r\n\r\n".to_owned(), "the exchange with localhost was interrupted"),
        (&pki, String::new(), "the exchange with localhost was interrupted"),
        (&pki, whole(KEYS).replace("content-length: ", "content-length: 9"), "not whole"),
    ] {
        let address = server(pki.path(), answer.clone()).await;
        let (_folder, config) = site(
            &format!(
                "token_keys_url = \"https://localhost:{}/keys?x=1\"\ntoken_keys_ca = {:?}\ntoken_audience = \"us\"",
                address.port(),
                ca.path().join("ca.pem")
            ),
            "",
        );
        let fetching = fetcher(&config).unwrap().unwrap();
        let got = match fetching.fetch().await {
            Ok((keys, _)) => format!("{} keys", keys.len()),
            Err(error) => tidegate_message::error_chain(&error),
        };
        assert!(got.contains(expected), "{answer:.40}: {got}");
    }
}

#[tokio::test]
async fn fetched_keys_reach_the_doors_and_the_disk() {
    let pki = tempfile::tempdir().unwrap();
    tidegate_identity::pki::init(pki.path(), &tidegate_identity::pki::InitRequest::default())
        .unwrap();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{KEYS}", KEYS.len());
    let address = server(pki.path(), answer).await;
    let (_folder, config) = site(
        &format!(
            "token_keys_url = \"https://localhost:{}/keys?x=1\"\ntoken_keys_ca = {:?}\ntoken_audience = \"us\"",
            address.port(),
            pki.path().join("ca.pem")
        ),
        "",
    );
    let authenticator = std::sync::Arc::new(open(&config).unwrap());
    let (fetchers, newest) = tokio::sync::watch::channel(fetcher(&config).unwrap());
    let running =
        tokio::spawn(tidegate_identity::auth::fetch::run(newest, authenticator.clone(), || {
            panic!("none is withdrawn")
        }));
    let path = keys_path(&config, config.auth.token_keys_url.as_ref().unwrap().expose());
    let kept = poll(std::time::Duration::from_secs(20), async || path.exists().then_some(()));
    kept.await.expect("they come");
    assert_eq!(authenticator.generation(), 1);
    assert_eq!(fs::read_to_string(&path).unwrap(), KEYS);
    drop(fetchers);
    running.await.expect("it ends with the sender of fetchers");
}

#[tokio::test]
async fn keys_that_the_issuer_withdraws_are_gone_and_stay_gone() {
    let pki = tempfile::tempdir().unwrap();
    tidegate_identity::pki::init(pki.path(), &tidegate_identity::pki::InitRequest::default())
        .unwrap();
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"keys\":[]}".to_owned();
    let address = server(pki.path(), answer).await;
    let (_folder, config) = site(
        &format!(
            "token_keys_url = \"https://localhost:{}/keys?x=1\"\ntoken_keys_ca = {:?}\ntoken_audience = \"us\"",
            address.port(),
            pki.path().join("ca.pem")
        ),
        "",
    );
    // Those of the last start.
    let path = keys_path(&config, config.auth.token_keys_url.as_ref().unwrap().expose());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, KEYS).unwrap();
    let authenticator = std::sync::Arc::new(open(&config).unwrap());
    let (fetchers, newest) = tokio::sync::watch::channel(fetcher(&config).unwrap());
    let (told, mut withdrawn) = tokio::sync::mpsc::channel(1);
    let tell = move || told.try_send(()).expect("sent once");
    let running =
        tokio::spawn(tidegate_identity::auth::fetch::run(newest, authenticator.clone(), tell));
    let told = tokio::time::timeout(std::time::Duration::from_secs(20), withdrawn.recv()).await;
    assert_eq!(told.expect("clients with a token have to authenticate again"), Some(()));
    assert!(!path.exists(), "the next start has them no more");
    assert_eq!(
        authenticator.set_keys(None),
        tidegate_auth::authenticator::KeysChanged::Same,
        "they are gone"
    );
    drop(fetchers);
    running.await.expect("it ends with the sender of fetchers");
}

#[test]
fn users_that_are_gone_or_cannot_be_read_open_nothing() {
    let (folder, config) = site("", "");
    let path = users_file(&config);
    fs::copy(folder.path().join("passwords"), &path).unwrap();
    let authenticator = open(&config).unwrap();
    assert!(authenticator.takes_proofs());
    // While the node runs, who the users are is not forgotten with their file.
    fs::remove_file(&path).unwrap();
    let error = tidegate_message::error_chain(&sources_again(&config, &authenticator).unwrap_err());
    assert!(error.contains("users is gone") && error.contains("restore it"), "{error}");
    // A start without it says so; a link that leads nowhere, or another kind of file, is no start.
    assert!(warnings(&config).iter().any(|warning| warning.contains("users is gone")));
    assert!(!open(&config).unwrap().takes_proofs());
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &path).unwrap();
    for again in [sources(&config), sources_again(&config, &authenticator)] {
        let error = tidegate_message::error_chain(&again.unwrap_err());
        assert!(error.contains("users cannot be read"), "{error}");
    }
    fs::remove_file(&path).unwrap();
    // A site that never had users misses none, and one more file is no less.
    let (folder, config) = site("", "password_file = \"FOLDER/passwords\"");
    let authenticator = open(&config).unwrap();
    assert!(sources_again(&config, &authenticator).is_ok());
    fs::remove_file(folder.path().join("passwords")).unwrap();
    assert!(sources_again(&config, &authenticator).is_err(), "a file that was named is there");
}
