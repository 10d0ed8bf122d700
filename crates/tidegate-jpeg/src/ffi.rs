//! The face of `codec.c`, field by field as in `codec.h`.

use std::ffi::{c_char, c_int, c_uint};

pub(crate) const COMPONENTS: usize = 3;
const MESSAGE: usize = 200;

pub(crate) const OK: c_int = 0;
pub(crate) const FAILED: c_int = 1;
pub(crate) const MEMORY: c_int = 3;

#[repr(C)]
pub(crate) struct Codec {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct Header {
    pub(crate) width: u16,
    pub(crate) height: u16,
    pub(crate) components: u8,
    pub(crate) horizontal: [u8; COMPONENTS],
    pub(crate) vertical: [u8; COMPONENTS],
}

#[repr(C)]
pub(crate) struct Planes {
    pub(crate) components: u8,
    pub(crate) data: [*mut u8; COMPONENTS],
    pub(crate) stride: [usize; COMPONENTS],
    pub(crate) rows: [usize; COMPONENTS],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Eighth {
    pub(crate) data: *mut u8,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

#[repr(C)]
pub(crate) struct Recipe {
    pub(crate) quality: c_int,
    pub(crate) dead_zone: c_int,
    pub(crate) gray: c_int,
    pub(crate) keep: c_int,
    pub(crate) keep_background: c_int,
    pub(crate) mask: *const u8,
    pub(crate) cover: *const u8,
    pub(crate) mask_width: usize,
    pub(crate) mask_height: usize,
    pub(crate) unit_h: usize,
    pub(crate) unit_v: usize,
}

#[repr(C)]
pub(crate) struct Report {
    pub(crate) warnings: c_uint,
    pub(crate) damages: c_uint,
    pub(crate) message: [c_char; MESSAGE],
}

unsafe extern "C" {
    pub(crate) fn tgj_new() -> *mut Codec;
    pub(crate) fn tgj_free(codec: *mut Codec);
    pub(crate) fn tgj_report(codec: *const Codec, report: *mut Report);
    pub(crate) fn tgj_output(codec: *const Codec, bytes: *mut usize) -> *const u8;
    pub(crate) fn tgj_open(
        codec: *mut Codec,
        jpeg: *const u8,
        bytes: usize,
        header: *const Header,
    ) -> c_int;
    pub(crate) fn tgj_decode_planes(
        codec: *mut Codec,
        eighths: c_int,
        planes: *const Planes,
        tables: *mut [u16; 64],
        eighth: Eighth,
    ) -> c_int;
    pub(crate) fn tgj_decode_bgr(
        codec: *mut Codec,
        eighths: c_int,
        data: *mut u8,
        width: usize,
        height: usize,
        eighth: Eighth,
    ) -> c_int;
    pub(crate) fn tgj_read_eighth(codec: *mut Codec, eighth: Eighth) -> c_int;
    pub(crate) fn tgj_load(codec: *mut Codec, eighth: Eighth) -> c_int;
    pub(crate) fn tgj_transcode(codec: *mut Codec, recipe: *const Recipe) -> c_int;
    pub(crate) fn tgj_encode_planes(
        codec: *mut Codec,
        header: *const Header,
        planes: *const Planes,
        quality: c_int,
        tables: *const [u16; 64],
    ) -> c_int;
    pub(crate) fn tgj_encode_bgr(
        codec: *mut Codec,
        data: *const u8,
        width: usize,
        height: usize,
        quality: c_int,
    ) -> c_int;
    #[cfg(test)]
    pub(crate) fn tgj_prefer_libjpeg(codec: *mut Codec, alone: c_int);
    #[cfg(test)]
    pub(crate) fn tgj_was_libjpeg(codec: *const Codec) -> c_int;
    #[cfg(test)]
    pub(crate) fn tgj_requantise(block: *mut i16, multiplier: *const u16, bias: *const u16);
    #[cfg(test)]
    pub(crate) fn tgj_requantise_plain(block: *mut i16, multiplier: *const u16, bias: *const u16);
}
