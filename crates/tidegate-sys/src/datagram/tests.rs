//! Each method receives, over loopback.

use std::{collections::BTreeSet, net::Ipv4Addr};

use super::*;

const WAIT: Duration = Duration::from_secs(10);

/// A receiver and a socket that sends to it; none, with a word about it, where this machine lacks the method.
fn pair(options: ReceiverOptions) -> Option<(Receiver, UdpSocket)> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    sender.connect(address).unwrap();
    match Receiver::new(socket, options) {
        Ok(receiver) => Some((receiver, sender)),
        Err(error) if options.method == Method::Uring => {
            eprintln!("skipped: no io_uring with multishot receive here: {error}");
            None
        }
        Err(error) => panic!("{options:?}: {error}"),
    }
}

fn options(method: Method, joins: bool) -> ReceiverOptions {
    ReceiverOptions { method, bytes_max: 2000, joins, names_sources: true }
}

/// Every method, joining or not where it can, and telling who sent what or not.
fn all() -> Vec<ReceiverOptions> {
    let mut all = Vec::new();
    for method in [Method::Uring, Method::Batch, Method::Plain] {
        for joins in [false, true] {
            let named = options(method, joins);
            all.extend([named, ReceiverOptions { names_sources: false, ..named }]);
        }
    }
    all
}

/// Receives until `count` have come, as what each holds and whether it was cut.
fn receive(receiver: &mut Receiver, count: usize) -> Vec<(Vec<u8>, bool)> {
    let mut all = Vec::new();
    while all.len() < count {
        let got = receiver.receive(WAIT, |datagram| {
            all.push((datagram.bytes.to_vec(), datagram.is_cut));
            true
        });
        assert_ne!(got.unwrap(), 0, "nothing came any more after {}", all.len());
    }
    all
}

#[test]
fn datagrams_come_whole_and_in_order() {
    for options in all() {
        let Some((mut receiver, sender)) = pair(options) else { continue };
        let sent: Vec<Vec<u8>> =
            (0..90_usize).map(|at| vec![at as u8; [0, 1, 64, 1472, 2000][at % 5]]).collect();
        for bytes in &sent {
            sender.send(bytes).unwrap();
        }
        let got = receive(&mut receiver, sent.len());
        let expected: Vec<_> = sent.into_iter().map(|bytes| (bytes, false)).collect();
        assert_eq!(got, expected, "{options:?}");
        assert_eq!(receiver.dropped().unwrap(), 0);
    }
}

#[test]
fn the_source_is_who_sent_it() {
    for options in all().into_iter().filter(|options| options.names_sources) {
        let Some((mut receiver, sender)) = pair(options) else { continue };
        sender.send(b"x").unwrap();
        let mut source = None;
        receiver.receive(WAIT, |datagram| source.replace(datagram.source).is_none()).unwrap();
        assert_eq!(source, Some(Some(sender.local_addr().unwrap())), "{options:?}");
    }
}

#[test]
fn senders_may_be_asked_for_later_and_nothing_is_lost() {
    for options in all() {
        let Some((mut receiver, sender)) = pair(options) else { continue };
        sender.send(b"before").unwrap();
        assert_eq!(receive(&mut receiver, 1), [(b"before".to_vec(), false)]);
        for number in 0..5 {
            sender.send(&[number]).unwrap();
        }
        let mut between = Vec::new();
        let mut receiver = receiver.naming_sources(|datagram| between.push(datagram.bytes[0]));
        for number in 5..10 {
            sender.send(&[number]).unwrap();
        }
        while between.len() < 10 {
            let take = |datagram: Datagram<'_>| {
                assert_eq!(datagram.source, Some(sender.local_addr().unwrap()), "{options:?}");
                between.push(datagram.bytes[0]);
                true
            };
            assert_ne!(receiver.receive(WAIT, take).unwrap(), 0);
        }
        assert_eq!(between, (0..10).collect::<Vec<_>>(), "{options:?}");
    }
}

#[test]
fn datagrams_too_long_are_cut_and_say_so() {
    for options in all() {
        let Some((mut receiver, sender)) = pair(options) else { continue };
        for length in [2001, 40_000] {
            sender.send(&vec![7; length]).unwrap();
            sender.send(&[8; 2000]).unwrap();
            let got = receive(&mut receiver, 2);
            assert_eq!(got, [(vec![7; 2000], true), (vec![8; 2000], false)], "{options:?}");
        }
    }
}

#[test]
fn joined_datagrams_are_taken_apart() {
    for options in all() {
        let Some((mut receiver, sender)) = pair(options) else { continue };
        set_segment(sender.as_fd(), 100).unwrap();
        let bytes: Vec<u8> = (0..1950_u32).map(|at| at as u8).collect();
        sender.send(&bytes).unwrap();
        let got = receive(&mut receiver, 20);
        let expected: Vec<_> = bytes.chunks(100).map(|part| (part.to_vec(), false)).collect();
        assert_eq!(got, expected, "{options:?}");
    }
}

#[test]
fn more_than_all_buffers_hold_comes_through() {
    for options in all() {
        let Some((mut receiver, sender)) = pair(options) else { continue };
        set_receive_buffer(receiver.socket().as_fd(), 8 << 20).unwrap();
        let mut seen = BTreeSet::new();
        for round in 0..6_u32 {
            for at in 0..40_u32 {
                for part in 0..10_u32 {
                    sender.send(&(round * 400 + at * 10 + part).to_be_bytes()).unwrap();
                }
            }
            for (bytes, _) in receive(&mut receiver, 400) {
                seen.insert(u32::from_be_bytes(bytes.try_into().unwrap()));
            }
        }
        assert_eq!(
            seen.into_iter().collect::<Vec<_>>(),
            (0..2400).collect::<Vec<_>>(),
            "{options:?}"
        );
    }
}

#[test]
fn while_any_wait_none_is_never_the_answer() {
    for options in all() {
        let Some((mut receiver, sender)) = pair(options) else { continue };
        set_receive_buffer(receiver.socket().as_fd(), 16 << 20).unwrap();
        // More than all buffers hold, and taken a part at a time.
        const SENT: usize = 3000;
        for number in 0..SENT as u32 {
            sender.send(&number.to_be_bytes()).unwrap();
        }
        let mut got = Vec::new();
        while got.len() < SENT {
            let mut left = 256;
            let count = receiver.receive(WAIT, |datagram| {
                got.push(u32::from_be_bytes(datagram.bytes.try_into().unwrap()));
                left -= 1;
                left > 0
            });
            assert_ne!(count.unwrap(), 0, "{options:?}: {} of {SENT}", got.len());
        }
        assert_eq!(got, (0..SENT as u32).collect::<Vec<_>>(), "{options:?}");
    }
}

#[test]
fn datagrams_without_room_are_counted() {
    let Some((mut receiver, sender)) = pair(options(Method::Batch, false)) else { return };
    set_receive_buffer(receiver.socket().as_fd(), 4096).unwrap();
    const SENT: usize = 500;
    for _ in 0..SENT {
        sender.send(&[0; 500]).unwrap();
    }
    let mut got = 0;
    while receiver.receive(Duration::ZERO, |_| true).map(|count| got += count).is_ok() {
        if got + receiver.dropped().unwrap() as usize == SENT {
            break;
        }
    }
    assert!(got < SENT, "{got}");
}

#[test]
fn a_reader_that_stops_has_the_rest_later() {
    let Some((mut receiver, sender)) = pair(options(Method::Uring, false)) else { return };
    for byte in 0..10 {
        sender.send(&[byte]).unwrap();
    }
    let mut got = Vec::new();
    while got.len() < 10 {
        receiver
            .receive(WAIT, |datagram| {
                got.push(datagram.bytes[0]);
                false
            })
            .unwrap();
    }
    assert_eq!(got, (0..10).collect::<Vec<u8>>());
}

#[test]
fn nothing_to_receive_is_not_waited_for_longer_than_asked() {
    for options in all() {
        let Some((mut receiver, _sender)) = pair(options) else { continue };
        assert_eq!(receiver.receive(Duration::from_millis(2), |_| true).unwrap(), 0);
    }
}

#[test]
fn methods_are_known_by_their_words() {
    for method in [Method::Auto, Method::Uring, Method::Batch, Method::Plain] {
        assert!(Method::WORDS.contains(&(method.word(), method)), "{method:?}");
    }
}

#[test]
fn sizes_that_no_datagram_has_are_refused() {
    for bytes_max in [0, DATAGRAM_BYTES_MAX + 1] {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let options =
            ReceiverOptions { method: Method::Plain, bytes_max, joins: false, names_sources: true };
        let error = Receiver::new(socket, options).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
