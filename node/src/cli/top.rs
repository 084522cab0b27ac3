//! A live view of disks and their tenants: who has the disk, what each gets, keeps and waits for.

use std::io::IsTerminal;
use std::time::Duration;

use hyper::Method;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::client::{ClientError, ask};
use super::{Reach, print, read};
use crate::control::view::{LiveView, OwnedView, TenantView};

/// Between two pictures.
const PERIOD: Duration = Duration::from_millis(500);
/// Of tenants, in turn: told apart on dark and on light ground.
const COLOURS: [Color; 6] = [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green, Color::Blue, Color::Red];

/// Whether there is somebody to show it to.
pub fn is_watched() -> bool {
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

/// Shows what the server says at `path` until it is quit with q or Ctrl-C, or told to end.
pub async fn watch(reach: &Reach, path: &str) -> Result<Value, ClientError> {
    let broken = |error: std::io::Error| ClientError::Broken(error.to_string());
    let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
    // What is wrong from the beginning is said without a screen.
    let mut disks: Vec<LiveView> = read(ask(&reach.data, Method::GET, path, None).await?)?;
    let mut terminal = ratatui::init();
    let shown = async {
        loop {
            draw(&mut terminal, &disks)?;
            tokio::select! {
                quit = tokio::task::spawn_blocking(wait) => {
                    if quit.map_err(|error| ClientError::Broken(error.to_string()))?.map_err(broken)? {
                        return Ok(Value::Null);
                    }
                }
                _ = terminate.recv() => return Ok(Value::Null),
            }
            disks = read(ask(&reach.data, Method::GET, path, None).await?)?;
        }
    };
    let shown = shown.await;
    ratatui::restore();
    shown
}

/// Waits for the next picture, or for a key. True to quit.
fn wait() -> std::io::Result<bool> {
    if !event::poll(PERIOD)? {
        return Ok(false);
    }
    let Event::Key(key) = event::read()? else { return Ok(false) };
    let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    Ok(key.kind == KeyEventKind::Press && (is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)))
}

fn draw(terminal: &mut DefaultTerminal, disks: &[LiveView]) -> Result<(), ClientError> {
    let drawn = terminal.draw(|frame| picture(frame, disks));
    drawn.map(|_| ()).map_err(|error| ClientError::Broken(error.to_string()))
}

/// All disks below each other, and what to press.
fn picture(frame: &mut Frame<'_>, disks: &[LiveView]) {
    let rows = disks.iter().map(|disk| Constraint::Length(4 + disk.tenants.len() as u16));
    let areas = Layout::vertical(rows.chain([Constraint::Length(1), Constraint::Min(0)])).split(frame.area());
    disks.iter().zip(areas.iter()).for_each(|(disk, area)| show_disk(frame, disk, *area));
    let help = Line::from("q quits").style(Style::new().add_modifier(Modifier::DIM));
    frame.render_widget(help, areas[disks.len()]);
}

fn show_disk(frame: &mut Frame<'_>, disk: &LiveView, area: Rect) {
    let [title, strip_area, tenants, _] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1 + disk.tenants.len() as u16),
        Constraint::Length(1),
    ])
    .areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let name = Span::styled(disk.disk.clone(), bold);
    frame.render_widget(Line::from(vec![name, format!("  {}", print::live_title(disk)).into()]), title);
    frame.render_widget(strip_line(disk, strip_area.width), strip_area);
    let cells: Vec<Vec<String>> = disk.tenants.iter().map(print::tenant_cells).collect();
    let widths: Vec<usize> = (0..print::TENANT_HEADINGS.len())
        .map(|i| {
            let longest = cells.iter().map(|row| row[i].chars().count());
            longest.chain([print::TENANT_HEADINGS[i].trim_start().len()]).max().unwrap_or(0)
        })
        .collect();
    let shown = columns_that_fit(&widths, usize::from(area.width));
    let rows = disk.tenants.iter().zip(cells).enumerate().map(|(i, (tenant, cells))| {
        let cells = cells.into_iter().enumerate().filter(|(column, _)| shown.contains(column)).map(|(column, cell)| {
            let style = match column {
                0 => Style::new().fg(colour(i)),
                print::KEEPS => kept(disk, tenant),
                _ => Style::new(),
            };
            aligned(column, Line::from(Span::styled(cell, style)))
        });
        Row::new(cells.collect::<Vec<_>>())
    });
    let head = shown.iter().map(|&column| aligned(column, Line::from(print::TENANT_HEADINGS[column].trim_start())));
    let head = Row::new(head.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::DIM));
    let widths: Vec<Constraint> = shown.iter().map(|&column| Constraint::Length(widths[column] as u16)).collect();
    frame.render_widget(Table::new(rows, widths).header(head).column_spacing(SPACING as u16), tenants);
}

/// Between two columns.
const SPACING: usize = 2;
/// What a narrow screen goes without, the dearest last: `--once` and `volume show` have it.
const DROPPED: [&str; 8] = [" P99.9", " CACHE", " MAX", "R", " LOST", "DECISION", " P50", " SLICE"];

/// The columns for which there is room.
fn columns_that_fit(widths: &[usize], room: usize) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..widths.len()).collect();
    let needed = |shown: &[usize]| shown.iter().map(|&column| widths[column] + SPACING).sum::<usize>();
    for dropped in DROPPED {
        if needed(&shown) <= room + SPACING {
            break;
        }
        shown.retain(|&column| print::TENANT_HEADINGS[column] != dropped);
    }
    shown
}

fn aligned(column: usize, cell: Line<'_>) -> Line<'_> {
    if print::TENANT_HEADINGS[column].starts_with(' ') { cell.right_aligned() } else { cell }
}

fn colour(tenant: usize) -> Color {
    COLOURS[tenant % COLOURS.len()]
}

/// Red if it keeps less than R.
fn kept(disk: &LiveView, tenant: &TenantView) -> Style {
    let wanted = disk.policy.as_ref().and_then(|policy| policy.insulation.effective);
    match tenant.insulation.as_ref().zip(wanted) {
        Some((kept, wanted)) if kept.ratio < wanted => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        Some(_) => Style::new().fg(Color::Green),
        None => Style::new(),
    }
}

/// Who had the disk, in the time of the last slices.
fn strip_line(disk: &LiveView, width: u16) -> Paragraph<'static> {
    let names: Vec<&str> = disk.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    let cells = strip(&disk.slices, &names, usize::from(width)).into_iter().map(|owner| match owner {
        Owner::Nobody => Span::styled("·", Style::new().add_modifier(Modifier::DIM)),
        Owner::Gone => Span::raw("▓"),
        Owner::Tenant(i) => Span::styled("█", Style::new().fg(colour(i))),
    });
    Paragraph::new(Line::from(cells.collect::<Vec<_>>()))
}

/// Whose a moment was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Nobody,
    /// A tenant that is no more.
    Gone,
    Tenant(usize),
}

/// The time from the oldest slice to the end of the latest one in so many cells: whose the middle of each was.
fn strip(slices: &[OwnedView], names: &[&str], width: usize) -> Vec<Owner> {
    let (Some(first), Some(last)) = (slices.first(), slices.last()) else { return Vec::new() };
    let (oldest, latest) = (first.seconds_ago, last.seconds_ago - last.seconds);
    let at = |cell: usize| oldest - (oldest - latest) * (cell as f64 + 0.5) / width as f64;
    let has = |slice: &&OwnedView, ago: f64| slice.seconds_ago >= ago && ago > slice.seconds_ago - slice.seconds;
    let owner = |ago: f64| match slices.iter().find(|slice| has(slice, ago)) {
        None => Owner::Nobody,
        Some(slice) => {
            let known = slice.tenant.as_ref().and_then(|tenant| names.iter().position(|name| name == tenant));
            known.map_or(Owner::Gone, Owner::Tenant)
        }
    };
    (0..width).map(|cell| owner(at(cell))).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::control::view::{
        ByOpView, Condition, DelayView, LatencyView, PercentilesView, RatesView, RatioView, ShareView,
    };

    fn slice(tenant: &str, seconds_ago: f64, seconds: f64) -> OwnedView {
        OwnedView { tenant: Some(tenant.into()), seconds_ago, seconds }
    }

    #[test]
    fn a_strip_says_whose_each_moment_was() {
        let slices = [slice("a", 1.0, 0.5), slice("b", 0.5, 0.25), slice("x", 0.1, 0.1)];
        let [a, b, nobody, gone] = [Owner::Tenant(0), Owner::Tenant(1), Owner::Nobody, Owner::Gone];
        assert_eq!(strip(&slices, &["a", "b"], 10), [a, a, a, a, a, b, b, nobody, nobody, gone]);
        assert_eq!(strip(&[], &[], 10), []);
    }

    #[test]
    fn a_picture_shows_every_tenant_and_fits_any_screen() {
        let percentiles = PercentilesView {
            requests: 1000,
            p50_seconds: 0.0123,
            p99_seconds: 0.0456,
            p999_seconds: 0.0789,
            max_seconds: 0.321,
        };
        let tenant = |name: &str| TenantView {
            name: name.into(),
            volumes: vec![name.into()],
            share: ShareView { requested: None, effective: 0.5 },
            slice: None,
            sizing: None,
            insulation: Some(RatioView { ratio: 0.93, window_seconds: 5.0, prediction: String::new() }),
            rates: Some(RatesView {
                reads: 120.0,
                read_bytes: 491_520.0,
                delay_seconds: DelayView { slice: 0.75, disk: 0.25, ..DelayView::default() },
                ..RatesView::default()
            }),
            latency: Some(LatencyView {
                recent: ByOpView { both: Some(percentiles), ..ByOpView::default() },
                ..LatencyView::default()
            }),
        };
        let disk = LiveView {
            disk: "hdd".into(),
            condition: Condition::Online,
            policy: None,
            tenants: vec![tenant("alice"), tenant("bob")],
            slices: vec![slice("alice", 0.2, 0.1), slice("bob", 0.1, 0.1)],
        };
        let disks = [disk.clone(), LiveView { disk: "ssd".into(), slices: Vec::new(), ..disk }];
        for (width, height) in [(1, 1), (20, 3), (90, 30), (160, 30)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| picture(frame, &disks)).unwrap();
            let text = terminal.backend().to_string();
            if width == 90 {
                for (part, is_there) in
                    [("120/s 480KiB/s", true), ("46 ms", true), ("P99.9", false), ("slice 75% disk 25%", true)]
                {
                    assert_eq!(text.contains(part), is_there, "{part} in\n{text}");
                }
            }
            if width == 160 {
                for part in [
                    "hdd",
                    "ssd",
                    "alice",
                    "bob",
                    "0.93",
                    "120/s 480KiB/s",
                    "slice 75% disk 25%",
                    "████",
                    "q quits",
                    "79 ms",
                    "321 ms",
                ] {
                    assert!(text.contains(part), "{part} is not in\n{text}");
                }
            }
        }
    }
}
