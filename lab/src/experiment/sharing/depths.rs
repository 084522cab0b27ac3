//! One outstanding request beside 27.

use super::super::stand::{Stand, random};
use super::super::{Bound, Claim, Context, Experiment, Outcome};
use super::{DISKS, HEADS, Pair, picture, share};

pub const EXPERIMENT: Experiment = Experiment {
    name: "sharing-depths",
    question: "What does a polite client, one request at a time, keep beside one with 27 outstanding?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge; on both, 4 KiB reads uniformly at \
            random, 1 and 27 at a time; 64 MiB of memory in two equal partitions; policy none; 2 s to warm up, 20 s counted.",
    paper: "Argon, section 5.1 (quanta-based scheduling): the client with one outstanding request receives practically no \
            service.",
    run,
};

fn run(context: &Context) -> Result<Outcome, String> {
    let pair = Pair { names: ["1 outstanding", "27 outstanding"], loads: [random(1), random(27)] };
    let stands: Vec<_> = DISKS.iter().map(|disk| Stand::new(disk, context.quick)).collect();
    let shared = share(context, &stands, &pair)?;
    let claims = DISKS.iter().zip(&shared).filter(|(disk, _)| HEADS.contains(disk)).map(|(disk, shared)| {
        let name = format!("{disk}: the client with one outstanding request keeps, of its standalone throughput");
        Claim::new(name, shared.kept(0), Bound::AtMost(0.25))
    });
    let claims = claims.collect();
    let data = DISKS.iter().zip(&shared).map(|(disk, shared)| (disk.to_string(), shared.json(&pair.names)));
    let data = serde_json::Value::Object(data.collect());
    let pictures = vec![picture("kept", "One outstanding request beside 27", DISKS, &pair, &shared)?];
    Ok(Outcome { claims, data, pictures })
}
