//! Retained messages by topic.
