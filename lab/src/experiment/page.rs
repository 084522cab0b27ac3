//! The page: all experiments with question, claims, pictures and set-up, in one HTML file.

use std::fmt::Write;

use super::{Experiment, Outcome};

const STYLE: &str = "
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { margin-top: 3rem; font-size: 1.3rem; border-top: 1px solid #ddd; padding-top: 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
td, th { padding: .3rem .6rem; text-align: left; vertical-align: top; }
tr { border-bottom: 1px solid #eee; }
td.value { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.holds { color: #00704a; } .fails { color: #b3261e; font-weight: 600; }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: .92rem; }
details { color: #444; font-size: .92rem; } code { background: #f4f4f4; padding: 0 .25rem; }
nav a { margin-right: 1rem; }";

/// The page of `experiments` and their outcomes; `effort` describes how thorough the run was.
pub fn page(experiments: &[&Experiment], outcomes: &[Outcome], effort: &str) -> String {
    let all = || outcomes.iter().flat_map(|outcome| &outcome.claims);
    let (claims, held) = (all().count(), all().filter(|claim| claim.holds).count());
    let mut page = String::new();
    let mut add = |text: std::fmt::Arguments<'_>| page.write_fmt(text).expect("a string takes everything");
    add(format_args!(
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Aerogel: measurements</title><meta \
         name=viewport content=\"width=device-width\"><style>{STYLE}</style></head><body><h1>Aerogel: \
         measurements</h1><p>{held} of {claims} claims hold. The shipping engine on simulated drives, in virtual \
         time; {effort}.</p><nav>"
    ));
    for experiment in experiments {
        add(format_args!("<a href=\"#{0}\">{0}</a>", experiment.name));
    }
    add(format_args!("</nav>"));
    for (experiment, outcome) in experiments.iter().zip(outcomes) {
        add(format_args!("<h2 id=\"{}\">{}</h2>", experiment.name, escape(experiment.question)));
        if let Some(why) = &outcome.left_out {
            add(format_args!("<p>Left out: {}.</p>", escape(why)));
        }
        for picture in &outcome.pictures {
            add(format_args!("<figure>{}<figcaption>{}</figcaption></figure>", picture.svg, escape(&picture.caption)));
        }
        add(format_args!("<table><tr><th>claim</th><th>bound</th><th>measured</th><th></th></tr>"));
        for claim in &outcome.claims {
            let (class, word) = if claim.holds { ("holds", "holds") } else { ("fails", "fails") };
            let (name, bound, value) = (escape(&claim.name), claim.bound, claim.shown());
            add(format_args!(
                "<tr><td>{name}</td><td>{bound}</td><td class=value>{value}</td><td class={class}>{word}</td></tr>"
            ));
        }
        add(format_args!(
            "</table><details><summary>Set-up, source, how to run it again</summary><p>{}</p><p>{}</p>\
             <p><code>aerogel-lab run {}</code></p></details>",
            escape(experiment.setup),
            escape(experiment.paper),
            experiment.name
        ));
    }
    page.push_str("</body></html>\n");
    page
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
