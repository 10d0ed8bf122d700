//! Compiles the C half against the headers of the libjpeg-turbo that `turbojpeg-sys` builds and links.

fn main() {
    for file in ["codec.c", "codec.h", "idct.c", "idct.h", "scan.c", "scan.h"] {
        println!("cargo:rerun-if-changed=src/{file}");
    }
    let include = std::env::var_os("DEP_TURBOJPEG_INCLUDE")
        .expect("turbojpeg-sys names the folder of its headers when it builds from source");
    cc::Build::new()
        .files(["src/codec.c", "src/idct.c", "src/scan.c"])
        .include(include)
        .flag_if_supported("-fvisibility=hidden")
        .opt_level(3)
        .warnings(true)
        .extra_warnings(true)
        .compile("tidegate_jpeg_codec");
}
