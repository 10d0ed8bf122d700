//! Words, signs and places off the front of a text, for the forms that profiles and interests are written in.

use crate::{
    Area, AreaError, GeoBox, GeoPoint, GeoPointError,
    attribute::{AttributeError, Item, Number, SIGNS, check_text_bytes, shown},
};

/// A text whose words are taken off its front. Blanks between words and signs do not count.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

/// A word of a text.
pub(crate) struct Token {
    pub(crate) text: String,
    /// It stood in quotes, and so is no number.
    pub(crate) is_quoted: bool,
}

impl Token {
    /// The value that it is.
    pub(crate) fn item(&self) -> Item {
        if self.is_quoted { Item::text(&self.text) } else { Item::of_word(&self.text) }
    }

    /// The number that all of it is, in whatever form.
    pub(crate) fn number(&self) -> Result<Number, AttributeError> {
        match Number::scan(&self.text) {
            Some((number, "")) if !self.is_quoted => number,
            _ => Err(AttributeError::NoNumber { text: shown(&self.text) }),
        }
    }

    /// The number before a `-` and the text behind it; none if it does not begin so.
    pub(crate) fn range_begin(&self) -> Option<(Result<Number, AttributeError>, &str)> {
        let (low, rest) = Number::scan(&self.text).filter(|_| !self.is_quoted)?;
        Some((low, rest.trim_start().strip_prefix('-')?.trim_start()))
    }

    /// The two ends if all of it is a range, such as `100-105`.
    pub(crate) fn range(&self) -> Option<[Result<Number, AttributeError>; 2]> {
        let (low, rest) = self.range_begin()?;
        let (high, rest) = Number::scan(rest)?;
        rest.is_empty().then_some([low, high])
    }
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Result<Self, AttributeError> {
        check_text_bytes(text)?;
        let mut scanner = Self { text, at: 0 };
        scanner.skip_blanks();
        Ok(scanner)
    }

    fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Where the next word or sign begins, in bytes.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Takes a sign if it is the next one.
    pub(crate) fn takes(&mut self, sign: &str) -> bool {
        let is_next = self.rest().starts_with(sign);
        if is_next {
            self.at += sign.len();
            self.skip_blanks();
        }
        is_next
    }

    /// Takes a sign that has to be the next one.
    pub(crate) fn expect(
        &mut self,
        sign: &str,
        expected: &'static str,
    ) -> Result<(), AttributeError> {
        if self.takes(sign) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    /// Whether a name is negated: by a `!` before it, or one before the `=` behind it.
    pub(crate) fn is_negation(&self, name: &Token) -> bool {
        let is_unequal = name.text.ends_with('!') && self.peek() == Some('=');
        !name.is_quoted && (name.text.starts_with('!') || is_unequal)
    }

    pub(crate) fn unexpected(&self, expected: &'static str) -> AttributeError {
        AttributeError::Form { at: self.at, found: shown(self.rest()), expected }
    }

    /// A name: a word that ends at a `:` as well.
    pub(crate) fn name(&mut self) -> Result<Token, AttributeError> {
        self.word(|c| c == ':' || SIGNS.contains(&c), "a name")
    }

    /// A value.
    pub(crate) fn value(&mut self) -> Result<Token, AttributeError> {
        self.word(|c| SIGNS.contains(&c), "a value")
    }

    fn word(
        &mut self,
        ends: impl Fn(char) -> bool,
        expected: &'static str,
    ) -> Result<Token, AttributeError> {
        if self.rest().starts_with('"') {
            return self.quoted();
        }
        let end = self.rest().find(ends).unwrap_or(self.rest().len());
        let text = self.rest()[..end].trim_end().to_owned();
        if text.is_empty() {
            return Err(self.unexpected(expected));
        }
        self.at += end;
        Ok(Token { text, is_quoted: false })
    }

    fn quoted(&mut self) -> Result<Token, AttributeError> {
        let mut text = String::new();
        let mut characters = self.rest().char_indices().skip(1);
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.at += at + 1;
                    self.skip_blanks();
                    return Ok(Token { text, is_quoted: true });
                }
                '\\' => text.extend(characters.next().map(|(_, escaped)| escaped)),
                _ => text.push(character),
            }
        }
        Err(self.unexpected("a text that ends with a \""))
    }

    /// Elements up to the end, a comma between two of them. Those that stand in parentheses, as in figure 3 of R-Pulsar, need none.
    pub(crate) fn elements(
        mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), AttributeError>,
    ) -> Result<(), AttributeError> {
        while self.peek().is_some() {
            let is_enclosed = self.takes("(");
            element(&mut self)?;
            if is_enclosed {
                self.expect(")", "a )")?;
            }
            let is_next = self.takes(",") || is_enclosed && self.peek() == Some('(');
            if !is_next && self.peek().is_some() {
                return Err(self.unexpected("a comma"));
            }
            if is_next && self.peek().is_none() {
                return Err(self.unexpected("a name"));
            }
        }
        Ok(())
    }

    /// `(LATITUDE, LONGITUDE)`.
    pub(crate) fn point(&mut self) -> Result<GeoPoint, AttributeError> {
        let (latitude, longitude) = self.degrees()?;
        Ok(GeoPoint::new(latitude, longitude)?)
    }

    fn degrees(&mut self) -> Result<(f64, f64), AttributeError> {
        self.expect("(", "a place, (LATITUDE, LONGITUDE)")?;
        let latitude = self.degree()?;
        self.expect(",", "a comma and a longitude")?;
        let longitude = self.degree()?;
        self.expect(")", "a )")?;
        Ok((latitude, longitude))
    }

    fn degree(&mut self) -> Result<f64, AttributeError> {
        let word = self.value()?;
        let form = || AttributeError::Point(GeoPointError::Form(shown(&word.text).into()));
        word.text.parse().map_err(|_| form())
    }

    /// A point, `POINT within METRESm`, or a box `[(SOUTH, WEST) - (NORTH, EAST)]`; `*` for any place.
    pub(crate) fn area(&mut self) -> Result<Area, AttributeError> {
        if self.takes("*") {
            return Ok(Area::Box(GeoBox::EARTH));
        }
        if self.takes("[") {
            let (south, west) = self.degrees()?;
            self.expect("-", "a - between two corners")?;
            let (north, east) = self.degrees()?;
            self.expect("]", "a ]")?;
            return Ok(Area::Box(GeoBox::new(south, west, north, east)?));
        }
        let centre = self.point()?;
        if !self.takes("within ") {
            return Ok(Area::Point(centre));
        }
        let begin = self.at;
        let word = self.value()?;
        let radius = word.number().ok();
        let metres = radius.and_then(|radius| match radius.unit() {
            "m" => Some(radius.value()),
            "km" => Some(radius.value() * 1000.0),
            _ => None,
        });
        let Some(metres) = metres else {
            let (found, expected) = (shown(&word.text), "a radius such as 500m or 2km");
            return Err(AttributeError::Form { at: begin, found, expected });
        };
        Ok(Area::circle(centre, whole(metres)?)?)
    }
}

/// Metres as a whole number, to which a millionth may be missing: 1.001 km is 1000.9999999999999 m in floating point.
fn whole(metres: f64) -> Result<u32, AreaError> {
    let nearest = metres.round();
    match (metres - nearest).abs() <= 1e-6 && (0.0..=f64::from(u32::MAX)).contains(&nearest) {
        true => Ok(nearest as u32),
        false => Err(AreaError::Radius { metres, most: Area::METRES_MAX }),
    }
}
