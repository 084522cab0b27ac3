//! Places where a test lets the server die, to see that what is half done is finished or undone.

/// Dies as by `kill -9` if AEROGEL_FAILPOINT in the environment is this place.
pub fn failpoint(place: &str) {
    if std::env::var_os("AEROGEL_FAILPOINT").is_some_and(|named| named == place) {
        tracing::warn!(place, "dying here, as AEROGEL_FAILPOINT says");
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
