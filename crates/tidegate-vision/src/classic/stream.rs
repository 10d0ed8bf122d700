//! The persistent protocol of the paper's server over TCP.
//!
//! ```text
//!  ─▶ opcode (4 bytes, big-endian) ─ length (4) ─ image        1 face · 2 recognition · 3 pose · 4 objects · 5 ping
//!  ◀─ length (4) ─ JSON
//! ```
//!
//! A connection that is silent holds no buffer.
//!
//! Always true: requests are answered one at a time and in their order; a length over the bound is answered and ends the connection, for
//! the bytes behind it cannot be distinguished from the next request.

use std::{io, sync::Arc, time::Duration};

use bytes::BufMut as _;
use tidegate_identity::access::Identity;
use tidegate_message::Action;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Refused, Vision,
    budget::Charge,
    buffers::Buffer,
    paper::{Call, failure, refused_text, streamed},
};

/// Bytes for which room is made at once; an announced length costs its sender nothing.
const FIRST_BYTES: usize = 64 << 10;
/// How long a connection that ends is read further, so that its answer is not lost.
const FAREWELL: Duration = Duration::from_secs(2);
const PING: u32 = 5;

/// Answers the requests of one connection until it ends, or is silent for too long.
pub(crate) async fn converse(
    vision: &Vision,
    identity: &Arc<Identity>,
    mut io: impl AsyncRead + AsyncWrite + Unpin,
    stop: CancellationToken,
) -> io::Result<()> {
    let idle_max = vision.0.settings.idle_timeout;
    loop {
        let mut opcode = [0; 4];
        let first = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            first = timeout(idle_max, io.read(&mut opcode)) => first,
        };
        let Ok(first) = first else { return Ok(()) };
        let came = first?;
        if came == 0 {
            return Ok(());
        }
        // Boxed: an idle connection has none of it.
        let answered = Box::pin(answer(vision, identity, &mut io, &mut opcode, came)).await?;
        let (text, continues) = answered;
        let mut out = Vec::with_capacity(4 + text.len());
        out.put_u32(u32::try_from(text.len()).map_err(io::Error::other)?);
        out.put_slice(text.as_bytes());
        let silent_max = vision.0.settings.request_timeout;
        timeout(silent_max, io.write_all(&out)).await??;
        if !continues {
            io.shutdown().await?;
            let mut unread = vec![0; 4096];
            let rest = async {
                while io.read(&mut unread).await? > 0 {}
                Ok::<_, io::Error>(())
            };
            // One that sends on has heard enough.
            let _ = timeout(FAREWELL, rest).await;
            return Ok(());
        }
    }
}

/// Reads the rest of a request, of whose opcode so many bytes are there, and answers it; false if nothing more can be read.
async fn answer(
    vision: &Vision,
    identity: &Arc<Identity>,
    io: &mut (impl AsyncRead + Unpin),
    opcode: &mut [u8; 4],
    came: usize,
) -> io::Result<(String, bool)> {
    let silent_max = vision.0.settings.request_timeout;
    let since = Instant::now();
    let mut length = [0; 4];
    timeout(silent_max, async {
        io.read_exact(&mut opcode[came..]).await?;
        io.read_exact(&mut length).await
    })
    .await??;
    let (opcode, length) = (u32::from_be_bytes(*opcode), u32::from_be_bytes(length) as usize);
    let bytes_max = vision.0.settings.image_bytes_max;
    if length > bytes_max {
        return Ok((refused_text(&Refused::TooLarge { bytes_max }), false));
    }
    let mut charge = vision.0.receiver.budget.open(identity.key);
    let mut buffer = vision.0.receiver.buffers.take(length.min(FIRST_BYTES));
    match fill(io, &mut buffer, &mut charge, length, silent_max).await? {
        Ok(()) => {}
        Err(refused) => return Ok((refused_text(&refused), false)),
    }
    let Some(call) = Call::of_opcode(opcode) else {
        let text = match opcode {
            PING => r#"{"success": "pong"}"#.to_owned(),
            _ => failure(&format!("Unsupported opcode: {opcode}")),
        };
        return Ok((text, true));
    };
    let answered = async {
        vision.may(identity, Action::Detect, call.model(&vision.0.settings))?;
        streamed(vision, identity, call, buffer.into_bytes(), since).await
    };
    let text = answered.await.unwrap_or_else(|refused| refused_text(&refused));
    drop(charge);
    Ok((text, true))
}

/// Reads `length` bytes straight into the buffer.
async fn fill(
    io: &mut (impl AsyncRead + Unpin),
    buffer: &mut Buffer,
    charge: &mut Charge,
    length: usize,
    silent_max: Duration,
) -> io::Result<Result<(), Refused>> {
    while buffer.len() < length {
        let left = length - buffer.len();
        if buffer.len() == buffer.capacity() {
            let more = buffer.capacity().max(FIRST_BYTES).min(left);
            buffer.reserve(more);
        }
        let read = timeout(silent_max, io.read_buf(&mut (&mut **buffer).limit(left))).await;
        let Ok(read) = read else { return Ok(Err(Refused::Slow { after: silent_max })) };
        if read? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = charge.hold(buffer.len()) {
            return Ok(Err(error.into()));
        }
    }
    Ok(Ok(()))
}
