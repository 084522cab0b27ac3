//! The command line: noun, then verb. All commands except `serve` are clients of the API.

mod allocate;
mod arguments;
mod client;
mod cluster;
mod curve;
mod offload;
mod print;
mod probe;
mod request;
mod top;

use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use hyper::{Method, StatusCode};
use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use self::arguments::Cli;
use self::arguments::{
    Command, CompletionArgs, DiskArgs, ManArgs, OffloadArgs, PolicyArgs, Reach, StatusArgs, StoreArgs, TenantArgs,
    TopArgs, VolumeArgs,
};
use self::client::{ClientError, ask};
use self::request::{
    Picture, Request, disk_request, offload_request, policy_request, store_request, tenant_request, volume_request,
};
use crate::control::view::{DiskView, LiveView, Problem, Status, VolumeView};
use crate::quantity::Name;

/// Default intervals of updates: on a screen, and as text.
const LIVE_INTERVAL: Duration = Duration::from_millis(500);
const BATCH_INTERVAL: Duration = Duration::from_secs(1);

impl Cli {
    /// Executes the command.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Serve(serve) => {
                serve.run().unwrap_or_else(|(error, code)| fail(&format!("{error:#}"), None, code))
            }
            Command::Completion(CompletionArgs { shell }) => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "aerogel", &mut script);
                print_out(&String::from_utf8_lossy(&script));
                ExitCode::SUCCESS
            }
            Command::Man(ManArgs { directory }) => match clap_mangen::generate_to(Cli::command(), &directory) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&format!("cannot write man pages to {}: {error}", directory.display()), None, 1),
            },
            Command::Volume(VolumeArgs { verb, reach }) => run_request(&reach, &volume_request(verb)),
            Command::Store(StoreArgs { verb, reach }) => run_request(&reach, &store_request(verb)),
            Command::Offload(OffloadArgs { verb, reach }) => run_request(&reach, &offload_request(verb)),
            Command::Tenant(TenantArgs { verb, reach }) => run_request(&reach, &tenant_request(verb)),
            Command::Policy(PolicyArgs { verb, reach }) => run_request(&reach, &policy_request(verb)),
            Command::Disk(DiskArgs { verb, reach }) => run_request(&reach, &disk_request(verb)),
            Command::Cluster(arguments) => cluster::run(arguments),
            Command::Allocate(arguments) => allocate::run(arguments),
            Command::Status(StatusArgs { reach }) => {
                let print = |answer| Ok(print::status(&read::<Status>(answer)?));
                run_request(&reach, &Request::get("/v1/status", print))
            }
            Command::Top(TopArgs { disk, once, batch, interval, count, reach }) => {
                let path = disk.map_or_else(|| "/v1/top".into(), |disk| format!("/v1/top?disk={disk}"));
                let interval = interval.unwrap_or(if batch { BATCH_INTERVAL } else { LIVE_INTERVAL });
                let is_live = batch || !once && !reach.json && top::is_watched();
                let live = is_live.then_some(top::How { batch, interval, count });
                let request = Request::get(path, |answer| Ok(print::top(&read::<Vec<LiveView>>(answer)?)));
                let print = if is_live { |_| Ok(String::new()) } else { request.print };
                run_request(&reach, &Request { live, print, ..request })
            }
        }
    }
}

/// Sends a request to the server, and prints the answer or the error.
fn run_request(reach: &Reach, request: &Request) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string(), None, 1),
    };
    let answer = runtime.block_on(answer_to(reach, request));
    if let (Ok(answer), Some(Picture { path, draw })) = (&answer, &request.svg) {
        match draw(answer.clone()).map(|picture| std::fs::write(path, picture)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return fail(&format!("cannot write {}: {error}", path.display()), None, 1),
            Err(error) => return fail(&error.to_string(), None, 1),
        }
    }
    let printed = answer.and_then(|answer| match reach.json && request.live.is_none() && request.again.is_none() {
        true => Ok(format!("{answer:#}\n")),
        false => (request.print)(answer),
    });
    match printed {
        Ok(text) => {
            print_out(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            let code = error.exit_status();
            match reach.json {
                true => fail_in_json(&error.to_string(), error.hint(), code),
                false => fail(&error.to_string(), error.hint(), code),
            }
        }
    }
}

/// The answer to a request; its progress is shown meanwhile.
async fn answer_to(reach: &Reach, request: &Request) -> Result<Value, ClientError> {
    if let Some(problem) = &request.unconfirmed {
        return Err(ClientError::Refused(StatusCode::BAD_REQUEST, problem.clone()));
    }
    let answer = ask(&reach.data, request.method.clone(), &request.path, request.body.clone());
    if let Some(disk) = &request.only_simulated {
        check_simulated(reach, disk).await?;
    }
    if let Some(how) = request.live {
        return top::watch(reach, &request.path, how).await;
    }
    if let Some((disk, store)) = &request.ends {
        return offload::follow(reach, disk, store.as_ref(), answer).await;
    }
    if let Some(interval) = request.again {
        drop(answer);
        return offload::watch(reach, request, interval).await;
    }
    if let Some(disk) = &request.probe {
        return probe::follow(reach, disk, answer).await;
    }
    match &request.progress {
        Some((name, size)) if !reach.json => with_progress(reach, name, *size, answer).await,
        _ => answer.await,
    }
}

/// Prints to standard output. A closed pipe is ignored.
fn print_out(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
}

fn fail(error: &str, hint: Option<&str>, code: u8) -> ExitCode {
    eprintln!("error: {error}");
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(code)
}

/// Prints an error as JSON, in the form of the API.
fn fail_in_json(error: &str, hint: Option<&str>, code: u8) -> ExitCode {
    eprintln!("{:#}", json!({ "error": error, "hint": hint }));
    ExitCode::from(code)
}

fn read<T: DeserializeOwned>(answer: Value) -> Result<T, ClientError> {
    serde_json::from_value(answer).map_err(|error| ClientError::Broken(error.to_string()))
}

/// Refuses a command that needs --yes unless the disk is simulated.
async fn check_simulated(reach: &Reach, disk: &Name) -> Result<(), ClientError> {
    let shown: DiskView = read(ask(&reach.data, Method::GET, &format!("/v1/disks/{disk}"), None).await?)?;
    if shown.simulated.is_some() {
        return Ok(());
    }
    let error = format!("disk '{disk}' is a real disk: the fault affects the data of its clients");
    let hint = Some("add --yes to confirm, or use a simulated disk: `aerogel disk add NAME sim:PRESET`".into());
    Err(ClientError::Refused(StatusCode::BAD_REQUEST, Problem { error, hint }))
}

/// Shows the progress of creating a volume until it is answered.
async fn with_progress(
    reach: &Reach,
    name: &Name,
    size: u64,
    answer: impl Future<Output = Result<Value, ClientError>>,
) -> Result<Value, ClientError> {
    let style = ProgressStyle::with_template("writing zeros {bar:40} {bytes}/{total_bytes} {eta}");
    let bar = ProgressBar::new(size).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut answer = std::pin::pin!(answer);
    let answer = loop {
        if let Ok(answer) = tokio::time::timeout(Duration::from_millis(200), &mut answer).await {
            break answer;
        }
        let volume = ask(&reach.data, Method::GET, &format!("/v1/volumes/{name}"), None).await;
        if let Ok(volume) = volume.and_then(read::<VolumeView>) {
            bar.set_position(volume.prepared_bytes);
        }
    };
    bar.finish_and_clear();
    answer
}
