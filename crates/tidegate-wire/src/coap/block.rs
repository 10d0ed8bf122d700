//! The value of the options Block1 and Block2 (RFC 7959 section 2.2).

/// Which part of a payload a message carries or asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Counts blocks of this size from 0; below 2^20.
    pub number: u32,
    /// Whether more blocks follow.
    pub more: bool,
    /// 0 to 6: the block has `16 << size_exponent` bytes.
    pub size_exponent: u8,
}

impl Block {
    /// The largest size, 1024 bytes.
    pub const SIZE_EXPONENT_MAX: u8 = 6;
    /// The highest number.
    pub const NUMBER_MAX: u32 = (1 << 20) - 1;

    /// The block that an option's value says.
    ///
    /// # Errors
    ///
    /// [`BlockError`] for the size exponent 7.
    pub fn from_value(value: u32) -> Result<Self, BlockError> {
        let size_exponent = (value & 0b111) as u8;
        if size_exponent > Self::SIZE_EXPONENT_MAX {
            return Err(BlockError);
        }
        let number = value >> 4 & Self::NUMBER_MAX;
        Ok(Self { number, more: value & 0b1000 != 0, size_exponent })
    }

    /// The option's value.
    pub fn value(self) -> u32 {
        self.number.min(Self::NUMBER_MAX) << 4
            | u32::from(self.more) << 3
            | u32::from(self.size_exponent.min(Self::SIZE_EXPONENT_MAX))
    }

    /// Bytes of each block but the last.
    pub fn bytes(self) -> usize {
        16 << self.size_exponent
    }

    /// Where the block begins in the payload.
    pub fn offset(self) -> usize {
        self.number as usize * self.bytes()
    }
}

/// A block's size exponent is 7, which is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block size exponent is 7, which is reserved; 6 is the most (RFC 7959, 2.2)")]
pub struct BlockError;
