use std::{fs, path::Path};

use super::*;
use crate::run::{broker::settings, users};

fn access(config: &Config) -> Result<Access, ApiError> {
    Ok(Access { authenticator: Arc::new(users::open(config)?), ..Access::default() })
}

fn read(text: &str) -> Result<Vec<BridgeSettings>, ApiError> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("secret"), "word\n").expect("a file");
    let place = folder.path().display();
    let text = text.replace("FOLDER", &place.to_string());
    let text = format!("[node]\nname = \"north\"\ndata_dir = \"{place}\"\n{text}");
    let config = Config::parse(Path::new("site.toml"), &text)?;
    let access = access(&config)?;
    let broker = settings(&config, access.clone(), Purpose::Run)?.broker;
    let again = planned(&config, &broker, &access, Purpose::Run)?;
    let found = planned(&config, &broker, &access, Purpose::Run)?;
    assert_eq!(
        found.first().map(|bridge| &bridge.node),
        again.first().map(|bridge| &bridge.node),
        "the node keeps its number"
    );
    Ok(found)
}

#[test]
fn a_bridge_is_read_from_its_section() {
    let found = read(
        "[mqtt.bridge.cloud]\nremote = \"[::1]:8883\"\nusername = \"me\"\n\
         password_file = \"FOLDER/secret\"\ntopics_out = \"a/#, b\"\ntopics_in = \"c\"\nqos = 1\nkeepalive = \"10s\"\n\
         queue_bytes_max = \"1MiB\"\nversion = \"3.1.1\"\npolicy = \"none\"\n",
    );
    let found = found.unwrap();
    let [bridge] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&*bridge.host, bridge.port), ("::1", 8883));
    assert_eq!(bridge.password.as_deref(), Some(&b"word"[..]));
    assert_eq!(bridge.topics_out, ["a/#", "b"]);
    assert_eq!((bridge.qos, bridge.keep_alive), (QoS::AtLeastOnce, 10));
    assert_eq!(bridge.session.queue_bytes_max, 1 << 20);
    assert_eq!(bridge.client_id, format!("{}.cloud", bridge.node));
    assert!(bridge.node.starts_with("north-"), "{}", bridge.node);
    assert!(read("").unwrap().is_empty());
}

#[test]
fn what_cannot_be_bridged_names_its_key() {
    for (text, expected) in [
        ("topics_out = \"a\"", "mqtt.bridge.x.remote must be a host and a port"),
        ("remote = \"h:1\"", "neither topics_out nor topics_in"),
        ("remote = \"h:1\"\ntopics_out = \"a\"\nqos = 3", "mqtt.bridge.x.qos must be 0, 1 or 2"),
        (
            "remote = \"h:1\"\ntopics_out = \"a\"\ntopics_in = \"+\"\nversion = \"3.1.1\"",
            "bridge_aware = true",
        ),
        ("remote = \"h:1\"\ntopics_out = \"a\"\nversion = \"4\"", "choose auto, 3.1.1 or 5"),
        (
            "remote = \"h:1\"\ntopics_out = \"a\"\nusername = \"u\"\npassword_file = \"/no/such\"",
            "mqtt.bridge.x.password_file",
        ),
        (
            "remote = \"h:1\"\ntopics_out = \"a\"\npassword_file = \"/no/such\"",
            "mqtt.bridge.x.password_file needs a username",
        ),
        (
            "remote = \"h:1\"\ntopics_out = \"a\"\nca = \"ca.pem\"",
            "mqtt.bridge.x.ca means nothing without TLS",
        ),
    ] {
        let error = read(&format!("[mqtt.bridge.x]\n{text}\n")).unwrap_err();
        let error = tidegate_message::error_chain(&error);
        assert!(error.contains(expected), "{error}");
    }
}
