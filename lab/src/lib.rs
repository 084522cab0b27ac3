//! The library of the `aerogel-lab` command, which the fuzz targets use, too.

pub mod curve;
pub mod disk;
pub mod experiment;
pub mod load;
pub mod mix;
pub mod pack;
pub mod probe;
pub mod quantity;
pub mod replay;
pub mod trace;
