//! A filter as a program for the kernel.
//!
//! ```text
//!  headers ──▶ fields in ASCII: digits to a number on the stack ──▶ conditions ──▶ keep │ drop │ unusual: count, and return
//!     └─ not for this port: return, uncounted
//! ```
//!
//! It reads what [`Filter::decide_packet`] reads, in the same order. All jumps go forward, so that the verifier sees that it ends.
//!
//! Always true: R6 is the packet's begin and R7 its end, R8 goes from header to header to the payload, R1 to R3 are for what is at hand.

use tidegate_message::{BinaryNumber, NumberKind};

use crate::{
    assembler::{
        Assembler, Label, Operation, R0, R1, R2, R3, R6, R7, R8, R10, Register, When, Width,
    },
    condition::Combine,
    field::{Encoding, Field},
    filter::{FIELDS_MAX, Filter, Range, Reach, Verdict},
    packet::{
        ETHERNET_BYTES, IPV4_BYTES, IPV4_FRAGMENT, IPV4_PLAIN, IPV6_BYTES, PROTOCOL_UDP, TYPE_IPV4,
        TYPE_IPV6, TYPE_VLAN, UDP_BYTES, VLAN_BYTES,
    },
};

/// How many counters a program has: one for each [`Verdict`], at [`Verdict::counter`].
pub const COUNTERS: u32 = 3;

/// Return values of a program (`enum xdp_action`).
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
/// The helper that looks a counter up.
const MAP_LOOKUP_ELEM: i32 = 1;
/// Bytes of the stack that programs have.
const STACK_BYTES: usize = 512;
const _: () = assert!(8 * FIELDS_MAX <= STACK_BYTES);

impl Verdict {
    /// Each of them.
    pub const ALL: [Self; COUNTERS as usize] = [Self::Keep, Self::Drop, Self::Unusual];

    /// The place of its counter.
    pub fn counter(self) -> usize {
        match self {
            Self::Keep => 0,
            Self::Drop => 1,
            Self::Unusual => 2,
        }
    }

    /// The program's return value for it.
    pub fn action(self) -> u32 {
        match self {
            Self::Drop => XDP_DROP as u32,
            Self::Keep | Self::Unusual => XDP_PASS as u32,
        }
    }
}

impl Filter {
    /// The program, eight bytes an instruction; it counts in the map with this descriptor: [`COUNTERS`] numbers of 64 bits, which each
    /// processor has for itself.
    pub fn instructions(&self, counters: i32) -> Vec<u64> {
        let mut code = Assembler::default();
        let ends = Ends {
            other: code.label(),
            unusual: code.label(),
            kept: code.label(),
            dropped: code.label(),
        };
        self.headers(&mut code, &ends);
        for (index, field) in self.fields.iter().enumerate() {
            if let Encoding::Ascii { length } = field.encoding {
                ascii(&mut code, field, length, index, ends.unusual);
            }
        }
        self.conditions(&mut code, &ends);
        finish(&mut code, &ends, counters);
        code.finish()
    }

    /// Continues with R8 at the payload, which is there as a whole.
    fn headers(&self, code: &mut Assembler, ends: &Ends) {
        let (typed, v4, v6, udp) = (code.label(), code.label(), code.label(), code.label());
        let bytes = UDP_BYTES + usize::from(self.payload_bytes);
        code.load(Width::W32, R6, R1, 0);
        code.load(Width::W32, R7, R1, 4);
        code.copy(R8, R6);
        code.operate(Operation::Add, R8, ETHERNET_BYTES as i32);
        code.jump_if_by(R8, When::Above, R7, ends.other);
        load_word(code, R6, 12);
        code.jump_if(R1, When::NotEqual, TYPE_VLAN.into(), typed);
        code.operate(Operation::Add, R8, VLAN_BYTES as i32);
        code.jump_if_by(R8, When::Above, R7, ends.other);
        load_word(code, R6, ETHERNET_BYTES + 2);
        code.place(typed);
        // A comparison with an impossible address is no instruction either: the verifier refuses unreachable code.
        let (has_v4, has_v6) =
            (self.destination.v4 != Reach::None, self.destination.v6 != Reach::None);
        if has_v4 {
            code.jump_if(R1, When::Equal, TYPE_IPV4.into(), v4);
        }
        if has_v6 {
            code.jump_if(R1, When::Equal, TYPE_IPV6.into(), v6);
        }
        code.jump(ends.other);
        if has_v4 {
            code.place(v4);
            must_reach(code, IPV4_BYTES + UDP_BYTES, ends.other);
            must_be_byte(code, 0, IPV4_PLAIN, ends.other);
            must_be_byte(code, 9, PROTOCOL_UDP, ends.other);
            load_word(code, R8, 6);
            code.operate(Operation::And, R1, IPV4_FRAGMENT.into());
            code.jump_if(R1, When::NotEqual, 0, ends.other);
            if let Reach::One(address) = self.destination.v4 {
                must_be_address(code, 16, &address, ends.other);
            }
            must_be_word(code, IPV4_BYTES + 2, self.port, ends.other);
            must_be_word(code, 2, (IPV4_BYTES + bytes) as u16, ends.unusual);
            code.operate(Operation::Add, R8, IPV4_BYTES as i32);
            code.jump(udp);
        }
        if has_v6 {
            code.place(v6);
            must_reach(code, IPV6_BYTES + UDP_BYTES, ends.other);
            code.load(Width::W8, R1, R8, 0);
            code.operate(Operation::ShiftRight, R1, 4);
            code.jump_if(R1, When::NotEqual, 6, ends.other);
            must_be_byte(code, 6, PROTOCOL_UDP, ends.other);
            if let Reach::One(address) = self.destination.v6 {
                must_be_address(code, 24, &address, ends.other);
            }
            must_be_word(code, IPV6_BYTES + 2, self.port, ends.other);
            must_be_word(code, 4, bytes as u16, ends.unusual);
            code.operate(Operation::Add, R8, IPV6_BYTES as i32);
        }
        code.place(udp);
        must_be_word(code, 4, bytes as u16, ends.unusual);
        must_reach(code, bytes, ends.unusual);
        code.operate(Operation::Add, R8, UDP_BYTES as i32);
    }

    /// Goes to where the conditions lead.
    fn conditions(&self, code: &mut Assembler, ends: &Ends) {
        for range in &self.ranges {
            let field = &self.fields[range.field];
            let is_signed = match field.encoding {
                Encoding::Binary(number) => {
                    load_binary(code, usize::from(field.at), number);
                    number.kind == NumberKind::Signed
                }
                Encoding::Ascii { .. } => {
                    code.load_stack(Width::W64, R1, stack_of(range.field));
                    true
                }
            };
            match self.combine {
                Combine::All => {
                    range.unless(code, is_signed, ends.dropped);
                }
                Combine::Any => {
                    let next = code.label();
                    range.unless(code, is_signed, next);
                    code.jump(ends.kept);
                    code.place(next);
                }
            }
        }
        code.jump(match self.combine {
            Combine::All => ends.kept,
            Combine::Any => ends.dropped,
        });
    }
}

/// Where a program ends.
struct Ends {
    other: Label,
    unusual: Label,
    kept: Label,
    dropped: Label,
}

impl Range {
    /// Goes to `label` if R1 does not keep to it.
    fn unless(&self, code: &mut Assembler, is_signed: bool, label: Label) {
        let (below, above) = match is_signed {
            true => (When::BelowSigned, When::AboveSigned),
            false => (When::Below, When::Above),
        };
        for (when, bound) in [(below, self.min), (above, self.max)] {
            let Some(bound) = bound else { continue };
            match i32::try_from(bound) {
                Ok(bound) => code.jump_if(R1, when, bound, label),
                Err(_) => {
                    // A bound that some values keep is a number of the field's 64 bits.
                    code.set_wide(R2, bound as u64);
                    code.jump_if_by(R1, when, R2, label);
                }
            }
        }
    }
}

/// Puts two bytes of the packet into R1, as IP orders them.
fn load_word(code: &mut Assembler, from: Register, at: usize) {
    code.load(Width::W16, R1, from, at);
    code.order(R1, 16, true);
}

fn must_be_word(code: &mut Assembler, at: usize, value: u16, otherwise: Label) {
    load_word(code, R8, at);
    code.jump_if(R1, When::NotEqual, value.into(), otherwise);
}

fn must_be_byte(code: &mut Assembler, at: usize, value: u8, otherwise: Label) {
    code.load(Width::W8, R1, R8, at);
    code.jump_if(R1, When::NotEqual, value.into(), otherwise);
}

fn must_be_address(code: &mut Assembler, at: usize, address: &[u8], otherwise: Label) {
    for (index, word) in address.chunks_exact(4).enumerate() {
        let word = u32::from_be_bytes(word.try_into().expect("four bytes"));
        code.load(Width::W32, R1, R8, at + 4 * index);
        code.order(R1, 32, true);
        code.jump_if_word(R1, When::NotEqual, word, otherwise);
    }
}

/// Continues only if there are so many bytes from R8 on.
fn must_reach(code: &mut Assembler, bytes: usize, otherwise: Label) {
    code.copy(R2, R8);
    code.operate(Operation::Add, R2, bytes as i32);
    code.jump_if_by(R2, When::Above, R7, otherwise);
}

/// Puts a number of the payload into R1.
fn load_binary(code: &mut Assembler, at: usize, number: BinaryNumber) {
    let BinaryNumber { kind, bytes, is_big_endian } = number;
    let width = match bytes {
        1 => Width::W8,
        2 => Width::W16,
        4 => Width::W32,
        _ => Width::W64,
    };
    code.load(width, R1, R8, at);
    let bits = 8 * bytes;
    if bytes > 1 {
        code.order(R1, bits, is_big_endian);
    }
    if kind == NumberKind::Signed && bytes < 8 {
        let unused = i32::from(64 - bits);
        code.operate(Operation::ShiftLeft, R1, unused);
        code.operate(Operation::ShiftRightSigned, R1, unused);
    }
}

/// Puts the number that a field is in ASCII on the stack, by code for each of its characters.
///
/// ```text
///  blank ──▶ blank ──▶ … ──▶ sign, or none
///                              └──▶ digit ──▶ digit ──▶ … ──▶ point ──▶ digit ──▶ …
/// ```
fn ascii(code: &mut Assembler, field: &Field, length: u8, index: usize, unusual: Label) {
    let (at, length) = (usize::from(field.at), usize::from(length));
    let point = match usize::from(field.decimals) {
        0 => length,
        decimals => length - decimals - 1,
    };
    // The last character before the point is a digit.
    let blanks = point - 1;
    // The number is summed up in R2; R3 says whether it is negative.
    code.set(R2, 0);
    code.set(R3, 0);
    let blank: Vec<Label> = (0..blanks).map(|_| code.label()).collect();
    // With the character in R1 already, and without.
    let begun: Vec<Label> = (0..blanks).map(|_| code.label()).collect();
    let digit: Vec<Label> = (0..length).map(|_| code.label()).collect();
    for place in 0..blanks {
        code.place(blank[place]);
        code.load(Width::W8, R1, R8, at + place);
        let next = blank.get(place + 1).copied().unwrap_or(digit[blanks]);
        code.jump_if(R1, When::Equal, b' '.into(), next);
        code.jump_if(R1, When::Equal, b'+'.into(), digit[place + 1]);
        code.jump_if(R1, When::NotEqual, b'-'.into(), begun[place]);
        code.set(R3, 1);
        code.jump(digit[place + 1]);
    }
    for (place, digit) in digit.into_iter().enumerate() {
        code.place(digit);
        // Nothing comes to the first one otherwise, and the verifier refuses what is never reached.
        if place > 0 || blanks == 0 {
            code.load(Width::W8, R1, R8, at + place);
        }
        if place == point {
            code.jump_if(R1, When::NotEqual, b'.'.into(), unusual);
            continue;
        }
        if let Some(begun) = begun.get(place) {
            code.place(*begun);
        }
        code.operate(Operation::Add, R1, -i32::from(b'0'));
        code.jump_if(R1, When::Above, 9, unusual);
        code.operate(Operation::Multiply, R2, 10);
        code.operate_by(Operation::Add, R2, R1);
    }
    let done = code.label();
    code.jump_if(R3, When::Equal, 0, done);
    code.negate(R2);
    code.place(done);
    // In two halves, of which the verifier remembers nothing: else it would follow each way that the characters can go through
    // all fields behind, which are more than it counts.
    let (low, high) = match cfg!(target_endian = "big") {
        true => (stack_of(index) - 4, stack_of(index)),
        false => (stack_of(index), stack_of(index) - 4),
    };
    code.store_stack(Width::W32, low, R2);
    code.operate(Operation::ShiftRight, R2, 32);
    code.store_stack(Width::W32, high, R2);
}

/// Where the number of a field lies, in bytes before the end of the stack.
fn stack_of(index: usize) -> usize {
    8 * (index + 1)
}

/// Counts, and returns what the kernel is to do.
fn finish(code: &mut Assembler, ends: &Ends, counters: i32) {
    let (count, done) = (code.label(), code.label());
    for (label, verdict) in [
        (ends.kept, Verdict::Keep),
        (ends.dropped, Verdict::Drop),
        (ends.unusual, Verdict::Unusual),
    ] {
        code.place(label);
        code.set(R6, verdict.action() as i32);
        code.set(R7, verdict.counter() as i32);
        code.jump(count);
    }
    code.place(count);
    // The numbers of fields are not needed any more.
    code.store_stack(Width::W32, 4, R7);
    code.copy(R2, R10);
    code.operate(Operation::Add, R2, -4);
    code.set_map(R1, counters);
    code.call(MAP_LOOKUP_ELEM);
    code.jump_if(R0, When::Equal, 0, done);
    code.load(Width::W64, R1, R0, 0);
    code.operate(Operation::Add, R1, 1);
    code.store(Width::W64, R0, R1);
    code.place(done);
    code.copy(R0, R6);
    code.exit();
    code.place(ends.other);
    code.set(R0, XDP_PASS);
    code.exit();
}
