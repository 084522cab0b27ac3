//! Bar charts of experiments, as SVG.

use plotters::prelude::*;

/// A group of bars.
pub struct Group {
    /// The label of the group.
    pub label: String,
    /// The heights of its bars, one per series; NaN for what is not known.
    pub bars: Vec<f64>,
}

/// Width of a chart, pixels: a column of text on a page.
const WIDTH: u32 = 860;
const HEIGHT: u32 = 370;
/// Distinguishable without colour vision (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
];
/// Height of the legend above the bars, where it covers none, and the maximum width of its letters.
const LEGEND: u32 = 30;
const LETTER: usize = 8;
/// The empty fraction of a group's width.
const GAP: f64 = 0.3;

/// A chart of groups of bars with a legend, and a horizontal line with a label.
pub fn bars(axis: &str, series: &[&str], groups: &[Group], line: Option<(f64, &str)>) -> Result<String, String> {
    let mut svg = String::new();
    draw(&mut svg, axis, series, groups, line)
        .map_err(|error| format!("the chart of {axis} cannot be drawn: {error}"))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    axis: &str,
    series: &[&str],
    groups: &[Group],
    line: Option<(f64, &str)>,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    area.fill(&WHITE)?;
    let highest =
        groups.iter().flat_map(|group| &group.bars).copied().chain(line.map(|(at, _)| at)).fold(0.0, f64::max);
    let count = groups.len() as f64;
    let (legend, plot) = area.split_vertically(LEGEND);
    let mut chart = ChartBuilder::on(&plot)
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..count, 0.0..highest * 1.12)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc(axis)
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()?;
    let width = (1.0 - GAP) / series.len() as f64;
    for which in 0..series.len() {
        let colour = COLOURS[which % COLOURS.len()];
        let bars = groups.iter().enumerate().map(|(at, group)| {
            let left = at as f64 + GAP / 2.0 + which as f64 * width;
            Rectangle::new([(left, 0.0), (left + width * 0.94, group.bars[which].max(0.0))], colour.filled())
        });
        chart.draw_series(bars)?;
        let style = ("sans-serif", 11).into_font().color(&BLACK);
        chart.draw_series(groups.iter().enumerate().map(|(at, group)| {
            let left = at as f64 + GAP / 2.0 + which as f64 * width;
            let value = group.bars[which];
            Text::new(short(value), (left + width * 0.1, value.max(0.0) + highest * 0.06), style.clone())
        }))?;
    }
    if let Some((at, _)) = line {
        chart.draw_series(LineSeries::new([(0.0, at), (count, at)], BLACK.stroke_width(1)))?;
    }
    let (style, plane) = (("sans-serif", 13).into_font().color(&BLACK), chart.plotting_area());
    for (at, group) in groups.iter().enumerate() {
        let (x, y) = plane.map_coordinate(&(at as f64 + GAP / 2.0, 0.0));
        area.draw(&Text::new(group.label.clone(), (x, y + 8), style.clone()))?;
    }
    let mut left = 60;
    for (which, name) in series.iter().copied().chain(line.map(|(_, name)| name)).enumerate() {
        let (top, height) = if which < series.len() { (10, 10) } else { (15, 1) };
        let colour = if which < series.len() { COLOURS[which % COLOURS.len()] } else { BLACK };
        legend.draw(&Rectangle::new([(left, top), (left + 12, top + height)], colour.filled()))?;
        legend.draw(&Text::new(name, (left + 17, 9), style.clone()))?;
        left += (40 + LETTER * name.chars().count()) as i32;
    }
    area.present()?;
    Ok(())
}

/// A number with about three digits.
fn short(value: f64) -> String {
    match value.abs() {
        0.0..0.0005 => "0".into(),
        0.0005..10.0 => format!("{value:.2}"),
        magnitude if magnitude.is_nan() => "?".into(),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_shows_every_group_series_and_line() {
        let groups = [
            Group { label: "here".into(), bars: vec![0.5, 0.25] },
            Group { label: "there".into(), bars: vec![1.0, f64::NAN] },
        ];
        let svg = bars("kept", &["one", "other"], &groups, Some((0.5, "due"))).unwrap();
        assert!(
            svg.starts_with("<svg")
                && ["here", "there", "one", "other", "due", "kept", "?\n"].iter().all(|word| svg.contains(word))
        );
    }
}
