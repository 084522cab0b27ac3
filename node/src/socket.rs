//! Connections that move from one runtime to another, as plain descriptors.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// A connected socket. It is registered with the runtime that made it, and moves to another one as a descriptor.
pub trait Socket: AsyncRead + AsyncWrite + Unpin + Send + Sized + 'static {
    fn detach(self) -> io::Result<OwnedFd>;
    fn attach(socket: OwnedFd) -> io::Result<Self>;
}

impl Socket for UnixStream {
    fn detach(self) -> io::Result<OwnedFd> {
        self.into_std().map(OwnedFd::from)
    }

    fn attach(socket: OwnedFd) -> io::Result<Self> {
        UnixStream::from_std(socket.into())
    }
}

impl Socket for TcpStream {
    fn detach(self) -> io::Result<OwnedFd> {
        self.into_std().map(OwnedFd::from)
    }

    fn attach(socket: OwnedFd) -> io::Result<Self> {
        TcpStream::from_std(socket.into())
    }
}
