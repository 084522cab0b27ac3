//! What a database has with other layouts on one disk and on two, beside what off-load gives it.

use serde_json::{Value, json};
use sim::bench::raw::Raw;

use super::super::chart::{self, Group};
use super::super::loads::Load;
use super::super::stand::{Rate, mean, mixed};
use super::super::{Context, Picture};
use super::oltp::{DATABASE, counted_s, load, mixture, warm_up_s};
use super::rack::{Rack, Server, seconds};

/// A layout without off-load.
#[derive(Clone, Copy)]
struct Layout {
    name: &'static str,
    drives: usize,
    is_logged: bool,
}

const LAYOUTS: [Layout; 4] = [
    Layout { name: "baseline", drives: 1, is_logged: false },
    Layout { name: "log-structured", drives: 1, is_logged: true },
    Layout { name: "RAID-0", drives: 2, is_logged: false },
    Layout { name: "RAID-0, log-structured", drives: 2, is_logged: true },
];

/// The name of the remaining bar.
const OFF_LOAD: &str = "off-load";

/// A database with one idle store.
pub struct OffLoad {
    pub name: String,
    /// Per cent of its requests that go to hot blocks.
    pub hot: u64,
    /// Of the throughput without stores.
    pub gain: f64,
}

/// Requests per second.
#[derive(Clone, Copy)]
struct Rates {
    /// Of the server's client.
    served: f64,
    /// The same requests on the bare drives.
    bare: f64,
}

impl Layout {
    fn measure(&self, context: &Context, hot: u64, seed: u64) -> Result<Rates, String> {
        // The log is behind the database, and as long.
        let (load, bytes) = match self.is_logged {
            true => (Load::Logged(mixture(hot), DATABASE), 2 * DATABASE),
            false => (load(hot), DATABASE),
        };
        let (warm_up, counted) = (seconds(warm_up_s(hot)), seconds(counted_s(context)));
        let raw_load = load.workload(bytes, mixed(seed, 0))?;
        let server = Server { load: Some(load), bytes, ..Server::idle() };
        let rack = Rack { drives: self.drives, ..Rack::cacheless(vec![server], warm_up, counted)? };
        let mut rate = Rate::new(&rack.stand);
        Raw::new(rack.drive()?, 0, raw_load).run(warm_up + counted, |done| rate.count(&done, warm_up));
        Ok(Rates { served: rack.run(seed)?.rates[0].iops(), bare: rate.iops() })
    }
}

/// By load and layout: rates over those of the first layout, means over seeds.
fn gains(context: &Context, loads: &[OffLoad]) -> Result<Vec<Vec<Rates>>, String> {
    let seeds = &context.seeds;
    let work: Vec<(u64, &Layout, u64)> = loads
        .iter()
        .flat_map(|load| LAYOUTS.iter().flat_map(move |layout| seeds.iter().map(move |&seed| (load.hot, layout, seed))))
        .collect();
    let all = context.parallel(&work, |&(hot, layout, seed)| layout.measure(context, hot, seed));
    let all = all.into_iter().collect::<Result<Vec<Rates>, String>>()?;
    let of_load = |all: &[Rates]| {
        let gain =
            |one: &[Rates], of: fn(&Rates) -> f64| mean(one.iter().zip(all).map(|(one, base)| of(one) / of(base)));
        let gains = |one| Rates { served: gain(one, |rates| rates.served), bare: gain(one, |rates| rates.bare) };
        all.chunks(seeds.len()).map(gains).collect()
    };
    Ok(all.chunks(LAYOUTS.len() * seeds.len()).map(of_load).collect())
}

/// The same loads with each layout: data and a picture.
pub fn references(context: &Context, loads: &[OffLoad]) -> Result<(Value, Picture), String> {
    let gains = gains(context, loads)?;
    let (mut data, mut groups) = (Vec::new(), Vec::new());
    for (load, gains) in loads.iter().zip(&gains) {
        let all = LAYOUTS.iter().zip(gains).map(|(layout, gains)| {
            json!({"load": load.name, "configuration": layout.name, "gain": gains.served, "bare_gain": gains.bare})
        });
        data.extend(all);
        data.push(json!({"load": load.name, "configuration": OFF_LOAD, "gain": load.gain}));
        let mut bars: Vec<f64> = gains.iter().map(|gains| gains.served).collect();
        bars.insert(1, load.gain);
        groups.push(Group { label: load.name.clone(), bars });
    }
    let mut series = LAYOUTS.map(|layout| layout.name).to_vec();
    series.insert(1, OFF_LOAD);
    let svg = chart::bars("times the throughput of the baseline", &series, &groups, None)?;
    let caption = "A database with one idle store, and with other layouts on one disk and on two (Everest, figure 9).";
    Ok((data.into(), Picture { name: "references".into(), caption: caption.into(), svg }))
}
