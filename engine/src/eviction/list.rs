//! Doubly linked lists through the items themselves: a block can be on several lists, and moves without an allocation.

/// No item.
pub(crate) const NONE: u32 = u32::MAX;

/// An item's neighbours on one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    prev: u32,
    next: u32,
}

impl Default for Links {
    fn default() -> Self {
        Links { prev: NONE, next: NONE }
    }
}

/// An item that can be on list number `K`.
pub(crate) trait Linked<const K: usize> {
    fn links(&self) -> &Links;
    fn links_mut(&mut self) -> &mut Links;
}

/// A list through link number `K` of the items.
#[derive(Clone, Debug)]
pub(crate) struct List<const K: usize> {
    head: u32,
    tail: u32,
    len: u32,
}

impl<const K: usize> Default for List<K> {
    fn default() -> Self {
        List { head: NONE, tail: NONE, len: 0 }
    }
}

impl<const K: usize> List<K> {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(crate) fn back(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    /// The item behind `id`.
    pub(crate) fn next(&self, items: &[impl Linked<K>], id: u32) -> Option<u32> {
        let next = items[id as usize].links().next;
        (next != NONE).then_some(next)
    }

    /// The item before `id`.
    pub(crate) fn prev(&self, items: &[impl Linked<K>], id: u32) -> Option<u32> {
        let prev = items[id as usize].links().prev;
        (prev != NONE).then_some(prev)
    }

    pub(crate) fn push_front(&mut self, items: &mut [impl Linked<K>], id: u32) {
        *items[id as usize].links_mut() = Links { prev: NONE, next: self.head };
        match self.head {
            NONE => self.tail = id,
            head => items[head as usize].links_mut().prev = id,
        }
        self.head = id;
        self.len += 1;
    }

    pub(crate) fn push_back(&mut self, items: &mut [impl Linked<K>], id: u32) {
        *items[id as usize].links_mut() = Links { prev: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = id,
            tail => items[tail as usize].links_mut().next = id,
        }
        self.tail = id;
        self.len += 1;
    }

    /// Inserts `id` right behind `before`, which is on the list.
    pub(crate) fn insert_behind(&mut self, items: &mut [impl Linked<K>], before: u32, id: u32) {
        let next = std::mem::replace(&mut items[before as usize].links_mut().next, id);
        *items[id as usize].links_mut() = Links { prev: before, next };
        match next {
            NONE => self.tail = id,
            next => items[next as usize].links_mut().prev = id,
        }
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, items: &mut [impl Linked<K>], id: u32) {
        let Links { prev, next } = std::mem::take(items[id as usize].links_mut());
        match prev {
            NONE => {
                debug_assert_eq!(self.head, id);
                self.head = next;
            }
            _ => items[prev as usize].links_mut().next = next,
        }
        match next {
            NONE => {
                debug_assert_eq!(self.tail, id);
                self.tail = prev;
            }
            _ => items[next as usize].links_mut().prev = prev,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::tests::Item;

    #[test]
    fn order_is_kept() {
        let mut blocks = vec![Item::default(); 4];
        let mut list = List::<0>::default();
        list.push_back(&mut blocks, 1);
        list.push_back(&mut blocks, 2);
        list.push_front(&mut blocks, 0);
        list.push_back(&mut blocks, 3);
        list.remove(&mut blocks, 2);
        list.remove(&mut blocks, 0);
        list.insert_behind(&mut blocks, 3, 0);
        list.insert_behind(&mut blocks, 1, 2);
        let mut seen = vec![list.front().unwrap()];
        while let Some(next) = list.next(&blocks, *seen.last().unwrap()) {
            seen.push(next);
        }
        assert_eq!((seen, list.back(), list.len()), (vec![1, 2, 3, 0], Some(0), 4));
    }
}
