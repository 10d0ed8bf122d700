//! Every seed, and small mutations of it, through the body of its fuzz target: finds of fuzzing are tested also where no
//! fuzzer runs.

use std::{fs, path::Path};

use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};

/// Accidents per seed file.
const ACCIDENTS: usize = 500;

fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds").join(target);
    let mut files: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} holds no seed", folder.display());
    let seed: u64 = match std::env::var("TIDEGATE_SEED") {
        Ok(seed) => seed.parse().expect("TIDEGATE_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("TIDEGATE_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    for file in files {
        let whole = fs::read(&file).unwrap();
        println!("{}", file.display());
        body(&whole);
        for _ in 0..ACCIDENTS {
            body(&accident(&whole, &mut random));
        }
    }
}

/// A few bytes changed, cut, doubled or put in.
fn accident(whole: &[u8], random: &mut SmallRng) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.random()),
            2 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            3 if at < bytes.len() => {
                bytes[at] = *[0, 0x7f, 0x80, 0xff, b'-', b'9'].get(at % 6).unwrap();
            }
            _ => bytes.extend_from_within(at..),
        }
        bytes.truncate(1 << 18);
    }
    bytes
}

#[test]
fn wire_records() {
    replay("wire_record", tidegate_fuzz::wire_record);
}

#[test]
fn mqtt_packets() {
    replay("mqtt_packet", tidegate_fuzz::mqtt_packet);
}

#[test]
fn tables() {
    replay("table", tidegate_fuzz::table);
}

#[test]
fn knob_settings() {
    replay("knob_setting", tidegate_fuzz::knob_setting);
}

#[test]
fn knobs() {
    replay("knobs", tidegate_fuzz::knobs);
}

#[test]
fn jpegs() {
    replay("jpeg", tidegate_fuzz::jpeg);
}

#[test]
fn mjpegs() {
    replay("mjpeg", tidegate_fuzz::mjpeg);
}

#[test]
fn scenarios() {
    replay("scenario", tidegate_fuzz::scenario);
}

#[test]
fn proxy_headers() {
    replay("proxy_header", tidegate_fuzz::proxy_header);
}

#[test]
fn websocket_frames() {
    replay("websocket_frames", tidegate_fuzz::websocket_frames);
}

#[test]
fn websocket_handshakes() {
    replay("websocket_handshake", tidegate_fuzz::websocket_handshake);
}

#[test]
fn mqtt_client_steps() {
    replay("mqtt_client", tidegate_fuzz::mqtt_client);
}

#[test]
fn mqtt_broker_steps() {
    replay("mqtt_broker", tidegate_fuzz::mqtt_broker);
}

#[test]
fn coap_messages() {
    replay("coap_message", tidegate_fuzz::coap_message);
}

#[test]
fn coap_server_steps() {
    replay("coap_server", tidegate_fuzz::coap_server);
}

#[test]
fn line_protocols() {
    replay("line_protocol", tidegate_fuzz::line_protocol);
}

#[test]
fn scram_messages() {
    replay("scram", tidegate_fuzz::scram);
}

#[test]
fn password_files() {
    replay("password_file", tidegate_fuzz::password_file);
}

#[test]
fn acl_files() {
    replay("acl_file", tidegate_fuzz::acl_file);
}

#[test]
fn roles_files() {
    replay("roles_file", tidegate_fuzz::roles_file);
}

#[test]
fn tokens() {
    replay("token", tidegate_fuzz::token);
}

#[test]
fn revocation_lists() {
    replay("revocation_list", tidegate_fuzz::revocation_list);
}

#[test]
fn certificate_names() {
    replay("certificate_name", tidegate_fuzz::certificate_name);
}

#[test]
fn mosquitto_confs() {
    replay("mosquitto_conf", tidegate_fuzz::mosquitto_conf);
}

#[test]
fn journal_records() {
    replay("journal_records", tidegate_fuzz::journal_records);
}

#[test]
fn log_segments() {
    replay("log_segments", tidegate_fuzz::log_segments);
}

#[test]
fn key_files() {
    replay("key_file", tidegate_fuzz::key_file);
}

#[test]
fn node_configs() {
    replay("node_config", tidegate_fuzz::node_config);
}

#[test]
fn invitations() {
    replay("invitation", tidegate_fuzz::invitation);
}

#[test]
fn detector_replies() {
    replay("detector_reply", tidegate_fuzz::detector_reply);
}

#[test]
fn sensor_batches() {
    replay("sensor_batch", tidegate_fuzz::sensor_batch);
}

#[test]
fn sensor_messages() {
    replay("sensor_messages", tidegate_fuzz::sensor_messages);
}

#[test]
fn comprex() {
    replay("comprex", tidegate_fuzz::comprex);
}

#[test]
fn payloads_of_flows() {
    replay("flow_parse", tidegate_fuzz::flow_parse);
}

#[test]
fn models_of_flows() {
    replay("flow_model", tidegate_fuzz::flow_model);
}

#[test]
fn snapshots_of_flows() {
    replay("flow_snapshot", tidegate_fuzz::flow_snapshot);
}

#[test]
fn records_of_members() {
    replay("member_records", tidegate_fuzz::member_records);
}

#[test]
fn attributes_of_uplinks() {
    replay("uplink_attributes", tidegate_fuzz::uplink_attributes);
}

#[test]
fn records_of_uplinks() {
    replay("uplink_records", tidegate_fuzz::uplink_records);
}

#[test]
fn datagrams_of_ingest() {
    replay("ingest_datagram", tidegate_fuzz::ingest_datagram);
}

#[test]
fn bodies_of_ingest() {
    replay("ingest_body", tidegate_fuzz::ingest_body);
}
