//! HTTP connections: bounded in number per listener, and in time whatever the client does.
//!
//! ```text
//!   accepted ──► request's head ──► body ──► handler ──► response received by the client
//!                HEAD_TIMEOUT       (routes.rs)          RESPONSE_TIMEOUT
//!                  ▲    also for an idle keep-alive connection                  │
//!                  └────────────────────────────────────────────────────────────┘
//! ```
//!
//! At the limit, further connections wait in the kernel until one ends, which takes some seconds at most. Each listener
//! has its own limit, so clients of one listener do not use up the connections of another.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tower::ServiceExt;
use tracing::{debug, warn};

use crate::address::Listener;
use crate::descriptors;

/// What a client may take. Commands and scrapers send their requests at once; a client that reuses a connection after a
/// longer pause has to connect again. The largest response has about 1 MB.
const LIMITS: Limits = Limits { head: Duration::from_secs(10), response: Duration::from_secs(20) };
/// Bytes of a request's head at most. Ours have a few hundred.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The delay before the next attempt after an accept failed, or when descriptors are scarce.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The minimum interval of log lines about failed accepts, which repeat until their cause is gone.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// For the head of a request, from the connect or from the previous answer.
    head: Duration,
    /// For receiving a response, from the moment when the socket is full.
    response: Duration,
}

/// The purpose of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// `DIR/api.sock`: it may use the reserved descriptors.
    Own,
    /// Any other listener.
    Other,
}

/// Accepts and serves connections until the process ends.
pub async fn serve(listener: Listener, router: Router, connections_max: usize, purpose: Purpose) {
    let places = Arc::new(Semaphore::new(connections_max));
    let mut complaints = Complaints::default();
    loop {
        // A permit is acquired first: beyond the limit, clients wait in the kernel.
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        let accepted = match &listener {
            Listener::Unix(listener) => {
                listener.accept().await.and_then(|(socket, _)| begin(socket, &router, place, purpose))
            }
            Listener::Tcp(listener) => {
                listener.accept().await.and_then(|(socket, _)| begin(socket, &router, place, purpose))
            }
        };
        if let Err(error) = accepted {
            complaints.add(&error);
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

fn begin<S>(socket: S, router: &Router, place: OwnedSemaphorePermit, purpose: Purpose) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + AsRawFd + Unpin + Send + 'static,
{
    if purpose == Purpose::Other && descriptors::are_scarce(&socket) {
        return Err(io::Error::other("file descriptors are scarce, and the last ones are kept for api.sock"));
    }
    tokio::spawn(converse(socket, router.clone(), place, LIMITS));
    Ok(())
}

async fn converse<S>(socket: S, router: Router, _place: OwnedSemaphorePermit, limits: Limits)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(move |request: hyper::Request<Incoming>| router.clone().oneshot(request.map(Body::new)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(HEAD_BYTES_MAX);
    if let Err(error) = builder.serve_connection(TokioIo::new(Taken::new(socket, limits.response)), answer).await {
        debug!("an HTTP connection ended: {error}");
    }
}

/// Failed accepts, logged at a bounded rate.
#[derive(Default)]
struct Complaints {
    logged: Option<Instant>,
    unsaid: u64,
}

impl Complaints {
    fn add(&mut self, error: &io::Error) {
        if self.logged.is_some_and(|at| at.elapsed() < LOG_PAUSE) {
            self.unsaid += 1;
            return;
        }
        warn!(before = std::mem::take(&mut self.unsaid), "an HTTP client cannot be accepted: {error}");
        self.logged = Some(Instant::now());
    }
}

/// A connection whose writes fail after a time if the client does not read.
struct Taken<S> {
    socket: S,
    limit: Duration,
    /// Runs from the moment when the socket was full until everything is flushed, so that a client that reads single
    /// bytes does not extend it.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Taken<S> {
    fn new(socket: S, limit: Duration) -> Taken<S> {
        Taken { socket, limit, deadline: None }
    }

    fn in_time<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_pending() {
            let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
            ready!(deadline.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Taken<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Taken<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.in_time(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.in_time(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_flush(cx);
        if polled.is_ready() {
            self.deadline = None;
        }
        self.in_time(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.in_time(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;

    /// Shorter limits than those that ship keep the tests short.
    const SHORT: Limits = Limits { head: Duration::from_secs(3), response: Duration::from_secs(1) };
    /// A busy machine may end a connection so much later.
    const LATE: Duration = Duration::from_secs(5);

    /// A connection to a server whose only page has `bytes`, and its permit.
    fn connect(bytes: usize) -> (UnixStream, Arc<Semaphore>) {
        let router = Router::new().fallback(move || async move { "x".repeat(bytes) });
        let (ours, theirs) = UnixStream::pair().unwrap();
        let places = Arc::new(Semaphore::new(1));
        let place = places.clone().try_acquire_owned().unwrap();
        tokio::spawn(converse(theirs, router, place, SHORT));
        (ours, places)
    }

    /// Waits for the end of the connection.
    async fn freed(places: &Semaphore) -> Duration {
        let begun = Instant::now();
        drop(places.acquire().await.unwrap());
        begun.elapsed()
    }

    const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    #[tokio::test]
    async fn silent_and_slow_heads_end() {
        let ((_ours, silent), (mut ours, slow)) = (connect(1), connect(1));
        ours.write_all(&HEAD[..20]).await.unwrap();
        assert!(freed(&silent).await <= SHORT.head + LATE, "silent");
        assert!(freed(&slow).await <= LATE, "half a head");
    }

    #[tokio::test]
    async fn a_connection_that_is_kept_alive_may_be_idle_for_as_long_and_no_longer() {
        let (mut ours, places) = connect(1);
        let mut answer = [0; 512];
        for _ in 0..4 {
            ours.write_all(HEAD).await.unwrap();
            assert!(ours.read(&mut answer).await.unwrap() > 0);
            tokio::time::sleep(SHORT.head / 3).await;
        }
        assert!(freed(&places).await <= SHORT.head + LATE);
    }

    #[tokio::test]
    async fn a_response_that_is_not_taken_ends() {
        let ((mut silent, not_taken), (mut ours, trickled)) = (connect(16 << 20), connect(16 << 20));
        silent.write_all(HEAD).await.unwrap();
        ours.write_all(HEAD).await.unwrap();
        let trickle = tokio::spawn(async move {
            let mut some = [0; 512];
            while ours.read(&mut some).await.is_ok_and(|bytes| bytes > 0) {
                tokio::time::sleep(SHORT.response / 10).await;
            }
        });
        assert!(freed(&not_taken).await <= SHORT.response + LATE, "not a byte taken");
        assert!(freed(&trickled).await <= SHORT.response + LATE, "a little ten times in the time limit");
        trickle.abort();
    }
}
