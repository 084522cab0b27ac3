//! The client at the other end of a connection: its address, and the identity that it proved.

use std::fmt;
use std::net::SocketAddr;

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
