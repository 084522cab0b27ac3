//! The connection to etcd: every call has a time limit, and every failure a reason for people.

#[cfg(test)]
mod tests;

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions, Txn, TxnOp,
    TxnOpResponse, WatchOptions, WatchStream,
};
use serde::Serialize;
use uuid::Uuid;

use super::config::Settings;
use super::records::{Image, Unreadable};

/// The time limit of a call: etcd answers in milliseconds, and elects another leader within some seconds.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Attempts to increase an epoch, against others who do so at the same time.
const ATTEMPTS: u32 = 20;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// Nothing came back.
    #[error("no answer within {} s", CALL_TIMEOUT.as_secs())]
    Silent,
    /// It refused, or cannot be reached.
    #[error("{}", told(.0))]
    Failed(#[from] etcd_client::Error),
    /// A value is not understood.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The lease of this server has ended.
    #[error("the lease of this server has ended")]
    LeaseEnded,
    /// A stream was closed, as by a restart.
    #[error("it closed the connection")]
    Closed,
    /// A certificate cannot be read.
    #[error("{0:#}")]
    Credentials(anyhow::Error),
    /// Others increase the same epoch all the time.
    #[error("an epoch of a volume is increased by others all the time")]
    Contended,
}

/// The reason at the bottom: above it is what etcd's client is made of.
fn told(error: &etcd_client::Error) -> String {
    let etcd_client::Error::GRpcStatus(status) = error else { return error.to_string() };
    let mut cause: &dyn std::error::Error = status;
    while let Some(below) = cause.source() {
        cause = below;
    }
    match std::ptr::addr_eq(cause, status as *const _) {
        true => status.message().to_owned(),
        false => cause.to_string(),
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, etcd_client::Error>>) -> Result<T, EtcdError> {
    Ok(tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(|_| EtcdError::Silent)??)
}

/// A connection, with the keys of one cluster.
#[derive(Clone)]
pub struct Etcd {
    client: Client,
    prefix: String,
}

/// A lease that has to be renewed.
pub struct Lease {
    /// Its number.
    pub id: i64,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl Lease {
    /// Renews it.
    pub async fn renew(&mut self) -> Result<(), EtcdError> {
        in_time(self.keeper.keep_alive()).await?;
        let answer = in_time(self.answers.message()).await?.ok_or(EtcdError::Closed)?;
        if answer.ttl() > 0 { Ok(()) } else { Err(EtcdError::LeaseEnded) }
    }
}

impl Etcd {
    /// Connects. The first call says whether etcd is there.
    pub async fn connect(settings: &Settings) -> Result<Etcd, EtcdError> {
        let options = settings.credentials.options().map_err(EtcdError::Credentials)?;
        let client = in_time(Client::connect(&settings.endpoints, Some(options))).await?;
        Ok(Etcd { client, prefix: format!("/aerogel/{}/", settings.cluster) })
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Everything that it has of the cluster, at one revision.
    pub async fn image(&self) -> Result<Image, EtcdError> {
        let mut client = self.client.clone();
        let answer = in_time(client.get(self.prefix.as_str(), Some(GetOptions::new().with_prefix()))).await?;
        let mut image = Image::at(answer.header().map_or(0, |header| header.revision()));
        // The change before what is said of it.
        let is_change = |key: &str| key == self.key("change");
        let (change, rest): (Vec<_>, Vec<_>) =
            answer.kvs().iter().partition(|pair| pair.key_str().is_ok_and(is_change));
        for pair in change.into_iter().chain(rest) {
            let key = pair.key_str()?.strip_prefix(&self.prefix).unwrap_or_default();
            image.take(key, pair.value(), pair.mod_revision())?;
        }
        Ok(image)
    }

    /// Tells of each change of the cluster's keys after a revision.
    pub async fn watch(&self, after: i64) -> Result<WatchStream, EtcdError> {
        let options = WatchOptions::new().with_prefix().with_start_revision(after + 1);
        let mut client = self.client.clone();
        in_time(client.watch(self.prefix.as_str(), Some(options))).await
    }

    /// A lease that is not renewed.
    pub async fn lease(&self, ttl: Duration) -> Result<i64, EtcdError> {
        let mut client = self.client.clone();
        Ok(in_time(client.lease_grant(ttl.as_secs() as i64, None)).await?.id())
    }

    /// A lease that is renewed.
    pub async fn kept_lease(&self, ttl: Duration) -> Result<Lease, EtcdError> {
        let (id, mut client) = (self.lease(ttl).await?, self.client.clone());
        let (keeper, answers) = in_time(client.lease_keep_alive(id)).await?;
        Ok(Lease { id, keeper, answers })
    }

    /// Ends a lease, with the keys under it.
    pub async fn end_lease(&self, id: i64) -> Result<(), EtcdError> {
        let mut client = self.client.clone();
        in_time(client.lease_revoke(id)).await.map(drop)
    }

    /// Does all of this if the conditions hold, and returns the revision then.
    pub async fn transact(&self, when: Vec<Compare>, then: Vec<TxnOp>) -> Result<Option<i64>, EtcdError> {
        let mut client = self.client.clone();
        let answer = in_time(client.txn(Txn::new().when(when).and_then(then))).await?;
        Ok(answer.succeeded().then(|| answer.header().map_or(0, |header| header.revision())))
    }

    /// A key has not been written since this image.
    pub fn unchanged(&self, image: &Image, key: &str) -> Compare {
        Compare::mod_revision(self.key(key), CompareOp::Equal, image.revision_of(key))
    }

    /// A key exists.
    pub fn exists(&self, key: &str) -> Compare {
        Compare::mod_revision(self.key(key), CompareOp::Greater, 0)
    }

    /// Writes a key, under a lease if one is given.
    pub fn put(&self, key: &str, value: &impl Serialize, lease: Option<i64>) -> TxnOp {
        let text = serde_json::to_string(value).expect("records can be written as JSON");
        TxnOp::put(self.key(key), text, lease.map(|lease| PutOptions::new().with_lease(lease)))
    }

    /// Removes a key.
    pub fn remove(&self, key: &str) -> TxnOp {
        TxnOp::delete(self.key(key), None)
    }

    /// Removes all keys that begin so.
    pub fn remove_below(&self, key: &str) -> TxnOp {
        TxnOp::delete(self.key(key), Some(DeleteOptions::new().with_prefix()))
    }

    /// The next epoch of a volume: above all that were given before, to any server.
    pub async fn next_epoch(&self, volume: Uuid, above: u64) -> Result<u64, EtcdError> {
        let (key, mut client) = (self.key(&format!("epochs/{volume}")), self.client.clone());
        for _ in 0..ATTEMPTS {
            let answer = in_time(client.get(key.as_str(), None)).await?;
            let (last, revision) = match answer.kvs() {
                [] => (0, 0),
                [pair, ..] => {
                    let text = pair.value_str()?;
                    let why = |why: std::num::ParseIntError| Unreadable::new(&key, why.to_string());
                    (text.parse::<u64>().map_err(why)?, pair.mod_revision())
                }
            };
            let when = vec![Compare::mod_revision(key.as_str(), CompareOp::Equal, revision)];
            let next = last.max(above) + 1;
            let put = TxnOp::put(key.as_str(), next.to_string(), None);
            let answer = in_time(client.txn(Txn::new().when(when).and_then(vec![put]))).await?;
            if answer.succeeded() {
                let wrote = matches!(answer.op_responses()[..], [TxnOpResponse::Put(_)]);
                assert!(wrote, "a transaction that puts one key");
                return Ok(next);
            }
        }
        Err(EtcdError::Contended)
    }
}
