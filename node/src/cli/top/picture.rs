//! Drawing of the live view: all disks below each other, in lines that can be scrolled, and a status line.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};

use super::super::print::{self, DISK, GUARANTEE, KEEPS, TENANT_HEADINGS};
use super::strip::{self, Owner};
use crate::control::view::{LiveOffloadView, LiveView, RatioView, TenantView};

/// Colours of tenants: distinguishable on dark and on light background, without red and green, which DISK and KEEPS
/// use. Tenants with the same colour are distinguished by their tags.
const COLOURS: [u8; 12] = [39, 214, 177, 81, 205, 228, 69, 180, 99, 223, 45, 248];
/// Tags of tenants, in the order of their names; shown in the strip and before the name.
const TAGS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// Spaces between two columns.
const SPACING: usize = 2;
/// Columns that a narrow screen omits, the least important first. `--once` and `volume show` print all.
const DROPPED: [&str; 11] =
    [" P99.9", " CACHE", " MAX", "R", " LOST", "DECISION", " P50", " SLICE", "WAITS FOR", "GUARANTEE", " DISK"];

/// The order of tenants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// By name.
    #[default]
    Name,
    /// By insulation, lowest first.
    Keeps,
    /// By bytes per second, highest first.
    Throughput,
    /// By the 99th percentile of latency, highest first.
    Latency,
    /// By share, largest first.
    Share,
}

impl Order {
    const ALL: [(Order, char, &str); 5] = [
        (Order::Name, 'n', "name"),
        (Order::Keeps, 'i', "KEEPS"),
        (Order::Throughput, 't', "throughput"),
        (Order::Latency, 'l', "P99"),
        (Order::Share, 'S', "share"),
    ];

    /// The order with this key.
    pub fn of(key: char) -> Option<Order> {
        Order::ALL.iter().find(|(_, letter, _)| *letter == key).map(|(order, ..)| *order)
    }

    /// The next order.
    pub fn next(self) -> Order {
        let at = Order::ALL.iter().position(|(order, ..)| *order == self).unwrap_or(0);
        Order::ALL[(at + 1) % Order::ALL.len()].0
    }

    fn name(self) -> &'static str {
        Order::ALL.iter().find(|(order, ..)| *order == self).map_or("", |(.., name)| name)
    }

    /// The sort key; tenants with lower values come first.
    fn rank(self, tenant: &TenantView) -> f64 {
        let rates = tenant.rates.as_ref().map_or(0.0, |rates| rates.read_bytes + rates.write_bytes);
        match self {
            Order::Name => 0.0,
            Order::Keeps => tenant.insulation.as_ref().map_or(f64::MAX, |kept| kept.ratio),
            Order::Throughput => -rates,
            Order::Latency => -tenant.latency.and_then(|all| all.recent.both).map_or(0.0, |of| of.p99_seconds),
            Order::Share => -tenant.share.effective.unwrap_or(0.0),
        }
    }
}

/// The state of the view.
#[derive(Debug, Default)]
pub struct State {
    /// The latest answer of the server.
    pub disks: Vec<LiveView>,
    /// Why there is no newer answer.
    pub lost: Option<String>,
    /// The order of tenants.
    pub order: Order,
    /// Lines above the screen.
    pub scroll: usize,
    /// Lines that fit on the screen.
    pub page: usize,
    /// Whether the help is shown.
    pub help: bool,
}

impl State {
    /// The state with a first answer.
    pub fn new(disks: Vec<LiveView>) -> State {
        State { disks, ..State::default() }
    }
}

/// Draws the view.
pub fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let [body, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    let width = usize::from(body.width);
    let lines: Vec<Line<'static>> = match state.help {
        true => help(),
        false => state.disks.iter().flat_map(|disk| disk_lines(disk, state.order, width)).collect(),
    };
    state.page = usize::from(body.height);
    let below = lines.len().saturating_sub(state.page);
    state.scroll = state.scroll.min(below);
    let dim = if state.lost.is_some() { Style::new().add_modifier(Modifier::DIM) } else { Style::new() };
    let (total, scroll) = (lines.len(), state.scroll);
    let shown: Vec<Line<'static>> = lines.into_iter().skip(scroll).take(state.page).collect();
    frame.render_widget(Clear, body);
    frame.render_widget(Paragraph::new(shown).style(dim), body);
    frame.render_widget(foot_line(state, total), foot);
}

/// The status line: position and keys, or the message that the server does not answer.
fn foot_line(state: &State, total: usize) -> Line<'static> {
    if let Some(lost) = &state.lost {
        return Line::from(lost.clone()).style(Style::new().add_modifier(Modifier::REVERSED));
    }
    let keys = format!("q quits  ? help  s sorts (by {})", state.order.name());
    let last = (state.scroll + state.page).min(total);
    let place = match total > state.page {
        true => format!("  lines {} to {last} of {total}, \u{2191}\u{2193} scroll", state.scroll + 1),
        false => String::new(),
    };
    Line::from(keys + &place).style(Style::new().add_modifier(Modifier::DIM))
}

fn disk_lines(disk: &LiveView, order: Order, width: usize) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let about = format!("  {}  {}", print::busy(disk), print::live_title(disk));
    let title = Line::from(vec![Span::styled(disk.disk.clone(), bold), about.into()]);
    let mut lines = vec![title];
    if disk.policy.is_some() {
        lines.push(strip_line(disk, width));
    }
    if let Some(offload) = &disk.offload {
        lines.push(offload_line(offload, width));
    }
    if !disk.tenants.is_empty() {
        lines.extend(table(disk, order, width));
    }
    lines.push(Line::default());
    lines
}

/// The heading and a line per tenant, with minimal column widths.
fn table(disk: &LiveView, order: Order, width: usize) -> Vec<Line<'static>> {
    let heading = TENANT_HEADINGS.map(|heading| heading.trim_start().to_owned());
    let mut rows: Vec<(usize, &TenantView)> = disk.tenants.iter().enumerate().collect();
    rows.sort_by(|a, b| order.rank(a.1).total_cmp(&order.rank(b.1)));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|(place, tenant)| {
            let mut cells = print::tenant_cells(tenant);
            cells[0] = format!("{} {}", tag(*place), cells[0]);
            cells
        })
        .collect();
    let widths: Vec<usize> = (0..heading.len())
        .map(|i| cells.iter().chain([&heading.to_vec()]).map(|row| row[i].chars().count()).max().unwrap_or(0))
        .collect();
    let shown = columns_that_fit(&widths, width);
    let line = |cells: &[String], style: &dyn Fn(usize) -> Style| {
        let spans = shown.iter().map(|&column| {
            let (cell, width) = (&cells[column], widths[column]);
            let text = match TENANT_HEADINGS[column].starts_with(' ') {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            };
            [Span::styled(text, style(column)), Span::raw(" ".repeat(SPACING))]
        });
        Line::from(spans.flatten().collect::<Vec<_>>())
    };
    let mut lines = vec![line(&heading, &|_| Style::new().add_modifier(Modifier::DIM))];
    for ((place, tenant), cells) in rows.iter().zip(&cells) {
        lines.push(line(cells, &|column| match column {
            0 => colour(*place),
            // A tenant with a guarantee is promised the smaller of the guarantee and R x share.
            DISK | KEEPS | GUARANTEE if tenant.guarantee.is_some() => met(tenant),
            DISK => kept(disk, tenant.own_cache_insulation.as_ref()),
            KEEPS => kept(disk, tenant.insulation.as_ref()),
            _ => Style::new(),
        }));
    }
    lines
}

/// The columns that fit into the width.
fn columns_that_fit(widths: &[usize], room: usize) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..widths.len()).collect();
    let needed = |shown: &[usize]| shown.iter().map(|&column| widths[column] + SPACING).sum::<usize>();
    for dropped in DROPPED {
        if needed(&shown) <= room + SPACING {
            break;
        }
        shown.retain(|&column| TENANT_HEADINGS[column] != dropped);
    }
    shown
}

fn tag(place: usize) -> char {
    TAGS.get(place).map_or('+', |&tag| tag.into())
}

fn colour(place: usize) -> Style {
    Style::new().fg(Color::Indexed(COLOURS[place % COLOURS.len()]))
}

/// Red if the insulation is below R.
fn kept(disk: &LiveView, insulation: Option<&RatioView>) -> Style {
    let wanted = disk.policy.as_ref().and_then(|policy| policy.insulation.effective);
    match insulation.zip(wanted) {
        Some((kept, wanted)) if kept.ratio < wanted => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        Some(_) => Style::new().fg(Color::Green),
        None => Style::new(),
    }
}

/// Red if the tenant got less than its guarantee and its share promise.
fn met(tenant: &TenantView) -> Style {
    match tenant.guarantee.as_ref().and_then(|guarantee| guarantee.kept_ratio) {
        Some(kept) if kept < 1.0 => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        Some(_) => Style::new().fg(Color::Green),
        None => Style::new(),
    }
}

fn strip_line(disk: &LiveView, width: usize) -> Line<'static> {
    let dim = Style::new().add_modifier(Modifier::DIM);
    let cells = strip::strip(disk, width).into_iter().map(|owner| match owner {
        Owner::Unknown => Span::raw(" "),
        Owner::Nobody => Span::styled("\u{b7}", dim),
        Owner::Running => Span::styled("\u{2591}", dim),
        Owner::Gone => Span::raw("\u{2593}"),
        Owner::Tenant(place) => Span::styled(tag(place).to_string(), colour(place).add_modifier(Modifier::REVERSED)),
    });
    Line::from(cells.collect::<Vec<_>>())
}

/// What is off-loaded, in words and over time, the present at the right.
fn offload_line(offload: &LiveOffloadView, width: usize) -> Line<'static> {
    const BARS: [char; 8] =
        ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
    let words = print::offloaded(offload) + "  ";
    let room = width.saturating_sub(words.chars().count()).min(offload.history_bytes.len());
    let shown = &offload.history_bytes[offload.history_bytes.len() - room..];
    let most = shown.iter().copied().max().unwrap_or(0).max(1);
    let bar = |&bytes: &u64| match bytes {
        0 => '\u{b7}',
        bytes => BARS[(bytes * BARS.len() as u64).div_ceil(most) as usize - 1],
    };
    let bars: String = shown.iter().map(bar).collect();
    Line::from(vec![words.into(), Span::styled(bars, Style::new().fg(Color::Indexed(COLOURS[0])))])
}

/// The help: keys and columns.
fn help() -> Vec<Line<'static>> {
    let orders = Order::ALL.map(|(_, key, name)| format!("{key} {name}")).join(", ");
    let text = [
        "q, Esc, Ctrl-C     quit".to_owned(),
        "? or h             show or close this help".to_owned(),
        "s                  sort by the next key".to_owned(),
        format!("                   or directly: {orders}"),
        "arrows, PgUp/PgDn  scroll; Home and End: first and last line".to_owned(),
        String::new(),
        "The strip shows the last rounds: letters are tenants, a dot is idle time,".to_owned(),
        "\u{2591} the current slice, \u{2593} a removed tenant.".to_owned(),
        "off-loaded: bytes in stores, in periods of 5 s, the present at the right".to_owned(),
        "busy: part of the last seconds in which the disk had a request.".to_owned(),
        "SLICE  disk time in each round; LOST: part of it lost at context switches".to_owned(),
        "DISK   part of its share of a disk of its own with its cache, red below R".to_owned(),
        "KEEPS  the same with the whole cache: an estimate".to_owned(),
        "GUARANTEE: minimum bandwidth, and how much of its promise was met".to_owned(),
        "READS, WRITES, P50..MAX: client requests".to_owned(),
        "CACHE  guaranteed + lent; R: R_time x R_cache, ? until it is measured".to_owned(),
        "WAITS FOR: causes of delay of the requests".to_owned(),
        String::new(),
        "A narrow screen shows fewer columns; `aerogel top --once` prints all.".to_owned(),
    ];
    text.into_iter().map(Line::from).collect()
}
