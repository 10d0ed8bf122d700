//! Generates the calls of the API, as a client makes them, from `proto/`. Their messages are those of `tidegate-api`.

use std::{io, path::PathBuf};

fn main() -> io::Result<()> {
    let proto = PathBuf::from("../../proto");
    println!("cargo::rerun-if-changed={}", proto.display());
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false) // `connect` is a call of ours
        .extern_path(".tidegate.v1", "::tidegate_api::proto")
        .emit_rerun_if_changed(false)
        .compile_protos(
            &["configuration", "detect", "fabric", "frames", "sessions"]
                .map(|name| proto.join(format!("tidegate/v1/{name}.proto"))),
            &[proto],
        )
}
