//! Files that nodes leave on the disk, as the doctor sees them; files that are none; the end of a command,
//! whatever hangs; a system clock that is set; and a disk that is full.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::{Client, ClientError, Options, Outgoing};
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter};

use super::{
    poll::poll,
    program::{LONGEST, Program, SmallDisk, options_of, signal},
};

/// Every command ends within this of the first SIGTERM.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

const FLOW: &str = r##"
[flow.f]
topics = ["t/#"]
key = { field = "id" }
forward = "all"
parse = { format = "csv", fields = ["id:text"] }

[[flow.f.step]]
kernel = "count"
into = "n"

[[flow.f.step]]
kernel = "notify"
topic = "out/{field:id}"
payload = "{field:n}"
"##;

fn lasting(program: &Program, name: &str) -> Client {
    let options = Options {
        client_id: name.to_owned(),
        clean_start: false,
        session_expiry: Some(3600),
        username: Some("u".to_owned()),
        password: Some(b"word".to_vec()),
        ..options_of(program.address("main"))
    };
    Client::connect(options).expect("it is let in")
}

fn filter(filter: &str) -> SubscribeFilter {
    SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::DoNotSend,
    }
}

/// The doctor finds no problem, and tells no one to remove anything.
fn assert_sound(program: &Program, when: &str) {
    let config = program.path("tidegate.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["--config".as_ref(), config.as_os_str(), "doctor".as_ref()]);
    let output = command.output().expect("the doctor");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{when}: {text}");
    assert!(!text.contains("remove"), "{when}: {text}");
}

#[test]
fn the_doctor_finds_nothing_wrong_with_what_nodes_make() {
    // The last one's queues are so small that what waits is on the disk too.
    for (at_rest, durability, spill) in [
        ("clear", "page", ""),
        ("sealed", "disk", "overflow = \"spill\"\nqueue_bytes_max = \"64KiB\"\n"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_owned();
        let path = |name: &str| root.join(name);
        pki::init(&path("data/pki"), &InitRequest::default()).expect("certificates");
        fs::write(path("flows.toml"), FLOW).expect("a file");
        let hash = tidegate_identity::auth::password::hash(b"word").expect("a hash");
        fs::write(path("users"), format!("u:{hash}\n")).expect("a file");
        tidegate_log::KeyFile::create(&path("node.key")).expect("a key");
        let key = match at_rest {
            "sealed" => format!("key_file = {:?}\n", path("node.key")),
            _ => String::new(),
        };
        let settings = format!(
            "[log]\nat_rest = \"{at_rest}\"\n{key}[flow.f]\nfile = {:?}\n\
             [mqtt]\nshards = 2\ndurability = \"{durability}\"\npassword_file = {:?}\n{spill}\
             [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nallow_anonymous = false\n",
            path("flows.toml"),
            path("users"),
        );
        let case = |when: &str| format!("{at_rest}, {durability}: {when}");
        let mut program = Program::start_in(folder, &settings);
        assert_sound(&program, &case("at first"));
        for is_killed in [true, false] {
            let mut away = lasting(&program, "away");
            away.subscribe(&[filter("t/#")]).expect("it is granted");
            away.disconnect().expect("it leaves");
            let mut publisher = lasting(&program, "publisher");
            let payload = [b'7'; 2_000];
            for number in 0..200 {
                let topic = format!("t/{number}");
                let message = Outgoing {
                    topic: &topic,
                    payload: &payload,
                    qos: QoS::AtLeastOnce,
                    ..Outgoing::default()
                };
                let kept = Outgoing { payload: b"1", retain: true, ..message };
                for message in [message, kept] {
                    let reason = publisher.publish(&message).expect("it is answered");
                    assert!(!reason.is_failure(), "{reason:?}");
                }
            }
            assert_sound(&program, &case("of a node that runs"));
            let folder = if is_killed { program.kill() } else { program.stop_and_keep() };
            program = Program::start_in(folder, &settings);
            assert_sound(&program, &case("after a start"));
            // It was not the doctor who let something go.
            let mut away = lasting(&program, "away");
            assert!(away.connack().session_present, "{}", case("the session is gone"));
            for number in 0..400 {
                let got = away.receive(LONGEST).expect("it is connected");
                assert!(got.is_some(), "{}", case(&format!("message {number}")));
            }
            away.disconnect().expect("it leaves");
        }
        program.end();
        assert_sound(&program, &case("after a stop"));
    }
}

fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo");
    assert!(made.success());
}

/// The end of a process within that time, and how long it took; none if it still runs.
fn wait(child: &mut Child, most: Duration) -> Option<Duration> {
    let began = Instant::now();
    poll(most, || child.try_wait().expect("it is our child")).map(|_| began.elapsed())
}

/// The standard error of a process that has ended.
fn said(child: Child) -> String {
    let output = child.wait_with_output().expect("it is our child");
    assert!(!output.status.success(), "{}", output.status);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_by_name_and_never_waited_for() {
    // The file below the folder of the configuration, and what has a node read it.
    for (name, more) in [
        ("data/pki/edge.pem", ""),
        ("data/pki/edge.key", ""),
        ("data/pki/ca.pem", ""),
        ("data/pki/crl.pem", ""),
        ("users", "[mqtt]\npassword_file = \"users\"\n"),
        ("rules", "[mqtt]\nacl_file = \"rules\"\n"),
        ("roles", "[auth]\nroles_file = \"roles\"\n"),
        ("flows", "[flow.f]\nfile = \"flows\"\n"),
        (
            "certificate",
            "[mqtt.listener.m]\nprotocol = \"tls\"\nlisten = \"127.0.0.1:0\"\ncertificate = \"certificate\"\nkey = \"certificate\"\n",
        ),
        ("tidegate.toml", ""),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        pki::init(&data.join("pki"), &InitRequest::default()).expect("certificates");
        let path = folder.path().join(name);
        let more = more.replace(&format!("= \"{name}\""), &format!("= {path:?}"));
        let config = format!(
            "[node]\nname = \"edge\"\ndata_dir = {data:?}\napi_listen = \"127.0.0.1:0\"\nhealth_listen = \"127.0.0.1:0\"\n\
             [link]\nlisten = \"127.0.0.1:0\"\n{more}"
        );
        fs::write(folder.path().join("tidegate.toml"), config).expect("a configuration");
        if path.exists() {
            fs::remove_file(&path).expect("it is there");
        }
        make_pipe(&path);
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["--config".as_ref(), folder.path().join("tidegate.toml").as_os_str()])
            .arg("node")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program");
        let ended = wait(&mut child, LONGEST);
        if ended.is_none() {
            child.kill().expect("it runs");
        }
        let text = said(child);
        assert!(ended.is_some(), "{name}: it does not end: {text}");
        let file = path.file_name().expect("a name").to_string_lossy();
        assert!(text.contains(&*file) && text.contains("pipe"), "{name}: {text}");
    }
}

#[test]
fn a_pipe_in_a_folder_of_pictures_is_left_out_by_name_and_never_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    make_pipe(&folder.path().join("1.jpg"));
    let clip = format!("folder:{}", folder.path().display());
    let output = folder.path().join("table").display().to_string();
    let text = ended_while_it_hangs(&[
        "characterize",
        "--clip",
        &clip,
        "--detector",
        "command",
        "--detector-command",
        "sleep 60",
        "--output",
        &output,
    ]);
    assert!(text.contains("1.jpg") && text.contains("pipe"), "{text}");
    // It ends because it is asked to, and not because it hangs.
    assert!(!text.contains("it hung at this step"), "{text}");
}

/// Has a command run, ends it by SIGTERM while it waits for what never comes, and gives what it said.
fn ended_while_it_hangs(arguments: &[&str]) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let _input = child.stdin.take().expect("it was asked for");
    assert!(wait(&mut child, Duration::from_secs(1)).is_none(), "{arguments:?}: {}", said(child));
    signal(child.id(), "TERM");
    let took = wait(&mut child, LONGEST);
    if took.is_none() {
        child.kill().expect("it runs");
    }
    let text = said(child);
    assert!(took.is_some_and(|took| took <= STOPS_WITHIN), "{arguments:?}: {took:?}: {text}");
    text
}

#[test]
fn a_command_that_hangs_ends_all_the_same_and_says_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("flows.toml");
    fs::write(&file, FLOW).expect("a file");
    let file = file.display().to_string();
    // On the thread that runs the command, a read that never ends.
    let text = ended_while_it_hangs(&["flow", "run", &file, "--input", "-", "--topic", "t/a"]);
    assert!(text.contains("it hung at this step"), "{text}");
    // A detector that says nothing is not waited for.
    let output = folder.path().join("table").display().to_string();
    ended_while_it_hangs(&[
        "characterize",
        "--clip",
        "scene:street?fps=5",
        "--detector",
        "command",
        "--detector-command",
        "sleep 60",
        "--output",
        &output,
    ]);
}

/// Variables by which a program sees the system clock off by what stands in a file, its monotonic clock aside; none where libfaketime
/// is not installed.
pub(crate) fn wall_clock_of(file: &Path) -> Option<[(&'static str, String); 4]> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let mut libraries = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    let library = libraries.find(|library| library.exists())?;
    Some([
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ])
}

#[test]
fn what_is_written_outside_follows_a_system_clock_that_is_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    pki::init(&path("data/pki"), &InitRequest::default()).expect("certificates");
    let (file, clock) = (path("flows.toml"), path("clock"));
    fs::write(&file, FLOW.replace("{field:n}", "{now}")).expect("a file");
    // Before the first file there is.
    fs::write(&clock, "+0").expect("a file");
    let Some(variables) = wall_clock_of(&clock) else {
        return println!("skipped: libfaketime is not installed");
    };
    let settings = format!(
        "[flow.f]\nfile = {file:?}\n[mqtt]\nshards = 1\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
    );
    let program = Program::start_with(folder, &settings, &variables);
    let mut subscriber = lasting(&program, "subscriber");
    subscriber.subscribe(&[filter("out/#")]).expect("it is granted");
    let mut publisher = lasting(&program, "publisher");
    // Milliseconds by the test's own clock.
    let real = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        i64::try_from(since.expect("after 1970").as_millis()).expect("a time")
    };
    for (step, seconds) in [("+0", 0), ("+1800", 1_800), ("-1800", -1_800), ("+0", 0)] {
        fs::write(&clock, step).expect("a file");
        let message =
            Outgoing { topic: "t/a", payload: b"k", qos: QoS::AtLeastOnce, ..Outgoing::default() };
        publisher.publish(&message).expect("it is answered");
        let got = subscriber.receive(LONGEST).expect("it is connected").expect("a message");
        let now: i64 = String::from_utf8_lossy(&got.payload).parse().expect("a time");
        let off = now - seconds * 1_000 - real();
        assert!(off.abs() < 60_000, "{step}: off by {off} ms");
    }
    program.stop();
}

/// Whether the process has noted next to its journals that the clock was set.
fn has_noted_its_clock(program: &Program) -> bool {
    let journals = fs::read_dir(program.path("data/log/mqtt")).expect("it is there");
    journals.flatten().any(|entry| entry.path().join("clock").exists())
}

#[test]
fn sessions_outlive_restarts_by_clocks_that_are_set_only_later() {
    let folder = tempfile::tempdir().expect("a folder");
    pki::init(&folder.path().join("data/pki"), &InitRequest::default()).expect("certificates");
    let clock = folder.path().join("clock");
    fs::write(&clock, "+0").expect("a file");
    let Some(variables) = wall_clock_of(&clock) else {
        return println!("skipped: libfaketime is not installed");
    };
    let settings = "[mqtt]\nshards = 2\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
    let mut folder = Some(folder);
    // Where the system clock is at the start of each process, and at its end: it is behind, or was set.
    let (behind, set) = ("+0", "+864000");
    let processes = [(behind, set), (set, set), (behind, set), (set, set)];
    for (count, (start, end)) in processes.iter().enumerate() {
        let set_to = |to: &str| fs::write(&clock, to).expect("a file");
        set_to(start);
        let program = Program::start_with(folder.take().expect("put back"), settings, &variables);
        let away = lasting(&program, "away");
        assert_eq!(away.connack().session_present, count > 0, "process {count}");
        away.disconnect().expect("it leaves");
        set_to(end);
        let noted = poll(LONGEST, || (start == end || has_noted_its_clock(&program)).then_some(()));
        assert!(noted.is_some(), "process {count} does not see that its clock was set");
        folder = Some(program.kill());
    }
}

/// Publishes to `t/…` until it is refused for want of room, and says how many messages were not. Room that another shard has comes soon,
/// if not at once.
fn fill(publisher: &mut Client, payload: &[u8], when: &str) -> usize {
    for accepted in 0..2_100 {
        let topic = format!("t/{}", accepted % 7);
        match publisher.publish(&to_keep(&topic, payload)) {
            Ok(_) => {}
            Err(ClientError::Publish { reason: ReasonCode::QUOTA_EXCEEDED, .. })
                if accepted > 300 =>
            {
                return accepted;
            }
            Err(ClientError::Publish { reason: ReasonCode::QUOTA_EXCEEDED, .. }) => {
                let later = poll(LONGEST, || publisher.publish(&to_keep(&topic, payload)).ok());
                assert!(later.is_some(), "{when}: {accepted} are few");
            }
            Err(error) => panic!("{when}: {error}"),
        }
    }
    panic!("{when}: more than the disk has")
}

fn to_keep<'a>(topic: &'a str, payload: &'a [u8]) -> Outgoing<'a> {
    Outgoing { topic, payload, qos: QoS::AtLeastOnce, ..Outgoing::default() }
}

/// The session takes all that waits for it.
fn take(program: &Program, count: usize, when: &str) {
    let mut away = lasting(program, "away");
    assert!(away.connack().session_present, "{when}: the session is gone");
    for number in 0..count {
        let got = away.receive(LONGEST).expect("it is connected");
        assert!(got.is_some(), "{when}: message {number} of {count}");
    }
    away.disconnect().expect("it leaves");
}

/// A message is taken, soon if not at once.
fn takes_again(program: &Program, payload: &[u8], when: &str) {
    let mut publisher = lasting(program, "publisher");
    let taken = poll(LONGEST, || publisher.publish(&to_keep("t/again", payload)).ok());
    assert!(taken.is_some(), "{when}: nothing is taken any more");
    take(program, 1, when);
}

#[test]
fn a_disk_that_messages_filled_takes_others_once_they_are_delivered() {
    for (shards, durability) in [(2, "page"), (1, "disk")] {
        let folder = tempfile::tempdir().expect("a folder");
        pki::init(&folder.path().join("data/pki"), &InitRequest::default()).expect("certificates");
        let Some(disk) = SmallDisk::start(&folder, 40) else { return };
        let settings = format!(
            "[log]\nmqtt_bytes = \"256MiB\"\n[mqtt]\nshards = {shards}\ndurability = \"{durability}\"\nqueue_bytes_max = \"256MiB\"\n\
             [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
        );
        let case = |text: &str| format!("{shards} shards, {durability}: {text}");
        let payload = vec![7; 20_000];
        let mut program = Program::start_on(&disk, folder, &settings);
        let mut away = lasting(&program, "away");
        away.subscribe(&[filter("t/#")]).expect("it is granted");
        away.disconnect().expect("it leaves");
        for (round, restart) in ["never", "when empty", "when full", "never"].iter().enumerate() {
            let when = case(&format!("round {round}"));
            let count = fill(&mut lasting(&program, "publisher"), &payload, &when);
            if *restart == "when full" {
                // It has no room for journals of the next process in addition to those of the last.
                program = Program::start_on(&disk, program.kill(), &settings);
            }
            take(&program, count, &when);
            if *restart == "when empty" {
                program = Program::start_on(&disk, program.stop_and_keep(), &settings);
            }
            takes_again(&program, &payload, &when);
        }
        program.stop();
    }
}
