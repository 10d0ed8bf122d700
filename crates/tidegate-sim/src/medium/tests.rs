//! Claims about media, in virtual time.
