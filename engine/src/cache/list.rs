//! Doubly linked lists through the blocks themselves: a block is on several at once, and moves without allocating.

use super::block::Block;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// Neighbours on one list.
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

/// A list that uses the blocks' links number `K`.
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

    pub(crate) fn next(&self, blocks: &[Block], id: u32) -> Option<u32> {
        let next = blocks[id as usize].links[K].next;
        (next != NONE).then_some(next)
    }

    pub(crate) fn push_front(&mut self, blocks: &mut [Block], id: u32) {
        blocks[id as usize].links[K] = Links { prev: NONE, next: self.head };
        match self.head {
            NONE => self.tail = id,
            head => blocks[head as usize].links[K].prev = id,
        }
        self.head = id;
        self.len += 1;
    }

    pub(crate) fn push_back(&mut self, blocks: &mut [Block], id: u32) {
        blocks[id as usize].links[K] = Links { prev: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = id,
            tail => blocks[tail as usize].links[K].next = id,
        }
        self.tail = id;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, blocks: &mut [Block], id: u32) {
        let Links { prev, next } = std::mem::take(&mut blocks[id as usize].links[K]);
        match prev {
            NONE => {
                debug_assert_eq!(self.head, id);
                self.head = next;
            }
            _ => blocks[prev as usize].links[K].next = next,
        }
        match next {
            NONE => {
                debug_assert_eq!(self.tail, id);
                self.tail = prev;
            }
            _ => blocks[next as usize].links[K].prev = prev,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept() {
        let mut blocks = vec![Block::default(); 4];
        let mut list = List::<0>::default();
        list.push_back(&mut blocks, 1);
        list.push_back(&mut blocks, 2);
        list.push_front(&mut blocks, 0);
        list.push_back(&mut blocks, 3);
        list.remove(&mut blocks, 2);
        list.remove(&mut blocks, 0);
        let mut seen = vec![list.front().unwrap()];
        while let Some(next) = list.next(&blocks, *seen.last().unwrap()) {
            seen.push(next);
        }
        assert_eq!((seen, list.back(), list.len()), (vec![1, 3], Some(3), 2));
    }
}
