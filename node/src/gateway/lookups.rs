//! Limits on what clients cause servers to be asked. A volume's name costs a connection to each server, which may be
//! slow to answer, and clients may ask for names that do not exist. So that servers are not flooded, and clients of one
//! source hardly wait for the names of another one:
//!
//! - A name that no server knows is remembered for [`KEPT`], and refused meanwhile. A source that has asked for
//!   [`UNKNOWN_PER_SOURCE`] of them is refused all names but those of open volumes.
//! - Servers are asked about [`AT_ONCE`] names at the same time, [`AT_ONCE_PER_SOURCE`] of each source. Others wait,
//!   for no longer than their handshake takes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::GatewayError;
use crate::peer::Source;
use crate::quantity::Name;

/// How long a name stays unknown. A volume that is created meanwhile can be opened so much later.
const KEPT: Duration = Duration::from_secs(1);
/// Unknown names of a source within [`KEPT`].
pub const UNKNOWN_PER_SOURCE: usize = 16;
/// Unknown names of all sources that are remembered: those of 64 sources that ask for as many as they may.
const UNKNOWN: usize = 64 * UNKNOWN_PER_SOURCE;
const AT_ONCE: usize = 8;
/// So few that three other sources do not exclude one.
const AT_ONCE_PER_SOURCE: usize = 2;

/// The limits of a gateway.
#[derive(Debug)]
pub struct Lookups {
    unknown: Mutex<Unknown>,
    all: Semaphore,
    /// Of sources that have a lookup or wait for one.
    sources: Mutex<HashMap<Source, Weak<Semaphore>>>,
}

impl Default for Lookups {
    fn default() -> Lookups {
        Lookups { unknown: Mutex::default(), all: Semaphore::new(AT_ONCE), sources: Mutex::default() }
    }
}

impl Lookups {
    /// Looks for a name when it is the source's turn, unless it is known that no server has it.
    pub async fn find<T>(
        &self,
        source: Source,
        name: &Name,
        find: impl Future<Output = Result<T, GatewayError>>,
    ) -> Result<T, GatewayError> {
        let unknown = || self.unknown.lock().expect("nobody panics while holding it");
        unknown().check(Instant::now(), source, name)?;
        let own = self.of(source);
        let _own = turn(&own).await;
        let _turn = turn(&self.all).await;
        // Others may have been told meanwhile.
        unknown().check(Instant::now(), source, name)?;
        let found = find.await;
        if let Err(GatewayError::Unknown) = found {
            unknown().note(Instant::now(), source, name.clone());
        }
        found
    }

    fn of(&self, source: Source) -> Arc<Semaphore> {
        let mut sources = self.sources.lock().expect("nobody panics while holding it");
        sources.retain(|_, of_source| of_source.strong_count() > 0);
        let of_source = sources.get(&source).and_then(Weak::upgrade);
        let of_source = of_source.unwrap_or_else(|| Arc::new(Semaphore::new(AT_ONCE_PER_SOURCE)));
        sources.insert(source, Arc::downgrade(&of_source));
        of_source
    }
}

async fn turn(semaphore: &Semaphore) -> SemaphorePermit<'_> {
    semaphore.acquire().await.expect("it is never closed")
}

/// The latest names that no server knows, and who has asked for them.
#[derive(Debug, Default)]
struct Unknown(VecDeque<(Name, Source, Instant)>);

impl Unknown {
    /// Whether the servers may be asked about a name.
    fn check(&mut self, now: Instant, source: Source, name: &Name) -> Result<(), GatewayError> {
        let Unknown(latest) = self;
        while latest.pop_front_if(|(_, _, at)| now.duration_since(*at) >= KEPT).is_some() {}
        if latest.iter().any(|(known, ..)| known == name) {
            return Err(GatewayError::Unknown);
        }
        let of_source = latest.iter().filter(|(_, asked, _)| *asked == source).count();
        if of_source >= UNKNOWN_PER_SOURCE { Err(GatewayError::ManyUnknown) } else { Ok(()) }
    }

    /// No server knows a name.
    fn note(&mut self, now: Instant, source: Source, name: Name) {
        let Unknown(latest) = self;
        if latest.len() == UNKNOWN {
            latest.pop_front();
        }
        latest.push_back((name, source, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source = Source::User(1);
    const OTHER: Source = Source::User(2);

    fn name(number: usize) -> Name {
        format!("v{number}").parse().unwrap()
    }

    #[test]
    fn a_name_is_asked_about_once_a_second_and_a_source_asks_about_few() {
        let (mut unknown, mut now) = (Unknown::default(), Instant::now());
        for number in 0..UNKNOWN_PER_SOURCE {
            assert!(unknown.check(now, SOURCE, &name(number)).is_ok());
            unknown.note(now, SOURCE, name(number));
            assert!(matches!(unknown.check(now, SOURCE, &name(number)), Err(GatewayError::Unknown)));
            now += KEPT / (2 * UNKNOWN_PER_SOURCE) as u32;
        }
        let next = name(UNKNOWN_PER_SOURCE);
        assert!(matches!(unknown.check(now, OTHER, &name(0)), Err(GatewayError::Unknown)), "as long as it is kept");
        assert!(matches!(unknown.check(now, SOURCE, &next), Err(GatewayError::ManyUnknown)));
        assert!(unknown.check(now, OTHER, &next).is_ok(), "another source does not notice");
        now += KEPT / 2;
        assert!(unknown.check(now, SOURCE, &next).is_ok(), "the first one is forgotten");
        assert!(unknown.check(now, SOURCE, &name(0)).is_ok());
        (0..2 * UNKNOWN).for_each(|number| unknown.note(now, SOURCE, name(number)));
        assert_eq!(unknown.0.len(), UNKNOWN);
        assert!(matches!(unknown.check(now, SOURCE, &name(0)), Err(GatewayError::ManyUnknown)));
    }

    /// A future that ends in the test's runtime without time: after some turns of other tasks.
    async fn turns(count: usize) {
        for _ in 0..count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_source_whose_lookups_hang_keeps_no_other_one_waiting() {
        let lookups = Arc::new(Lookups::default());
        let mut hanging = Vec::new();
        for number in 0..100 {
            let lookups = lookups.clone();
            hanging.push(tokio::spawn(async move {
                lookups.find::<()>(SOURCE, &name(number), std::future::pending()).await
            }));
        }
        turns(1000).await;
        assert_eq!(lookups.all.available_permits(), AT_ONCE - AT_ONCE_PER_SOURCE);
        assert_eq!(lookups.find(OTHER, &name(200), async { Ok(7) }).await.unwrap(), 7);
        // What nobody waits for any more is not asked.
        hanging.iter().for_each(|task| task.abort());
        turns(1000).await;
        assert_eq!(lookups.all.available_permits(), AT_ONCE);
        lookups.of(OTHER);
        assert_eq!(lookups.sources.lock().unwrap().len(), 1, "nothing is kept of sources that have gone");
    }
}
