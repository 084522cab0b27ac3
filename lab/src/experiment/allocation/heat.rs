//! Heat maps, as SVG.

use plotters::prelude::*;

/// A map of values: rows from below, cells from the left.
pub struct Heat<'a> {
    /// Labels of the axes.
    pub axes: (&'a str, &'a str),
    /// The values of the cells on each axis.
    pub columns: Vec<String>,
    pub rows: Vec<String>,
    /// By row and column.
    pub values: Vec<Vec<f64>>,
    /// The value that is darkest.
    pub most: f64,
}

const SIZE: (u32, u32) = (430, 330);
/// The darkest colour.
const DARK: (f64, f64, f64) = (0.0, 60.0, 110.0);

impl Heat<'_> {
    pub fn svg(&self) -> Result<String, String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| format!("the map of {} cannot be drawn: {error}", self.axes.1))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (columns, rows) = (self.columns.len(), self.rows.len());
        let (x_label, y_label) = (label(&self.columns), label(&self.rows));
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(50)
            .build_cartesian_2d(0.0..columns as f64, 0.0..rows as f64)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc(self.axes.0)
            .y_desc(self.axes.1)
            .x_labels(columns.min(8) + 1)
            .y_labels(rows.min(8) + 1)
            .x_label_formatter(&x_label)
            .y_label_formatter(&y_label)
            .draw()?;
        let cells = self.values.iter().enumerate().flat_map(|(row, values)| {
            values.iter().enumerate().map(move |(column, &value)| {
                let (x, y) = (column as f64, row as f64);
                Rectangle::new([(x, y), (x + 1.0, y + 1.0)], self.colour(value).filled())
            })
        });
        chart.draw_series(cells)?;
        if columns * rows <= TEXTS {
            let style = ("sans-serif", 10).into_font().color(&BLACK);
            chart.draw_series(self.values.iter().enumerate().flat_map(|(row, values)| {
                let style = style.clone();
                values.iter().enumerate().map(move |(column, value)| {
                    Text::new(format!("{:.0}", value * 100.0), (column as f64 + 0.3, row as f64 + 0.6), style.clone())
                })
            }))?;
        }
        area.present()?;
        Ok(())
    }

    fn colour(&self, value: f64) -> RGBColor {
        let part = if value.is_finite() { (value.abs() / self.most).min(1.0) } else { 1.0 };
        let of = |dark: f64| (255.0 + (dark - 255.0) * part) as u8;
        RGBColor(of(DARK.0), of(DARK.1), of(DARK.2))
    }
}

/// Cells of a map in which their values, in percent, can be read.
const TEXTS: usize = 120;

fn label(of: &[String]) -> impl Fn(&f64) -> String + '_ {
    |at| if at.fract() == 0.0 { of.get(*at as usize).cloned().unwrap_or_default() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_shows_its_cells_and_their_values() {
        let texts = |of: &[&str]| of.iter().map(|text| (*text).to_owned()).collect();
        let values = vec![vec![0.0, 0.5], vec![0.25, f64::NAN]];
        let heat =
            Heat { axes: ("share", "cache"), columns: texts(&["1", "2"]), rows: texts(&["3", "4"]), values, most: 0.5 };
        let svg = heat.svg().unwrap();
        assert!(["share", "cache", "25\n", "50\n"].iter().all(|word| svg.contains(word)), "{svg}");
        assert_eq!((heat.colour(0.0), heat.colour(0.5)), (RGBColor(255, 255, 255), RGBColor(0, 60, 110)));
    }
}
