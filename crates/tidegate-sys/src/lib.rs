//! System facilities that need unsafe code: memory regions, clocks, sockets, TUN devices.
