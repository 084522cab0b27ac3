//! `aerogel allocate`: one allocation of the caches of gateways, the cache of their server, and its disk time.
//!
//! ```text
//!   GET /v1/evidence, twice ─► gather.rs ─► tenants.rs (which volume of a gateway is which of the server)
//!                                               │
//!   targets, utilities ─► goals.rs ─► plan.rs ◄─┴─ problem.rs ─► engine::allocate
//!                                        │
//!        print.rs, picture.rs ◄──────────┴──────► apply.rs: PUT /v1/allocation ◄── follow.rs: again and again
//! ```
//!
//! All of it runs in the process of the command. The servers only collect counters and curves.

mod apply;
mod follow;
mod gather;
mod goals;
mod picture;
mod plan;
mod print;
mod problem;
mod tenants;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use serde_json::json;

use super::arguments::{AllocateArgs, AllocateVerb, AllocateWhat};
use super::client::ClientError;
use super::{fail, fail_in_json, print_out};
use gather::Servers;
use plan::Planned;

/// Why a command failed.
#[derive(Debug)]
struct Failure {
    error: String,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// The request makes no sense.
    fn usage(error: impl Into<String>, hint: Option<String>) -> Failure {
        Failure { error: error.into(), hint, code: 2 }
    }

    /// It cannot be done at present.
    fn refused(error: impl Into<String>, hint: Option<String>) -> Failure {
        Failure { error: error.into(), hint, code: 1 }
    }

    /// A server does not answer, or refuses.
    fn of(place: &super::client::Place, error: &ClientError) -> Failure {
        let hint = match error {
            ClientError::NoServer(_) => Some("is it running, and does its --http address match?".to_owned()),
            error => error.hint().map(str::to_owned),
        };
        let error_text = match error {
            ClientError::NoServer(text) => text.clone(),
            error => format!("{place}: {error}"),
        };
        Failure { error: error_text, hint, code: error.exit_status() }
    }
}

/// Executes the command.
pub fn run(AllocateArgs { verb }: AllocateArgs) -> ExitCode {
    let json = match &verb {
        AllocateVerb::Plan { what, .. } | AllocateVerb::Apply { what } | AllocateVerb::Run { what, .. } => what.json,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string(), None, 1),
    };
    match runtime.block_on(execute(verb)) {
        Ok(text) => {
            print_out(&text);
            ExitCode::SUCCESS
        }
        Err(Failure { error, hint, code }) if json => fail_in_json(&error, hint.as_deref(), code),
        Err(Failure { error, hint, code }) => fail(&error, hint.as_deref(), code),
    }
}

async fn execute(verb: AllocateVerb) -> Result<String, Failure> {
    match verb {
        AllocateVerb::Plan { what, svg } => {
            let planned = measure_and_plan(&what).await?;
            if let Some(path) = svg {
                let written = std::fs::write(&path, picture::svg(&planned));
                written.map_err(|error| Failure::refused(format!("cannot write {}: {error}", path.display()), None))?;
            }
            Ok(if what.json { format!("{:#}\n", json!(planned.view)) } else { print::plan(&planned.view) })
        }
        AllocateVerb::Apply { what } => {
            let planned = measure_and_plan(&what).await?;
            let token = gather::token(&what)?;
            let changed = apply::apply(&planned.changes, token.as_deref()).await?;
            Ok(match what.json {
                true => format!("{:#}\n", json!({ "plan": planned.view, "changed": changed })),
                false => print::applied(&planned.view, &changed),
            })
        }
        AllocateVerb::Run { what, every, threshold, count } => {
            follow::follow(&what, follow::How { every, threshold, count }).await.map(|()| String::new())
        }
    }
}

/// Measures for a while, and plans.
async fn measure_and_plan(what: &AllocateWhat) -> Result<Planned, Failure> {
    let goals = goals::Goals::read(what)?;
    let servers = Servers::new(what)?;
    let before = servers.look().await?;
    // What is wrong with the servers is said before the wait.
    servers.check(&before)?;
    tokio::time::sleep(what.window).await;
    let after = servers.look().await?;
    plan::plan(what, &goals, &servers.observe(before, after)?, &mut plan::Memory::default())
}
