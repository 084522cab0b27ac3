//! Off-load of write peaks: the experiments of Everest (section 4), with our servers.

mod episodes;
pub mod mail;
pub mod micro;
pub mod oltp;
mod rack;
mod references;
mod striped;
pub mod sweep;
pub mod worst;
