//! The miss-ratio curve of a volume's tenant.

use engine::control::{Command, Report};
use engine::units::BLOCK;

use super::show::SNAPSHOT_TIMEOUT;
use super::view::{CurvePoint, CurveView};
use super::{Control, Error, Invalid, VolumeReason};
use crate::quantity::Name;
use crate::store::spec::Eviction;

/// Points at smaller sizes are not shown, blocks: every partition has at least 134.
const LEAST_BLOCKS: u64 = 128;

impl Control {
    /// The miss ratios of the tenant of a volume at other cache sizes, under `policy` or under its present one.
    pub async fn show_curve(&self, name: &Name, policy: Option<Eviction>) -> Result<CurveView, Error> {
        let volume = self.changeable(name)?;
        if volume.spec.store {
            return Err(Invalid::CurveOfStore(name.clone()).into());
        }
        let gone = || Error::VolumeOffline(name.clone(), VolumeReason::NoAnswer);
        let command = Command::Curve(volume.id, policy.map(Eviction::into));
        let answer = tokio::time::timeout(SNAPSHOT_TIMEOUT, volume.thread.command(command)).await;
        let Ok(Ok(Report::Curve(curve))) = answer else { return Err(gone()) };
        let shown = self.show_volume(name).await?;
        Ok(CurveView {
            volume: name.to_string(),
            tenant: shown.tenant,
            policy: curve.policy.into(),
            running: shown.cache.eviction,
            partition_bytes: shown.cache.effective_bytes,
            miss_ratio: curve.misses(shown.cache.effective_bytes / BLOCK),
            block_reads: curve.reads,
            block_writes: curve.writes,
            sampling_rate: curve.rate,
            samples: curve.samples,
            points: points(&curve),
        })
    }
}

/// The points of a curve; none before the first request.
pub(super) fn points(curve: &engine::curve::View) -> Vec<CurvePoint> {
    let point = |point: &engine::curve::Point| {
        Some(CurvePoint {
            cache_bytes: point.blocks * BLOCK,
            miss_ratio: point.all?,
            read_miss_ratio: point.reads,
            write_miss_ratio: point.writes,
        })
    };
    curve.points.iter().filter(|point| point.blocks >= LEAST_BLOCKS).filter_map(point).collect()
}
