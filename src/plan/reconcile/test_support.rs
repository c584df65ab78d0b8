//! Values for the tests of the decision.
