//! `[flow.NAME]`.

use std::{path::PathBuf, time::Duration};

use super::seconds;

section! {
    /// `[flow.NAME]`: flows, which look at messages before they are queued; the chapter on flows has what their files say.
    FlowSection {
        /// File of the flows.
        file: PathBuf = PathBuf::new()
            => "the name of a file of flows" if |it, _| !it.file.as_os_str().is_empty(),
        /// Folder of the models, tables and sets that they name. Default none: `models` next to the file.
        models_dir: Option<PathBuf> = None,
        /// Topic filters in place of those in the file, separated by commas. Default none.
        topics: Option<String> = None,
        /// Whether they run. Default true.
        enabled: bool = true,
        /// How often their state is written to the disk where `mqtt.durability` is `page` or `disk`, 1s to 1h; it is written at the
        /// end as well. Default `1min`.
        state_interval: Duration = Duration::from_secs(60)
            => "from 1s to 1h" if |it, _| (seconds(1)..=seconds(3600)).contains(&it.state_interval),
    }
}
