//! What each knob setting costs in bytes and accuracy: characterization tables and their Pareto fronts.
