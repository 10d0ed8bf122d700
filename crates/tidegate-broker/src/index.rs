//! Which subscriptions match a topic.
