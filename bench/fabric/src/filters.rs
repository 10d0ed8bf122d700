//! Memory that the filters of other members take at a node.

use std::{thread, time::Duration};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report};

use crate::{
    Plan,
    site::{Settings, Site, filter},
};

const NODES: usize = 5;
/// Of one client at each node but the first: as many as a member tells others as they are.
const FILTERS: usize = 10_000;
const IN_A_PACKET: usize = 500;

/// Filters at all nodes but one, and what that one takes for them.
///
/// # Errors
/// A node does not start or refuses a subscription.
pub fn filters(_: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let site = Site::start(&Settings { nodes: NODES, ..Settings::default() })?;
    let before = site.usage(0)?.resident_bytes;
    let mut clients = Vec::new();
    for node in 1..NODES {
        let mut client = site.client(node, &format!("subscriber-{node}"))?;
        for first in (0..FILTERS).step_by(IN_A_PACKET) {
            let name = |number: usize| format!("site/{node}/room/{number}/celsius");
            let names: Vec<String> = (first..first + IN_A_PACKET).map(name).collect();
            let filters: Vec<_> = names.iter().map(|name| filter(name)).collect();
            let reasons = client.subscribe(&filters).context("subscribing")?;
            ensure!(
                reasons.iter().all(|reason| !reason.is_failure()),
                "a subscription was refused"
            );
        }
        clients.push(client);
    }
    // The node looks at its filters once a second, and frees what it needed to take them.
    thread::sleep(Duration::from_secs(5));
    let taken = site.usage(0)?.resident_bytes.saturating_sub(before);
    let each = taken as f64 / ((NODES - 1) * FILTERS) as f64;
    report.figure(
        Figure::new("memory for a filter of another member", "B").ours([each]).note(format!(
            "{} members of {FILTERS} filters of some 25 bytes each; 1,000 members of 1,000 filters take {:.0} MB at this rate",
            NODES - 1,
            each
        )),
    );
    drop(clients);
    Ok(())
}
