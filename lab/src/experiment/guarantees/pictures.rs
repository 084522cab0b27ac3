//! The paper's pictures: a workload's timeline, what does not fit, and the violations of each policy.

use super::super::Picture;
use super::level::{Level, needs};
use super::plot::{self, Panel};
use super::policies::OURS;
use super::{Cast, Extent, Row, SIZES};

/// The size of the set whose timeline is drawn, as in the paper.
const TIMELINE_SIZE: usize = 5;
/// The policies whose timelines are drawn.
const TIMELINES: [(&str, &str); 2] = [("none", "unmanaged"), (OURS, "guarantees")];
/// Values above so many times the line are drawn there.
const HIGHEST: f64 = 4.0;

/// The pictures of a comparison.
pub fn comparison(extent: &Extent, cast: &Cast, rows: &[Row]) -> Result<Vec<Picture>, String> {
    let mut pictures = vec![scatter(rows)?];
    pictures.extend(timeline(extent, cast, rows)?);
    Ok(pictures)
}

/// Figure 1 of the paper: seconds per MB over the position in the sequence.
fn timeline(extent: &Extent, cast: &Cast, rows: &[Row]) -> Result<Option<Picture>, String> {
    if !extent.sizes.contains(&TIMELINE_SIZE) {
        return Ok(None);
    }
    let workload = extent.sets(TIMELINE_SIZE)[0][0];
    let level = &cast.levels(TIMELINE_SIZE)[workload];
    let window_mb = level.window_bytes() as f64 / 1e6;
    let line = 1e6 / level.bytes_per_s as f64;
    let scale = TIMELINE_SIZE as f64 / cast.ground.effective_r(TIMELINE_SIZE);
    let of = |name: &str| {
        let row = rows.iter().find(|row| row.policy.name == name && row.size == TIMELINE_SIZE);
        row.map(|row| row.shared[0].windows[0].as_slice())
    };
    let shared: Vec<_> = TIMELINES.into_iter().filter_map(|(name, label)| Some((label, of(name)?))).collect();
    let count = shared.iter().map(|(_, windows)| windows.len()).max().unwrap_or(0);
    let alone = cast.progress[workload].windows(level.window_bytes());
    let points = |windows: &[u64], scale: f64| {
        let point = |(at, &ns): (usize, &u64)| {
            let seconds = ns as f64 / 1e9 * scale / window_mb;
            (at as f64 * window_mb, seconds.min(HIGHEST * line))
        };
        windows.iter().take(count).enumerate().map(point).collect::<Vec<_>>()
    };
    let panel = |title: &str, points| Panel { title: title.into(), points, joined: true };
    let mut panels = vec![panel("alone, x 5 / R", points(&alone, scale))];
    panels.extend(shared.iter().map(|(label, windows)| panel(label, points(windows, 1.0))));
    let svg = plot::panels(("MB", "s per MB"), &panels, 1, Some(line))?;
    let name = &cast.workloads[workload].name;
    let caption = format!(
        "Timeline of one workload ({name}) in a set of five: above the line, the guarantee is missed. What is above it \
         alone is fundamental. Values above {HIGHEST} times the line are drawn there"
    );
    Ok(Some(Picture { name: "timeline".into(), caption, svg }))
}

/// Figures 2 and 3: windows that do not fit, and the bound on windows in which the sum of needs exceeds the disk.
pub fn fundamental(cast: &Cast) -> Result<Picture, String> {
    let panel = |title: &str, of: &dyn Fn(usize) -> f64| Panel {
        title: title.into(),
        points: SIZES.map(|size| (size as f64, 100.0 * of(size))).collect(),
        joined: true,
    };
    let mean = |size: usize| {
        let levels = cast.levels(size);
        levels.iter().map(Level::fundamental).sum::<f64>() / levels.len() as f64
    };
    let needs: Vec<_> = cast.needs().collect();
    let (count, ranges) = (needs.len() as f64, || needs.iter().map(|need| need.range));
    let need = needs.iter().map(|need| need.mean).sum::<f64>() / count;
    let bound = |range: f64| move |size: usize| hoeffding(size, need, range);
    let panels = [
        panel("do not fit into 1/n", &mean),
        panel("Hoeffding, mean range", &bound(ranges().sum::<f64>() / count)),
        panel("Hoeffding, widest range", &bound(ranges().fold(0.0, f64::max))),
    ];
    let svg = plot::panels(("workloads", "% of windows"), &panels, 3, None)?;
    let caption = "Windows that do not fit into a share of 1/n, and Hoeffding's bound on the time in which n workloads \
                   need more than the whole disk, from the mean and the range of their uncut needs";
    Ok(Picture { name: "fundamental".into(), caption: caption.into(), svg })
}

/// The disk time that a workload needs for its guarantee, as a part of the disk, over its windows.
pub struct Need {
    /// The mean.
    pub mean: f64,
    /// From the least to the most.
    pub range: f64,
}

impl Cast {
    /// The uncut needs of the workloads.
    fn needs(&self) -> impl Iterator<Item = Need> {
        self.progress.iter().zip(self.levels(TIMELINE_SIZE)).map(|(progress, level)| {
            let needs = needs(progress, &level);
            let (least, most) = needs.iter().fold((f64::INFINITY, 0.0f64), |(a, b), &need| (a.min(need), b.max(need)));
            Need { mean: needs.iter().sum::<f64>() / needs.len() as f64, range: most - least }
        })
    }
}

/// Hoeffding's bound on the probability that the sum of `count` independent needs with this mean and range exceeds 1.
fn hoeffding(count: usize, mean: f64, range: f64) -> f64 {
    let (count, spare) = (count as f64, 1.0 - count as f64 * mean);
    if spare <= 0.0 { 1.0 } else { (-2.0 * spare * spare / (count * range * range)).exp() }
}

/// Figure 4: for each workload in each set, missed windows less those that do not fit, by policy.
fn scatter(rows: &[Row]) -> Result<Picture, String> {
    let mut panels: Vec<Panel> = Vec::new();
    for row in rows {
        let points = row.shared.iter().flat_map(|shared| &shared.counts).filter(|counts| counts.windows > 0);
        let points = points.map(|counts| {
            let beyond = counts.missed() as f64 - counts.expected as f64;
            (row.size as f64, 100.0 * beyond / counts.windows as f64)
        });
        match panels.last_mut().filter(|panel| panel.title == row.policy.name) {
            Some(panel) => panel.points.extend(points),
            None => panels.push(Panel { title: row.policy.name.into(), points: points.collect(), joined: false }),
        }
    }
    let svg = plot::panels(("workloads", "% of windows"), &panels, 3, Some(0.0))?;
    let caption = "Missed windows of each workload in each set above or below those that do not fit into its share; \
                   below the line, slack helped";
    Ok(Picture { name: "violations".into(), caption: caption.into(), svg })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_needs_than_the_disk_has_are_certain_and_few_are_improbable() {
        assert_eq!(hoeffding(5, 0.2, 0.5), 1.0);
        assert!((hoeffding(2, 0.1, 0.5) - (-2.0f64 * 0.64 / 0.5).exp()).abs() < 1e-12);
    }
}
