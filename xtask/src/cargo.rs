//! The cargo that runs this task, for builds of its own.

use std::{env, process::Command};

/// A command of it, with the environment of the caller of this task.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With other values of these, the build script of ring would run again, all that depends on it would be built again, and both once
    // more by the next cargo that is called directly.
    let described = env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_package));
    described.for_each(|(name, _)| _ = cargo.env_remove(name));
    cargo
}

/// Whether `cargo run` describes the package of the program by it.
fn is_of_package(name: &str) -> bool {
    ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_does_not_see_the_package_of_the_task() {
        for (name, expected) in [
            ("CARGO_MANIFEST_DIR", true),
            ("CARGO_PKG_NAME", true),
            ("CARGO_TARGET_DIR", false),
            ("CARGO_INCREMENTAL", false),
            ("CARGO_PROFILE_DEV_DEBUG", false),
            ("RUSTFLAGS", false),
        ] {
            assert_eq!(is_of_package(name), expected, "{name}");
        }
    }
}
