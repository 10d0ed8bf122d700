//! Media: how a WAN link and a Wi-Fi-like channel carry packets, in virtual time.
