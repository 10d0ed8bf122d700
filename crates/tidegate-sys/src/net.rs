//! Socket options that std does not offer.
