//! Absolute limits and times of members.

use std::time::Duration;

use tidegate_wire::limits::{ABSENCES_MAX, CAMERAS_MAX, SEAL_BYTES_MAX, SHARED_BYTES_MAX};

/// Most members that are here.
pub const PRESENT_MAX: usize = 4_096;
/// Most members that are lost, left or forgotten and still remembered.
pub const GONE_MAX: usize = 1_024;
/// Most of them that are lost or forgotten. Each takes a word of [`WORDS_MIN`] members that are here, which may be no more than those, and a
/// member has room for [`ABSENCES_MAX`] words: some stay free for those that are not lost yet.
pub const LOST_MAX: usize = 192;
/// If this node waits for as many to be lost, all observers go by one order.
pub const MANY: usize = 32;
/// Most lists of revoked certificates, each of another authority.
pub const LISTS_MAX: usize = 4;
/// Most bytes of all records.
pub const BYTES_MAX: usize = 128 << 20;
/// Most events that wait for the shell.
pub const EVENTS_MAX: usize = 16_384;
/// Most tries to dial at a time.
pub const DIALS_MAX: usize = 16;
/// Of those, the most to targets of a lane and of the ones behind it: see `dial.rs`.
pub const DIALS_OF_LANES: [usize; 3] = [DIALS_MAX, 12, 8];
/// A member is likely not to be there after so many dials in vain.
pub const VAIN_AFTER: u32 = 3;
/// Most nodes that local networks have named and that are no members yet.
pub const FOUND_MAX: usize = 64;
/// Most of them at one host.
pub const FOUND_OF_HOST_MAX: usize = 4;
/// The weight of a member, in hundredths of that of a usual one, is at least 1 and at most this.
pub const WEIGHT_MAX: u16 = 10_000;
/// Versions and numbers of records are below this, so that there is always a next one.
pub const NUMBER_MAX: u64 = 1 << 62;
/// Longest record of a member: two seals, and a record of the longest texts and lists.
pub const MEMBER_BYTES_MAX: usize = 64 << 10;
/// Longest list of cameras.
pub const CAMERAS_BYTES_MAX: usize = 512 << 10;
/// As many words make a member lost.
pub const WORDS_MIN: usize = 2;

/// A member is lost to an observer after so much of the observer's own time without a link.
pub const LOST_AFTER: Duration = Duration::from_secs(60);
/// Observers say so one after the other within this, so that a few words are said and not one by each.
pub const SPREAD: Duration = Duration::from_secs(5);
/// A link that ends is not a word to others before this: most are dialled again by then.
pub const DOUBTED_AFTER: Duration = Duration::from_secs(3);
/// A doubt was there for so long before its member is lost: time in which the member answers by way of others.
pub const ASKED_FOR: Duration = Duration::from_secs(30);
/// A member answers a doubt after this, if the link is not there again.
pub const ANSWERED_AFTER: Duration = Duration::from_secs(5);
/// A newer record is an answer only so long after the link ended: an older one may have been on its way.
pub const ANSWER_LATE: Duration = Duration::from_secs(5);
/// A member without a link that has answered, or that never had a link, is asked again after this.
pub const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// A step of time counts for so much at the most: of a longer one this node has slept or hung.
pub const STEP_MAX: Duration = Duration::from_secs(5);
/// How often time is counted while a member is missed.
pub const TICK: Duration = Duration::from_secs(1);
/// Nodes with a link compare the hash of their records so often.
pub const HASH_EVERY: Duration = Duration::from_secs(10);
/// A list follows another on a link after this, and twice that each time as long as nothing comes of it.
pub const LIST_WAIT: Duration = Duration::from_secs(10);
/// The longest of these waits.
pub const LIST_WAIT_MAX: Duration = Duration::from_secs(300);
/// This node writes a record of its own so often at the most, unless its number rises.
pub const OWN_GAP: Duration = Duration::from_secs(1);
/// A record of a member costs each other one a check of its seal, and is sent on: so many are taken over at once ...
pub const RECORDS_AT_ONCE: u32 = 64;
/// ... and another after this. A member that keeps to the rules writes one in [`OWN_GAP`].
pub const RECORD_EVERY: Duration = Duration::from_millis(500);
/// A member whose records were too many is named for so long.
pub const HURRIED_FOR: Duration = Duration::from_secs(60);
/// Of a link so much is read at once, in units of some 20 us of work ...
pub const LINK_UNITS_AT_ONCE: u32 = 16_384;
/// ... and another unit after this; the rest waits at its other end, which sends the newest alone.
pub const LINK_UNIT_EVERY: Duration = Duration::from_millis(2);
/// The records of others are saved this long after one of them changed.
pub const SAVED_AFTER: Duration = Duration::from_secs(2);
/// The records of others are saved so often at the most.
pub const SAVE_EVERY: Duration = Duration::from_secs(30);
/// A dial that failed is tried again after this, then twice that, and so on.
pub const RETRY_FIRST: Duration = Duration::from_millis(250);
/// A node that says of this one that its certificate is revoked is dialled again after this at the earliest: it may be given another list.
pub const REVOKED_RETRY: Duration = Duration::from_secs(600);
/// A link that ends before this is a try that failed.
pub const LINK_HOLDS: Duration = Duration::from_secs(30);
/// The higher of two nodes that have learnt of each other waits so long for the lower to dial.
pub const HIGHER_WAITS: Duration = Duration::from_secs(1);
/// A node that a local network has named is forgotten if it is not named again within this.
pub const FOUND_FOR: Duration = Duration::from_secs(60);
/// Another process with this node's key is answered after this, twice that, and so on.
pub const SAME_KEY_WAIT: Duration = Duration::from_secs(1);
/// The longest of these waits.
pub const SAME_KEY_WAIT_MAX: Duration = Duration::from_secs(300);
/// As many records of another process with this node's key are one that lives, if [`SAME_KEY_WITHIN`] is never between two of them.
pub const SAME_KEY_AFTER: u32 = 4;
/// See [`SAME_KEY_AFTER`].
pub const SAME_KEY_WITHIN: Duration = Duration::from_secs(900);

const _: () = assert!(LOST_MAX + 2 * MANY <= ABSENCES_MAX && LOST_MAX <= GONE_MAX);
const _: () = assert!(2 * SEAL_BYTES_MAX + CAMERAS_MAX * 66 + 64 < CAMERAS_BYTES_MAX);
const _: () = assert!(CAMERAS_BYTES_MAX <= SHARED_BYTES_MAX);
const _: () = assert!(RECORD_EVERY.as_millis() < OWN_GAP.as_millis());
const _: () = assert!(SAME_KEY_WAIT_MAX.as_secs() < SAME_KEY_WITHIN.as_secs());
