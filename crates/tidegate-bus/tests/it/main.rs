//! The node in memory is to services what the MQTT server is.

use std::{fs, sync::Arc};

use tidegate_broker::BrokerConfig;
use tidegate_bus::{Bus, memory};
use tidegate_message::Authorize;

use self::contract::Node;

mod contract;
#[path = "../../../tidegate/tests/shared/poll_async.rs"]
mod poll_async;

impl Node for memory::Node {
    fn with(authorize: Arc<dyn Authorize>) -> Self {
        Self::new(BrokerConfig::default(), authorize)
    }

    fn bus(&self) -> Bus {
        self.bus()
    }

    fn stop(self) {
        memory::Node::stop(&self);
    }
}

contract::contract! {
    memory::Node:
    a_service_reads_publishes_and_acknowledges
    a_service_that_lends_its_thread_is_served_as_any_other
    a_service_without_rights_is_refused_by_name
    one_answer_stands_for_many_and_names_what_was_not_taken
    a_kept_session_has_what_came_meanwhile_and_a_newer_connection_takes_it_over
    a_service_that_does_not_read_is_bounded
    filters_of_clients_are_known_before_their_subacks
    clients_that_come_and_go_are_told_and_one_can_be_ended
    a_service_that_ends_right_behind_a_request_is_gone
    what_peers_publish_goes_to_clients_and_to_no_peer
    filters_change_while_a_service_is_attached
}

#[test]
fn a_thread_attaches_and_waits_without_tasks() {
    contract::thread_attaches_without_tasks::<memory::Node>();
}

#[test]
fn the_architecture_shows_this_service() {
    const LINE: &str = "// ARCHITECTURE.md shows the lines from here to the next such line.\n";
    let service = include_str!("contract.rs").split(LINE).nth(1).expect("it is above");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ARCHITECTURE.md");
    let shown = fs::read_to_string(root).expect("the map is there");
    assert!(
        shown.contains(&format!("```rust\n{service}```")),
        "ARCHITECTURE.md shows another service"
    );
}
