//! The thread of a disk's planner: it answers the evidence of the disk's thread, and questions of control.
//!
//! ```text
//!   disk thread ──evidence (one at a time)──► planner thread ──Mail::Targets──► disk thread
//!                                                   ▲ lock
//!   control ──────────────plan──────────────────────┘
//! ```
//!
//! A plan for many tenants can take seconds. So the planner has a thread of its own, which yields to all others.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::control::{Plan, PlanRequest, Refusal};
use engine::plan::{Evidence, Planner};
use tokio::sync::watch;

use super::EndWithMe;
use super::mailbox::Sender;

/// The nice value of the thread: on a machine whose processors are busy, disk threads get ten times as much time.
const NICE: i32 = 10;
/// How long a question waits for the planner to see a change: usually a millisecond.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where the disk's thread sends evidence, and where the planner receives it.
pub(super) fn channel() -> (SyncSender<Box<Evidence>>, Receiver<Box<Evidence>>) {
    sync_channel(1)
}

/// A running planner. Its thread ends with the disk's thread.
#[derive(Clone, Debug)]
pub struct Planning {
    planner: Arc<Mutex<Planner>>,
    /// The generation of the evidence that the planner has seen.
    seen: watch::Receiver<u64>,
}

impl Planning {
    /// Starts the thread of a planner.
    pub(super) fn start(
        disk: &str,
        planner: Planner,
        evidence: Receiver<Box<Evidence>>,
        sender: Sender,
    ) -> io::Result<Planning> {
        let (news, seen) = watch::channel(planner.generation());
        let planning = Planning { planner: Arc::new(Mutex::new(planner)), seen };
        let planner = planning.planner.clone();
        std::thread::Builder::new().name(format!("plan {disk}")).spawn(move || {
            let _guard = EndWithMe;
            // A setting of this thread. Without it, planning only competes with other threads more.
            let _ = rustix::process::setpriority_process(None, NICE);
            while let Ok(evidence) = evidence.recv() {
                let mut planner = planner.lock().expect("a panic ends the process");
                let targets = planner.handle(*evidence);
                news.send_replace(planner.generation());
                drop(planner);
                if sender.send_targets(Box::new(targets)).is_err() {
                    return;
                }
            }
        })?;
        Ok(planning)
    }

    /// The decision for a planned tenant, once the planner has seen the change with this generation.
    pub async fn plan(mut self, request: PlanRequest, generation: u64) -> Result<Plan, Refusal> {
        // If it does not see it in time, what it knows is the best answer.
        let _ = tokio::time::timeout(TIMEOUT, self.seen.wait_for(|&seen| seen >= generation)).await;
        let answer = move || self.planner.lock().expect("a panic ends the process").plan(request);
        tokio::task::spawn_blocking(answer).await.expect("a panic ends the process")
    }
}
