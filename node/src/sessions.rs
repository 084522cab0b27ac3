//! The sessions that clients have claimed of a volume (`engine::nbd::Claim`).
//!
//! ```text
//!   claim ─► enter ─► record the epoch ─► supersede ─► the disk's thread closes their connections ─► GO
//!              │                             │         and drops their leases when the engine has
//!        refused: in use,              earlier sessions forgotten them: their writes have ended
//!        or not the latest epoch
//! ```
//!
//! Each connection of a session has a lease: first its handshake, then the disk's thread until the engine has no
//! reference to the connection any more. A session ends with its last lease. A claim that gives up on the way thereby
//! ends its session, too.
//!
//! A session that may only read has nothing to fence. It is not recorded, its epoch is not compared, and it is closed
//! when a session begins that may write, so that a client that may only read cannot keep others away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use engine::nbd::Claim;
use tokio::sync::watch;

/// A session, as long as one of its leases exists.
#[derive(Debug)]
pub struct Session {
    /// The client, its epoch, and whether others may share the volume.
    pub claim: Claim,
    /// Whether it may write.
    may_write: bool,
    /// Whether its epoch is recorded durably.
    is_recorded: AtomicBool,
    /// Its connections are closed, and no further one begins.
    is_superseded: AtomicBool,
    /// Dropped at its end.
    end: watch::Sender<()>,
}

/// The part of one connection in a session.
pub type Lease = Arc<Session>;

/// Why a session cannot begin now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Conflict {
    /// This client has the volume.
    InUse(String),
    /// A session of the same client has this epoch, which is not lower.
    NotAbove(u64),
}

/// The sessions of a volume since it was opened.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<Vec<Weak<Session>>>);

/// A session, for the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    pub claim: Claim,
    pub connections: usize,
}

impl Session {
    /// Whether a later session has taken its place.
    pub fn is_superseded(&self) -> bool {
        self.is_superseded.load(Ordering::Acquire)
    }

    /// Whether its epoch must be recorded before it begins.
    pub fn is_to_be_recorded(&self) -> bool {
        self.may_write && !self.is_recorded.load(Ordering::Acquire)
    }

    /// Its epoch is recorded durably.
    pub fn recorded(&self) {
        self.is_recorded.store(true, Ordering::Release);
    }

    /// Whether both are of the same client, with the same access.
    fn is_of(&self, claim: &Claim, may_write: bool) -> bool {
        self.claim.client == claim.client && self.may_write == may_write
    }

    /// Whether both can be open at the same time.
    fn goes_with(&self, claim: &Claim, may_write: bool) -> bool {
        self.claim.shared && claim.shared || !self.may_write && !may_write
    }
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Vec<Weak<Session>>> {
        self.0.lock().expect("no one panics while holding it")
    }

    /// A further connection of an open session, or the first one of a new session.
    pub fn enter(&self, claim: &Claim, may_write: bool) -> Result<Lease, Conflict> {
        let mut table = self.table();
        table.retain(|session| session.strong_count() > 0);
        let open: Vec<Lease> = table.iter().filter_map(Weak::upgrade).collect();
        let (own, others): (Vec<_>, Vec<_>) = open.into_iter().partition(|session| session.is_of(claim, may_write));
        let holder = others.iter().find(|other| other.may_write && !other.goes_with(claim, may_write));
        if let Some(holder) = holder {
            return Err(Conflict::InUse(holder.claim.client.clone()));
        }
        if let Some(same) = own.iter().find(|session| session.claim == *claim && !session.is_superseded()) {
            return Ok(same.clone());
        }
        let latest = own.iter().map(|session| session.claim.epoch).max();
        if let Some(latest) = latest.filter(|latest| may_write && claim.epoch <= *latest) {
            return Err(Conflict::NotAbove(latest));
        }
        let session = Arc::new(Session {
            claim: claim.clone(),
            may_write,
            is_recorded: AtomicBool::new(false),
            is_superseded: AtomicBool::new(false),
            end: watch::channel(()).0,
        });
        table.push(Arc::downgrade(&session));
        Ok(session)
    }

    /// Supersedes the sessions that this one takes the place of. Each receiver fails when one of them has ended.
    pub fn supersede(&self, lease: &Lease) -> Vec<watch::Receiver<()>> {
        let table = self.table();
        let is_earlier = |session: &Lease| {
            let Session { claim, may_write, .. } = &**lease;
            match session.is_of(claim, *may_write) {
                true => *may_write && session.claim.epoch < claim.epoch,
                false => *may_write && !session.may_write && !session.goes_with(claim, *may_write),
            }
        };
        let earlier = table.iter().filter_map(Weak::upgrade).filter(is_earlier);
        let ends = earlier.map(|session| {
            session.is_superseded.store(true, Ordering::Release);
            session.end.subscribe()
        });
        ends.collect()
    }

    /// The session that began last; one that may write, if there is one.
    pub fn shown(&self) -> Option<Shown> {
        let table = self.table();
        let open = table.iter().filter_map(|session| Some((session.strong_count(), session.upgrade()?)));
        let (connections, session) = open.max_by_key(|(_, session)| session.may_write)?;
        Some(Shown { claim: session.claim.clone(), connections })
    }
}

/// Waits until all these sessions have ended.
pub async fn ended(sessions: Vec<watch::Receiver<()>>) {
    for mut end in sessions {
        while end.changed().await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn claim(text: &str) -> Claim {
        Claim::parse(format!("aerogel:session={text}").as_bytes()).unwrap()
    }

    fn in_use(result: Result<Lease, Conflict>) -> String {
        match result {
            Err(Conflict::InUse(by)) => by,
            other => panic!("{other:?}"),
        }
    }

    fn have_ended(ends: Vec<watch::Receiver<()>>) -> bool {
        ended(ends).now_or_never().is_some()
    }

    #[test]
    fn a_second_client_waits_for_the_end_of_the_last_connection() {
        let sessions = Sessions::default();
        let first = sessions.enter(&claim("a/1"), true).unwrap();
        let second = sessions.enter(&claim("a/1"), true).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(sessions.shown(), Some(Shown { claim: claim("a/1"), connections: 2 }));
        drop(first);
        for other in ["b/9", "b/9/shared"] {
            assert_eq!(in_use(sessions.enter(&claim(other), true)), "a");
        }
        assert_eq!(in_use(sessions.enter(&claim("a/2"), false)), "a", "its cache would be outdated");
        drop(second);
        assert_eq!(sessions.shown(), None);
        sessions.enter(&claim("b/9"), true).unwrap();
    }

    #[test]
    fn an_epoch_supersedes_those_before_and_waits_for_their_end() {
        let sessions = Sessions::default();
        let [old, twin] = [(); 2].map(|()| sessions.enter(&claim("a/4"), true).unwrap());
        assert!(sessions.supersede(&old).is_empty());
        let new = sessions.enter(&claim("a/5"), true).unwrap();
        for earlier in ["a/3", "a/5/shared"] {
            assert!(matches!(sessions.enter(&claim(earlier), true), Err(Conflict::NotAbove(5))));
        }
        assert!(!old.is_superseded() && sessions.enter(&claim("a/4"), true).is_ok(), "epoch 5 may fail to be recorded");
        // Two connections of the new session wait.
        let [ends, of_other] = [(); 2].map(|()| sessions.supersede(&new));
        assert!(old.is_superseded() && !new.is_superseded());
        assert!(matches!(sessions.enter(&claim("a/4"), true), Err(Conflict::NotAbove(5))));
        drop(old);
        assert!(!have_ended(ends.clone()));
        drop(twin);
        assert!(have_ended(ends) && have_ended(of_other));
        // A third session takes the place of one that is still waiting.
        let newest = sessions.enter(&claim("a/6"), true).unwrap();
        assert_eq!(sessions.supersede(&newest).len(), 1);
        assert!(new.is_superseded());
    }

    #[test]
    fn shared_sessions_coexist_with_each_other_only() {
        let sessions = Sessions::default();
        let a = sessions.enter(&claim("a/1/shared"), true).unwrap();
        let b = sessions.enter(&claim("b/1/shared"), true).unwrap();
        assert!(sessions.supersede(&b).is_empty() && !a.is_superseded());
        assert_eq!(in_use(sessions.enter(&claim("c/1"), true)), "a");
        let again = sessions.enter(&claim("b/2/shared"), true).unwrap();
        assert_eq!(sessions.supersede(&again).len(), 1);
        assert!(b.is_superseded() && !a.is_superseded());
        drop(a);
        assert_eq!(in_use(sessions.enter(&claim("c/1"), true)), "b");
    }

    #[test]
    fn a_session_that_may_only_read_keeps_nobody_away() {
        let sessions = Sessions::default();
        let readers = ["a/1", "b/1", "c/1/shared"].map(|text| sessions.enter(&claim(text), false).unwrap());
        assert!(sessions.supersede(&readers[2]).is_empty());
        assert!(!readers[0].is_to_be_recorded());
        let writer = sessions.enter(&claim("a/1/shared"), true).unwrap();
        assert!(sessions.supersede(&readers[0]).is_empty(), "a reader that is late closes no writer");
        assert!(writer.is_to_be_recorded());
        assert_eq!(sessions.supersede(&writer).len(), 2);
        assert_eq!(readers.each_ref().map(|reader| reader.is_superseded()), [true, true, false]);
        assert_eq!(sessions.shown().unwrap().claim, claim("a/1/shared"));
        sessions.enter(&claim("d/1/shared"), false).unwrap();
    }
}
