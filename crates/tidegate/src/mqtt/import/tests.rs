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
remote_password hunter2
bridge_cafile /etc/ssl/ca.crt
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
            (31, "connection cloud"),
            (32, "address cloud.example.com:8883"),
            (33, "topic sensors/# out 1"),
            (34, "remote_password ..."),
            (35, "bridge_cafile /etc/ssl/ca.crt"),
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
        ("connection a\naddress b\nlistener 1883\nmount_point x", "tcp-1883", "no prefix"),
    ] {
        let imported = import(text);
        assert!(imported.toml.contains(toml), "{text}: {imported:?}");
        loads(&imported.toml);
        let found = imported.untranslated.iter().any(|line| line.why.contains(why));
        assert!(
            found || (why.is_empty() && imported.untranslated.is_empty()),
            "{text}: {imported:?}"
        );
    }
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
