//! A socket of a bridge and what is known of it.

use std::io::{self, IoSlice};

use mio::{Events, Interest, Poll, Token};
use tidegate_broker::WRITE_BYTES_MAX;
use tidegate_message::Instant;
use tidegate_process::clock;

use crate::transport::{ReadOutcome, Transport};

/// Bytes read at once, and so what the bridge itself holds of either way.
pub(super) const READ_BYTES: usize = 16 << 10;

/// A connection that is made. Its bytes to be written are its owner's.
#[derive(Debug)]
pub(super) struct Line {
    transport: Transport,
    is_readable: bool,
    is_writable: bool,
    /// Bytes of the output that were written.
    sent: usize,
}

impl Line {
    /// On a socket that `poll` watches from now on under that token.
    pub(super) fn new(poll: &Poll, token: Token, mut transport: Transport) -> io::Result<Self> {
        let both = Interest::READABLE | Interest::WRITABLE;
        let socket = transport.socket().expect("a bridge has sockets to both of its brokers");
        poll.registry().register(socket, token, both)?;
        // Edges tell of changes only: both are tried first.
        Ok(Self { transport, is_readable: true, is_writable: true, sent: 0 })
    }

    /// Reads once.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<ReadOutcome> {
        if !self.is_readable {
            return Ok(ReadOutcome::WouldBlock);
        }
        let outcome = self.transport.read(buffer)?;
        if outcome == ReadOutcome::WouldBlock {
            self.is_readable = false;
        }
        Ok(outcome)
    }

    /// Writes `output`, in pieces that the kernel can still be asked not to take; emptied once all of it was. Whether any was.
    pub(super) fn write(&mut self, output: &mut Vec<u8>) -> io::Result<bool> {
        let mut has_written = false;
        while self.is_writable {
            if !self.transport.is_clear() && !self.transport.flush()? {
                self.is_writable = false;
                break;
            }
            if self.sent == output.len() {
                break;
            }
            let end = output.len().min(self.sent + WRITE_BYTES_MAX);
            let piece = [IoSlice::new(&output[self.sent..end])];
            let (written, takes_more) = self.transport.write(&piece)?;
            self.sent += written;
            self.is_writable = takes_more;
            has_written = true;
        }
        if self.sent == output.len() && self.sent > 0 {
            output.clear();
            output.shrink_to(4 * READ_BYTES);
            self.sent = 0;
        }
        Ok(has_written)
    }

    /// Whether all of `output` was written, and has left TLS.
    pub(super) fn is_written(&self, output: &[u8]) -> bool {
        self.transport.is_clear() && self.sent == output.len()
    }

    /// Says that nothing more is sent.
    pub(super) fn end(&mut self) {
        self.transport.end();
    }
}

/// Asks the kernel which connections can be read and written, until then at most.
pub(super) fn watch(
    poll: &mut Poll,
    lines: &mut [(Token, &mut Line)],
    until: Instant,
) -> io::Result<()> {
    let mut events = Events::with_capacity(8);
    match poll.poll(&mut events, Some(until.since(clock::now()))) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
        other => other?,
    }
    for event in &events {
        let Some((_, line)) = lines.iter_mut().find(|(token, _)| *token == event.token()) else {
            continue;
        };
        line.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        line.is_writable |= event.is_writable() || event.is_error();
    }
    Ok(())
}
