//! Memory regions that one writer fills while readers hold slices of what is filled.
