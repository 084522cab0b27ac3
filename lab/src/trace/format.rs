//! The trace formats by name and by extension.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::compression;
use super::read::TraceError;

/// A trace format.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Format {
    /// Loads of blkreplay.
    Blkreplay,
    /// vscsi captures of VMware, version 1 or 2, binary.
    Vscsi,
    /// ASCII traces of DiskSim.
    Disksim,
    /// ASCII traces of SSDSim and MQSim: the columns of DiskSim with times in nanoseconds.
    Ssdsim,
    /// CSV of Microsoft Research Cambridge.
    Msr,
    /// Traces of the Storage Performance Council, as published by UMass.
    Spc,
    /// Text of blkparse: Q events, the requests to the block layer.
    BlkparseQ,
    /// Text of blkparse: D events, the requests issued to the device.
    BlkparseD,
    /// iolog of fio, written as version 2; the version to read follows from the first line.
    Iolog2,
    /// iolog of fio, written as version 3; the version to read follows from the first line.
    Iolog3,
}

impl Format {
    /// All formats: (format, name, extensions).
    pub const ALL: [(Format, &'static str, &'static [&'static str]); 10] = [
        (Format::Blkreplay, "blkreplay", &["load"]),
        (Format::Vscsi, "vscsi", &["vscsi", "vscsitrace"]),
        (Format::Disksim, "disksim", &["disksim", "ascii", "dis"]),
        (Format::Ssdsim, "ssdsim", &["ssdsim", "mqsim"]),
        (Format::Msr, "msr", &["csv"]),
        (Format::Spc, "spc", &["spc"]),
        (Format::BlkparseQ, "blkparse", &["blkparse", "blktrace"]),
        (Format::BlkparseD, "blkparse-d", &[]),
        (Format::Iolog3, "iolog", &["iolog", "fio"]),
        (Format::Iolog2, "iolog2", &["iolog2"]),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Format::ALL.iter().find(|(format, ..)| *format == self).map_or("", |(_, name, _)| name)
    }

    /// The format of a file by its extension; a compression extension after it is ignored.
    pub fn of(path: &Path) -> Result<Format, TraceError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let plain = compression::EXTENSIONS.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
        let (_, extension) = plain.rsplit_once('.').unwrap_or(("", plain));
        Format::ALL
            .iter()
            .find(|(.., extensions)| extensions.contains(&extension))
            .map(|(format, ..)| *format)
            .ok_or_else(|| TraceError::UnknownFormat { path: path.to_owned() })
    }

    /// The list of names, for error messages and help.
    pub fn list() -> String {
        let one = |(_, name, extensions): &(Format, &str, &[&str])| match extensions {
            [] => (*name).to_owned(),
            _ => format!("{name} (.{})", extensions.join(", .")),
        };
        Format::ALL.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        let text = text.to_ascii_lowercase();
        let synonym = match text.as_str() {
            "iolog3" => "iolog",
            "load" => "blkreplay",
            "mqsim" => "ssdsim",
            other => other,
        };
        let found = Format::ALL.iter().find(|(_, name, _)| *name == synonym);
        found
            .map(|(format, ..)| *format)
            .ok_or_else(|| format!("there is no format '{text}'; there are {}", Format::list()))
    }
}
