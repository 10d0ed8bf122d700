//! JSON as a stream of tokens, and the flat object.
//!
//! Strict but for one thing: a number is taken by the rules of all numbers here, so that `007` and `+5` pass. Nothing recurses:
//! unused values are skipped by counting their brackets.

use super::{Cells, Value};
use crate::bad::Reason;

/// Deepest nesting that is skipped over.
const DEPTH_MAX: usize = 64;

/// A flat object: members that are fields are read, the others are skipped.
pub(super) fn read_object(payload: &[u8], cells: &mut Cells<'_, '_>) -> Result<(), Reason> {
    let mut reader = Reader::new(payload);
    reader.object(cells, |reader, cells, name| {
        let field = match name {
            Str::Plain(name) => cells.find(b"", name),
            Str::Escaped(..) => cells.find_escaped(name),
        };
        match field {
            Some(index) => match reader.value(cells)? {
                Some(value) => cells.put(index, value),
                // An object where a value is expected is none.
                None => cells.fail(Reason::NotANumber, index),
            },
            None => reader.skip()?,
        }
        Ok(())
    })?;
    reader.end()
}

/// Where in the payload reading stands.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    payload: &'a [u8],
    at: usize,
}

/// A string of JSON.
#[derive(Clone, Copy, Debug)]
pub(super) enum Str<'a> {
    /// As it stands in the payload.
    Plain(&'a [u8]),
    /// Without its escapes in the scratch: start and bytes.
    Escaped(usize, usize),
}

impl<'a> Str<'a> {
    pub(super) fn value(self) -> Value<'a> {
        match self {
            Self::Plain(bytes) => Value::Bytes(bytes),
            Self::Escaped(start, bytes) => Value::Scratch(start, bytes),
        }
    }
}

impl Cells<'_, '_> {
    fn find_escaped(&mut self, name: Str<'_>) -> Option<usize> {
        let Str::Escaped(start, bytes) = name else { return None };
        // Lent for the search alone.
        let scratch = std::mem::take(&mut self.batch.scratch);
        let found = self.find(b"", &scratch[start..start + bytes]);
        self.batch.scratch = scratch;
        found
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Self { payload, at: 0 }
    }

    fn rest(&self) -> &'a [u8] {
        &self.payload[self.at..]
    }

    /// The next byte that is no blank.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.payload.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// Goes past `byte`, if it is next.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn need(&mut self, byte: u8) -> Result<(), Reason> {
        if self.take(byte) { Ok(()) } else { Err(Reason::Format) }
    }

    /// Nothing but blanks is left.
    pub(super) fn end(&mut self) -> Result<(), Reason> {
        if self.peek().is_none() { Ok(()) } else { Err(Reason::Format) }
    }

    /// Calls `member` for each member of an object, with its name; it reads or skips the value.
    pub(super) fn object(
        &mut self,
        cells: &mut Cells<'_, '_>,
        mut member: impl FnMut(&mut Self, &mut Cells<'_, '_>, Str<'a>) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        self.need(b'{')?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let name = self.string(cells)?;
            self.need(b':')?;
            member(self, cells, name)?;
            if !self.take(b',') {
                return self.need(b'}');
            }
        }
    }

    /// Calls `element` for each element of an array.
    pub(super) fn array(
        &mut self,
        cells: &mut Cells<'_, '_>,
        mut element: impl FnMut(&mut Self, &mut Cells<'_, '_>) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        self.need(b'[')?;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            element(self, cells)?;
            if !self.take(b',') {
                return self.need(b']');
            }
        }
    }

    /// A value that is no object and no array; those are skipped, and are none.
    pub(super) fn value(&mut self, cells: &mut Cells<'_, '_>) -> Result<Option<Value<'a>>, Reason> {
        match self.peek() {
            Some(b'"') => self.string(cells).map(|text| Some(text.value())),
            Some(b'{' | b'[') => self.skip().map(|()| None),
            Some(_) => {
                let word = self.word()?;
                Ok(Some(match word {
                    b"null" => Value::Missing,
                    b"true" => Value::Number(1.0),
                    b"false" => Value::Number(0.0),
                    _ => Value::Bytes(word),
                }))
            }
            None => Err(Reason::Format),
        }
    }

    /// A literal or number: the bytes up to the next bracket, comma or blank.
    fn word(&mut self) -> Result<&'a [u8], Reason> {
        let rest = self.rest();
        let is_part =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let length = rest.iter().take_while(|byte| is_part(byte)).count();
        if length == 0 {
            return Err(Reason::Format);
        }
        self.at += length;
        Ok(&rest[..length])
    }

    /// A string.
    pub(super) fn string(&mut self, cells: &mut Cells<'_, '_>) -> Result<Str<'a>, Reason> {
        self.need(b'"')?;
        let rest = self.rest();
        let length = plain_length(rest);
        if rest.get(length) == Some(&b'"') {
            self.at += length + 1;
            return Ok(Str::Plain(&rest[..length]));
        }
        self.escaped(&mut cells.batch.scratch)
    }

    /// A string with escapes, from its first character on.
    fn escaped(&mut self, scratch: &mut Vec<u8>) -> Result<Str<'a>, Reason> {
        let start = scratch.len();
        loop {
            let rest = self.rest();
            let length = plain_length(rest);
            scratch.extend_from_slice(&rest[..length]);
            self.at += length + 1;
            match rest.get(length) {
                Some(b'"') => return Ok(Str::Escaped(start, scratch.len() - start)),
                Some(b'\\') => {
                    let c = self.escape()?;
                    scratch.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                // A control character, or the end.
                _ => return Err(Reason::Format),
            }
        }
    }

    /// The character behind a backslash.
    fn escape(&mut self) -> Result<char, Reason> {
        let byte = *self.payload.get(self.at).ok_or(Reason::Format)?;
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                if !(0xd800..0xdc00).contains(&first) {
                    return char::from_u32(first).ok_or(Reason::Format);
                }
                // Half of a character beyond 16 bits: the other half must follow.
                if !self.rest().starts_with(b"\\u") {
                    return Err(Reason::Format);
                }
                self.at += 2;
                let second = self.hex()?;
                if !(0xdc00..0xe000).contains(&second) {
                    return Err(Reason::Format);
                }
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                char::from_u32(code).ok_or(Reason::Format)?
            }
            _ => return Err(Reason::Format),
        })
    }

    fn hex(&mut self) -> Result<u32, Reason> {
        let digits = self.rest().get(..4).ok_or(Reason::Format)?;
        self.at += 4;
        digits.iter().try_fold(0, |code, byte| {
            let digit = char::from(*byte).to_digit(16).ok_or(Reason::Format)?;
            Ok(code * 16 + digit)
        })
    }

    /// Goes past a value of any kind. Its content is checked for brackets and strings alone.
    pub(super) fn skip(&mut self) -> Result<(), Reason> {
        let mut open = [0_u8; DEPTH_MAX];
        let mut depth = 0;
        loop {
            match self.peek().ok_or(Reason::Format)? {
                byte @ (b'{' | b'[') => {
                    if depth == DEPTH_MAX {
                        return Err(Reason::Format);
                    }
                    open[depth] = byte + 2; // the bracket that closes it, in ASCII
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                byte @ (b'}' | b']') => {
                    if depth == 0 || open[depth - 1] != byte {
                        return Err(Reason::Format);
                    }
                    depth -= 1;
                    self.at += 1;
                }
                b'"' => self.skip_string()?,
                b',' | b':' if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.word()?;
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn skip_string(&mut self) -> Result<(), Reason> {
        self.at += 1;
        loop {
            let rest = self.rest();
            let length = plain_length(rest);
            match rest.get(length) {
                Some(b'"') => {
                    self.at += length + 1;
                    return Ok(());
                }
                Some(b'\\') if length + 1 < rest.len() => self.at += length + 2,
                _ => return Err(Reason::Format),
            }
        }
    }
}

/// Bytes up to the next quote, backslash or control character.
fn plain_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).unwrap_or(bytes.len())
}
