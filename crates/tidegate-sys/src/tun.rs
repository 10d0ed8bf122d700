//! TUN devices and network namespaces.
