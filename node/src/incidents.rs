//! Incidents with clients: counted by reason for the metrics, and logged at a bounded rate.
//!
//! The counters belong to the process, as the log does. [`note`] takes no lock, so that disk threads may call it.

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Log lines of one kind in a [`WINDOW`]. Further ones are counted, and the next line reports their number.
const LINES_MAX: u32 = 10;
/// See [`LINES_MAX`].
const WINDOW: Duration = Duration::from_secs(10);

/// A kind of incident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incident {
    /// A handshake exceeded its time limit.
    HandshakeTimeout,
    /// A handshake was the oldest when a limit on their number was reached.
    HandshakeDisplaced,
    /// The client disconnected during the handshake.
    HandshakeDisconnected,
    /// The client uses the oldstyle protocol.
    HandshakeOldstyle,
    /// The client sent bytes that are not a handshake.
    HandshakeGarbage,
    /// EXPORT_NAME named no volume that the client may open.
    HandshakeRefused,
    /// The listener requires TLS.
    HandshakeTlsRequired,
    /// The TLS handshake failed.
    HandshakeTls,
    /// The volume's limit of connections is reached.
    RefusedVolume,
    /// The tenant's limit of connections is reached.
    RefusedTenant,
    /// The disk's limit of connections is reached.
    RefusedDisk,
    /// The access list of the volume does not name the client.
    RefusedAccess,
    /// The session that the client claims cannot begin.
    RefusedSession,
    /// No file descriptor is left.
    RefusedDescriptors,
    /// The client sent bytes that are not a request.
    Garbage,
    /// A read failed after the first part of its reply was sent.
    Torn,
    /// The client does not read its replies.
    StalledReader,
    /// The client does not send the payload of its write.
    StalledWriter,
    /// The client lost its access to the volume.
    Revoked,
    /// A later session has taken the place of the client's.
    Superseded,
    /// The client violated the TLS protocol after the handshake.
    TlsBroken,
}

/// A metric, with the label that distinguishes its kinds.
pub struct Family {
    /// Its name without `_total`.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// The label's name.
    pub label: &'static str,
    /// The kinds, with the label's values.
    pub kinds: &'static [(&'static str, Incident)],
}

/// All metrics.
pub const FAMILIES: [Family; 3] = [
    Family {
        name: "aerogel_nbd_handshake_failures",
        help: "NBD handshakes that ended without a session, except by the client's ABORT",
        label: "reason",
        kinds: &[
            ("timeout", Incident::HandshakeTimeout),
            ("displaced", Incident::HandshakeDisplaced),
            ("disconnected", Incident::HandshakeDisconnected),
            ("oldstyle", Incident::HandshakeOldstyle),
            ("garbage", Incident::HandshakeGarbage),
            ("refused", Incident::HandshakeRefused),
            ("tls_required", Incident::HandshakeTlsRequired),
            ("tls", Incident::HandshakeTls),
        ],
    },
    Family {
        name: "aerogel_nbd_connections_refused",
        help: "NBD connections refused because a limit was reached, by an access list (access), or because \
               the claimed session cannot begin (session)",
        label: "limit",
        kinds: &[
            ("volume", Incident::RefusedVolume),
            ("tenant", Incident::RefusedTenant),
            ("disk", Incident::RefusedDisk),
            ("access", Incident::RefusedAccess),
            ("session", Incident::RefusedSession),
            ("descriptors", Incident::RefusedDescriptors),
        ],
    },
    Family {
        name: "aerogel_nbd_disconnects",
        help: "NBD clients that the server disconnected",
        label: "reason",
        kinds: &[
            ("garbage", Incident::Garbage),
            ("torn_reply", Incident::Torn),
            ("stalled_reader", Incident::StalledReader),
            ("stalled_writer", Incident::StalledWriter),
            ("revoked", Incident::Revoked),
            ("superseded", Incident::Superseded),
            ("tls", Incident::TlsBroken),
        ],
    },
];

/// The number of kinds.
const KINDS: usize = Incident::TlsBroken as usize + 1;
static TALLIES: [Tally; KINDS] = [const { Tally::new() }; KINDS];
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The counters of one kind.
struct Tally {
    count: AtomicU64,
    /// The number of the window that `lines` counts in, since the start.
    window: AtomicU64,
    lines: AtomicU32,
    suppressed: AtomicU64,
}

/// The number of suppressed lines of the same kind; it is printed at the end of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suppressed(u64);

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} more suppressed)"),
        }
    }
}

impl Tally {
    const fn new() -> Tally {
        Tally {
            count: AtomicU64::new(0),
            window: AtomicU64::new(0),
            lines: AtomicU32::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Counts an incident. `Some` if it may be logged in this window.
    fn note(&self, window: u64) -> Option<Suppressed> {
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.window.swap(window, Ordering::Relaxed) != window {
            self.lines.store(0, Ordering::Relaxed);
        }
        // Threads that race at the change of a window log a few lines more, which is harmless.
        if self.lines.fetch_add(1, Ordering::Relaxed) < LINES_MAX {
            return Some(Suppressed(self.suppressed.swap(0, Ordering::Relaxed)));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Lines suppressed in earlier windows that no line has reported.
    fn left_over(&self, window: u64) -> u64 {
        match self.window.load(Ordering::Relaxed) < window {
            true => self.suppressed.swap(0, Ordering::Relaxed),
            false => 0,
        }
    }
}

fn window() -> u64 {
    START.elapsed().as_secs() / WINDOW.as_secs()
}

/// Counts an incident. `Some` if it may be logged; the message then has to end with the returned value.
pub fn note(incident: Incident) -> Option<Suppressed> {
    TALLIES[incident as usize].note(window())
}

/// Incidents of a kind since the process started.
pub fn count(incident: Incident) -> u64 {
    TALLIES[incident as usize].count.load(Ordering::Relaxed)
}

/// Logs the number of suppressed lines when a flood is over, until the process ends.
pub async fn watch() {
    let mut ticks = tokio::time::interval(WINDOW);
    loop {
        ticks.tick().await;
        for (family, (reason, incident)) in
            FAMILIES.iter().flat_map(|family| family.kinds.iter().map(move |k| (family, k)))
        {
            let suppressed = TALLIES[*incident as usize].left_over(window());
            if suppressed > 0 {
                tracing::warn!(suppressed, "more lines about clients were suppressed: {}, {reason}", family.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_in_full_and_logged_in_part() {
        let tally = Tally::new();
        let logged = (0..1000).filter_map(|_| tally.note(0)).count();
        assert_eq!(logged, LINES_MAX as usize);
        assert_eq!(tally.count.load(Ordering::Relaxed), 1000);
        assert_eq!(tally.left_over(0), 0, "not while the window lasts");
        let next = tally.note(1).unwrap();
        assert_eq!(next.to_string(), " (990 more suppressed)");
        assert_eq!(tally.note(1).unwrap().to_string(), "");
        assert_eq!(tally.left_over(2), 0, "told already");
        assert_eq!((0..20).filter_map(|_| tally.note(3)).count(), LINES_MAX as usize);
        assert_eq!(tally.left_over(4), 10);
    }

    #[test]
    fn each_kind_is_in_one_metric() {
        let mut kinds: Vec<_> = FAMILIES.iter().flat_map(|family| family.kinds).map(|kind| kind.1 as usize).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, (0..KINDS).collect::<Vec<_>>());
    }
}
