//! A request's body, bounded in bytes and in time.

use std::io::Read;

use bytes::{Bytes, BytesMut};
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http_body_util::BodyExt as _;
use hyper::{HeaderMap, header};
use tidegate_process::http1::RequestBody;
use tokio::{sync::SemaphorePermit, time::timeout};

use super::{HELD_BYTES, Http, Live};
use crate::{counters::add, refused::Refused};

/// A body, and its share of what may be held.
pub(super) struct Body<'a> {
    pub(super) bytes: Bytes,
    _held: SemaphorePermit<'a>,
}

impl Http {
    /// Reads a body whole, and unpacks it.
    pub(super) async fn body(
        &self,
        live: &Live,
        headers: &HeaderMap,
        body: RequestBody,
    ) -> Result<Body<'_>, Refused> {
        let bytes_max = live.settings.body_bytes_max;
        let too_large = || Refused::TooLarge { what: "the body", bytes_max };
        let codings = codings(headers)?;
        let is_packed = !codings.is_empty();
        let announced = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|bytes| bytes > bytes_max) {
            return Err(too_large());
        }
        // Packed, it may become anything.
        let most = if is_packed { 2 * bytes_max } else { announced.unwrap_or(bytes_max) };
        let share = most.min(HELD_BYTES).div_ceil(1 << 10) as u32;
        let held = self.held.try_acquire_many(share).map_err(|_| Refused::Full)?;
        let collected = timeout(live.settings.request_timeout, collect(body, bytes_max));
        let bytes = collected.await.map_err(|_| Refused::Slow)??;
        add(&self.context.counters.received, 1);
        add(&self.context.counters.received_bytes, bytes.len() as u64);
        // The coding that was applied last is taken off first.
        let bytes = codings
            .iter()
            .rev()
            .try_fold(bytes, |bytes, coding| coding.unpack(&bytes, bytes_max))?;
        Ok(Body { bytes, _held: held })
    }
}

async fn collect(mut body: RequestBody, bytes_max: usize) -> Result<Bytes, Refused> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refused::Broken)?;
        // Trailers say nothing here.
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > bytes_max {
            return Err(Refused::TooLarge { what: "the body", bytes_max });
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// How a body is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
}

/// Codings that a body may have one upon another.
const CODINGS_MAX: usize = 4;

/// The codings of a body, in the order in which they were applied (RFC 9110, 8.4): a list, maybe in several headers, of words in
/// whatever case.
fn codings(headers: &HeaderMap) -> Result<Vec<Coding>, Refused> {
    let mut codings = Vec::new();
    for value in headers.get_all(header::CONTENT_ENCODING) {
        for word in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            match &*word.to_ascii_lowercase() {
                b"" | b"identity" => {}
                b"gzip" | b"x-gzip" => codings.push(Coding::Gzip),
                b"deflate" => codings.push(Coding::Deflate),
                _ => {
                    let word = String::from_utf8_lossy(word);
                    return Err(Refused::Form(format!(
                        "the body's encoding {word:?} is not known; there are gzip, deflate and identity"
                    )));
                }
            }
        }
    }
    match codings.len() {
        0..=CODINGS_MAX => Ok(codings),
        _ => Err(Refused::Form(format!("the body is packed more than {CODINGS_MAX} times"))),
    }
}

impl Coding {
    fn unpack(self, packed: &[u8], bytes_max: usize) -> Result<Bytes, Refused> {
        let (word, mut unpacked): (_, Box<dyn Read + '_>) = match self {
            Self::Gzip => ("gzip", Box::new(MultiGzDecoder::new(packed))),
            // By the standard it is of zlib; some send it without that (RFC 9110, 8.4.1.2).
            Self::Deflate if is_zlib(packed) => ("deflate", Box::new(ZlibDecoder::new(packed))),
            Self::Deflate => ("deflate", Box::new(DeflateDecoder::new(packed))),
        };
        let mut bytes = Vec::new();
        unpacked.by_ref().take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(|error| {
            Refused::Invalid(format!("the body is not what {word} makes: {error}"))
        })?;
        if bytes.len() > bytes_max {
            return Err(Refused::TooLarge { what: "the unpacked body", bytes_max });
        }
        Ok(bytes.into())
    }
}

/// Whether bytes begin as zlib's do (RFC 1950): the method, and a check of the first two.
fn is_zlib(packed: &[u8]) -> bool {
    matches!(packed, [method, flags, ..]
        if method & 15 == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31))
}
