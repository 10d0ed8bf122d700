//! A `mosquitto.conf` becomes a configuration that a node starts with.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use tidegate_identity::pki::{self, InitRequest};

use crate::program::Program;

fn tidegate(arguments: &[&str], folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("the program")
}

#[test]
fn a_node_starts_with_what_was_imported() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    pki::init(&place.join("data/pki"), &InitRequest::default()).expect("certificates");
    let pki = place.join("data/pki").display().to_string();
    let port = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|at| at.local_addr());
    let [plain, tls, web] = [port(), port(), port()].map(|at| at.expect("a free port").port());
    fs::create_dir(place.join("conf.d")).expect("a folder");
    let below = format!(
        "listener {tls} 127.0.0.1 # devices\ncertfile {pki}/edge.pem\nkeyfile {pki}/edge.key\ncafile {pki}/ca.pem\n\
         require_certificate true    # mTLS\nuse_identity_as_username true\n"
    );
    fs::write(place.join("conf.d/tls.conf"), below).expect("a file");
    let main = format!(
        "persistence true\npersistence_location /var/lib/mosquitto/\nallow_anonymous false\nmax_keepalive 600\n\
         include_dir {}\nlistener {plain} 127.0.0.1\nlistener {web} 127.0.0.1\nprotocol websockets\n\
         connection cloud\naddress 127.0.0.1:1\ntopic a both 1\ntopic b out 1 here/ there/\nremote_username me\nremote_password pass # word\n",
        place.join("conf.d").display()
    );
    fs::write(place.join("mosquitto.conf"), main).expect("a file");

    let done = tidegate(&["config", "import-mosquitto", "mosquitto.conf"], place);

    let report = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(0), "nothing is lost: {report}");
    assert!(report.contains("mosquitto.conf:2: persistence_location"), "{report}");
    let imported = String::from_utf8(done.stdout).expect("a text");
    assert!(!imported.contains("pass # word") && !report.contains("pass # word"), "{imported}");
    let secret = place.join("mqtt-bridge-cloud.password");
    assert_eq!(fs::read(&secret).expect("the password"), b"pass # word\n");
    assert_eq!(fs::metadata(&secret).expect("a file").permissions().mode() & 0o777, 0o600);
    // It can be repeated, but takes no place of another's.
    assert!(tidegate(&["config", "import-mosquitto", "mosquitto.conf"], place).status.success());
    fs::write(&secret, "another\n").expect("a file");
    let refused = tidegate(&["config", "import-mosquitto", "mosquitto.conf"], place);
    assert_eq!(refused.status.code(), Some(7), "{}", String::from_utf8_lossy(&refused.stderr));
    fs::write(&secret, "pass # word\n").expect("a file");

    fs::write(place.join("tidegate.toml"), &imported).expect("a file");
    let shown = tidegate(&["--config", "tidegate.toml", "config"], place);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("require_certificate = true"), "{shown}");
    fs::remove_file(place.join("tidegate.toml")).expect("a file");
    fs::remove_dir_all(place.join("conf.d")).expect("a folder");
    let node = Program::start_in(folder, &imported);
    for (name, port) in [
        (format!("tcp-{plain}"), plain),
        (format!("tls-{tls}"), tls),
        (format!("websocket-{web}"), web),
    ] {
        assert_eq!(node.address(&name).port(), port, "{name}");
    }
}

#[test]
fn what_is_lost_decides_the_exit_status() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = "listener 8883\ncertfile c\nkeyfile k\ncafile a\n";
    for (text, status) in [
        (
            "require_certificate true    # mTLS\nuse_identity_as_username true\npid_file /run/x.pid\n",
            0,
        ),
        ("use_username_as_clientid true\n", 3),
        ("require_certificate TRUE\n", 3),
        ("require_certificate\ttrue\n", 3),
        ("mount_point x/\n", 3),
        ("tls_version tlsv1.3\n", 3),
    ] {
        fs::write(folder.path().join("m.conf"), format!("{listener}{text}")).expect("a file");
        let done = tidegate(&["config", "import-mosquitto", "m.conf"], folder.path());
        let report = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(status), "{text}: {report}");
        assert!(status == 0 || report.contains("m.conf:5: "), "{text}: {report}");
    }
    let missing = tidegate(&["config", "import-mosquitto", "no.conf"], folder.path());
    assert_eq!(missing.status.code(), Some(7));
    fs::write(folder.path().join("m.conf"), "listener 1883\ninclude_dir /no/such/folder\n")
        .expect("a file");
    let missing = tidegate(&["config", "import-mosquitto", "m.conf"], folder.path());
    let report = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert_eq!((missing.status.code(), &*missing.stdout), (Some(7), &[][..]), "{report}");
    assert!(report.contains("m.conf:2: /no/such/folder cannot be read"), "{report}");
}
