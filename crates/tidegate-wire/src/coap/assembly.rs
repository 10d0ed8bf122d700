//! Payloads that arrive in blocks (RFC 7959 section 2.5, Block1).

use tidegate_message::Instant;

use super::{Block, Code, ContentFormat, Method, exchange::Outcome};

/// A payload of which the first blocks have arrived.
#[derive(Debug)]
pub(super) struct Assembly {
    method: Method,
    path: String,
    content_format: Option<ContentFormat>,
    bytes: Vec<u8>,
    last_bytes: usize,
    pub(super) expires: Instant,
}

impl Assembly {
    pub(super) fn new(
        method: Method,
        path: String,
        content_format: Option<ContentFormat>,
        expires: Instant,
    ) -> Self {
        Self { method, path, content_format, bytes: Vec::new(), last_bytes: 0, expires }
    }

    /// Whether blocks of such requests belong to it.
    pub(super) fn is_of(&self, method: Method, path: &str) -> bool {
        self.method == method && self.path == path
    }

    /// The memory that it takes.
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The memory that it will take with so many bytes more.
    pub(super) fn grown_bytes(&self, bytes: usize) -> usize {
        let (needed, capacity) = (self.bytes.len() + bytes, self.bytes.capacity());
        if needed <= capacity { capacity } else { needed.max(2 * capacity) }
    }

    /// Takes the next block, or the last one once more; another one is refused.
    pub(super) fn take(
        &mut self,
        block: Block,
        content_format: Option<ContentFormat>,
        payload: &[u8],
    ) -> Result<(), Outcome> {
        let refuse = |text| Err(Outcome::new(Code::REQUEST_ENTITY_INCOMPLETE, text));
        if content_format != self.content_format {
            return refuse("blocks have different content formats");
        }
        let begins = self.bytes.len() - self.last_bytes;
        if block.offset() == begins && self.bytes[begins..] == *payload {
            return Ok(());
        }
        if block.offset() != self.bytes.len() {
            return refuse("a block before this one is missing; begin again");
        }
        let capacity = self.grown_bytes(payload.len());
        self.bytes.reserve_exact(capacity - self.bytes.len());
        self.bytes.extend_from_slice(payload);
        self.last_bytes = payload.len();
        Ok(())
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.shrink_to_fit();
        self.bytes
    }
}

/// Whether a block's payload is as long as the option says.
pub(super) fn check_length(block: Block, payload_bytes: usize) -> Result<(), Outcome> {
    let fits = match block.more {
        true => payload_bytes == block.bytes(),
        false => payload_bytes <= block.bytes(),
    };
    let text = "a block's payload is not as long as its option says (RFC 7959, 2.2)";
    if fits { Ok(()) } else { Err(Outcome::new(Code::BAD_REQUEST, text)) }
}
