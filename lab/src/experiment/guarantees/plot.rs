//! Panels of points side by side, with the same axes, as SVG.

use plotters::prelude::*;

/// A panel.
pub struct Panel {
    /// Its title.
    pub title: String,
    /// (x, y).
    pub points: Vec<(f64, f64)>,
    /// Whether a line joins the points.
    pub joined: bool,
}

/// Width of all panels and height of one, pixels.
const WIDTH: u32 = 860;
const HEIGHT: u32 = 200;
/// Blue (Okabe and Ito).
const COLOUR: RGBColor = RGBColor(0, 114, 178);
/// Points in the same place are drawn once; the axes have so many places.
const PLACES: f64 = 400.0;

/// Panels in so many columns, with a horizontal line.
pub fn panels(axes: (&str, &str), panels: &[Panel], columns: usize, line: Option<f64>) -> Result<String, String> {
    let mut svg = String::new();
    draw(&mut svg, axes, panels, columns, line).map_err(|error| format!("{} cannot be drawn: {error}", axes.1))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    axes: (&str, &str),
    panels: &[Panel],
    columns: usize,
    line: Option<f64>,
) -> Result<(), Box<dyn std::error::Error>> {
    let rows = panels.len().div_ceil(columns);
    let area = SVGBackend::with_string(svg, (WIDTH, HEIGHT * rows as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let points = || panels.iter().flat_map(|panel| &panel.points);
    let x = points().fold((f64::INFINITY, 0.0f64), |(a, b), point| (a.min(point.0), b.max(point.0)));
    let y =
        points().map(|point| point.1).chain(line).fold((0.0f64, 0.0f64), |(a, b), value| (a.min(value), b.max(value)));
    let margin = |(from, to): (f64, f64)| 0.05 * (to - from).max(1e-9);
    let (left, right) = (x.0 - margin(x), x.1 + margin(x));
    let (low, high) = (if y.0 < 0.0 { y.0 - margin(y) } else { 0.0 }, y.1 + margin(y));
    for (panel, on) in panels.iter().zip(area.split_evenly((rows, columns))) {
        let mut chart = ChartBuilder::on(&on)
            .margin(8)
            .caption(&panel.title, ("sans-serif", 13))
            .x_label_area_size(32)
            .y_label_area_size(50)
            .build_cartesian_2d(left..right, low..high)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_desc(axes.0)
            .y_desc(axes.1)
            .y_labels(5)
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .draw()?;
        if let Some(line) = line {
            chart.draw_series(LineSeries::new([(left, line), (right, line)], BLACK.stroke_width(1)))?;
        }
        if panel.joined {
            chart.draw_series(LineSeries::new(panel.points.iter().copied(), COLOUR.stroke_width(1)))?;
            continue;
        }
        let place = |value: f64, (from, to): (f64, f64)| ((value - from) / (to - from).max(1e-9) * PLACES) as i64;
        let mut seen = std::collections::BTreeSet::new();
        let places = panel.points.iter().filter(|point| seen.insert((place(point.0, x), place(point.1, y))));
        chart.draw_series(places.map(|&point| Circle::new(point, 2, COLOUR.filled())))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panel_shows_its_points_once() {
        let panel = |title: &str, joined| Panel {
            title: title.into(),
            points: vec![(1.0, 2.0), (1.0, 2.0), (3.0, -1.0)],
            joined,
        };
        let svg = panels(("size", "misses"), &[panel("one", false), panel("other", true)], 2, Some(0.0)).unwrap();
        assert!(["size", "misses", "one", "other"].iter().all(|word| svg.contains(word)), "{svg}");
        assert_eq!((svg.matches("<circle").count(), svg.matches("<polyline").count() >= 3), (2, true));
    }
}
