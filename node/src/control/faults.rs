//! Fault injection on a disk's device. None of this takes the disk's change lock (`turn.rs`): its holder may be waiting
//! for a request that a fault has hung.

use sim::fault::layer::{FAULTS_MAX, Phase};
use tracing::warn;

use super::show::SNAPSHOT_TIMEOUT;
use super::view::{AddFault, FaultPhase, FaultView};
use super::{Control, DiskReason, Done, Error, Invalid, blocking};
use crate::disk_thread::Stopped;
use crate::fault::FaultText;
use crate::quantity::Name;
use crate::reactor::{LayerCommand, LayerReport, LayerView};

impl Control {
    /// The layers on a disk's device. `None` if the disk is offline or does not answer.
    pub(super) async fn layers(&self, disk: &Name) -> Option<LayerView> {
        let thread = self.state().disk(disk).ok()?.thread.clone();
        let looked = tokio::time::timeout(SNAPSHOT_TIMEOUT, thread.layers(LayerCommand::Look)).await;
        Some(looked.ok()?.ok()?.view)
    }

    async fn change_layers(&self, disk: &Name, command: LayerCommand) -> Result<LayerReport, Error> {
        let thread = self.state().disk(disk)?.thread.clone();
        let stopped = |Stopped| Error::DiskOffline(disk.clone(), DiskReason::Stopped);
        thread.layers(command).await.map_err(stopped)
    }

    /// Adds a fault to a disk's device, until it is cleared or the server ends.
    pub async fn add_fault(&self, disk: &Name, request: AddFault) -> Result<Done, Error> {
        let fault: FaultText = request.fault.parse().map_err(Invalid::Fault)?;
        {
            let state = self.state();
            let running = state.disk(disk)?;
            if let Some(volume) = fault.volume()
                && !running.volumes.keys().any(|name| name.as_str() == volume)
            {
                return Err(Invalid::FaultOfVolume { disk: disk.clone(), volume: volume.into() }.into());
            }
        }
        let report = self.change_layers(disk, LayerCommand::Add(fault.clone())).await?;
        if report.changed.is_empty() {
            return Err(Error::TooManyFaults(disk.clone(), FAULTS_MAX));
        }
        let id = report.view.faults.last().map_or(0, |fault| fault.id);
        warn!(%disk, id, "fault added: {fault}");
        let message = format!("disk '{disk}' has fault {id} now, until `aerogel disk fault clear {disk}`: {fault}");
        Ok(Done { message, disk: self.show_disk(disk).await.ok(), volume: None, tenant: None })
    }

    /// The faults of a disk.
    pub async fn list_faults(&self, disk: &Name) -> Result<Vec<FaultView>, Error> {
        Ok(fault_views(&self.change_layers(disk, LayerCommand::Look).await?.view))
    }

    /// Removes one fault or all. Requests that they hang continue. Faults that the disk was added with are removed from
    /// `disk.toml`, too.
    pub async fn clear_faults(&self, disk: &Name, id: Option<u64>) -> Result<Done, Error> {
        let report = self.change_layers(disk, LayerCommand::Clear(id)).await?;
        if let Some(id) = id
            && report.changed.is_empty()
        {
            return Err(Error::NoFault(disk.clone(), id));
        }
        let count = report.changed.len();
        warn!(%disk, count, "faults cleared");
        let lasting: Vec<_> = report.changed.into_iter().filter(|(_, is_lasting)| *is_lasting).collect();
        if !lasting.is_empty() {
            let store = self.state().disk(disk)?.store.clone();
            let lasting: Vec<_> = lasting.into_iter().map(|(text, _)| text).collect();
            blocking(move || store.forget_faults(&lasting)).await?.map_err(Error::FaultsRemain)?;
        }
        let message = match count {
            0 => format!("disk '{disk}' has no faults"),
            1 => format!("1 fault of disk '{disk}' is cleared"),
            _ => format!("{count} faults of disk '{disk}' are cleared"),
        };
        Ok(Done { message, disk: self.show_disk(disk).await.ok(), volume: None, tenant: None })
    }
}

/// The faults for the API.
pub(super) fn fault_views(view: &LayerView) -> Vec<FaultView> {
    let shown = view.faults.iter().map(|fault| FaultView {
        id: fault.id,
        fault: fault.text.to_string(),
        phase: match fault.phase {
            Phase::Coming => FaultPhase::Coming,
            Phase::Active => FaultPhase::Active,
            Phase::Over => FaultPhase::Over,
        },
        happened: fault.hits,
        stuck: fault.stuck,
        lasting: fault.is_lasting,
    });
    shown.collect()
}

/// A warning for each fault that is active, will be, or hangs requests.
pub(super) fn fault_warnings(view: &LayerView) -> Vec<String> {
    let active = view.faults.iter().filter(|fault| fault.phase != Phase::Over || fault.stuck > 0);
    let warning = |fault: &crate::reactor::FaultState| {
        let stuck = if fault.stuck > 0 { format!(", {} requests hang", fault.stuck) } else { String::new() };
        format!("fault {} is injected: {} (occurred {} times{stuck})", fault.id, fault.text, fault.hits)
    };
    active.map(warning).collect()
}
