//! A filter: which datagrams it knows, and what it says of each.

use std::net::IpAddr;

use crate::{
    condition::{Combine, Condition},
    field::{Field, FieldError},
};

/// Longest payload of a datagram that is examined: the payload of an Ethernet packet of 1500 bytes.
pub const PAYLOAD_BYTES_MAX: u16 = 1472;
/// Most fields of a filter.
pub const FIELDS_MAX: usize = 16;
/// Most conditions of a filter.
pub const CONDITIONS_MAX: usize = 32;

/// The description of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterSpec {
    /// The port that datagrams are sent to.
    pub port: u16,
    /// The addresses that they are sent to.
    pub destination: Destination,
    /// Bytes of a payload, all of them; none for what the fields need.
    pub payload_bytes: Option<u16>,
    /// The fields of the payload.
    pub fields: Vec<Field>,
    /// How the conditions go together.
    pub combine: Combine,
    /// The conditions that a datagram must meet to be kept.
    pub conditions: Vec<Condition>,
}

/// The addresses that datagrams are sent to. On a machine that passes packets on to others, or has several listeners at one port, it
/// is a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Of IPv4.
    pub v4: Reach<[u8; 4]>,
    /// Of IPv6.
    pub v6: Reach<[u8; 16]>,
}

/// Addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach<A> {
    /// None of them.
    None,
    /// This one.
    One(A),
    /// All of them.
    Any,
}

/// A filter's decision on a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it should be and meets the conditions: it passes.
    Keep,
    /// It is as it should be and does not meet the conditions: it goes no further.
    Drop,
    /// It is not as it should be: it passes, and who receives it judges it.
    Unusual,
}

/// A filter that is right in itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    pub(crate) port: u16,
    pub(crate) destination: Destination,
    pub(crate) payload_bytes: u16,
    pub(crate) fields: Vec<Field>,
    pub(crate) combine: Combine,
    pub(crate) ranges: Vec<Range>,
}

/// A condition as what it means: values of a field, some of which it lets through and some not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Its place in the fields.
    pub(crate) field: usize,
    /// The least value that is let through, if some are less.
    pub(crate) min: Option<i128>,
    /// The greatest value that is let through, if some are greater.
    pub(crate) max: Option<i128>,
}

impl FilterSpec {
    /// Checks it.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn compile(&self) -> Result<Filter, FilterError> {
        if !(1..=FIELDS_MAX).contains(&self.fields.len()) {
            return Err(FilterError::Fields { count: self.fields.len() });
        }
        if !(1..=CONDITIONS_MAX).contains(&self.conditions.len()) {
            return Err(FilterError::Conditions { count: self.conditions.len() });
        }
        for (index, field) in self.fields.iter().enumerate() {
            field.check()?;
            if self.fields[..index].iter().any(|other| other.name == field.name) {
                return Err(FilterError::Twice { field: field.name.clone() });
            }
        }
        let end_of = |field: &Field| u32::from(field.at) + u32::from(field.encoding.bytes());
        let needed = self.fields.iter().map(end_of).max().unwrap_or(0);
        let payload_bytes = self.payload_bytes.map_or(needed, u32::from);
        if payload_bytes > u32::from(PAYLOAD_BYTES_MAX) {
            return Err(FilterError::TooLong { bytes: payload_bytes });
        }
        if let Some(field) = self.fields.iter().find(|field| end_of(field) > payload_bytes) {
            let (field, end) = (field.name.clone(), end_of(field));
            return Err(FilterError::Outside { field, end, payload_bytes });
        }
        let ranges = self.conditions.iter().map(|condition| self.range(condition));
        Ok(Filter {
            port: self.port,
            destination: self.destination,
            payload_bytes: payload_bytes as u16,
            fields: self.fields.clone(),
            combine: self.combine,
            ranges: ranges.collect::<Result<_, _>>()?,
        })
    }

    fn range(&self, condition: &Condition) -> Result<Range, FilterError> {
        let found = self.fields.iter().position(|field| field.name == condition.field);
        let field = found.ok_or_else(|| FilterError::Unknown { field: condition.field.clone() })?;
        let (least, most) = self.fields[field].domain();
        let (min, max) = condition.bound.interval(self.fields[field].decimals);
        if min > max || min > most || max < least {
            return Err(FilterError::Never { condition: condition.to_string() });
        }
        let range =
            Range { field, min: (min > least).then_some(min), max: (max < most).then_some(max) };
        if range.min.is_none() && range.max.is_none() {
            return Err(FilterError::Always { condition: condition.to_string() });
        }
        Ok(range)
    }
}

impl Destination {
    /// The packets that reach a socket bound to `address`. Of `::` that is IPv4 as well.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) if address.is_unspecified() => {
                Self { v4: Reach::Any, v6: Reach::None }
            }
            IpAddr::V4(address) => Self { v4: Reach::One(address.octets()), v6: Reach::None },
            IpAddr::V6(address) if address.is_unspecified() => {
                Self { v4: Reach::Any, v6: Reach::Any }
            }
            IpAddr::V6(address) => match address.to_ipv4_mapped() {
                Some(address) => Self::of(address.into()),
                None => Self { v4: Reach::None, v6: Reach::One(address.octets()) },
            },
        }
    }
}

impl Filter {
    /// The decision on a payload. The program says the same of a packet that carries it.
    pub fn decide(&self, payload: &[u8]) -> Verdict {
        if payload.len() != usize::from(self.payload_bytes) {
            return Verdict::Unusual;
        }
        // All of them, also those without a condition: the receiver may have to report a field that is not a number.
        let mut values = [0; FIELDS_MAX];
        for (value, field) in values.iter_mut().zip(&self.fields) {
            match field.read(payload) {
                Some(read) => *value = read,
                None => return Verdict::Unusual,
            }
        }
        let holds = |range: &Range| {
            let value = values[range.field];
            range.min.is_none_or(|min| value >= min) && range.max.is_none_or(|max| value <= max)
        };
        let is_kept = match self.combine {
            Combine::All => self.ranges.iter().all(holds),
            Combine::Any => self.ranges.iter().any(holds),
        };
        if is_kept { Verdict::Keep } else { Verdict::Drop }
    }

    /// Bytes of the payloads that it knows.
    pub fn payload_bytes(&self) -> u16 {
        self.payload_bytes
    }
}

/// Why there is no such filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// None, or too many.
    #[error("a filter has from 1 to {FIELDS_MAX} fields, not {count}")]
    Fields {
        /// How many there are.
        count: usize,
    },
    /// None, or too many.
    #[error("a filter has from 1 to {CONDITIONS_MAX} conditions, not {count}")]
    Conditions {
        /// How many there are.
        count: usize,
    },
    /// A field is none.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// Two fields have one name.
    #[error("there are two fields {field:?}")]
    Twice {
        /// Their name.
        field: String,
    },
    /// The payload does not fit a packet.
    #[error(
        "a payload of {bytes} bytes does not fit one packet, which has room for {PAYLOAD_BYTES_MAX}; longer ones pass without a filter"
    )]
    TooLong {
        /// Its length.
        bytes: u32,
    },
    /// A field lies outside the payload.
    #[error("field {field:?} ends after {end} bytes, and a payload has {payload_bytes}")]
    Outside {
        /// The field.
        field: String,
        /// Where it ends.
        end: u32,
        /// How long the payload is.
        payload_bytes: u32,
    },
    /// A condition asks for a field that there is not.
    #[error("a condition names the field {field:?}, which does not exist")]
    Unknown {
        /// The field.
        field: String,
    },
    /// A condition that no value meets.
    #[error(
        "{condition:?} never holds for a field of that length and kind; leave it out, or give the field its decimals"
    )]
    Never {
        /// The condition.
        condition: String,
    },
    /// A condition that every value meets.
    #[error(
        "{condition:?} always holds for a field of that length and kind; leave it out, or give the field its decimals"
    )]
    Always {
        /// The condition.
        condition: String,
    },
}
