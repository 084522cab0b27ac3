//! `aerogel-lab swarm`: simulated worlds on all cores, until one goes wrong.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use sim::swarm::{self, Failure, Success};

/// What to run.
#[derive(Args, Debug)]
pub struct Swarm {
    /// How many worlds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The seed of the first one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run this one only.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Print everything that happens.
    #[arg(long, requires = "seed")]
    verbose: bool,
    /// Go on after a failure, and count them.
    #[arg(long)]
    keep_going: bool,
    /// Plant a bug in the engine, and see whether it is found.
    #[cfg(feature = "planted-bugs")]
    #[arg(long, value_name = "NAME")]
    bug: Option<String>,
}

impl Swarm {
    /// Runs the worlds; fails if one of them does.
    pub fn run(self) -> ExitCode {
        if let Err(what) = self.plant() {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
        // A panic in a world is its failure, and is reported as such.
        std::panic::set_hook(Box::new(|_| {}));
        match self.seed {
            Some(seed) => self.one(seed),
            None => self.many(),
        }
    }

    fn one(&self, seed: u64) -> ExitCode {
        let sink: Option<sim::trace::Sink> = self.verbose.then(|| Box::new(|line: &str| println!("{line}")) as _);
        match swarm::run(seed, sink) {
            Ok(Success { hash, stats }) => {
                println!("seed {seed}: well, trace {hash:016x}, {stats:?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                self.report(&failure, !self.verbose);
                ExitCode::FAILURE
            }
        }
    }

    fn many(&self) -> ExitCode {
        let began = Instant::now();
        let style = "{bar:40} {pos}/{len} worlds, {per_sec}, {eta} left {msg}";
        let bar = ProgressBar::new(self.seeds).with_style(ProgressStyle::with_template(style).expect("a template"));
        bar.enable_steady_tick(Duration::from_millis(200));
        let next = AtomicU64::new(self.from);
        let end = self.from.saturating_add(self.seeds);
        let failures = Mutex::new(Vec::new());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.work(&next, end, &failures, &bar));
            }
        });
        bar.finish_and_clear();
        let mut failures = failures.into_inner().expect("no thread panics");
        failures.sort_by_key(|failure: &Failure| failure.seed);
        let per_second = self.seeds as f64 / began.elapsed().as_secs_f64();
        match failures.first() {
            None => {
                println!("{} worlds ended well ({per_second:.0} a second)", self.seeds);
                ExitCode::SUCCESS
            }
            Some(first) => {
                failures.iter().skip(1).for_each(|failure| eprintln!("{failure}"));
                self.report(first, true);
                ExitCode::FAILURE
            }
        }
    }

    fn work(&self, next: &AtomicU64, end: u64, failures: &Mutex<Vec<Failure>>, bar: &ProgressBar) {
        self.plant().expect("it was planted before");
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end || !self.keep_going && !failures.lock().expect("no thread panics").is_empty() {
                return;
            }
            if let Err(failure) = swarm::run(seed, None) {
                failures.lock().expect("no thread panics").push(failure);
            }
            bar.inc(1);
        }
    }

    fn report(&self, failure: &Failure, tail: bool) {
        if tail {
            failure.tail.iter().for_each(|line| eprintln!("{line}"));
        }
        let (features, bug) = self.bug_arguments();
        eprintln!("{failure}");
        eprintln!("to see it again:");
        let seed = failure.seed;
        eprintln!("  cargo run --profile checked -p lab{features} -- swarm --seed {seed} --verbose{bug}");
    }

    #[cfg(feature = "planted-bugs")]
    fn bug_arguments(&self) -> (&'static str, String) {
        let bug = self.bug.as_ref().map(|bug| format!(" --bug {bug}")).unwrap_or_default();
        (" --features planted-bugs", bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    fn bug_arguments(&self) -> (&'static str, String) {
        ("", String::new())
    }

    /// Plants the bug in the engines of this thread.
    #[cfg(feature = "planted-bugs")]
    fn plant(&self) -> Result<(), String> {
        use engine::planted::{Bug, plant};
        let Some(name) = &self.bug else { return Ok(()) };
        let Some(&bug) = Bug::ALL.iter().find(|bug| bug.name() == name) else {
            let names: Vec<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
            return Err(format!("there is no bug {name}; there are {}", names.join(", ")));
        };
        plant(Some(bug));
        Ok(())
    }

    #[cfg(not(feature = "planted-bugs"))]
    fn plant(&self) -> Result<(), String> {
        Ok(())
    }
}
