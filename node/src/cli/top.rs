//! A live view of disks and their tenants: slices, throughput, insulation, latency and causes of delay.
//!
//! ```text
//!   keys ──► State (what is shown: disks, order, scroll, help) ──► picture.rs ──► terminal
//!   server ──► (polled; after a failure it is polled until it answers again)
//! ```

mod picture;
mod strip;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime};

use hyper::Method;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::picture::{Order, State, draw};
use super::client::{ClientError, ask};
use super::{Reach, print, read};
use crate::control::view::LiveView;
use crate::store::profile::date;

/// The interval at which the thread for keys checks whether the view has ended.
const KEYS_POLL: Duration = Duration::from_millis(100);
/// Key events that are queued.
const KEYS_MAX: usize = 64;
/// After this time the server counts as silent. The server itself waits at most two seconds for a disk.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The mode of the view.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Print text repeatedly.
    pub batch: bool,
    /// The interval of updates.
    pub interval: Duration,
    /// The number of updates, if limited.
    pub count: Option<u64>,
}

/// Whether the command runs in a terminal.
pub fn is_watched() -> bool {
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

async fn look(reach: &Reach, path: &str) -> Result<Value, ClientError> {
    let answer = ask(&reach.data, Method::GET, path, None);
    let silent = || ClientError::Broken(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()));
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(silent()))
}

/// Shows the answer to `path` until the user quits with q or Ctrl-C, or until SIGTERM; or prints it as often as
/// requested.
pub async fn watch(reach: &Reach, path: &str, how: How) -> Result<Value, ClientError> {
    // A first error is reported without opening a screen.
    let first = look(reach, path).await?;
    if how.batch {
        return print_again_and_again(reach, path, how, first).await;
    }
    let first: Vec<LiveView> = read(first)?;
    let mut terminal = ratatui::init();
    let shown = show(&mut terminal, reach, path, how, first).await;
    ratatui::restore();
    shown.map(|()| Value::Null)
}

fn broken(error: impl std::fmt::Display) -> ClientError {
    ClientError::Broken(error.to_string())
}

async fn show(
    terminal: &mut DefaultTerminal,
    reach: &Reach,
    path: &str,
    how: How,
    first: Vec<LiveView>,
) -> Result<(), ClientError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
    let mut keys = listen();
    let mut state = State::new(first);
    let mut next = tokio::time::Instant::now() + how.interval;
    let mut lost_at = None;
    loop {
        terminal.draw(|frame| draw(frame, &mut state)).map_err(broken)?;
        let asked = async {
            tokio::time::sleep_until(next).await;
            look(reach, path).await.and_then(read::<Vec<LiveView>>)
        };
        // A key event drops the pending request, which is then sent again; this costs nothing.
        tokio::select! {
            event = keys.recv() => match event {
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press && !press(&mut state, key) => return Ok(()),
                Some(_) => {}
                None => return Err(broken("the terminal was closed")),
            },
            _ = terminate.recv() => return Ok(()),
            answer = asked => {
                next = tokio::time::Instant::now() + how.interval;
                match answer {
                    Ok(disks) => (state.disks, state.lost, lost_at) = (disks, None, None),
                    Err(error) => {
                        let since: Instant = *lost_at.get_or_insert_with(Instant::now);
                        let seconds = since.elapsed().as_secs();
                        state.lost = Some(format!("no answer from the server for {seconds} s, retrying: {error}"));
                    }
                }
            }
        }
    }
}

/// Starts a thread that reads key events. It ends when the receiver is dropped.
fn listen() -> mpsc::Receiver<Event> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let read = match event::poll(KEYS_POLL) {
                Ok(true) => event::read(),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            let Ok(event) = read else { return };
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    keys
}

/// Handles a key. Returns false to quit.
fn press(state: &mut State, key: KeyEvent) -> bool {
    let page = state.page.max(1);
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('q') => return false,
        KeyCode::Esc if state.help => state.help = false,
        KeyCode::Esc => return false,
        KeyCode::Char('?' | 'h') => state.help = !state.help,
        KeyCode::Char('s') => state.order = state.order.next(),
        KeyCode::Char(letter) if Order::of(letter).is_some() => state.order = Order::of(letter).unwrap_or_default(),
        KeyCode::Down | KeyCode::Char('j') => state.scroll += 1,
        KeyCode::Up | KeyCode::Char('k') => state.scroll = state.scroll.saturating_sub(1),
        KeyCode::PageDown | KeyCode::Char(' ') => state.scroll += page,
        KeyCode::PageUp => state.scroll = state.scroll.saturating_sub(page),
        KeyCode::Home => state.scroll = 0,
        // Drawing limits it to the last page.
        KeyCode::End => state.scroll = usize::MAX / 2,
        _ => {}
    }
    true
}

/// Prints text, or one JSON document per line, until the output is closed.
async fn print_again_and_again(reach: &Reach, path: &str, how: How, first: Value) -> Result<Value, ClientError> {
    let (mut answer, mut printed, mut is_lost) = (Ok(first), 0, false);
    loop {
        match answer.and_then(|answer| batch_text(reach.json, answer)) {
            Ok(text) => {
                is_lost = false;
                printed += 1;
                let mut out = std::io::stdout().lock();
                if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                    return Ok(Value::Null);
                }
            }
            Err(error) if !is_lost => {
                is_lost = true;
                eprintln!("{}: {error}; retrying", now());
            }
            Err(_) => {}
        }
        if how.count.is_some_and(|count| printed >= count) {
            return Ok(Value::Null);
        }
        tokio::time::sleep(how.interval).await;
        answer = look(reach, path).await;
    }
}

fn now() -> String {
    date(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}

fn batch_text(json: bool, answer: Value) -> Result<String, ClientError> {
    match json {
        true => Ok(format!("{answer}\n")),
        false => Ok(format!("{}\n{}\n", now(), print::top(&read::<Vec<LiveView>>(answer)?))),
    }
}

#[cfg(test)]
mod tests;
