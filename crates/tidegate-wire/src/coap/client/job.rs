//! One request with all its blocks.

use super::{ClientRequest, Failure, RequestHandle};
use crate::coap::{Block, EncodeError, Method, OptionList, OptionNumber, Options, Token};

/// Longest response.
pub(super) const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// How often a response is fetched from the beginning, since it had become another one.
const RESTARTS_MAX: u32 = 4;

/// One request with its blocks, or the rest of a notification.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) handle: RequestHandle,
    pub(super) request: ClientRequest,
    pub(super) token: Token,
    pub(super) id: u16,
    pub(super) datagram: Vec<u8>,
    /// How much of the payload the server has, and how large the blocks are.
    pub(super) sent_bytes: usize,
    pub(super) size_exponent: u8,
    /// The block of the response that is asked for next.
    pub(super) block2: Option<Block>,
    pub(super) received: Vec<u8>,
    pub(super) etag: Vec<u8>,
    pub(super) restarts: u32,
    /// Whether the response said that newer states will follow.
    pub(super) is_followed: bool,
    /// Of the rest of a notification: its number.
    pub(super) notification: Option<u32>,
}

impl Job {
    pub(super) fn new(handle: RequestHandle, request: ClientRequest, size_exponent: u8) -> Self {
        Self {
            handle,
            request,
            token: Token::default(),
            id: 0,
            datagram: Vec::new(),
            sent_bytes: 0,
            size_exponent,
            block2: None,
            received: Vec::new(),
            etag: Vec::new(),
            restarts: 0,
            is_followed: false,
            notification: None,
        }
    }

    /// How much of the payload the next message carries.
    pub(super) fn part(&self) -> usize {
        (self.request.payload.len() - self.sent_bytes).min(16 << self.size_exponent)
    }

    pub(super) fn options(&self) -> Result<OptionList, EncodeError> {
        let ClientRequest { path, content_format, accept, payload, follows, .. } = &self.request;
        let mut options = OptionList::new();
        if *follows && self.block2.is_none() {
            options.push_number(OptionNumber::OBSERVE, 0)?;
        }
        for level in path.split('/').filter(|_| !path.is_empty()) {
            options.push(OptionNumber::URI_PATH, level.as_bytes())?;
        }
        let size_exponent = self.size_exponent;
        let is_get = self.request.method == Method::Get;
        let is_small = size_exponent < Block::SIZE_EXPONENT_MAX;
        let asked = Block { number: 0, more: false, size_exponent };
        let block2 = self.block2.or((is_get && is_small).then_some(asked));
        let sent = self.sent_bytes;
        let in_blocks = payload.len() > 16 << size_exponent;
        let block1 = in_blocks.then(|| Block {
            number: (sent >> (size_exponent + 4)) as u32,
            more: sent + self.part() < payload.len(),
            size_exponent,
        });
        let size1 = (in_blocks && sent == 0).then_some(payload.len() as u32);
        for (number, value) in [
            (OptionNumber::CONTENT_FORMAT, content_format.map(|format| u32::from(format.0))),
            (OptionNumber::ACCEPT, accept.map(|format| u32::from(format.0))),
            (OptionNumber::BLOCK2, block2.map(Block::value)),
            (OptionNumber::BLOCK1, block1.map(Block::value)),
            (OptionNumber::SIZE1, size1),
        ] {
            if let Some(value) = value {
                options.push_number(number, value)?;
            }
        }
        Ok(options)
    }

    /// The server has a block: whether there is another one to send.
    pub(super) fn takes_continue(&mut self, options: Options<'_>) -> bool {
        let value = options.number(OptionNumber::BLOCK1);
        let Some(Ok(block)) = value.map(Block::from_value) else { return false };
        let sent_bytes = self.sent_bytes + self.part();
        if sent_bytes >= self.request.payload.len() {
            return false;
        }
        self.sent_bytes = sent_bytes;
        self.size_exponent = self.size_exponent.min(block.size_exponent);
        true
    }

    /// Whether a block is asked for that is not the first.
    pub(super) fn goes_on(&self) -> bool {
        self.block2.is_some_and(|block| block.number > 0)
    }

    /// The value has become another one: the first block is asked for again.
    pub(super) fn restart(&mut self) -> Result<(), Failure> {
        self.restarts += 1;
        if self.restarts > RESTARTS_MAX {
            return Err(Failure::KeptChanging);
        }
        self.received.clear();
        let size_exponent = self.block2.map_or(self.size_exponent, |block| block.size_exponent);
        self.block2 = Some(Block { number: 0, more: false, size_exponent });
        Ok(())
    }

    /// A block of the response: whether another one is to be asked for.
    pub(super) fn takes_block(
        &mut self,
        block: Block,
        options: Options<'_>,
        payload: &[u8],
    ) -> Result<bool, Failure> {
        let etag = options.first(OptionNumber::ETAG).unwrap_or_default();
        let size_exponent = block.size_exponent;
        if block.number > 0 && (etag != self.etag || block.offset() != self.received.len()) {
            self.restart()?;
            return Ok(true);
        }
        if block.number == 0 {
            self.received.clear();
            self.etag = etag.to_vec();
        }
        if self.received.len() + payload.len() > RESPONSE_BYTES_MAX {
            return Err(Failure::TooLarge);
        }
        self.received.extend_from_slice(payload);
        let number = (self.received.len() >> (size_exponent + 4)) as u32;
        self.block2 = Some(Block { number, more: false, size_exponent });
        Ok(block.more)
    }
}

pub(super) fn block2(options: Options<'_>) -> Option<Block> {
    options.number(OptionNumber::BLOCK2).and_then(|value| Block::from_value(value).ok())
}
