//! Limits on lookups of volume names. A lookup costs a connection to each server, a server may be slow to answer, and
//! clients may ask for names that do not exist. Two limits keep the load of the servers low, and keep the lookups of
//! one source from delaying those of another one:
//!
//! - A gateway remembers for [`KEPT`] each name that no server knows, and refuses it meanwhile. A source that has asked
//!   for [`UNKNOWN_PER_SOURCE`] such names is refused all names but those of open volumes.
//! - A gateway looks up [`AT_ONCE`] names at the same time, [`AT_ONCE_PER_SOURCE`] of them for each source. Further
//!   lookups wait, at most as long as a handshake may take.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::GatewayError;
use crate::peer::Source;
use crate::quantity::Name;
use crate::semaphores::Semaphores;

/// How long a gateway remembers an unknown name. A volume that is created meanwhile can be opened when this has passed.
const KEPT: Duration = Duration::from_secs(1);
/// Maximum number of unknown names that a source asks for within [`KEPT`].
pub const UNKNOWN_PER_SOURCE: usize = 16;
/// Maximum number of unknown names that a gateway remembers: as many as 64 sources may ask for.
const UNKNOWN: usize = 64 * UNKNOWN_PER_SOURCE;
/// Maximum number of lookups at the same time.
const AT_ONCE: usize = 8;
/// Maximum number for one source: three sources leave two of [`AT_ONCE`] to a fourth.
const AT_ONCE_PER_SOURCE: usize = 2;

/// The limits of a gateway.
#[derive(Debug)]
pub struct Lookups {
    unknown: Mutex<Unknown>,
    all: Semaphore,
    of_source: Semaphores<Source>,
}

impl Default for Lookups {
    fn default() -> Lookups {
        Lookups {
            unknown: Mutex::default(),
            all: Semaphore::new(AT_ONCE),
            of_source: Semaphores::new(AT_ONCE_PER_SOURCE),
        }
    }
}

impl Lookups {
    /// Runs a lookup when the limits allow it, unless it is known that no server has the name.
    pub async fn find<T>(
        &self,
        source: Source,
        name: &Name,
        find: impl Future<Output = Result<T, GatewayError>>,
    ) -> Result<T, GatewayError> {
        let unknown = || self.unknown.lock().expect("nobody panics while holding it");
        unknown().check(Instant::now(), source, name)?;
        let _of_source = self.of_source.wait(source).await;
        let _of_all = self.all.acquire().await.expect("it is never closed");
        // Another client may have asked for the name meanwhile.
        unknown().check(Instant::now(), source, name)?;
        let found = find.await;
        if let Err(GatewayError::Unknown) = found {
            unknown().note(Instant::now(), source, name.clone());
        }
        found
    }
}

/// The latest unknown names, and the source that asked for each.
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
    use std::sync::Arc;

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

    /// Lets the other tasks run.
    async fn yield_often() {
        for _ in 0..1000 {
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
        yield_often().await;
        assert_eq!(lookups.all.available_permits(), AT_ONCE - AT_ONCE_PER_SOURCE);
        assert_eq!(lookups.find(OTHER, &name(200), async { Ok(7) }).await.unwrap(), 7);
        // A lookup ends when its client gives up.
        hanging.iter().for_each(|task| task.abort());
        yield_often().await;
        assert_eq!(lookups.all.available_permits(), AT_ONCE);
    }
}
