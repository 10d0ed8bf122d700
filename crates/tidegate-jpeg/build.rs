//! Compiles the C half against the headers of the libjpeg-turbo that `turbojpeg-sys` builds and links.

fn main() {
    for file in ["codec.c", "codec.h", "idct.c", "idct.h", "scan.c", "scan.h"] {
        println!("cargo:rerun-if-changed=src/{file}");
    }
    let include = std::env::var_os("DEP_TURBOJPEG_INCLUDE")
        .expect("turbojpeg-sys names the folder of its headers when it builds from source");
    let mut build = cc::Build::new();
    build
        .files(["src/codec.c", "src/idct.c", "src/scan.c"])
        .include(include)
        .flag_if_supported("-fvisibility=hidden")
        .opt_level(3)
        .warnings(true)
        .extra_warnings(true);
    // Where it is fuzzed, what C leaves undefined ends the program, as does what AddressSanitizer sees; its runtime is rustc's.
    if std::env::var_os("CARGO_CFG_FUZZING").is_some() {
        build
            .flag("-fsanitize=address,undefined")
            .flag("-fsanitize-undefined-trap-on-error")
            .flag("-fno-omit-frame-pointer");
    }
    build.compile("tidegate_jpeg_codec");
}
