//! The client at the other end of a connection: its address, and the identity that it proved.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A client, as far as the server knows it before the handshake names a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Where it connects from; `None` over a Unix socket.
    pub address: Option<SocketAddr>,
    /// The identity that it proved.
    pub identity: Identity,
}

/// The proven identity of a client. Access lists of volumes refer to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Identity {
    /// None: TCP without a client certificate.
    Anonymous,
    /// The user id of the process at the other end of a Unix socket (SO_PEERCRED, at the time of connect).
    User(u32),
    /// A client certificate that the listener's certificate authority signed.
    Certificate {
        /// The subject, as RFC 4514 writes it: `CN=db1,O=Example`.
        subject: String,
        /// Subject alternative names: DNS names, addresses, URIs and e-mail addresses, each as text.
        names: Vec<String>,
    },
}

impl Peer {
    /// The client of a Unix socket.
    pub fn local(user: u32) -> Peer {
        Peer { address: None, identity: Identity::User(user) }
    }

    /// A client over TCP without a proven identity.
    pub fn remote(address: SocketAddr) -> Peer {
        Peer { address: Some(address), identity: Identity::Anonymous }
    }
}

/// Where a client comes from, for limits on what clients may cause before they have opened a volume.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// The user id of a client on a Unix socket.
    User(u32),
    /// An IP address. For IPv6 it is the /64 network, since a host in it can have any number of addresses.
    Address(IpAddr),
}

impl From<&Peer> for Source {
    fn from(peer: &Peer) -> Source {
        match (&peer.address, &peer.identity) {
            (Some(address), _) => match address.ip().to_canonical() {
                IpAddr::V6(ip) => Source::Address(Ipv6Addr::from(u128::from(ip) & !u128::from(u64::MAX)).into()),
                ip => Source::Address(ip),
            },
            (None, Identity::User(user)) => Source::User(*user),
            (None, _) => Source::User(u32::MAX),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, &self.identity) {
            (Some(address), Identity::Certificate { subject, .. }) => write!(f, "{address} ({subject})"),
            (Some(address), _) => address.fmt(f),
            (None, Identity::User(user)) => write!(f, "user {user}"),
            (None, _) => f.write_str("a local client"),
        }
    }
}
