//! Stores: volumes set aside for the logs of writes that other disks off-load (`docs/design/offload.md`).
//!
//! All stores of a disk are volumes of one tenant ([`Name::of_stores`]), which exists as long as the disk has one. It
//! has a share and nothing else: it is changed here only, and no other volume can be in it.

use engine::offload::STORE_BYTES_MIN;
use engine::units::{BLOCK, VOLUME_BYTES_MAX};

use super::view::{CreateStore, CreateVolume, SetStores, SetTenant, Setting, StoreView};
use super::volumes::{Role, which_disk};
use super::{Control, Done, Error, Invalid, Kind};
use crate::quantity::{Name, ShareText, Size};
use crate::store::spec::Allocation;
use crate::store::{StoreError, TenantSpec};

/// The share of the first store of a disk if none is requested. A log is written in sequence, so that 5 % of a disk's
/// time, some MB/s on a hard disk, take several hundred small random writes a second, more than such a disk itself;
/// and the other tenants lose no more than half of what R permits them to lose anyway. Unused time is not lost: a store
/// has all that the others leave, and the others have what it leaves.
const SHARE_DEFAULT: &str = "5%";

/// [`SHARE_DEFAULT`].
pub(super) fn share_default() -> ShareText {
    SHARE_DEFAULT.parse().expect("a share")
}

impl Control {
    /// Creates a store. If this fails, nothing remains.
    pub async fn create_store(&self, request: CreateStore) -> Result<Done, Error> {
        let CreateStore { name, size, disk, share, overcommit, allow, description } = request;
        if size.0 < STORE_BYTES_MIN {
            return Err(Invalid::StoreTooSmall(size).into());
        }
        if size.0 > VOLUME_BYTES_MAX {
            return Err(Invalid::StoreTooLarge(size).into());
        }
        let size = Some(Size(size.0.next_multiple_of(BLOCK)));
        let volume = CreateVolume { disk, share, overcommit, allow, description, ..CreateVolume::plain(name, size) };
        self.create(volume, Role::Store).await.map_err(|error| match error {
            Error::Store(error @ (StoreError::NoSpace { .. } | StoreError::NoAllocation { .. })) => {
                Error::SpaceOfStore(error)
            }
            error => error,
        })
    }

    /// All stores of disks that are online.
    pub async fn list_stores(&self) -> Vec<StoreView> {
        self.list_volumes().await.into_iter().filter_map(StoreView::of).collect()
    }

    /// One store.
    pub async fn show_store(&self, name: &Name) -> Result<StoreView, Error> {
        self.check_role(name, true).map_err(|error| match error {
            Error::Invalid(_) => Invalid::ShowNoStore(name.clone()).into(),
            error => error,
        })?;
        let store = StoreView::of(self.show_volume(name).await?);
        store.ok_or_else(|| Error::Unknown(Kind::Store, name.clone()))
    }

    /// Changes the share of all stores of a disk.
    pub async fn set_stores(&self, request: SetStores) -> Result<Done, Error> {
        let SetStores { disk, share, overcommit } = request;
        let disk = which_disk(&self.state(), disk.as_ref())?;
        let stores = Name::of_stores();
        let before = {
            let state = self.state();
            let running = state.disk(&disk)?;
            if !running.has_tenant(&stores) {
                return Err(Error::NoStores(disk));
            }
            running.allotment(&stores)
        };
        let share = Some(Setting::To(share));
        let change = SetTenant { disk: Some(disk.clone()), share, overcommit, ..SetTenant::default() };
        let done = self.change_tenant(&stores, change).await?;
        let message = format!("the stores of disk '{disk}' are changed{}", self.share_note(&disk, &before));
        Ok(Done { message, ..done })
    }

    /// Deletes a store, whatever is in it. With `force`, clients are disconnected; otherwise there must be none.
    pub async fn delete_store(&self, name: &Name, force: bool) -> Result<Done, Error> {
        self.delete(name, force, true).await.map_err(Error::of_store)
    }

    /// Refuses a volume that is not a store, or one that is.
    pub(super) fn check_role(&self, name: &Name, is_store: bool) -> Result<(), Error> {
        let state = self.state();
        let (_, volume) = state.find(name).map_err(|error| if is_store { error.of_store() } else { error })?;
        match volume.spec.as_ref().map(|spec| spec.store) {
            Some(found) if found != is_store => match is_store {
                true => Err(Invalid::DeleteNoStore(name.clone()).into()),
                false => Err(Invalid::DeleteStore(name.clone()).into()),
            },
            // One whose specification cannot be read may be either.
            _ => Ok(()),
        }
    }

    /// The share of the stores of a disk, and what it was, if that is another one.
    pub(super) fn share_note(&self, disk: &Name, before: &TenantSpec) -> String {
        let now = self.state().disk(disk).map(|running| running.allotment(&Name::of_stores())).unwrap_or_default();
        let words = |spec: &TenantSpec| spec.share.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
        let share = words(&now);
        match &before.share {
            Some(_) if before.share != now.share => {
                format!("; the share of all stores of the disk was {} and is now {share}", words(before))
            }
            _ => format!("; all stores of the disk have a share of {share} together"),
        }
    }
}

impl Error {
    /// The same of a request that named a store.
    pub(super) fn of_store(self) -> Error {
        match self {
            Error::Unknown(Kind::Volume, name) => Error::Unknown(Kind::Store, name),
            Error::InUse(Kind::Volume, name, connections) => Error::InUse(Kind::Store, name, connections),
            Error::Busy(Kind::Volume, name) => Error::Busy(Kind::Store, name),
            error => error,
        }
    }
}

impl CreateVolume {
    /// Whether the request says something that only a cluster can do.
    pub fn is_of_cluster(&self) -> bool {
        self.servers.is_some()
            || !self.on.is_empty()
            || self.least.is_some()
            || self.stripe.is_some() && self.from.is_none()
    }

    /// A volume of which nothing else is requested.
    pub fn plain(name: Name, size: Option<Size>) -> CreateVolume {
        CreateVolume {
            name,
            size,
            device: None,
            force: false,
            from: None,
            stripe: None,
            shared: false,
            upstream_deadline: None,
            upstream_connections: None,
            tiers: None,
            tls_certificates: None,
            tls_hostname: None,
            accept_data_loss: false,
            disk: None,
            policy: None,
            share: None,
            min_bandwidth: None,
            overcommit: false,
            tenant: None,
            cache: None,
            like: None,
            eviction: None,
            max_bandwidth: None,
            max_iops: None,
            burst: None,
            allocation: Allocation::default(),
            allow: Default::default(),
            read_only: false,
            description: Default::default(),
            servers: None,
            on: Vec::new(),
            least: None,
            lease_epoch: None,
        }
    }
}
