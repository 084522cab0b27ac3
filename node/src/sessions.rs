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
//!
//! **Leases.** A session with a lease ends when nothing has arrived of it for [`LEASE`], and not before that, even if
//! its connections are lost: its client may still answer others from its cache. Only its client can release it before.
//! After a restart of the server, the client that was admitted last is taken to have a lease since the volume was
//! opened.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use engine::nbd::Claim;
use engine::units::Nanos;
use tokio::sync::watch;

/// How long a lease is: a gateway that is stopped for less keeps the volume, and its successor waits no longer. Shorter
/// than a handshake may take.
pub const LEASE: Duration = Duration::from_secs(5);
/// How long it is here: the client's clock may be slower than ours.
const LEASE_HERE: Duration = Duration::from_millis(LEASE.as_millis() as u64 * 1001 / 1000);
/// The client of sessions that nobody has claimed: see [`Sessions::enter_direct`]. No claim has such a name.
pub const DIRECT: &str = "(direct)";

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
    begun: Instant,
    /// When something of it arrived last, or later: the time of the disk's thread, ns.
    heard_ns: AtomicU64,
    /// Its client uses nothing of the volume any more.
    is_released: AtomicBool,
    /// Where it notes its end, if it has a lease that runs on.
    past: Arc<Mutex<Option<Past>>>,
    /// Dropped at its end.
    end: watch::Sender<()>,
}

/// The last session with a lease that has ended without being released.
#[derive(Debug)]
struct Past {
    client: String,
    epoch: u64,
    ended: Instant,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.claim.leased && self.may_write && !self.is_released.load(Ordering::Acquire) {
            let Claim { client, epoch, .. } = self.claim.clone();
            let past = Past { client, epoch, ended: Instant::now() };
            *self.past.lock().expect("no one panics while holding it") = Some(past);
        }
    }
}

/// The part of one connection in a session.
pub type Lease = Arc<Session>;

/// Why a session cannot begin now.
#[derive(Clone, Debug)]
pub enum Conflict {
    /// This session has the volume.
    InUse(Lease),
    /// The lease of this client runs for so long, though it has no connection.
    Leased(String, Duration),
    /// It has ended: a later one of the same client has begun, or its lease has ended.
    Superseded,
    /// A session of the same client, or one with a lease, has this epoch, which is not lower than that of the claim.
    NotAbove { claim: Claim, latest: u64 },
}

/// The sessions of a volume since it was opened.
#[derive(Debug)]
pub struct Sessions {
    open: Mutex<Vec<Weak<Session>>>,
    past: Arc<Mutex<Option<Past>>>,
    /// When the volume was opened, and whether the last client before that is known.
    since: Instant,
    knows_last: OnceLock<()>,
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions { open: Mutex::default(), past: Arc::default(), since: Instant::now(), knows_last: OnceLock::new() }
    }
}

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

    /// A receiver that fails when it has ended.
    pub fn end(&self) -> watch::Receiver<()> {
        self.end.subscribe()
    }

    /// Its lease has ended, or its client has released it.
    pub fn release(&self) {
        self.is_released.store(true, Ordering::Release);
    }

    /// Something of it has arrived, at `now` or before: the time of the disk's thread.
    pub fn heard(&self, now: Nanos) {
        self.heard_ns.fetch_max(now, Ordering::AcqRel);
    }

    /// Ends a session with a lease that has passed; `now` is the time of the disk's thread. Returns for how long it
    /// still runs, else. The caller closes its connections before anything else happens to them.
    pub fn end_if_silent(&self, now: Nanos) -> Option<Duration> {
        let silent = match self.heard_ns.load(Ordering::Acquire) {
            0 => None,
            heard => Instant::now().checked_sub(Duration::from_nanos(now.saturating_sub(heard))),
        };
        let until = silent.unwrap_or(self.begun).max(self.begun) + LEASE_HERE;
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        let left = left.filter(|_| !self.is_released.load(Ordering::Acquire));
        if left.is_none() {
            self.release();
            self.is_superseded.store(true, Ordering::Release);
        }
        left
    }

    /// Whether both are of the same client, with the same access.
    fn is_of(&self, claim: &Claim, may_write: bool) -> bool {
        self.claim.is_by_client_of(claim) && self.may_write == may_write
    }

    /// Whether both can be open at the same time.
    fn goes_with(&self, claim: &Claim, may_write: bool) -> bool {
        self.claim.shared && claim.shared || !self.may_write && !may_write
    }
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Vec<Weak<Session>>> {
        self.open.lock().expect("no one panics while holding it")
    }

    /// Whether the last client with a lease is unknown, of before the volume was opened.
    pub fn must_learn_last(&self) -> bool {
        self.knows_last.get().is_none()
    }

    /// The client that had a lease when the volume was opened, if one had.
    pub fn learn_last(&self, client: Option<String>) {
        if self.knows_last.set(()).is_ok()
            && let Some(client) = client
        {
            let mut past = self.past.lock().expect("no one panics while holding it");
            past.get_or_insert(Past { client, epoch: 0, ended: self.since });
        }
    }

    /// For how long another client's lease runs that has no connection.
    fn leased(&self, claim: &Claim) -> Option<(String, Duration)> {
        let past = self.past.lock().expect("no one panics while holding it");
        let past = past.as_ref().filter(|past| past.client != claim.client || !claim.leased)?;
        let left = (past.ended + LEASE_HERE).checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        Some((past.client.clone(), left))
    }

    /// A client uses nothing of the volume any more that it had in sessions of epochs up to this one.
    pub fn release(&self, client: &str, epoch: u64) {
        let is_meant = |session: &Lease| session.claim.client == client && session.claim.epoch <= epoch;
        self.table().iter().filter_map(Weak::upgrade).filter(is_meant).for_each(|session| session.release());
        let mut past = self.past.lock().expect("no one panics while holding it");
        past.take_if(|past| past.client == client && past.epoch <= epoch);
    }

    /// Whether a client could be admitted now, apart from epochs.
    pub fn admits(&self, client: &str) -> Result<(), Conflict> {
        let claim = Claim { client: client.into(), epoch: u64::MAX, after: None, shared: false, leased: true };
        let is_other = |it: &Lease| it.may_write && !it.claim.is_by_client_of(&claim);
        let others = self.table().iter().filter_map(Weak::upgrade).find(is_other);
        match (others, self.leased(&claim)) {
            (Some(holder), _) => Err(Conflict::InUse(holder)),
            (None, Some((client, left))) => Err(Conflict::Leased(client, left)),
            (None, None) => Ok(()),
        }
    }

    /// A connection of a client that claims nothing: all of them are one session, without a lease. Its epoch is 0: the
    /// one that is recorded is above all others.
    pub fn enter_direct(&self) -> Result<Lease, Conflict> {
        let claim = Claim { client: DIRECT.into(), epoch: 0, after: None, shared: false, leased: false };
        self.enter(&claim, true)
    }

    /// A further connection of an open session, or the first one of a new session.
    pub fn enter(&self, claim: &Claim, may_write: bool) -> Result<Lease, Conflict> {
        let mut table = self.table();
        table.retain(|session| session.strong_count() > 0);
        let open: Vec<Lease> = table.iter().filter_map(Weak::upgrade).collect();
        let (own, others): (Vec<_>, Vec<_>) = open.into_iter().partition(|session| session.is_of(claim, may_write));
        let holder = others.iter().find(|other| other.may_write && !other.goes_with(claim, may_write));
        if let Some(holder) = holder {
            // Epochs of leases are those of all clients: this one will never be admitted.
            let latest = holder.claim.epoch;
            return Err(match claim.leased && holder.claim.leased && claim.epoch < latest {
                true => Conflict::NotAbove { claim: claim.clone(), latest },
                false => Conflict::InUse(holder.clone()),
            });
        }
        if let Some((client, left)) = self.leased(claim).filter(|_| may_write) {
            return Err(Conflict::Leased(client, left));
        }
        if let Some(same) = own.iter().find(|session| session.claim == *claim && !session.is_superseded()) {
            return Ok(same.clone());
        }
        if own.iter().any(|session| session.claim == *claim) {
            return Err(Conflict::Superseded);
        }
        let latest = own.iter().map(|session| session.claim.epoch).max();
        if let Some(latest) = latest.filter(|latest| may_write && claim.epoch <= *latest) {
            return Err(Conflict::NotAbove { claim: claim.clone(), latest });
        }
        let session = Arc::new(Session {
            claim: claim.clone(),
            may_write,
            is_recorded: AtomicBool::new(false),
            is_superseded: AtomicBool::new(false),
            begun: Instant::now(),
            heard_ns: AtomicU64::new(0),
            is_released: AtomicBool::new(false),
            past: self.past.clone(),
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
        let open = open.filter(|(_, session)| session.claim.client != DIRECT);
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
            Err(Conflict::InUse(by)) => by.claim.client.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn have_ended(ends: Vec<watch::Receiver<()>>) -> bool {
        ended(ends).now_or_never().is_some()
    }

    #[test]
    fn a_claim_without_a_lease_does_not_supersede_one_with_a_lease() {
        let sessions = Sessions::default();
        let leased = sessions.enter(&claim("a/1/lease"), true).unwrap();
        assert_eq!(in_use(sessions.enter(&claim("a/9"), true)), "a");
        assert!(!leased.is_superseded());
        drop(leased);
        assert!(matches!(sessions.enter(&claim("a/9"), true), Err(Conflict::Leased(by, _)) if by == "a"));
        sessions.enter(&claim("a/2/lease"), true).unwrap();
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
            assert!(matches!(sessions.enter(&claim(earlier), true), Err(Conflict::NotAbove { latest: 5, .. })));
        }
        assert!(!old.is_superseded() && sessions.enter(&claim("a/4"), true).is_ok(), "epoch 5 may fail to be recorded");
        // Two connections of the new session wait.
        let [ends, of_other] = [(); 2].map(|()| sessions.supersede(&new));
        assert!(old.is_superseded() && !new.is_superseded());
        assert!(matches!(sessions.enter(&claim("a/4"), true), Err(Conflict::Superseded)));
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
    fn a_lease_runs_on_after_the_last_connection_unless_it_is_released() {
        let sessions = Sessions::default();
        let leased = |result: Result<Lease, Conflict>| match result {
            Err(Conflict::Leased(by, left)) if left <= LEASE_HERE => by,
            other => panic!("{other:?}"),
        };
        drop(sessions.enter(&claim("a/1/lease"), true).unwrap());
        assert_eq!(leased(sessions.enter(&claim("b/2/lease"), true)), "a");
        assert_eq!(leased(sessions.enter_direct()), "a");
        assert!(sessions.enter(&claim("b/1"), false).is_ok(), "a reader disturbs nobody");
        drop(sessions.enter(&claim("a/3/lease"), true).unwrap());
        sessions.release("b", u64::MAX);
        sessions.release("a", 2);
        assert_eq!(leased(sessions.enter(&claim("b/4/lease"), true)), "a", "that was an earlier session");
        assert!(matches!(sessions.admits("b"), Err(Conflict::Leased(..))) && sessions.admits("a").is_ok());
        sessions.release("a", u64::MAX);
        let left_open = sessions.enter(&claim("a/3/lease"), true).unwrap();
        assert!(matches!(sessions.admits("b"), Err(Conflict::InUse(_))));
        assert!(matches!(sessions.enter(&claim("b/2/lease"), true), Err(Conflict::NotAbove { latest: 3, .. })));
        sessions.release("a", u64::MAX);
        assert!(left_open.end_if_silent(1).is_none(), "its connections are not closed yet");
        drop(left_open);
        let held = sessions.enter(&claim("b/4/lease"), true).unwrap();
        assert!(held.end_if_silent(1).is_some(), "it has just begun");
        let long_ago = Instant::now().checked_sub(LEASE * 2).unwrap();
        let held = Arc::new(session_of(&sessions, "c/5/lease", long_ago));
        let ns = |time: Duration| 1 + time.as_nanos() as Nanos;
        held.heard(ns(LEASE));
        held.heard(1);
        assert!(held.end_if_silent(ns(LEASE * 3 / 2)).is_some() && !held.is_superseded());
        assert!(held.end_if_silent(ns(LEASE * 2 + LEASE / 100)).is_none() && held.is_superseded());
        sessions.release("b", u64::MAX);
        drop(held);
        assert!(sessions.past.lock().unwrap().is_none(), "its lease has ended");
    }

    fn session_of(sessions: &Sessions, text: &str, begun: Instant) -> Session {
        Session {
            claim: claim(text),
            may_write: true,
            is_recorded: AtomicBool::new(true),
            is_superseded: AtomicBool::new(false),
            begun,
            heard_ns: AtomicU64::new(0),
            is_released: AtomicBool::new(false),
            past: sessions.past.clone(),
            end: watch::channel(()).0,
        }
    }

    #[test]
    fn the_client_of_an_earlier_process_has_its_lease_from_then_on() {
        let sessions = Sessions::default();
        assert!(sessions.must_learn_last());
        sessions.learn_last(Some("a".into()));
        assert!(!sessions.must_learn_last() && sessions.enter(&claim("b/1/lease"), true).is_err());
        sessions.enter(&claim("a/2/lease"), true).unwrap();
    }

    #[test]
    fn clients_that_claim_nothing_are_one_session() {
        let sessions = Sessions::default();
        let one = sessions.enter_direct().unwrap();
        assert!(Arc::ptr_eq(&one, &sessions.enter_direct().unwrap()));
        assert_eq!(in_use(sessions.enter(&claim("b/1/lease"), true)), DIRECT);
        drop(one);
        let _held = sessions.enter(&claim("b/1/lease"), true).unwrap();
        assert_eq!(in_use(sessions.enter_direct()), "b");
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
