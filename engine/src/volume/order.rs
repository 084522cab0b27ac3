//! The order of overlapping requests while there are range operations: each pair takes effect in order of arrival.
//!
//! ```text
//!   arrival ─►  zero 0..9 ◄── write 8..12 ◄── read 11..12       write 20..21
//!               in device     waits for it    waits for that    overlaps nothing: goes on, and takes no place
//! ```
//!
//! A range operation has a place until it is done, a piece while it waits. A new request waits for the latest place
//! that it conflicts with. When that place is given up, the search continues from there towards older ones. So no place
//! ever waits for a younger one, none is overtaken, and each place is compared with each older one once.
//!
//! A read arrives when it has its frames: if it must wait for them, it gives up its place. (If it kept the place,
//! writes behind it would hold the frames that it needs.)
//!
//! Downside: places are allocated, but only while there are range operations, and these are rare.

use std::collections::BTreeMap;

use crate::ids::Ticket;

/// The owner of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// A range operation.
    Range,
    /// A piece of a read.
    Reader(u32),
    /// A piece of a write.
    Writer(u32),
}

#[derive(Debug)]
struct Place {
    start: u64,
    end: u64,
    who: Who,
    /// Places that wait for this one, in order of arrival.
    behind: Vec<Ticket>,
}

impl Place {
    fn conflicts(&self, other: &Place) -> bool {
        let both_read = matches!((self.who, other.who), (Who::Reader(_), Who::Reader(_)));
        self.start < other.end && other.start < self.end && !both_read
    }
}

/// The places of one volume, in order of arrival.
#[derive(Default, Debug)]
pub(crate) struct Order {
    places: BTreeMap<Ticket, Place>,
    next: Ticket,
    looks: u32,
}

impl Order {
    /// There are no places: a request that arrives need not wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A piece arrives for `start..end`. True if it must wait; it has a place then.
    pub(crate) fn must_wait(&mut self, start: u64, end: u64, who: Who) -> bool {
        self.enter(Place { start, end, who, behind: Vec::new() }, false).1
    }

    /// A range operation arrives for `start..end`: returns its place, and whether it must wait.
    pub(crate) fn enter_range(&mut self, start: u64, end: u64) -> (Ticket, bool) {
        self.enter(Place { start, end, who: Who::Range, behind: Vec::new() }, true)
    }

    fn enter(&mut self, place: Place, stays: bool) -> (Ticket, bool) {
        let ticket = self.next;
        let waits = self.wait(ticket, ticket, &place);
        if waits || stays {
            self.next += 1;
            self.places.insert(ticket, place);
        }
        (ticket, waits)
    }

    /// Lets `ticket` wait for the latest place before `below` that it conflicts with. False if there is none.
    fn wait(&mut self, below: Ticket, ticket: Ticket, place: &Place) -> bool {
        let looks = &mut self.looks;
        let blocking = self.places.range_mut(..below).rev().find(|(_, older)| {
            *looks = looks.saturating_add(1);
            older.conflicts(place)
        });
        match blocking {
            Some((_, older)) => {
                older.behind.push(ticket);
                true
            }
            None => false,
        }
    }

    /// Gives up a place. The places that waited for it are added to `behind`, in order of arrival. The caller looks at
    /// each of them again ([`Order::look_again`]), now or later.
    pub(crate) fn leave(&mut self, ticket: Ticket, behind: &mut Vec<Ticket>) {
        let gone = self.places.remove(&ticket).expect("a place that is given up once");
        behind.extend(gone.behind);
    }

    /// The place `below`, which `ticket` waited for, has been given up. If `ticket` need not wait for an older one,
    /// returns its owner; it keeps its place until that is given up too.
    pub(crate) fn look_again(&mut self, ticket: Ticket, below: Ticket) -> Option<Who> {
        // It conflicts with no place between `below` and itself, or it would have waited for that one.
        let place = self.places.remove(&ticket).expect("a waiting place");
        let who = place.who;
        let waits = !planted!(OrderWaitsOnce) && self.wait(below, ticket, &place);
        self.places.insert(ticket, place);
        (!waits).then_some(who)
    }

    /// The number of places compared since the last call.
    pub(crate) fn take_looks(&mut self) -> u32 {
        std::mem::take(&mut self.looks)
    }

    /// The number of places.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives up a place: returns the places that need not wait any more, with their owners.
    fn leave(order: &mut Order, ticket: Ticket) -> Vec<(Ticket, Who)> {
        let mut behind = Vec::new();
        order.leave(ticket, &mut behind);
        behind.into_iter().filter_map(|other| Some((other, order.look_again(other, ticket)?))).collect()
    }

    #[test]
    fn nobody_waits_for_a_younger_one() {
        let mut order = Order::default();
        assert_eq!(order.enter_range(0, 10), (0, false));
        assert!(order.must_wait(5, 25, Who::Writer(7)));
        // It overlaps only the writer, which arrived first but has not taken effect yet.
        assert_eq!(order.enter_range(20, 30), (2, true));
        assert_eq!(leave(&mut order, 0), [(1, Who::Writer(7))]);
        assert_eq!(leave(&mut order, 1), [(2, Who::Range)]);
        assert_eq!(leave(&mut order, 2), []);
        assert!(order.is_empty());
    }

    #[test]
    fn the_search_goes_on_where_it_stood() {
        let mut order = Order::default();
        let (first, _) = order.enter_range(0, 10);
        let (second, waits) = order.enter_range(10, 20);
        assert!(!waits);
        assert!(order.must_wait(0, 20, Who::Writer(1)), "for the second");
        assert_eq!(leave(&mut order, second), [], "now for the first");
        assert_eq!(leave(&mut order, first), [(2, Who::Writer(1))]);
    }

    #[test]
    fn readers_share_and_those_who_overlap_nothing_take_no_place() {
        let mut order = Order::default();
        let (range, _) = order.enter_range(0, 10);
        assert!(!order.must_wait(10, 11, Who::Writer(1)));
        assert!(order.must_wait(9, 12, Who::Reader(2)));
        assert!(!order.must_wait(11, 12, Who::Reader(3)), "the reader before it does not matter to a reader");
        assert!(order.must_wait(11, 12, Who::Writer(4)), "but to a writer it does");
        assert_eq!(leave(&mut order, range), [(1, Who::Reader(2))]);
        assert_eq!(leave(&mut order, 1), [(2, Who::Writer(4))]);
    }
}
