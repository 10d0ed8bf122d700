//! Link emulation between network namespaces: WAN and Wi-Fi-like media.
