//! Traces, from the real program to a real node.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use tidegate_load::client::{Client, Message};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use crate::{
    poll::poll,
    program::{LONGEST, Program, options_of, signal},
};

const ONE: &str = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";

fn tidegate(program: &Program, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    // A configuration of the folder that tests run in is none of theirs.
    command.current_dir(program.path("."));
    for argument in arguments.split(' ') {
        command.arg(match argument {
            "PORT" => program.address("main").port().to_string(),
            argument => argument.to_owned(),
        });
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(program: &Program, arguments: &str) -> Output {
    tidegate(program, arguments).output().expect("the program")
}

fn subscriber(program: &Program, filter: &str) -> Client {
    let mut client = Client::connect(options_of(program.address("main"))).expect("it is let in");
    let filter = SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::DoNotSend,
    };
    client.subscribe(&[filter]).expect("it may");
    client
}

fn receive(client: &mut Client, count: usize) -> Vec<Message> {
    let end = Instant::now() + LONGEST;
    let mut messages = Vec::new();
    while messages.len() < count {
        assert!(Instant::now() < end, "{} of {count} messages came", messages.len());
        messages.extend(client.receive(Duration::from_millis(100)).expect("it is connected"));
    }
    let more = client.receive(Duration::from_millis(100)).expect("it is connected");
    assert_eq!(more, None, "no more than {count}");
    messages
}

/// Payloads of each topic, in the order in which they came.
fn by_topic(messages: Vec<Message>) -> BTreeMap<String, Vec<String>> {
    let mut topics = BTreeMap::<_, Vec<_>>::new();
    for Message { topic, payload, .. } in messages {
        topics.entry(topic).or_default().push(String::from_utf8(payload).expect("text"));
    }
    topics
}

#[test]
fn a_trace_arrives_byte_for_byte_in_order_and_no_faster_than_told() {
    let program = Program::start(ONE);
    let mut client = subscriber(&program, "city/#");
    let (mut text, mut expected) = ("ts,source,\"a \"\"note\"\"\"\r\n".to_owned(), BTreeMap::new());
    for row in 0..60 {
        let source = ["north", "south/1", "mid \u{1f321}"][row % 3];
        let payload =
            format!("{},{source},\"{row}, \"\"quoted\"\"\"", 1_422_748_800_000 + row * 20);
        text += &format!("{payload}\r\n");
        let topic = format!("city/{}/env", source.replace('/', "%2F"));
        expected.entry(topic).or_insert_with(Vec::new).push(payload);
    }
    fs::write(program.path("trace.csv"), &text).expect("a file");
    let begun = Instant::now();
    let arguments = "replay trace.csv --port PORT --topic city/{source}/env --qos 1 --speed 2";
    let output = output(&program, arguments);
    let took = begun.elapsed();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(by_topic(receive(&mut client, 60)), expected);
    // 59 distances of 20 ms, twice as fast.
    assert!(took >= Duration::from_millis(590), "{took:?}");
    let summary = String::from_utf8_lossy(&output.stdout);
    assert!(summary.starts_with("60 messages, "), "{summary}");
    assert!(summary.contains("the latest left "), "{summary}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "trace.csv: CSV with a line of names; times column \"ts\", in ms\n");
    program.stop();
}

#[test]
fn many_devices_play_one_trace_from_places_of_their_own() {
    let program = Program::start(ONE);
    let mut client = subscriber(&program, "fleet/#");
    let rows: Vec<_> = (0..20).map(|row| format!("{}.25,{row}", row * 10)).collect();
    let arguments =
        "replay - --port PORT --topic fleet/{device} --time 1 --devices 3 --speed 1000 --qos 1";
    let mut child = tidegate(&program, arguments).stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("it was asked for");
    input.write_all(rows.join("\n").as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let topics = by_topic(receive(&mut client, 60));
    assert_eq!(topics.keys().collect::<Vec<_>>(), ["fleet/1", "fleet/2", "fleet/3"]);
    let mut firsts = Vec::new();
    for payloads in topics.values() {
        // All of it, from somewhere to the end and on from the beginning.
        let first = rows.iter().position(|row| *row == payloads[0]).expect("a row of the trace");
        assert_eq!(*payloads, [&rows[first..], &rows[..first]].concat());
        firsts.push(first);
    }
    firsts.dedup();
    assert_eq!(firsts.len(), 3, "they are not in step");
    program.stop();
}

#[test]
fn an_interrupt_ends_a_replay_with_its_summary() {
    let program = Program::start(ONE);
    let mut client = subscriber(&program, "t/#");
    fs::write(program.path("trace.csv"), "1,a\n2,b\n").expect("a file");
    for (file, more) in [("trace.csv", " --loop"), ("-", "")] {
        let arguments =
            format!("replay {file} --port PORT --topic t/{{2}} --rate 50 --qos 1{more}");
        let mut command = tidegate(&program, &arguments);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
        if file == "-" {
            // It stays open: rows are played as they come.
            let input = child.stdin.as_mut().expect("it was asked for");
            input.write_all(b"1,a\n2,b\n3,c\n").expect("it reads");
        }
        let mut said = BufReader::new(child.stderr.take().expect("it was asked for"));
        said.read_line(&mut String::new()).expect("the recognised form");
        for _ in 0..3 {
            client.receive(LONGEST).expect("it is connected").expect("a message");
        }
        signal(child.id(), "INT");
        let summary = ended(child);
        assert!(summary.contains(" messages, ") && summary.contains("stopped before"), "{summary}");
        while client.receive(Duration::from_millis(200)).expect("it is connected").is_some() {}
    }
    program.stop();
}

/// Its output until it ended, which it did well.
fn ended(mut child: Child) -> String {
    let ended = poll(LONGEST, || child.try_wait().expect("it is our child"));
    let status = ended.expect("it does not end");
    let mut text = String::new();
    child.stdout.take().expect("it was asked for").read_to_string(&mut text).expect("text");
    assert!(status.success(), "{status}: {text}");
    text
}

#[test]
fn what_cannot_be_replayed_is_told_with_its_exit_status() {
    let program = Program::start(ONE);
    fs::write(program.path("trace.csv"), "time,a\n0,x\nnever,y\n").expect("a file");
    for (arguments, status, expected) in [
        (
            "replay trace.csv --port PORT",
            2,
            "line 3 of trace.csv cannot be played; mend it, or leave such rows out with --on-bad skip",
        ),
        (
            "replay trace.csv --port PORT --on-bad skip --topic t/{b}",
            2,
            "trace.csv has no column \"b\"; there are \"time\", \"a\"",
        ),
        ("replay trace.csv --port PORT --devices 2 --topic t", 2, "put {device} into --topic"),
        ("replay none.csv --port PORT", 7, "none.csv cannot be read"),
        ("replay trace.csv --port 1 --timeout 2", 4, "127.0.0.1:1: no connection"),
        ("replay trace.csv --host mqtts://127.0.0.1", 2, "--cafile"),
    ] {
        let output = output(&program, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{arguments}: {said}");
        assert_eq!(output.status.code(), Some(status), "{arguments}: {said}");
    }
    let output = output(&program, "replay trace.csv --port PORT --on-bad skip");
    assert!(output.status.success(), "{output:?}");
    let summary = String::from_utf8_lossy(&output.stdout);
    assert!(summary.contains("1 row left out, the first: line 3, column \"time\""), "{summary}");
    program.stop();
}
