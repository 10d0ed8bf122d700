use std::{fs, path::Path as FilePath};

use tidegate_sinks::DestinationSettings;

use super::*;

fn config(folder: &FilePath, text: &str) -> Config {
    let text = format!("[node]\ndata_dir = {:?}\n{text}", folder.display().to_string());
    Config::parse(FilePath::new("site.toml"), &text).expect("a configuration")
}

fn sinks_of(text: &str) -> Result<Vec<SinkSettings>, ApiError> {
    let folder = tempfile::tempdir().expect("a folder");
    let text = text.replace("DIR", &folder.path().display().to_string());
    planned(&config(folder.path(), &text), &SessionConfig::default(), Purpose::Run)
}

#[test]
fn problems_are_named_with_the_way_out() {
    for (text, expected) in [
        ("kind = \"memory\"", "topics names no filter"),
        ("kind = \"memory\"\ntopics = \"a#\"", "a#"),
        (
            "kind = \"memory\"\ntopics = \"a\"\nurl = \"x\"",
            "url means nothing for memory; it is for parquet",
        ),
        ("kind = \"memory\"\ntopics = \"a\"\nbatch_messages = 0", "batch_messages must be from 1"),
        ("kind = \"memory\"\ntopics = \"a/#\"\ndead_letter = \"a/b\"", "come back"),
        ("kind = \"influx\"\ntopics = \"a\"", "url must be where lines are posted"),
        ("kind = \"influx\"\ntopics = \"a\"\nurl = \"ftp://x/\"", "url is ftp://x/; it must be"),
        ("kind = \"influx\"\ntopics = \"a\"\nurl = \"http://u:p@x/\"", "no password"),
        (
            "kind = \"influx\"\ntopics = \"a\"\nurl = \"http://x/\"\nencoding = \"xml\"",
            "choose lines or values",
        ),
        (
            "kind = \"influx\"\ntopics = \"a\"\nurl = \"http://x/\"\nca = \"DIR/ca\"",
            "ca means nothing without TLS",
        ),
        (
            "kind = \"influx\"\ntopics = \"a\"\nurl = \"http://x/\"\nusername = \"u\"",
            "password_file",
        ),
        (
            "kind = \"influx\"\ntopics = \"a\"\nurl = \"http://x/\"\npassword_file = \"DIR/no\"",
            "DIR/no",
        ),
        (
            "kind = \"influx\"\ntopics = \"a\"\nurl = \"http://x/\"\ntable = \"t\"",
            "it is for postgres",
        ),
    ] {
        let error = sinks_of(&format!("[sink.x]\n{text}")).expect_err(text);
        let chain = tidegate_message::error_chain(&error);
        let expected = expected.strip_prefix("DIR").unwrap_or(expected);
        assert!(chain.contains("sink.x") && chain.contains(expected), "{text}: {chain}");
    }
}

#[cfg(all(feature = "sink-parquet", feature = "sink-postgres", feature = "sink-kafka"))]
#[test]
fn problems_of_listeners_with_a_client_are_named_too() {
    for (text, expected) in [
        ("kind = \"parquet\"", "url must be a folder"),
        ("kind = \"parquet\"\nurl = \"gs://x\"", "it must be a folder, or s3://BUCKET/PREFIX"),
        ("kind = \"parquet\"\nurl = \"s3:///x\"", "names no bucket"),
        (
            "kind = \"parquet\"\nurl = \"DIR/p\"\ncompression = \"rar\"",
            "choose zstd, snappy or none",
        ),
        ("kind = \"parquet\"\nurl = \"DIR/p\"\npartition = \"week\"", "choose hour, day or none"),
        (
            "kind = \"parquet\"\nurl = \"DIR/p\"\nregion = \"x\"",
            "region means nothing for a folder",
        ),
        (
            "kind = \"parquet\"\nurl = \"s3://b/p\"\nusername = \"u\"\nendpoint = \"http://x\"",
            "go together",
        ),
        ("kind = \"postgres\"\nurl = \"mysql://x\"", "not an address of PostgreSQL"),
        ("kind = \"postgres\"\nurl = \"postgresql://h/d\"\ntable = \"a..b\"", "SCHEMA.NAME"),
        ("kind = \"kafka\"\nurl = \"one:9092\"", "kafka://one:9092"),
        ("kind = \"kafka\"\nurl = \"kafka://one\"", "kafka://one:9092"),
        ("kind = \"kafka\"\nurl = \"kafka://one:9092\"\ntopic = \"a/b\"", "Kafka's have"),
        ("kind = \"kafka\"\nurl = \"kafka://one:9092\"\ncompression = \"lz4\"", "choose zstd"),
    ] {
        let error = sinks_of(&format!("[sink.x]\ntopics = \"a\"\n{text}")).expect_err(text);
        let chain = tidegate_message::error_chain(&error);
        assert!(chain.contains("sink.x") && chain.contains(expected), "{text}: {chain}");
    }
}

#[test]
fn relative_paths_begin_at_the_folder_of_the_file_that_names_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    fs::write(folder.path().join("ca.pem"), key.cert.pem()).expect("it is written");
    fs::write(folder.path().join("word"), "word\n").expect("it is written");
    let of = |text: &str| {
        let data_dir = folder.path().display().to_string();
        let text = format!("[node]\ndata_dir = {data_dir:?}\n[sink.x]\ntopics = \"a\"\n{text}");
        let config = Config::parse(&folder.path().join("site.toml"), &text);
        planned(&config.expect("a configuration"), &SessionConfig::default(), Purpose::Run)
    };
    let influx = "kind = \"influx\"\nurl = \"https://localhost/\"\n";
    let found = of(&format!("{influx}ca = \"ca.pem\"\npassword_file = \"word\""));
    let found = found.expect("both files are there");
    let DestinationSettings::Influx(settings) = &found[0].destination else { panic!("{found:?}") };
    assert_eq!(settings.authorization.as_deref(), Some(&b"Token word"[..]));
    assert!(found[0].trust.is_some());
    // One that is not there is named with its folder.
    for key in ["ca", "password_file"] {
        let error = of(&format!("{influx}{key} = \"absent\"")).expect_err(key);
        let (chain, path) = (tidegate_message::error_chain(&error), folder.path().join("absent"));
        assert!(chain.contains(&path.display().to_string()), "{key}: {chain}");
    }
}

#[cfg(feature = "sink-parquet")]
#[test]
fn a_folder_of_files_begins_there_too() {
    let folder = tempfile::tempdir().expect("a folder");
    for (url, expected) in [
        ("archive".to_owned(), "archive"),
        (folder.path().join("other").display().to_string(), "other"), // in full: as it is
    ] {
        let data_dir = folder.path().display().to_string();
        let text = format!(
            "[node]\ndata_dir = {data_dir:?}\n[sink.x]\ntopics = \"a\"\nkind = \"parquet\"\nurl = {url:?}"
        );
        let config = Config::parse(&folder.path().join("site.toml"), &text);
        let found =
            planned(&config.expect("a configuration"), &SessionConfig::default(), Purpose::Run);
        assert!(found.is_ok(), "{url}: {found:?}");
        assert!(folder.path().join(expected).is_dir(), "{url}");
    }
}

#[cfg(not(feature = "sink-kafka"))]
#[test]
fn a_sink_that_was_left_out_of_the_build_says_so() {
    let text = "[sink.x]\ntopics = \"a\"\nkind = \"kafka\"\nurl = \"kafka://one:9092\"";
    let chain = tidegate_message::error_chain(&sinks_of(text).expect_err("it was left out"));
    assert!(chain.contains("no kafka sink") && chain.contains("--features sink-kafka"), "{chain}");
}

#[test]
fn waiting_messages_have_room_on_disk_and_two_batches_may_be_under_way() {
    let text = "[sink.x]\ntopics = \"a/#, b\"\nbatch_messages = 40000\nbatch_bytes = \"1MiB\"\n[sink.y]\ntopics = \"c\"";
    let found = sinks_of(text).expect("nothing is wrong");
    let [x, y] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&*x.name, &x.topics[..]), ("x", &["a/#".to_owned(), "b".to_owned()][..]));
    assert_eq!((x.session.overflow, x.session.inflight_max), (Overflow::Spill, Some(65_535)));
    assert_eq!(
        (x.session.inflight_bytes_max, y.session.inflight_max),
        (Some(2 << 20), Some(2_000))
    );
    assert_eq!(x.client_id, "$node/sink/x");
    assert!(matches!(y.destination, DestinationSettings::Memory(_)));
}

#[test]
fn a_dead_letter_has_room_beside_the_longest_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config(folder.path(), "[sink.x]\ntopics = \"a\"");
    for (usual, expected) in [
        (1 << 20, (1 << 20) + LETTER_BYTES),
        (PACKET_BYTES_MAX - 1, PACKET_BYTES_MAX),
        (PACKET_BYTES_MAX, PACKET_BYTES_MAX),
    ] {
        let usual = SessionConfig { packet_bytes_max: usual, ..SessionConfig::default() };
        let found = planned(&config, &usual, Purpose::Run).expect("nothing is wrong");
        assert_eq!(found[0].session.packet_bytes_max, expected);
    }
}

#[test]
fn a_sink_of_mqtt_names_a_broker() {
    let of = |text: &str| sinks_of(&format!("[sink.x]\nkind = \"mqtt\"\ntopics = \"a/#\"\n{text}"));
    let found = of("url = \"mqtt://[::1]:8883\"\nusername = \"u\"\ndead_letter = \"d\"");
    let found = found.expect("nothing is wrong");
    assert_eq!(found[0].dead_letter.as_deref(), Some("d"));
    let DestinationSettings::Mqtt(settings) = &found[0].destination else { panic!("{found:?}") };
    assert_eq!((&*settings.host, settings.port), ("::1", 8883));
    assert_eq!((settings.username.as_deref(), settings.tls.is_some()), (Some("u"), false));
    assert!(settings.client_id.ends_with(".sink.x"), "{}", settings.client_id);
    for (text, expected) in [
        ("", "mqtt://HOST:PORT"),
        ("url = \"there:8883\"", "mqtt://HOST:PORT"),
        ("url = \"mqtt://u:p@there:1883\"", "mqtt://HOST:PORT"),
        ("url = \"mqtt://there:0\"", "mqtt://HOST:PORT"),
        ("url = \"mqtt://there:1883\"\nca = \"DIR/ca\"", "ca means nothing without TLS"),
        ("url = \"mqtt://there:1883\"\ntable = \"t\"", "table means nothing for mqtt"),
    ] {
        let error = of(text).expect_err(text);
        let chain = tidegate_message::error_chain(&error);
        assert!(chain.contains("sink.x") && chain.contains(expected), "{text}: {chain}");
    }
}

#[test]
fn places_of_a_sink_are_kept_as_long_as_its_session() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "[sink.kept]\nkind = \"memory\"\ntopics = \"a\"\n";
    let config = config(folder.path(), text);
    assert_eq!(remove_places(&config, |_| false).expect("there is no folder yet"), 0);
    let state = super::folder(&config);
    fs::create_dir_all(&state).expect("a folder");
    for name in ["kept.places", "waits.places", "over.places", "over.refused", "places"] {
        fs::write(state.join(name), "").expect("a file");
    }
    let found = || {
        let names = fs::read_dir(&state)
            .expect("a folder")
            .map(|entry| entry.expect("a file").file_name().into_string().expect("a name"));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    assert_eq!(remove_places(&config, |name| name == "waits").expect("they are ours"), 1);
    assert_eq!(found(), ["kept.places", "over.refused", "places", "waits.places"]);
    assert_eq!(remove_places(&config, |_| false).expect("they are ours"), 1);
    assert_eq!(found(), ["kept.places", "over.refused", "places"]);
}
