//! The settings of Mosquitto 2.0 and 2.1: where each belongs, how its value is read, and what becomes of it here.

/// A setting of Mosquitto.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) scope: Scope,
    pub(super) kind: Kind,
    pub(super) fate: Fate,
}

/// The part of a configuration that a setting belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The broker, wherever the line stands.
    General,
    /// A security option: the listener above it with `per_listener_settings true`, the broker without.
    Security,
    /// The listener above it.
    Listener,
    /// The default listener, wherever the line stands.
    DefaultListener,
    /// The connection above it.
    Bridge,
}

/// How Mosquitto reads the value: only [`Kind::Text`] and [`Kind::Rest`] take the whole line, so that what follows the first
/// word of another is a comment to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first word: `true`, `1`, `false` or `0`, in small letters.
    Flag,
    /// The first word, a whole number.
    Number,
    /// The first word.
    Word,
    /// Several words.
    Words,
    /// All that follows, without blanks at its ends; a `#` belongs to it.
    Text,
    /// All that follows the first space, blanks included.
    Rest,
}

/// How a setting is translated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// It has a counterpart.
    Translated,
    /// Nothing is lost without it.
    Needless(&'static str),
    /// It has no counterpart; these values say what holds here anyway.
    Lost(&'static [&'static str], &'static str),
    /// The same, and its listener or connection would be less protected without it.
    Protects(&'static [&'static str], &'static str),
}

/// The setting of that name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    // Names that end with a word of a plugin's.
    let name = match name {
        "plugin_load" | "plugin_use" => name,
        _ if name.starts_with("auth_opt_") => "auth_opt_",
        _ if name.starts_with("plugin_opt_") => "plugin_opt_",
        _ => name,
    };
    KEYS.iter().find(|key| key.name == name)
}

impl Fate {
    /// Why nothing is written for that value and whether something is lost by it; none where it is translated.
    pub(super) fn of(self, value: &str) -> Option<(&'static str, bool)> {
        match self {
            Self::Translated => None,
            Self::Needless(why) => Some((why, false)),
            Self::Lost(same, why) | Self::Protects(same, why) => {
                Some((why, !same.contains(&value)))
            }
        }
    }

    /// Whether a listener or connection with that value stays shut.
    pub(super) fn shuts(self, value: &str) -> bool {
        matches!(self, Self::Protects(same, _) if !same.contains(&value))
    }
}

const LOGS: &str =
    "the log goes to the standard error, and the variable TIDEGATE_LOG says what is in it";
const PLUGIN: &str = "plugins are not run: use a password file, certificates and an ACL file";
const PSK: &str = "there are no pre-shared keys: use certificates, or passwords over TLS";
const SUITES: &str = "cipher suites are those of TLS 1.2 and 1.3 that rustls holds safe";
const VERSIONS: &str = "TLS 1.2 and 1.3 are spoken, and 1.2 cannot be ruled out: take the line out if it may be spoken";
const SESSION: &str = "the bridge's session here has a name of its own and no password";
const LOCAL_USER: &str = "the bridge may do everything with the topics that it bridges, whatever the rights of a user are: narrow its topics, and take the line out";
const STATE: &str =
    "the state of a bridge stands in $SYS/broker/connection/NAME/state of this node alone";
const ALWAYS: &str = "a bridge is connected all the time";
const SAVED: &str =
    "messages are written down as they come (mqtt.durability); nothing is saved at intervals";
const FOLDER: &str = "sessions and retained messages are kept in log/mqtt of node.data_dir; those in Mosquitto's own file are not taken over";

#[rustfmt::skip] // a table: one row a setting
const KEYS: &[Key] = &[
    // The broker.
    key("allow_duplicate_messages", Scope::General, Kind::Flag, Fate::Needless("overlapping subscriptions are served as MQTT 5 says")),
    key("autosave_interval", Scope::General, Kind::Number, Fate::Needless(SAVED)),
    key("autosave_on_changes", Scope::General, Kind::Flag, Fate::Needless(SAVED)),
    key("check_retain_source", Scope::General, Kind::Flag, Fate::Translated),
    key("clientid_prefixes", Scope::General, Kind::Text, Fate::Protects(&[], "client identifiers are not checked to accept a client: write ACL patterns with %c in place of it")),
    key("connection_messages", Scope::General, Kind::Flag, Fate::Needless(LOGS)),
    key("enable_control_api", Scope::General, Kind::Flag, Fate::Lost(&["false"], "there are no topics below $CONTROL")),
    key("global_max_clients", Scope::General, Kind::Number, Fate::Translated),
    key("global_max_connections", Scope::General, Kind::Number, Fate::Lost(&["-1"], "connections are bounded for each listener: write connections_max there")),
    key("include_dir", Scope::General, Kind::Text, Fate::Translated),
    key("log_dest", Scope::General, Kind::Words, Fate::Needless(LOGS)),
    key("log_facility", Scope::General, Kind::Number, Fate::Needless(LOGS)),
    key("log_timestamp", Scope::General, Kind::Flag, Fate::Needless(LOGS)),
    key("log_timestamp_format", Scope::General, Kind::Text, Fate::Needless(LOGS)),
    key("log_type", Scope::General, Kind::Word, Fate::Needless(LOGS)),
    key("max_inflight_bytes", Scope::General, Kind::Number, Fate::Lost(&["0"], "clients are held back by the count that MQTT 5 calls receive maximum")),
    key("max_inflight_messages", Scope::General, Kind::Number, Fate::Translated),
    key("max_keepalive", Scope::General, Kind::Number, Fate::Translated),
    key("max_packet_size", Scope::General, Kind::Number, Fate::Translated),
    key("max_queued_bytes", Scope::General, Kind::Number, Fate::Translated),
    key("max_queued_messages", Scope::General, Kind::Number, Fate::Translated),
    key("memory_limit", Scope::General, Kind::Number, Fate::Lost(&["0"], "memory is bounded by payload_bytes_max and the bounds of queues and connections")),
    key("message_size_limit", Scope::General, Kind::Number, Fate::Translated),
    key("packet_buffer_size", Scope::General, Kind::Number, Fate::Needless("buffers are sized by the program")),
    key("per_listener_settings", Scope::General, Kind::Flag, Fate::Translated),
    key("persistence", Scope::General, Kind::Flag, Fate::Translated),
    key("persistence_file", Scope::General, Kind::Text, Fate::Needless(FOLDER)),
    key("persistence_location", Scope::General, Kind::Text, Fate::Needless(FOLDER)),
    key("persistent_client_expiration", Scope::General, Kind::Word, Fate::Translated),
    key("pid_file", Scope::General, Kind::Text, Fate::Needless("the program stays in the foreground; its supervisor knows it")),
    key("queue_qos0_messages", Scope::General, Kind::Flag, Fate::Lost(&["false"], "messages of QoS 0 are not queued for clients that are away")),
    key("retain_available", Scope::General, Kind::Flag, Fate::Translated),
    key("retain_expiry_interval", Scope::General, Kind::Number, Fate::Lost(&[], "a retained message stays until its own expiry, or until another is in its place")),
    key("retained_persistence", Scope::General, Kind::Flag, Fate::Translated),
    key("retry_interval", Scope::General, Kind::Number, Fate::Needless("messages are sent again when a client comes back, as MQTT says")),
    key("set_tcp_nodelay", Scope::General, Kind::Flag, Fate::Needless("sockets are set up by the program, without delays")),
    key("store_clean_interval", Scope::General, Kind::Number, Fate::Needless("nothing has to be cleaned at intervals")),
    key("sys_interval", Scope::General, Kind::Number, Fate::Translated),
    key("upgrade_outgoing_qos", Scope::General, Kind::Flag, Fate::Lost(&["false"], "messages are sent with the lower of the two QoS, as MQTT says")),
    key("user", Scope::General, Kind::Text, Fate::Needless("the program runs as the user that starts it")),
    key("websockets_headers_size", Scope::General, Kind::Number, Fate::Needless("requests of WebSockets are bounded by the program")),
    key("websockets_log_level", Scope::General, Kind::Number, Fate::Needless(LOGS)),
    // Authentication and access.
    key("acl_file", Scope::Security, Kind::Text, Fate::Translated),
    key("allow_anonymous", Scope::Security, Kind::Flag, Fate::Translated),
    key("allow_zero_length_clientid", Scope::Security, Kind::Flag, Fate::Translated),
    key("auth_opt_", Scope::Security, Kind::Text, Fate::Lost(&[], PLUGIN)),
    key("auth_plugin", Scope::Security, Kind::Text, Fate::Lost(&[], PLUGIN)),
    key("auth_plugin_deny_special_chars", Scope::Security, Kind::Flag, Fate::Lost(&[], PLUGIN)),
    key("auto_id_prefix", Scope::Security, Kind::Text, Fate::Translated),
    key("global_plugin", Scope::Security, Kind::Text, Fate::Lost(&[], PLUGIN)),
    key("password_file", Scope::Security, Kind::Text, Fate::Translated),
    key("plugin", Scope::Security, Kind::Text, Fate::Lost(&[], PLUGIN)),
    key("plugin_load", Scope::Security, Kind::Text, Fate::Lost(&[], PLUGIN)),
    key("plugin_opt_", Scope::Security, Kind::Text, Fate::Lost(&[], PLUGIN)),
    key("psk_file", Scope::Security, Kind::Text, Fate::Lost(&[], PSK)),
    // Listeners.
    key("accept_protocol_versions", Scope::Listener, Kind::Words, Fate::Translated),
    key("bind_address", Scope::DefaultListener, Kind::Text, Fate::Translated),
    key("bind_interface", Scope::Listener, Kind::Text, Fate::Translated),
    key("cafile", Scope::Listener, Kind::Text, Fate::Translated),
    key("capath", Scope::Listener, Kind::Text, Fate::Translated),
    key("certfile", Scope::Listener, Kind::Text, Fate::Translated),
    key("ciphers", Scope::Listener, Kind::Text, Fate::Needless(SUITES)),
    key("ciphers_tls1.3", Scope::Listener, Kind::Text, Fate::Needless(SUITES)),
    key("crlfile", Scope::Listener, Kind::Text, Fate::Translated),
    key("dhparamfile", Scope::Listener, Kind::Text, Fate::Needless("keys are exchanged over elliptic curves")),
    key("disable_client_cert_date_checks", Scope::Listener, Kind::Flag, Fate::Lost(&["false"], "certificates that have ended are refused")),
    key("enable_proxy_protocol", Scope::Listener, Kind::Number, Fate::Translated),
    key("http_dir", Scope::Listener, Kind::Text, Fate::Lost(&[], "no files are served over HTTP")),
    key("keyfile", Scope::Listener, Kind::Text, Fate::Translated),
    key("listener_allow_anonymous", Scope::Listener, Kind::Flag, Fate::Translated),
    key("listener_auto_id_prefix", Scope::Listener, Kind::Text, Fate::Translated),
    key("max_connections", Scope::Listener, Kind::Number, Fate::Translated),
    key("max_qos", Scope::Listener, Kind::Number, Fate::Translated),
    key("max_topic_alias", Scope::Listener, Kind::Number, Fate::Lost(&[], "topic aliases are bounded for all listeners: write mqtt.topic_alias_max")),
    key("max_topic_alias_broker", Scope::Listener, Kind::Number, Fate::Lost(&[], "topic aliases are bounded for all listeners: write mqtt.topic_alias_out_max")),
    key("maximum_qos", Scope::Listener, Kind::Number, Fate::Translated),
    key("mount_point", Scope::Listener, Kind::Text, Fate::Protects(&[], "topics get no prefix: write ACL rules in place of it")),
    key("plugin_use", Scope::Listener, Kind::Text, Fate::Lost(&[], PLUGIN)),
    key("port", Scope::DefaultListener, Kind::Number, Fate::Translated),
    key("protocol", Scope::Listener, Kind::Word, Fate::Translated),
    key("proxy_protocol_v2_require_tls", Scope::Listener, Kind::Flag, Fate::Protects(&["false"], "whether a client came to its load balancer by TLS is not looked at")),
    key("psk_hint", Scope::Listener, Kind::Text, Fate::Protects(&[], PSK)),
    key("require_certificate", Scope::Listener, Kind::Flag, Fate::Translated),
    key("socket_domain", Scope::Listener, Kind::Word, Fate::Translated),
    key("tls_engine", Scope::Listener, Kind::Text, Fate::Protects(&[], "keys are read from files")),
    key("tls_engine_kpass_sha1", Scope::Listener, Kind::Text, Fate::Lost(&[], "keys are read from files")),
    key("tls_keyform", Scope::Listener, Kind::Text, Fate::Lost(&["pem"], "keys are read from PEM files")),
    key("tls_version", Scope::Listener, Kind::Text, Fate::Protects(&["tlsv1", "tlsv1.0", "tlsv1.1", "tlsv1.2"], VERSIONS)),
    key("use_identity_as_username", Scope::Listener, Kind::Flag, Fate::Translated),
    key("use_subject_as_username", Scope::Listener, Kind::Flag, Fate::Protects(&["false"], "the common name in the certificate is taken, and two subjects may have one: write use_identity_as_username in place of it if no two have")),
    key("use_username_as_clientid", Scope::Listener, Kind::Flag, Fate::Protects(&["false"], "client identifiers are the client's, so that a rule with %c holds for whoever takes that identifier: write %u in its place, and take the line out")),
    key("websockets_origin", Scope::Listener, Kind::Text, Fate::Translated),
    // Connections to other brokers.
    key("address", Scope::Bridge, Kind::Words, Fate::Translated),
    key("addresses", Scope::Bridge, Kind::Words, Fate::Translated),
    key("bridge_alpn", Scope::Bridge, Kind::Text, Fate::Lost(&[], "no protocol is named to the remote in TLS (ALPN)")),
    key("bridge_attempt_unsubscribe", Scope::Bridge, Kind::Flag, Fate::Needless("a bridge looks after its subscriptions at the remote by itself")),
    key("bridge_bind_address", Scope::Bridge, Kind::Text, Fate::Lost(&[], "the system chooses the address that a bridge connects from")),
    key("bridge_cafile", Scope::Bridge, Kind::Text, Fate::Translated),
    key("bridge_capath", Scope::Bridge, Kind::Text, Fate::Translated),
    key("bridge_certfile", Scope::Bridge, Kind::Text, Fate::Translated),
    key("bridge_ciphers", Scope::Bridge, Kind::Text, Fate::Needless(SUITES)),
    key("bridge_ciphers_tls1.3", Scope::Bridge, Kind::Text, Fate::Needless(SUITES)),
    key("bridge_identity", Scope::Bridge, Kind::Text, Fate::Protects(&[], PSK)),
    key("bridge_insecure", Scope::Bridge, Kind::Flag, Fate::Translated),
    key("bridge_keyfile", Scope::Bridge, Kind::Text, Fate::Translated),
    key("bridge_max_packet_size", Scope::Bridge, Kind::Number, Fate::Lost(&["0"], "packets are bounded by mqtt.packet_bytes_max")),
    key("bridge_max_topic_alias", Scope::Bridge, Kind::Number, Fate::Needless("topic aliases are bounded by the program")),
    key("bridge_outgoing_retain", Scope::Bridge, Kind::Flag, Fate::Translated),
    key("bridge_protocol_version", Scope::Bridge, Kind::Rest, Fate::Translated),
    key("bridge_psk", Scope::Bridge, Kind::Text, Fate::Protects(&[], PSK)),
    key("bridge_receive_maximum", Scope::Bridge, Kind::Number, Fate::Lost(&[], "messages in flight to the remote are bounded by the program")),
    key("bridge_reload_type", Scope::Bridge, Kind::Word, Fate::Needless("a bridge that was changed is exchanged at once when the configuration is read again")),
    key("bridge_require_ocsp", Scope::Bridge, Kind::Flag, Fate::Protects(&["false"], "the remote's certificate is not looked up (OCSP)")),
    key("bridge_session_expiry_interval", Scope::Bridge, Kind::Number, Fate::Lost(&[], "the session at the remote is kept as long as the remote keeps it")),
    key("bridge_tcp_keepalive", Scope::Bridge, Kind::Words, Fate::Needless("MQTT's own keep alive finds connections that are gone")),
    key("bridge_tcp_user_timeout", Scope::Bridge, Kind::Number, Fate::Needless("MQTT's own keep alive finds connections that are gone")),
    key("bridge_tls_use_os_certs", Scope::Bridge, Kind::Flag, Fate::Translated),
    key("bridge_tls_version", Scope::Bridge, Kind::Text, Fate::Protects(&["tlsv1", "tlsv1.0", "tlsv1.1", "tlsv1.2"], VERSIONS)),
    key("cleansession", Scope::Bridge, Kind::Flag, Fate::Lost(&["false"], "the session at the remote is kept while the bridge is away")),
    key("clientid", Scope::Bridge, Kind::Text, Fate::Translated),
    key("idle_timeout", Scope::Bridge, Kind::Number, Fate::Needless(ALWAYS)),
    key("keepalive_interval", Scope::Bridge, Kind::Number, Fate::Translated),
    key("local_cleansession", Scope::Bridge, Kind::Flag, Fate::Lost(&["false"], "messages published here wait for the bridge while it is away")),
    key("local_clientid", Scope::Bridge, Kind::Text, Fate::Needless(SESSION)),
    key("local_password", Scope::Bridge, Kind::Text, Fate::Needless(SESSION)),
    key("local_username", Scope::Bridge, Kind::Text, Fate::Protects(&[], LOCAL_USER)),
    key("notification_topic", Scope::Bridge, Kind::Text, Fate::Lost(&[], STATE)),
    key("notifications", Scope::Bridge, Kind::Flag, Fate::Lost(&["true"], STATE)),
    key("notifications_local_only", Scope::Bridge, Kind::Flag, Fate::Lost(&["true"], STATE)),
    key("password", Scope::Bridge, Kind::Text, Fate::Translated),
    key("remote_clientid", Scope::Bridge, Kind::Text, Fate::Translated),
    key("remote_password", Scope::Bridge, Kind::Text, Fate::Translated),
    key("remote_username", Scope::Bridge, Kind::Text, Fate::Translated),
    key("restart_timeout", Scope::Bridge, Kind::Words, Fate::Translated),
    key("round_robin", Scope::Bridge, Kind::Flag, Fate::Lost(&["false"], "a bridge has one remote")),
    key("start_type", Scope::Bridge, Kind::Word, Fate::Lost(&["automatic"], ALWAYS)),
    key("threshold", Scope::Bridge, Kind::Number, Fate::Needless(ALWAYS)),
    key("topic", Scope::Bridge, Kind::Words, Fate::Translated),
    key("try_private", Scope::Bridge, Kind::Flag, Fate::Lost(&["true"], "the bridge bit is tried wherever MQTT 3.1.1 is spoken")),
    key("username", Scope::Bridge, Kind::Text, Fate::Translated),
];

const fn key(name: &'static str, scope: Scope, kind: Kind, fate: Fate) -> Key {
    Key { name, scope, kind, fate }
}
