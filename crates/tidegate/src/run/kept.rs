//! Values that a node draws once and keeps in its folder.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use tidegate_auth::password;
use tidegate_config::Purpose;
use tidegate_sys::regular;

/// A file of random bytes has fewer.
const KEPT_BYTES_MAX: u64 = 4096;

/// Random bytes that stay the same from the first start on; zeros for a check, if there are none yet.
pub(super) fn kept_random(folder: &Path, name: &str, purpose: Purpose) -> io::Result<[u8; 32]> {
    let path = folder.join(name);
    match regular::read_at_most(&path, KEPT_BYTES_MAX) {
        // More is not known of a file that is made at the next start.
        Err(error) if purpose == Purpose::Check && error.kind() == io::ErrorKind::NotFound => {
            return Ok([0; 32]);
        }
        Ok(bytes) => match bytes.try_into() {
            Ok(kept) => return Ok(kept),
            Err(_) if purpose == Purpose::Check => return Ok([0; 32]),
            Err(_) => {
                tracing::warn!(path = %path.display(), "not a file of this program; it is replaced");
            }
        },
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            tracing::warn!(path = %path.display(), "not a file of this program; it is replaced");
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let random: [u8; 32] = password::random().map_err(io::Error::other)?;
    fs::create_dir_all(folder)?;
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    file.write_all(&random)?;
    Ok(random)
}
