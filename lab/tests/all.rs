//! One program, so that it is linked once, and tests that need one core each run at the same time.

mod manual;
mod mix;
mod planning;
mod replay;
mod traces;
