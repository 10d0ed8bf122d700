//! The state of a node as a member of a fabric.

use std::path::Path;

use tidegate_fabric::members::Saved;
use tidegate_sys::regular;

use super::{Examination, files};

/// The files of a member, as `tidegate-nodes` writes them.
const OWN: &str = "own";
const RECORDS: &str = "records";
/// The state of as many members as there may be has less.
const BYTES_MAX: u64 = 64 << 20;

pub(super) fn examine(found: &mut Examination, folder: &Path, is_member: bool) {
    // A node that was never a member has none.
    if !folder.exists() || !files::folder(found, folder) {
        return;
    }
    let mut texts = [None, None];
    for (name, entry, metadata) in files::entries(found, folder) {
        let path = entry.path();
        let at = [OWN, RECORDS].iter().position(|one| *one == name);
        let Some(at) = at.filter(|_| metadata.is_file()) else {
            // One that is being written goes away by itself.
            found.note(&path, "this is no file of a member");
            continue;
        };
        files::secret(found, &path, &metadata);
        match regular::read_at_most(&path, BYTES_MAX) {
            Ok(bytes) => texts[at] = Some(bytes),
            Err(error) => found.problem(&path, format!("it cannot be read: {error}")),
        }
    }
    let [own, records] = texts;
    let Some(own) = own else {
        return found
            .note(folder, "the node's own state is not there: it takes a new start as a member");
    };
    match Saved::of_bytes(&own, records.as_deref()) {
        Ok(saved) => {
            let (members, left) = (saved.members(), saved.has_left());
            let text = match (is_member, left) {
                (true, false) => format!("a member; it knows of {members} more"),
                (true, true) => format!(
                    "it has left its fabric, and is a member again at the next start; it knows of {members} more"
                ),
                (false, _) => {
                    format!(
                        "fabric.enabled is false: what it knows of {members} members is not used"
                    )
                }
            };
            found.note(folder, text);
        }
        Err(error) => found.problem(folder, error.to_string()),
    }
}
