//! Semaphores by key, such as the lock of a disk or the places of a tenant. Only those exist that are in use, so their
//! number is bounded by that of the tasks that hold or wait for one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A semaphore for each key.
#[derive(Debug)]
pub struct Semaphores<K> {
    /// Permits of each.
    permits: usize,
    used: Mutex<HashMap<K, Weak<Semaphore>>>,
}

impl<K: Eq + Hash> Semaphores<K> {
    /// No semaphore is in use yet.
    pub fn new(permits: usize) -> Semaphores<K> {
        Semaphores { permits, used: Mutex::default() }
    }

    /// The semaphore of a key.
    pub fn of(&self, key: K) -> Arc<Semaphore> {
        let mut used = self.used.lock().expect("no one panics while holding it");
        used.retain(|_, semaphore| semaphore.strong_count() > 0);
        let known = used.get(&key).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let semaphore = Arc::new(Semaphore::new(self.permits));
            used.insert(key, Arc::downgrade(&semaphore));
            semaphore
        })
    }

    /// Waits for a permit of a key, without a time limit. Permits are granted in order of arrival.
    pub async fn wait(&self, key: K) -> OwnedSemaphorePermit {
        self.of(key).acquire_owned().await.expect("no semaphore is closed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_do_not_wait_for_each_other() {
        let locks = Semaphores::new(1);
        let held = locks.wait("a").await;
        assert!(locks.of("a").try_acquire_owned().is_err());
        let other = locks.of("b").try_acquire_owned().expect("another key");
        drop((held, other));
        drop(locks.wait("a").await);
        assert_eq!(locks.used.lock().unwrap().len(), 1, "semaphores that are not in use are forgotten");
    }
}
