use std::{fmt::Write as _, time::Duration};

use bytes::BytesMut;
use proptest::prelude::*;
use tidegate_message::{
    AdaptationProfile, Bounds, Code, ControllerKind, Delivery, Demand, FrameRate, FrameSize,
    Instant, WhenInfeasible,
};

use super::*;

/// One of each kind, every field with a value of its own.
fn samples() -> Vec<Record> {
    let at = Instant::from_nanos(1_700_000_000_123_456_789);
    let transfer = TransferId(0x0102_0304_0506_0708);
    let demand = Demand {
        bounds: Bounds::new(Duration::from_millis(100), 0.95).unwrap(),
        controller: ControllerKind::MezPi,
        delivery: Delivery::Every,
        when_infeasible: WhenInfeasible::Pause,
        profile: AdaptationProfile::Mez,
        frame_rate: FrameRate::new(2.5).ok(),
    };
    let camera = CameraAnnounce {
        name: "north-gate.2".parse().unwrap(),
        size: Some(FrameSize { width: 1920, height: 1080 }),
        frames_per_second: 12.5,
        source: "video file street.mp4".to_owned(),
    };
    let hello = Hello {
        minor: MINOR,
        node: NodeId([0xab; 32]),
        epoch: 3,
        boot: BootId([0xcd; 16]),
        role: Role::Camera,
        features: Features(0x5),
        camera: Some(camera.clone()),
    };
    let header = FrameHeader {
        transfer,
        at,
        bytes: 123_456,
        size: FrameSize { width: 960, height: 540 },
        original_bytes: 456_789,
        row: 17,
        setting: "scale 1/2 quality 60".to_owned(),
        accuracy: 0.975,
        accuracy_kept: true,
        replayed: true,
        encode_started: Duration::from_micros(150),
        encode_ended: Duration::from_micros(6_200),
        sent: Duration::from_micros(6_300),
        source_size: Some(FrameSize { width: 1920, height: 1080 }),
    };
    let ack = Ack {
        transfer,
        frame: at,
        received: 1000,
        total: 2000,
        first_at: at,
        last_at: at + Duration::from_millis(9),
        complete: false,
        reset_seen: true,
    };
    vec![
        hello.clone().into(),
        Hello { role: Role::Edge, camera: None, ..hello }.into(),
        Welcome {
            minor: MINOR,
            node: NodeId([1; 32]),
            epoch: 9,
            boot: BootId([2; 16]),
            features: Features(0),
            now: at,
        }
        .into(),
        Refused::new(Code::CAMERA_TAKEN, "another node holds north-gate.2").into(),
        Ping { sequence: 1, sent: at }.into(),
        Pong { sequence: 1, sent: at, received: at, replied: at }.into(),
        StartTransfer {
            transfer,
            demand,
            from: Some(at),
            to: None,
            resume_after: Some(at),
            hints: TransferHints {
                detector: "person".to_owned(),
                detector_input: "640x360".to_owned(),
                scene: "complex".to_owned(),
                table: String::new(),
            },
        }
        .into(),
        UpdateTransfer { transfer, demand }.into(),
        StopTransfer { transfer }.into(),
        TransferStarted { transfer, first: at }.into(),
        TransferEnded { transfer, reason: EndReason::SourceEnded }.into(),
        Share {
            bytes_per_second: 2_500_000,
            shift: Duration::from_millis(40),
            valid_for: Duration::from_secs(5),
        }
        .into(),
        ack.into(),
        CameraReport {
            transfer,
            at,
            capacity_bytes_per_second: Some(2_500_000),
            text: "no setting keeps 95 % within 100 ms".to_owned(),
            what: Reported::Infeasible {
                latency_at_accuracy: Some(Duration::from_millis(143)),
                accuracy_at_latency: Some(0.9),
                frames_per_second: Some(12.5),
            },
        }
        .into(),
        CameraReport {
            transfer,
            at,
            capacity_bytes_per_second: None,
            text: String::new(),
            what: Reported::Other(900),
        }
        .into(),
        Unchanged { transfer, at }.into(),
        header.into(),
        FetchOriginal { request: 5, at }.into(),
        Original { request: 5, at, outcome: OriginalOutcome::Found { bytes: 456_789 } }.into(),
        Original {
            request: 6,
            at,
            outcome: OriginalOutcome::Missing { oldest: Some(at), newest: None },
        }
        .into(),
        CameraInfoRequest { request: 7 }.into(),
        CameraInfo {
            request: 7,
            camera,
            oldest: Some(at),
            newest: Some(at),
            frames: 2100,
            bytes: 1 << 29,
            bytes_max: 1 << 30,
        }
        .into(),
        TransferRefused::new(transfer, Code::LIMIT_REACHED, "64 transfers are served").into(),
        UplinkOpen {
            name: "plant".to_owned(),
            life: 0x1122_3344_5566_7788,
            topics_max: 1 << 20,
            state_bytes_max: 256 << 20,
            names_messages: true,
            node: "edge-0123456789ab".to_owned(),
        }
        .into(),
        UplinkReady {
            resume: Some(Resume { epoch: 3, sequence: 77 }),
            next: Some(123_456),
            critical_next: None,
            state_bytes_max: 256 << 20,
        }
        .into(),
        SensorBatch { first: 123_456, epoch: 3, sequence: 77 }.into(),
        CriticalPart { number: 9, more: true, bytes: b"alarm".as_slice().into() }.into(),
        UplinkAck { next: 123_400, critical_next: 9, batches: 78 }.into(),
        MemberDigest {
            hash: 0x0807_0605_0403_0201,
            lists: true,
            more: true,
            entries: [SharedKind::Member, SharedKind::Cameras, SharedKind::Revocations]
                .map(|kind| DigestEntry {
                    key: SharedKey { of: NodeId([0x5a; 32]), kind },
                    version: 17,
                })
                .to_vec(),
        }
        .into(),
        SharedPart {
            key: SharedKey { of: NodeId([0xab; 32]), kind: SharedKind::Member },
            version: 17,
            offset: 12_288,
            more: true,
            bytes: b"sealed".as_slice().into(),
        }
        .into(),
        Interests {
            generation: 3,
            is_first: true,
            more: true,
            added: vec!["rooms/+/celsius".to_owned(), "alarms/#".to_owned()],
            removed: vec!["#".to_owned()],
        }
        .into(),
        InterestsHeld { generation: 3 }.into(),
        ClientsHere { process: 7, now: Instant::from_nanos(0x0102_0304_0506_0708), count: 258 }
            .into(),
        ClientClaims {
            claims: [
                ("gate", OwnerKind::Anonymous, ""),
                ("panel", OwnerKind::User, "ada"),
                ("probe", OwnerKind::Certificate, "device7"),
                ("relay", OwnerKind::Node, "edge1"),
            ]
            .map(|(client, kind, name)| ClientClaim {
                client: client.to_owned(),
                owner: ClientOwner { kind, name: name.to_owned() },
                began: Instant::from_nanos(-2),
                is_clean: kind == OwnerKind::User,
                is_connected: kind != OwnerKind::User,
            })
            .to_vec(),
            verdicts: [(true, false, false), (false, true, false), (false, false, true)]
                .map(|(is_clean, is_disputed, is_met)| ClientVerdict {
                    client: "gate".to_owned(),
                    began: Instant::from_nanos(3),
                    owner: ClientOwner { kind: OwnerKind::User, name: "ada".to_owned() },
                    is_clean,
                    is_disputed,
                    is_met,
                })
                .to_vec(),
            ended: vec!["panel".to_owned()],
        }
        .into(),
    ]
}

/// A member's record, every field with a value of its own.
fn member() -> MemberRecord {
    let absence = |byte, kind| Absence { node: NodeId([byte; 32]), number: 6, kind };
    MemberRecord {
        node: NodeId([0xab; 32]),
        version: 17,
        name: "edge1".to_owned(),
        start: 0x1122_3344_5566_7788,
        number: 4,
        has_left: true,
        minor: 5,
        algorithm: 1,
        addresses: vec!["edge1.example:7443".to_owned(), "192.0.2.7:7443".to_owned()],
        api_addresses: vec!["edge1.example:7444".to_owned()],
        position: "52.3731, -4.8922".parse().ok(),
        is_mobile: true,
        zone: "harbour".to_owned(),
        weight: 250,
        written: 1_764_374_400,
        absences: vec![
            absence(1, AbsenceKind::Doubted),
            absence(2, AbsenceKind::Lost),
            absence(3, AbsenceKind::LostByOnly),
            absence(4, AbsenceKind::Forgotten),
        ],
        via: "core".to_owned(),
    }
}

/// Sealed bytes have one encoding, too: `testdata/shared-2.txt`.
#[test]
fn shared_records_round_trip_and_have_one_encoding() {
    let (member, cameras) = (
        member(),
        MemberCameras {
            node: NodeId([0xab; 32]),
            version: 2,
            cameras: vec!["gate".parse().unwrap(), "north-gate.2".parse().unwrap()],
        },
    );
    let (member_bytes, cameras_bytes) = (member.to_bytes(), cameras.to_bytes());
    assert_eq!(MemberRecord::of_bytes(&member_bytes), Ok(member.clone()));
    assert_eq!(MemberCameras::of_bytes(&cameras_bytes), Ok(cameras));
    let sealed = Sealed {
        certificate: b"certificate".as_slice().into(),
        signature: b"signature".as_slice().into(),
        bytes: b"bytes".as_slice().into(),
    };
    let sealed_bytes = sealed.to_bytes();
    assert_eq!(Sealed::of_bytes(&sealed_bytes), Ok(sealed));
    let mut longer = member_bytes.to_vec();
    longer.extend_from_slice(b"fields of a later version");
    assert_eq!(MemberRecord::of_bytes(&longer), Ok(member));
    for length in 0..member_bytes.len() {
        assert!(MemberRecord::of_bytes(&member_bytes[..length]).is_err(), "{length}");
    }
    let mut lines = String::new();
    for (name, bytes) in
        [("Member", member_bytes), ("Cameras", cameras_bytes), ("Sealed", sealed_bytes)]
    {
        write!(lines, "{name} ").unwrap();
        bytes.iter().for_each(|byte| write!(lines, "{byte:02x}").unwrap());
        lines.push('\n');
    }
    assert_eq!(lines, include_str!("../testdata/shared-2.txt"));
}

#[test]
fn member_of_the_first_form_names_no_relay() {
    let golden = include_str!("../testdata/shared-1.txt");
    let line = golden.lines().find_map(|line| line.strip_prefix("Member "));
    let digits = line.expect("it is there").as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).expect("digits"), 16);
    let bytes: Vec<u8> = digits.map(|pair| byte(pair).expect("digits")).collect();
    let expected = MemberRecord { via: String::new(), ..member() };
    assert_eq!(MemberRecord::of_bytes(&bytes), Ok(expected.clone()));
    let longer = [&bytes[..], b"fields of a later version"].concat();
    assert_eq!(MemberRecord::of_bytes(&longer), Ok(expected));
}

#[test]
fn impossible_members_are_refused_by_name() {
    let bytes = member().to_bytes();
    let via = bytes.len() - (2 + "core".len());
    // Behind form, node, version, name, start, number, flags, versions, and addresses.
    let position = via - (4 * 41 + 2) - 8 - 2 - (2 + "harbour".len()) - 1 - 8;
    let altered = |at: usize, with: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[at..at + with.len()].copy_from_slice(with);
        MemberRecord::of_bytes(&bytes).unwrap_err().to_string()
    };
    for (at, with, expected) in [
        (position, &900_000_001_i32.to_le_bytes()[..], "position is invalid: 900000001, "),
        (position + 4, &1_800_000_000_i32.to_le_bytes()[..], "position is invalid: "),
        (via - 1, &[9][..], "kind is invalid: 9 names no choice"),
        (via, &[0xff, 0xff][..], "via"),
        (via - (4 * 41 + 2), &[0xff, 0xff][..], "absences of 65535 exceeds the limit"),
        (0, &[0][..], "form is invalid: 0"),
    ] {
        let error = altered(at, with);
        assert!(error.starts_with(expected), "{error:?}, expected {expected:?}");
    }
    // The pole has one form.
    let pole = [900_000_000_i32.to_le_bytes(), 5_i32.to_le_bytes()].concat();
    assert!(altered(position, &pole).starts_with("position is invalid"));
}

#[test]
fn a_part_of_interests_that_says_there_is_room_fits() {
    let mut interests =
        Interests { generation: 1, is_first: true, more: true, added: vec![], removed: vec![] };
    let mut count = 0;
    loop {
        let filter = format!("{count:0width$}", width = 1 + count * 37 % 200);
        if !interests.has_room(&filter) {
            break;
        }
        if count % 2 == 0 { &mut interests.added } else { &mut interests.removed }.push(filter);
        count += 1;
    }
    assert!(count > 100);
    let record = Record::from(interests);
    let bytes = record.to_bytes();
    assert!(bytes.len() <= limits::RECORD_BYTES_MAX);
    assert_eq!(Record::decode(&bytes), Ok(Some(record)));
}

#[test]
fn entries_of_clients_that_find_room_in_a_record_fit() {
    for width in [3, 20, 1024] {
        let (mut record, mut room) = (ClientClaims::default(), ClientRoom::default());
        let text = |count: usize| format!("{count:0width$}");
        let owner = || ClientOwner { kind: OwnerKind::User, name: text(1) };
        let began = Instant::EPOCH;
        for count in 0.. {
            if !room.take(2 * width) {
                break;
            }
            let client = text(count);
            match count % 3 {
                0 => record.claims.push(ClientClaim {
                    client,
                    owner: owner(),
                    began,
                    is_clean: true,
                    is_connected: true,
                }),
                1 => record.verdicts.push(ClientVerdict {
                    client,
                    began,
                    owner: owner(),
                    is_clean: true,
                    is_disputed: true,
                    is_met: true,
                }),
                _ => record.ended.push(client),
            }
        }
        assert!(record.claims.len() > 1, "{width}");
        let record = Record::from(record);
        let bytes = record.to_bytes();
        assert!(bytes.len() <= limits::RECORD_BYTES_MAX);
        assert_eq!(Record::decode(&bytes), Ok(Some(record)));
    }
}

#[test]
fn every_kind_round_trips() {
    let kinds: std::collections::BTreeSet<u8> = samples().iter().map(Record::kind).collect();
    assert_eq!(kinds.len(), 31, "a kind has no sample");
    for record in samples() {
        assert_eq!(Record::decode(&record.to_bytes()), Ok(Some(record)));
    }
}

/// The encoding of version 1.5 is fixed: `testdata/records-1.5.txt`, one line each, name and bytes.
#[test]
fn encodings_are_those_of_version_1_5() {
    let mut lines = String::new();
    for record in samples() {
        write!(lines, "{} ", record.name()).unwrap();
        record.to_bytes().iter().for_each(|byte| write!(lines, "{byte:02x}").unwrap());
        lines.push('\n');
    }
    let golden = include_str!("../testdata/records-1.5.txt");
    for (ours, golden) in lines.lines().zip(golden.lines()) {
        assert_eq!(ours, golden);
    }
    assert_eq!(lines, golden);
}

/// Records of a node of an earlier version mean the same.
#[test]
fn encodings_of_earlier_versions_are_read() {
    for (minor, (golden, count)) in (0..).zip([
        (include_str!("../testdata/records-1.0.txt"), 23),
        (include_str!("../testdata/records-1.1.txt"), 28),
        (include_str!("../testdata/records-1.2.txt"), 28),
        (include_str!("../testdata/records-1.3.txt"), 28),
        (include_str!("../testdata/records-1.4.txt"), 28),
    ]) {
        assert_eq!(golden.lines().count(), count);
        for (line, mut record) in golden.lines().zip(samples()) {
            let (_, digits) = line.split_once(' ').expect("a name and bytes");
            let digits = digits.as_bytes().chunks(2);
            let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            let bytes: Vec<u8> = digits.map(byte).collect();
            match &mut record {
                Record::Hello(Hello { minor: theirs, .. })
                | Record::Welcome(Welcome { minor: theirs, .. }) => *theirs = minor,
                // Since version 1.2.
                Record::UplinkOpen(open) if minor < 2 => open.node.clear(),
                Record::StartTransfer(start) if minor < 2 => start.demand.frame_rate = None,
                Record::UpdateTransfer(update) if minor < 2 => update.demand.frame_rate = None,
                // Since version 1.4.
                Record::FrameHeader(header) if minor < 4 => header.source_size = None,
                // The numbers of this one have names that no node gave them; `report` has those of nodes.
                Record::CameraReport(report)
                    if minor < 3 && report.capacity_bytes_per_second.is_some() =>
                {
                    report.capacity_bytes_per_second = None;
                    report.what = Reported::Infeasible {
                        latency_at_accuracy: None,
                        accuracy_at_latency: None,
                        frames_per_second: None,
                    };
                }
                _ => {}
            }
            assert_eq!(Record::decode(&bytes), Ok(Some(record)));
        }
    }
}

#[test]
fn every_cut_is_named_and_harmless() {
    for record in samples() {
        let bytes = record.to_bytes();
        for length in 0..bytes.len() {
            let cut = Record::decode(&bytes[..length]);
            if let (Record::UplinkOpen(whole), Ok(Some(Record::UplinkOpen(cut)))) = (&record, &cut)
            {
                // It ends where it did before version 1.2.
                assert_eq!((length, &*cut.node), (bytes.len() - 2 - whole.node.len(), ""));
                continue;
            }
            if let Ok(Some(
                Record::StartTransfer(StartTransfer { demand, .. })
                | Record::UpdateTransfer(UpdateTransfer { demand, .. }),
            )) = &cut
            {
                assert_eq!((length, demand.frame_rate), (bytes.len() - 9, None));
                continue;
            }
            if let Ok(Some(Record::FrameHeader(header))) = &cut {
                assert_eq!((length, header.source_size), (bytes.len() - 5, None));
                continue;
            }
            assert!(
                matches!(cut, Err(DecodeError::Short { .. })),
                "{record:?} at {length}: {cut:?}"
            );
        }
    }
}

#[test]
fn later_versions_are_met_half_way() {
    let hello = samples()[0].to_bytes();
    let changed = |at: usize, byte: u8| {
        let mut bytes = hello.to_vec();
        bytes[at] = byte;
        Record::decode(&bytes)
    };
    // kind 0, magic 1 to 4, major 5, minor 6, features 7 to 14
    assert_eq!(changed(1, b'X'), Err(DecodeError::Magic { magic: *b"XGLK" }));
    assert_eq!(changed(5, 2), Err(DecodeError::Major { theirs: 2, ours: 1 }));
    assert!(changed(6, 9).is_ok(), "a later minor version is accepted");
    assert!(changed(7, 0xff).is_ok(), "optional features are ignored");
    assert_eq!(changed(11, 1), Err(DecodeError::Features { bits: 1 << 32 }));
    let mut longer = hello.to_vec();
    longer.extend_from_slice(b"fields of version 1.1");
    assert_eq!(Record::decode(&longer), Ok(Some(samples()[0].clone())));
    assert_eq!(Record::decode(&[OPTIONAL_KIND, 1, 2, 3]), Ok(None));
    assert_eq!(Record::decode(&[111]), Err(DecodeError::Kind { kind: 111 }));
}

#[test]
fn values_out_of_bounds_are_refused_by_name() {
    let altered = |index: usize, at: usize, bytes: &[u8]| {
        let mut encoded = samples()[index].to_bytes().to_vec();
        encoded[at..at + bytes.len()].copy_from_slice(bytes);
        Record::decode(&encoded).unwrap_err().to_string()
    };
    for (index, at, bytes, expected) in [
        (7, 9, &0_u64.to_le_bytes()[..], "bounds is invalid: latency bound 0 ms"),
        (7, 17, &1.5_f64.to_le_bytes()[..], "bounds is invalid: accuracy bound 1.5"),
        (7, 17, &f64::NAN.to_le_bytes()[..], "accuracy is invalid: NaN"),
        (7, 25, &[9][..], "controller is invalid: 9 names no choice"),
        (16, 17, &u64::MAX.to_le_bytes()[..], "frame of 18446744073709551615 exceeds"),
        (16, 25, &[0, 0][..], "size is invalid: 0x540"),
        (12, 49, &[2][..], "complete is invalid: 2 is not a truth value"),
    ] {
        let error = altered(index, at, bytes);
        assert!(error.starts_with(expected), "{error:?}, expected {expected:?}");
    }
    let long = vec![1; limits::RECORD_BYTES_MAX + 1];
    assert!(matches!(Record::decode(&long), Err(DecodeError::TooLong { field: "record", .. })));
}

#[test]
fn a_rate_that_is_not_known_yet_is_announced_as_zero() {
    let announce = |frames_per_second| CameraAnnounce {
        name: "cam1".parse().unwrap(),
        size: None,
        frames_per_second,
        source: String::new(),
    };
    let info = |frames_per_second| {
        let camera = announce(frames_per_second);
        let (oldest, newest) = (None, None);
        let info =
            CameraInfo { request: 1, camera, oldest, newest, frames: 0, bytes: 0, bytes_max: 0 };
        Record::decode(&Record::from(info).to_bytes())
    };
    assert!(matches!(info(0.0), Ok(Some(Record::CameraInfo(_)))));
    for bad in [-1.0, 1000.5] {
        assert!(info(bad).is_err(), "{bad}");
    }
}

#[test]
fn texts_too_long_are_cut_when_encoded() {
    let long = "ä".repeat(limits::TEXT_BYTES_MAX);
    let report = CameraReport {
        transfer: TransferId(1),
        at: Instant::EPOCH,
        capacity_bytes_per_second: Some(u64::MAX),
        text: long,
        what: Reported::Infeasible {
            latency_at_accuracy: Some(Duration::MAX),
            accuracy_at_latency: Some(f64::NAN),
            frames_per_second: Some(f64::INFINITY),
        },
    };
    for minor in [MINOR, 0] {
        let bytes = Record::from(report.clone()).to_bytes_for(minor);
        assert!(bytes.len() <= limits::RECORD_BYTES_MAX);
        let Ok(Some(Record::CameraReport(cut))) = Record::decode(&bytes) else {
            panic!("it decodes")
        };
        assert_eq!(cut.text.len(), limits::TEXT_BYTES_MAX);
        let Reported::Infeasible { accuracy_at_latency, frames_per_second, .. } = cut.what else {
            panic!("{cut:?}")
        };
        assert_eq!((accuracy_at_latency, frames_per_second), (None, None), "they are no numbers");
    }
}

proptest! {
    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Record::decode(&bytes);
    }

    /// A record decoded from damaged bytes encodes to one that decodes to the same.
    #[test]
    fn damaged_records_decode_to_sound_ones(
        index in 0..samples().len(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = samples()[index].to_bytes().to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(Some(record)) = Record::decode(&bytes) {
            let mut again = BytesMut::new();
            record.encode(&mut again);
            prop_assert!(again.len() <= limits::RECORD_BYTES_MAX);
            prop_assert_eq!(Record::decode(&again), Ok(Some(record)));
        }
    }
}
