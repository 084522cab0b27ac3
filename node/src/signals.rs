//! Signals that end a server. All that would end a process are caught, so that each of them drains.
//!
//! Not caught: SIGKILL cannot be; SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS and SIGABRT say that the process is
//! broken; SIGPIPE and SIGXFSZ are ignored, since the write that they are about fails by itself.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// A second signal this soon is taken for the first one: a double Ctrl-C, or SIGHUP and SIGTERM from a terminal that
/// closes.
const AGAIN: Duration = Duration::from_secs(1);
/// What ends a process, besides the real-time signals.
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
/// What an operator sends to end a server at once. A terminal that closes while a server drains does not mean that.
const DELIBERATE: [libc::c_int; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// The signals that end this process.
#[derive(Debug)]
pub struct Endings {
    signals: Vec<(libc::c_int, Signal)>,
}

impl Endings {
    /// Catches them from now on.
    pub fn listen() -> io::Result<Endings> {
        // SAFETY: sets a disposition; no handler of ours runs.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let wanted = ENDING.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
        // `nohup` means it: a closed terminal is no reason to end.
        let wanted = wanted.filter(|&number| number != libc::SIGHUP || !is_ignored(number));
        let signals = wanted.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        Ok(Endings { signals: signals.collect::<io::Result<_>>()? })
    }

    /// Waits for the next one.
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

    /// Waits for one that is to end the server at once, after a first one.
    pub async fn at_once(&mut self) {
        let first = Instant::now();
        loop {
            let number = self.next().await;
            if DELIBERATE.contains(&number) && first.elapsed() >= AGAIN {
                return;
            }
            tracing::info!(signal = number, "the server is ending already");
        }
    }
}

/// Whether whoever started this process has it ignore a signal.
fn is_ignored(number: libc::c_int) -> bool {
    // SAFETY: fills a structure of ours.
    unsafe {
        let mut now = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(number, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}
