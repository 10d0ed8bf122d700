//! Regions of a picture.

use std::str::FromStr;

/// A rectangle, in fractions of the picture's width and height as it is seen: 0 ≤ left < right ≤ 1, 0 ≤ top < bottom ≤ 1.
///
/// As text: `LEFT,TOP,RIGHT,BOTTOM`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Region {
    left: f32,
    top: f32,
    right: f32,
    bottom: f32,
}

/// Text or numbers that are no [`Region`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{given}\" is not a region: write LEFT,TOP,RIGHT,BOTTOM as fractions of width and height, 0 to 1, with LEFT below RIGHT and \
     TOP below BOTTOM, as in 0.25,0,0.5,0.4"
)]
pub struct RegionError {
    given: String,
}

impl Region {
    /// The whole picture.
    pub const WHOLE: Self = Self { left: 0.0, top: 0.0, right: 1.0, bottom: 1.0 };

    /// The region between these fractions.
    ///
    /// # Errors
    /// [`RegionError`] if they are out of order or range.
    pub fn new(left: f32, top: f32, right: f32, bottom: f32) -> Result<Self, RegionError> {
        let region = Self { left, top, right, bottom };
        if region.is_valid() {
            Ok(region)
        } else {
            Err(RegionError { given: format!("{left},{top},{right},{bottom}") })
        }
    }

    fn is_valid(&self) -> bool {
        let inside = |low: f32, high: f32| 0.0 <= low && low < high && high <= 1.0;
        inside(self.left, self.right) && inside(self.top, self.bottom)
    }

    /// The region, larger by `part` of its size on each side, as far as the picture goes.
    #[must_use]
    pub fn grown(self, part: f32) -> Self {
        let (wide, high) = ((self.right - self.left) * part, (self.bottom - self.top) * part);
        Self {
            left: (self.left - wide).max(0.0),
            top: (self.top - high).max(0.0),
            right: (self.right + wide).min(1.0),
            bottom: (self.bottom + high).min(1.0),
        }
    }

    /// Its edges: left, top, right and bottom.
    pub fn edges(self) -> [f32; 4] {
        [self.left, self.top, self.right, self.bottom]
    }
}

impl FromStr for Region {
    type Err = RegionError;

    fn from_str(text: &str) -> Result<Self, RegionError> {
        let numbers: Option<Vec<f32>> =
            text.split(',').map(|number| number.trim().parse().ok()).collect();
        let region = match numbers.as_deref() {
            Some(&[left, top, right, bottom]) => Self::new(left, top, right, bottom).ok(),
            _ => None,
        };
        region.ok_or_else(|| RegionError { given: text.to_owned() })
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{},{},{}", self.left, self.top, self.right, self.bottom)
    }
}

/// Several regions; as text, with `;` between.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regions(pub Vec<Region>);

impl FromStr for Regions {
    type Err = RegionError;

    fn from_str(text: &str) -> Result<Self, RegionError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        text.split(';').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl std::fmt::Display for Regions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("; "))
    }
}
