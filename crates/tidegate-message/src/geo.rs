//! Points on the earth.

use std::{fmt, str::FromStr};

/// A point on the earth (WGS 84), in steps of 10⁻⁷ degrees: 11 mm at the equator. It is exact, so that all nodes place it alike.
///
/// At a pole the longitude is 0, and the meridian of 180° is that of −180°: each point has one form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GeoPoint {
    latitude: i32,
    longitude: i32,
}

/// Why numbers are no point on the earth.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GeoPointError {
    /// North of the north pole or south of the south pole.
    #[error("latitude {0} is not within -90 and 90 degrees")]
    Latitude(f64),
    /// Round the earth and further.
    #[error("longitude {0} is not within -180 and 180 degrees")]
    Longitude(f64),
    /// Not two numbers.
    #[error(
        "{0:?} is no position: give latitude and longitude in degrees, such as 52.3731, 4.8922"
    )]
    Form(String),
}

impl GeoPoint {
    /// Steps of a degree.
    pub const STEPS: f64 = 1e7;
    /// 90°, in steps.
    pub const LATITUDE_STEPS_MAX: i32 = 900_000_000;
    /// 180°, in steps.
    pub const LONGITUDE_STEPS_MAX: i32 = 1_800_000_000;

    /// The point at so many degrees north and east.
    ///
    /// # Errors
    /// [`GeoPointError`]: latitudes are from −90 to 90, longitudes from −180 to 180.
    pub fn new(latitude: f64, longitude: f64) -> Result<Self, GeoPointError> {
        if !(-90.0..=90.0).contains(&latitude) {
            return Err(GeoPointError::Latitude(latitude));
        }
        if !(-180.0..=180.0).contains(&longitude) {
            return Err(GeoPointError::Longitude(longitude));
        }
        let [latitude_steps, longitude_steps] = [latitude, longitude].map(Self::steps);
        Self::from_steps(latitude_steps, longitude_steps).ok_or(GeoPointError::Latitude(latitude))
    }

    /// Degrees in steps, to the nearest one.
    pub(crate) fn steps(degrees: f64) -> i32 {
        (degrees * Self::STEPS).round() as i32
    }

    /// Steps in degrees.
    pub(crate) fn degrees(steps: i32) -> f64 {
        f64::from(steps) / Self::STEPS
    }

    /// The point at so many steps of 10⁻⁷ degrees north and east; none beyond a pole or 180°.
    pub fn from_steps(latitude: i32, longitude: i32) -> Option<Self> {
        let is_within = |value: i32, most: i32| (-most..=most).contains(&value);
        if !is_within(latitude, Self::LATITUDE_STEPS_MAX)
            || !is_within(longitude, Self::LONGITUDE_STEPS_MAX)
        {
            return None;
        }
        let longitude = match longitude {
            _ if latitude.abs() == Self::LATITUDE_STEPS_MAX => 0,
            Self::LONGITUDE_STEPS_MAX => -Self::LONGITUDE_STEPS_MAX,
            longitude => longitude,
        };
        Some(Self { latitude, longitude })
    }

    /// Steps of 10⁻⁷ degrees north.
    pub fn latitude_steps(self) -> i32 {
        self.latitude
    }

    /// Steps of 10⁻⁷ degrees east, from −1 800 000 000 to 1 799 999 999.
    pub fn longitude_steps(self) -> i32 {
        self.longitude
    }

    /// Degrees north, from −90 to 90.
    pub fn latitude(self) -> f64 {
        Self::degrees(self.latitude)
    }

    /// Degrees east, from −180 to less than 180.
    pub fn longitude(self) -> f64 {
        Self::degrees(self.longitude)
    }
}

/// As [`FromStr`] reads it.
impl fmt::Display for GeoPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.latitude(), self.longitude())
    }
}

/// Two numbers with a comma between them, in degrees.
impl FromStr for GeoPoint {
    type Err = GeoPointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || GeoPointError::Form(text.to_owned());
        let (latitude, longitude) = text.split_once(',').ok_or_else(form)?;
        let degrees = |text: &str| text.trim().parse::<f64>().map_err(|_| form());
        Self::new(degrees(latitude)?, degrees(longitude)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_has_one_form() {
        let of = |text: &str| text.parse::<GeoPoint>().expect("a point");
        assert_eq!(of("90, 12"), of("90,-77.5"), "the pole");
        assert_eq!(of("10, 180"), of("10, -180"), "the date line");
        assert_eq!(of("-0, -0").to_string(), "0, 0");
        for text in ["52.3731, 4.8922", "-90, 0", "0.0000001, -180"] {
            assert_eq!(of(text).to_string(), text);
            let point = of(text);
            let steps = (point.latitude_steps(), point.longitude_steps());
            assert_eq!(GeoPoint::from_steps(steps.0, steps.1), Some(point));
        }
    }

    #[test]
    fn impossible_positions_are_refused() {
        let of = |text: &str| text.parse::<GeoPoint>();
        assert_eq!(of("90.1, 0"), Err(GeoPointError::Latitude(90.1)));
        assert_eq!(of("0, -180.5"), Err(GeoPointError::Longitude(-180.5)));
        assert!(matches!(of("NaN, 0"), Err(GeoPointError::Latitude(_))));
        for text in ["", "1", "1; 2", "north, 2", "1, 2, 3"] {
            assert_eq!(of(text), Err(GeoPointError::Form(text.to_owned())), "{text}");
        }
        assert_eq!(GeoPoint::from_steps(900_000_001, 0), None);
        assert_eq!(GeoPoint::from_steps(0, i32::MIN), None);
    }
}
