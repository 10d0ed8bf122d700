//! Records of the node link, encoded and decoded without I/O.
