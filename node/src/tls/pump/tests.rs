//! Clients that make bytes expensive, or exploit what the protocol permits.

use std::io::Cursor;
use std::task::Waker;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection, SignatureScheme,
};
use tokio::io::DuplexStream;

use super::*;

/// Made for this test; not trusted anywhere.
pub const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBjDCCATGgAwIBAgIUPfhCBjB+NIw1joZW/G4p++b36yowCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMjIyMDE5MDVaGA8yMTI2MTAyOTIwMTkw
NVowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABH7f
GKqP7ztl3JQ4Cq+8ZcX5oiO9iXLfPEWJv8PnveXfsXvyUHs8rSVfUvCXmM0zP6sx
d1hMDUN/Sg6kGwjkuK6jaTBnMB0GA1UdDgQWBBTIQwzFV0z5W3gumiym/SBsrXml
cjAfBgNVHSMEGDAWgBTIQwzFV0z5W3gumiym/SBsrXmlcjAPBgNVHRMBAf8EBTAD
AQH/MBQGA1UdEQQNMAuCCWxvY2FsaG9zdDAKBggqhkjOPQQDAgNJADBGAiEA7aSK
ak4kMeGilVhE4Wyn6damGaDxKxwxR7knTu2vdfgCIQCyiTkWjdkPmX2tZC++a3nz
hvlauxVN0Xnep96bZuYVww==
-----END CERTIFICATE-----";
/// Its key.
pub const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgdlCah3zblj2ySkj5
fgxKWKTJAN8SF/MAEwhLNoTTK8+hRANCAAR+3xiqj+87ZdyUOAqvvGXF+aIjvYly
3zxFib/D573l37F78lB7PK0lX1Lwl5jNMz+rMXdYTA1Df0oOpBsI5Liu
-----END PRIVATE KEY-----";

/// Accepts every certificate.
#[derive(Debug)]
struct Trusting(Arc<CryptoProvider>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        unreachable!("the client offers TLS 1.3 only")
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A client and a server after their handshake.
fn connected() -> (ClientConnection, ServerConnection) {
    let provider = Arc::new(ring::default_provider());
    let chain = vec![CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
    let server = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let server = server.with_no_client_auth().with_single_cert(chain, key).unwrap();
    let client = ClientConfig::builder_with_provider(provider.clone());
    let client = client.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().dangerous();
    let client = client.with_custom_certificate_verifier(Arc::new(Trusting(provider))).with_no_client_auth();
    let mut client = ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut Cursor::new(bytes)).unwrap();
        server.process_new_packets().unwrap();
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut Cursor::new(bytes)).unwrap();
        client.process_new_packets().unwrap();
    }
    (client, server)
}

/// A client, its socket, a pump, and the disk thread's end.
fn pump() -> (ClientConnection, DuplexStream, Pump<DuplexStream>, std::os::unix::net::UnixStream) {
    let (client, server) = connected();
    let (ours, theirs) = tokio::io::duplex(2 * TURN_BYTES);
    let (disk, thread) = std::os::unix::net::UnixStream::pair().unwrap();
    disk.set_nonblocking(true).unwrap();
    thread.set_nonblocking(true).unwrap();
    let pump = Pump::new(theirs, server, UnixStream::from_std(disk).unwrap()).unwrap();
    (client, ours, pump, thread)
}

/// The bytes of a client that updates its keys `count` times; if `clever`, it sends a byte of data after each 32
/// updates.
fn updates(client: &mut ClientConnection, count: usize, clever: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for at in 1..=count {
        client.refresh_traffic_keys().unwrap();
        if clever && at % 32 == 0 {
            client.writer().write_all(b"x").unwrap();
        }
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
    }
    bytes
}

fn turn(pump: &mut Pump<DuplexStream>) -> io::Result<Turn> {
    let mut scratch = vec![0; TURN_BYTES];
    pump.turn(&mut Context::from_waker(Waker::noop()), &mut scratch)
}

#[tokio::test]
async fn a_client_that_only_updates_its_keys_is_disconnected() {
    let (mut client, mut socket, mut pump, _thread) = pump();
    socket.write_all(&updates(&mut client, 33, false)).await.unwrap();
    let error = turn(&mut pump).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
}

/// The updates take longer than a turn may, so other tasks must be able to run in between.
#[tokio::test]
async fn a_turn_ends_although_a_client_updates_its_keys_with_each_record() {
    let (mut client, mut socket, mut pump, mut thread) = pump();
    let count = TURN_BYTES / 32;
    socket.write_all(&updates(&mut client, count, true)).await.unwrap();
    assert_eq!(turn(&mut pump).unwrap(), Turn::Moved);
    let (received, left) = (pump.received.len(), pump.received.capacity());
    assert!(received > 0 && left <= TURN_BYTES, "{received} bytes are left of a turn's");
    let (mut data, mut turns) = (Vec::<u8>::new(), 1);
    while data.len() < count / 32 {
        let mut bytes = [0; 4096];
        match thread.read(&mut bytes) {
            Ok(read) => data.extend(&bytes[..read]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        // The runtime has to notice that the sockets are writable.
        tokio::task::yield_now().await;
        turn(&mut pump).unwrap();
        turns += 1;
        assert!(turns < 10_000, "{} bytes of data came through", data.len());
    }
    // At most one answer to all of them.
    assert!(pump.written < 1000, "{} bytes were sent to a client that only updates its keys", pump.written);
}
