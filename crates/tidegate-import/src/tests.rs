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

/// The output is a configuration of this program.
fn loads(toml: &str) {
    if let Err(error) = tidegate_config::Config::parse(std::path::Path::new("imported.toml"), toml)
    {
        panic!("{}\n{toml}", tidegate_message::error_chain(&error));
    }
}

#[test]
fn realistic_file_is_translated() {
    let imported = import(REALISTIC);
    let expected = r#"[mqtt]
password_file = "/etc/mosquitto/passwd"
acl_file = "/etc/mosquitto/acl"
allow_anonymous = false
durability = "page"
packet_bytes_max = "1088KiB"
keepalive_max = "600s"

[mqtt.listener.tcp-1883]
listen = "127.0.0.1:1883"
protocol = "tcp"

[mqtt.listener.tls-8883]
listen = "[::]:8883"
protocol = "tls"
certificate = "/etc/mosquitto/server.crt"
key = "/etc/mosquitto/server.key"
client_ca = "/etc/mosquitto/ca.crt"
require_certificate = true
connections_max = 500

[mqtt.listener.websocket-9001]
listen = "[::]:9001"
protocol = "websocket"
paths = "*"

[mqtt.bridge.cloud]
remote = "cloud.example.com:8883"
tls = true
ca = "/etc/ssl/ca.crt"
username = "site-7"
password_file = "/etc/tidegate/mqtt-bridge-cloud.password"
topics_out = "sensors/#"
topics_in = "orders/#"
qos = 1
"#;
    assert_eq!(imported.toml, expected);
    loads(&imported.toml);
    let left: Vec<(usize, &str, bool)> =
        imported.untranslated.iter().map(|line| (line.line, &*line.text, line.is_lost)).collect();
    assert_eq!(
        left,
        [
            (3, "pid_file /run/mosquitto/mosquitto.pid", false),
            (5, "persistence_location /var/lib/mosquitto/", false),
            (6, "log_dest file /var/log/mosquitto/mosquitto.log", false),
            (7, "include_dir /etc/mosquitto/conf.d", true), // a text has no folder
            (12, "max_queued_bytes 0", true),
            (24, "tls_version tlsv1.2", false),
            (38, "bridge_tls_version tlsv1.2", false),
        ]
    );
    assert!(imported.untranslated.iter().all(|line| !line.why.is_empty()));
    // The payload's bound, certificates, sessions that end, both families of 8883, and IPv4 at 9001.
    assert_eq!(imported.warnings.len(), 5, "{:?}", imported.warnings);
    let [secret] = &imported.secrets[..] else { panic!("one password") };
    assert_eq!(secret.text, "hunter2");
    assert!(!format!("{imported:?}").contains("hunter2"));
}

/// Of each kind of value: as Mosquitto 2.0.11 reads it, or refuses to start with it.
#[test]
fn values_are_read_as_mosquitto_reads_them_or_the_listener_stays_shut() {
    let tls = "allow_anonymous true\nlistener 8883\ncertfile c\nkeyfile k\ncafile a\n";
    let demanded = "client_ca = \"a\"\nrequire_certificate = true";
    for (line, toml) in [
        ("require_certificate true    # mTLS", Some(demanded)),
        ("require_certificate true ", Some(demanded)),
        ("require_certificate 1", Some(demanded)),
        ("  require_certificate   true\r", Some(demanded)),
        ("require_certificate false # true", Some("key = \"k\"\n")),
        ("require_certificate 0", Some("key = \"k\"\n")),
        ("require_certificate TRUE", None),
        ("require_certificate True", None),
        ("require_certificate yes", None),
        ("require_certificate \"true\"", None),
        ("require_certificate true# mTLS", None),
        ("require_certificate", None),
        ("require_certificate\ttrue", None),
        ("require_certificate \ttrue", None),
        ("requier_certificate true", None),
        ("Require_certificate true", None),
        ("cafile", None),
        (
            "crlfile /lists/a b.pem # lists\nrequire_certificate true",
            Some("client_crl = \"/lists/a b.pem # lists\""),
        ),
        ("crlfile\nrequire_certificate true", None),
        ("tls_version tlsv1.3", None),
        ("psk_hint x", None),
        ("mount_point tenant/", None),
        ("websockets_origin example.com", None),
        ("max_connections many", None),
        ("max_connections 5 # five", Some("connections_max = 5")),
    ] {
        let imported = import(&format!("{tls}{line}\n"));
        assert_eq!(
            imported.toml.contains("[mqtt.listener."),
            toml.is_some(),
            "{line}: {imported:?}"
        );
        assert_eq!(
            imported.toml.contains("enabled = false"),
            toml.is_none(),
            "{line}: {imported:?}"
        );
        assert!(imported.toml.contains(toml.unwrap_or_default()), "{line}: {imported:?}");
        assert!(toml.is_some() || imported.is_less(), "{line}: {imported:?}");
        let demands = toml.is_some_and(|toml| toml == demanded || toml.contains("client_crl"));
        assert_eq!(imported.toml.contains("require_certificate = true"), demands, "{line}");
        loads(&imported.toml);
    }
    // Of who comes in: nothing that cannot be read opens anything.
    for (line, toml) in [
        ("allow_anonymous true # lab", "allow_anonymous = true"),
        ("allow_anonymous TRUE", "allow_anonymous = false"),
        ("allow_anonymous\ttrue", "allow_anonymous = false"),
        ("allow_anonymous true\nacl_file", "acl_file = \"set-acl_file-by-hand\""),
        ("allow_anonymous true\nacl_file\t/etc/acl", "acl_file = \"set-acl_file-by-hand\""),
        ("password_file", "password_file = \"set-password_file-by-hand\""),
        (
            "allow_anonymous true\nplugin /x.so",
            "acl_file = \"set-acl_file-by-hand\"\nallow_anonymous = false",
        ),
        (
            "allow_anonymous true\nplugin\t/x.so",
            "acl_file = \"set-acl_file-by-hand\"\nallow_anonymous = false",
        ),
        ("allow_anonymous true\nclientid_prefixes dev-", "enabled = false"),
        ("per_listener_settings TRUE", "enabled = false"),
        ("acl_file /etc/acl # rules", "acl_file = \"/etc/acl # rules\""),
    ] {
        let imported = import(&format!("{line}\nlistener 1883\n"));
        assert!(imported.toml.contains(toml), "{line}: {imported:?}");
        loads(&imported.toml);
    }
    // Of a bridge.
    let bridge = "connection a\naddress h # there\ntopic t both # all\nbridge_cafile ca\n";
    for (line, is_kept) in [
        ("bridge_require_ocsp true # x", false),
        ("bridge_require_ocsp 1", false),
        ("bridge_require_ocsp TRUE", false),
        ("bridge_require_ocsp\ttrue", false),
        ("bridge_require_ocsp false # x", true),
        ("bridge_psk 00", false),
        ("bridge_insecure TRUE", false),
        ("bridge_colour red", false),
        ("bridge_cafile", false),
    ] {
        let imported = import(&format!("{bridge}{line}\n"));
        assert_eq!(imported.toml.contains("[mqtt.bridge.a]"), is_kept, "{line}: {imported:?}");
        assert_eq!(imported.is_less(), !is_kept, "{line}: {imported:?}");
        loads(&imported.toml);
    }
}

/// Each option of mosquitto.conf(5) that keeps somebody out and is not kept here.
#[test]
fn options_that_protect_keep_their_listener_shut() {
    let tls = "certfile c\nkeyfile k\ncafile a\n";
    let demanded = format!("{tls}require_certificate true\n");
    for (text, is_open) in [
        (String::new(), true),
        ("use_username_as_clientid true".to_owned(), false),
        ("use_username_as_clientid 1 # yes".to_owned(), false),
        ("use_username_as_clientid false".to_owned(), true),
        (format!("{demanded}use_subject_as_username true"), false),
        (format!("{demanded}use_subject_as_username false\nuse_identity_as_username true"), true),
        // A certificate and a password.
        (demanded.clone(), false),
        (format!("{demanded}use_identity_as_username false"), false),
        (format!("{demanded}use_identity_as_username true"), true),
        (format!("{demanded}listener_allow_anonymous true"), true),
        // No certificate is asked for, so that none gives a name.
        (format!("{tls}use_identity_as_username true"), false),
        (format!("{tls}tls_version tlsv1.3"), false),
        (format!("{tls}tls_version tlsv1.2"), true),
        (format!("{tls}tls_engine pkcs11"), false),
        (format!("{tls}disable_client_cert_date_checks true"), true),
        ("psk_hint x".to_owned(), false),
        ("mount_point tenant/".to_owned(), false),
        ("websockets_origin example.com".to_owned(), false),
        ("bind_interface eth0".to_owned(), false),
        ("clientid_prefixes dev-".to_owned(), false),
        ("enable_proxy_protocol 2\nproxy_protocol_v2_require_tls true".to_owned(), false),
        ("accept_protocol_versions 6".to_owned(), false),
        ("max_qos 3".to_owned(), false),
        // Words that are not known may be of a rule for all.
        ("acl_flie /etc/acl".to_owned(), false),
        ("listener 1884\nacl_flie /etc/acl".to_owned(), false),
        ("connection a\naddress h\ntopic t\nacl_flie /etc/acl".to_owned(), false),
        ("connection a\naddress h\ntopic t\nbridge_colour red".to_owned(), true),
    ] {
        let imported = import(&format!("listener 1883\n{text}\n"));
        assert_eq!(imported.toml.contains("[mqtt.listener."), is_open, "{text}: {imported:?}");
        assert!(is_open || imported.is_less(), "{text}: {imported:?}");
        loads(&imported.toml);
    }
    // In the place of a plugin the file of rules is to be written by hand, whatever one there was.
    for text in ["acl_file a\nplugin /x.so", "plugin /x.so\nacl_file a", "plugin /x.so"] {
        let imported = import(&format!("listener 1883\n{text}\n"));
        assert!(imported.toml.contains("acl_file = \"set-acl_file-by-hand\""), "{imported:?}");
        assert!(imported.is_less(), "{imported:?}");
    }
}

/// Settings of Mosquitto 2.1 are translated, or listed with their reason.
#[test]
fn words_of_later_versions_are_known() {
    for (line, toml, is_less) in [
        ("listener_allow_anonymous true", "protocol = \"tcp\"\nallow_anonymous = true", false),
        ("listener_allow_anonymous false", "allow_anonymous = false\n", false),
        ("global_max_clients 500", "sessions_max = 500", false),
        ("global_max_connections 500", "[mqtt.listener.tcp-1883]", true),
        ("packet_buffer_size 4096", "[mqtt.listener.tcp-1883]", false),
        ("plugin_load auth /x.so\nplugin_use auth", "set-acl_file-by-hand", true),
        ("global_plugin /x.so", "set-acl_file-by-hand", true),
        ("retain_expiry_interval 5", "[mqtt.listener.tcp-1883]", true),
        ("enable_control_api true", "[mqtt.listener.tcp-1883]", true),
        ("disable_client_cert_date_checks true", "[mqtt.listener.tcp-1883]", true),
        ("max_topic_alias_broker 5", "[mqtt.listener.tcp-1883]", true),
        ("listener_auto_id_prefix x", "protocol = \"tcp\"\nauto_id_prefix = \"x\"\n", false),
        ("proxy_protocol_v2_require_tls true", "enabled = false", true),
        ("persistent_client_expiration 90s", "session_expiry_max = \"90s\"", false),
    ] {
        let imported = import(&format!("listener 1883\n{line}\n"));
        assert!(imported.toml.contains(toml), "{line}: {imported:?}");
        assert_eq!(imported.is_less(), is_less, "{line}: {imported:?}");
        let known = imported.untranslated.iter().all(|line| !line.why.contains("do not know"));
        assert!(known, "{line}: {imported:?}");
        loads(&imported.toml);
    }
    let bridge = "connection a\naddress h\ntopic t\n";
    for line in [
        "bridge_receive_maximum 5",
        "bridge_session_expiry_interval 5",
        "bridge_reload_type lazy",
        "bridge_tcp_keepalive 1 2 3",
        "bridge_tcp_user_timeout 5",
        "bridge_ciphers_tls1.3 x",
        "bridge_max_topic_alias 5",
        "local_cleansession true",
    ] {
        let imported = import(&format!("{bridge}{line}\n"));
        assert!(imported.toml.contains("[mqtt.bridge.a]"), "{line}: {imported:?}");
        assert!(
            imported.untranslated.iter().all(|line| !line.why.contains("do not know")),
            "{line}"
        );
    }
}

/// Settings of listeners in use, in addition to an address.
#[test]
fn settings_of_listeners_and_their_clients_are_translated() {
    for (text, expected, is_less) in [
        ("listener 1883\nmax_qos 1", Some("protocol = \"tcp\"\nmax_qos = 1\n"), false),
        ("listener 1883\nmaximum_qos 0 # low", Some("max_qos = 0\n"), false),
        ("listener 1883\nmax_qos 2", Some("protocol = \"tcp\"\n"), false),
        ("listener 1883\nmax_qos 3", None, true),
        ("listener 1883\nretain_available false", Some("retain_available = false\n"), false),
        ("listener 1883\ncheck_retain_source false", Some("check_retain_source = false\n"), false),
        ("listener 1883\ncheck_retain_source true", Some("[mqtt.listener"), false),
        (
            "listener 1883\naccept_protocol_versions 4, 5 # no 3.1",
            Some("accept_protocol_versions = \"3.1.1, 5\"\n"),
            false,
        ),
        ("listener 1883\naccept_protocol_versions 3,4,5", Some("protocol = \"tcp\"\n"), false),
        ("listener 1883\naccept_protocol_versions 3.1.1", None, true),
        ("listener 1883\naccept_protocol_versions 6", None, true),
        (
            "listener 1883\nallow_zero_length_clientid false",
            Some("allow_anonymous = false\nallow_zero_length_clientid = false\n"),
            false,
        ),
        ("listener 1883\nauto_id_prefix site7-", Some("auto_id_prefix = \"site7-\"\n"), false),
        (
            "per_listener_settings true\nlistener 1883\nallow_zero_length_clientid false\nauto_id_prefix a-\nlistener_auto_id_prefix b-",
            Some(
                "protocol = \"tcp\"\nallow_zero_length_clientid = false\nauto_id_prefix = \"b-\"\n",
            ),
            false,
        ),
        ("listener 1883\nmax_packet_size 20", Some("packet_bytes_max = \"20B\"\n"), false),
        ("listener 1883\nmax_packet_size 300", Some("packet_bytes_max = \"300B\"\n"), false),
        ("listener 1883\nmax_packet_size 19", Some("[mqtt.listener.tcp-1883]"), true),
        (
            "listener 0 /run/mqtt.sock",
            Some("[mqtt.listener.tcp-unix]\nlisten = \"unix:/run/mqtt.sock\"\n"),
            false,
        ),
        ("listener 0 mqtt.sock", None, true),
        ("listener 0", None, true),
        ("listener 1883 localhost", Some("listen = \"localhost:1883\"\n"), false),
        (
            "listener 1883 localhost\nsocket_domain ipv4",
            Some("listen = \"127.0.0.1:1883\"\n"),
            false,
        ),
        ("listener 1883 localhost\nsocket_domain ipv6", Some("listen = \"[::1]:1883\"\n"), false),
        (
            "listener 1883 broker.example # inside",
            Some("listen = \"broker.example:1883\"\n"),
            false,
        ),
        ("listener 1883 broker.example\nsocket_domain ipv4", None, true),
        ("bind_address broker.example", Some("listen = \"broker.example:1883\"\n"), false),
        ("listener 1883 bro/ker", None, true),
        ("listener 1883\nenable_proxy_protocol 1", Some("proxy_protocol = \"v1\"\n"), false),
        ("listener 1883\nenable_proxy_protocol 2", Some("proxy_protocol = \"v2\"\n"), false),
        ("listener 1883\nenable_proxy_protocol 3", None, true),
        ("listener 1883\nenable_proxy_protocol 2\nproxy_protocol_v2_require_tls true", None, true),
    ] {
        let imported = import(text);
        let is_open = imported.toml.contains("[mqtt.listener.");
        assert_eq!(is_open, expected.is_some(), "{text}: {imported:?}");
        assert!(imported.toml.contains(expected.unwrap_or_default()), "{text}: {imported:?}");
        assert_eq!(imported.is_less(), is_less, "{text}: {imported:?}");
        loads(&imported.toml);
    }
}

#[test]
fn changes_without_an_error_are_said() {
    for (text, word) in [
        ("listener 1883", "IPv6 and IPv4, as in Mosquitto"),
        ("listener 1883\nsocket_domain ipv6", "takes clients of IPv4 as well"),
        ("listener 1883 ::", "takes clients of IPv4 as well"),
        ("listener 0 /run/mqtt.sock", "umask"),
        ("listener 1883\nenable_proxy_protocol 1", "let only the load balancer reach it"),
        ("listener 1883", "after 7 days"),
        ("listener 1883\nallow_anonymous true", "every client is accepted"),
        (
            "per_listener_settings true\nlistener 1883\nallow_anonymous true",
            "every client is accepted",
        ),
        ("listener 1883\nlistener_allow_anonymous true", "every client is accepted"),
    ] {
        let imported = import(text);
        let is_said = imported.warnings.iter().any(|warning| warning.contains(word));
        assert!(is_said, "{text}: {:?}", imported.warnings);
    }
    let said =
        |text: &str, word: &str| import(text).warnings.iter().any(|line| line.contains(word));
    assert!(!said("listener 1883 192.0.2.1", "IPv6"));
    assert!(!said("listener 1883 localhost", "IPv6"));
    assert!(!said("listener 1883\npersistent_client_expiration 1d", "7 days"));
}

/// Files in a folder are read where the folder is named, in Mosquitto's order, each outside of all listeners.
#[test]
fn files_of_a_folder_are_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let below = folder.path().join("conf.d");
    fs::create_dir(&below).expect("a folder");
    let write = |path: &Path, text: &[u8]| fs::write(path, text).expect("a file");
    write(&below.join("b.conf"), b"allow_anonymous false\n");
    write(&below.join("A.conf"), b"allow_anonymous true\nlistener 1884\ncertfile c\nkeyfile k\ncafile a\nrequire_certificate YES\n");
    write(&below.join("z.conf"), b"# gr\xfc\xdfe\ninclude_dir /etc\nuser \xff\n");
    write(&below.join("c.conf.bak"), b"listener 1885\n");
    write(&below.join(".conf"), b"listener 1886\n");
    let main = folder.path().join("mosquitto.conf");
    let text = format!("listener 1883\ninclude_dir {}\nmax_connections 7\n", below.display());
    write(&main, text.as_bytes());

    let imported = import_file(&main, folder.path()).expect("files are read");

    loads(&imported.toml);
    // The line below the folder's belongs to the listener above it.
    assert!(imported.toml.contains("[mqtt.listener.tcp-1883]"), "{}", imported.toml);
    assert!(imported.toml.contains("connections_max = 7"), "{}", imported.toml);
    assert!(imported.toml.contains("allow_anonymous = false"), "{}", imported.toml);
    for port in ["1884", "1885", "1886"] {
        assert!(!imported.toml.contains(port), "{port}: {}", imported.toml);
    }
    let left: Vec<(String, usize, &str)> = imported
        .untranslated
        .iter()
        .map(|line| {
            let name = line.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (name, line.line, line.text.split(' ').next().unwrap_or_default())
        })
        .collect();
    let at = |name: &str, line, key: &'static str| (name.to_owned(), line, key);
    assert!(left.contains(&at("A.conf", 1, "allow_anonymous")), "said again in b.conf: {left:?}");
    assert!(left.contains(&at("A.conf", 2, "listener")), "{left:?}");
    assert!(left.contains(&at("A.conf", 6, "require_certificate")), "{left:?}");
    assert!(left.contains(&at("z.conf", 2, "include_dir")), "{left:?}");
    assert!(left.contains(&at("z.conf", 3, "user")), "{left:?}");

    let missing = folder.path().join("missing.conf");
    assert_eq!(import_file(&missing, folder.path()).expect_err("not there").path, missing);
    write(&main, b"include_dir /no/such/folder\n");
    let error = import_file(&main, folder.path()).expect_err("not there");
    let expected = format!("{}:1: /no/such/folder cannot be read", main.display());
    assert_eq!(error.to_string(), expected);
    // A line that names no folder is one with which Mosquitto would not start, and its settings are missing.
    for line in ["include_dir", "include_dir\t/etc/mosquitto/conf.d"] {
        write(&main, format!("listener 1883\n{line}\n").as_bytes());
        let imported = import_file(&main, folder.path()).expect("the file is read");
        assert!(imported.is_less() && imported.toml.contains("enabled = false"), "{imported:?}");
    }
}

#[test]
fn lines_are_translated_or_left_with_a_reason() {
    for (text, toml, why) in [
        ("", "allow_anonymous = true\n\n[mqtt.listener.tcp-1883]\nlisten = \"127.0.0.1:1883\"", ""),
        ("allow_anonymous false", "allow_anonymous = false", ""),
        ("listener 1883", "allow_anonymous = false", ""),
        ("listener 1883 localhost", "listen = \"localhost:1883\"", ""),
        ("listener 1883\nsocket_domain ipv6", "listen = \"[::]:1883\"", ""),
        ("listener 1883\nsocket_domain ipx", "enabled = false", "neither ipv4 nor ipv6"),
        ("port 1884\nbind_address 192.0.2.1", "listen = \"192.0.2.1:1884\"", ""),
        ("port 1884\nlistener 1884 ::1", "[mqtt.listener.tcp-1884-2]\nlisten = \"[::1]:1884\"", ""),
        ("max_connections 5", "listen = \"[::]:1883\"", ""),
        ("listener 1883\nmax_connections x", "enabled = false", "not a number"),
        ("listener 1883\nmax_connections 0", "tcp-1883", "from 1 to"),
        ("listener 1883 # here", "listen = \"[::]:1883\"", ""),
        ("listener 1883\nsocket_domain ipv4", "listen = \"0.0.0.0:1883\"", ""),
        ("listener 1883\nport 1884", "[mqtt.listener.tcp-1884]", ""),
        ("listener 1883\nbind_interface eth0", "enabled = false", "bound to one interface"),
        ("listener 1883 192.0.2.1\nbind_interface eth0", "192.0.2.1:1883", "bound to an address"),
        ("persistence true", "durability = \"page\"", ""),
        ("persistence false", "durability = \"memory\"", ""),
        ("persistent_client_expiration 2d", "session_expiry_max = \"48h\"", ""),
        ("persistent_client_expiration 2x", "[mqtt]", "not a number above 0"),
        ("listener 0 /run/m.sock", "listen = \"unix:/run/m.sock\"", ""),
        ("listener 99999", "[mqtt]\n", "left out: its port"),
        ("listener 1883 broker.local", "listen = \"broker.local:1883\"", ""),
        ("listener 1883 bro/ker", "[mqtt]\n", "neither an address nor a name"),
        ("listener 8883\ncertfile c", "[mqtt]\n", "a certfile and a keyfile"),
        ("listener 8883\npsk_hint x", "[mqtt]\n", "psk_hint protects it"),
        (
            "listener 8883\ncertfile c\nkeyfile k\ncapath a\ncrlfile r\nrequire_certificate true\nuse_identity_as_username true",
            "client_ca = \"a\"\nrequire_certificate = true\nclient_crl = \"r\"",
            "",
        ),
        ("listener 8883\ncertfile c\nkeyfile k\ncrlfile r", "key = \"k\"\n", "not asked for there"),
        (
            "listener 8883\ncertfile c\nkeyfile k\nrequire_certificate true",
            "[mqtt]\n",
            "neither cafile",
        ),
        ("listener 8883\ncertfile c\nkeyfile k\ncafile a", "key = \"k\"\nchain = \"a\"\n", ""),
        ("listener 1883\ncafile a", "protocol = \"tcp\"\n", "not asked for there"),
        ("listener 9001\nprotocol websockets\ncertfile c\nkeyfile k", "\"secure-websocket\"", ""),
        (
            "listener 9001\nprotocol websockets\nwebsockets_origin https://dash.example",
            "origins = \"https://dash.example\"\n",
            "",
        ),
        (
            "listener 9001\nprotocol websockets\nwebsockets_origin https://a.example \nwebsockets_origin http://192.0.2.7:3000",
            "origins = \"https://a.example, http://192.0.2.7:3000\"\n",
            "",
        ),
        (
            "listener 9001\nprotocol websockets\nwebsockets_origin a.example",
            "[mqtt]\n",
            "a.example is none that a browser sends",
        ),
        // Mosquitto would compare these as they are.
        (
            "listener 9001\nprotocol websockets\nwebsockets_origin *",
            "[mqtt]\n",
            "none that a browser sends",
        ),
        (
            "listener 9001\nprotocol websockets\nwebsockets_origin https://a.example,https://b.example",
            "[mqtt]\n",
            "none that a browser sends",
        ),
        (
            "listener 1883\nwebsockets_origin https://a.example",
            "protocol = \"tcp\"\n",
            "the listener has no WebSocket",
        ),
        ("listener 9001\nprotocol http_api", "[mqtt]\n", "neither mqtt nor websockets"),
        ("password_file C:\\a \"b\"", r#"password_file = "C:\\a \"b\"""#, ""),
        ("acl_file a\nacl_file b", "acl_file = \"b\"", "line 2 says it again"),
        ("plugin /usr/lib/x.so", "[mqtt]", "plugins are not run"),
        ("plugin_opt_secret s", "[mqtt]", "plugins are not run"),
        ("auth_opt_password s", "[mqtt]", "plugins are not run"),
        ("log_type all", "[mqtt]", "TIDEGATE_LOG"),
        ("max_keepalive 0", "[mqtt]", "never checked"),
        ("message_size_limit many", "[mqtt]", "not a number"),
        ("usre mosquitto", "[mqtt]", "is it spelled right?"),
        ("password_file", "[mqtt]", "no value"),
        ("max_queued_messages 500", "queue_messages_max = 500", ""),
        ("max_queued_messages 0", "[mqtt]", "not a bound in Mosquitto"),
        ("max_inflight_messages 1", "inflight_max = 1", ""),
        ("max_inflight_messages 65536", "[mqtt]", "from 1 to 65535"),
        ("sys_interval 0", "sys_interval = \"0s\"", ""),
        (
            "connection a\naddress b\ntopic c\nlistener 1883\nmount_point x",
            "enabled = false",
            "its mount_point protects it",
        ),
        ("topic a", "[mqtt]", "under no connection"),
        ("remote_password=hunter2", "[mqtt]", "spelled right"),
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
    let begin = "connection a.b/c # the cloud\naddress h\n";
    for (text, toml, why) in [
        ("topic t", "[mqtt.bridge.a-b-c]\nremote = \"h:1883\"\ntopics_out = \"t\"\nqos = 0", ""),
        (
            "topic t both 2 l/ r/",
            "topics_out = \"t\"\ntopics_in = \"t\"\nlocal_prefix = \"l/\"",
            "",
        ),
        ("topic t in \"\" \"\"", "topics_in = \"t\"\nqos = 0", ""),
        ("topic t in \"\" l/ r/", "local_prefix = \"l/\"\nremote_prefix = \"r/\"\nqos = 0", ""),
        (
            "topic t both 1x",
            "bridge_aware = true\ntopics_out = \"t\"\ntopics_in = \"t\"\nqos = 1",
            "",
        ),
        ("topic t\ntopic u in -1", "topics_out = \"t\"\n", "from 0 to 2"),
        ("topic t in 0 \"\" r/", "topics_in = \"t\"\nremote_prefix = \"r/\"\nqos = 0", ""),
        (
            "topic t\ntopic u out 1\ntopic v in",
            "topics_out = \"t, u\"\ntopics_in = \"v\"\nqos = 1",
            "",
        ),
        (
            "topic t\nremote_clientid me\ntopic u out 1 l/\ntopic v both 2 l/",
            "qos = 0\n\n[mqtt.bridge.a-b-c-2]\nremote = \"h:1883\"\nbridge_aware = true\nclient_id = \"me-2\"\ntopics_out = \"u, v\"\n\
             topics_in = \"v\"\nlocal_prefix = \"l/\"\nqos = 2\n",
            "",
        ),
        (
            "topic t # out",
            "[mqtt]",
            "left out: no topic of it can be translated; the first: its direction",
        ),
        (
            "topic t BOTH # all",
            "bridge_aware = true\ntopics_out = \"t\"\ntopics_in = \"t\"\nqos = 0",
            "",
        ),
        ("topic t both 2 l/ # r/", "local_prefix = \"l/\"\nqos = 2", ""),
        ("topic t\ntopic \"a b\" out", "topics_out = \"t\"\n", "in quotes"),
        ("topic t\ntopic a,b", "topics_out = \"t\"\n", "has no comma"),
        ("topic t\ntopic \"\" out 0 a b", "topics_out = \"t\"\n", "is not empty"),
        ("topic t\ntopic a#", "topics_out = \"t\"\n", "is not a topic filter"),
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
        (
            "topic t both\nbridge_protocol_version mqttv311",
            "version = \"3.1.1\"\nbridge_aware = true",
            "",
        ),
        (
            "topic t both\ntry_private false\nbridge_protocol_version mqttv311",
            "qos = 0",
            "bridge_aware",
        ),
        ("topic t\nrestart_timeout 5 30", "reconnect_backoff_max = \"30s\"", ""),
        ("topic t\nrestart_timeout 10 # s", "reconnect_backoff_max = \"10s\"", ""),
        ("topic t\nrestart_timeout x", "qos = 0", "not a number of seconds"),
        ("topic t\ntry_private true\nstart_type automatic\ncleansession false", "qos = 0", ""),
        ("topic t\ntry_private false", "qos = 0", "bridge bit"),
        ("topic t\nstart_type lazy", "qos = 0", "all the time"),
        ("topic t\nbridge_outgoing_retain false", "retain = false", ""),
        ("topic t both\nbridge_outgoing_retain false", "qos = 0", "fetched messages"),
        (
            "topic t\nbridge_cafile a\nbridge_certfile c\nbridge_keyfile k",
            "tls = true\nca = \"a\"\ncertificate = \"c\"\nkey = \"k\"",
            "",
        ),
        ("topic t\nbridge_tls_use_os_certs true", "tls = true\ntopics_out", ""),
        ("topic t\nbridge_cafile a\nbridge_certfile c", "ca = \"a\"\ntopics_out", "go together"),
        ("topic t\nbridge_certfile c", "remote = \"h:1883\"\ntopics_out", "no TLS"),
        ("topic t\nbridge_cafile a\nbridge_capath p", "tls = true\nca = \"a\"", "there is one ca"),
        ("topic t\nbridge_capath p", "tls = true\nca = \"p\"", ""),
        ("topic t\nbridge_cafile a\nbridge_insecure true", "ca = \"a\"\ninsecure = true\n", ""),
        ("topic t\nbridge_insecure true", "remote = \"h:1883\"\ntopics_out", "no TLS"),
        (
            "topic t\nbridge_cafile a\nbridge_insecure false",
            "ca = \"a\"\ntopics_out",
            "is looked at",
        ),
        ("topic t\npassword hunter2", "qos = 0", "without a remote_username"),
        (
            "topic t\nusername me\npassword hunter2",
            "username = \"me\"\npassword_file = \"/etc/tidegate/mqtt-bridge-a-b-c.password\"",
            "",
        ),
        ("topic t\nnotifications false", "qos = 0", "$SYS/broker/connection"),
        // Left out.
        ("topic t\nbridge_colour red", "[mqtt]", "left out: line 4 is not known"),
        ("topic t\nbridge_psk 00", "[mqtt]", "left out: its bridge_psk protects it"),
        ("topic t\nbridge_require_ocsp true", "[mqtt]", "left out: its bridge_require_ocsp"),
        ("topic t\nlocal_username u", "[mqtt]", "left out: its local_username protects it"),
        ("topic t\nbridge_tls_version tlsv1.3", "[mqtt]", "left out: its bridge_tls_version"),
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
    let imported =
        import("connection bridge\naddress a\ntopic t\nconnection bridge\naddress b\ntopic t");
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
    assert!(imported.toml.contains("acl_file = \"set-acl_file-by-hand\""));
    let local = "listen = \"127.0.0.1:1883\"\nprotocol = \"tcp\"\nallow_anonymous = true\n";
    assert!(imported.toml.contains(local), "each listener has its own: {}", imported.toml);
    assert_eq!(imported.toml.matches("allow_anonymous = true").count(), 1, "{}", imported.toml);
    assert_eq!(imported.untranslated.len(), 2, "{:?}", imported.untranslated);

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
