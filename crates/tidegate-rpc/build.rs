//! Generates the calls of the API, as a server answers them, from `proto/`. Their messages are those of `tidegate-api`.

use std::{io, path::PathBuf};

fn main() -> io::Result<()> {
    let proto = PathBuf::from("../../proto");
    println!("cargo::rerun-if-changed={}", proto.display());
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".tidegate.v1", "::tidegate_api::proto")
        .emit_rerun_if_changed(false)
        .compile_protos(
            &["configuration", "detect", "fabric", "frames", "sessions"]
                .map(|name| proto.join(format!("tidegate/v1/{name}.proto"))),
            std::slice::from_ref(&proto),
        )?;
    tonic_prost_build::configure()
        .build_client(false)
        .emit_rerun_if_changed(false)
        .compile_protos(&[proto.join("grpc/health/v1/health.proto")], &[proto])
}
