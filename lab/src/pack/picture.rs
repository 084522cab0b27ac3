//! A schedule as a picture: servers from the top to the bottom, time from left to right.

use engine::cluster::pack::Schedule;
use plotters::prelude::*;

/// Width of the picture, height of a server, and what is around them, pixels.
const WIDTH: u32 = 860;
const ROW: u32 = 18;
const AROUND: u32 = 70;
/// Rows from which on they are drawn thinner, so that the picture stays on a screen.
const ROWS_MAX: u32 = 50;

/// The schedule as SVG.
pub(super) fn svg(servers: usize, schedule: &Schedule) -> Result<String, String> {
    let mut svg = String::new();
    draw(&mut svg, servers, schedule).map_err(|error| format!("the schedule cannot be drawn: {error}"))?;
    Ok(svg)
}

fn draw(svg: &mut String, servers: usize, schedule: &Schedule) -> Result<(), Box<dyn std::error::Error>> {
    let height = ROW * (servers as u32).min(ROWS_MAX) + AROUND;
    let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(46)
        .build_cartesian_2d(0.0..1.0, servers as f64..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_desc(format!("part of the round (R of the cluster: {:.3})", schedule.r_cluster))
        .y_desc("server")
        .y_label_formatter(&|server| format!("{server:.0}"))
        .draw()?;
    for (tenant, slot) in schedule.slots.iter().enumerate() {
        // Hues that are far apart for tenants that follow each other (golden ratio).
        let colour = HSLColor((tenant as f64 * 0.618_034).fract(), 0.55, 0.7);
        for server in slot.servers.iter() {
            let (left, right) = (slot.start, slot.start + slot.length);
            let corners = [(left, server as f64), (right, server as f64 + 1.0)];
            chart.draw_series([
                Rectangle::new(corners, colour.filled()),
                Rectangle::new(corners, WHITE.stroke_width(1)),
            ])?;
            let middle = (left + 0.004, server as f64 + 0.25);
            chart.draw_series([Text::new(tenant.to_string(), middle, ("sans-serif", 11).into_font())])?;
        }
    }
    area.present()?;
    Ok(())
}
