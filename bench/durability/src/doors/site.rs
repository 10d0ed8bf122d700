//! The node under attack, and all that is shown to it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant as Stopwatch},
};

use anyhow::{Context as _, bail, ensure};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tempfile::TempDir;
use tidegate_identity::{
    auth::password::{hash, set_user},
    pki::{self, InitRequest, Kind, NODE_SERVER_NAME, revocation::Reason},
};
use tidegate_load::client::{Client, Options};

/// For the node to answer, and to take a new list.
const PATIENCE: Duration = Duration::from_secs(30);
/// Users with their passwords. The healthy one, one who is tried, and one who may come in and tries more.
pub(super) const USERS: [(&str, &str); 3] =
    [("bob", "a good password"), ("ada", "another one"), ("mallory", "a third")];

/// Each has topics of his own; cameras are for all.
const ROLES: &str = "\
[role.own]
publish = [\"own/%u/#\"]
subscribe = [\"own/%u/#\"]
frames = [\"*\"]
[role.application]
publish = [\"camera:*\"]
[authenticated]
roles = [\"own\"]
[certificate.application]
roles = [\"application\"]
";

/// A node process with its listeners. It ends with this.
pub(super) struct Site {
    folder: TempDir,
    node: Child,
    pub(super) api: SocketAddr,
    pub(super) link: SocketAddr,
    pub(super) health: SocketAddr,
    /// MQTT over TCP, by password.
    pub(super) users: SocketAddr,
    /// MQTT over TLS, by certificate.
    pub(super) certificates: SocketAddr,
    /// MQTT over WebSocket, by password.
    pub(super) web: SocketAddr,
}

impl Site {
    /// Starts the node, once what is to have expired has.
    pub(super) fn start(below: &Path) -> anyhow::Result<Self> {
        let program = std::env::current_exe()?.with_file_name("tidegate");
        ensure!(
            program.exists(),
            "{} is not there; cargo build --release -p tidegate makes it",
            program.display()
        );
        let folder = tempfile::tempdir_in(below)?;
        let pki = folder.path().join("data/pki");
        let names = |names: [&str; 2]| names.map(str::to_owned).to_vec();
        let request = InitRequest {
            cameras: names(["camera", "camera-revoked"]),
            applications: names(["application", "application-revoked"]),
            ..InitRequest::default()
        };
        pki::init(&pki, &request)?;
        let moment = Duration::from_secs(1);
        pki::add(&pki, Kind::Camera, "camera-expired", &[], moment)?;
        pki::add(&pki, Kind::Application, "application-expired", &[], moment)?;
        let elsewhere = InitRequest { nodes: vec!["edge".to_owned()], ..request };
        pki::init(&folder.path().join("elsewhere"), &elsewhere)?;
        let mut users = String::new();
        for (name, password) in USERS {
            users = set_user(&users, name, &hash(password.as_bytes())?)?;
        }
        fs::write(folder.path().join("users"), users)?;
        fs::write(folder.path().join("roles.toml"), ROLES)?;

        let [api, link, health, users, certificates, web] = free_addresses()?;
        let path = |name: &str| folder.path().join(name);
        let config = format!(
            "[node]\ndata_dir = {:?}\napi_listen = \"{api}\"\nhealth_listen = \"{health}\"\n[link]\nlisten = \"{link}\"\n\
             [auth]\nroles_file = {:?}\n[mqtt]\npassword_file = {:?}\nallow_anonymous = false\n\
             [mqtt.listener.users]\nlisten = \"{users}\"\n\
             [mqtt.listener.certificates]\nlisten = \"{certificates}\"\nprotocol = \"tls\"\nclient_ca = {:?}\nrequire_certificate = true\n\
             [mqtt.listener.web]\nlisten = \"{web}\"\nprotocol = \"websocket\"\n",
            path("data"),
            path("roles.toml"),
            path("users"),
            pki.join("ca.pem"),
        );
        fs::write(path("tidegate.toml"), config)?;
        let mut node = Command::new(program)
            .arg("--config")
            .arg(path("tidegate.toml"))
            .arg("node")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(node.stderr.take().context("its standard error")?);
        let log = path("node.log");
        thread::spawn(move || {
            // Read to its end, or the node would wait; its output is in the folder while it is there.
            let lines: Vec<u8> = said
                .lines()
                .map_while(Result::ok)
                .flat_map(|line| (line + "\n").into_bytes())
                .collect();
            let _ = fs::write(log, lines);
        });
        let site = Self { folder, node, api, link, health, users, certificates, web };
        site.wait_until("the node is ready", || {
            TcpStream::connect(site.health).is_ok() && TcpStream::connect(site.api).is_ok()
        })?;
        let gone = ["camera-revoked", "application-revoked"].map(str::to_owned);
        pki::revoke(&pki, &gone, Reason::KeyCompromise)?;
        // The node is not notified: it looks by itself. Everything that was to expire has by then.
        site.wait_until("the revoked certificate is refused", || {
            site.by_certificate("application-revoked")
                .is_ok_and(|options| Client::connect(options).is_err())
        })?;
        Ok(site)
    }

    fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) -> anyhow::Result<()> {
        let begun = Stopwatch::now();
        while !is_so() {
            if begun.elapsed() > PATIENCE {
                bail!("not within {PATIENCE:?}: {what}");
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The folder of certificates of the site's own authority, or of another with the same names.
    pub(super) fn pki(&self, is_own: bool) -> PathBuf {
        self.folder.path().join(if is_own { "data/pki" } else { "elsewhere" })
    }

    /// The files next to the node's data: nothing comes there.
    pub(super) fn beside(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for folder in [self.folder.path().to_owned(), self.folder.path().join("data")] {
            for entry in fs::read_dir(folder)? {
                found.push(entry?.path());
            }
        }
        found.sort();
        Ok(found)
    }

    /// An MQTT client of a user.
    pub(super) fn by_password(&self, user: &str, password: &str, client_id: &str) -> Options {
        Options {
            port: self.users.port(),
            client_id: client_id.to_owned(),
            username: Some(user.to_owned()),
            password: Some(password.as_bytes().to_vec()),
            ..Options::default()
        }
    }

    /// An MQTT client that shows that certificate of the site.
    pub(super) fn by_certificate(&self, name: &str) -> anyhow::Result<Options> {
        Ok(self.over_tls(tls(&self.pki(true), Some((&self.pki(true), name)), &[])?))
    }

    /// An MQTT client with that TLS.
    pub(super) fn over_tls(&self, tls: ClientConfig) -> Options {
        Options {
            host: "localhost".to_owned(),
            port: self.certificates.port(),
            tls: Some(Arc::new(tls)),
            ..Options::default()
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and need not be.
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

/// TLS of a client that trusts the authority in `trusts`, and may show a certificate, whatever it is worth.
pub(super) fn tls(
    trusts: &Path,
    shows: Option<(&Path, &str)>,
    protocol: &[u8],
) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusts.join("ca.pem"))?)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match shows {
        None => builder.with_no_client_auth(),
        Some((folder, name)) => {
            let certificate = CertificateDer::from_pem_file(folder.join(format!("{name}.pem")))?;
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key")))?;
            builder.with_client_auth_cert(vec![certificate], key)?
        }
    };
    if !protocol.is_empty() {
        config.alpn_protocols = vec![protocol.to_vec()];
    }
    Ok(config)
}

/// The name that nodes' certificates carry.
pub(super) const SERVER_NAME: &str = NODE_SERVER_NAME;

/// Addresses that are free now.
fn free_addresses<const N: usize>() -> anyhow::Result<[SocketAddr; N]> {
    // All at once, so that they differ.
    let listeners =
        (0..N).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    let addresses: Vec<SocketAddr> =
        listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    addresses.try_into().map_err(|_| anyhow::anyhow!("as many as were asked for"))
}
