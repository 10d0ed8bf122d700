//! The certificates that an authority made: a line for each, so that one can be revoked whose file is elsewhere.
//!
//! ```text
//!  3f07c2…9d camera cam7 2082758400      serial number, kind, name, end in seconds since the Unix epoch
//! ```

use std::{
    fmt,
    io::{self, Write as _},
    path::Path,
    str::FromStr,
};

use rustls_pki_types::CertificateDer;
use tidegate_sys::{files, regular};

use super::{Kind, PkiError, Serial, checked_name, identity_of, validity};

/// The file, next to the authority's key.
pub const ISSUED_FILE: &str = "issued.txt";

/// A certificate that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Its serial number.
    pub serial: Serial,
    /// Its kind.
    pub kind: Kind,
    /// The name in it.
    pub name: String,
    /// When it ends, in seconds since the Unix epoch.
    pub until_s: i64,
}

impl Issued {
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Self, PkiError> {
        let peer = identity_of(certificate)?;
        let until = validity(certificate).map_or(i64::MAX, |(_, until)| until.as_nanos());
        let until_s = until.div_euclid(1_000_000_000);
        Ok(Self { serial: peer.serial, kind: peer.kind, name: peer.name, until_s })
    }
}

impl fmt::Display for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.serial, self.kind, self.name, self.until_s)
    }
}

impl FromStr for Issued {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let words: Vec<&str> = line.split(' ').collect();
        let [serial, kind, name, until] = words[..] else { return Err(()) };
        checked_name(name).map_err(|_| ())?;
        Ok(Self {
            serial: serial.parse()?,
            kind: kind.parse()?,
            name: name.to_owned(),
            until_s: until.parse().map_err(|_| ())?,
        })
    }
}

/// Those that were made with the authority in `dir`. Lines that are none of ours, such as one that a full disk cut short, are
/// passed over: certificates can be revoked by their serial number or file as well.
///
/// # Errors
/// [`PkiError::Read`].
pub fn issued(dir: &Path) -> Result<Vec<Issued>, PkiError> {
    let path = dir.join(ISSUED_FILE);
    match regular::read_to_string(&path) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(PkiError::Read { path, source }),
    }
}

/// Writes down that these were made.
pub(super) fn record(dir: &Path, new: &[Issued]) -> Result<(), PkiError> {
    let path = dir.join(ISSUED_FILE);
    let lines: String = new.iter().map(|issued| format!("{issued}\n")).collect();
    let appended = files::append(&path, files::PRIVATE).and_then(|mut file| {
        file.write_all(lines.as_bytes())?;
        file.sync_all()
    });
    appended.map_err(|source| PkiError::Write { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        for line in ["3f07c29d camera cam7 1767225600", "01 node edge 9223372036"] {
            assert_eq!(line.parse::<Issued>().unwrap().to_string(), line);
        }
        for line in ["", "3f camera cam7", "xy camera cam7 1", "3f king cam7 1", "3f node ../x 1"] {
            assert!(line.parse::<Issued>().is_err(), "{line}");
        }
    }
}
