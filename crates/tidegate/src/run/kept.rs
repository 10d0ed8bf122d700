//! Values that a node draws once and keeps in its folder.

use std::{io, path::Path};

use tidegate_auth::password;
use tidegate_config::Purpose;
use tidegate_sys::{files, regular};

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
    files::folder(folder, files::PRIVATE_FOLDER)?;
    files::put(&path, &random, files::PRIVATE)?;
    Ok(random)
}
