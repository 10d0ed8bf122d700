//! Files in, checked values or a named mistake out.

use std::fs;

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("site.toml"), text)
}

fn of_settings(settings: &[Setting]) -> Result<Config, ConfigError> {
    let (config, wrong) = Config::of_settings(settings.to_vec(), Vec::new());
    wrong.map_or(Ok(config), Err)
}

#[test]
fn the_defaults_are_the_golden_file() {
    let golden = include_str!("../testdata/config-default.toml");
    assert_eq!(Config::default().to_string(), golden);
    let mut read = parse(golden).unwrap();
    read.origins = Origins::default();
    assert_eq!(read, Config::default());
}

#[test]
fn what_is_printed_loads_to_the_same() {
    let config = parse(
        "[node]\nname = \"north\"\ndata_dir = 'C:\\\"x'\n[frames]\ndetector_input = \"640x360\"\n\
         tables_dir = \"t\"\n[link]\ntransport = \"tcp\"\nmax_reconnects = 7\nqueue_allowed = \"2.5ms\"\n\
         [log]\ncamera_bytes = \"2GB\"\n",
    )
    .unwrap();
    let printed = config.to_string();
    assert!(printed.contains("name = \"north\" # site.toml:2\n"), "{printed}");
    let mut again = parse(&printed).unwrap();
    assert_eq!(again.origins.settings.len(), 127, "every setting but those that are not set");
    again.origins = config.origins.clone();
    assert_eq!(again, config);
}

#[test]
fn the_template_is_the_defaults_and_says_what_they_mean() {
    let template = Config::template();
    assert_eq!(parse(&template).unwrap().node, NodeSection::default());
    assert!(template.contains("# Bytes kept of each transferred stream"), "{template}");
    let lines = template.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with(' ') => setting,
        _ => line,
    });
    let taken_up: Vec<&str> = lines.collect();
    let mut config = parse(&taken_up.join("\n")).unwrap();
    config.origins = Origins::default();
    assert_eq!(config, Config::default());
}

#[test]
fn mistakes_name_file_line_and_way_out() {
    for (text, expected) in [
        (
            "[log]\ncamera_bytes = \"1GiB\"\nstream = 1\n",
            "site.toml:3: [log] has no \"stream\"; choose one of: format durability camera_bytes camera_age stream_bytes mqtt_bytes \
             mqtt_commit_delay at_rest \
             key_file older_key_file passphrase_file",
        ),
        ("name = \"x\"\n", "site.toml:1: name stands in no section; begin with one such as [node]"),
        (
            "[link]\n\nqueue_allowed = 10\n",
            "site.toml:3: link.queue_allowed: \"10\" is not a duration: a number with ns, us, ms, s, min, h or d, such as 100ms",
        ),
        (
            "[link]\nqueue_allowed = \"2s\"\n",
            "site.toml:2: link.queue_allowed must be from 1ms to 1s",
        ),
        (
            "[link]\nedge = \"edge\"\n",
            "site.toml:2: link.edge must be a host and a port, such as edge.local:7443",
        ),
        (
            "[link]\ntransport = \"udp\"\n",
            "site.toml:2: link.transport: \"udp\" is not a valid transport; choose auto, quic or tcp",
        ),
        (
            "[node]\nname = \"../x\"\n",
            "site.toml:2: node.name: a name is made of letters, digits, '.', '_' and '-', not '/'",
        ),
        (
            "[node]\napi_listen = \"7080\"\n",
            "site.toml:2: node.api_listen: an address with a port is needed, such as 127.0.0.1:7080",
        ),
        ("[node]\nname = [\"x\"]\n", "site.toml:2: node.name: a text or a number is needed"),
        (
            "[frames]\nframe_bytes_max = \"1GiB\"\n",
            "site.toml:2: frames.frame_bytes_max must be from 1KiB to 63MiB",
        ),
        (
            "[log]\nstream_bytes = \"32MB\"\n",
            "site.toml:2: log.stream_bytes must be at least 4 times frames.frame_bytes_max and 64KiB each",
        ),
        (
            "[log]\ncamera_bytes = \"32MB\"\n",
            "site.toml:2: log.camera_bytes must be at least 16 times frames.frame_bytes_max, or 128MiB if that is less",
        ),
        (
            "[frames]\nframe_bytes_max = \"60MB\"\n[log]\nstream_bytes = \"1GiB\"\ncamera_bytes = \"128MiB\"\n",
            "site.toml:5: log.camera_bytes must be at least 4 times frames.frame_bytes_max and 64KiB each",
        ),
        (
            "[log]\ndurability = \"replicas\"\n",
            "site.toml:2: log.durability: \"replicas\" is not a valid durability; choose memory, page or disk",
        ),
        (
            "[log]\nat_rest = \"sealed\"\n",
            "site.toml:2: log.at_rest must be clear as long as log.key_file names no key; `tidegate key` makes one",
        ),
        (
            "[log.camera.cam1]\nage = \"24h\"\nbytes = \"1MB\"\n",
            "site.toml:3: bytes must be at least 4 times frames.frame_bytes_max and 64KiB each",
        ),
        (
            "[detect.people]\nmodel = \"person\"\n",
            "site.toml:1: cameras must be names of cameras, separated by commas, such as cam1, yard-*",
        ),
        (
            "[detect.people]\ncameras = \"*\"\nhome_assistant = \"a/#\"\n",
            "site.toml:3: home_assistant must be true, false, or a topic without + and #",
        ),
        (
            "[web]\nplain = \"127.0.0.1:7081\"\n",
            "site.toml:2: web.plain must be with web.plain_identity, whose rights its clients have",
        ),
        (
            "[web]\nplain = \"127.0.0.1:7081\"\nplain_identity = \"wall\"\n",
            "site.toml:3: web.plain_identity must be `user:` and a name, such as user:wall",
        ),
        (
            "[web]\nplain_connections_max = 1\n",
            "site.toml:2: web.plain_connections_max must be from 2 to 65536",
        ),
        ("[workers]\ncount = 33\n", "site.toml:2: workers.count must be from 1 to 32"),
        (
            "[workers]\ncommand = \"look 'a\"\n",
            "site.toml:2: workers.command must be a program and its arguments, every quote closed",
        ),
        (
            "[workers]\nruntime = \"native\"\ncommand = \"look\"\n",
            "site.toml:2: workers.runtime must be python where workers.command names a program in place of ours",
        ),
        (
            "[workers]\nlibrary = \"/opt/libonnxruntime.so\"\n",
            "site.toml:2: workers.library must be named where workers.runtime is native",
        ),
        (
            "[camera.hall]\nfps = 5\n",
            "site.toml:1: source must be where frames come from, such as rtsp://USER@HOST/PATH, folder:DIR or video:FILE",
        ),
        (
            "[camera.hall]\nsource = \"scene:street\"\nfps = 0\n",
            "site.toml:3: fps must be from 0.1 to 240",
        ),
        (
            "[auth]\ntoken_keys_url = \"http://id.example/keys\"\n",
            "site.toml:2: auth.token_keys_url must be an https:// address, without a user name and password in it",
        ),
        (
            "[auth]\ntoken_keys_url = \"https://me:secret@id.example/keys\"\n",
            "site.toml:2: auth.token_keys_url must be an https:// address, without a user name and password in it",
        ),
        (
            "[fabric]\nseeds = \"core.example:7443, core\"\n",
            "site.toml:2: fabric.seeds must be at most 64 hosts and ports, separated by commas, such as core.example:7443, 10.0.0.7:7443",
        ),
        (
            "[fabric]\nadvertise = \"a:1,b:2,c:3,d:4,e:5,f:6,g:7,h:8,i:9\"\n",
            "site.toml:2: fabric.advertise must be at most 8 hosts and ports, separated by commas, such as drone7.example:7443",
        ),
        (
            "[fabric]\napi_advertise = \"a:1,,\"\n",
            "site.toml:2: fabric.api_advertise must be at most 8 hosts and ports, separated by commas, such as drone7.example:7080",
        ),
        (
            "[fabric]\nposition = \"90.5, 0\"\n",
            "site.toml:2: fabric.position: latitude 90.5 is not within -90 and 90 degrees",
        ),
        (
            "[fabric]\nposition = \"here\"\n",
            "site.toml:2: fabric.position: \"here\" is no position: give latitude and longitude in degrees, such as 52.3731, 4.8922",
        ),
        ("[fabric]\nweight = 0\n", "site.toml:2: fabric.weight must be from 1 to 10000"),
        ("[fabric]\nreplicas = 8\n", "site.toml:2: fabric.replicas must be from 1 to 7"),
        (
            "[fabric]\nzone = \"north side\"\n",
            "site.toml:2: fabric.zone: a name is made of letters, digits, '.', '_' and '-', not ' '",
        ),
        (
            "[fabric]\njoin = \"anyone\"\n",
            "site.toml:2: fabric.join: \"anyone\" is not a valid rule for members; choose certificate or listed",
        ),
        (
            "[fabric]\njoin = \"listed\"\nmembers = \"core, ../x\"\n",
            "site.toml:3: fabric.members must be names of nodes, separated by commas, such as core, mast-1",
        ),
        (
            "[fabric]\nmembers = \"core\"\n",
            "site.toml:2: fabric.members must be named where fabric.join is \"listed\", and not where it is \"certificate\"",
        ),
        (
            "[fabric]\ndiscover_group = \"10.0.0.7:7444\"\n",
            "site.toml:2: fabric.discover_group must be a multicast address of IPv4 and a port, such as 239.255.74.43:7444",
        ),
        (
            "[link]\nshared_medium = \"no\"\n",
            "site.toml:2: link.shared_medium: true or false is needed",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), expected);
    }
    // Every section is named, whichever there are.
    let error = parse("\n[nodes]\nname = \"x\"\n").unwrap_err().to_string();
    let begin = "site.toml:2: there is no section [nodes]; did you mean [node]? choose one of: node frames mez_pi ";
    assert!(error.starts_with(begin) && error.contains(" web camera.NAME detect.NAME "), "{error}");
    // A camera whose name is taken is one mistake, and a key within it another.
    let twice = "[camera.hall]\nsource = \"scene:street\"\n\n[camera.hall]\nsource = \"scene:street\"\nfps = 5\n";
    let error = parse(twice).unwrap_err().to_string();
    assert_eq!(error, "site.toml:4: hall is there a second time; take one of the two out");
    let error = parse("[node]\nname = \"a\"\nname = \"b\"\n").unwrap_err().to_string();
    assert_eq!(error, "site.toml:3: name is there a second time; take one of the two out");
    let error = parse("[node]\nname = \n").unwrap_err();
    assert!(matches!(error, ConfigError::Syntax { .. }));
    assert!(error.to_string().starts_with("site.toml:2: "), "{error}");
}

#[test]
fn misplaced_key_comes_with_the_kinds_that_it_is_for() {
    let found = |text: &str| {
        let config = parse(&format!("[sink.x]\n{text}\n")).unwrap();
        config.sinks["x"].misplaced()
    };
    let away = ["parquet", "postgres", "influx", "kafka", "mqtt"];
    for (text, expected) in [
        ("kind = \"kafka\"\nurl = \"kafka://a:1\"\ntopic = \"t\"", vec![]),
        // As by default is not set.
        ("kind = \"memory\"\nurl = \"\"", vec![]),
        ("kind = \"memory\"\nurl = \"x\"", vec![("url", &away[..])]),
        (
            "kind = \"kafka\"\nmemory_messages = 1\ntable = \"t\"",
            vec![("memory_messages", &["memory"][..]), ("table", &["postgres"][..])],
        ),
        ("kind = \"mqtt\"\ncreate = false", vec![("create", &["postgres", "kafka"][..])]),
    ] {
        let found = found(text);
        let found: Vec<_> = found.iter().map(|it| (it.key, &it.kinds[..])).collect();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn later_layers_win_and_are_blamed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.toml");
    fs::write(&path, "[node]\nname = \"one\"\napi_listen = \"127.0.0.1:1\"\n").unwrap();
    let extra = folder.path().join("conf.d");
    fs::create_dir(&extra).unwrap();
    fs::write(extra.join("20.toml"), "[node]\nname = \"three\"\n").unwrap();
    fs::write(extra.join("10.toml"), "[node]\nname = \"two\"\n").unwrap();
    fs::write(extra.join("notes.txt"), "not a setting").unwrap();

    let mut wrong = Vec::new();
    let mut settings = layers::files(&path, &mut wrong);
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(of_settings(&settings).unwrap().node.name.as_str(), "three");
    settings.extend(layers::variables([
        ("TIDEGATE__NODE__NAME".to_owned(), "four".to_owned()),
        ("TIDEGATE_CONFIG".to_owned(), "no setting".to_owned()),
    ]));
    let config = of_settings(&settings).unwrap();
    assert_eq!(config.node.name.as_str(), "four");
    assert_eq!(config.node.api_listen.port(), 1);
    let origin = Origin::Variable("TIDEGATE__NODE__NAME".to_owned());
    assert_eq!(config.origins.of("node.name"), Some(&origin));

    settings.push(layers::flag("node.name=five").unwrap());
    assert_eq!(of_settings(&settings).unwrap().node.name.as_str(), "five");
    settings.push(layers::flag("node.nam=six").unwrap());
    let error = of_settings(&settings).unwrap_err().to_string();
    assert!(
        error.starts_with("--set node.nam: [node] has no \"nam\"; did you mean \"name\"?"),
        "{error}"
    );
    assert!(layers::flag("node.name").is_err());
}

#[test]
fn a_named_file_must_exist() {
    let error = Config::load(Some(Path::new("/no/such.toml")), &[]).unwrap_err();
    assert_eq!(error.to_string(), "/no/such.toml cannot be read");
}

#[test]
fn file_that_holds_nothing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.toml");
    let extra = folder.path().join("conf.d/10.toml");
    fs::create_dir(folder.path().join("conf.d")).unwrap();
    let whole = "[node]\nname = \"one\"\n";
    for (text, is_refused) in [
        (whole, false),
        ("", true),
        (" \n\t\r\n", true),
        ("\u{feff}\n", true),
        ("\0\0\0\0", true),
        // Said by a hand.
        ("# defaults\n", false),
        ("[node]\n", false),
    ] {
        for (of, path_of_text) in [("file", &path), ("conf.d", &extra)] {
            fs::write(&path, whole).unwrap();
            fs::write(&extra, whole).unwrap();
            fs::write(path_of_text, text).unwrap();
            let (_, wrong) = Config::load_all(Some(&path), &[]);
            match wrong {
                Some(error) => {
                    let text = error.to_string();
                    assert!(is_refused, "{of}: {text}");
                    let begin = format!("{} is empty", path_of_text.display());
                    assert!(text.starts_with(&begin), "{of}: {text}");
                    assert!(error.hides_settings());
                }
                None => assert!(!is_refused, "{of} {text:?}"),
            }
        }
    }
}

#[test]
fn printed_names_are_read_again() {
    for name in ["a/#", "+/b", "with \"quotes\" and \\", "plain"] {
        let name = toml::Value::from(name);
        let config = parse(&format!(
            "[node]\nname = \"edge\"\n[mqtt.topic.{name}]\noverflow = \"latest\"\n"
        ));
        let config = config.unwrap();
        let again = parse(&config.to_string()).unwrap_or_else(|error| panic!("{error}\n{config}"));
        assert_eq!(config.differences(&again), []);
    }
}

#[test]
fn secrets_are_not_printed_and_what_is_hidden_is_not_read() {
    let text = "[link]\nedge = \"me:s3cret@edge:1\"\n[camera.a]\nsource = \"rtsp://me:s3cret@cam/1\"\n[sink.a]\n\
                url = \"postgresql://me:s3cret@db/site\"\nusername = \"s3cret\"\n[mqtt.bridge.a]\nremote = \"x:s3cret\"\n";
    let (config, wrong) =
        Config::of_settings(layers::file(Path::new("x.toml"), text, &mut Vec::new()), Vec::new());
    let wrong = wrong.expect("edge is no host and port");
    let flag = layers::flag("sink.a.url=postgresql://me:s3cret@db/site").unwrap();
    let no_flag = layers::flag("url=postgresql://me:s3cret@db/site").unwrap_err();
    for shown in [
        config.to_string(),
        format!("{config:?} {wrong:?} {wrong} {no_flag} {no_flag:?} {}", flag.origin),
    ] {
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    assert_eq!(config.sinks["a"].url.as_ref().unwrap().expose(), "postgresql://me:s3cret@db/site");
    assert!(config.to_string().contains("url = \"postgresql://***@db/site\""), "{config}");
    let error = parse("[sink.a]\nurl = \"postgresql://***@db/site\"\n").unwrap_err().to_string();
    assert!(
        error.starts_with("site.toml:2: sink.a.url: *** stands where a secret was hidden"),
        "{error}"
    );
    let broken =
        write::without_camera("[camera.a]\nsource = \"rtsp://me:s3cret@cam/1\n", "a").unwrap_err();
    assert!(!format!("{broken} {broken:?}").contains("s3cret"), "{broken:?}");
    assert!(broken.to_string().starts_with("line 2 is no TOML: "), "{broken}");
}

#[test]
fn lists_of_a_fabric_are_read_part_by_part() {
    let text = "[fabric]\nenabled = true\nseeds = \" core.example:7443,[fe80::1%eth0]:1 \"\nadvertise = \"a:1\"\njoin = \"listed\"\n\
                members = \"core, mast-1\"\nposition = \"10, 180\"\nzone = \"north\"\n";
    let fabric = parse(text).unwrap().fabric;
    assert_eq!(fabric.seeds().collect::<Vec<_>>(), ["core.example:7443", "[fe80::1%eth0]:1"]);
    assert_eq!(fabric.advertised().collect::<Vec<_>>(), ["a:1"]);
    assert_eq!(fabric.api_advertised().count(), 0);
    assert_eq!(fabric.member_names().collect::<Vec<_>>(), ["core", "mast-1"]);
    assert_eq!(fabric.position.unwrap().to_string(), "10, -180", "each point has one form");
    let listed = parse("[fabric]\njoin = \"listed\"\n").unwrap_err().to_string();
    assert!(listed.starts_with("fabric.members must be named where"), "{listed}");
    assert!(!parse("[fabric]\nposition = \"1, 2\"\n").unwrap().fabric.enabled);
}

/// Keys of texts that hold no secret: each of the others is `Confidential` or `Secret`.
const PLAIN_TEXTS: &str = "token_issuer token_audience token_name_claim token_groups_claim hwaccel cameras model topic labels \
    home_assistant topics identity xdp_interface xdp_fields xdp_keep tcp_congestion policy_query_topic policy_size_profile auto_id_prefix \
    client_id topics_out topics_in local_prefix remote_prefix paths client_pins filter detector dead_letter compression partition time_unit \
    region table encoding measurement critical layouts user face_model plain_identity plain_hosts origins \
    advertise api_advertise members";

#[test]
fn each_text_is_known_to_hold_no_secret() {
    let plain: Vec<&str> = PLAIN_TEXTS.split_whitespace().collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sections");
    let mut texts = 0;
    for entry in fs::read_dir(folder).expect("the sections") {
        let text = fs::read_to_string(entry.expect("an entry").path()).expect("a section");
        for line in text.lines() {
            let key =
                line.split_once(": String =").or_else(|| line.split_once(": Option<String> ="));
            let Some((key, _)) = key else { continue };
            assert!(plain.contains(&key.trim()), "may {} hold a secret?", key.trim());
            texts += 1;
        }
    }
    assert!(texts >= plain.len(), "{texts} keys were found");
}

#[test]
fn versions_of_mqtt_are_read_by_their_usual_names() {
    use words::MqttVersions;
    for (text, expected) in [
        ("3.1, 3.1.1, 5", "3.1, 3.1.1, 5"),
        ("5.0", "5"),
        ("3,4", "3.1, 3.1.1"),
        (" 3.1.1 ", "3.1.1"),
    ] {
        let versions: MqttVersions = text.parse().unwrap();
        assert_eq!(versions.to_string(), expected);
    }
    for wrong in ["", "2", "5,", "3.1.1.1"] {
        let error = wrong.parse::<MqttVersions>().unwrap_err();
        assert!(
            error.contains("is not a version of MQTT; choose from 3.1, 3.1.1 and 5"),
            "{error}"
        );
    }
}

#[test]
fn every_mistake_is_named_with_what_was_meant() {
    let text = "[node]\nnam = \"x\"\napi_listen = \"7080\"\n[lnik]\nlisten = \"a\"\nedge = \"b\"\n[link]\ntransport = \"qiuc\"\n\
                queue_allowed = \"2s\"\n[mqtt.listner.tls]\nlisten = \"127.0.0.1:1\"\n[mqtt.listener.main]\nprotocol = \"tsl\"\n\
                [flow.x]\n[log]\ncamera_bytes = [1]\n";
    let expected = [
        "site.toml:16: log.camera_bytes: a text or a number is needed",
        "site.toml:2: [node] has no \"nam\"; did you mean \"name\"? choose one of: name data_dir",
        "site.toml:3: node.api_listen: an address with a port is needed, such as 127.0.0.1:7080",
        "site.toml:4: there is no section [lnik]; did you mean [link]? choose one of: node",
        "site.toml:8: link.transport: \"qiuc\" is not a valid transport; did you mean \"quic\"? choose auto, quic or tcp",
        "site.toml:10: there is no section [mqtt.listner.tls]; did you mean [mqtt.listener.tls]? choose",
        "site.toml:13: mqtt.listener.main.protocol: \"tsl\" is not a valid protocol; did you mean \"tls\"? choose tcp, tls",
        "site.toml:9: link.queue_allowed must be from 1ms to 1s",
        "site.toml:14: file must be the name of a file of flows",
    ];
    let problems = parse(text).unwrap_err().problems();
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), expected.len(), "{problems}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}");
    }
    // Where a file is no TOML, each such line is named, and nothing is made of the rest.
    let problems =
        parse("[node]\nname = \n[link]\nedge == 3\n").unwrap_err().problems().to_string();
    let lines: Vec<&str> = problems.lines().collect();
    assert!(
        lines[0].starts_with("site.toml:2: ") && lines[1].starts_with("site.toml:4: "),
        "{problems}"
    );
}

#[test]
fn a_text_that_names_a_setting_leads_to_its_line() {
    let config = parse(
        "[mqtt.listener.main]\nlisten = \"127.0.0.1:1\"\ncertificate = \"x.pem\"\n[sink.a]\ntopics = \"#\"\nurl = \"x\"\n\
         [sink.ab]\ntopics = \"#\"\n[mqtt]\nacl_file = \"rules\"\n",
    )
    .unwrap();
    for (text, expected) in [
        ("mqtt.listener.main.certificate: x.pem cannot be used", Some(3)),
        ("mqtt.listener.main.key means nothing", Some(1)),
        ("sink.a cannot be: url is wrong", Some(6)),
        ("sink.ab cannot be: url is wrong", Some(7)),
        ("mqtt.acl_file: rules cannot be read", Some(10)),
        ("mqtt.acl_file_of is not a key", None),
        ("something else", None),
    ] {
        let line = config.origins.named_in(text).map(|origin| match origin {
            Origin::File { line, .. } => *line,
            other => panic!("{other}"),
        });
        assert_eq!(line, expected, "{text}");
    }
}

#[test]
fn differences_say_which_settings_wait_for_a_restart() {
    let here = parse(
        "[sink.gone]\ntopics = \"a\"\n[ingest.gone]\n[ingest.same]\n[mqtt.listener.gone]\n[mqtt.listener.same]\nlisten = \"127.0.0.1:1\"\n",
    );
    let there = parse(
        "[mqtt]\nenabled = false\nshards = 7\ndurability = \"disk\"\npayload_bytes_max = \"512MiB\"\nspill_bytes = \"1MiB\"\n\
         session_expiry_max = \"1h\"\nkeepalive_max = \"1s\"\ninflight_max = 1\nreceive_maximum = 1\ntopic_alias_max = 1\n\
         topic_alias_out_max = 1\nretained_max = 1\ncheck_retain_source = false\nsessions_max = 1\nidentity_share = 0.5\n\
         subscriptions_max = 1\nsys_interval = \"1s\"\npolicy_query_topic = \"rtt\"\nqueue_messages_max = 7\n\
         [auth]\naudit_files_max = 9\ntoken_issuer = \"x\"\n[web]\nplain_connections_max = 9\n[log.camera.cam1]\nbytes = \"900MiB\"\n\
         [ingest.same]\nlisten = \"127.0.0.1:9\"\nretain = true\n[mqtt.listener.same]\nlisten = \"127.0.0.1:1\"\nmax_qos = 1\n\
         socket_mode = \"0600\"\n[fabric]\nenabled = true\nposition = \"1, 2\"\nreplicas = 2\nweight = 50\n[flow.new]\nfile = \"f\"\n[mqtt.topic.new]\nfilter = \"x\"\n[ingest.new]\nlisten = \"127.0.0.1:2\"\n",
    );
    let (here, there) = (here.unwrap(), there.unwrap());
    let of = |is_fixed| {
        let some = here.differences(&there).into_iter().filter(|it| it.is_fixed == is_fixed);
        some.map(|it| it.setting).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        of(true),
        "fabric.enabled fabric.replicas auth.audit_files_max mqtt.enabled mqtt.shards mqtt.durability mqtt.payload_bytes_max mqtt.spill_bytes mqtt.policy_query_topic \
         mqtt.session_expiry_max mqtt.keepalive_max mqtt.inflight_max mqtt.receive_maximum mqtt.topic_alias_max \
         mqtt.topic_alias_out_max mqtt.retained_max mqtt.check_retain_source mqtt.sessions_max mqtt.identity_share \
         mqtt.subscriptions_max mqtt.sys_interval web.plain_connections_max log.camera.cam1 mqtt.listener.gone \
         mqtt.listener.same.socket_mode ingest.gone ingest.same.listen ingest.new"
    );
    assert_eq!(
        of(false),
        "fabric.position fabric.weight auth.token_issuer mqtt.queue_messages_max mqtt.listener.same.max_qos ingest.same.retain mqtt.topic.new flow.new sink.gone"
    );
}
