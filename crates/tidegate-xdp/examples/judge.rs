//! Measures the cost of a filter in the kernel: `cargo run --release -p tidegate-xdp --example judge`, as root.
//!
//! Each packet is judged a million times over by the program, without an interface.

use tidegate_sys::bpf::{Counters, Program};
use tidegate_xdp::{COUNTERS, Destination, FilterSpec, parse_conditions, parse_fields};

const FIELDS: &str =
    "station as u16be at 0; t at 2 length 6 decimals 1; p at 8 length 8 decimals 2";
const KEEP: &str = "t > 75.5 or t < -5 or p > 1100";
const TURNS: u32 = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (combine, conditions) = parse_conditions(KEEP)?;
    let filter = FilterSpec {
        port: 7070,
        destination: Destination::of("192.0.2.7".parse()?),
        payload_bytes: None,
        fields: parse_fields(FIELDS)?,
        combine,
        conditions,
    };
    let filter = filter.compile()?;
    let counters = Counters::new(COUNTERS)?;
    let instructions = filter.instructions(counters.descriptor());
    println!("{} instructions for {FIELDS:?}, kept if {KEEP:?}", instructions.len());
    let program = Program::load("tidegate_xdp", &instructions)?;
    for (name, port, payload) in [
        ("dropped", 7070, b"\0\x07  21.5 1013.25"),
        ("kept", 7070, b"\0\x07  75.6 1013.25"),
        ("unusual", 7070, b"\0\x07  21,5 1013.25"),
        ("for another port", 7071, b"\0\x07  21.5 1013.25"),
    ] {
        let packet = packet(port, payload);
        let verdict = filter.decide_packet(&packet);
        let nanos = program.judge(&packet, TURNS)?.nanos;
        println!("{nanos:>5} ns  {name}: {verdict:?}");
    }
    println!("counted: {:?}", counters.sums()?);
    Ok(())
}

/// A datagram in IPv4 in Ethernet, to 192.0.2.7.
fn packet(port: u16, payload: &[u8]) -> Vec<u8> {
    let bytes = payload.len() as u16;
    let mut packet = vec![2; 12];
    packet.extend([0x08, 0x00, 0x45, 0]);
    packet.extend((28 + bytes).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 7]);
    packet.extend([0x27, 0x0f]);
    packet.extend(port.to_be_bytes());
    packet.extend((8 + bytes).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}
