//! The MQTT server at its bus, by the contract that the node in memory passes, too.

use std::sync::Arc;

use tidegate_bus::Bus;
use tidegate_message::Authorize;
use tidegate_server::Server;

use self::contract::Node;
use crate::inside::server_with;

#[path = "../../../tidegate-bus/tests/it/contract.rs"]
mod contract;

impl Node for Server {
    fn with(authorize: Arc<dyn Authorize>) -> Self {
        server_with(authorize)
    }

    fn bus(&self) -> Bus {
        self.connector().into()
    }

    fn stop(self) {
        Server::stop(self);
    }
}

contract::contract! {
    Server:
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
    contract::thread_attaches_without_tasks::<Server>();
}
