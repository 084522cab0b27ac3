//! Names that no server knows. To ask about one costs a connection to each server, so a client that asks for names must
//! not cause more of that than servers notice: an answer is kept for a short time, and while many are kept, no further
//! names are asked about.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::GatewayError;
use crate::quantity::Name;

/// How long a name stays unknown. A volume that is created meanwhile can be opened so much later.
pub const KEPT: Duration = Duration::from_secs(1);
/// Names that are kept: so many in [`KEPT`] are asked about.
pub const MOST: usize = 16;

/// The latest names that no server knows.
#[derive(Debug, Default)]
pub struct Unknown(VecDeque<(Name, Instant)>);

impl Unknown {
    /// Whether the servers may be asked about a name.
    pub fn check(&mut self, now: Instant, name: &Name) -> Result<(), GatewayError> {
        let Unknown(latest) = self;
        while latest.pop_front_if(|(_, at)| now.duration_since(*at) >= KEPT).is_some() {}
        if latest.iter().any(|(known, _)| known == name) {
            return Err(GatewayError::Unknown);
        }
        if latest.len() >= MOST { Err(GatewayError::ManyUnknown) } else { Ok(()) }
    }

    /// No server knows a name.
    pub fn note(&mut self, now: Instant, name: Name) {
        let Unknown(latest) = self;
        if latest.len() == MOST {
            latest.pop_front();
        }
        latest.push_back((name, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_asked_about_once_a_second_and_only_some_names_are() {
        let (mut unknown, mut now) = (Unknown::default(), Instant::now());
        let name = |number: usize| format!("v{number}").parse::<Name>().unwrap();
        for number in 0..MOST {
            assert!(unknown.check(now, &name(number)).is_ok());
            unknown.note(now, name(number));
            assert!(matches!(unknown.check(now, &name(number)), Err(GatewayError::Unknown)));
            now += KEPT / (2 * MOST) as u32;
        }
        assert!(matches!(unknown.check(now, &name(0)), Err(GatewayError::Unknown)), "as long as it is kept");
        assert!(matches!(unknown.check(now, &name(MOST)), Err(GatewayError::ManyUnknown)));
        now += KEPT / 2;
        assert!(unknown.check(now, &name(MOST)).is_ok(), "the first one is forgotten");
        assert!(unknown.check(now, &name(0)).is_ok());
        // Lookups that ran at the same time.
        (0..2 * MOST).for_each(|number| unknown.note(now, name(number)));
        assert!(matches!(unknown.check(now, &name(MOST)), Err(GatewayError::Unknown)));
        assert!(matches!(unknown.check(now, &name(0)), Err(GatewayError::ManyUnknown)));
    }
}
