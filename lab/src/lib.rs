//! Aerogel's measurements: what the `aerogel-lab` command is made of, and what its fuzz targets reach.

pub mod curve;
pub mod disk;
pub mod experiment;
pub mod load;
pub mod probe;
pub mod quantity;
pub mod replay;
pub mod trace;
