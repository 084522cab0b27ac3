//! Numbered places that are reused: hold requests, pieces and device requests without an allocation for each.

use std::ops::{Index, IndexMut};

/// Items by number. A freed item keeps its buffers for the next user of its place.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T: Default> Slab<T> {
    pub(crate) fn new() -> Self {
        Slab { items: Vec::new(), free: Vec::new() }
    }

    /// A place for a new item. It still has the previous user's values: the caller sets every field.
    pub(crate) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.items.push(T::default());
            (self.items.len() - 1) as u32
        })
    }

    /// Frees the place.
    pub(crate) fn give(&mut self, id: u32) {
        debug_assert!(!self.free.contains(&id), "place {id} is freed twice");
        self.free.push(id);
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, id: u32) -> &T {
        &self.items[id as usize]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.items[id as usize]
    }
}
