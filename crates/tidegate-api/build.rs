//! Generates the messages of the API from `proto/`. The calls are generated where they are made (`tidegate-client`) and where they
//! are answered (`tidegate`).

use std::{env, io, path::PathBuf};

fn main() -> io::Result<()> {
    let proto = PathBuf::from("../../proto");
    println!("cargo::rerun-if-changed={}", proto.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    tonic_prost_build::configure()
        .build_client(false)
        .build_server(false)
        .bytes(".") // a JPEG is shared from the socket to the log, never copied
        .file_descriptor_set_path(out.join("tidegate.v1.bin"))
        .emit_rerun_if_changed(false)
        .compile_protos(
            &["configuration", "detect", "fabric", "frames", "sessions"]
                .map(|name| proto.join(format!("tidegate/v1/{name}.proto"))),
            &[proto],
        )
}
