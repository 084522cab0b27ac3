//! Least recently used: a used block moves to the front, and blocks are evicted from the back.
//!
//! The miss ratio never rises with the cache size, and one pass over a stream of requests gives it for all sizes
//! ([`crate::curve`]). Downside: a scan larger than the partition evicts the whole working set.

use super::list::List;
use super::{Eviction, ORDER, Placed};

#[derive(Debug)]
pub(super) struct Lru {
    list: List<ORDER>,
}

impl Lru {
    pub(super) fn new(list: List<ORDER>) -> Lru {
        Lru { list }
    }

    fn move_to_front<P: Placed>(&mut self, items: &mut [P], id: u32) {
        self.list.remove(items, id);
        self.list.push_front(items, id);
    }
}

impl<P: Placed> Eviction<P> for Lru {
    fn list(&mut self) -> &mut List<ORDER> {
        &mut self.list
    }

    fn enter(&mut self, items: &mut [P], id: u32) {
        self.list.push_front(items, id);
    }

    fn come_back(&mut self, items: &mut [P], id: u32) {
        self.list.push_back(items, id);
    }

    fn used(&mut self, items: &mut [P], id: u32, _again: bool) {
        self.move_to_front(items, id);
    }

    fn leave(&mut self, items: &mut [P], id: u32) {
        self.list.remove(items, id);
    }

    fn next(&mut self, _items: &mut [P]) -> Option<u32> {
        self.list.back()
    }

    fn pass(&mut self, items: &mut [P], id: u32) {
        self.move_to_front(items, id);
    }
}
