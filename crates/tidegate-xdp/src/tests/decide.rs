//! The decisions of a filter on payloads, and the filters that are refused.

use std::net::IpAddr;

use proptest::prelude::*;
use tidegate_message::BinaryNumber;

use super::*;
use crate::{
    CONDITIONS_MAX, Decimal, Encoding, FIELDS_MAX, Field, PAYLOAD_BYTES_MAX, Verdict,
    condition::{Bound, Combine, Condition},
};

#[test]
fn well_formed_payloads_are_judged_by_the_conditions() {
    let fields = "n as u16be at 0; t at 2 length 6 decimals 1";
    for (keep, payload, expected) in [
        ("t > 75.25", b"\0\x07  75.3", Verdict::Keep),
        ("t > 75.25", b"\0\x07  75.2", Verdict::Drop),
        ("t > 75.25", b"\0\x07  75,3", Verdict::Unusual),
        ("t >= 75.2", b"\0\x07  75.2", Verdict::Keep),
        ("t < -5", b"\0\x07  -5.0", Verdict::Drop),
        ("t < -5", b"\0\x07  -5.1", Verdict::Keep),
        ("t <= -5", b"\0\x07  -5.0", Verdict::Keep),
        ("t in -5..5 and n > 6", b"\0\x07   5.0", Verdict::Keep),
        ("t in -5..5 and n > 7", b"\0\x07   5.0", Verdict::Drop),
        ("t in -5..5 or n > 6", b"\0\x07  99.0", Verdict::Keep),
        ("t in -5..5 or n > 7", b"\0\x07  99.0", Verdict::Drop),
        ("n > 7", b"\0\x07  9x.0", Verdict::Unusual), // also where no condition asks for it
    ] {
        assert_eq!(filter(fields, keep).decide(payload), expected, "{keep} of {payload:?}");
    }
    let filter = filter(fields, "n > 7");
    for payload in [&b""[..], b"\0\x07  99.", b"\0\x07  99.00"] {
        assert_eq!(filter.decide(payload), Verdict::Unusual, "{payload:?}");
    }
}

#[test]
fn numbers_of_64_bits_are_compared_as_what_they_are() {
    for (kind, keep, value, expected) in [
        ("u64le", "x > 9223372036854775807", u64::MAX, Verdict::Keep),
        ("u64le", "x > 9223372036854775807", i64::MAX as u64, Verdict::Drop),
        ("u64le", "x <= 9223372036854775807", u64::MAX, Verdict::Drop),
        ("i64le", "x < 0", u64::MAX, Verdict::Keep),
        ("i64le", "x >= -9223372036854775807", 1 << 63, Verdict::Drop),
        ("i64le decimals 18", "x > 1", 1_000_000_000_000_000_001, Verdict::Keep),
        ("i64le decimals 18", "x > 1", 1_000_000_000_000_000_000, Verdict::Drop),
    ] {
        let filter = filter(&format!("x as {kind} at 0"), keep);
        assert_eq!(filter.decide(&value.to_le_bytes()), expected, "{kind}: {keep} of {value}");
    }
}

#[test]
fn filters_that_make_no_sense_are_refused_with_the_way_out() {
    for (fields, keep, part) in [
        ("", "x > 1", "from 1 to 16 fields, not 0"),
        ("x as u8 at 0", "", "from 1 to 32 conditions, not 0"),
        ("x as u8 at 0; x as u8 at 1", "x > 1", "two fields \"x\""),
        ("x as u8 at 0", "y > 1", "the field \"y\", which does not exist"),
        ("x as u32be at 1469", "x > 1", "of 1473 bytes does not fit"),
        ("x as u8 at 65535", "x > 1", "of 65536 bytes does not fit"),
        ("x as u8 at 0", "x > 255", "\"x > 255\" never holds"),
        ("x as u8 at 0", "x < 0", "never holds"),
        ("x as u8 at 0", "x in 7..6", "never holds"),
        ("x as u8 at 0 decimals 1", "x > 25.5", "never holds"),
        ("x as u8 at 0", "x in 0.1..0.9", "never holds"),
        ("x as u8 at 0", "x >= 0", "\"x >= 0\" always holds"),
        ("x as i8 at 0", "x in -128..127", "always holds"),
        ("x at 0 length 4 decimals 1", "x < 100", "always holds"),
        ("x at 0 length 3 decimals 1", "x < 0", "never holds"),
    ] {
        let error = refused(&spec(fields, keep)).to_string();
        assert!(error.contains(part), "{fields}, {keep}: {error}");
    }
    let shorter = FilterSpec { payload_bytes: Some(3), ..spec("x as u32be at 0", "x > 1") };
    assert_eq!(
        refused(&shorter),
        FilterError::Outside { field: "x".into(), end: 4, payload_bytes: 3 }
    );
    let longer = FilterSpec { payload_bytes: Some(PAYLOAD_BYTES_MAX), ..shorter };
    assert_eq!(longer.compile().unwrap().payload_bytes(), PAYLOAD_BYTES_MAX);
    let encoding = Encoding::Binary(BinaryNumber::read("u8").unwrap());
    let field = |index| Field { name: format!("x{index}"), at: 0, encoding, decimals: 0 };
    let many = FilterSpec { fields: (0..=FIELDS_MAX).map(field).collect(), ..longer.clone() };
    assert_eq!(refused(&many), FilterError::Fields { count: 17 });
    let condition = longer.conditions[0].clone();
    let many = FilterSpec { conditions: vec![condition; CONDITIONS_MAX + 1], ..longer.clone() };
    assert_eq!(refused(&many), FilterError::Conditions { count: 33 });
    let wrong = Field { decimals: 19, ..field(0) };
    let wrong = FilterSpec { fields: vec![wrong], ..longer };
    assert!(matches!(refused(&wrong), FilterError::Field(_)));
}

#[test]
fn a_destination_is_what_a_socket_receives() {
    use Reach::{Any, None, One};
    let v6 = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
    for (address, v4, v6) in [
        ("0.0.0.0", Any, None),
        ("192.0.2.7", One([192, 0, 2, 7]), None),
        ("::", Any, Any),
        ("2001:db8::1", None, One(v6)),
        ("::ffff:192.0.2.7", One([192, 0, 2, 7]), None),
    ] {
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(Destination::of(address), Destination { v4, v6 }, "{address}");
    }
}

proptest! {
    /// A decimal and a bound, compared as decimals, exactly as written.
    #[test]
    fn a_text_is_compared_as_the_decimal_that_it_is(
        digits in -99_999_i64..1_000_000,
        bound in -1_000_000_i64..2_000_000,
        bound_decimals in 0_u8..5,
        decimals in 0_u8..5,
    ) {
        // 6 digits and a point; a sign takes the place of one.
        let length = 6 + u8::from(decimals > 0);
        let value = Decimal::new(digits, decimals).unwrap();
        let text = format!("{:>1$}", value.to_string(), usize::from(length));
        prop_assume!(text.len() == usize::from(length));
        let field = Field { name: "x".into(), at: 0, encoding: Encoding::Ascii { length }, decimals };
        let exactly = Decimal::new(bound, bound_decimals).unwrap();
        // Both as hundred-thousandths.
        let unit = |decimals: u8| 10_i64.pow(5 - u32::from(decimals));
        let (left, right) = (digits * unit(decimals), bound * unit(bound_decimals));
        for (bound, holds) in [
            (Bound::Above(exactly), left > right),
            (Bound::AtLeast(exactly), left >= right),
            (Bound::Below(exactly), left < right),
            (Bound::AtMost(exactly), left <= right),
            (Bound::Within(exactly, exactly), left == right),
        ] {
            let condition = Condition { field: "x".into(), bound };
            let spec = FilterSpec {
                fields: vec![field.clone()],
                combine: Combine::All,
                conditions: vec![condition],
                ..spec("", "")
            };
            match spec.compile() {
                Ok(filter) => {
                    let expected = if holds { Verdict::Keep } else { Verdict::Drop };
                    prop_assert_eq!(filter.decide(text.as_bytes()), expected, "{} {:?}", text, bound);
                }
                Err(FilterError::Always { .. }) => prop_assert!(holds),
                Err(FilterError::Never { .. }) => prop_assert!(!holds),
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }

    #[test]
    fn no_payload_makes_it_panic(payload in prop::collection::vec(any::<u8>(), 0..40)) {
        let filter = filter("a at 0 length 5 decimals 2; b as i64be at 3; c at 20 length 19 decimals 17", "a > 0 or b > 0");
        let verdict = filter.decide(&payload);
        prop_assert!(payload.len() == 39 || verdict == Verdict::Unusual);
    }
}
