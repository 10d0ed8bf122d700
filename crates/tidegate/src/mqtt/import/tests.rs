use super::*;

/// A site with a listener for machines, one for people, and a bridge.
const REALISTIC: &str = r"
# /etc/mosquitto/mosquitto.conf
pid_file /run/mosquitto/mosquitto.pid
persistence true
persistence_location /var/lib/mosquitto/
log_dest file /var/log/mosquitto/mosquitto.log
include_dir /etc/mosquitto/conf.d
allow_anonymous false
password_file /etc/mosquitto/passwd
acl_file /etc/mosquitto/acl
message_size_limit 1048576
max_queued_bytes 0
max_packet_size 2000000
max_keepalive 600

listener 1883 127.0.0.1

listener 8883
cafile /etc/mosquitto/ca.crt
certfile /etc/mosquitto/server.crt
keyfile /etc/mosquitto/server.key
require_certificate true
use_identity_as_username true
tls_version tlsv1.2
max_connections 500

listener 9001 ::
protocol websockets
max_connections -1

connection cloud
address cloud.example.com:8883
topic sensors/# out 1
topic orders/# in 1
remote_username site-7
remote_password hunter2
bridge_cafile /etc/ssl/ca.crt
bridge_tls_version tlsv1.2
";

/// What is written is a configuration of ours.
fn loads(toml: &str) {
    if let Err(error) = crate::config::Config::parse(std::path::Path::new("imported.toml"), toml) {
        panic!("{}\n{toml}", crate::error_chain(&error));
    }
}

#[test]
fn realistic_file_is_translated() {
    let imported = import(REALISTIC);
    let expected = r#"[mqtt]
password_file = "/etc/mosquitto/passwd"
acl_file = "/etc/mosquitto/acl"
allow_anonymous = false
packet_bytes_max = "1088KiB"
keepalive_max = "600s"

[mqtt.listener.tcp-1883]
listen = "127.0.0.1:1883"
protocol = "tcp"

[mqtt.listener.tls-8883]
listen = "0.0.0.0:8883"
protocol = "tls"
certificate = "/etc/mosquitto/server.crt"
key = "/etc/mosquitto/server.key"
client_ca = "/etc/mosquitto/ca.crt"
require_certificate = true
connections_max = 500

[mqtt.listener.websocket-9001]
listen = "[::]:9001"
protocol = "websocket"

[mqtt.bridge.cloud]
remote = "cloud.example.com:8883"
tls = true
ca = "/etc/ssl/ca.crt"
username = "site-7"
topics_out = "sensors/#"
topics_in = "orders/#"
qos = 1
"#;
    assert_eq!(imported.toml, expected);
    loads(&imported.toml);
    let left: Vec<(usize, &str)> =
        imported.untranslated.iter().map(|line| (line.line, &*line.text)).collect();
    assert_eq!(
        left,
        [
            (3, "pid_file /run/mosquitto/mosquitto.pid"),
            (4, "persistence true"),
            (5, "persistence_location /var/lib/mosquitto/"),
            (6, "log_dest file /var/log/mosquitto/mosquitto.log"),
            (7, "include_dir /etc/mosquitto/conf.d"),
            (12, "max_queued_bytes 0"),
            (24, "tls_version tlsv1.2"),
            (36, "remote_password ..."),
            (38, "bridge_tls_version tlsv1.2"),
        ]
    );
    assert!(imported.untranslated.iter().all(|line| !line.why.is_empty()));
    assert_eq!(imported.warnings.len(), 2, "{:?}", imported.warnings);
    assert!(!format!("{imported:?}").contains("hunter2"));
}

#[test]
fn lines_are_translated_or_left_with_a_reason() {
    for (text, toml, why) in [
        ("", "allow_anonymous = true\n\n[mqtt.listener.tcp-1883]\nlisten = \"127.0.0.1:1883\"", ""),
        ("allow_anonymous false", "allow_anonymous = false", ""),
        ("listener 1883", "allow_anonymous = false", ""),
        ("listener 1883 localhost", "listen = \"127.0.0.1:1883\"", ""),
        ("listener 1883\nsocket_domain ipv6", "listen = \"[::]:1883\"", "IPv4 or IPv6"),
        ("port 1884\nbind_address 192.0.2.1", "listen = \"192.0.2.1:1884\"", ""),
        ("port 1884\nlistener 1884 ::1", "[mqtt.listener.tcp-1884-2]\nlisten = \"[::1]:1884\"", ""),
        ("max_connections 5", "listen = \"0.0.0.0:1883\"", ""),
        ("listener 1883\nmax_connections x", "tcp-1883", "neither -1"),
        ("listener 0 /run/m.sock", "[mqtt]\n", "sockets of the file system"),
        ("listener 99999", "[mqtt]\n", "left out: its port"),
        ("listener 1883 broker.local", "[mqtt]\n", "broker.local is a name"),
        ("listener 8883\ncertfile c", "[mqtt]\n", "a certfile and a keyfile"),
        ("listener 8883\npsk_hint x", "[mqtt]\n", "psk_hint protects it"),
        ("listener 8883\ncertfile c\nkeyfile k\ncrlfile r", "[mqtt]\n", "crlfile protects it"),
        ("listener 8883\ncertfile c\nkeyfile k\nrequire_certificate true", "[mqtt]\n", "no cafile"),
        ("listener 8883\ncertfile c\nkeyfile k\ncafile a", "key = \"k\"", "not asked for there"),
        ("listener 9001\nprotocol websockets\ncertfile c\nkeyfile k", "\"secure-websocket\"", ""),
        ("listener 9001\nprotocol http_api", "[mqtt]\n", "neither mqtt nor websockets"),
        ("password_file C:\\a \"b\"", r#"password_file = "C:\\a \"b\"""#, ""),
        ("acl_file a\nacl_file b", "acl_file = \"b\"", "line 2 says it again"),
        ("plugin /usr/lib/x.so", "[mqtt]", "plugins are not run"),
        ("plugin_opt_secret s", "[mqtt]", "plugins are not run"),
        ("auth_opt_password s", "[mqtt]", "plugins are not run"),
        ("log_type all", "[mqtt]", "logs are set up"),
        ("max_keepalive 0", "[mqtt]", "never checked"),
        ("message_size_limit many", "[mqtt]", "not a number"),
        ("usre mosquitto", "[mqtt]", "is it spelled right?"),
        ("password_file", "[mqtt]", "no value"),
        ("max_queued_messages 500", "queue_messages_max = 500", ""),
        ("max_queued_messages 0", "[mqtt]", "0 is no bound"),
        ("max_inflight_messages 1", "inflight_max = 1", ""),
        ("max_inflight_messages 65536", "[mqtt]", "from 1 to 65535"),
        ("sys_interval 0", "sys_interval = \"0s\"", ""),
        ("connection a\naddress b\ntopic c\nlistener 1883\nmount_point x", "tcp-1883", "no prefix"),
        ("topic a", "[mqtt]", "under no connection"),
        ("remote_password=hunter2", "[mqtt]", "no value"),
        ("Remote_Password hunter2", "[mqtt]", "spelled right"),
    ] {
        let imported = import(text);
        assert!(imported.toml.contains(toml), "{text}: {imported:?}");
        loads(&imported.toml);
        let found = imported.untranslated.iter().any(|line| line.why.contains(why));
        assert!(
            found || (why.is_empty() && imported.untranslated.is_empty()),
            "{text}: {imported:?}"
        );
        assert!(!format!("{imported:?}").contains("hunter2"));
    }
}

#[test]
fn connections_are_translated_or_left_with_a_reason() {
    let begin = "connection a.b c\naddress h\n";
    for (text, toml, why) in [
        ("topic t", "[mqtt.bridge.a-b-c]\nremote = \"h:1883\"\ntopics_out = \"t\"\nqos = 0", ""),
        (
            "topic t both 2 l/ r/",
            "topics_out = \"t\"\ntopics_in = \"t\"\nlocal_prefix = \"l/\"",
            "",
        ),
        ("topic t in 0 \"\" r/", "topics_in = \"t\"\nremote_prefix = \"r/\"\nqos = 0", ""),
        (
            "topic t\ntopic u out 1\ntopic v in",
            "topics_out = \"t, u\"\ntopics_in = \"v\"\nqos = 1",
            "",
        ),
        ("topic t\ntopic u out 0 l/", "topics_out = \"t\"\nqos", "a bridge has one pair"),
        ("topic t\ntopic a,b", "topics_out = \"t\"\n", "has no comma"),
        ("topic t\ntopic \"\" out 0 a b", "topics_out = \"t\"\n", "one pair"),
        ("topic t\ntopic a#", "topics_out = \"t\"\n", "is no filter"),
        ("topic t\ntopic $share/g/a in", "topics_out = \"t\"\n", "shared subscription"),
        ("topic t\ntopic u up", "topics_out = \"t\"\n", "neither out"),
        ("topic t\ntopic u in 3", "topics_out = \"t\"\n", "from 0 to 2"),
        ("topic t\naddress i j", "remote = \"i:1883\"", "one remote"),
        ("topic t\naddress [::1]:8883", "remote = \"[::1]:8883\"", "says it again"),
        ("topic t\nremote_clientid me", "client_id = \"me\"", ""),
        ("topic t\nkeepalive_interval 30", "keepalive = \"30s\"", ""),
        ("topic t\nkeepalive_interval 0", "qos = 0", "from 1 to 65535"),
        ("topic t\nbridge_protocol_version mqttv50", "version = \"5\"", ""),
        ("topic t\nbridge_protocol_version mqttv311", "version = \"3.1.1\"", ""),
        ("topic t\nbridge_protocol_version mqttv31", "qos = 0", "3.1.1 and 5"),
        ("topic t both\nbridge_protocol_version mqttv311", "qos = 0", "bridge_aware"),
        ("topic t\ntry_private true\nstart_type automatic\ncleansession false", "qos = 0", ""),
        ("topic t\ntry_private false", "qos = 0", "bridge bit"),
        ("topic t\nstart_type lazy", "qos = 0", "all the time"),
        ("topic t\nbridge_outgoing_retain false", "retain = false", ""),
        ("topic t both\nbridge_outgoing_retain false", "qos = 0", "what is fetched"),
        (
            "topic t\nbridge_cafile a\nbridge_certfile c\nbridge_keyfile k",
            "tls = true\nca = \"a\"\ncertificate = \"c\"\nkey = \"k\"",
            "",
        ),
        ("topic t\nbridge_tls_use_os_certs true", "tls = true\ntopics_out", ""),
        ("topic t\nbridge_cafile a\nbridge_certfile c", "ca = \"a\"\ntopics_out", "go together"),
        ("topic t\nbridge_certfile c", "remote = \"h:1883\"\ntopics_out", "no TLS"),
        ("topic t\nbridge_cafile a\nbridge_capath p", "tls = true\nca = \"a\"", "name it in ca"),
        ("topic t\nbridge_cafile a\nbridge_insecure true", "tls = true", "always checked"),
        ("topic t\npassword hunter2", "qos = 0", "name that in password_file"),
        ("topic t\nnotifications false", "qos = 0", "$SYS/broker/connection"),
        ("topic t\nbridge_colour red", "qos = 0", "no such setting"),
        // Left out.
        ("topic t\nbridge_capath p", "[mqtt]", "left out: its bridge_capath protects it"),
        ("topic t\nbridge_psk 00", "[mqtt]", "left out: its bridge_psk protects it"),
        ("topic t\nbridge_require_ocsp true", "[mqtt]", "left out: its bridge_require_ocsp"),
        ("topic t\naddress h:0", "[mqtt]", "left out: its port"),
        ("topic t\naddress ::1", "[mqtt]", "left out: its address"),
        ("topic a#", "[mqtt]", "left out: no topic of it can be translated"),
        ("", "[mqtt]", "left out: it has no topic"),
    ] {
        let imported = import(&format!("{begin}{text}"));
        assert!(imported.toml.contains(toml), "{text}: {imported:?}");
        let is_left_out = why.starts_with("left out");
        assert_eq!(imported.toml.contains("[mqtt.bridge."), !is_left_out, "{text}: {imported:?}");
        loads(&imported.toml);
        let found = imported.untranslated.iter().any(|line| line.why.contains(why));
        assert!(
            found || (why.is_empty() && imported.untranslated.is_empty()),
            "{text}: {imported:?}"
        );
        assert!(!format!("{imported:?}").contains("hunter2"));
    }
}

#[test]
fn connections_of_one_name_are_two_bridges() {
    let imported = import("connection\naddress a\ntopic t\nconnection\naddress b\ntopic t");
    loads(&imported.toml);
    assert!(imported.toml.contains("[mqtt.bridge.bridge]\nremote = \"a:1883\""));
    assert!(imported.toml.contains("[mqtt.bridge.bridge-2]\nremote = \"b:1883\""));
}

#[test]
fn listeners_that_differ_open_no_door() {
    let differ = "per_listener_settings true\nlistener 1883 127.0.0.1\nallow_anonymous true\n\
                  listener 8883\npassword_file p\nacl_file a\n";
    let imported = import(differ);
    assert!(imported.toml.contains("allow_anonymous = false"), "{}", imported.toml);
    assert!(imported.toml.contains("password_file = \"set-password_file-by-hand\""));
    assert_eq!(imported.untranslated.len(), 3, "{:?}", imported.untranslated);
    assert_eq!(imported.warnings.len(), 3, "{:?}", imported.warnings);

    let agree = "per_listener_settings true\nallow_anonymous true\nlistener 1883\npassword_file p\n\
                 allow_anonymous true\nlistener 1884\nallow_anonymous true\npassword_file p\n";
    let imported = import(agree);
    assert!(
        imported.toml.contains("password_file = \"p\"\nallow_anonymous = true"),
        "{imported:?}"
    );
    assert_eq!(imported.untranslated.len(), 1, "{:?}", imported.untranslated);
    assert!(imported.untranslated[0].why.contains("no listener that is open"));
}

#[test]
fn byte_counts_have_their_unit() {
    for (bytes, text) in
        [(1, "1B"), (1 << 30, "1GiB"), (3 << 10, "3KiB"), (268_435_455, "268435455B")]
    {
        assert_eq!(byte_count(bytes), text);
    }
}
