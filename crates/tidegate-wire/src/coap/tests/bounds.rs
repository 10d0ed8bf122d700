//! The bounds of a server's memory.

use proptest::prelude::*;

use super::*;

use MessageType::{Acknowledgement, Confirmable};

#[test]
fn a_full_server_refuses_newcomers_and_serves_those_it_knows() {
    let mut stage = Stage::with(|config| config.peers_max = 3);
    for number in 0..3 {
        stage.say(peer(number), &post(1, "a", b"1"));
        let publish = stage.publish();
        stage.server.answer(stage.now, publish.request, Answer::Accept);
        stage.sent();
    }
    let replies = stage.say(peer(9), &post(1, "a", b"1"));
    assert_eq!(
        (replies[0].message_type, replies[0].code),
        (Acknowledgement, Code::SERVICE_UNAVAILABLE)
    );
    assert_eq!(replies[0].option(OptionNumber::MAX_AGE), Some(5));
    stage.say(peer(0), &post(2, "a", b"1"));
    stage.publish();
    // A peer not heard of for MAX_TRANSMIT_SPAN makes room; peer 0 still has an open request.
    stage.pass(seconds(45));
    for number in 9..11 {
        stage.say(peer(number), &post(3, "a", b"1"));
        stage.publish();
    }
    assert_eq!(stage.say(peer(12), &post(3, "a", b"1"))[0].code, Code::SERVICE_UNAVAILABLE);
    assert_eq!(stage.server.statistics().peers, 3);
}

#[test]
fn open_requests_have_a_bound_for_each_peer_and_for_all() {
    let mut stage = Stage::with(|config| {
        config.open_per_peer_max = 2;
        config.open_max = 3;
    });
    let codes = |replies: Vec<Said>| replies.into_iter().map(|said| said.code).collect::<Vec<_>>();
    let busy = [Code::SERVICE_UNAVAILABLE];
    assert_eq!(codes(stage.say(PEER, &post(1, "a", b"1"))), []);
    assert_eq!(codes(stage.say(PEER, &post(2, "a", b"1"))), []);
    assert_eq!(codes(stage.say(PEER, &post(3, "a", b"1"))), busy);
    assert_eq!(codes(stage.say(peer(2), &post(1, "a", b"1"))), []);
    assert_eq!(codes(stage.say(peer(3), &post(1, "a", b"1"))), busy);
    let publish = stage.publish();
    stage.server.answer(stage.now, publish.request, Answer::Accept);
    stage.sent();
    assert_eq!(codes(stage.say(peer(3), &post(2, "a", b"1"))), []);
    assert_eq!(stage.server.statistics().busy, 2);
}

#[test]
fn remembered_requests_have_a_bound() {
    let mut stage = Stage::with(|config| config.exchanges_max = 100);
    let mut refused = 0;
    for id in 0..300 {
        let replies = stage.say(PEER, &post(id, "a", b"1"));
        if let Some(Event::Publish(publish)) = stage.server.poll_event() {
            stage.server.answer(stage.now, publish.request, Answer::Accept);
            stage.sent();
        } else {
            assert_eq!(replies[0].code, Code::SERVICE_UNAVAILABLE);
            refused += 1;
        }
        assert!(stage.server.statistics().exchanges <= 100);
        stage.pass(Duration::from_millis(200));
    }
    // 100 in 45 s are taken: in 60 s, 100 and as many as there is room for again.
    assert!((100..=125).contains(&refused), "{refused}");
}

#[test]
fn observations_have_a_bound_for_each_peer_and_for_all() {
    let mut stage = Stage::with(|config| config.observers_per_peer_max = 2);
    for (id, follows) in [(1, true), (2, true), (3, false)] {
        let replies = stage.get(id, "a", Some(0), "1");
        // Beyond the bound it is answered as if it had not asked to follow (RFC 7641, 4.1).
        assert_eq!(replies[0].code, Code::CONTENT);
        assert_eq!(replies[0].option(OptionNumber::OBSERVE).is_some(), follows);
    }
    assert_eq!(stage.server.statistics().observers, 2);
}

#[test]
fn requests_that_are_remembered_take_few_bytes() {
    const COUNT: u32 = 450_000;
    let mut stage = Stage::new();
    assert_eq!(ServerConfig::default().exchanges_max, COUNT as usize);
    let datagrams: Vec<Bytes> = (0..1000).map(|id| post(id, "plant/7", b"21.5")).collect();
    let memory = allocation_counter::measure(|| {
        for number in 0..COUNT {
            let datagram = &datagrams[number as usize % 1000];
            let _ = stage.server.handle(stage.now, peer(number / 1000), datagram);
            let publish = stage.publish();
            stage.server.answer(stage.now, publish.request, Answer::Accept);
            while stage.server.poll_transmit().is_some() {}
        }
    });
    assert_eq!(stage.server.statistics().exchanges, COUNT as usize);
    println!("{} bytes, at most {}", memory.bytes_current, memory.bytes_max);
    // ServerConfig says how many they are.
    assert!((50_000_000..57_000_000).contains(&memory.bytes_current), "{memory:?}");
}

#[test]
fn a_publish_takes_few_allocations() {
    let mut stage = Stage::new();
    let datagrams: Vec<Bytes> = (0..2000).map(|id| post(id, "plant/7/temp", b"21.5")).collect();
    let mut publish = |datagram: &Bytes| {
        let _ = stage.server.handle(stage.now, PEER, datagram);
        let publish = stage.publish();
        stage.server.answer(stage.now, publish.request, Answer::Accept);
        while stage.server.poll_transmit().is_some() {}
    };
    datagrams[..1000].iter().for_each(&mut publish);
    let counts =
        allocation_counter::measure(|| datagrams[1000..1500].iter().for_each(&mut publish));
    let each = counts.count_total as f64 / 500.0;
    println!("{each} allocations for each message that is published");
    // The path, for the event, and the first of the timers; now and then a part of a table.
    assert!(each <= 2.1, "{each}");
}

/// One step of a hostile or an aimless peer.
#[derive(Clone, Debug)]
enum Step {
    Say { peer: u32, datagram: Vec<u8> },
    Answer(u8),
    Notify(usize),
    Pass(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let options = prop::collection::vec(
        prop_oneof![
            4 => Just((11_u16, b"a".to_vec())),
            2 => Just((6, vec![])),
            2 => (0_u8..4, any::<bool>()).prop_map(|(number, more)| (27, vec![number << 4 | u8::from(more) << 3])),
            1 => (0_u8..4).prop_map(|number| (23, vec![number << 4])),
            1 => (any::<u8>(), prop::collection::vec(any::<u8>(), 0..3)).prop_map(|(number, value)| (u16::from(number), value)),
        ],
        0..5,
    );
    let message =
        (0_u8..4, prop_oneof![4 => 0_u8..4, 1 => any::<u8>()], 0_u16..6, options, 0_usize..40);
    let datagram = message.prop_map(|(kind, code, id, mut options, payload)| {
        options.sort();
        let mut list = OptionList::new();
        for (number, value) in options {
            let _ = list.push(OptionNumber(number), &value);
        }
        let [high, low] = id.to_be_bytes();
        let mut out = vec![0x41 | kind << 4, code, high, low, id as u8];
        out.extend_from_slice(list.as_options().as_bytes());
        if payload > 0 {
            out.push(0xff);
            out.extend(vec![7; if payload > 20 { 16 } else { payload }]);
        }
        out
    });
    prop_oneof![
        6 => (0_u32..6, datagram).prop_map(|(peer, datagram)| Step::Say { peer, datagram }),
        3 => any::<u8>().prop_map(Step::Answer),
        2 => (0_usize..3000).prop_map(Step::Notify),
        1 => (0_u64..100_000).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn all_stays_in_bounds_for_any_input(steps in prop::collection::vec(any_step(), 1..120)) {
        let mut stage = Stage::with(|config| {
            config.peers_max = 4;
            config.exchanges_max = 16;
            config.open_max = 8;
            config.open_per_peer_max = 4;
            config.payload_bytes_max = 40;
            config.held_bytes_max = 100;
            config.observers_max = 5;
            config.observers_per_peer_max = 3;
        });
        let mut open = Vec::new();
        let mut followed: i32 = 0;
        let mut bytes = [(0_usize, 0_usize); 6];
        for step in steps {
            match step {
                Step::Say { peer: number, datagram } => {
                    // No peer here ever acknowledges or resets, so that none is where it says.
                    if datagram[0] >> 5 & 1 == 1 {
                        continue;
                    }
                    bytes[number as usize].0 += datagram.len();
                    let _ = stage.server.handle(stage.now, peer(number), &datagram.into());
                }
                Step::Answer(kind) => {
                    if let Some(request) = open.pop() {
                        let answer = match kind % 4 {
                            0 => Answer::Accept,
                            1 => Answer::Refuse,
                            2 => Answer::Content(representation("short")),
                            _ => Answer::Content(representation(&"long".repeat(usize::from(kind)))),
                        };
                        stage.server.answer(stage.now, request, answer);
                    }
                }
                Step::Notify(length) => {
                    let value = representation(&"n".repeat(length));
                    stage.server.notify(stage.now, "a", &value);
                }
                Step::Pass(millis) => {
                    let end = stage.now + Duration::from_millis(millis);
                    stage.now = end;
                    stage.server.handle_timeout(end);
                }
            }
            while let Some(transmit) = stage.server.poll_transmit() {
                Message::decode(transmit.datagram).unwrap();
                let number = (0..6).find(|number| peer(*number) == transmit.peer).unwrap();
                bytes[number as usize].1 += transmit.datagram.len();
            }
            while let Some(event) = stage.server.poll_event() {
                match event {
                    Event::Publish(publish) => {
                        prop_assert!(publish.payload.len() <= 40);
                        open.push(publish.request);
                    }
                    Event::Read(read) => open.push(read.request),
                    Event::Followed { .. } => followed += 1,
                    Event::Unfollowed { .. } => followed -= 1,
                }
                prop_assert!(followed >= 0);
            }
            let held = stage.server.statistics();
            prop_assert!(held.peers <= 4 && held.exchanges <= 16 && held.open <= 8, "{held:?}");
            prop_assert!(held.held_bytes <= 100 && held.observers <= 5, "{held:?}");
            prop_assert!(bytes.iter().all(|(said, told)| *told <= 3 * said), "{bytes:?}");
        }
        // In the end all that waited is gone.
        stage.pass(Duration::from_secs(3 * 24 * 3600));
        while stage.server.poll_event().is_some() {}
        let held = stage.server.statistics();
        prop_assert_eq!((held.open, held.held_bytes), (0, 0));
        prop_assert_eq!(stage.server.poll_timeout(), None);
    }
}

#[test]
fn peers_that_come_and_go_leave_nothing() {
    let mut stage = Stage::with(|config| config.peers_max = 8);
    for number in 0..1000 {
        let datagram =
            encode(Confirmable, Code::GET, 1, b"t", &[(OptionNumber::URI_PATH, b"a")], b"");
        stage.say(peer(number), &datagram);
        let read = stage.read();
        stage.server.answer(stage.now, read.request, Answer::NotFound);
        stage.sent();
        stage.pass(seconds(46));
        assert!(stage.server.statistics().peers <= 8);
    }
}
