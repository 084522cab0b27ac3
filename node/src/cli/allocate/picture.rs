//! Draws the predicted latency of each tenant as a function of what it has, with the present and the chosen point.
//!
//! A tenant has two pictures: over both caches, with the chosen share; and over the cache of the server and the share,
//! with the chosen cache of its gateway. Without a gateway there is only the latter.

use std::fmt::Write;

use super::plan::{Drawn, Planned, predicted};
use super::problem::Has;
use crate::cli::print::{bytes, ratio};
use crate::quantity::duration;

/// Cells of a picture in each direction.
const CELLS: u32 = 24;
/// Pixels of a cell, of the margins, and between two pictures.
const CELL: f64 = 12.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 60.0;
const BELOW: f64 = 70.0;
const BETWEEN: f64 = 110.0;
/// Pixels of a picture.
const SIDE: f64 = CELL * CELLS as f64;
/// Colours from the lowest to the highest latency: blue, green, yellow, red.
const COLOURS: [[f64; 3]; 4] = [[49.0, 84.0, 163.0], [76.0, 175.0, 122.0], [250.0, 215.0, 90.0], [190.0, 40.0, 45.0]];

/// A direction of a picture.
#[derive(Clone, Copy)]
enum Axis {
    Gateway,
    Server,
    Share,
}

impl Axis {
    fn title(self) -> &'static str {
        match self {
            Axis::Gateway => "cache of the gateway",
            Axis::Server => "cache of the server",
            Axis::Share => "share of the disk",
        }
    }

    /// Sets this part of the whole.
    fn set(self, has: &mut Has, whole: Has, part: f64) {
        match self {
            Axis::Gateway => has.first = (whole.first as f64 * part) as u64,
            Axis::Server => has.second = (whole.second as f64 * part) as u64,
            Axis::Share => has.share = whole.share * part,
        }
    }

    /// Which part of the whole this is.
    fn part(self, has: Has, whole: Has) -> f64 {
        let part = match self {
            Axis::Gateway => has.first as f64 / whole.first.max(1) as f64,
            Axis::Server => has.second as f64 / whole.second.max(1) as f64,
            Axis::Share => has.share / whole.share.max(f64::MIN_POSITIVE),
        };
        part.clamp(0.0, 1.0)
    }

    fn label(self, whole: Has, part: f64) -> String {
        match self {
            Axis::Gateway => bytes((whole.first as f64 * part) as u64),
            Axis::Server => bytes((whole.second as f64 * part) as u64),
            Axis::Share => ratio((whole.share * part * 1000.0).round() / 1000.0),
        }
    }
}

/// All pictures of a plan.
pub(super) fn svg(planned: &Planned) -> String {
    let height = TOP + SIDE + BELOW;
    let (across, down) = (2.0 * (LEFT + SIDE) + BETWEEN, height * planned.surfaces.len() as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {across} {down}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{across}\" height=\"{down}\" fill=\"white\"/>\n"
    );
    for (at, drawn) in planned.surfaces.iter().enumerate() {
        let top = height * at as f64;
        let pictures: &[(Axis, Axis)] = match drawn.has_gateway {
            true => &[(Axis::Gateway, Axis::Server), (Axis::Server, Axis::Share)],
            false => &[(Axis::Server, Axis::Share)],
        };
        for (column, axes) in pictures.iter().enumerate() {
            let left = LEFT + column as f64 * (SIDE + BETWEEN);
            picture(&mut svg, drawn, *axes, (left, top + TOP));
        }
        let name = escaped(&drawn.name);
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\" font-size=\"15\">{name}</text>", top + 24.0);
    }
    svg + "</svg>\n"
}

/// One picture, whose upper left corner is at `(x, y)`.
fn picture(svg: &mut String, drawn: &Drawn, (across, up): (Axis, Axis), (x, y): (f64, f64)) {
    let latency = |column: u32, row: u32| {
        let mut has = drawn.planned;
        // The middle of a cell.
        across.set(&mut has, drawn.whole, (f64::from(column) + 0.5) / f64::from(CELLS));
        up.set(&mut has, drawn.whole, (f64::from(row) + 0.5) / f64::from(CELLS));
        predicted(&drawn.evidence, has).latency_ns * drawn.factor
    };
    let cells: Vec<f64> = (0..CELLS * CELLS).map(|cell| latency(cell % CELLS, cell / CELLS).max(1.0)).collect();
    let (low, high) =
        cells.iter().fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), of| (low.min(*of), high.max(*of)));
    for (cell, latency_ns) in (0..).zip(&cells) {
        let (column, row) = (f64::from(cell % CELLS), f64::from(cell / CELLS));
        let part = if high > low { (latency_ns / low).ln() / (high / low).ln() } else { 0.0 };
        let (at, down) = (x + column * CELL, y + SIDE - (row + 1.0) * CELL);
        let title = duration(latency_ns / 1e9);
        let _ = writeln!(
            svg,
            "<rect x=\"{at:.1}\" y=\"{down:.1}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"{}\">\
             <title>{title}</title></rect>",
            colour(part)
        );
    }
    let place = |has: Has| {
        let (part_x, part_y) = (across.part(has, drawn.whole), up.part(has, drawn.whole));
        (x + part_x * SIDE, y + SIDE - part_y * SIDE)
    };
    let (now, planned) = (place(drawn.now), place(drawn.planned));
    let _ = writeln!(
        svg,
        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"6\" fill=\"none\" stroke=\"black\" stroke-width=\"2\">\
         <title>now</title></circle>",
        now.0, now.1
    );
    let _ = writeln!(
        svg,
        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"6\" fill=\"black\" stroke=\"white\"><title>planned</title></circle>",
        planned.0, planned.1
    );
    for part in [0.0, 0.5, 1.0] {
        let at = x + part * SIDE;
        let label = across.label(drawn.whole, part);
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", y + SIDE + 16.0);
        let (at, label) = (y + SIDE - part * SIDE + 4.0, up.label(drawn.whole, part));
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{at:.1}\" text-anchor=\"end\">{label}</text>", x - 6.0);
    }
    let (title, middle) = (across.title(), x + SIDE / 2.0);
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{title}</text>", y + SIDE + 34.0);
    let (title, at) = (up.title(), y - 8.0);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{at}\">{title}; mean latency {} (blue) to {} (red)</text>",
        x - 40.0,
        duration(low / 1e9),
        duration(high / 1e9)
    );
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">circle: now, dot: planned</text>",
        y + SIDE + 52.0
    );
}

fn colour(part: f64) -> String {
    let scaled = part.clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
    let at = (scaled as usize).min(COLOURS.len() - 2);
    let (from, to, part) = (COLOURS[at], COLOURS[at + 1], scaled - at as f64);
    let mix = |i: usize| (from[i] + (to[i] - from[i]) * part).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_from_blue_to_red() {
        assert_eq!((colour(0.0), colour(1.0)), ("#3154a3".into(), "#be282d".into()));
        assert_ne!(colour(0.4), colour(0.5));
    }
}
