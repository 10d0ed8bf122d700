//! Clocks of the kernel as plain nanoseconds.
