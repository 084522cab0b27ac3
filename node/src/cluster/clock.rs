//! The clock of the cluster: the system's clock, which NTP or PTP keeps synchronised. Engines run on the monotonic
//! clock, so they are told the difference.

use std::os::fd::OwnedFd;
use std::time::Duration;

use engine::units::Nanos;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::config::Settings;
use super::records::ClockState;
use crate::reactor::clock;

/// Readings of both clocks, of which the closest pair counts: the thread may be interrupted between them.
const READINGS: u32 = 8;
/// How often the difference of the clocks is looked at.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Differences that are not told: far below what a slice notices.
pub const TOLD_NS: u64 = 100_000;

/// The system's clock, nanoseconds since the Unix epoch.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The system's clock minus the engine's.
pub fn ahead_ns() -> i64 {
    let reading = |_| {
        let (before, system, after): (Nanos, u64, Nanos) = (clock(), now_ns(), clock());
        (after - before, system as i64 - (before + (after - before) / 2) as i64)
    };
    (0..READINGS).map(reading).min_by_key(|(apart, _)| *apart).map_or(0, |(_, ahead)| ahead)
}

/// What is known of the error of the system's clock.
pub fn state(settings: &Settings) -> ClockState {
    let (synchronised, error_ns) = match settings.trusted_ns {
        Some(error) => (true, error),
        None => kernel(),
    };
    ClockState {
        synchronised,
        trusted: settings.trusted_ns.is_some(),
        error_ns,
        good: synchronised && error_ns <= settings.clock_error_max_ns,
    }
}

/// Whether the kernel has been told that its clock is synchronised, and the estimated error.
fn kernel() -> (bool, u64) {
    // SAFETY: a structure of numbers, for which zero is valid: with `modes` 0, the call only fills it.
    let (state, told) = unsafe {
        let mut told = std::mem::zeroed::<libc::timex>();
        (libc::adjtimex(&mut told), told)
    };
    let synchronised = state >= 0 && state != libc::TIME_ERROR && told.status & libc::STA_UNSYNC == 0;
    (synchronised, told.esterror.max(0) as u64 * 1000)
}

/// Tells when the system's clock is set.
pub struct Steps(AsyncFd<OwnedFd>);

impl Steps {
    /// From now on.
    pub fn watch() -> std::io::Result<Steps> {
        let timer = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // SAFETY: the descriptor is owned by the `AsyncFd`, which is dropped before it is closed.
        let steps = Steps(unsafe { AsyncFd::register(timer) }?);
        steps.arm()?;
        Ok(steps)
    }

    /// A timer that never ends, and is cancelled when the clock is set.
    fn arm(&self) -> std::io::Result<()> {
        let (never, zero) = (Timespec { tv_sec: i64::MAX / 4, tv_nsec: 0 }, Timespec { tv_sec: 0, tv_nsec: 0 });
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        let timer = Itimerspec { it_interval: zero, it_value: never };
        timerfd_settime(self.0.get_ref(), flags, &timer)?;
        Ok(())
    }

    /// Returns when the clock was set.
    pub async fn next(&self) -> std::io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            let read = rustix::io::read(self.0.get_ref(), &mut [0; 8]);
            ready.clear_ready();
            match read {
                Err(Errno::CANCELED) => return self.arm(),
                Err(Errno::AGAIN) | Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_the_clocks_is_steady() {
        let (first, second) = (ahead_ns(), ahead_ns());
        assert!(first.abs_diff(second) < TOLD_NS, "{first} {second}");
        let system = clock() as i64 + first;
        assert!(system.abs_diff(now_ns() as i64) < 50_000_000, "{system}");
    }

    #[tokio::test]
    async fn no_step_is_told_without_one() {
        let steps = Steps::watch().expect("the kernel has timers");
        assert!(tokio::time::timeout(Duration::from_millis(50), steps.next()).await.is_err());
    }
}
