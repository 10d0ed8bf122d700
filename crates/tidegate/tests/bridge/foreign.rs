//! Debian's mosquitto at the other end.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use tidegate_server::bridge::{BridgeSettings, RemoteVersion};
use tidegate_wire::mqtt::{QoS, Version};

use crate::{
    recover::assert_kept,
    world::{
        assert_silent, bridge, broker, client, client_of, port, publish, receive, subscribe,
        topics, until, until_up,
    },
};

struct Mosquitto {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Mosquitto {
    /// None, and a word on the standard error, if it is not installed.
    fn start(port: Option<u16>) -> Option<Self> {
        let path = ["/usr/sbin/mosquitto", "/usr/bin/mosquitto", "/usr/local/sbin/mosquitto"]
            .into_iter()
            .find(|path| fs::exists(path).unwrap_or(false));
        let Some(path) = path else {
            eprintln!("skipped: mosquitto is not installed");
            return None;
        };
        let port = port.unwrap_or_else(|| {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            free.local_addr().unwrap().port()
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mosquitto.conf");
        fs::write(&file, format!("listener {port} 127.0.0.1\nallow_anonymous true\n")).unwrap();
        let mut command = Command::new(path);
        let child = command.arg("-c").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let child = child.spawn().unwrap();
        until("mosquitto's start", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        Some(Self { child, port, _folder: folder })
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn mosquitto_is_bridged_both_ways_in_both_versions() {
    for (version, spoken) in [
        (RemoteVersion::Auto, Version::V5),
        (RemoteVersion::V5, Version::V5),
        (RemoteVersion::V4, Version::V4),
    ] {
        let Some(there) = Mosquitto::start(None) else { return };
        let here = broker(0, None);
        let mut near = client(port(&here), "n");
        let mut far = client_of(there.port, "f", spoken);
        publish(&mut far, "x/kept", b"kept there", QoS::AtLeastOnce, true);
        let settings = BridgeSettings { version, bridge_aware: true, ..topics("x/#", "x/#") };
        let bridge = bridge(&here, "a", there.port, settings);
        until_up(&bridge, 1);
        until("the retained message", || bridge.report().messages_in == 1);
        subscribe(&mut near, "x/#");
        let kept = receive(&mut near);
        assert_eq!((&*kept.payload, kept.retain), (&b"kept there"[..], true), "{version:?}");
        subscribe(&mut far, "x/#");
        assert_eq!(receive(&mut far).topic, "x/kept");
        let large = vec![1; 300_000];
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            publish(&mut near, "x/1", &large, qos, false);
            let message = receive(&mut far);
            assert_eq!((message.qos, message.payload.len()), (qos, large.len()), "{version:?}");
            receive(&mut near);
            publish(&mut far, "x/2", b"in", qos, false);
            let message = receive(&mut near);
            assert_eq!((message.qos, &*message.payload), (qos, &b"in"[..]), "{version:?}");
            receive(&mut far);
        }
        publish(&mut far, "x/kept", b"kept again", QoS::AtLeastOnce, true);
        assert_eq!(&*receive(&mut near).payload, b"kept again");
        receive(&mut far);
        assert_silent(&mut near);
        assert_silent(&mut far);
        let mut later = client(port(&here), "l");
        subscribe(&mut later, "x/kept");
        assert_eq!(&*receive(&mut later).payload, b"kept again", "{version:?}");
    }
}

#[test]
fn what_waits_for_a_mosquitto_that_restarts_is_delivered() {
    for version in [RemoteVersion::V5, RemoteVersion::V4] {
        let Some(there) = Mosquitto::start(None) else { return };
        let there_port = there.port;
        let here = broker(0, None);
        let settings = BridgeSettings { version, ..topics("t/#", "") };
        let bridge = bridge(&here, "a", there_port, settings);
        until_up(&bridge, 1);
        drop(there);
        let mut near = client(port(&here), "n");
        for number in 0..200 {
            publish(&mut near, &format!("t/{number}"), b"x", QoS::AtLeastOnce, true);
        }
        let Some(_there) = Mosquitto::start(Some(there_port)) else { return };
        assert_kept(there_port, 0..200);
    }
}
