//! Predicates of a node: what its state means for us (aws-facts D.2).
