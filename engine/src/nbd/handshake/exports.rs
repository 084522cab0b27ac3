//! The volumes that the handshake offers.

use super::wire::export_flag;

/// A volume as offered by the handshake.
#[derive(Clone, Debug, Default)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Whether the disk's profile says that it has heads.
    pub rotational: bool,
    /// A description for users.
    pub description: String,
    /// Whether the client may only read the volume.
    pub read_only: bool,
    /// The volume's identity, if the driver keeps sessions: see [`Handshake::claim`](super::Handshake::claim).
    pub identity: Option<u128>,
    /// How long a lease of a session is, ms, if the driver grants leases.
    pub lease_ms: Option<u64>,
}

impl Export {
    pub(super) fn flags(&self, structured: bool) -> u16 {
        use export_flag::*;
        let mut flags = HAS_FLAGS | SEND_FLUSH | CAN_MULTI_CONN | SEND_CACHE;
        if self.read_only {
            flags |= READ_ONLY;
        } else {
            // FAST_ZERO is announced on every export: a request that cannot be fast is refused at once.
            flags |= SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO;
        }
        if structured {
            flags |= SEND_DF;
        }
        if self.rotational {
            flags |= ROTATIONAL;
        }
        flags
    }
}

/// The volumes that can be opened at present.
#[derive(Clone, Copy, Debug)]
pub struct Exports<'a> {
    /// All volumes.
    pub volumes: &'a [Export],
    /// No new sessions: options are answered with ERR_SHUTDOWN.
    pub shutting_down: bool,
}

impl Exports<'_> {
    /// The volume of this name. The empty name stands for the only volume, if there is exactly one.
    pub(super) fn find(&self, name: &[u8]) -> Result<usize, String> {
        match (name, self.volumes) {
            (b"", [_]) => Ok(0),
            (b"", []) => Err("there is no volume".to_owned()),
            (b"", _) => Err("there are several volumes: name one".to_owned()),
            (name, volumes) => volumes
                .iter()
                .position(|volume| volume.name.as_bytes() == name)
                .or((planted!(UnknownNameOpensAnother) && !volumes.is_empty()).then_some(0))
                .ok_or_else(|| format!("no volume '{}'", String::from_utf8_lossy(name))),
        }
    }
}
