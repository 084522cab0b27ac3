//! A picture of a trace for the terminal: rates over time, and offsets over time.

use engine::units::Nanos;

use super::Summary;
use crate::quantity::{show_bytes, show_count, show_time};

/// Columns of the pictures, which fit into 80 together with the scale.
const COLUMNS: usize = 64;
const RATE_ROWS: usize = 4;
const PLACE_ROWS: usize = 12;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];

/// Draws requests per second over time, and offsets over time.
pub fn draw(summary: &Summary) -> String {
    if summary.duration_ns() == 0 || summary.requests() == 0 {
        return String::new();
    }
    let [reads, writes] = rates(summary);
    let end = show_time(summary.duration_ns());
    let axis =
        format!("{:>11} └{}\n{:>13}{:<width$}{end:>10}\n", "", "─".repeat(COLUMNS), "0", "", width = COLUMNS - 10);
    let mut text = bars("reads/s", &reads) + &bars("writes/s", &writes) + &axis;
    if !summary.sample.is_empty() {
        text += &places(summary);
        text += &axis;
    }
    text
}

/// Mean reads per second, and mean other requests per second, in each column.
fn rates(summary: &Summary) -> [Vec<f64>; 2] {
    let mut rates = [vec![0.0; COLUMNS], vec![0.0; COLUMNS]];
    let (Some((&first, _)), Some((&last, _))) = (summary.seconds.first_key_value(), summary.seconds.last_key_value())
    else {
        return rates;
    };
    let seconds = (last - first + 1) as f64;
    let width = (seconds / COLUMNS as f64).max(1.0);
    for (&second, count) in &summary.seconds {
        let column = ((second - first) as f64 * COLUMNS as f64 / seconds) as usize;
        rates[0][column] += f64::from(count.reads) / width;
        rates[1][column] += f64::from(count.others) / width;
    }
    rates
}

/// Bars of [`RATE_ROWS`] lines, with the largest value next to them.
fn bars(name: &str, values: &[f64]) -> String {
    let most = values.iter().copied().fold(0.0, f64::max);
    let mut text = String::new();
    for row in (0..RATE_ROWS).rev() {
        let label = match row {
            3 => show_count(most.round() as u64),
            1 => name.to_owned(),
            _ => String::new(),
        };
        let cell = |&value: &f64| {
            let eighths = if most > 0.0 { value / most * (RATE_ROWS * 8) as f64 } else { 0.0 };
            // Any value above 0 is visible.
            let eighths = if value > 0.0 { eighths.max(1.0) } else { 0.0 };
            EIGHTHS[(eighths - (row * 8) as f64).clamp(0.0, 8.0) as usize]
        };
        text += &format!("{label:>11} │{}\n", values.iter().map(cell).collect::<String>().trim_end());
    }
    text
}

/// The distribution of offsets over time: darker means more requests.
fn places(summary: &Summary) -> String {
    let mut cells = vec![[0u32; COLUMNS]; PLACE_ROWS];
    let (span, duration) = (u128::from(summary.highest - summary.lowest), u128::from(summary.duration_ns()) + 1);
    for record in &summary.sample {
        let since: Nanos = record.time_ns - summary.earliest_ns;
        let column = (u128::from(since) * COLUMNS as u128 / duration) as usize;
        let row = (u128::from(record.offset - summary.lowest) * PLACE_ROWS as u128 / span.max(1)) as usize;
        cells[row.min(PLACE_ROWS - 1)][column] += 1;
    }
    let most = f64::from(cells.iter().flatten().copied().max().unwrap_or(1).max(1));
    let mut text = String::new();
    for (row, cells) in cells.iter().enumerate().rev() {
        let label = match row {
            _ if row == PLACE_ROWS - 1 => show_bytes(summary.highest),
            0 => show_bytes(summary.lowest),
            6 => "place".into(),
            _ => String::new(),
        };
        // Shaded by the square root: otherwise a few hot places would leave the rest blank.
        let shade = |&count: &u32| SHADES[((f64::from(count) / most).sqrt() * 4.0).ceil() as usize];
        text += &format!("{label:>11} │{}\n", cells.iter().map(shade).collect::<String>().trim_end());
    }
    text
}
