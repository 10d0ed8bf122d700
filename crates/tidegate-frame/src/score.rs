//! Detection scores: exclusive best-IoU matching and F1.
