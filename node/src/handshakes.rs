//! Limits on concurrent handshakes, per source and in total, without making any client wait.
//!
//! At a limit, the oldest handshake is closed: that of the same source, or that of the source with most handshakes. So
//! half-open connections cannot exclude other sources, not even while they are being opened. Clients of Unix sockets
//! are counted apart from those on a network, so that a network cannot exclude local clients. `MaxStartups` of sshd
//! refuses at random instead, which also refuses legitimate clients.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::peer::{Peer, Source};

/// The handshakes of one kind of listener.
#[derive(Debug)]
pub struct Handshakes {
    total_max: usize,
    per_source_max: usize,
    ongoing: Mutex<Ongoing>,
}

#[derive(Debug, Default)]
struct Ongoing {
    next: u64,
    /// In order of arrival.
    by_age: BTreeMap<u64, (Source, Arc<Notify>)>,
}

impl Ongoing {
    /// The source with most handshakes; among equals, the one with the oldest handshake.
    fn source_with_most(&self) -> Option<Source> {
        let mut counts = HashMap::new();
        for (source, _) in self.by_age.values() {
            *counts.entry(*source).or_insert(0usize) += 1;
        }
        let most = counts.values().copied().max();
        self.by_age.values().map(|(source, _)| *source).find(|source| counts.get(source).copied() == most)
    }
}

/// A handshake in progress; it ends when this is dropped.
#[derive(Debug)]
pub struct Ticket {
    number: u64,
    displaced: Arc<Notify>,
    handshakes: Arc<Handshakes>,
}

impl Ticket {
    /// Waits until this handshake has to end because it is the oldest when a limit is reached.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut ongoing = self.handshakes.ongoing.lock().expect("no one panics while holding it");
        ongoing.by_age.remove(&self.number);
    }
}

impl Handshakes {
    /// No handshake is in progress yet.
    pub fn new(total_max: usize, per_source_max: usize) -> Arc<Handshakes> {
        Arc::new(Handshakes { total_max, per_source_max, ongoing: Mutex::default() })
    }

    /// Begins a handshake; may end another one.
    pub fn begin(self: &Arc<Self>, peer: &Peer) -> Ticket {
        let source = Source::from(peer);
        let displaced = Arc::new(Notify::new());
        let mut ongoing = self.ongoing.lock().expect("no one panics while holding it");
        let of_source = ongoing.by_age.values().filter(|(other, _)| *other == source).count();
        let full = if of_source >= self.per_source_max {
            Some(source)
        } else if ongoing.by_age.len() >= self.total_max {
            ongoing.source_with_most()
        } else {
            None
        };
        let goes = full.and_then(|full| ongoing.by_age.iter().find(|(_, (source, _))| *source == full));
        if let Some(number) = goes.map(|(number, _)| *number)
            && let Some((_, displaced)) = ongoing.by_age.remove(&number)
        {
            displaced.notify_one();
        }
        let number = ongoing.next;
        ongoing.next += 1;
        ongoing.by_age.insert(number, (source, displaced.clone()));
        Ticket { number, displaced, handshakes: self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn is_displaced(ticket: &Ticket) -> bool {
        ticket.displaced().now_or_never().is_some()
    }

    #[test]
    fn at_the_bound_of_a_source_its_oldest_goes() {
        let handshakes = Handshakes::new(10, 3);
        let other = handshakes.begin(&Peer::local(2));
        let mut tickets: Vec<_> = (0..5).map(|_| handshakes.begin(&Peer::local(1))).collect();
        let displaced: Vec<_> = tickets.iter().map(is_displaced).collect();
        assert_eq!(displaced, [true, true, false, false, false]);
        assert!(!is_displaced(&other));
        // A handshake that has ended makes room.
        tickets.pop();
        let next = handshakes.begin(&Peer::local(1));
        assert!(!tickets[2..].iter().chain([&next, &other]).any(is_displaced));
    }

    #[test]
    fn at_the_total_bound_the_oldest_of_the_source_with_most_goes() {
        let handshakes = Handshakes::new(6, 5);
        let honest = handshakes.begin(&Peer::local(1));
        let flood: Vec<_> = (0..5).map(|_| handshakes.begin(&Peer::local(2))).collect();
        let late = handshakes.begin(&Peer::local(3));
        assert!(!is_displaced(&honest) && !is_displaced(&late));
        assert_eq!(flood.iter().map(is_displaced).collect::<Vec<_>>(), [true, false, false, false, false]);
    }

    #[test]
    fn a_site_of_ipv6_is_one_source() {
        let from = |text: &str| Source::from(&Peer::remote(text.parse().unwrap()));
        assert_eq!(from("[2001:db8::1]:1"), from("[2001:db8::ffff]:2"));
        assert_ne!(from("[2001:db8:0:1::1]:1"), from("[2001:db8::1]:1"));
        assert_eq!(from("[::ffff:192.0.2.1]:1"), from("192.0.2.1:2"));
        assert_ne!(from("192.0.2.1:1"), from("192.0.2.2:1"));
    }
}
