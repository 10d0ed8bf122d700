//! Areas of the earth: a point, a box, or a circle.

use std::fmt;

use crate::GeoPoint;

/// A box of the earth: the points between two parallels and two meridians, its sides included.
///
/// It goes from its western side to the east, and so over the date line where its eastern side is a smaller number: 170 to −170 is 20°
/// wide. A pole is every longitude, so that a box that reaches it contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GeoBox {
    // In steps of 10⁻⁷ degrees. No points: 180° is another side than −180°, and a corner at a pole has a longitude.
    south: i32,
    west: i32,
    north: i32,
    east: i32,
}

/// An area that a place may lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Area {
    /// That point alone.
    Point(GeoPoint),
    /// All points of a box.
    Box(GeoBox),
    /// All points that are as far from the circle's centre as its radius, or less; made by [`Area::circle`].
    Circle(Circle),
}

/// All points within a distance of its centre, on a sphere of the earth's mean radius: distances are right within 0.6 %.
///
/// The distance is computed in floating point, so that of two machines one may take a point that lies within a micrometre of the edge and the
/// other not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Circle {
    centre: GeoPoint,
    metres: u32,
}

/// Why numbers are no area.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AreaError {
    /// A side beyond a pole.
    #[error("latitude {0} of a box is not within -90 and 90 degrees")]
    Latitude(f64),
    /// A side beyond 180°.
    #[error(
        "longitude {0} of a box is not within -180 and 180 degrees; a box over the date line has its western side first, as in \
         [(10, 170) - (20, -170)]"
    )]
    Longitude(f64),
    /// The northern side is south of the southern one.
    #[error("a box from {south} to {north} degrees north is empty; write its southern side first")]
    Order {
        /// The southern side, in degrees.
        south: f64,
        /// The northern side, in degrees.
        north: f64,
    },
    /// A radius that is no number of whole metres, or more than half of the way around the earth.
    #[error("a radius of {metres} m is not a whole number from 0 to {most}")]
    Radius {
        /// The radius found, in metres.
        metres: f64,
        /// The largest one.
        most: u32,
    },
}

impl GeoBox {
    /// All of the earth.
    pub const EARTH: Self = Self {
        south: -GeoPoint::LATITUDE_STEPS_MAX,
        west: -GeoPoint::LONGITUDE_STEPS_MAX,
        north: GeoPoint::LATITUDE_STEPS_MAX,
        east: GeoPoint::LONGITUDE_STEPS_MAX,
    };

    /// The box between these sides, in degrees north and east.
    ///
    /// # Errors
    /// [`AreaError::Latitude`] and [`AreaError::Longitude`] outside ±90 and ±180, [`AreaError::Order`] if `north` is less than `south`.
    pub fn new(south: f64, west: f64, north: f64, east: f64) -> Result<Self, AreaError> {
        if let Some(latitude) = [south, north].into_iter().find(|it| !(-90.0..=90.0).contains(it)) {
            return Err(AreaError::Latitude(latitude));
        }
        let is_longitude = |it: &f64| (-180.0..=180.0).contains(it);
        if let Some(longitude) = [west, east].into_iter().find(|it| !is_longitude(it)) {
            return Err(AreaError::Longitude(longitude));
        }
        if south > north {
            return Err(AreaError::Order { south, north });
        }
        let [south, west, north, east] = [south, west, north, east].map(GeoPoint::steps);
        Ok(Self { south, west, north, east })
    }

    /// The southern and the northern side, in steps of 10⁻⁷ degrees north.
    pub fn latitude_steps(self) -> (i32, i32) {
        (self.south, self.north)
    }

    /// The western and the eastern side, in steps of 10⁻⁷ degrees east, −180° and 180° included; the western one is the larger number where
    /// the box goes over the date line.
    pub fn longitude_steps(self) -> (i32, i32) {
        (self.west, self.east)
    }

    /// Whether it reaches a pole.
    pub fn has_a_pole(self) -> bool {
        [self.south, self.north].iter().any(|side| side.abs() == GeoPoint::LATITUDE_STEPS_MAX)
    }

    /// Whether a point lies in it.
    pub fn contains(self, point: GeoPoint) -> bool {
        let (latitude, longitude) = (point.latitude_steps(), point.longitude_steps());
        if !(self.south..=self.north).contains(&latitude) {
            return false;
        }
        let is_pole = latitude.abs() == GeoPoint::LATITUDE_STEPS_MAX;
        let is_date_line = longitude == -GeoPoint::LONGITUDE_STEPS_MAX
            && self.east == GeoPoint::LONGITUDE_STEPS_MAX;
        let is_between = match self.west <= self.east {
            true => (self.west..=self.east).contains(&longitude),
            false => longitude >= self.west || longitude <= self.east,
        };
        is_pole || is_date_line || is_between
    }
}

impl Area {
    /// The longest radius, in metres: half of the way around the earth.
    pub const METRES_MAX: u32 = 20_015_115;

    /// All points within so many whole metres of another one.
    ///
    /// # Errors
    /// [`AreaError::Radius`] for more than [`Area::METRES_MAX`].
    pub fn circle(centre: GeoPoint, metres: u32) -> Result<Self, AreaError> {
        if metres > Self::METRES_MAX {
            return Err(AreaError::Radius { metres: metres.into(), most: Self::METRES_MAX });
        }
        Ok(Self::Circle(Circle { centre, metres }))
    }

    /// Whether a point lies in it.
    pub fn contains(self, point: GeoPoint) -> bool {
        match self {
            Self::Point(own) => own == point,
            Self::Box(own) => own.contains(point),
            Self::Circle(circle) => circle.contains(point),
        }
    }

    /// A box with all its points, of a circle a little more than the least one.
    pub fn bounds(self) -> GeoBox {
        match self {
            Self::Point(point) => {
                let (latitude, longitude) = (point.latitude_steps(), point.longitude_steps());
                GeoBox { south: latitude, west: longitude, north: latitude, east: longitude }
            }
            Self::Box(own) => own,
            Self::Circle(circle) => circle.bounds(),
        }
    }
}

impl Circle {
    /// The mean radius of the earth, in metres (IUGG).
    const EARTH_METRES: f64 = 6_371_008.8;
    /// Degrees by which the box around a circle is larger: a metre, for the digits that floating point loses.
    const MARGIN_DEGREES: f64 = 1e-5;

    /// Its centre.
    pub fn centre(self) -> GeoPoint {
        self.centre
    }

    /// Its radius.
    pub fn metres(self) -> u32 {
        self.metres
    }

    /// By the haversine formula, which is right for small distances as well.
    fn contains(self, point: GeoPoint) -> bool {
        let half = |from: f64, to: f64| ((to - from).to_radians() / 2.0).sin().powi(2);
        let (from, to) = (self.centre.latitude(), point.latitude());
        let across = from.to_radians().cos() * to.to_radians().cos();
        let haversine = half(from, to) + across * half(self.centre.longitude(), point.longitude());
        2.0 * Self::EARTH_METRES * haversine.sqrt().min(1.0).asin() <= f64::from(self.metres)
    }

    fn bounds(self) -> GeoBox {
        let angle = f64::from(self.metres) / Self::EARTH_METRES;
        let reach = angle.to_degrees() + Self::MARGIN_DEGREES;
        let (latitude, longitude) = (self.centre.latitude(), self.centre.longitude());
        let (south, north) = ((latitude - reach).max(-90.0), (latitude + reach).min(90.0));
        let ratio = angle.sin() / latitude.to_radians().cos();
        let wide = ratio.asin().to_degrees() + Self::MARGIN_DEGREES;
        let has_a_pole = south == -90.0 || north == 90.0;
        let (west, east) = match has_a_pole || wide.is_nan() {
            true => (-180.0, 180.0),
            false => (Self::around(longitude - wide), Self::around(longitude + wide)),
        };
        let [south, west, north, east] = [south, west, north, east].map(GeoPoint::steps);
        GeoBox { south, west, north, east }
    }

    /// The longitude of that many degrees, which may go over the date line.
    fn around(degrees: f64) -> f64 {
        match degrees {
            ..-180.0 => degrees + 360.0,
            180.0.. => degrees - 360.0,
            _ => degrees,
        }
    }
}

impl fmt::Display for GeoBox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [south, west, north, east] =
            [self.south, self.west, self.north, self.east].map(GeoPoint::degrees);
        write!(f, "[({south}, {west}) - ({north}, {east})]")
    }
}

/// As the text of an interest has it.
impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Point(point) => write!(f, "({point})"),
            Self::Box(own) => own.fmt(f),
            Self::Circle(Circle { centre, metres }) => write!(f, "({centre}) within {metres}m"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(latitude: f64, longitude: f64) -> GeoPoint {
        GeoPoint::new(latitude, longitude).expect("a point")
    }

    #[test]
    fn boxes_go_over_the_date_line_and_reach_the_poles() {
        for (sides, point, expected, note) in [
            ((40.0, -75.0, 41.0, -74.0), (40.0583, -74.4056), true, "inside"),
            ((40.0, -75.0, 41.0, -74.0), (40.0, -75.0), true, "the corner belongs to it"),
            ((40.0, -75.0, 41.0, -74.0), (41.000_000_1, -74.5), false, "north of it"),
            ((10.0, 170.0, 20.0, -170.0), (15.0, 175.0), true, "west of the date line"),
            ((10.0, 170.0, 20.0, -170.0), (15.0, -175.0), true, "east of it"),
            ((10.0, 170.0, 20.0, -170.0), (15.0, 0.0), false, "the other side of the earth"),
            ((10.0, 170.0, 20.0, 180.0), (15.0, -180.0), true, "the date line itself"),
            ((10.0, -180.0, 20.0, 180.0), (15.0, 3.0), true, "all around"),
            ((80.0, 10.0, 90.0, 20.0), (90.0, 50.0), true, "a pole is every longitude"),
            ((80.0, 10.0, 90.0, 20.0), (89.0, 50.0), false, "east of it"),
        ] {
            let (south, west, north, east) = sides;
            let own = GeoBox::new(south, west, north, east).expect("a box");
            assert_eq!(own.contains(at(point.0, point.1)), expected, "{note}: {own}");
        }
        assert!(GeoBox::EARTH.contains(at(-90.0, 0.0)) && GeoBox::EARTH.contains(at(0.0, 180.0)));
    }

    #[test]
    fn impossible_areas_are_refused() {
        assert_eq!(GeoBox::new(91.0, 0.0, 0.0, 0.0), Err(AreaError::Latitude(91.0)));
        assert_eq!(GeoBox::new(0.0, 0.0, 1.0, 181.0), Err(AreaError::Longitude(181.0)));
        let order = AreaError::Order { south: 2.0, north: 1.0 };
        assert_eq!(GeoBox::new(2.0, 0.0, 1.0, 0.0), Err(order));
        assert!(matches!(GeoBox::new(f64::NAN, 0.0, 1.0, 0.0), Err(AreaError::Latitude(_))));
        for metres in [Area::METRES_MAX + 1, u32::MAX] {
            let circle = Area::circle(at(0.0, 0.0), metres);
            assert!(matches!(circle, Err(AreaError::Radius { .. })), "{metres}");
        }
    }

    #[test]
    fn a_degree_of_latitude_is_111_kilometres() {
        let circle = |metres| Area::circle(at(52.0, 4.0), metres).expect("a circle");
        assert!(circle(111_200).contains(at(53.0, 4.0)));
        assert!(!circle(111_100).contains(at(53.0, 4.0)));
        assert!(circle(0).contains(at(52.0, 4.0)));
        assert!(circle(Area::METRES_MAX).contains(at(-52.0, -176.0)), "opposite");
    }

    proptest! {
        #[test]
        fn a_box_around_a_circle_has_all_of_it(
            latitude in -90.0..=90.0_f64, longitude in -180.0..=180.0_f64,
            north in -1.0..=1.0_f64, east in -1.0..=1.0_f64, metres in 0..=Area::METRES_MAX, scale in 0..20
        ) {
            let metres: u32 = metres >> scale;
            let centre = at(latitude, longitude);
            let circle = Area::circle(centre, metres).expect("a circle");
            // Near its edge, wherever that is on the earth.
            let degrees = f64::from(metres) / 111_195.0;
            let narrow = latitude.to_radians().cos().max(1e-3);
            let north: f64 = latitude + north * degrees;
            let east: f64 = longitude + east * degrees / narrow;
            let other = at(north.clamp(-90.0, 90.0), (east + 540.0).rem_euclid(360.0) - 180.0);
            prop_assert!(circle.contains(centre) && circle.bounds().contains(centre));
            prop_assert!(!circle.contains(other) || circle.bounds().contains(other), "{other}");
        }
    }
}
