//! The program in the kernel, which judges packets as [`Filter::decide_packet`] does.

use proptest::prelude::*;
use tidegate_sys::bpf::{Counters, Program};

use super::{packets::Packet, *};
use crate::{COUNTERS, Encoding, Verdict};

/// A filter in the kernel.
struct Loaded {
    filter: Filter,
    program: Program,
    counters: Counters,
    /// The expected counts.
    expected: [u64; COUNTERS as usize],
    judged: u64,
}

/// None where this machine loads no programs; a word about it then.
fn load(filter: Filter) -> Option<Loaded> {
    let counters = match Counters::new(COUNTERS) {
        Ok(counters) => counters,
        Err(error) => {
            println!("skipped: no programs at packets here: {error}");
            return None;
        }
    };
    let instructions = filter.instructions(counters.descriptor());
    let program = match Program::load("tidegate_xdp", &instructions) {
        Ok(program) => program,
        Err(error)
            if error.source.kind() == std::io::ErrorKind::PermissionDenied
                && error.log.is_empty() =>
        {
            println!("skipped: no programs at packets here: {error}");
            return None;
        }
        Err(error) => panic!("{filter:?}: {error}: {}", error.source),
    };
    Some(Loaded { filter, program, counters, expected: [0; 3], judged: 0 })
}

impl Loaded {
    /// Has both judge a packet.
    fn check(&mut self, packet: &[u8]) -> Option<Verdict> {
        let expected = self.filter.decide_packet(packet);
        // The kernel takes no shorter ones, and neither does the wire.
        if packet.len() >= 14 {
            let action = self.program.judge(packet, 1).expect("it runs").action;
            let expected_action = expected.map_or(2, Verdict::action);
            assert_eq!(
                action, expected_action,
                "{expected:?} of {packet:02x?} by {:?}",
                self.filter
            );
            if let Some(verdict) = expected {
                self.expected[verdict.counter()] += 1;
            }
            self.judged += 1;
        }
        expected
    }

    /// Whether it has counted what it said.
    fn check_counters(&self) {
        let counted = self.counters.sums().expect("they are read");
        assert_eq!(counted, self.expected, "{:?}", self.filter);
    }
}

const FIELDS: &str = "n as u16be at 0; t at 2 length 6 decimals 1; m as i32le at 8";
const KEEP: &str = "t > 75.2 or m < -1000";
const KEPT: &[u8] = b"\x01\x02  75.3\0\0\0\0";
const DROPPED: &[u8] = b"\x01\x02 -75.3\0\0\0\0";
const UNUSUAL: &[u8] = b"\x01\x02 -7x.3\0\0\0\0";

#[test]
fn packets_are_judged_by_what_they_carry() {
    let Some(mut loaded) = load(filter(FIELDS, KEEP)) else { return };
    for to in ["192.0.2.7", "2001:db8::7"] {
        for (payload, verdict) in
            [(KEPT, Verdict::Keep), (DROPPED, Verdict::Drop), (UNUSUAL, Verdict::Unusual)]
        {
            for vlans in [vec![], vec![0x2007]] {
                let packet = Packet { vlans, ..Packet::new(to, payload) };
                assert_eq!(loaded.check(&packet.bytes()), Some(verdict), "{packet:?}");
                let filled = Packet { trailer: 18, ..packet.clone() };
                assert_eq!(loaded.check(&filled.bytes()), Some(verdict), "{filled:?}");
            }
        }
    }
    loaded.check_counters();
    assert_eq!(loaded.expected, [8, 8, 8]);
}

#[test]
fn unusual_packets_pass() {
    let Some(mut loaded) = load(filter(FIELDS, KEEP)) else { return };
    for to in ["192.0.2.7", "2001:db8::7"] {
        let plain = Packet::new(to, DROPPED);
        let is_v4 = plain.to.is_ipv4();
        assert_eq!(loaded.check(&plain.bytes()), Some(Verdict::Drop));
        let options = if is_v4 { vec![0x0101_0101] } else { vec![0x1100_0104, 0] };
        for (packet, expected) in [
            (Packet { port: PORT + 1, ..plain.clone() }, None),
            (Packet { protocol: 6, ..plain.clone() }, None),
            (Packet { options, protocol: if is_v4 { 17 } else { 0 }, ..plain.clone() }, None),
            (Packet { vlans: vec![1, 2], ..plain.clone() }, None),
            (Packet { payload: DROPPED[1..].to_vec(), ..plain.clone() }, Some(Verdict::Unusual)),
            (
                Packet { payload: [DROPPED, b"\n"].concat(), ..plain.clone() },
                Some(Verdict::Unusual),
            ),
            (Packet { payload: vec![], ..plain.clone() }, Some(Verdict::Unusual)),
        ] {
            assert_eq!(loaded.check(&packet.bytes()), expected, "{packet:?}");
        }
        for (fragment, expected) in [
            (0, Some(Verdict::Drop)),
            (0x4000, Some(Verdict::Drop)),
            (0x2000, None), // more of them follow
            (0x0001, None),
            (0x1fff, None),
        ] {
            let expected = if is_v4 { expected } else { Some(Verdict::Drop) };
            assert_eq!(loaded.check(&Packet { fragment, ..plain.clone() }.bytes()), expected);
        }
        let whole = plain.bytes();
        for length in 0..whole.len() {
            assert_ne!(loaded.check(&whole[..length]), Some(Verdict::Drop), "{length}");
        }
        // Each bit of it the other way.
        for bit in 0..8 * whole.len() {
            let mut packet = whole.clone();
            packet[bit / 8] ^= 1 << (bit % 8);
            loaded.check(&packet);
        }
    }
    loaded.check_counters();
}

#[test]
fn packets_for_another_address_pass() {
    for address in ["192.0.2.7", "2001:db8::7", "::ffff:192.0.2.7", "0.0.0.0", "::"] {
        let destination = Destination::of(address.parse().unwrap());
        let filter = FilterSpec { destination, ..spec(FIELDS, KEEP) }.compile().unwrap();
        let Some(mut loaded) = load(filter) else { return };
        for to in
            ["192.0.2.7", "192.0.2.8", "193.0.2.7", "2001:db8::7", "2001:db8::8", "3001:db8::7"]
        {
            let is_mine = match address {
                "0.0.0.0" => to.contains('.'),
                "::" => true,
                _ => address.ends_with(to),
            };
            let expected = is_mine.then_some(Verdict::Drop);
            let packet = Packet::new(to, DROPPED).bytes();
            assert_eq!(loaded.check(&packet), expected, "{to} at {address}");
        }
        loaded.check_counters();
    }
}

/// The text of the largest filter that there is, by the verifier's effort: every way that a sign can stand.
fn largest(between: &str) -> Filter {
    let fields: Vec<String> =
        (0..16).map(|index| format!("x{index} at {} length 19 decimals 9", 19 * index)).collect();
    let conditions: Vec<String> =
        (0..32).map(|index| format!("x{} in -{index}0.5..5000", index % 16)).collect();
    filter(&fields.join(";"), &conditions.join(between))
}

#[test]
fn the_largest_filters_are_loaded() {
    for between in [" and ", " or "] {
        let Some(mut loaded) = load(largest(between)) else { return };
        for text in
            ["     -10.000000000", "       7.000000000", "+      7.000000000", "    5000.000000001"]
        {
            let payload = format!("{text:>19}").repeat(16);
            loaded.check(&Packet::new("192.0.2.7", payload.as_bytes()).bytes());
        }
        assert_eq!(loaded.judged, 4);
        loaded.check_counters();
    }
    let small =
        [("u8", "0..1"), ("i8", "-7..7"), ("i64be", "-9223372036854775806..9223372036854775806")];
    for (kind, bounds) in small {
        let conditions: Vec<String> = (0..32).map(|_| format!("x in {bounds}")).collect();
        let Some(mut loaded) =
            load(filter(&format!("x as {kind} at 1464"), &conditions.join(" or ")))
        else {
            return;
        };
        let payload = vec![0xff; usize::from(loaded.filter.payload_bytes())];
        loaded.check(&Packet::new("2001:db8::1", &payload).bytes());
        loaded.check_counters();
    }
}

/// A field and a condition on it, in words.
fn any_field() -> impl Strategy<Value = (String, String, usize)> {
    let ascii = (1_u8..=18, 0_u8..=17).prop_filter_map(
        "there is a digit before the point",
        |(digits, decimals)| {
            let length = digits + u8::from(decimals > 0);
            (decimals < digits)
                .then(|| (format!("length {length} decimals {decimals}"), usize::from(length)))
        },
    );
    let binary = (
        prop::sample::select(vec!["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"]),
        prop::sample::select(vec!["le", "be"]),
        0_u8..=18,
    );
    let binary = binary.prop_map(|(kind, order, decimals)| {
        let bytes: usize = kind[1..].parse::<usize>().unwrap() / 8;
        let order = if bytes == 1 { "" } else { order };
        (format!("as {kind}{order} decimals {decimals}"), bytes)
    });
    let bound = prop_oneof![
        (-20_i64..20).prop_map(|number| number.to_string()),
        (any::<i64>(), 0_u32..63).prop_map(|(number, bits)| (number >> bits).to_string()),
        (any::<i32>(), 1_usize..9).prop_map(|(number, decimals)| {
            let text = format!("{:0>1$}", i64::from(number).abs(), decimals + 1);
            let (whole, rest) = text.split_at(text.len() - decimals);
            format!("{}{whole}.{rest}", if number < 0 { "-" } else { "" })
        }),
    ];
    let condition = (prop::sample::select(vec![">", ">=", "<", "<="]), bound)
        .prop_map(|(operator, bound)| format!("{operator} {bound}"));
    (prop_oneof![ascii, binary], condition)
        .prop_map(|((field, bytes), condition)| (field, condition, bytes))
}

fn any_filter() -> impl Strategy<Value = Filter> {
    let parts = (prop::collection::vec((any_field(), 0_usize..3), 1..6), any::<bool>(), 0_u16..4);
    parts.prop_filter_map("it makes sense", |(parts, is_any, behind)| {
        let (mut at, mut fields, mut conditions) = (0, Vec::new(), Vec::new());
        for (index, ((field, condition, bytes), gap)) in parts.into_iter().enumerate() {
            fields.push(format!("x{index} at {} {field}", at + gap));
            conditions.push(format!("x{index} {condition}"));
            at += gap + bytes;
        }
        let fields = fields.join(";");
        // Conditions that always or never hold are left out.
        conditions.retain(|condition| spec(&fields, condition).compile().is_ok());
        let spec = spec(&fields, &conditions.join(if is_any { " or " } else { " and " }));
        FilterSpec { payload_bytes: Some(at as u16 + behind), ..spec }.compile().ok()
    })
}

/// A value of each field, most of them as they should be and many near the bounds.
fn payload_of(filter: &Filter, mut next: impl FnMut(u64) -> u64) -> Vec<u8> {
    let mut payload: Vec<u8> = (0..filter.payload_bytes()).map(|_| next(256) as u8).collect();
    for (index, field) in filter.fields.iter().enumerate() {
        let (least, most) = field.domain();
        let bounds = filter.ranges.iter().filter(|range| range.field == index);
        let bound = bounds.flat_map(|range| [range.min, range.max]).flatten().next();
        let value = match (next(4), bound) {
            (0 | 1, Some(bound)) => (bound - 1 + i128::from(next(3))).clamp(least, most),
            (2, _) => [least, most, 0][next(3) as usize].clamp(least, most),
            _ => least + i128::from(next(u64::MAX)) % (most - least + 1),
        };
        let at = usize::from(field.at);
        let bytes = usize::from(field.encoding.bytes());
        let place = &mut payload[at..at + bytes];
        match field.encoding {
            Encoding::Binary(binary) => {
                let word = (value as u64).to_le_bytes();
                place.copy_from_slice(&word[..bytes]);
                if binary.is_big_endian {
                    place.reverse();
                }
            }
            Encoding::Ascii { .. } => {
                let decimals = usize::from(field.decimals);
                let digits = format!("{:0>1$}", value.unsigned_abs(), decimals + 1);
                let (whole, rest) = digits.split_at(digits.len() - decimals);
                let sign = if value < 0 { "-" } else { ["", "", "+"][next(3) as usize] };
                let point = if decimals > 0 { "." } else { "" };
                let text = format!("{sign}{whole}{point}{rest}");
                let text = if text.len() > bytes { &text[1..] } else { &text };
                place.copy_from_slice(format!("{text:>bytes$}").as_bytes());
                if next(12) == 0 {
                    place[next(bytes as u64) as usize] = b" +-.09/:x\0\xb9"[next(11) as usize];
                }
            }
        }
    }
    payload
}

/// Any filter, and packets that it is made for, changed in many ways.
#[test]
fn the_kernel_and_the_reference_agree() {
    if load(filter(FIELDS, KEEP)).is_none() {
        return;
    }
    proptest!(ProptestConfig::with_cases(64), |(filter in any_filter(), seed in any::<u64>())| {
        let mut loaded = load(filter).expect("one was loaded before");
        let mut random = seed | 1;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random.rotate_left(31) % below
        };
        for turn in 0..256 {
            let payload = payload_of(&loaded.filter, &mut next);
            let mut packet = Packet::new(["192.0.2.7", "2001:db8::7"][turn % 2], &payload);
            packet.trailer = next(3) as usize * 9;
            if next(4) == 0 {
                packet.vlans.push(next(4096) as u16);
            }
            let mut bytes = packet.bytes();
            loaded.check(&bytes);
            match next(4) {
                0 => bytes.truncate(next(bytes.len() as u64) as usize),
                1 => {
                    let at = next(bytes.len() as u64) as usize;
                    bytes[at] = next(256) as u8;
                }
                _ => continue,
            }
            loaded.check(&bytes);
        }
        loaded.check_counters();
    });
}
