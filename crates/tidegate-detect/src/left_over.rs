//! Entities that an earlier start of this node announced at Home Assistant for sections that are no more.
//!
//! ```text
//!  file: prefixes below which entities were announced ─▶ retained PREFIX/+/+/config ─▶ of this node, without a section: cleared
//! ```
//!
//! Announcements are retained, and a section that is taken out while the node is down clears none. Each says of which node and section it
//! is; those of other nodes are not touched. A node that never announced any subscribes to nothing.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_bus::{Attached, Attachment, Bus, BusError, Publication, filter_of, part_id};
use tidegate_message::{Identity, IdentityKind, error_chain};
use tidegate_sys::{files, regular};
use tidegate_wire::mqtt::{QoS, ReasonCode, SubscribeFilter};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{DetectSettings, home_assistant};

/// How long announcements are looked at: those that are retained come at once.
const LOOK_FOR: Duration = Duration::from_secs(10);
/// Its name on the bus.
const NAME: &str = "detect entities";

/// The memory of announcements, which outlasts the process.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The node, by a name that no other has and that stays.
    pub node: String,
    /// The file of prefixes, a line each.
    pub path: PathBuf,
}

/// Clears what is left over, then keeps the file as sections are exchanged, until `stop`.
pub(crate) async fn run(
    kept: Kept,
    bus: Bus,
    mut configured: watch::Receiver<Vec<DetectSettings>>,
    stop: CancellationToken,
) {
    let work = async {
        let mut known = on_disk(&kept.path, read).await.unwrap_or_default();
        let before = known.clone();
        remember(&kept.path, &mut known, &mut configured).await;
        if !before.is_empty() {
            match clear(&kept.node, &bus, &before, &configured).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(
                    count,
                    "entities of Home Assistant were cleared whose detector is no more"
                ),
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(
                        error,
                        "entities whose detector is no more may stay at Home Assistant"
                    );
                }
            }
        }
        while configured.changed().await.is_ok() {
            remember(&kept.path, &mut known, &mut configured).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

/// Adds prefixes of sections to those in the file.
async fn remember(
    path: &Path,
    known: &mut BTreeSet<String>,
    configured: &mut watch::Receiver<Vec<DetectSettings>>,
) {
    let wanted: BTreeSet<String> = configured
        .borrow_and_update()
        .iter()
        .filter_map(|section| section.home_assistant.clone())
        .collect();
    if wanted.is_subset(known) {
        return;
    }
    known.extend(wanted);
    let text: String = known.iter().map(|prefix| format!("{prefix}\n")).collect();
    let put = move |path: &Path| {
        files::folder(path.parent().unwrap_or(Path::new("")), files::PRIVATE_FOLDER)?;
        files::put(path, text.as_bytes(), files::PRIVATE)
    };
    on_disk(path, put).await;
}

/// Reads or writes the file where a thread may wait; none, and a word in the log, if it cannot be.
async fn on_disk<T: Send + 'static>(
    path: &Path,
    act: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Option<T> {
    let of = path.to_owned();
    let done = spawn_blocking(move || act(&of)).await.unwrap_or_else(|end| Err(end.into()));
    let say = |error: &io::Error| {
        tracing::warn!(path = %path.display(), %error, "entities of detectors that are taken out while the node is down may stay at Home Assistant");
    };
    done.inspect_err(say).ok()
}

fn read(path: &Path) -> io::Result<BTreeSet<String>> {
    match regular::read(path) {
        Ok(text) => Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

/// Clears announcements below `prefixes` whose section is not among those that are configured; how many there were.
async fn clear(
    node: &str,
    bus: &Bus,
    prefixes: &BTreeSet<String>,
    configured: &watch::Receiver<Vec<DetectSettings>>,
) -> Result<usize, BusError> {
    let filters = prefixes.iter().map(|prefix| SubscribeFilter {
        maximum_qos: QoS::AtMostOnce,
        // Only what was retained before is of interest.
        retain_as_published: false,
        ..filter_of(format!("{prefix}/+/+/config"))
    });
    let identity = Identity::new(IdentityKind::Internal, NAME, NAME);
    let attachment = Attachment {
        name: NAME.to_owned(),
        filters: filters.collect(),
        ..Attachment::new(identity, part_id("detections", "entities"))
    };
    let Attached { mut publisher, mut deliveries, .. } = bus.attach(attachment).await?;
    let end = Instant::now() + LOOK_FOR;
    let mut count = 0;
    while let Ok(ready) = timeout_at(end, deliveries.ready()).await {
        ready?;
        let mut left_over = Vec::new();
        while let Some(message) = deliveries.next_message()? {
            let is_left_over = message.retain()
                && is_left_over(node, message.topic(), &message.payload(), &configured.borrow());
            if is_left_over {
                left_over.push(message.topic().to_owned());
            }
        }
        for topic in left_over {
            let nothing = Publication { topic: &topic, retain: true, ..Publication::default() };
            publisher.send(&nothing).await?;
            count += 1;
        }
    }
    publisher.detach(ReasonCode::SUCCESS)?;
    Ok(count)
}

fn is_left_over(node: &str, topic: &str, payload: &[u8], configured: &[DetectSettings]) -> bool {
    let Some(owner) = home_assistant::owner(payload).filter(|owner| owner.node == node) else {
        return false;
    };
    // Three levels follow the prefix.
    let prefix = topic.rsplitn(4, '/').nth(3);
    !configured.iter().any(|section| {
        section.name == owner.detector && section.home_assistant.as_deref() == prefix
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_outlast_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/detect.prefixes");
        assert_eq!(read(&path).unwrap(), BTreeSet::new());
        files::folder(&folder.path().join("state"), files::PRIVATE_FOLDER).unwrap();
        files::put(&path, b"homeassistant\nsite/ha\n", files::PRIVATE).unwrap();
        assert_eq!(read(&path).unwrap(), ["homeassistant", "site/ha"].map(str::to_owned).into());
    }
}
