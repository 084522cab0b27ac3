//! A table by tenant.

use std::ops::{Index, IndexMut};

use crate::ids::TenantId;

/// Values by tenant number. A number without a tenant has none.
#[derive(Clone, Debug)]
pub(crate) struct Tenants<T>(Vec<Option<T>>);

impl<T> Default for Tenants<T> {
    fn default() -> Self {
        Tenants(Vec::new())
    }
}

impl<T> Tenants<T> {
    /// Sets the value of a tenant.
    pub(crate) fn insert(&mut self, tenant: TenantId, value: T) {
        let at = tenant.0 as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(value);
    }

    /// Removes the value of a tenant.
    pub(crate) fn remove(&mut self, tenant: TenantId) -> Option<T> {
        self.0.get_mut(tenant.0 as usize).and_then(Option::take)
    }

    pub(crate) fn get(&self, tenant: TenantId) -> Option<&T> {
        self.0.get(tenant.0 as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, tenant: TenantId) -> Option<&mut T> {
        self.0.get_mut(tenant.0 as usize)?.as_mut()
    }

    /// The values with their tenants, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TenantId, &T)> {
        self.0.iter().enumerate().filter_map(|(at, value)| value.as_ref().map(|value| (TenantId(at as u32), value)))
    }

    /// The values with their tenants, by number, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (TenantId, &mut T)> {
        self.0.iter_mut().enumerate().filter_map(|(at, value)| value.as_mut().map(|value| (TenantId(at as u32), value)))
    }

    /// The values, by number.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    /// The values, by number, to be changed.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }

    /// The values of all numbers up to the largest one that was ever in use.
    pub(crate) fn places(&self) -> &[Option<T>] {
        &self.0
    }
}

impl<T> Index<TenantId> for Tenants<T> {
    type Output = T;
    fn index(&self, tenant: TenantId) -> &T {
        self.0[tenant.0 as usize].as_ref().expect("a tenant of the disk")
    }
}

impl<T> IndexMut<TenantId> for Tenants<T> {
    fn index_mut(&mut self, tenant: TenantId) -> &mut T {
        self.0[tenant.0 as usize].as_mut().expect("a tenant of the disk")
    }
}
