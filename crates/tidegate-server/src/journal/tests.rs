//! From one process to the next, in one.

use std::time::Instant as Stopwatch;

use tidegate_broker::{
    Body, BrokerConfig, ConnectRequest, MessageRef, Output, SessionConfig, Shared,
};
use tidegate_message::{AllowAll, Identity};
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, Packet, PacketId, QoS, RetainHandling, Subscribe, SubscribeFilter,
    Version,
};

use super::{
    clock_note::note_clock,
    contents::Contents,
    generations::{ASIDES_MAX, asides},
    mark::MARK,
    *,
};

fn settings(folder: &Path) -> JournalSettings {
    JournalSettings {
        folder: folder.join("log/mqtt"),
        is_on_disk: false,
        bytes_max: 4 << 30,
        commit_delay: Duration::from_millis(10),
    }
}

fn node(shards: usize) -> (Arc<Shared>, Vec<Broker>) {
    let config = BrokerConfig {
        payload_bytes_max: 4 << 30,
        sys_interval: Duration::ZERO,
        ..BrokerConfig::default()
    };
    let now = clock::now();
    let shared = Shared::new(config, shards, Arc::new(AllowAll), now);
    let broker = |shard| Broker::new(shared.clone(), shard, 1, now);
    (shared.clone(), (0..shards).map(broker).collect())
}

/// Exchanges messages between shards, until none has any.
fn exchange(shards: &mut [Broker]) {
    let mut moved = true;
    while mem::take(&mut moved) {
        for from in 0..shards.len() {
            for to in 0..shards.len() {
                let mut batch = Vec::new();
                if shards[from].poll_peers(to, &mut batch) {
                    moved = true;
                    shards[to].handle_peers(clock::now(), batch);
                }
            }
        }
    }
}

fn session(shared: &Shared, shards: &mut [Broker], name: &str) {
    let now = clock::now();
    let properties =
        ConnectProperties { session_expiry: Some(3600), ..ConnectProperties::default() };
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: false,
        keep_alive: 0,
        client_id: name.to_owned(),
        will: None,
        username: None,
        password: None,
        properties,
    };
    let request = ConnectRequest {
        connect,
        identity: Identity::anonymous(name),
        config: Arc::new(SessionConfig::default()),
        authentication_data: None,
    };
    let shard = &mut shards[shared.shard_of(name)];
    let key = shard.connect(now, request).expect("it is let in");
    let mut subscribe = Vec::new();
    let filter = |filter: String| SubscribeFilter {
        filter,
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::DoNotSend,
    };
    Packet::Subscribe(Subscribe {
        packet_id: PacketId::MIN,
        subscription_id: None,
        user_properties: Vec::new(),
        filters: vec![filter(format!("to/{name}")), filter("to/all".to_owned())],
    })
    .encode(Version::V5, &mut subscribe)
    .expect("it is short");
    assert_eq!(shard.receive(now, key, &subscribe), subscribe.len());
    shard.closed(now, key);
    while let Some(output) = shard.poll_output() {
        assert!(!matches!(output, Output::Auth(..)));
    }
}

fn publish(shard: &mut Broker, topic: &str, payload: &[u8], retain: bool) {
    let topic = topic.into();
    let message = MessageRef {
        qos: QoS::AtLeastOnce,
        retain,
        ..MessageRef::new(&topic, Body::Read(payload), clock::now())
    };
    assert!(shard.publish_internal(clock::now(), message));
}

/// Fills a node, ends it, and lets another begin; how long that took, and what came back.
fn restart(retained: usize, sessions: usize, shards: [usize; 2]) -> Duration {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    let (shared, mut before) = node(shards[0]);
    let running = open(&settings, &mut before, clock::now()).expect("a journal");
    for number in 0..sessions {
        session(&shared, &mut before, &format!("client-{number}"));
    }
    for number in 0..retained {
        let at = number % shards[0];
        let topic = format!("site/{}/device/{number}/state", number % 100);
        publish(&mut before[at], &topic, format!("{{\"on\":{number}}}").as_bytes(), true);
        if number % 1_000 == 0 {
            exchange(&mut before);
        }
    }
    for number in 0..sessions.min(1_000) {
        publish(&mut before[0], &format!("to/client-{number}"), b"hello", false);
    }
    publish(&mut before[shards[0] - 1], "to/all", b"to all clients", false);
    exchange(&mut before);
    drop((before, running));
    let (shared, mut after) = node(shards[1]);
    let began = Stopwatch::now();
    let running = open(&settings, &mut after, clock::now()).expect("a journal");
    let took = began.elapsed();
    assert_eq!(shared.retained_count(), retained);
    assert_eq!(shared.subscriptions(), 2 * sessions);
    let reports: Vec<_> = after.iter().flat_map(|shard| shard.sessions(usize::MAX)).collect();
    assert_eq!(reports.len(), sessions);
    let queued: usize = reports.iter().map(|report| report.queued).sum();
    assert_eq!(queued, sessions + sessions.min(1_000));
    let folders: Vec<_> = fs::read_dir(&settings.folder)
        .expect("it is there")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(folders, ["00000002"]);
    drop((after, running));
    took
}

#[test]
fn another_process_goes_on_with_other_shards() {
    for shards in [[1, 1], [2, 3], [3, 1]] {
        restart(500, 40, shards);
    }
}

#[test]
fn a_second_process_is_told_that_the_folder_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    let (_, mut shards) = node(1);
    let _running = open(&settings, &mut shards, clock::now()).expect("a journal");
    let (_, mut others) = node(1);
    let error = open(&settings, &mut others, clock::now()).map(drop).expect_err("it is taken");
    assert!(
        tidegate_message::error_chain(&error).contains("log/mqtt"),
        "{}",
        tidegate_message::error_chain(&error)
    );
}

#[test]
fn a_start_that_did_not_finish_is_as_if_it_had_not_begun() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    let (shared, mut shards) = node(1);
    let running = open(&settings, &mut shards, clock::now()).expect("a journal");
    session(&shared, &mut shards, "client");
    drop((shards, running));
    let unfinished = generation(&settings.folder, 2, ".new");
    fs::create_dir_all(unfinished.join("000")).expect("a folder");
    let (_, mut shards) = node(2);
    let _running = open(&settings, &mut shards, clock::now()).expect("a journal");
    assert_eq!(shards.iter().map(|shard| shard.statistics().sessions).sum::<u64>(), 1);
    assert!(!unfinished.exists());
}

/// Names in the folder of the journals.
fn names(settings: &JournalSettings) -> Vec<String> {
    let entries = fs::read_dir(&settings.folder).expect("it is there").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    fs::set_permissions(to, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("ours");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), &to).expect("a copy");
            fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o600))
                .expect("ours");
        }
    }
}

/// The segments of a generation.
fn segments(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for shard in Contents::read(path).expect("a generation").shards {
        let files = fs::read_dir(path.join(shard_name(shard))).expect("a shard").flatten();
        found.extend(
            files
                .map(|file| file.path())
                .filter(|path| path.extension().is_some_and(|e| e == "segment")),
        );
    }
    assert!(!found.is_empty());
    found
}

/// The remains of a node of three shards: `log/mqtt/00000001` with 12 sessions, four on each shard, and 30 retained
/// messages.
fn left() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    let (shared, mut shards) = node(3);
    let running = open(&settings, &mut shards, clock::now()).expect("a journal");
    // Where a name leads differs from process to process.
    let mut sessions = [0; 3];
    let clients = (0..).map(|number| format!("client-{number}")).filter(|client| {
        let count = &mut sessions[shared.shard_of(client)];
        *count += 1;
        *count <= 4
    });
    for client in clients.take(12) {
        session(&shared, &mut shards, &client);
    }
    for number in 0..30 {
        publish(&mut shards[number % 3], &format!("kept/{number}"), b"x", true);
    }
    publish(&mut shards[0], "to/all", b"to all clients", false);
    exchange(&mut shards);
    drop((shards, running));
    assert_eq!(names(&settings), ["00000001"]);
    folder
}

#[test]
fn nothing_that_cannot_be_read_is_removed_and_a_good_one_is_found_beside_it() {
    type Harm = fn(&Path);
    // Next to the good one, by a greater number.
    let beside: [(&str, Harm); 8] = [
        ("an empty folder", |log| fs::create_dir(log.join("00000099")).unwrap()),
        ("empty shards", |log| fs::create_dir_all(log.join("00000099/000")).unwrap()),
        ("a file", |log| fs::write(log.join("00000099"), "what?").unwrap()),
        ("a dangling link", |log| {
            std::os::unix::fs::symlink("/nowhere", log.join("00000099")).unwrap();
        }),
        ("a link", |log| std::os::unix::fs::symlink("00000001", log.join("00000099")).unwrap()),
        ("a mark alone", |log| {
            fs::create_dir(log.join("00000099")).unwrap();
            let mark = Mark { ends: vec![Position(7)], made_from: Vec::new() };
            mark.write(&log.join("00000099")).unwrap();
        }),
        ("a later version", |log| {
            fs::create_dir(log.join("00000099")).unwrap();
            fs::write(log.join("00000099/generation"), "tidegate MQTT journals 2\n").unwrap();
        }),
        ("zeros", |log| {
            copy(&log.join("00000001"), &log.join("00000099"));
            for segment in segments(&log.join("00000099")) {
                let len = segment.metadata().unwrap().len();
                fs::write(&segment, vec![0; len as usize]).unwrap();
            }
        }),
    ];
    for (what, harm) in beside {
        let folder = left();
        let settings = settings(folder.path());
        harm(&settings.folder);
        for round in 0..2 {
            let (shared, mut shards) = node(2);
            let running = open(&settings, &mut shards, clock::now()).expect("a journal");
            assert_eq!(shared.retained_count(), 30, "{what}, start {round}");
            assert_eq!(shared.subscriptions(), 24, "{what}, start {round}");
            drop((shards, running));
        }
        assert_eq!(names(&settings), ["00000099.aside", "00000101"], "{what}");
    }
}

#[test]
fn foreign_files_in_a_journal_are_named_and_kept_and_the_journal_is_read() {
    // Numbers that no shard has, and other foreign names.
    let foreign = ["20261125", "18446744073709551615", "18446744073709551616", "255", "0000", "a"];
    for name in foreign {
        for is_file in [false, true] {
            let folder = left();
            let settings = settings(folder.path());
            let path = settings.folder.join("00000001").join(name);
            if is_file {
                fs::write(&path, "what?").unwrap();
            } else {
                fs::create_dir(&path).unwrap();
            }
            for round in 0..2 {
                let (shared, mut shards) = node(2);
                let running = open(&settings, &mut shards, clock::now()).expect("a journal");
                let counts = (shared.retained_count(), shared.subscriptions());
                assert_eq!(counts, (30, 24), "{name}, start {round}");
                drop((shards, running));
            }
            assert_eq!(names(&settings), ["00000001.aside", "00000003"], "{name}");
            let kept = settings.folder.join("00000001.aside").join(name);
            assert!(kept.symlink_metadata().is_ok(), "{name}");
        }
    }
    // In one that a newer one says again, and was not removed.
    let folder = left();
    let settings = settings(folder.path());
    copy(&settings.folder.join("00000001"), &folder.path().join("copy"));
    let (_, mut shards) = node(2);
    drop((open(&settings, &mut shards, clock::now()).expect("a journal"), shards));
    copy(&folder.path().join("copy"), &settings.folder.join("00000001"));
    fs::write(settings.folder.join("00000001/notes"), "what?").unwrap();
    let (shared, mut shards) = node(2);
    let _running = open(&settings, &mut shards, clock::now()).expect("a journal");
    assert_eq!((shared.retained_count(), shared.subscriptions()), (30, 24));
    assert_eq!(names(&settings), ["00000001.aside", "00000003"]);
}

#[test]
fn a_mark_of_more_shards_than_there_may_be_is_none_of_ours() {
    let ends = "shard ends at 1\n";
    assert!(Mark::parse(&format!("{MARK}\n{}", ends.repeat(SHARDS_MAX))).is_some());
    assert!(Mark::parse(&format!("{MARK}\n{}", ends.repeat(SHARDS_MAX + 1))).is_none());
}

#[test]
fn a_start_that_did_not_finish_is_kept_where_what_it_was_made_from_is_damaged() {
    for is_damaged in [false, true] {
        let folder = left();
        let settings = settings(folder.path());
        let one = settings.folder.join("00000001");
        copy(&one, &settings.folder.join("00000002.new"));
        if is_damaged {
            fs::remove_dir_all(one.join("001")).unwrap();
        }
        let (_, mut shards) = node(3);
        let _running = open(&settings, &mut shards, clock::now()).expect("a journal");
        let expected = ["00000001.aside", "00000002.aside", "00000003"];
        assert_eq!(names(&settings), if is_damaged { &expected[..] } else { &expected[2..] });
    }
}

#[test]
fn a_journal_of_which_something_is_missing_is_set_aside_and_the_rest_is_served() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 6] = [
        ("the last shard is missing", |one| fs::remove_dir_all(one.join("002")).unwrap()),
        ("the first shard is missing", |one| fs::remove_dir_all(one.join("000")).unwrap()),
        ("a shard is a file", |one| {
            fs::remove_dir_all(one.join("001")).unwrap();
            fs::write(one.join("001"), "").unwrap();
        }),
        ("a shard has no files", |one| {
            for segment in
                segments(one).iter().filter(|path| path.to_string_lossy().contains("/001/"))
            {
                fs::remove_file(segment).unwrap();
            }
        }),
        ("segments are empty", |one| {
            for segment in
                segments(one).iter().filter(|path| path.to_string_lossy().contains("/002/"))
            {
                fs::write(segment, "").unwrap();
            }
        }),
        ("segments are zero", |one| {
            for segment in
                segments(one).iter().filter(|path| path.to_string_lossy().contains("/000/"))
            {
                let len = segment.metadata().unwrap().len();
                fs::write(segment, vec![0; len as usize]).unwrap();
            }
        }),
    ];
    for (what, harm) in harms {
        let folder = left();
        let settings = settings(folder.path());
        harm(&settings.folder.join("00000001"));
        let (shared, mut shards) = node(3);
        let running = open(&settings, &mut shards, clock::now()).expect("a journal");
        let (retained, subscriptions) = (shared.retained_count(), shared.subscriptions());
        assert!(
            (10..30).contains(&retained) && (2..24).contains(&subscriptions),
            "{what}: {retained} {subscriptions}"
        );
        drop((shards, running));
        assert_eq!(names(&settings), ["00000001.aside", "00000002"], "{what}");
        // Once is enough: the next start finds all that there is.
        let (shared, mut shards) = node(1);
        let running = open(&settings, &mut shards, clock::now()).expect("a journal");
        assert_eq!((shared.retained_count(), shared.subscriptions()), (retained, subscriptions));
        drop((shards, running));
        assert_eq!(names(&settings), ["00000001.aside", "00000003"], "{what}");
    }
}

#[test]
fn an_emptied_segment_is_named_after_a_kill_as_after_an_orderly_end() {
    for is_killed in [true, false] {
        for (which, at) in [("the oldest", 0), ("one between", 1), ("the newest", usize::MAX)] {
            for content in ["zeros", "nothing"] {
                let folder = tempfile::tempdir().expect("a folder");
                let live = JournalSettings { bytes_max: 4 << 20, ..settings(folder.path()) };
                let (_, mut shards) = node(1);
                let mut running = open(&live, &mut shards, clock::now()).expect("a journal");
                for number in 0..8 {
                    publish(&mut shards[0], &format!("kept/{number}"), &[7; 60_000], true);
                }
                running.flushers[0].0.turn(&clock::now);
                if !is_killed {
                    shards[0].flush_journal().expect("a disk");
                }
                // As the end of the process would leave it at this moment.
                let image = tempfile::tempdir().expect("a folder");
                let left = JournalSettings { bytes_max: 4 << 20, ..settings(image.path()) };
                copy(&live.folder, &left.folder);
                drop((shards, running));
                let mut begun = segments(&left.folder.join("00000001"));
                begun.retain(|path| fs::read(path).expect("a segment")[..64] != [0; 64]);
                begun.sort();
                assert!(begun.len() >= 3, "{begun:?}");
                let emptied = &begun[at.min(begun.len() - 1)];
                let len = emptied.metadata().expect("it is there").len() as usize;
                let zeros = if content == "zeros" { vec![0; len] } else { Vec::new() };
                fs::write(emptied, zeros).expect("it is ours");

                let about = format!("killed {is_killed}, {which}, {content}");
                let (shared, mut shards) = node(1);
                drop(open(&left, &mut shards, clock::now()).expect("a journal"));
                assert!((1..=8).contains(&shared.retained_count()), "{about}");
                assert_eq!(names(&left), ["00000001.aside", "00000002"], "{about}");
            }
        }
        // Where nothing was emptied, nothing is missing.
        let folder = tempfile::tempdir().expect("a folder");
        let live = JournalSettings { bytes_max: 4 << 20, ..settings(folder.path()) };
        let (_, mut shards) = node(1);
        let mut running = open(&live, &mut shards, clock::now()).expect("a journal");
        for number in 0..8 {
            publish(&mut shards[0], &format!("kept/{number}"), &[7; 60_000], true);
        }
        running.flushers[0].0.turn(&clock::now);
        if !is_killed {
            shards[0].flush_journal().expect("a disk");
        }
        drop((shards, running));
        let (shared, mut shards) = node(1);
        drop(open(&live, &mut shards, clock::now()).expect("a journal"));
        assert_eq!(shared.retained_count(), 8);
        assert_eq!(names(&live), ["00000002"], "killed {is_killed}");
    }
}

#[test]
fn an_older_journal_that_was_put_beside_the_newest_is_set_aside() {
    let folder = left();
    let settings = settings(folder.path());
    let older = tempfile::tempdir().expect("a folder");
    copy(&settings.folder.join("00000001"), &older.path().join("copy"));
    let (_, mut shards) = node(1);
    drop(open(&settings, &mut shards, clock::now()).expect("a journal"));
    drop(shards);
    assert_eq!(names(&settings), ["00000002"]);
    // One that the newest was made from is removed by a start that was cut short before; one that was brought back is not.
    fs::rename(settings.folder.join("00000002"), settings.folder.join("00000009")).unwrap();
    copy(&older.path().join("copy"), &settings.folder.join("00000001"));
    copy(&older.path().join("copy"), &settings.folder.join("00000003"));
    let (shared, mut shards) = node(1);
    drop(open(&settings, &mut shards, clock::now()).expect("a journal"));
    assert_eq!(shared.retained_count(), 30);
    assert_eq!(names(&settings), ["00000003.aside", "00000010"]);
}

#[test]
fn a_journal_without_anything_in_it_is_no_loss() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    for round in 1..4 {
        let (_, mut shards) = node(round);
        drop(open(&settings, &mut shards, clock::now()).expect("a journal"));
        drop(shards);
        assert_eq!(names(&settings), [format!("{round:08}")]);
    }
}

#[test]
fn what_was_set_aside_is_bounded_and_never_overwritten() {
    let folder = left();
    let settings = settings(folder.path());
    for number in 0..ASIDES_MAX + 2 {
        fs::create_dir(settings.folder.join("00000900")).expect("a folder");
        fs::write(settings.folder.join("00000900/note"), format!("{number}")).expect("a file");
        let (shared, mut shards) = node(1);
        drop(open(&settings, &mut shards, clock::now()).expect("a journal"));
        assert_eq!(shared.retained_count(), 30);
        drop(shards);
        // As if it had been put there again.
        let own = generation(&settings.folder, 901, "");
        fs::rename(own, generation(&settings.folder, 1, "")).expect("a name");
        if number >= ASIDES_MAX {
            let left = settings.folder.join("00000900");
            assert_eq!(fs::read_to_string(left.join("note")).unwrap(), format!("{number}"));
            fs::remove_dir_all(left).unwrap();
        }
    }
    let mut notes: Vec<String> = asides(&settings.folder)
        .iter()
        .map(|aside| fs::read_to_string(aside.join("note")).expect("it is as it was"))
        .collect();
    notes.sort_by_key(|note| note.parse::<usize>().unwrap());
    assert_eq!(notes, (0..ASIDES_MAX).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn times_of_a_clock_that_was_set_meanwhile_are_right_after_a_restart() {
    let years = 50 * 365 * 86_400 * 1_000_000_000_i64;
    // An hour is left to each session.
    for (ahead, minutes, left) in
        [(0, 30, 12), (0, 90, 0), (-years, 0, 0), (years, 30, 12), (years, 90, 0)]
    {
        let folder = self::left();
        let settings = settings(folder.path());
        // By its clock, the former process ended now; by that of now, 50 years ago; or it is 50 years until then, since the clock of now
        // is not set yet.
        note_clock(&settings.folder.join("00000001"), ahead).expect("it can be noted");
        let (shared, mut shards) = node(3);
        let running = open(&settings, &mut shards, clock::now()).expect("a journal");
        assert_eq!(shared.retained_count(), 30, "{ahead} ns");
        for shard in &mut shards {
            shard.handle_timeout(clock::now() + Duration::from_secs(minutes * 60));
        }
        let sessions: u64 = shards.iter().map(|shard| shard.statistics().sessions).sum();
        assert_eq!(sessions, left, "{ahead} ns, {minutes} min");
        drop((shards, running));
    }
}

#[test]
fn a_note_of_the_clock_that_cannot_be_read_is_set_aside_with_its_journal() {
    let folder = left();
    let settings = settings(folder.path());
    fs::write(settings.folder.join("00000001/clock"), "what?").expect("a file");
    let (_, mut shards) = node(3);
    drop(open(&settings, &mut shards, clock::now()).expect("a journal"));
    assert!(names(&settings).contains(&"00000001.aside".to_owned()), "{:?}", names(&settings));
}

/// Publishes so much to a topic until it is refused, and says how often it was not.
fn fill(shard: &mut Broker, topic: &str, bytes: usize) -> usize {
    let topic = topic.into();
    let payload = vec![7; bytes];
    let accepted = |_: &usize| {
        let message = MessageRef {
            qos: QoS::AtLeastOnce,
            ..MessageRef::new(&topic, Body::Read(&payload), clock::now())
        };
        shard.publish_internal(clock::now(), message)
    };
    (0..1_000_000).take_while(accepted).count()
}

#[test]
fn a_journal_at_its_limit_takes_messages_again_once_they_are_delivered() {
    // Of 16 segments of 64 KiB, 5 are the reserve, 3 are for what must be appended all the same, and one is begun already. In each of the
    // others is one message of 30 kB: room is looked for with 4 KiB to spare, so that a second one finds none.
    for (bytes, least) in [(50, 300_000), (1_000, 300_000), (30_000, 7 * 30_000)] {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = JournalSettings { bytes_max: 0, ..settings(folder.path()) };
        let (shared, mut shards) = node(1);
        let running = open(&settings, &mut shards, clock::now()).expect("a journal");
        session(&shared, &mut shards, "stays");
        publish(&mut shards[0], "kept", b"x", true);
        for round in 0..3 {
            session(&shared, &mut shards, "away");
            let accepted = fill(&mut shards[0], "to/away", bytes);
            assert!(accepted * (bytes + 200) > least, "{bytes}: {accepted} in round {round}");
            // All that waits is taken, which is written down as well.
            shards[0].forget(clock::now(), "away");
            let mut now = clock::now();
            for _ in 0..50 {
                now = now + Duration::from_millis(500);
                shards[0].handle_timeout(now);
            }
            publish(&mut shards[0], "to/stays", b"it goes on", false);
        }
        drop((shards, running));
        let (shared, mut shards) = node(2);
        let running = open(&settings, &mut shards, clock::now()).expect("a journal");
        let reports: Vec<_> = shards.iter().flat_map(|shard| shard.sessions(usize::MAX)).collect();
        assert_eq!((reports.len(), reports[0].queued, shared.retained_count()), (1, 3, 1));
        drop((shards, running));
    }
}

#[test]
fn a_node_that_found_no_room_for_its_journals_begins_them_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let wide = settings(folder.path());
    let (shared, mut shards) = node(1);
    let running = open(&wide, &mut shards, clock::now()).expect("a journal");
    session(&shared, &mut shards, "stays");
    session(&shared, &mut shards, "away");
    for _ in 0..100 {
        publish(&mut shards[0], "to/away", &[7; 50_000], false);
    }
    publish(&mut shards[0], "to/stays", b"before", false);
    drop((shards, running));
    // The limit was lowered: what there is does not fit.
    let narrow = JournalSettings { bytes_max: 0, ..wide };
    let (shared, mut shards) = node(2);
    let running = open(&narrow, &mut shards, clock::now()).expect("it starts");
    let later = running.later.expect("it has no journals yet");
    assert!(shared.has_failing_journal());
    assert_eq!(names(&narrow), ["00000001"]);
    assert_eq!(fill(&mut shards[0], "to/stays", 10), 0, "nothing is promised");
    let away = shared.shard_of("away");
    shards[away].forget(clock::now(), "away");
    exchange(&mut shards);
    let (_stop, stopped) = mpsc::channel();
    let shards = std::sync::Mutex::new(shards);
    let hand = |journals: Vec<Box<dyn Journal>>| {
        let mut shards = shards.lock().expect("no panic");
        let keep = |(shard, journal): (&mut Broker, Box<dyn Journal>)| {
            shard.keep(journal);
            shard.flush_journal()
        };
        shards.iter_mut().zip(journals).map(keep).collect()
    };
    later.run(2, &stopped, hand).expect("there is room now");
    assert_eq!(names(&narrow), ["00000002"]);
    let mut shards = shards.into_inner().expect("no panic");
    for shard in &mut shards {
        shard.handle_timeout(clock::now() + Duration::from_secs(2));
    }
    assert!(!shared.has_failing_journal());
    publish(&mut shards[0], "to/stays", b"after", false);
    exchange(&mut shards);
    drop((shards, running.folder));
    let (_, mut shards) = node(1);
    let running = open(&narrow, &mut shards, clock::now()).expect("a journal");
    let reports: Vec<_> = shards.iter().flat_map(|shard| shard.sessions(usize::MAX)).collect();
    assert_eq!((reports.len(), reports[0].queued), (1, 2));
    drop((shards, running));
}

/// `cargo test --release -p tidegate --lib million -- --ignored --nocapture`
#[test]
#[ignore = "a figure, of a release build"]
fn a_million_retained_messages_and_ten_thousand_sessions_come_back() {
    let took = restart(1_000_000, 10_000, [2, 2]);
    println!("1,000,000 retained messages and 10,000 sessions came back in {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
