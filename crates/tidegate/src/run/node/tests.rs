//! Exchanges of configurations, without links and the API.

use std::{fs, path::Path};

use super::*;
use crate::run::users;

/// A node with its data at `place` and a listener on a free port.
fn config(place: &str, path: impl AsRef<Path>, text: &str) -> Config {
    let listener = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
    let text = format!("[node]\ndata_dir = \"{place}\"\n{text}\n{listener}");
    Config::parse(path.as_ref(), &text).expect("a configuration")
}

async fn started(config: &Config) -> Node {
    let authenticator = Arc::new(users::open(config).expect("no file is wrong"));
    let access = Access { authenticator, ..Access::default() };
    let stop = CancellationToken::new();
    Node::start(config, access, None, Health::default(), stop).await.expect("it serves")
}

#[tokio::test]
async fn a_reload_takes_all_or_nothing_and_says_what() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display().to_string();
    let config = |text: &str| config(&place, "site.toml", text);
    let rules = folder.path().join("rules");
    fs::write(&rules, "topic read a\n").expect("a file");
    let bridge = |name: &str, topics: &str| {
        format!("[mqtt.bridge.{name}]\nremote = \"127.0.0.1:1\"\ntopics_out = \"{topics}\"\n")
    };
    let first = config(&bridge("x", "a"));
    let node = started(&first).await;

    // The same again.
    let changes = node.reload(config(&bridge("x", "a"))).expect("nothing is wrong");
    assert_eq!(changes, Changes::default());

    // Wrong rules: the policy and the bridge stay, too.
    let text = format!("[mqtt]\npolicy = \"none\"\nacl_file = \"{place}/no-such\"\n");
    let error = node.reload(config(&(text + &bridge("x", "b")))).expect_err("no file");
    assert!(tidegate_message::error_chain(&error).contains("no-such"), "{error:?}");
    let again = node.reload(config(&bridge("x", "a"))).expect("nothing is wrong");
    assert_eq!(again, Changes::default(), "the first one runs");

    // A new file of rules, a bridge exchanged, one more, a limit that stays.
    let text = format!("[mqtt]\nshards = 3\nacl_file = \"{place}/rules\"\n");
    let text = text + &bridge("x", "b") + &bridge("y", "c");
    let changes = node.reload(config(&text)).expect("nothing is wrong");
    assert_eq!(changes.exchanged, ["mqtt.acl_file", "mqtt.bridge.x.topics_out", "mqtt.bridge.y"]);
    assert_eq!(changes.need_restart, ["mqtt.shards"]);
    assert_eq!(changes.sections, ["mqtt.bridge.x", "mqtt.bridge.y"]);

    // Settings that need a restart are named each time.
    let changes = node.reload(config(&text)).expect("nothing is wrong");
    assert_eq!((&changes.exchanged[..], &changes.sections[..]), (&[][..], &[][..]));
    assert_eq!(changes.need_restart, ["mqtt.shards"]);
    let changes = node.reload(config("")).expect("nothing is wrong");
    assert_eq!(changes.of("mqtt.bridge"), ["x", "y"]);
    node.stop().await;
}

#[tokio::test]
async fn flows_are_exchanged_with_the_rest_or_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display().to_string();
    let file = folder.path().join("f.toml");
    let flow = |name: &str| {
        format!(
            "[flow.{name}]\ntopics = [\"t\"]\nparse = {{ format = \"csv\", fields = [\"x\"] }}\n"
        )
    };
    fs::write(&file, flow("a")).expect("a file");
    // Files are looked for next to the one that names them.
    let path = folder.path().join("site.toml");
    let config = |text: &str| config(&place, &path, text);
    let one = "[flow.one]\nfile = \"f.toml\"\n";
    let first = config(one);
    let node = started(&first).await;
    let names = || -> Vec<String> {
        node.ports.tables.flows.rows().into_iter().map(|row| row.name).collect()
    };
    assert_eq!(names(), ["a"]);
    assert_eq!(node.reload(config(one)).expect("nothing is wrong"), Changes::default());

    // A wrong file: neither it nor the files next to it are taken.
    fs::write(&file, flow("b").replace("csv", "xml")).expect("a file");
    let text = format!("[mqtt]\npolicy = \"none\"\n{one}");
    let error = node.reload(config(&text)).expect_err("no such format");
    let chain = tidegate_message::error_chain(&error);
    assert!(chain.contains("flow.one.file") && chain.contains("f.toml:3"), "{chain}");
    assert_eq!(names(), ["a"]);

    // The configuration is the same, the file is another.
    fs::write(&file, flow("b") + &flow("c")).expect("a file");
    let changes = node.reload(config(one)).expect("nothing is wrong");
    assert_eq!((changes.of("flow"), names()), (vec!["a", "b", "c"], vec!["b".into(), "c".into()]));
    assert!(changes.need_restart.is_empty());
    let text = format!("{one}enabled = false\n");
    let changes = node.reload(config(&text)).expect("nothing is wrong");
    assert_eq!((changes.exchanged, names()), (vec!["flow.one.enabled".to_owned()], vec![]));
}

#[tokio::test]
async fn a_reload_exchanges_sinks() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display().to_string();
    let config = |text: &str| config(&place, "site.toml", text);
    let sink = |name: &str, topics: &str| format!("[sink.{name}]\ntopics = \"{topics}\"\n");
    let first = config(&(sink("x", "a") + &sink("y", "b")));
    let node = started(&first).await;
    let running = || -> Vec<String> {
        node.ports.tables.sinks.rows().into_iter().flat_map(|row| row.topics).collect()
    };
    assert_eq!(running(), ["a", "b"]);

    let changes = node.reload(first.clone()).expect("nothing is wrong");
    assert_eq!(changes.of("sink"), [""; 0]);

    // A sink that cannot be: all others stay as they were.
    let wrong = config(&(sink("x", "c") + "[sink.z]\nkind = \"influx\"\ntopics = \"a\"\n"));
    let error = node.reload(wrong).expect_err("it has no url");
    assert!(tidegate_message::error_chain(&error).contains("sink.z"), "{error:?}");
    assert_eq!(running(), ["a", "b"]);

    let changes = node.reload(config(&sink("x", "a, c"))).expect("nothing is wrong");
    assert_eq!(
        (changes.of("sink"), running()),
        (vec!["x", "y"], vec!["a".to_owned(), "c".to_owned()])
    );
    assert!(changes.need_restart.is_empty());
}
