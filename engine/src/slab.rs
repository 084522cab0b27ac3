//! Numbered places: reused ones, and tables by identifier.

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

/// An identifier that is a small number.
pub(crate) trait Id: Copy + std::fmt::Debug {
    fn new(number: u32) -> Self;
    fn number(self) -> u32;
}

macro_rules! ids {
    ($($id:ident),*) => {$(
        impl Id for crate::ids::$id {
            fn new(number: u32) -> Self {
                crate::ids::$id(number)
            }
            fn number(self) -> u32 {
                self.0
            }
        }
    )*};
}
ids!(ConnId, VolumeId, VolumeKey, TenantId);

/// What is there of each identifier. Indexing asserts that it is there.
#[derive(Debug)]
pub(crate) struct Table<K, T> {
    items: Vec<Option<T>>,
    key: std::marker::PhantomData<K>,
}

impl<K, T> Default for Table<K, T> {
    fn default() -> Self {
        Table { items: Vec::new(), key: std::marker::PhantomData }
    }
}

impl<K: Id, T> Table<K, T> {
    pub(crate) fn get(&self, id: K) -> Option<&T> {
        self.items.get(id.number() as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: K) -> Option<&mut T> {
        self.items.get_mut(id.number() as usize)?.as_mut()
    }

    pub(crate) fn contains(&self, id: K) -> bool {
        self.get(id).is_some()
    }

    /// Adds an item, or replaces the one that was there.
    pub(crate) fn insert(&mut self, id: K, item: T) {
        let at = id.number() as usize;
        if self.items.len() <= at {
            self.items.resize_with(at + 1, || None);
        }
        self.items[at] = Some(item);
    }

    pub(crate) fn remove(&mut self, id: K) -> Option<T> {
        self.items.get_mut(id.number() as usize)?.take()
    }

    /// A number above all identifiers.
    pub(crate) fn past(&self) -> u32 {
        self.items.len() as u32
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> + Clone {
        self.items.iter().enumerate().filter_map(|(at, item)| Some((K::new(at as u32), item.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut T)> {
        self.items.iter_mut().enumerate().filter_map(|(at, item)| Some((K::new(at as u32), item.as_mut()?)))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> + Clone {
        self.items.iter().flatten()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten()
    }
}

impl<K: Id, T> Index<K> for Table<K, T> {
    type Output = T;
    fn index(&self, id: K) -> &T {
        match &self.items[id.number() as usize] {
            Some(item) => item,
            None => missing(id),
        }
    }
}

impl<K: Id, T> IndexMut<K> for Table<K, T> {
    fn index_mut(&mut self, id: K) -> &mut T {
        match &mut self.items[id.number() as usize] {
            Some(item) => item,
            None => missing(id),
        }
    }
}

#[cold]
fn missing<K: std::fmt::Debug>(id: K) -> ! {
    panic!("there is no {id:?}")
}
