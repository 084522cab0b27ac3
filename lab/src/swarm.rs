//! `aerogel-lab swarm`: runs simulated worlds on all cores until one fails.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use sim::swarm::{self, Failure, Success, Worlds};

/// The interval of progress lines if there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Which worlds are simulated.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// One server with its disk and its clients.
    Server,
    /// Several machines: gateways whose volumes live on a server.
    Machines,
    /// Several machines that off-load writes to one another.
    Stores,
    /// Several machines: a gateway whose volumes are striped over servers.
    Stripes,
    /// The same with two gateways, of which one takes over from the other.
    Gateways,
    /// Servers whose disks follow a schedule, each by its own clock.
    Clusters,
}

/// What to run.
#[derive(Args, Debug)]
pub struct Swarm {
    /// What is simulated.
    #[arg(long, value_enum, default_value = "server")]
    worlds: Kind,
    /// Number of simulations.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The seed of the first simulation. To continue an interrupted run, give the last seed that it named.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run this one only.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Print everything that happens.
    #[arg(long, requires = "seed")]
    verbose: bool,
    /// Continue after a failure, and count the failures.
    #[arg(long)]
    keep_going: bool,
    /// Plant a bug in the engine, and see whether it is found.
    #[cfg(feature = "planted-bugs")]
    #[arg(long, value_name = "NAME")]
    bug: Option<String>,
}

/// The progress of a run.
struct Progress<'a> {
    bar: &'a ProgressBar,
    began: Instant,
    /// For each thread, the seed that it works on.
    current: Vec<AtomicU64>,
    /// When a line was last printed.
    lines: Mutex<Instant>,
}

impl Progress<'_> {
    fn begun(&self, at: usize, seed: u64) {
        self.current[at].store(seed, Ordering::Relaxed);
    }

    fn ended(&self) {
        self.bar.inc(1);
        // All worlds before this one have ended.
        let from = self.current.iter().map(|seed| seed.load(Ordering::Relaxed)).min().unwrap_or(0);
        self.bar.set_message(from.to_string());
        let Ok(mut last) = self.lines.try_lock() else { return };
        if last.elapsed() < LINE_EVERY || std::io::stderr().is_terminal() {
            return;
        }
        *last = Instant::now();
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let per_second = done as f64 / self.began.elapsed().as_secs_f64();
        let left_s = all.saturating_sub(done) as f64 / per_second;
        let left = indicatif::HumanDuration(Duration::from_secs_f64(left_s));
        eprintln!("{done} of {all} worlds ended, {per_second:.1} a second, {left} left; to go on: --from {from}");
    }
}

impl Swarm {
    /// Runs the worlds; fails if one of them does.
    pub fn run(self) -> ExitCode {
        if let Err(what) = self.plant() {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
        // A panic in a world is reported as its failure.
        std::panic::set_hook(Box::new(|_| {}));
        match self.seed {
            Some(seed) => self.one(seed),
            None => self.many(),
        }
    }

    fn worlds(&self) -> Worlds {
        match self.worlds {
            Kind::Server => Worlds::Server,
            Kind::Machines => Worlds::Machines,
            Kind::Stores => Worlds::Stores,
            Kind::Stripes => Worlds::Stripes,
            Kind::Gateways => Worlds::Gateways,
            Kind::Clusters => Worlds::Clusters,
        }
    }

    fn one(&self, seed: u64) -> ExitCode {
        let sink: Option<sim::trace::Sink> = self.verbose.then(|| Box::new(|line: &str| println!("{line}")) as _);
        match swarm::run_one_of(self.worlds(), seed, sink) {
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
        let style = "{bar:40} {pos}/{len} worlds, {per_sec}, {eta} left, --from {msg}";
        let bar = ProgressBar::new(self.seeds).with_style(ProgressStyle::with_template(style).expect("a template"));
        bar.enable_steady_tick(Duration::from_millis(200));
        let next = AtomicU64::new(self.from);
        let end = self.from.saturating_add(self.seeds);
        let failures = Mutex::new(Vec::new());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let progress = Progress {
            bar: &bar,
            began,
            current: (0..threads).map(|_| AtomicU64::new(self.from)).collect(),
            lines: Mutex::new(began),
        };
        std::thread::scope(|scope| {
            for at in 0..threads {
                let (progress, next, failures) = (&progress, &next, &failures);
                scope.spawn(move || self.work(at, next, end, failures, progress));
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
                eprintln!("{} of {} worlds failed", failures.len(), self.seeds);
                self.report(first, true);
                ExitCode::FAILURE
            }
        }
    }

    fn work(&self, at: usize, next: &AtomicU64, end: u64, failures: &Mutex<Vec<Failure>>, progress: &Progress<'_>) {
        self.plant().expect("it was planted before");
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            progress.begun(at, seed);
            if seed >= end || !self.keep_going && !failures.lock().expect("no thread panics").is_empty() {
                return;
            }
            if let Err(failure) = swarm::run_one_of(self.worlds(), seed, None) {
                // Printed at once, since a long run may be interrupted.
                progress.bar.suspend(|| eprintln!("{failure}"));
                failures.lock().expect("no thread panics").push(failure);
            }
            progress.ended();
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
        let worlds = match self.worlds {
            Kind::Server => "",
            Kind::Machines => " --worlds machines",
            Kind::Stores => " --worlds stores",
            Kind::Stripes => " --worlds stripes",
            Kind::Gateways => " --worlds gateways",
            Kind::Clusters => " --worlds clusters",
        };
        eprintln!("  cargo run --profile checked -p lab{features} -- swarm{worlds} --seed {seed} --verbose{bug}");
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
