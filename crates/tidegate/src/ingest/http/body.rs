//! A request's body, bounded in bytes and in time.

use std::io::Read as _;

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt as _;
use hyper::{HeaderMap, body::Incoming, header};
use tokio::{sync::SemaphorePermit, time::timeout};

use super::{HELD_BYTES, Http, Live};
use crate::ingest::{counters::add, refused::Refused};

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
        body: Incoming,
    ) -> Result<Body<'_>, Refused> {
        let bytes_max = live.settings.body_bytes_max;
        let too_large = || Refused::TooLarge { what: "the body", bytes_max };
        let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes());
        let is_packed = match encoding {
            None | Some(b"" | b"identity") => false,
            Some(b"gzip" | b"x-gzip") => true,
            Some(_) => {
                let text = "the body's encoding is not known; there are gzip and identity";
                return Err(Refused::Form(text.to_owned()));
            }
        };
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
        let bytes = if is_packed { unpack(&bytes, bytes_max)? } else { bytes };
        Ok(Body { bytes, _held: held })
    }
}

async fn collect(mut body: Incoming, bytes_max: usize) -> Result<Bytes, Refused> {
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

fn unpack(packed: &[u8], bytes_max: usize) -> Result<Bytes, Refused> {
    let mut bytes = Vec::new();
    let mut unpacked = MultiGzDecoder::new(packed).take(bytes_max as u64 + 1);
    unpacked
        .read_to_end(&mut bytes)
        .map_err(|error| Refused::Invalid(format!("the body is not what gzip makes: {error}")))?;
    if bytes.len() > bytes_max {
        return Err(Refused::TooLarge { what: "the unpacked body", bytes_max });
    }
    Ok(bytes.into())
}
