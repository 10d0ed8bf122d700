//! The fabric that a node is a member of, as an administrator sees it.

use std::{fmt::Write as _, time::Duration};

use tidegate_message::{CameraName, Code, GeoPoint, check_topic_name, words};

use crate::ApiError;

/// Most members in one answer.
pub const MEMBERS_MAX: usize = 10_000;
/// Bytes of the members in one answer, beyond the first: clients of gRPC accept 4 MiB by default.
pub const MEMBERS_BYTES_MAX: usize = 2 << 20;
/// Members in one answer, if nothing is said.
pub const MEMBERS_USUAL: usize = 1_000;
/// Levels of a topic that is looked for, as the broker allows them by default.
const TOPIC_LEVELS_MAX: usize = 256;
/// Digits of an identity that name a member, at the least.
const ID_DIGITS_MIN: usize = 8;

words! {
    /// A member's place in the fabric, as a node knows it.
    #[derive(Default, PartialOrd, Ord)]
    Standing {
        /// It takes part.
        #[default]
        Here = "here",
        /// A link to it ended, and it may come back.
        Doubted = "doubted",
        /// It did not come back in time. It is here again once it answers.
        Lost = "lost",
        /// It has left by its own word.
        Left = "left",
        /// A person has had it forgotten.
        Forgotten = "forgotten",
    }
}

/// The fabric, as one node sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FabricStatus {
    /// The identity of the node: 64 hexadecimal digits, the hash of its key.
    pub me: String,
    /// Its name.
    pub name: String,
    /// Hash of its view in hexadecimal digits: equal at nodes that know of the same.
    pub view_hash: String,
    /// The version of the algorithm by which places are computed.
    pub algorithm: u32,
    /// Members that are to own each bucket.
    pub replicas: u32,
    /// Members that are here or doubted, the node itself among them.
    pub members: u32,
    /// Members that the node has a link to.
    pub linked: u32,
    /// Members that are doubted.
    pub doubted: u32,
    /// Members that are lost.
    pub lost: u32,
    /// All that is wrong, a sentence each.
    pub problems: Vec<String>,
    /// The cells, which together are the map.
    pub cells: Vec<Cell>,
}

/// A node has left the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Messages that could not be sent and stay at the node: it sends them once it is started again, as a member.
    pub unsent: u64,
    /// The names of the members that they are for, in order.
    pub unsent_to: Vec<String>,
}

impl FabricStatus {
    /// The same with the figures of those members.
    #[must_use]
    pub fn counting(mut self, members: &[Member]) -> Self {
        let count = |is_meant: fn(&Member) -> bool| {
            let count = members.iter().filter(|member| is_meant(member)).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        self.doubted = count(|member| member.standing == Standing::Doubted);
        self.members = self.doubted + count(|member| member.standing == Standing::Here);
        self.lost = count(|member| member.standing == Standing::Lost);
        self.linked = count(|member| member.is_linked);
        self
    }
}

/// A part of the earth whose data the members in it own: a rectangle in degrees, which does not cross the meridian of 180°.
///
/// Its corners are no [`GeoPoint`]s: of these, one at a pole or on that meridian has another longitude than the edge.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// Its name, which [`Member::cell`] has.
    pub name: String,
    /// Its southern edge, from −90 to 90.
    pub south: f64,
    /// Its western edge, from −180 to 180.
    pub west: f64,
    /// Its northern edge.
    pub north: f64,
    /// Its eastern edge.
    pub east: f64,
    /// Members in it that stand still.
    pub members: u32,
}

/// A rule that a node has, each of its texts on one line: nodes of one site are meant to have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Such as `user ada`, `acl user ada`, `role viewer`.
    pub subject: String,
    /// It says so; at most 4,096 characters. No secret is in it.
    pub text: String,
}

/// A member, as one node knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// Its identity: 64 hexadecimal digits, the hash of its key.
    pub id: String,
    /// Its name, as in its certificate. Two members may have the same.
    pub name: String,
    /// Its place in the fabric.
    pub standing: Standing,
    /// Whether it is the node that was asked.
    pub is_me: bool,
    /// Whether the node that was asked has a link to it.
    pub is_linked: bool,
    /// Where other members reach it, host and port each.
    pub addresses: Vec<String>,
    /// Where applications reach its API, host and port each.
    pub api_addresses: Vec<String>,
    /// Where it is; none if it does not say.
    pub position: Option<GeoPoint>,
    /// Whether it moves: then it owns nothing by its place.
    pub is_mobile: bool,
    /// Members of one zone fail together; empty if it names none.
    pub zone: String,
    /// Its share of what members own, in hundredths of a usual one.
    pub weight: u32,
    /// The cameras that are at it.
    pub cameras: Vec<String>,
    /// Raised by the member whenever others have lost it, or it has a new start.
    pub number: u64,
    /// Drawn by chance whenever it may have lost something of what it held; 16 hexadecimal digits.
    pub start: String,
    /// The version of its record.
    pub version: u64,
    /// Filters of its clients that the node that was asked knows of.
    pub filters: u32,
    /// Round trip on the link to it; none without a link, and before the first is measured.
    pub round_trip: Option<Duration>,
    /// The cell that it is in; none if it is in none.
    pub cell: Option<String>,
    /// Why it has that standing or no link, or that it has a relay, in one sentence; none if there is nothing to say.
    pub reason: Option<String>,
}

impl Member {
    /// The member that a person means by its name, or by its identity, of which the first 8 digits are enough.
    ///
    /// # Errors
    /// [`Code::MEMBER_UNKNOWN`] if there is none, [`Code::REQUEST_INVALID`] if several are called that.
    pub fn named<'a>(members: &'a [Self], text: &str) -> Result<&'a Self, ApiError> {
        let by_name = members.iter().filter(|member| member.name == text);
        let mut meant: Vec<&Self> = by_name.collect();
        if meant.is_empty() && text.len() >= ID_DIGITS_MIN {
            let is_meant = |member: &&Self| member.id.starts_with(text);
            meant = members.iter().filter(is_meant).collect();
        }
        match meant[..] {
            [member] => Ok(member),
            [] => {
                let text = text.escape_debug();
                let text =
                    format!("no member is called {text}; `tidegate fabric members` lists them");
                Err(ApiError::new(Code::MEMBER_UNKNOWN, text))
            }
            _ => {
                let mut said = format!("{} members are called {text}:", meant.len());
                for member in &meant {
                    // A text takes what it is given.
                    let _ = write!(said, " {} ({}),", member.id, member.standing.word());
                }
                said.push_str(" name one of them by its identity");
                Err(ApiError::new(Code::REQUEST_INVALID, said))
            }
        }
    }
}

/// Which members are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembersPage {
    /// Those behind this identity; from the first on if it is empty.
    pub after: String,
    /// At most so many, 1 to [`MEMBERS_MAX`], and about [`MEMBERS_BYTES_MAX`].
    pub limit: usize,
}

/// The subject by which members are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// A topic: the members whose clients subscribe to it.
    Topic(String),
    /// A camera: the member that it is at.
    Camera(CameraName),
    /// A position: the members that own its data.
    Position(GeoPoint),
}

impl Sought {
    /// The one of the three that is there, read.
    ///
    /// # Errors
    /// [`Code::REQUEST_INVALID`] if not exactly one is there, or it is no topic or no position; [`Code::CAMERA_UNKNOWN`] if no camera can be
    /// called that.
    pub fn read(
        topic: Option<&str>,
        camera: Option<&str>,
        position: Option<&str>,
    ) -> Result<Self, ApiError> {
        match (topic, camera, position) {
            (Some(topic), None, None) => Self::topic(topic),
            (None, Some(camera), None) => Ok(Self::Camera(camera.parse()?)),
            (None, None, Some(position)) => {
                let point: GeoPoint = position.parse().map_err(invalid)?;
                Ok(Self::Position(point))
            }
            _ => Err(invalid("name one of `topic`, `camera` and `position`, and no other")),
        }
    }

    /// A topic.
    ///
    /// # Errors
    /// [`Code::REQUEST_INVALID`] if it is none, such as a filter.
    pub fn topic(text: &str) -> Result<Self, ApiError> {
        check_topic_name(text, TOPIC_LEVELS_MAX).map_err(invalid)?;
        Ok(Self::Topic(text.to_owned()))
    }
}

/// A member that was looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// Its identity.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where applications reach its API, host and port each.
    pub api_addresses: Vec<String>,
    /// The reason, in a few words.
    pub why: String,
}

fn invalid(error: impl ToString) -> ApiError {
    ApiError::new(Code::REQUEST_INVALID, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, digit: char, standing: Standing) -> Member {
        let id = digit.to_string().repeat(64);
        Member { id, name: name.to_owned(), standing, ..Member::default() }
    }

    #[test]
    fn member_is_named_by_its_name_or_by_the_begin_of_its_identity() {
        let members = [
            member("yard", '1', Standing::Here),
            member("gate", '2', Standing::Lost),
            member("gate", '3', Standing::Here),
            member("11111111", '4', Standing::Here), // names go before identities
        ];
        let id = |text: &str| Member::named(&members, text).map(|member| member.id[..1].to_owned());
        for (text, expected) in
            [("yard", "1"), ("22222222", "2"), (&"3".repeat(64), "3"), ("11111111", "4")]
        {
            assert_eq!(id(text).expect("it is there"), expected, "{text}");
        }
        for text in ["", "yar", "1111111", "1111111g", &"1".repeat(65)] {
            let refused = id(text).expect_err("there is none");
            assert_eq!(refused.code(), Code::MEMBER_UNKNOWN, "{text}");
        }
        let refused = id("gate").expect_err("there are two");
        let (lost, here) = ("2".repeat(64), "3".repeat(64));
        assert_eq!(refused.code(), Code::REQUEST_INVALID);
        assert_eq!(
            refused.message(),
            format!(
                "2 members are called gate: {lost} (lost), {here} (here), name one of them by its identity"
            )
        );
    }

    #[test]
    fn figures_are_those_of_the_members() {
        let [mut me, mut linked] =
            [member("a", '1', Standing::Here), member("b", '2', Standing::Here)];
        (me.is_me, linked.is_linked) = (true, true);
        let members = [
            me,
            linked,
            member("c", '3', Standing::Doubted),
            member("d", '4', Standing::Lost),
            member("e", '5', Standing::Lost),
            member("f", '6', Standing::Left),
            member("g", '7', Standing::Forgotten),
        ];
        let status = FabricStatus { replicas: 3, ..FabricStatus::default() }.counting(&members);
        let FabricStatus { members, linked, doubted, lost, replicas, .. } = status;
        assert_eq!((members, linked, doubted, lost, replicas), (3, 1, 1, 2, 3));
    }

    #[test]
    fn one_subject_is_looked_for_and_no_other() {
        let read = Sought::read;
        assert_eq!(read(Some("a/b"), None, None).ok(), Some(Sought::Topic("a/b".to_owned())));
        assert_eq!(
            read(None, Some("door"), None).ok(),
            Some(Sought::Camera("door".parse().expect("a name")))
        );
        let point = GeoPoint::new(52.0, -4.5).expect("a point");
        assert_eq!(read(None, None, Some("52, -4.5")).ok(), Some(Sought::Position(point)));
        for (topic, camera, position, code) in [
            (None, None, None, Code::REQUEST_INVALID),
            (Some("a"), Some("door"), None, Code::REQUEST_INVALID),
            (Some("a"), None, Some("1, 2"), Code::REQUEST_INVALID),
            (Some("a/+"), None, None, Code::REQUEST_INVALID),
            (Some(""), None, None, Code::REQUEST_INVALID),
            (None, Some("a door"), None, Code::CAMERA_UNKNOWN),
            (None, None, Some("91, 0"), Code::REQUEST_INVALID),
        ] {
            let refused = read(topic, camera, position).expect_err("not one subject");
            assert_eq!(refused.code(), code, "{topic:?} {camera:?} {position:?}");
        }
    }
}
