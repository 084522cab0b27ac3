//! Line charts of experiments that sweep a setting, as SVG.

use plotters::prelude::*;

/// The figures for each value of a setting.
#[derive(Clone)]
pub struct Line {
    /// Its label.
    pub name: String,
    /// (value of the setting, figure), in ascending order.
    pub points: Vec<(f64, f64)>,
    /// The value that the server chooses by itself, and the figure for it.
    pub chosen: Option<(f64, f64)>,
}

const SIZE: (u32, u32) = (860, 380);
/// Distinguishable without colour vision (Okabe and Ito).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// A chart of lines over a setting on a logarithmic axis, with a labelled horizontal line. Large points show the
/// server's choice.
pub fn lines(axes: (&str, &str), lines: &[Line], across: (f64, &str)) -> Result<String, String> {
    let mut svg = String::new();
    draw(&mut svg, axes, lines, across).map_err(|error| format!("the chart of {} cannot be drawn: {error}", axes.1))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    axes: (&str, &str),
    lines: &[Line],
    across: (f64, &str),
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|line| line.points.iter().chain(&line.chosen));
    let from = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let to = points().map(|point| point.0).fold(0.0, f64::max);
    let highest = points().map(|point| point.1).fold(across.0, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d((from..to).log_scale(), 0.0..highest * 1.1)?;
    chart
        .configure_mesh()
        .x_desc(axes.0)
        .y_desc(axes.1)
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let path = line.points.iter().copied();
        chart
            .draw_series(LineSeries::new(path.clone(), colour.stroke_width(2)))?
            .label(line.name.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
        chart.draw_series(path.map(|point| Circle::new(point, 2, colour.filled())))?;
        chart.draw_series(line.chosen.iter().map(|&point| Circle::new(point, 7, colour.filled())))?;
    }
    chart
        .draw_series(LineSeries::new([(from, across.0), (to, across.0)], BLACK.stroke_width(1)))?
        .label(across.1)
        .legend(|(x, y)| PathElement::new([(x, y), (x + 10, y)], BLACK));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_shows_every_line_its_choice_and_what_goes_across() {
        let line = |name: &str, chosen| Line { name: name.into(), points: vec![(1.0, 0.2), (100.0, 0.9)], chosen };
        let of = [line("one", Some((10.0, 0.5))), line("other", None)];
        let svg = lines(("size", "efficiency"), &of, (0.9, "due")).unwrap();
        assert!(["size", "efficiency", "one", "other", "due"].iter().all(|word| svg.contains(word)), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 5);
    }
}
