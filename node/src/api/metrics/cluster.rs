//! The server's place in a cluster.

use std::fmt::Error;

use prometheus_client::encoding::DescriptorEncoder;

use super::{Metric, Scrape, gauges, seconds};
use crate::cluster::ClusterStanding;

const LEVELS: [Metric<ClusterStanding, Option<f64>>; 6] = [
    ("aerogel_cluster_joined", "1 if this server takes part in the cluster", |it| Some(flag(it.joined))),
    ("aerogel_cluster_etcd_answers", "1 if etcd answers this server", |it| Some(flag(it.etcd_answers))),
    ("aerogel_cluster_schedule_version", "Version of the schedule that this server has", |it| Some(it.version as f64)),
    ("aerogel_cluster_round_seconds", "Round of that schedule", |it| it.round_ns.map(seconds)),
    ("aerogel_cluster_clock_error_seconds", "Estimated error of this server's clock", |it| {
        Some(seconds(it.clock_error_ns))
    }),
    ("aerogel_cluster_servers_away", "Servers of the cluster that are away, as etcd said last", |it| {
        it.away.map(|away| away as f64)
    }),
];

fn flag(is_on: bool) -> f64 {
    f64::from(u8::from(is_on))
}

impl Scrape {
    /// Nothing, if the server is in none.
    pub(super) fn cluster(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for (name, help, of) in LEVELS {
            let value = self.2.as_ref().and_then(|it| Some((vec![("cluster", it.cluster.as_str())], of(it)?)));
            gauges(to, name, help, value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;
    use crate::control::Standing;

    #[test]
    fn a_place_in_a_cluster_has_its_numbers() {
        let place = ClusterStanding {
            cluster: "lab".into(),
            joined: true,
            etcd_answers: false,
            version: 7,
            round_ns: Some(528_000_000),
            clock_error_ns: 100_000,
            away: None,
        };
        let text = encode(Vec::new(), Standing::default(), Some(place)).unwrap();
        for line in [
            r#"aerogel_cluster_joined{cluster="lab"} 1.0"#,
            r#"aerogel_cluster_etcd_answers{cluster="lab"} 0.0"#,
            r#"aerogel_cluster_schedule_version{cluster="lab"} 7.0"#,
            r#"aerogel_cluster_round_seconds{cluster="lab"} 0.528"#,
            r#"aerogel_cluster_clock_error_seconds{cluster="lab"} 0.0001"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("servers_away"), "etcd has not answered yet");
    }
}
