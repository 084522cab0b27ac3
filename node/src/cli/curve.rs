//! A miss-ratio curve for the terminal and as SVG. Sizes are on a logarithmic scale, and the partition's size is
//! marked.

use std::fmt::Write;

use super::print::{bytes, eviction, ratio};
use crate::control::view::{CurvePoint, CurveView};

/// Characters of the chart; each has 2 x 4 dots.
const WIDTH: usize = 66;
const HEIGHT: usize = 14;
/// A curve needs at least this many block reads and writes; with fewer, half of it would be noise.
const ENOUGH: f64 = 1000.0;
/// The chart ends where the miss ratio is within this distance of its final value.
const FLAT: f64 = 0.002;

/// The visible part of a curve: from its first size to the size from which on nothing changes.
struct Chart<'a> {
    view: &'a CurveView,
    points: &'a [CurvePoint],
}

impl Chart<'_> {
    fn of(view: &CurveView) -> Option<Chart<'_>> {
        let last = view.points.last()?.miss_ratio;
        let flat = view.points.iter().position(|point| point.miss_ratio - last < FLAT)?;
        let end = view.points[flat].cache_bytes.max(view.partition_bytes) * 2;
        let past = view.points.iter().position(|point| point.cache_bytes > end).unwrap_or(view.points.len());
        let points = &view.points[..past];
        (points.len() > 1 && view.block_reads + view.block_writes >= ENOUGH).then_some(Chart { view, points })
    }

    /// The horizontal position of a size, 0 to 1.
    fn across(&self, bytes: u64) -> f64 {
        let log = |bytes: u64| (bytes.max(1) as f64).log2();
        let (first, last) = (log(self.points[0].cache_bytes), log(self.points[self.points.len() - 1].cache_bytes));
        ((log(bytes) - first) / (last - first)).clamp(0.0, 1.0)
    }

    /// The miss ratio at a horizontal position, interpolated linearly.
    fn height(&self, across: f64) -> f64 {
        let past = self.points.partition_point(|point| self.across(point.cache_bytes) < across);
        let past = past.clamp(1, self.points.len() - 1);
        let (left, right) = (&self.points[past - 1], &self.points[past]);
        let (from, to) = (self.across(left.cache_bytes), self.across(right.cache_bytes));
        let part = ((across - from) / (to - from)).clamp(0.0, 1.0);
        left.miss_ratio + (right.miss_ratio - left.miss_ratio) * part
    }

    /// Sizes with a label on the axis: powers of four.
    fn ticks(&self) -> impl Iterator<Item = u64> {
        let (first, last) = (self.points[0].cache_bytes, self.points[self.points.len() - 1].cache_bytes);
        (0..31).map(|i| 1_u64 << (2 * i)).filter(move |size| (first..=last).contains(size))
    }

    fn title(&self) -> String {
        let CurveView { tenant, volume, policy, running, .. } = self.view;
        let whose = if tenant == volume { format!("volume '{volume}'") } else { format!("tenant '{tenant}'") };
        let what_if = if policy == running { "" } else { ", not its present policy" };
        format!("Block reads and writes of {whose} that go to the disk, by cache size ({}{what_if})", eviction(*policy))
    }

    fn mark(&self) -> String {
        let missed = self.view.miss_ratio.map_or(String::new(), |missed| format!(": {:.1}%", missed * 100.0));
        format!("{} now{missed}", bytes(self.view.partition_bytes))
    }

    fn source(&self) -> String {
        let CurveView { block_reads, block_writes, sampling_rate, samples, .. } = self.view;
        format!(
            "from about {block_reads:.0} block reads and {block_writes:.0} block writes; {} of all blocks sampled: \
             {samples} blocks",
            ratio(*sampling_rate)
        )
    }
}

/// The chart as text.
pub fn text(view: &CurveView) -> String {
    let Some(chart) = Chart::of(view) else {
        return format!(
            "no curve yet: volume '{}' had {:.0} block requests, a curve needs {ENOUGH:.0}\n",
            view.volume,
            view.block_reads + view.block_writes
        );
    };
    let dots = draw(&chart);
    let mark = (chart.across(view.partition_bytes) * (WIDTH - 1) as f64).round() as usize;
    let mut text = chart.title() + "\n\n";
    for (row, cells) in dots.iter().enumerate() {
        let label = match row {
            0 => "100 %",
            row if row == HEIGHT / 2 => "50 %",
            row if row == HEIGHT - 1 => "0 %",
            _ => "",
        };
        let cell = |(at, &dots): (usize, &u8)| match dots {
            0 if at == mark => '┊',
            0 => ' ',
            dots => char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '),
        };
        let cells: String = cells.iter().enumerate().map(cell).collect();
        let edge = if label.is_empty() { '│' } else { '┤' };
        let _ = writeln!(text, "{label:>6} {edge}{}", cells.trim_end());
    }
    text += &axis(&chart, mark);
    let _ = writeln!(text, "\n{}", chart.source());
    text
}

/// Draws the curve as braille characters of eight dots.
fn draw(chart: &Chart<'_>) -> [[u8; WIDTH]; HEIGHT] {
    // The bit of each dot in a braille character, by row and column.
    const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
    let mut dots = [[0; WIDTH]; HEIGHT];
    let mut before = None;
    for column in 0..2 * WIDTH {
        let ratio = chart.height(column as f64 / (2 * WIDTH - 1) as f64);
        let row = ((1.0 - ratio).clamp(0.0, 1.0) * (4 * HEIGHT - 1) as f64).round() as usize;
        let from: usize = before.replace(row).map_or(row, |before: usize| if before < row { before + 1 } else { row });
        for row in from.min(row)..=row {
            dots[row / 4][column / 2] |= BITS[row % 4][column % 2];
        }
    }
    dots
}

/// The axis, its labels, and the mark of the partition.
fn axis(chart: &Chart<'_>, mark: usize) -> String {
    let mut line = vec!['─'; WIDTH];
    let mut names = vec![' '; WIDTH + 8];
    let mut free = 0;
    for size in chart.ticks() {
        let at = (chart.across(size) * (WIDTH - 1) as f64).round() as usize;
        line[at] = '┬';
        let name = bytes(size);
        let from = at.saturating_sub(name.len() / 2).max(free);
        if from + name.len() <= names.len() {
            name.chars().enumerate().for_each(|(i, letter)| names[from + i] = letter);
            free = from + name.len() + 1;
        }
    }
    line[mark] = '▲';
    let text = |cells: &[char]| cells.iter().collect::<String>().trim_end().to_owned();
    let told = chart.mark();
    let indent = if mark + told.len() > WIDTH { (mark + 1).saturating_sub(told.len() + 2) } else { mark };
    let told = if indent < mark { format!("{told} ▲") } else { format!("▲ {told}") };
    format!("       └{}\n        {}\n        {}{told}\n", text(&line), text(&names), " ".repeat(indent))
}

/// The chart as SVG.
pub fn svg(view: &CurveView) -> String {
    const LEFT: f64 = 70.0;
    const TOP: f64 = 50.0;
    const ACROSS: f64 = 700.0;
    const DOWN: f64 = 320.0;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 450\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"800\" height=\"450\" fill=\"white\"/>\n",
    );
    let mut put = |text: String| svg += &(text + "\n");
    let Some(chart) = Chart::of(view) else {
        put(format!("<text x=\"{LEFT}\" y=\"{TOP}\">{}</text>\n</svg>", text(view).trim_end()));
        return svg;
    };
    let x = |bytes: u64| LEFT + chart.across(bytes) * ACROSS;
    let y = |ratio: f64| TOP + (1.0 - ratio) * DOWN;
    put(format!("<text x=\"{LEFT}\" y=\"28\" font-size=\"15\">{}</text>", chart.title()));
    for percent in [0, 25, 50, 75, 100] {
        let at = y(f64::from(percent) / 100.0);
        put(format!("<path d=\"M{LEFT} {at:.1}h{ACROSS}\" stroke=\"#ddd\"/>"));
        put(format!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{percent} %</text>", LEFT - 8.0, at + 4.0));
    }
    for size in chart.ticks() {
        let at = x(size);
        put(format!("<path d=\"M{at:.1} {}v6\" stroke=\"#888\"/>", TOP + DOWN));
        put(format!("<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>", TOP + DOWN + 22.0, bytes(size)));
    }
    let line = |of: fn(&CurvePoint) -> Option<f64>| {
        let points = chart.points.iter().filter_map(|point| Some((point.cache_bytes, of(point)?)));
        points.map(|(size, ratio)| format!("{:.1},{:.1} ", x(size), y(ratio))).collect::<String>()
    };
    type Of = fn(&CurvePoint) -> Option<f64>;
    let lines: [(&str, &str, f64, Of); 3] = [
        ("reads", "#1f77b4", 1.2, |point| point.read_miss_ratio),
        ("writes", "#d62728", 1.2, |point| point.write_miss_ratio),
        ("both", "#222", 2.5, |point| Some(point.miss_ratio)),
    ];
    for (i, (name, colour, width, of)) in lines.into_iter().enumerate() {
        let points = line(of);
        if !points.is_empty() {
            let (at, below) = (LEFT + 90.0 * i as f64, TOP + DOWN + 48.0);
            put(format!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"));
            put(format!("<path d=\"M{at} {below}h24\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"));
            put(format!("<text x=\"{}\" y=\"{}\">{name}</text>", at + 30.0, below + 4.0));
        }
    }
    let mark = x(view.partition_bytes);
    let (anchor, beside) = if mark > LEFT + ACROSS / 2.0 { ("end", mark - 6.0) } else { ("start", mark + 6.0) };
    put(format!(
        "<path d=\"M{mark:.1} {TOP}v{DOWN}\" stroke=\"#2ca02c\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\"/>"
    ));
    put(format!(
        "<text x=\"{beside:.1}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"#2ca02c\">{}</text>",
        TOP + 14.0,
        chart.mark()
    ));
    put(format!("<text x=\"{LEFT}\" y=\"440\" fill=\"#666\" font-size=\"11\">{}</text>\n</svg>", chart.source()));
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::spec::Eviction;

    /// A straight line from 100 % at 1 MiB to 0 % at 64 MiB.
    fn view() -> CurveView {
        let point = |i: u32| CurvePoint {
            cache_bytes: 1 << (20 + i),
            miss_ratio: 1.0 - f64::from(i.min(6)) / 6.0,
            read_miss_ratio: Some(1.0 - f64::from(i.min(6)) / 6.0),
            write_miss_ratio: None,
        };
        CurveView {
            volume: "db".into(),
            tenant: "db".into(),
            policy: Eviction::Lru,
            running: Eviction::Lru,
            partition_bytes: 8 << 20,
            miss_ratio: Some(0.5),
            block_reads: 5000.0,
            block_writes: 0.0,
            sampling_rate: 0.25,
            samples: 100,
            points: (0..12).map(point).collect(),
        }
    }

    #[test]
    fn the_chart_shows_the_curve_and_the_partition() {
        let text = text(&view());
        assert!(text.contains("volume 'db'") && text.contains("(lru)") && text.contains("▲ 8MiB now: 50.0%"), "{text}");
        let rows: Vec<&str> = text.lines().filter(|line| line.contains('┤') || line.contains('│')).collect();
        assert_eq!(rows.len(), HEIGHT, "{text}");
        let braille = |row: &str| row.chars().position(|c| ('\u{2801}'..='\u{28ff}').contains(&c));
        let starts: Vec<_> = rows.iter().filter_map(|row| braille(row)).collect();
        assert!(starts.len() == HEIGHT && starts.windows(2).all(|pair| pair[0] < pair[1]), "it falls: {text}");
        assert!(rows.iter().filter(|row| row.contains('┊')).count() > HEIGHT / 2, "{text}");
        for size in ["1MiB", "4MiB", "16MiB", "64MiB"] {
            assert!(text.contains(size), "{size} is missing: {text}");
        }
        assert!(!text.contains("256MiB") && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn the_picture_has_lines_and_the_mark() {
        let picture = svg(&view());
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("<polyline").count(), 2, "reads and both");
        assert!(picture.contains("8MiB now: 50.0%") && picture.contains("stroke-dasharray"));
    }

    #[test]
    fn little_is_no_curve() {
        let little = CurveView { block_reads: 10.0, ..view() };
        assert_eq!(text(&little), "no curve yet: volume 'db' had 10 block requests, a curve needs 1000\n");
        assert!(svg(&little).contains("no curve yet"));
    }
}
