//! All integration tests are one program: it is linked once, and its tests run in parallel.

mod manual;
mod mix;
mod planning;
mod replay;
mod traces;
