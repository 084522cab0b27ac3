//! Signals that end a server. All signals that would end a process are caught, so that each of them drains.
//!
//! Not caught: SIGKILL cannot be caught. SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS and SIGABRT mean that the
//! process is broken. SIGPIPE and SIGXFSZ are ignored, since the write that causes them fails anyway.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// A second signal within this time is ignored: it comes from a double Ctrl-C, or from a terminal that closes and sends
/// SIGHUP and SIGTERM.
const AGAIN: Duration = Duration::from_secs(1);
/// Signals whose default action ends a process, except the real-time signals.
const ENDING: [libc::c_int; 13] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGXCPU,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];
/// Signals with which an operator ends a draining server at once. SIGHUP is not one: a terminal may close meanwhile.
const DELIBERATE: [libc::c_int; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// The signals that end this process.
#[derive(Debug)]
pub struct Endings {
    signals: Vec<(libc::c_int, Signal)>,
}

impl Endings {
    /// Catches the signals from now on.
    pub fn listen() -> io::Result<Endings> {
        // SAFETY: sets a disposition; no handler of ours runs.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let wanted = ENDING.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
        // With `nohup`, SIGHUP is ignored, and stays so: a closed terminal must not end the server.
        let wanted = wanted.filter(|&number| number != libc::SIGHUP || !is_ignored(number));
        let signals = wanted.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        Ok(Endings { signals: signals.collect::<io::Result<_>>()? })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> libc::c_int {
        poll_fn(|context| {
            let came = self
                .signals
                .iter_mut()
                .find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Waits for a second signal that is to end the server at once.
    pub async fn at_once(&mut self) {
        let first = Instant::now();
        loop {
            let number = self.next().await;
            if DELIBERATE.contains(&number) && first.elapsed() >= AGAIN {
                return;
            }
            tracing::info!(signal = number, "the server is already shutting down");
        }
    }
}

/// Whether the process was started with this signal ignored.
fn is_ignored(number: libc::c_int) -> bool {
    // SAFETY: fills a structure of ours.
    unsafe {
        let mut now = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(number, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}
