//! A picture of a trace as SVG: rates over time above, offsets over time below.

use std::path::Path;

use plotters::prelude::*;
use sim::load::Op;

use super::Summary;

const SIZE: (u32, u32) = (1000, 700);
const READS: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const WRITES: RGBColor = RGBColor(0xd6, 0x27, 0x28);
/// Points of the curves: about the number of pixels.
const COLUMNS: usize = 900;

/// Draws the picture with this title.
pub fn draw(path: &Path, title: &str, summary: &Summary) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(300);
    let seconds = (summary.duration_ns() as f64 / 1e9).max(1e-3);
    draw_rates(&above, title, summary, seconds)?;
    draw_places(&below, summary, seconds)?;
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_rates(area: &Area, title: &str, summary: &Summary, seconds: f64) -> Result<(), Box<dyn std::error::Error>> {
    let first = summary.seconds.first_key_value().map_or(0, |(&second, _)| second);
    let width = (seconds / COLUMNS as f64).ceil().max(1.0);
    let columns = (seconds / width) as usize + 1;
    let mut rates = [vec![0.0; columns], vec![0.0; columns]];
    for (&second, count) in &summary.seconds {
        let column = (((second - first) as f64 / width) as usize).min(columns - 1);
        rates[0][column] += f64::from(count.reads) / width;
        rates[1][column] += f64::from(count.others) / width;
    }
    let most = rates.iter().flatten().copied().fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..seconds, 0.0..most * 1.05)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc("seconds").y_desc("requests a second").draw()?;
    for (name, colour, rates) in [("reads", READS, &rates[0]), ("writes and others", WRITES, &rates[1])] {
        let points = rates.iter().enumerate().map(|(i, &rate)| (i as f64 * width, rate));
        chart
            .draw_series(LineSeries::new(points, &colour))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}

fn draw_places(area: &Area, summary: &Summary, seconds: f64) -> Result<(), Box<dyn std::error::Error>> {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let low = gib(summary.lowest.min(summary.highest));
    let high = gib(summary.highest).max(low + 1e-6);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..seconds, low..high)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc("seconds").y_desc("place (GiB)").draw()?;
    chart.draw_series(summary.sample.iter().map(|record| {
        let colour = if record.op == Op::Read { READS } else { WRITES };
        let at = (record.time_ns - summary.earliest_ns) as f64 / 1e9;
        Pixel::new((at, gib(record.offset)), colour)
    }))?;
    Ok(())
}
