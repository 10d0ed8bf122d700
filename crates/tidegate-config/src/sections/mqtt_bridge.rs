//! `[mqtt.bridge.NAME]`.

use std::{path::PathBuf, time::Duration};

use tidegate_message::{Confidential, Secret};

use crate::{
    ByteCount,
    words::{Overflow, Policy, RemoteVersion},
};

section! {
    /// `[mqtt.bridge.NAME]`: messages between this node's broker and another MQTT broker.
    MqttBridgeSection {
        /// The other broker, as host and port.
        remote: Confidential = Confidential::default(),
        /// Version of MQTT that is spoken there: `auto`, `3.1.1` or `5`. Default `auto`: 3.1.1 only where 5 is not taken.
        version: RemoteVersion = RemoteVersion::Auto,
        /// Whether the remote knows the bridge bit of MQTT 3.1.1, as Mosquitto and Tidegate do: then topics that go both ways
        /// may overlap in that version too. Default false.
        bridge_aware: bool = false,
        /// Whether TLS is spoken there. Default false.
        tls: bool = false,
        /// Authorities of the remote's certificate, PEM: a file, or a folder as `openssl rehash` leaves it. Default none: those of
        /// the system.
        ca: Option<PathBuf> = None,
        /// Whether the remote's certificate may be for any name; it must be of a trusted authority all the same. An owner of such a
        /// certificate of that authority can then impersonate the remote. Default false.
        insecure: bool = false,
        /// Certificate chain to show there, PEM. Default none.
        certificate: Option<PathBuf> = None,
        /// Its key, PEM.
        key: Option<PathBuf> = None,
        /// User name there, which some brokers take a token by. Default none.
        username: Option<Secret> = None,
        /// File that holds the password, without the end of its line. Default none.
        password_file: Option<PathBuf> = None,
        /// Name of the bridge's session there. Default none: made of the names of node and bridge and a number of the node.
        client_id: Option<String> = None,
        /// The topics to publish there: filters, separated by commas. Default none.
        topics_out: String = String::new(),
        /// The topics to fetch from there: filters, separated by commas. Default none.
        topics_in: String = String::new(),
        /// Stands before the filters here, and is exchanged for `remote_prefix`. Default none.
        local_prefix: String = String::new(),
        /// Stands before the filters there, and is exchanged for `local_prefix`. Default none.
        remote_prefix: String = String::new(),
        /// The highest QoS of messages that pass, 0 to 2. Default 2.
        qos: u32 = 2,
        /// Whether messages keep their retain flag. Default true.
        retain: bool = true,
        /// Longest silence towards the remote; `0s` for any. Default `60s`.
        keepalive: Duration = Duration::from_secs(60),
        /// Longest wait between two tries to connect. Default `30s`.
        reconnect_backoff_max: Duration = Duration::from_secs(30),
        /// As in `[mqtt]`, for what waits here for the remote. Default none.
        queue_bytes_max: Option<ByteCount> = None,
        /// As in `[mqtt]`.
        overflow_qos0: Option<Overflow> = None,
        /// As in `[mqtt]`.
        overflow: Option<Overflow> = None,
        /// As in `[mqtt]`.
        policy: Option<Policy> = None,
        /// As in `[mqtt]`.
        large_bytes: Option<ByteCount> = None,
    }
}
