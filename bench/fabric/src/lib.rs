//! Many nodes as one, measured. Each module measures one group and adds its rows to one report.
//!
//! ```text
//!  site: nodes of the program, each on ports of loopback, or in a namespace at a line of its own that can be cut
//!    ├─ faults     a node is killed, hangs, is cut off: how soon another one shows it
//!    ├─ subscribe  how soon a subscription is known to all
//!    ├─ idle       the cost of a member that has nothing to do
//!    ├─ filters    memory that the filters of other members take
//!    └─ soak       kills and cuts under traffic: what was acknowledged arrives
//!  places: how evenly members share data, computed
//!  messages: from a client at one node to a client at another, beside bridges and routed servers of others
//! ```

use std::path::PathBuf;

pub mod faults;
pub mod filters;
pub mod idle;
pub mod messages;
pub mod peers;
pub mod places;
pub mod site;
pub mod soak;
pub mod subscribe;

/// How long and how often a group measures.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shorter runs.
    pub quick: bool,
    /// Runs that each figure is the median of.
    pub runs: usize,
    /// Chooses the faults of the soak.
    pub seed: u64,
    /// The root of the checkout, where peers are.
    pub root: PathBuf,
}
