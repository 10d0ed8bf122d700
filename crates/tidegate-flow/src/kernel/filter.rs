//! Filters without state: by range, by text, by what is there.

use super::Context;
use crate::batch::Column;

/// Keeps values within bounds.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) input: usize,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) keep_missing: bool,
}

impl Range {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let values = &context.batch.numbers[self.input];
        let alive = &mut context.batch.alive;
        let is_kept = |value: f64| {
            ((value >= self.min) & (value <= self.max)) | (self.keep_missing & value.is_nan())
        };
        // Most of the time nothing is out of range, which is seen of many values at a time.
        if alive.is_whole()
            && values[..alive.len()].iter().fold(true, |all, value| all & is_kept(*value))
        {
            return;
        }
        let before = alive.len();
        alive.retain(|row| is_kept(values[usize::from(row)]));
        context.stats.filtered += (before - context.batch.alive.len()) as u64;
    }
}

/// Keeps texts that match.
#[derive(Debug)]
pub(crate) struct StringMatch {
    pub(crate) input: Column,
    pub(crate) equals: Vec<Box<[u8]>>,
    pub(crate) starts_with: Vec<Box<[u8]>>,
    pub(crate) ends_with: Vec<Box<[u8]>>,
    pub(crate) contains: Vec<Part>,
    pub(crate) invert: bool,
}

impl StringMatch {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let before = context.batch.alive.len();
        let mut alive = context.batch.alive.clone();
        alive.retain(|row| {
            let message = &context.messages[usize::from(row)];
            let text = context.batch.text_of(self.input, row, message, context.fixed);
            text.is_some_and(|text| self.matches(text) != self.invert)
        });
        context.batch.alive = alive;
        context.stats.filtered += (before - context.batch.alive.len()) as u64;
    }

    fn matches(&self, text: &[u8]) -> bool {
        self.equals.iter().any(|whole| **whole == *text)
            || self.starts_with.iter().any(|part| text.starts_with(part))
            || self.ends_with.iter().any(|part| text.ends_with(part))
            || self.contains.iter().any(|part| part.is_in(text))
    }
}

/// Bytes that are looked for, by Knuth, Morris and Pratt: each byte of a text is looked at once, whatever both hold.
#[derive(Debug)]
pub(crate) struct Part {
    bytes: Box<[u8]>,
    /// How many bytes still fit where one more does not.
    back: Box<[u32]>,
}

impl Part {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut back = vec![0; bytes.len()];
        let mut fits = 0;
        for at in 1..bytes.len() {
            while fits > 0 && bytes[at] != bytes[fits] {
                fits = back[fits - 1] as usize;
            }
            fits += usize::from(bytes[at] == bytes[fits]);
            back[at] = fits as u32;
        }
        Self { bytes: bytes.into(), back: back.into() }
    }

    fn is_in(&self, text: &[u8]) -> bool {
        let mut fits = 0;
        for byte in text {
            if fits == self.bytes.len() {
                break;
            }
            while fits > 0 && *byte != self.bytes[fits] {
                fits = self.back[fits - 1] as usize;
            }
            fits += usize::from(*byte == self.bytes[fits]);
        }
        fits == self.bytes.len()
    }
}

/// Keeps rows whose fields are there.
#[derive(Debug)]
pub(crate) struct Keep {
    pub(crate) present: Vec<Column>,
    pub(crate) when: Option<usize>,
}

impl Keep {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let before = context.batch.alive.len();
        let mut alive = context.batch.alive.clone();
        let batch = &context.batch;
        alive.retain(|row| {
            let index = usize::from(row);
            let is_present = |column: &Column| match column {
                Column::Number(column) => !batch.numbers[*column][index].is_nan(),
                Column::Text(column) => !batch.texts[*column][index].is_missing(),
                Column::Topic => true,
            };
            self.present.iter().all(is_present)
                && self.when.is_none_or(|when| is_set(batch.numbers[when][index]))
        });
        context.batch.alive = alive;
        context.stats.filtered += (before - context.batch.alive.len()) as u64;
    }
}

/// Whether a number says yes: it is there and not 0.
#[inline]
pub(super) fn is_set(value: f64) -> bool {
    (value != 0.0) & !value.is_nan()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_wherever_they_are() {
        for (part, text, expected) in [
            ("", "", true),
            ("", "x", true),
            ("a", "", false),
            ("ab", "aab", true),
            ("aab", "aaab", true),
            ("abab", "abaabab", true),
            ("abac", "ababac", true),
            ("abc", "abab", false),
            ("end", "the end", true),
        ] {
            assert_eq!(
                Part::new(part.as_bytes()).is_in(text.as_bytes()),
                expected,
                "{part} {text}"
            );
        }
        // All texts of three letters up to five bytes, against the definition.
        let texts: Vec<Vec<u8>> = (0..=5_u32)
            .flat_map(|length| (0..3_u32.pow(length)).map(move |code| (length, code)))
            .map(|(length, code)| {
                (0..length).map(|at| b'a' + (code / 3_u32.pow(at) % 3) as u8).collect()
            })
            .collect();
        for part in texts.iter().filter(|part| (1..=3).contains(&part.len())) {
            let searched = Part::new(part);
            for text in &texts {
                let expected = text.windows(part.len()).any(|window| window == part);
                assert_eq!(searched.is_in(text), expected, "{part:?} {text:?}");
            }
        }
    }
}
