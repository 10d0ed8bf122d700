//! The metadata of a JPEG image that a reader heeds: how it is turned, how its colours are read, the shape of its pixels.
//!
//! A picture that is encoded again carries these along, so that it is seen as the one it was made from:
//!
//! | from | carried as |
//! |---|---|
//! | the orientation of EXIF (tag 274 of its first directory), unless it is upright | an EXIF segment of 36 bytes with this one tag, in the byte order and the type that it came in |
//! | an ICC profile, all its segments | the same bytes, unless the colours are gone |
//! | the density of JFIF | the same |
//!
//! The picture is not turned instead: coefficients can be turned only where the sides are whole units, and who reads the pixels as
//! they are stored would then see another picture than in the original. Adobe's segment is not needed: the output is JFIF, which
//! says Y, Cb, Cr. All else, such as places, serial numbers, comments and thumbnails, stays behind.
//!
//! Always true: whatever the segments hold, at most their own bytes and 36 more are carried.

/// How a stored picture is turned to be seen (EXIF 2.32, 4.6.4 A, tag 274).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orientation(u8);

impl Orientation {
    /// As it is stored.
    pub const UPRIGHT: Self = Self(1);

    /// The orientation of that value, 1 to 8.
    pub fn new(value: u32) -> Option<Self> {
        u8::try_from(value).ok().filter(|value| (1..=8).contains(value)).map(Self)
    }

    /// The orientation that EXIF says, by the content of its segment in a JPEG image (`Exif`, two zeros, a TIFF file); upright where it says
    /// none or none that can be read. The chunk `eXIf` of PNG is the TIFF file alone.
    pub fn of_exif(segment: &[u8]) -> Self {
        orientation(segment)
    }

    /// Its value, 1 to 8.
    pub const fn value(self) -> u8 {
        self.0
    }

    /// Width and height as seen of a picture that is stored with these.
    pub const fn seen(self, width: u16, height: u16) -> (u16, u16) {
        if self.0 >= 5 { (height, width) } else { (width, height) }
    }

    /// Where a rectangle of the seen picture lies in the stored one: left, top, right and bottom, in fractions of the
    /// width and height of the one and of the other.
    pub fn stored(self, [left, top, right, bottom]: [f32; 4]) -> [f32; 4] {
        let (mirrored_x, mirrored_y) = ((1.0 - right, 1.0 - left), (1.0 - bottom, 1.0 - top));
        let (x, y) = ((left, right), (top, bottom));
        // Column and row of the stored picture, by where the standard puts its first row and column.
        let (across, down) = match self.0 {
            2 => (mirrored_x, y),
            3 => (mirrored_x, mirrored_y),
            4 => (x, mirrored_y),
            5 => (y, x),
            6 => (y, mirrored_x),
            7 => (mirrored_y, mirrored_x),
            8 => (mirrored_y, x),
            _ => (x, y),
        };
        [across.0, down.0, across.1, down.1]
    }
}

impl Default for Orientation {
    fn default() -> Self {
        Self::UPRIGHT
    }
}

/// The colours of a picture after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// They are those of the source: its profile says what they are.
    Kept,
    /// They are gone, or are other quantities now: a profile of colours would be wrong.
    Gone,
}

/// Marker, length, `Exif`, and a TIFF file of one directory with one entry.
const EXIF_BYTES: usize = 36;
const EXIF_NAME: &[u8] = b"Exif\0";
const PROFILE_NAME: &[u8] = b"ICC_PROFILE\0";
const ORIENTATION_TAG: u16 = 274;
const ENTRY_BYTES: usize = 12;

/// The metadata to carry from one picture to another; its buffer is reused.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    segments: Vec<u8>,
    /// Unit, and density across and down, as JFIF has them.
    density: Option<[u8; 5]>,
}

impl Metadata {
    /// Reads what is to be carried from the segments of an image before its first scan, each with its marker.
    pub(crate) fn read<'a>(
        &mut self,
        segments: impl Iterator<Item = (u8, &'a [u8])>,
        colours: Colours,
    ) {
        self.segments.clear();
        self.density = None;
        let mut exif = false;
        for (marker, segment) in segments {
            match marker {
                0xe0 if segment.starts_with(b"JFIF\0") => {
                    self.density = segment.get(7..12).and_then(|density| density.try_into().ok());
                }
                // The first one counts, as in the header.
                0xe1 if is_exif(segment) && !std::mem::replace(&mut exif, true) => {
                    if let Some(entry) = Entry::find(segment)
                        && entry.orientation != Orientation::UPRIGHT
                    {
                        self.segments.extend_from_slice(&entry.alone());
                    }
                }
                0xe2 if segment.starts_with(PROFILE_NAME) && colours == Colours::Kept => {
                    let length = u16::try_from(segment.len() + 2).expect("a segment has a length");
                    self.segments.extend_from_slice(&[0xff, 0xe2]);
                    self.segments.extend_from_slice(&length.to_be_bytes());
                    self.segments.extend_from_slice(segment);
                }
                _ => {}
            }
        }
    }

    /// Puts it into an image that the encoder made: behind its JFIF segment, which stands first.
    pub(crate) fn put_into(&self, jpeg: &mut Vec<u8>) {
        const JFIF: usize = 2 + 2 + 16;
        const DENSITY: usize = 2 + 2 + 2 + 5 + 2;
        assert_eq!(jpeg.get(2..4), Some(&[0xff, 0xe0][..]), "the encoder writes JFIF");
        if let Some(density) = self.density {
            jpeg[DENSITY..][..density.len()].copy_from_slice(&density);
        }
        let (length, added) = (jpeg.len(), self.segments.len());
        if added > 0 {
            jpeg.resize(length + added, 0);
            jpeg.copy_within(JFIF..length, JFIF + added);
            jpeg[JFIF..][..added].copy_from_slice(&self.segments);
        }
    }
}

pub(crate) fn is_exif(segment: &[u8]) -> bool {
    // The byte behind the name is padding, and not always zero.
    segment.starts_with(EXIF_NAME) && segment.len() > EXIF_NAME.len()
}

/// The orientation that an EXIF segment says, upright where it says none or none that can be read.
pub(crate) fn orientation(segment: &[u8]) -> Orientation {
    Entry::find(segment).map_or(Orientation::UPRIGHT, |entry| entry.orientation)
}

/// The entry of the orientation in the first directory; the directories behind it are of the thumbnail.
struct Entry {
    orientation: Orientation,
    big_endian: bool,
    bytes: [u8; ENTRY_BYTES],
}

impl Entry {
    fn find(segment: &[u8]) -> Option<Self> {
        let tiff = segment.get(EXIF_NAME.len() + 1..)?;
        let big_endian = match tiff.get(..2)? {
            b"MM" => true,
            b"II" => false,
            _ => return None,
        };
        let short = |bytes: &[u8]| {
            let bytes: [u8; 2] = bytes.get(..2)?.try_into().ok()?;
            Some(if big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
        };
        let long = |bytes: &[u8]| {
            let bytes: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
            Some(if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
        };
        if short(&tiff[2..])? != 42 {
            return None;
        }
        let directory = tiff.get(usize::try_from(long(tiff.get(4..)?)?).ok()?..)?;
        let entries = directory.get(2..)?.chunks_exact(ENTRY_BYTES);
        let entry = entries
            .take(usize::from(short(directory)?))
            .find(|entry| short(entry) == Some(ORIENTATION_TAG))?;
        let (kind, count, value) = (short(&entry[2..])?, long(&entry[4..])?, &entry[8..]);
        // BYTE, SHORT, LONG; the standard has a SHORT here.
        let value = match kind {
            1 => u32::from(value[0]),
            3 => u32::from(short(value)?),
            4 => long(value)?,
            _ => return None,
        };
        let orientation = Orientation::new(value).filter(|_| count == 1)?;
        Some(Self { orientation, big_endian, bytes: entry.try_into().ok()? })
    }

    /// A segment with this entry and nothing else. The entry stays as it was written: readers differ in what they take.
    fn alone(&self) -> [u8; EXIF_BYTES] {
        let mut out = [0; EXIF_BYTES];
        out[..4].copy_from_slice(&[0xff, 0xe1, 0, EXIF_BYTES as u8 - 2]);
        out[4..9].copy_from_slice(EXIF_NAME);
        let head: [u8; 10] = if self.big_endian {
            *b"MM\0\x2a\0\0\0\x08\0\x01"
        } else {
            *b"II\x2a\0\x08\0\0\0\x01\0"
        };
        out[10..20].copy_from_slice(&head);
        out[20..32].copy_from_slice(&self.bytes);
        out
    }
}
