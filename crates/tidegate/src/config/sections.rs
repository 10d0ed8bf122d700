//! The sections and their keys, with defaults and bounds.

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_broker::{Overflow, Versions, schedule::Policy};
use tidegate_client::MESSAGE_BYTES_MAX;
use tidegate_frame::{
    controller::{LinkModel, MezPiConfig},
    coordinator::CoordinatorConfig,
    privacy::{Cover, Regions},
};
use tidegate_log::Durability;
use tidegate_message::{CameraName, FrameSize};
use tidegate_sys::{bpf::Mode, datagram::Method};
use tidegate_wire::{mqtt::PACKET_BYTES_MAX, proxy};

use super::{
    ByteCount, ConfigError, Origin, Origins,
    layers::Setting,
    value::{Value, read_at},
};
use crate::{
    camera::Originals,
    detector::{DetectorError, DetectorSpec},
    ingest::{Format, Kind},
    link::Transport,
    logging::LogFormat,
    mqtt::{
        bridge::RemoteVersion,
        journal::{BYTES_MIN, MqttDurability},
        listen::{ListenAddress, SocketMode},
        settings::Protocol,
    },
    sink::SinkKind,
    suggest::suggested,
};

/// How frames are on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtRest {
    /// As they are.
    Clear,
    /// Encrypted with the node's key.
    Sealed,
}

/// Most bytes of a log's entry beside its frame: the header of a stream log's entry is the longest.
pub const ENTRY_META_BYTES_MAX: u64 = 64 << 10;

config! {
    /// `[node]`: this program.
    node: NodeConfig {
        /// Name of the node: its certificate is `NAME.pem` in `data_dir/pki`. Default `edge`.
        name: CameraName = name("edge"),
        /// Folder for certificates and state; a relative path begins at the folder of the file that names it, as all in it do. Default
        /// `tidegate-data` beside the configuration file, without one in the current folder.
        data_dir: PathBuf = "tidegate-data".into(),
        /// Where applications connect (gRPC). Default `127.0.0.1:7080`; `0.0.0.0:7080` opens it to the
        /// network, where a client needs a certificate all the same.
        api_listen: SocketAddr = (Ipv4Addr::LOCALHOST, 7080).into(),
        /// Where other machines redeem invitations (`tidegate invite`), over TLS; only a node that has the authority's key can.
        /// Default none.
        enrol_listen: Option<SocketAddr> = None,
        /// Where `/healthz` and `/readyz` are answered (HTTP, to everybody): 200 while the node is alive, and while it is ready;
        /// else 503; with what is wrong as JSON. Default none.
        health_listen: Option<SocketAddr> = None,
    }

    /// `[frames]`: cameras and what is done to their frames.
    frames: FramesConfig {
        /// Folder of the characterization tables. Default none: the built-in table of the profile.
        tables_dir: Option<PathBuf> = None,
        /// Detector whose table is used where a subscription names none. Default `moving`.
        detector: CameraName = name("moving"),
        /// Size that the detector scales frames to before it looks; picks the table. Default none: the
        /// frame's own.
        detector_input: Option<FrameSize> = None,
        /// Scene class of the table where a subscription names none. Default none: any.
        scene: Option<CameraName> = None,
        /// Largest frame of a camera or publisher. Default `8MB`, which fits the segments of a log; larger ones make
        /// its segments larger; at most `63MiB`.
        frame_bytes_max: ByteCount = ByteCount(8_000_000),
        /// Most pixels of a frame: an image of few bytes can claim more than memory holds. Default
        /// 40000000, an 8K frame and some more.
        frame_pixels_max: u32 = 40_000_000,
        /// How far a frame's timestamp may lie ahead of this node's clock. Default `1s`.
        future_tolerance: Duration = Duration::from_secs(1),
    }

    /// `[mez_pi]`: the controller of the Mez paper, for all cameras of this node; `budget` needs none of it.
    mez_pi: MezPiSection {
        /// Latency over frame size, as `tidegate characterize --link` measures it, in milliseconds a megabyte.
        /// Default: the line through the paper's Table 1.
        slope_ms_per_megabyte: f64 = LinkModel::paper().slope_ms_per_byte * 1e6,
        /// The same line's latency of an empty frame, in milliseconds.
        intercept_ms: f64 = LinkModel::paper().intercept_ms,
        /// K1: bytes of correction for each millisecond of error; negative. Default -6000.
        k1_bytes_per_ms: f64 = MezPiConfig::default().k1_bytes_per_ms,
        /// K2: bytes of correction for each millisecond of error that lasts a second; negative. Default -250.
        k2_bytes_per_ms_second: f64 = MezPiConfig::default().k2_bytes_per_ms_second,
        /// An error up to this is let be. Default `20ms`.
        threshold: Duration = MezPiConfig::default().threshold,
        /// Time that latency is averaged over. Default `4s`.
        interval: Duration = MezPiConfig::default().interval,
    }

    /// `[log]`: frames that are kept, in `data_dir/log`, and what MQTT keeps; and how the program's own log is written.
    log: LogConfig {
        /// How the program's own log is written, on the standard error: `text`, or `json`, an object a line. Default `text`.
        format: LogFormat = LogFormat::Text,
        /// What a frame survives once it was captured or has arrived: `memory` (nothing), `page` (the end of the process, kill -9
        /// included) or `disk` (a loss of power, some ten milliseconds later). Default `page`.
        durability: Durability = Durability::Page,
        /// Bytes of originals kept for each camera, at the camera's node. Default `1GiB`: 7 minutes of 500
        /// kB frames at 5 a second.
        camera_bytes: ByteCount = ByteCount(1 << 30),
        /// Longest time that originals are kept; some longer, because they go by segments. Default `0s`: as long as there is room.
        camera_age: Duration = Duration::ZERO,
        /// Bytes kept of each transferred stream, in the edge node's memory. Default `128MiB`.
        stream_bytes: ByteCount = ByteCount(128 << 20),
        /// Bytes of the files in `data_dir/log/mqtt` at most: several times what sessions and retained messages hold. Default
        /// `2GiB`.
        mqtt_bytes: ByteCount = ByteCount(2 << 30),
        /// With `mqtt.durability = "disk"`, how long an acknowledgement may wait for others, to share a write to the disk.
        /// Default `10ms`.
        mqtt_commit_delay: Duration = Duration::from_millis(10),
        /// How frames are on the disk: `clear`, or `sealed` with a key. Default `clear`.
        at_rest: AtRest = AtRest::Clear,
        /// The node's key, which `tidegate key` makes. Default none.
        key_file: Option<PathBuf> = None,
        /// The key before that one, while logs are taken over. Default none.
        older_key_file: Option<PathBuf> = None,
        /// File with the passphrase of a key that is made from one. Default none.
        passphrase_file: Option<PathBuf> = None,
    }

    /// `[privacy]`: what of its cameras' frames nobody is to see. It is covered before a frame leaves the camera's node; its log
    /// keeps the frames as they were captured.
    privacy: PrivacyConfig {
        /// Regions that become one gray, as `LEFT,TOP,RIGHT,BOTTOM` in fractions of width and height, several with `;` between:
        /// `0,0,0.25,0.4; 0.5,0.5,1,1`. Default none.
        fill: Regions = Regions::default(),
        /// Regions of which at most 6 x 6 grays are left: that somebody is there can be seen, not who. Default none.
        blur: Regions = Regions::default(),
        /// What is covered wherever it is found: `face`, `person`, or `command` for a program of yours that speaks the detector
        /// protocol. Detectors overlook: only regions are certain. While it fails, frames are covered whole. Default none.
        detector: Option<String> = None,
        /// That program and its arguments. Default none.
        detector_command: Option<String> = None,
        /// How what is found is covered: `fill` or `blur`. Default `blur`.
        detected: Cover = Cover::Blur,
        /// How a frame that was delivered is given when its original is asked for: `covered`, or `clear` as it was captured.
        /// Default `covered`.
        originals: Originals = Originals::Covered,
    }

    /// `[link]`: between nodes.
    link: LinkConfig {
        /// Where camera nodes connect, UDP and TCP. Default `127.0.0.1:7443`.
        listen: SocketAddr = (Ipv4Addr::LOCALHOST, 7443).into(),
        /// The edge node that a camera node dials, as host and port. Default `127.0.0.1:7443`.
        edge: String = "127.0.0.1:7443".to_owned(),
        /// `auto`, `quic` or `tcp`. Default `auto`: TCP only where QUIC does not get through.
        transport: Transport = Transport::Auto,
        /// With `auto`, how long QUIC is tried before TCP is tried as well. Default `300ms`: more than three round trips of
        /// the slowest path on which QUIC is wanted.
        quic_head_start: Duration = Duration::from_millis(300),
        /// Longest queue a link may build at its bottleneck, in time. Default `10ms`: a tenth of the
        /// usual latency bound.
        queue_allowed: Duration = Duration::from_millis(10),
        /// A peer that is silent this long is taken for gone. Default `3s`.
        idle_timeout: Duration = Duration::from_secs(3),
        /// Longest time to connect and authenticate. Default `3s`.
        connect_timeout: Duration = Duration::from_secs(3),
        /// Tries in a row to reach the edge node before a camera node gives up; 0 never gives up. Default 0.
        max_reconnects: u32 = 0,
        /// Longest wait between two tries; the first is a twentieth of it. Default `5s`.
        reconnect_backoff_max: Duration = Duration::from_secs(5),
        /// Congestion control of TCP links, such as `bbr` or `cubic`. Default none: the system's.
        tcp_congestion: Option<String> = None,
        /// Whether an edge node's cameras share one medium, such as the Wi-Fi of its access point: each is then told what it
        /// may use. `false` where each has a link of its own. Default true.
        shared_medium: bool = true,
        /// Part of that medium that batches of uplinks to this node may use together while cameras send, 0.001 to 0.2. Default
        /// 0.1.
        sensor_share: f64 = CoordinatorConfig::default().sensors,
        /// Bytes that this node keeps of all uplinks that it serves: what their codecs know, and batches that wait for its broker.
        /// Default `2GiB`.
        uplink_bytes_max: ByteCount = ByteCount(2 << 30),
    }

    /// `[auth]`: who may do what, at every door of this node.
    auth: AuthSection {
        /// Roles, who has them, and limits of users; see the chapter on rights. Default none.
        roles_file: Option<PathBuf> = None,
        /// Public keys (JWKS) that tokens (JWT) are checked with, in a file. Default none: no tokens are taken.
        token_keys_file: Option<PathBuf> = None,
        /// The same, to be fetched from an https:// address. Default none.
        token_keys_url: Option<String> = None,
        /// Authorities of that address's certificate, PEM. Default none: those of the system.
        token_keys_ca: Option<PathBuf> = None,
        /// How often keys are fetched anew; a token with an unknown key has it done at once. Default `1h`.
        token_keys_refresh: Duration = Duration::from_secs(3600),
        /// Who must have given out a token (`iss`). Default none: whoever has one of the keys.
        token_issuer: Option<String> = None,
        /// Whom a token must be for (`aud`); must be set where tokens are taken. Default none.
        token_audience: Option<String> = None,
        /// How far the clocks of issuer and node may differ. Default `1min`.
        token_leeway: Duration = Duration::from_secs(60),
        /// The claim that holds the user's name; points lead into objects. Default `sub`.
        token_name_claim: String = "sub".to_owned(),
        /// The claim that holds the user's groups. Default `groups`.
        token_groups_claim: String = "groups".to_owned(),
        /// Whether refusals and what administrators do are written down. Default true.
        audit: bool = true,
        /// Where. Default none: `state/audit.log` in `node.data_dir`.
        audit_file: Option<PathBuf> = None,
        /// Size at which that file is moved aside. Default `16MiB`.
        audit_bytes_max: ByteCount = ByteCount(16 << 20),
        /// Files that are kept in all. Default 4.
        audit_files_max: u32 = 4,
    }

    /// `[mqtt]`: the MQTT broker of this node.
    mqtt: MqttSection {
        /// Whether this node serves MQTT. Default true, on this machine alone until a listener says otherwise.
        enabled: bool = true,
        /// Threads that serve connections. Default 0: one for each processor.
        shards: u32 = 0,
        /// What sessions, their messages and retained messages outlive: `memory` (nothing), `page` (the process, however it
        /// ends) or `disk` (a loss of power). Default `page`.
        durability: MqttDurability = MqttDurability(Durability::Page),
        /// Users and what proves them, in Mosquitto's format; `tidegate passwd` writes it. Default none: `users` in
        /// node.data_dir, if `tidegate init` has made one.
        password_file: Option<PathBuf> = None,
        /// Rules for topics, in Mosquitto's grammar. Default none: whoever is in may publish and subscribe to everything.
        acl_file: Option<PathBuf> = None,
        /// Whether clients come in that prove nothing. Default none: at listeners on loopback, while no password file is named.
        allow_anonymous: Option<bool> = None,
        /// Bytes of messages that the node holds at most: waiting, in flight, retained and being received. Default `256MiB`.
        payload_bytes_max: ByteCount = ByteCount(256 << 20),
        /// Largest packet of a client. Default `64MiB`.
        packet_bytes_max: ByteCount = ByteCount(64 << 20),
        /// Bytes that may wait for one subscriber. Default `32MiB`.
        queue_bytes_max: ByteCount = ByteCount(32 << 20),
        /// Messages that may wait for one subscriber. Default 100000.
        queue_messages_max: u32 = 100_000,
        /// How long a session may be full and without a connection before its oldest messages are dropped, so that publishers are no
        /// longer refused or held up for it; `0s` for ever. Bridges, sinks and uplinks of this node are exempt. Default `1h`.
        queue_idle_max: Duration = Duration::from_secs(3600),
        /// Bytes on disk of messages that wait for subscribers under the overflow `spill`, of all of them; 0 for none. Default
        /// `1GiB`.
        spill_bytes: ByteCount = ByteCount(1 << 30),
        /// What happens to QoS 0 messages beyond that: `drop-oldest`, `drop-newest`, `latest` (of each topic the newest waits),
        /// `disconnect`, `block-publisher` or `spill` (they wait on disk). Default `drop-oldest`.
        overflow_qos0: Overflow = Overflow::DropOldest,
        /// The same for QoS 1 and 2. Default `disconnect`: the subscriber is disconnected, its session and what waits are kept.
        overflow: Overflow = Overflow::Disconnect,
        /// When large messages start: `deadline`, `conservative`, `probabilistic`, `historic` or `none`. Default `deadline`.
        policy: Policy = Policy::default(),
        /// Of `deadline`: longest that a large message may predictably hold up a small one while the path is congested. Default
        /// `100ms`.
        policy_small_budget: Duration = Duration::from_millis(100),
        /// Of `deadline`: longest withholding of a large message. Default `5s`.
        policy_deadline: Duration = Duration::from_secs(5),
        /// Of `deadline`: part of the bytes that is the large class's while small messages wait all the time, 0 to 0.99. Default
        /// 0.2.
        policy_large_share: f64 = 0.2,
        /// Of the paper's policies: threshold_l, the round trip of a query where nothing is congested. Default `500ms`.
        policy_threshold_l: Duration = Duration::from_millis(500),
        /// Of the paper's policies: threshold_l is the mean of so many round trips instead. Default 0: it is fixed.
        policy_threshold_samples: u32 = 0,
        /// Of the paper's policies: T_Q, the period of queries. Default `5s`.
        policy_query_period: Duration = Duration::from_secs(5),
        /// Of the paper's policies: bytes of a query. Default `10kB`.
        policy_query_bytes: ByteCount = ByteCount(10_000),
        /// Of the paper's policies: the topic of queries. Default `latency`.
        policy_query_topic: String = "latency".to_owned(),
        /// Of the paper's policies: D, the longest withholding. Default `20s`.
        policy_withhold_max: Duration = Duration::from_secs(20),
        /// Of the paper's policies: how a round trip grows with the size of its message: `linear`, or sizes with factors and
        /// straight lines between. Default `10kB:1, 1MB:10`.
        policy_size_profile: String = "10kB:1, 1MB:10".to_owned(),
        /// Of `probabilistic`: lambda, one divided by the mean seconds of congestion. Default 1 / 17.5.
        policy_lambda: f64 = 1.0 / 17.5,
        /// Payloads over this are large. Default `10kB`.
        large_bytes: ByteCount = ByteCount(10_000),
        /// Longest time that a session outlives its connection. Default `168h`.
        session_expiry_max: Duration = Duration::from_secs(7 * 24 * 3600),
        /// Longest keep alive, also for clients that want none; `0s` lets them. MQTT 5 clients are told it, others that ask for more or
        /// for none are refused. Default `0s`.
        keepalive_max: Duration = Duration::ZERO,
        /// QoS 1 and 2 messages in flight to one subscriber. Default 1024.
        inflight_max: u16 = 1024,
        /// QoS 2 messages of one publisher that wait for their release; MQTT 5 clients are told it as Receive Maximum. Default 1024.
        receive_maximum: u16 = 1024,
        /// Topic aliases that a publisher may define; MQTT 5 clients are told it. Default 64.
        topic_alias_max: u16 = 64,
        /// Topic aliases that are defined towards a subscriber that takes them. Default 64.
        topic_alias_out_max: u16 = 64,
        /// Highest QoS of clients' messages, 0 to 2; MQTT 5 clients are told it. Default 2.
        max_qos: u32 = 2,
        /// Whether clients may have messages retained; MQTT 5 clients are told it. Default true.
        retain_available: bool = true,
        /// Versions of MQTT that are spoken, of `3.1`, `3.1.1` and `5`, with commas between. Default all.
        accept_protocol_versions: Versions = Versions::default(),
        /// Whether clients without an identifier are given one; else they are refused. Default true.
        allow_zero_length_clientid: bool = true,
        /// How identifiers begin that are given. Default `auto-`.
        auto_id_prefix: String = "auto-".to_owned(),
        /// Whether topics may have control characters and non-characters (U+0001 to U+001F, U+007F to U+009F, U+FFFF and others);
        /// clients of libmosquitto disconnect when they get such a topic. Default false.
        topic_control_characters: bool = false,
        /// Retained messages. Default 1000000.
        retained_max: u32 = 1_000_000,
        /// Sessions, with and without connection. Default 1000000.
        sessions_max: u32 = 1_000_000,
        /// What one user, certificate or, without a proof, address may have of what all others leave of `payload_bytes_max`,
        /// `retained_max` and `sessions_max`: 0.01 to 1, which bounds nobody. Default 0.75.
        identity_share: f64 = 0.75,
        /// Subscriptions of one session. Default 100000.
        subscriptions_max: u32 = 100_000,
        /// Levels of a topic. Default 256.
        topic_levels_max: u32 = 256,
        /// Length of a topic. Default `65535B`, the protocol's own.
        topic_bytes_max: ByteCount = ByteCount(65_535),
        /// How often `$SYS` is published; `0s` for never. Default `10s`.
        sys_interval: Duration = Duration::from_secs(10),
    }

    ;
    /// `[log.camera.NAME]`: what holds for one camera instead of what `[log]` says.
    "log.camera" in log_cameras: LogCameraSection {
        /// As in `[log]`. Default none.
        durability: Option<Durability> = None,
        /// Bytes of originals kept. Default none.
        bytes: Option<ByteCount> = None,
        /// Longest time that they are kept. Default none.
        age: Option<Duration> = None,
    }
    /// `[mqtt.listener.NAME]`: where MQTT clients connect. Without any, one on 127.0.0.1:1883.
    "mqtt.listener" in mqtt_listeners: MqttListenerSection with "main" {
        /// Where: an address with a port, a name of this machine with a port, such as `localhost:1883`, for all addresses of it, or a
        /// socket of the file system, such as `unix:/run/tidegate/mqtt.sock`. Default `127.0.0.1:1883`.
        listen: ListenAddress = SocketAddr::from((Ipv4Addr::LOCALHOST, 1883)).into(),
        /// Who may connect to a socket of the file system, as the mode of a file in octal. Default none: `0660`, the node's user and
        /// group.
        socket_mode: Option<SocketMode> = None,
        /// `tcp`, `tls`, `websocket` or `secure-websocket`. Default `tcp`.
        protocol: Protocol = Protocol::Tcp,
        /// Whether each connection begins with a header of the PROXY protocol, in which a load balancer says whose it is: `v1`, `v2`
        /// or `any` of both. A connection without one is refused. Only where none but the balancer can connect: whoever can, may
        /// name any address. Default none: such headers are not read.
        proxy_protocol: Option<proxy::Accepted> = None,
        /// Where MQTT is with WebSocket: paths, separated by commas, or `*` for any. Default `/mqtt, /`.
        paths: String = "/mqtt, /".to_owned(),
        /// Certificate chain, PEM. Default none: the node's own, with TLS.
        certificate: Option<PathBuf> = None,
        /// Its key, PEM.
        key: Option<PathBuf> = None,
        /// Authorities of clients' certificates, PEM: a file, or a folder as `openssl rehash` leaves it. Default none: clients show
        /// none.
        client_ca: Option<PathBuf> = None,
        /// Revocation lists of those authorities, PEM; the site's own is looked at without being named. Default none.
        client_crl: Option<PathBuf> = None,
        /// SHA-256 fingerprints of clients' certificates that are taken whoever signed them, X.509 version 1 included: 64 hexadecimal digits
        /// each, with or without colons, separated by commas. Default none.
        client_pins: Option<String> = None,
        /// Certificates of which those between `certificate` and its authority are sent to clients as well, where `certificate` does not
        /// hold them, PEM: a file or a folder as for `client_ca`, which is looked into too. Default none.
        chain: Option<PathBuf> = None,
        /// Whether clients without a certificate are refused. Default false.
        require_certificate: bool = false,
        /// Connections at a time. Default 100000.
        connections_max: u32 = 100_000,
        /// Longest time to the client's CONNECT. Default `10s`.
        connect_timeout: Duration = Duration::from_secs(10),
        /// Messages that one client may publish a second; who sends more is read from no faster. Default 0: any.
        publish_rate_max: u32 = 0,
        /// As in `[mqtt]`, for clients of this listener; at most that. Default none.
        packet_bytes_max: Option<ByteCount> = None,
        /// As in `[mqtt]`.
        topic_levels_max: Option<u32> = None,
        /// As in `[mqtt]`.
        topic_bytes_max: Option<ByteCount> = None,
        /// As in `[mqtt]`, for clients of this listener. Default none.
        max_qos: Option<u32> = None,
        /// As in `[mqtt]`.
        retain_available: Option<bool> = None,
        /// As in `[mqtt]`.
        accept_protocol_versions: Option<Versions> = None,
        /// As in `[mqtt]`.
        allow_zero_length_clientid: Option<bool> = None,
        /// As in `[mqtt]`.
        auto_id_prefix: Option<String> = None,
        /// Whether clients come in that prove nothing. Default none: as `[mqtt]` says.
        allow_anonymous: Option<bool> = None,
        /// As in `[mqtt]`, for clients of this listener. Default none.
        queue_bytes_max: Option<ByteCount> = None,
        /// As in `[mqtt]`.
        overflow_qos0: Option<Overflow> = None,
        /// As in `[mqtt]`.
        overflow: Option<Overflow> = None,
        /// As in `[mqtt]`.
        policy: Option<Policy> = None,
        /// As in `[mqtt]`.
        large_bytes: Option<ByteCount> = None,
        /// Congestion control, such as `bbr` or `cubic`. Default none: the system's.
        tcp_congestion: Option<String> = None,
    }
    /// `[mqtt.bridge.NAME]`: what passes between this node's broker and another MQTT broker.
    "mqtt.bridge" in mqtt_bridges: MqttBridgeSection {
        /// The other broker, as host and port.
        remote: String = String::new(),
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
        /// Whether the remote's certificate may be for any name; it must be of a trusted authority all the same. Whoever has such a
        /// certificate of that authority can then pass itself off as the remote. Default false.
        insecure: bool = false,
        /// Certificate chain to show there, PEM. Default none.
        certificate: Option<PathBuf> = None,
        /// Its key, PEM.
        key: Option<PathBuf> = None,
        /// User name there. Default none.
        username: Option<String> = None,
        /// File that holds the password, without the end of its line. Default none.
        password_file: Option<PathBuf> = None,
        /// Name of the bridge's session there. Default none: made of the names of node and bridge and a number of the node.
        client_id: Option<String> = None,
        /// What is published there: filters, separated by commas. Default none.
        topics_out: String = String::new(),
        /// What is fetched from there: filters, separated by commas. Default none.
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
    /// `[uplink.NAME]`: what is published here is published at another node as well, compact and in batches.
    "uplink" in uplinks: UplinkSection {
        /// The other node's link (`link.listen`), as host and port.
        to: String = String::new(),
        /// `auto`, `quic` or `tcp`. Default `auto`: TCP only where QUIC does not get through.
        transport: Transport = Transport::Auto,
        /// What is carried: filters, separated by commas.
        topics: String = String::new(),
        /// What travels at once and before all else: filters, separated by commas. Default none.
        critical: String = String::new(),
        /// Bytes of such messages a second, and at once. Default `1MiB`.
        critical_bytes_per_second: ByteCount = ByteCount(1 << 20),
        /// Longest time that a message waits for others of its batch. Default `20ms`.
        batch_age: Duration = Duration::from_millis(20),
        /// Bytes of a batch before zstd. Default `64KiB`.
        batch_bytes: ByteCount = ByteCount(64 << 10),
        /// How batches are compressed once more: `none`, `zstd:LEVEL`, or `zstd-stream:LEVEL` for all of a link as one. Default
        /// `zstd:1`.
        compression: String = "zstd:1".to_owned(),
        /// How payloads are cut where it is not to be found from the first: `FILTER = LAYOUT`, separated by commas; see the chapter on
        /// uplinks. Default none.
        layouts: String = String::new(),
        /// Whether the fields of a batch stand in columns, which zstd likes. Default false.
        columns: bool = false,
        /// Topics that both ends know at once, as far as `state_bytes` goes, at most 16777216. Default 1048576.
        topics_max: u32 = 1 << 20,
        /// Bytes that either end keeps of them, at most `64GiB`; the other end an eighth of its `link.uplink_bytes_max` at most.
        /// Default `256MiB`.
        state_bytes: ByteCount = ByteCount(256 << 20),
        /// Bytes of messages that were sent and wait to be acknowledged; the rest waits in the queue. Default `16MiB`.
        window_bytes: ByteCount = ByteCount(16 << 20),
        /// Bytes of batches on their way. Default `4MiB`: more than bandwidth times round trip.
        flight_bytes: ByteCount = ByteCount(4 << 20),
        /// Whether messages are published there with their name, the user property `tidegate-id`. Default true.
        names: bool = true,
        /// As in `[mqtt]`, for what waits here. Default none.
        queue_bytes_max: Option<ByteCount> = None,
        /// Messages that wait here, in memory and on disk. Default 100000000.
        queue_messages_max: u32 = 100_000_000,
        /// As in `[mqtt]`. Default none: `spill` if `mqtt.spill_bytes` is not 0.
        overflow: Option<Overflow> = None,
        /// As in `[mqtt]`. Default none: as for QoS 1.
        overflow_qos0: Option<Overflow> = None,
        /// Longest wait between two tries to reach the other node; the first is a twentieth of it. Default `5s`.
        reconnect_backoff_max: Duration = Duration::from_secs(5),
    }
    /// `[ingest.NAME]`: a way in beside MQTT.
    "ingest" in ingest: IngestSection {
        /// What is spoken there: `udp`, `coap`, `http` or `websocket`. Default `udp`.
        kind: Kind = Kind::Udp,
        /// Address and port. Default `127.0.0.1:7070`.
        listen: SocketAddr = (Ipv4Addr::LOCALHOST, 7070).into(),
        /// What a datagram is, of `udp`: `payload`, `topic-payload` (a topic, the end of a line, a payload) or `line` (InfluxDB's line
        /// protocol). Default `payload`.
        format: Format = Format::Payload,
        /// The topic of what does not name one: of datagrams with `{ip}` and `{port}`, of lines with `{measurement}`, `{tags}`, `{tag:NAME}`
        /// and `{field}`. Default none: `udp/{ip}`, or `{measurement}/{tags}`.
        topic: Option<String> = None,
        /// Whether messages are retained. Default false.
        retain: bool = false,
        /// Whether TLS is spoken, of `http` and `websocket`. Default false.
        tls: bool = false,
        /// Certificate chain, PEM. Default none: the node's own, with TLS.
        certificate: Option<PathBuf> = None,
        /// Its key, PEM.
        key: Option<PathBuf> = None,
        /// How datagrams are received: `io-uring`, `recvmmsg`, `plain`, or `auto`, the first that the system has. Default `auto`.
        receive: Method = Method::Auto,
        /// Whether the kernel may join datagrams of one sender on the way, which is cheaper and takes 17 MB. Default true.
        receive_joined: bool = true,
        /// Bytes of datagrams that may wait to be taken; what finds no room is dropped and counted. Beyond the system's limit only
        /// for a process that may administer the network. Default `4MiB`.
        receive_buffer_bytes: ByteCount = ByteCount(4 << 20),
        /// The user whose rights hold for everybody who shows nothing. Default none.
        identity: Option<String> = None,
        /// Whether who shows nothing comes in, as nobody, where `identity` names no user. Default none: on loopback, as long as
        /// there is no `mqtt.password_file`.
        allow_anonymous: Option<bool> = None,
        /// Longest payload of a message. Default `64kB`.
        message_bytes_max: ByteCount = ByteCount(64_000),
        /// Longest body of a request, unpacked. Default `4MiB`.
        body_bytes_max: ByteCount = ByteCount(4 << 20),
        /// Connections at a time. Default 1024.
        connections_max: u32 = 1024,
        /// Messages that are taken a second, of all senders together; what is beyond is refused, of `udp` dropped. Default 0: any.
        rate_max: u32 = 0,
        /// Longest time that a request may take to arrive, and a connection may be silent. Default `30s`.
        request_timeout: Duration = Duration::from_secs(30),
        /// Of `udp`: the network interface at which the kernel drops datagrams that are not to be kept, before they come in. Only in builds
        /// with the feature `xdp`. Default none.
        xdp_interface: Option<String> = None,
        /// Where: `native` (in the driver), `generic`, or `auto`, the first that the interface has. Default `auto`.
        xdp_mode: Mode = Mode::Auto,
        /// What stands at which place of a payload, separated by semicolons: `n as u16be at 0; t at 2 length 6 decimals 1`.
        xdp_fields: Option<String> = None,
        /// Which are kept: `t > 75.5 or t < -5`.
        xdp_keep: Option<String> = None,
        /// Bytes of such a payload; others pass. Default none: up to the end of the last field.
        xdp_payload_bytes: Option<u16> = None,
    }
    /// `[mqtt.user.NAME]`: what holds for one user instead of what the listener says.
    "mqtt.user" in mqtt_users: MqttUserSection {
        /// As in `[mqtt]`. Default none.
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
    /// `[mqtt.topic.NAME]`: what holds for the topics of a filter instead of what listener and user say; the first by name.
    "mqtt.topic" in mqtt_topics: MqttTopicSection {
        /// Which topics.
        filter: String = String::new(),
        /// Payloads over this are large. Default none.
        large_bytes: Option<ByteCount> = None,
        /// As in `[mqtt]`, for every QoS. Default none.
        overflow: Option<Overflow> = None,
    }
    /// `[flow.NAME]`: flows, which look at messages before they are queued; the chapter on flows has what their files say.
    "flow" in flows: FlowSection {
        /// File of the flows.
        file: PathBuf = PathBuf::new(),
        /// Folder of the models, tables and sets that they name. Default none: `models` beside the file.
        models_dir: Option<PathBuf> = None,
        /// Topic filters in place of those in the file, separated by commas. Default none.
        topics: Option<String> = None,
        /// Whether they run. Default true.
        enabled: bool = true,
        /// How often their state is written to the disk where `mqtt.durability` is `page` or `disk`, 1s to 1h; it is written at the
        /// end as well. Default `1min`.
        state_interval: Duration = Duration::from_secs(60),
    }
    /// `[sink.NAME]`: where messages go that others are to keep; see the chapter on sinks.
    "sink" in sinks: SinkSection {
        /// `parquet`, `postgres`, `influx`, `kafka`, `mqtt`, or `memory` for tests. Default `memory`.
        kind: SinkKind = SinkKind::Memory,
        /// What it takes: filters, separated by commas.
        topics: String = String::new(),
        /// Where messages go that the destination refuses for good. Default none: they are counted and logged.
        dead_letter: Option<String> = None,
        /// Where the destination is; each kind has its form. A folder's relative path begins at the folder of the file that names it.
        /// Default none.
        url: Option<String> = None,
        /// User name there, of an S3 store the access key. Default none.
        username: Option<String> = None,
        /// File that holds the password, token or secret key, without the end of its line; a relative path as in `url`. Default none.
        password_file: Option<PathBuf> = None,
        /// Authorities of the destination's certificate, PEM; a relative path as in `url`. Default none: those of the system.
        ca: Option<PathBuf> = None,
        /// Messages of a batch at most, 1 to 60000. Default none: 10000, of `parquet` 50000, of `memory` 1000.
        batch_messages: Option<u32> = None,
        /// Bytes of a batch, from which on it is handed over. Default none: `8MiB`, of `parquet` `32MiB`, of `memory` `1MiB`.
        batch_bytes: Option<ByteCount> = None,
        /// Longest time that a message waits for others. Default none: `1s`, of `parquet` `1min`, of `memory` `100ms`.
        batch_age: Option<Duration> = None,
        /// Longest time that the destination has for one exchange of a batch. Default `1min`.
        timeout: Duration = Duration::from_secs(60),
        /// Longest wait between two tries. Default `30s`.
        backoff_max: Duration = Duration::from_secs(30),
        /// As in `[mqtt]`, for what waits here for the destination. Default none.
        queue_bytes_max: Option<ByteCount> = None,
        /// As in `[mqtt]`. Default none: 1000000.
        queue_messages_max: Option<u32> = None,
        /// As in `[mqtt]`. Default none: `spill`.
        overflow: Option<Overflow> = None,
        /// As in `[mqtt]`.
        overflow_qos0: Option<Overflow> = None,
        /// Of `memory`: messages that are held, the newest. Default none: 10000.
        memory_messages: Option<u32> = None,
        /// Of `parquet` and `kafka`: `zstd`, `snappy`, `none`, and for `kafka` `gzip`. Default none: `zstd`.
        compression: Option<String> = None,
        /// Of `parquet`: how files are parted, `hour`, `day` or `none`. Default none: `hour`.
        partition: Option<String> = None,
        /// Of `parquet`: what the column `time` counts, `us` or `ns`; Spark 3 and others do not read `ns`. Default none: `us`.
        time_unit: Option<String> = None,
        /// Of `parquet` on S3: the region. Default none: `us-east-1`.
        region: Option<String> = None,
        /// Of `parquet` on S3: the address of a store that is not Amazon's. Default none.
        endpoint: Option<String> = None,
        /// Of `postgres`: the table, with a schema or without. Default none: `messages`.
        table: Option<String> = None,
        /// Of `influx`: `lines` where payloads are lines of the protocol, `values` where they are numbers, JSON objects or text.
        /// Default none: `values`.
        encoding: Option<String> = None,
        /// Of `influx` with `values`: the measurement. Default none: `mqtt`.
        measurement: Option<String> = None,
        /// Of `kafka`: the topic there. Default none: `tidegate`.
        topic: Option<String> = None,
        /// Of `postgres` and `kafka`: whether the table or topic is made where there is none. Default none: true.
        create: Option<bool> = None,
    }
}

impl Config {
    /// The bounds of single settings and what holds between them.
    pub(super) fn check(&self) -> Vec<ConfigError> {
        let mut wrong: Vec<ConfigError> = Vec::new();
        let mut blamed: Vec<&str> = Vec::new();
        let (frames, log, link) = (&self.frames, &self.log, &self.link);
        let frame_bytes = frames.frame_bytes_max.0;
        // Room for what stands beside the frame in its message.
        let frame_bytes_most = MESSAGE_BYTES_MAX as u64 - (1 << 20);
        // A log has at least four segments, each with room for the largest frame.
        const LOG_BOUND: &str = "at least 4 times frames.frame_bytes_max and 64KiB each";
        let log_bytes_min = 4 * (frame_bytes + ENTRY_META_BYTES_MAX);
        let seconds = Duration::from_secs;
        for (name, kept, bound) in [
            (
                "frames.frame_bytes_max",
                (1 << 10..=frame_bytes_most).contains(&frame_bytes),
                "from 1KiB to 63MiB",
            ),
            ("frames.frame_pixels_max", frames.frame_pixels_max >= 64, "at least 64"),
            ("frames.future_tolerance", frames.future_tolerance <= seconds(3600), "at most 1h"),
            // A camera's log keeps more than its last few frames.
            (
                "log.camera_bytes",
                log.camera_bytes.0 >= 16 * frame_bytes.min(8 << 20),
                "at least 16 times frames.frame_bytes_max, or 128MiB if that is less",
            ),
            ("log.camera_bytes", log.camera_bytes.0 >= log_bytes_min, LOG_BOUND),
            ("log.stream_bytes", log.stream_bytes.0 >= log_bytes_min, LOG_BOUND),
            ("log.mqtt_bytes", log.mqtt_bytes.0 >= BYTES_MIN, "at least 256MiB"),
            ("log.mqtt_commit_delay", log.mqtt_commit_delay <= seconds(10), "at most 10s"),
            (
                "privacy.detector",
                self.privacy.detector().is_ok(),
                "face, person, or command with privacy.detector_command",
            ),
            (
                "log.at_rest",
                log.at_rest == AtRest::Clear || log.key_file.is_some(),
                "clear as long as log.key_file names no key; `tidegate key` makes one",
            ),
            (
                "link.queue_allowed",
                (Duration::from_millis(1)..=seconds(1)).contains(&link.queue_allowed),
                "from 1ms to 1s",
            ),
            (
                "link.idle_timeout",
                (seconds(1)..=seconds(300)).contains(&link.idle_timeout),
                "from 1s to 5min",
            ),
            (
                "link.connect_timeout",
                (Duration::from_millis(100)..=seconds(60)).contains(&link.connect_timeout),
                "from 100ms to 1min",
            ),
            (
                "link.quic_head_start",
                (Duration::from_millis(10)..=seconds(10)).contains(&link.quic_head_start),
                "from 10ms to 10s",
            ),
            (
                "link.reconnect_backoff_max",
                (Duration::from_millis(100)..=seconds(600)).contains(&link.reconnect_backoff_max),
                "from 100ms to 10min",
            ),
            (
                "link.edge",
                link.edge.rsplit_once(':').is_some_and(|(host, port)| {
                    !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
                }),
                "a host and a port, such as edge.local:7443",
            ),
            (
                "auth.token_keys_url",
                self.auth.token_keys_url.as_ref().is_none_or(|url| {
                    // What is printed must hold no secret.
                    url.starts_with("https://") && !url.contains('@')
                }),
                "an https:// address, without a user name and password in it",
            ),
            (
                "auth.token_keys_refresh",
                (seconds(60)..=seconds(7 * 86_400)).contains(&self.auth.token_keys_refresh),
                "from 1min to 168h",
            ),
            ("auth.token_leeway", self.auth.token_leeway <= seconds(600), "at most 10min"),
            ("auth.audit_bytes_max", self.auth.audit_bytes_max.0 >= 64 << 10, "at least 64KiB"),
            (
                "auth.audit_files_max",
                (1..=1000).contains(&self.auth.audit_files_max),
                "from 1 to 1000",
            ),
            ("link.uplink_bytes_max", self.link.uplink_bytes_max.0 >= 1 << 20, "at least 1MiB"),
            (
                "link.sensor_share",
                (0.001..=0.2).contains(&self.link.sensor_share),
                "from 0.001 to 0.2",
            ),
            ("mqtt.shards", self.mqtt.shards <= 255, "at most 255"),
            ("mqtt.payload_bytes_max", self.mqtt.payload_bytes_max.0 >= 1 << 20, "at least 1MiB"),
            (
                "mqtt.packet_bytes_max",
                (PACKET_BYTES_LEAST..=u64::from(PACKET_BYTES_MAX))
                    .contains(&self.mqtt.packet_bytes_max.0),
                "from 20B to 256MiB less a few bytes",
            ),
            (
                "mqtt.packet_bytes_max",
                self.mqtt.packet_bytes_max.0 <= self.mqtt.payload_bytes_max.0 / 2,
                "at most half of mqtt.payload_bytes_max",
            ),
            (
                "mqtt.identity_share",
                (0.01..=1.0).contains(&self.mqtt.identity_share),
                "from 0.01 to 1",
            ),
            ("mqtt.queue_bytes_max", self.mqtt.queue_bytes_max.0 >= 1 << 10, "at least 1KiB"),
            (
                "mqtt.spill_bytes",
                self.mqtt.spill_bytes.0 == 0 || self.mqtt.spill_bytes.0 >= 1 << 20,
                "0, or at least 1MiB",
            ),
            ("mqtt.large_bytes", self.mqtt.large_bytes.0 <= u64::from(u32::MAX), "at most 4GiB"),
            ("mqtt.inflight_max", self.mqtt.inflight_max >= 1, "at least 1"),
            ("mqtt.receive_maximum", self.mqtt.receive_maximum >= 1, "at least 1"),
            ("mqtt.max_qos", self.mqtt.max_qos <= 2, "0, 1 or 2"),
            ("mqtt.auto_id_prefix", is_id_prefix(&self.mqtt.auto_id_prefix), ID_PREFIX_BOUND),
            (
                "mqtt.policy_large_share",
                (0.0..=0.99).contains(&self.mqtt.policy_large_share),
                "from 0 to 0.99",
            ),
            (
                "mqtt.policy_deadline",
                self.mqtt.policy_deadline >= Duration::from_millis(1),
                "at least 1ms",
            ),
            (
                "mqtt.policy_query_period",
                self.mqtt.policy_query_period >= Duration::from_millis(100),
                "at least 100ms",
            ),
            (
                "mqtt.policy_query_bytes",
                (1..=1 << 20).contains(&self.mqtt.policy_query_bytes.0),
                "from 1B to 1MiB",
            ),
            (
                "mqtt.policy_threshold_samples",
                self.mqtt.policy_threshold_samples <= 10_000,
                "at most 10000",
            ),
            (
                "mqtt.policy_lambda",
                self.mqtt.policy_lambda > 0.0 && self.mqtt.policy_lambda.is_finite(),
                "above 0",
            ),
            (
                "mqtt.keepalive_max",
                self.mqtt.keepalive_max <= seconds(u64::from(u16::MAX)),
                "at most 65535s",
            ),
            (
                "mqtt.topic_levels_max",
                (1..=65_535).contains(&self.mqtt.topic_levels_max),
                "from 1 to 65535",
            ),
            (
                "mqtt.topic_bytes_max",
                (1..=65_535).contains(&self.mqtt.topic_bytes_max.0),
                "from 1B to 65535B",
            ),
        ] {
            // The first bound of a setting says enough, and of one that goes by the size of frames nothing is known while that is wrong.
            let says_enough = blamed.contains(&name)
                || (name.starts_with("log.") && blamed.contains(&"frames.frame_bytes_max"));
            if !kept && !says_enough {
                blamed.push(name);
                let origin = self.origins.of(name).cloned();
                wrong.push(ConfigError::Bound { origin, key: name, bound });
            }
        }
        for (name, camera) in &self.log_cameras {
            if camera.bytes.is_some_and(|bytes| bytes.0 < log_bytes_min) {
                let origin = self.origins.of(&format!("log.camera.{name}.bytes")).cloned();
                wrong.push(ConfigError::Bound { origin, key: "bytes", bound: LOG_BOUND });
            }
        }
        for (name, flow) in &self.flows {
            let origin = |key: &str| self.origins.of(&format!("flow.{name}.{key}")).cloned();
            if flow.file.as_os_str().is_empty() {
                let bound = "the name of a file of flows";
                let origin =
                    origin("file").or_else(|| self.origins.section(&format!("flow.{name}")));
                wrong.push(ConfigError::Bound { origin, key: "file", bound });
            }
            if !(seconds(1)..=seconds(3600)).contains(&flow.state_interval) {
                let (key, bound) = ("state_interval", "from 1s to 1h");
                wrong.push(ConfigError::Bound { origin: origin(key), key, bound });
            }
        }
        wrong
    }

    /// A path that is a part of the setting `name`: relative ones begin at the folder of the file that names it, those of a variable
    /// or flag where the program runs.
    pub fn path_of(&self, name: &str, path: &Path) -> PathBuf {
        match self.origins.of(name) {
            Some(Origin::File { path: file, .. }) => {
                file.parent().map_or_else(|| path.to_owned(), |folder| folder.join(path))
            }
            _ => path.to_owned(),
        }
    }
}

/// Bytes that the largest packet of a client has at least: the shortest ones that are of use have no more.
pub(crate) const PACKET_BYTES_LEAST: u64 = 20;
/// Bytes of an identifier's prefix: what follows it is some 30, and 65,535 are MQTT's limit.
const ID_PREFIX_BYTES_MAX: usize = 1_000;
pub(crate) const ID_PREFIX_BOUND: &str = "at most 1000 bytes without control characters";

/// Whether identifiers of clients may begin so.
pub(crate) fn is_id_prefix(text: &str) -> bool {
    text.len() <= ID_PREFIX_BYTES_MAX && !text.contains(char::is_control)
}

impl PrivacyConfig {
    /// What is to find what is covered.
    ///
    /// # Errors
    /// There is no such detector, or it is one that learns a background and finds what moves.
    pub fn detector(&self) -> Result<Option<DetectorSpec>, DetectorError> {
        let command = self.detector_command.as_deref();
        match self.detector.as_deref() {
            None if command.is_some() => DetectorSpec::parse("", command).map(Some),
            None => Ok(None),
            Some(name @ "moving") => Err(DetectorError::Unknown { name: name.to_owned() }),
            Some(name) => DetectorSpec::parse(name, command).map(Some),
        }
    }
}

fn name(word: &'static str) -> CameraName {
    word.parse().expect("defaults are names")
}
