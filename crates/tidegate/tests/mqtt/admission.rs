//! Authentication and bounds of listeners over real sockets.

use std::{
    io::Read as _,
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tidegate_identity::pki::{InitRequest, revocation::Reason};
use tidegate_load::client::{Client, ClientError, Options, Outgoing};
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter};

use crate::program::{LONGEST, Program, options_of};

fn publish(client: &mut Client, topic: &str, qos: QoS) -> Result<ReasonCode, ClientError> {
    client.publish(&Outgoing { topic, payload: b"x", qos, ..Outgoing::default() })
}

/// TLS of a client that trusts the authority in `pki`, and may show a certificate from there.
pub(crate) fn shows(pki: &Path, name: Option<&str>) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(pki.join("ca.pem")).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trusting = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let Some(name) = name else { return trusting.with_no_client_auth() };
    let chain = CertificateDer::pem_file_iter(pki.join(format!("{name}.pem"))).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(pki.join(format!("{name}.key"))).unwrap();
    trusting.with_client_auth_cert(chain, key).unwrap()
}

#[test]
fn a_certificate_says_who_its_client_is() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("data/pki");
    tidegate_identity::pki::init(&pki, &Default::default()).unwrap();
    let rules = folder.path().join("rules");
    std::fs::write(&rules, "user application\ntopic readwrite its/#\n").unwrap();
    let program = Program::start_in(
        folder,
        &format!(
            "[mqtt]\nacl_file = {rules:?}\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tls\"\n\
             client_ca = {:?}\nrequire_certificate = true\nallow_anonymous = false\n",
            pki.join("ca.pem")
        ),
    );
    let (known, stranger) = (shows(&pki, Some("application")), shows(&pki, None));
    let options = |tls| Options {
        host: "localhost".to_owned(),
        tls: Some(Arc::new(tls)),
        ..options_of(program.address("main"))
    };
    let mut client = Client::connect(options(known)).expect("its certificate is of our authority");
    let reason = publish(&mut client, "its/own", QoS::AtLeastOnce).expect("its rule allows it");
    assert!(!reason.is_failure());
    match publish(&mut client, "another", QoS::AtLeastOnce) {
        Err(ClientError::Publish { reason, .. }) => assert_eq!(reason, ReasonCode::NOT_AUTHORIZED),
        other => panic!("{other:?}"),
    }
    assert!(
        Client::connect(options(stranger)).is_err(),
        "no client is accepted without a certificate"
    );
    program.stop();
}

#[test]
fn a_certificate_of_the_site_is_the_same_over_tls_and_websocket_as_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let (pki, other) = (folder.path().join("data/pki"), folder.path().join("other"));
    let request = InitRequest {
        nodes: vec!["edge".to_owned(), "hub".to_owned()],
        cameras: vec!["cam".to_owned()],
        ..InitRequest::default()
    };
    tidegate_identity::pki::init(&pki, &request).unwrap();
    tidegate_identity::pki::init(&other, &request).unwrap();
    let roles = folder.path().join("roles");
    let text = "[role.app]\npublish = [\"app/#\"]\n[role.node]\npublish = [\"node/#\"]\n\
                [certificate.cam]\nroles = [\"app\"]\n[certificate.hub]\nroles = [\"app\"]\n\
                [certificate.application]\nroles = [\"app\"]\n[node.application]\nroles = [\"node\"]\n\
                [node.cam]\nroles = [\"node\"]\n[node.hub]\nroles = [\"node\"]\n";
    std::fs::write(&roles, text).unwrap();
    // Both sites' clients come to the last one, which tells them apart by who signed.
    let both = folder.path().join("both.pem");
    let authority = |pki: &Path| std::fs::read_to_string(pki.join("ca.pem")).unwrap();
    std::fs::write(&both, authority(&pki) + &authority(&other)).unwrap();
    let listener = |name: &str, protocol: &str, authorities: &Path| {
        format!(
            "[mqtt.listener.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\n\
             client_ca = {authorities:?}\nrequire_certificate = true\nallow_anonymous = false\n"
        )
    };
    let text = format!(
        "[auth]\nroles_file = {roles:?}\n{}{}{}",
        listener("tls", "tls", &pki.join("ca.pem")),
        listener("wss", "secure-websocket", &pki.join("ca.pem")),
        listener("both", "tls", &both),
    );
    let program = Program::start_in(folder, &text);
    for (at, site, name, may) in [
        ("tls", &pki, "application", "app"),
        ("tls", &pki, "cam", "node"),
        ("tls", &pki, "hub", "node"),
        ("wss", &pki, "application", "app"),
        ("wss", &pki, "cam", "node"),
        ("wss", &pki, "hub", "node"),
        ("both", &pki, "cam", "node"),
        // Another authority cannot name nodes of this site.
        ("both", &other, "cam", "app"),
        ("both", &other, "hub", "app"),
        ("both", &other, "application", "app"),
    ] {
        let mut tls = shows(site, Some(name));
        if site == &other {
            // The server is of this site.
            let key = PrivateKeyDer::from_pem_file(site.join(format!("{name}.key"))).unwrap();
            let chain = CertificateDer::pem_file_iter(site.join(format!("{name}.pem"))).unwrap();
            let mut roots = rustls::RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(pki.join("ca.pem")).unwrap() {
                roots.add(certificate.unwrap()).unwrap();
            }
            tls = rustls::ClientConfig::builder()
                .with_root_certificates(roots)
                .with_client_auth_cert(chain.collect::<Result<_, _>>().unwrap(), key)
                .unwrap();
        }
        let options = Options {
            host: "localhost".to_owned(),
            tls: Some(Arc::new(tls)),
            websocket: (at == "wss").then(|| "/mqtt".to_owned()),
            ..options_of(program.address(at))
        };
        let mut client = Client::connect(options).expect("its certificate is accepted");
        for topic in ["app", "node"] {
            let is_allowed = match publish(&mut client, &format!("{topic}/x"), QoS::AtLeastOnce) {
                Ok(_) => true,
                Err(ClientError::Publish { .. }) => false,
                Err(error) => panic!("{error:?}"),
            };
            assert_eq!(is_allowed, topic == may, "{at} {name} {topic}");
        }
    }
    program.stop();
}

#[test]
fn why_a_certificate_is_refused_is_in_the_log_and_a_pin_lets_it_in() {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tidegate-identity/testdata/tls");
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("data/pki");
    tidegate_identity::pki::init(&pki, &Default::default()).unwrap();
    let listener = |name: &str, lines: &str| {
        format!(
            "[mqtt.listener.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tls\"\nrequire_certificate = true\n\
             allow_anonymous = false\n{lines}\n"
        )
    };
    let of_ca = format!("client_ca = {:?}", clients.join("ca.pem"));
    let program = Program::start_in(folder, &listener("refuses", &of_ca));
    // As openssl x509 -req makes it: of version 1, which rustls would not even show.
    let shows_old = || {
        let mut tls = shows(&pki, None);
        tls.client_auth_cert_resolver = Arc::new(ShowsOld::read(&clients));
        tls
    };
    let options = |listener: &str, program: &Program| Options {
        host: "localhost".to_owned(),
        tls: Some(Arc::new(shows_old())),
        ..options_of(program.address(listener))
    };
    assert!(Client::connect(options("refuses", &program)).is_err());
    let line = program.line_with("connection refused");
    assert!(line.contains("X.509 version 1") && line.contains("listener=refuses"), "{line}");
    // The fingerprint in the log is what is to be written down.
    let fingerprint = line
        .split(' ')
        .find(|word| word.trim_end_matches([',', ';']).len() == 95 && word.contains(':'))
        .unwrap_or_else(|| panic!("no fingerprint in {line}"))
        .trim_end_matches([',', ';']);
    let pinned = listener("takes", &format!("client_pins = \"{fingerprint}\""));
    let program = Program::start_in(program.stop_and_keep(), &pinned);
    Client::connect(options("takes", &program)).expect("its fingerprint is known");
    let line = program.line_with("connected client=");
    assert!(line.contains("user=\"certificate old device\""), "{line}");
    program.stop();
}

#[derive(Debug)]
struct ShowsOld(Arc<rustls::sign::CertifiedKey>);

impl ShowsOld {
    fn read(clients: &Path) -> Self {
        let chain = CertificateDer::pem_file_iter(clients.join("old.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(clients.join("old.key")).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let key = provider.key_provider.load_private_key(key).unwrap();
        let chain = chain.collect::<Result<_, _>>().unwrap();
        Self(Arc::new(rustls::sign::CertifiedKey::new(chain, key)))
    }
}

impl rustls::client::ResolvesClientCert for ShowsOld {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[test]
fn a_revoked_certificate_loses_its_connection_and_gets_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("data/pki");
    let applications = vec!["application".to_owned(), "stolen".to_owned()];
    tidegate_identity::pki::init(&pki, &InitRequest { applications, ..Default::default() })
        .unwrap();
    let ca = pki.join("ca.pem");
    let listener = |name: &str| {
        format!(
            "[mqtt.listener.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tls\"\nclient_ca = {ca:?}\n\
             require_certificate = true\nallow_anonymous = false\n"
        )
    };
    let program = Program::start_in(folder, &listener("main"));
    let options = |name| Options {
        host: "localhost".to_owned(),
        tls: Some(Arc::new(shows(&pki, Some(name)))),
        client_id: name.to_owned(),
        ..options_of(program.address("main"))
    };
    let mut client = Client::connect(options("application")).unwrap();
    let mut stolen = Client::connect(options("stolen")).unwrap();
    let revoke = |name: &str| {
        tidegate_identity::pki::revoke(&pki, &[name.to_owned()], Reason::KeyCompromise).unwrap();
    };
    revoke("stolen");
    // The node is not notified: it looks by itself.
    match stolen.receive(LONGEST) {
        Err(ClientError::Disconnected { reason, .. }) => {
            assert_eq!(reason, ReasonCode::NOT_AUTHORIZED);
        }
        other => panic!("{other:?}"),
    }
    assert!(Client::connect(options("stolen")).is_err());
    publish(&mut client, "its/own", QoS::AtLeastOnce).expect("no other client is disturbed");

    // A file that is cut short, and one that is gone, change nothing.
    let list = pki.join("crl.pem");
    let whole = std::fs::read(&list).unwrap();
    std::fs::write(&list, &whole[..whole.len() / 2]).unwrap();
    program.line_with("the revocation lists in use are kept");
    assert!(Client::connect(options("stolen")).is_err());
    std::fs::remove_file(&list).unwrap();
    program.line_with("the revocation lists in use are kept");
    assert!(Client::connect(options("stolen")).is_err());
    Client::connect(options("application")).expect("no other client is refused");
    // The whole file again, and a signal.
    std::fs::write(&list, whole).unwrap();
    program.reload(&listener("main"));
    program.line_with("configuration of MQTT reloaded");
    assert!(Client::connect(options("stolen")).is_err());

    let audit = std::fs::read_to_string(program.path("data/state/audit.log")).unwrap();
    for expected in [
        "certificate stolen",
        "was revoked: key-compromise",
        "the certificate was revoked",
        "\"revocation-lists\"",
    ] {
        assert!(audit.contains(expected), "{expected}: {audit}");
    }
    program.stop();
}

#[test]
fn a_certificate_that_is_taken_out_loses_its_connection_and_others_keep_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("data/pki");
    let applications = ["kept", "pinned", "lent"].map(str::to_owned).to_vec();
    tidegate_identity::pki::init(&pki, &InitRequest { applications, ..Default::default() })
        .unwrap();
    // Those of another authority.
    let lent = folder.path().join("lent");
    let applications = vec!["stranger".to_owned()];
    tidegate_identity::pki::init(&lent, &InitRequest { applications, ..Default::default() })
        .unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let own = read(&pki.join("ca.pem"));
    let both = folder.path().join("both.pem");
    std::fs::write(&both, format!("{own}{}", read(&lent.join("ca.pem")))).unwrap();
    let pin = {
        let certificate = CertificateDer::from_pem_file(pki.join("pinned.pem")).unwrap();
        let digest = ring::digest::digest(&ring::digest::SHA256, &certificate);
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let listener = |name: &str, lines: &str| {
        format!(
            "[mqtt.listener.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tls\"\nallow_anonymous = true\n{lines}\n"
        )
    };
    let of_both = listener("both", &format!("client_ca = {both:?}"));
    let of_pin = |pin: &str| listener("pin", &format!("client_pins = \"{pin}\""));
    let asks = |must: bool| {
        listener("asks", &format!("client_ca = {both:?}\nrequire_certificate = {must}"))
    };
    let all = |pin: &str, must: bool| format!("{of_both}{}{}", of_pin(pin), asks(must));
    let program = Program::start_in(folder, &all(&pin, false));
    let connect = |listener: &str, pki: &Path, name: Option<&str>| {
        Client::connect(Options {
            host: "localhost".to_owned(),
            tls: Some(Arc::new({
                let mut tls = shows(&program.path("data/pki"), None);
                if let Some(name) = name {
                    let chain =
                        CertificateDer::pem_file_iter(pki.join(format!("{name}.pem"))).unwrap();
                    let key =
                        PrivateKeyDer::from_pem_file(pki.join(format!("{name}.key"))).unwrap();
                    let provider = rustls::crypto::ring::default_provider();
                    let key = provider.key_provider.load_private_key(key).unwrap();
                    let chain = chain.collect::<Result<_, _>>().unwrap();
                    let key = rustls::sign::CertifiedKey::new(chain, key);
                    tls.client_auth_cert_resolver = Arc::new(ShowsOld(Arc::new(key)));
                }
                tls
            })),
            client_id: format!("{listener}-{}", name.unwrap_or("none")),
            ..options_of(program.address(listener))
        })
    };
    let ends = |client: &mut Client| match client.receive(LONGEST) {
        Err(ClientError::Disconnected { reason, .. }) => {
            assert_eq!(reason, ReasonCode::NOT_AUTHORIZED);
        }
        other => panic!("{other:?}"),
    };
    let mut kept = connect("both", &pki, Some("kept")).unwrap();
    let mut stranger = connect("both", &lent, Some("stranger")).unwrap();
    let mut pinned = connect("pin", &pki, Some("pinned")).unwrap();
    let mut without = connect("asks", &pki, None).unwrap();
    let mut asked = connect("asks", &pki, Some("kept")).unwrap();
    let stay = |clients: &mut [&mut Client]| {
        for client in clients {
            publish(client, "t", QoS::AtLeastOnce).expect("no other client is disturbed");
        }
    };

    // Another pin next to it, which takes nothing away.
    program.reload(&all(&format!("{pin}, {}", "0".repeat(64)), false));
    program.line_with("configuration of MQTT reloaded");
    stay(&mut [&mut kept, &mut stranger, &mut pinned, &mut without, &mut asked]);
    // One authority leaves the file, of which the configuration says nothing.
    std::fs::write(&both, own).unwrap();
    program.reload(&all(&pin, false));
    ends(&mut stranger);
    assert!(connect("both", &lent, Some("stranger")).is_err());
    stay(&mut [&mut kept, &mut pinned, &mut without, &mut asked]);
    // Another pin is in its place.
    program.reload(&all(&"0".repeat(64), false));
    ends(&mut pinned);
    assert!(connect("pin", &pki, Some("pinned")).is_err());
    stay(&mut [&mut kept, &mut without, &mut asked]);
    // Certificates are asked for from now on.
    program.reload(&all(&"0".repeat(64), true));
    ends(&mut without);
    stay(&mut [&mut kept, &mut asked]);
    program.stop();
}

#[test]
fn a_listener_bounds_connections_and_the_rate_of_each() {
    let program = Program::start(
        "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\npublish_rate_max = 20\nconnections_max = 2\n",
    );
    let address = program.address("main");
    let mut subscriber = Client::connect(options_of(address)).unwrap();
    let filter = SubscribeFilter {
        filter: "#".to_owned(),
        maximum_qos: QoS::AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    subscriber.subscribe(&[filter]).unwrap();
    let mut publisher = Client::connect(options_of(address)).unwrap();
    // A third is closed without a word, which costs nothing.
    let mut third = TcpStream::connect(address).unwrap();
    third.set_read_timeout(Some(LONGEST)).unwrap();
    assert_eq!(third.read(&mut [0; 1]).unwrap_or(0), 0);
    let began = Instant::now();
    for _ in 0..60 {
        publish(&mut publisher, "t", QoS::AtLeastOnce).unwrap();
    }
    // A second's worth at once, and then 20 a second.
    assert!(began.elapsed() > Duration::from_millis(1_500), "{:?}", began.elapsed());
    for _ in 0..60 {
        subscriber.receive(LONGEST).unwrap().expect("none is lost for its rate");
    }
    // One gone, another may come.
    publisher.disconnect().unwrap();
    let until = Instant::now() + LONGEST;
    while let Err(error) = Client::connect(options_of(address)) {
        assert!(Instant::now() < until, "{error}");
    }
    program.stop();
}

#[test]
fn connected_clients_learn_that_the_server_stops() {
    let program = Program::start("[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n");
    let mut client = Client::connect(options_of(program.address("main"))).unwrap();
    program.stop();
    match client.receive(LONGEST) {
        Err(ClientError::Disconnected { reason, .. }) => {
            assert_eq!(reason, ReasonCode::SERVER_SHUTTING_DOWN);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_congestion_control_that_there_is_not_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    tidegate_identity::pki::init(&folder.path().join("data/pki"), &Default::default()).unwrap();
    let config = format!(
        "[node]\ndata_dir = {:?}\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\ntcp_congestion = \"bbrr\"\n",
        folder.path().join("data")
    );
    let path = folder.path().join("tidegate.toml");
    std::fs::write(&path, config).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("--config")
        .arg(&path)
        .args(["--set", "node.api_listen=127.0.0.1:0", "--set", "link.listen=127.0.0.1:0", "node"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("mqtt.listener.main.tcp_congestion") && said.contains("bbrr"), "{said}");
}

/// The listener's certificate is as mosquitto-tls(7) has it made; OpenSSL made it.
#[test]
fn bridge_reaches_a_remote_with_an_old_certificate() {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tidegate-identity/testdata/tls");
    let folder = || {
        let folder = tempfile::tempdir().unwrap();
        tidegate_identity::pki::init(&folder.path().join("data/pki"), &Default::default()).unwrap();
        folder
    };
    let remote = Program::start_in(
        folder(),
        &format!(
            "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tls\"\ncertificate = {:?}\nkey = {:?}\n",
            files.join("old.pem"),
            files.join("old.key"),
        ),
    );
    let bridge = |name: &str, ca: &str| {
        format!(
            "[mqtt.bridge.{name}]\nremote = \"localhost:{}\"\ntls = true\nca = {:?}\ntopics_out = \"{name}/#\"\n\
             reconnect_backoff_max = \"1s\"\n",
            remote.address("main").port(),
            files.join(ca),
        )
    };
    let bridges = [bridge("named", "old.pem"), bridge("unnamed", "ca.pem")].concat();
    let near = Program::start_in(folder(), &bridges);
    let (mut is_up, mut is_refused) = (false, false);
    while !is_up || !is_refused {
        let line = near.line_with_any(&["bridge=named", "bridge=unnamed"]);
        is_up |= line.contains("bridge=named") && line.contains("bridge up");
        if line.contains("X.509 version 1") {
            assert!(line.contains("bridge=unnamed"), "{line}");
            assert!(line.contains("subjectAltName=DNS:HOST"), "no cure in {line}");
            assert!(!line.contains("OtherError") && !line.contains("Fingerprint("), "{line}");
            is_refused = true;
        }
    }
    near.stop();
    remote.stop();
}
