//! A safe face on libjpeg-turbo: planes in and out, and coefficients in place.
//!
//! ```text
//!  JPEG ─▶ Header::read ─▶ Codec ─┬─ decode_planes / decode_bgr ─▶ pixels ─▶ encode_planes / encode_bgr ─▶ JPEG
//!                                 ├─ transcode: a row of coefficients read, changed, written ──────────▶ JPEG
//!                                 ├─ load ─▶ Coefficients ─▶ write ────────────────────────────────────▶ JPEG
//!                                 └─ read_eighth ─▶ the mean of every 8x8 block
//! ```
//!
//! The usual frame, one baseline scan, goes through our own entropy decoder, `scan.c`; libjpeg's reads the others, and
//! again whatever ours finds fault with.
//!
//! [`Header`] is read in Rust, before libjpeg sees a byte; [`Codec`] wraps `codec.c`, which is there because
//! libjpeg reports errors by `longjmp`.
//!
//! Always true: bytes from outside lead to a picture or an error, never to a panic, an exit or a printed line; no byte of one
//! frame, nor a table of its, is seen in another; a picture of which a part is damaged or missing is read as far as it goes, as
//! every program with libjpeg reads it, and is [reported](Read::damages) as damaged; an image written from a frame is sound,
//! and is seen [as the frame is](Header::orientation).

mod codec;
mod ffi;
mod header;
mod image;
mod metadata;
#[cfg(test)]
mod tests;

pub use codec::{Codec, CodecError, Coefficients, Message, Quality, Read, Recipe};
pub use header::{Coding, Header, HeaderError, Limits, SIDE_MAX, Sampling};
pub use image::{Packed, Planes};
pub use metadata::{Colours, Orientation};

// The C half needs the library that this crate links.
use turbojpeg_sys as _;
