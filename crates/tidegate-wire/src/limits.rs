//! Absolute limits of the node link; a peer that exceeds one is refused, never obeyed.

/// Longest encoded record.
pub const RECORD_BYTES_MAX: usize = 16 << 10;
/// Longest text field.
pub const TEXT_BYTES_MAX: usize = 1 << 10;
/// Longest part of a critical message of an uplink in one record.
pub const CRITICAL_PART_BYTES_MAX: usize = 12 << 10;
/// Most numbers in a report of a camera before version 1.3 of the link.
pub const NUMBERS_MAX: usize = 32;
/// Largest body of one frame.
pub const FRAME_BYTES_MAX: u64 = 64 << 20;
/// Largest body that follows a bulk record.
pub const BULK_BYTES_MAX: u64 = 64 << 20;
/// Highest frame rate that a camera can announce.
pub const FRAMES_PER_SECOND_MAX: f64 = 1000.0;

/// Most records in one part of a digest of a member.
pub const DIGEST_ENTRIES_MAX: usize = 300;
/// Most filters in one part of a member's interests, which are at most [`CRITICAL_PART_BYTES_MAX`] bytes together.
pub const FILTERS_MAX: usize = 1 << 10;
/// Most clients, verdicts on clients, and ends of disputes in one record of a member, which are at most [`CRITICAL_PART_BYTES_MAX`] bytes
/// together.
pub const CLIENT_CLAIMS_MAX: usize = 512;
/// Longest record that members share: a list of revoked certificates of some 30,000 entries.
pub const SHARED_BYTES_MAX: usize = 1 << 20;
/// Longest certificate or signature of such a record.
pub const SEAL_BYTES_MAX: usize = 4 << 10;
/// Most addresses of a member.
pub const ADDRESSES_MAX: usize = 8;
/// Most members that one misses by its own word.
pub const ABSENCES_MAX: usize = 256;
/// Most cameras at a member that others know of.
pub const CAMERAS_MAX: usize = 4096;

const _: () = assert!(DIGEST_ENTRIES_MAX * 41 + 64 < RECORD_BYTES_MAX);
const _: () = assert!(CRITICAL_PART_BYTES_MAX + 64 < RECORD_BYTES_MAX);
// The longest records are a few texts and, in a report of version 1.2, `NUMBERS_MAX` named numbers of 64 bytes of name.
pub(crate) const NAME_BYTES_MAX: usize = 64;
const _: () = assert!(8 * TEXT_BYTES_MAX + NUMBERS_MAX * (NAME_BYTES_MAX + 16) < RECORD_BYTES_MAX);
