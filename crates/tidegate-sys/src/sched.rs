//! Real-time priority and timer slack.
