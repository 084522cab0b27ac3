//! The orders compared with naive models.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::sieve::SWEEP_MAX;
use super::*;
use crate::eviction::list::Links;

/// An item of an order.
#[derive(Clone, Default)]
pub(super) struct Item {
    links: Links,
    visited: bool,
    number: u64,
}

impl Linked<ORDER> for Item {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Placed for Item {
    fn visited(&mut self) -> &mut bool {
        &mut self.visited
    }
}

/// Items with a mark each, the next one to be evicted last in the vector. The hand is an item; `None` means the back.
struct Naive {
    policy: Policy,
    order: Vec<(u32, bool)>,
    hand: Option<u32>,
}

impl Naive {
    fn at(&self, id: u32) -> usize {
        self.order.iter().position(|item| item.0 == id).unwrap()
    }

    fn before(&self, id: u32) -> Option<u32> {
        self.at(id).checked_sub(1).map(|at| self.order[at].0)
    }

    fn leave(&mut self, id: u32) -> (u32, bool) {
        if self.hand == Some(id) {
            self.hand = self.before(id);
        }
        let at = self.at(id);
        self.order.remove(at)
    }

    fn used(&mut self, id: u32, again: bool) {
        if self.policy == Policy::Lru {
            let item = self.leave(id);
            self.order.insert(0, item);
        } else {
            let at = self.at(id);
            self.order[at].1 |= again;
        }
    }

    fn come_back(&mut self, id: u32) {
        let at = match self.hand {
            Some(hand) if self.policy == Policy::Sieve => self.at(hand) + 1,
            _ => self.order.len(),
        };
        self.order.insert(at, (id, false));
        self.hand = (self.policy == Policy::Sieve).then_some(id);
    }

    fn next(&mut self) -> Option<u32> {
        let last = self.order.last()?.0;
        if self.policy == Policy::Lru {
            return Some(last);
        }
        let mut id = self.hand.unwrap_or(last);
        for _ in 0..SWEEP_MAX {
            let at = self.at(id);
            if !self.order[at].1 {
                break;
            }
            self.order[at].1 = false;
            id = self.before(id).unwrap_or(last);
        }
        self.hand = Some(id);
        Some(id)
    }

    fn evict(&mut self, verdict: impl Fn(u32) -> Verdict) -> Option<u32> {
        for _ in 0..2 * self.order.len() {
            let id = self.next()?;
            match verdict(id) {
                Verdict::Goes => return Some(id),
                Verdict::Unready => drop(self.leave(id)),
                Verdict::InUse if self.policy == Policy::Lru => self.used(id, true),
                Verdict::InUse => self.hand = self.before(id),
            }
        }
        None
    }
}

#[derive(Clone, Debug)]
enum Step {
    Use(u32, bool),
    Evict,
    Leave(u32),
    Turn(Policy),
    Become(u32, Verdict),
}

fn step(items: u32) -> impl Strategy<Value = Step> {
    let verdict = prop_oneof![Just(Verdict::Goes), Just(Verdict::InUse), Just(Verdict::Unready)];
    prop_oneof![
        8 => (0..items, any::<bool>()).prop_map(|(id, again)| Step::Use(id, again)),
        4 => Just(Step::Evict),
        1 => (0..items).prop_map(Step::Leave),
        1 => prop_oneof![Just(Policy::Lru), Just(Policy::Sieve)].prop_map(Step::Turn),
        3 => (0..items, verdict).prop_map(|(id, verdict)| Step::Become(id, verdict)),
    ]
}

proptest! {
    /// A policy evicts the same items as a naive model, also after changes of policy.
    #[test]
    fn orders_are_what_they_say(steps in prop::collection::vec(step(24), 1..400)) {
        let mut items = vec![Item::default(); 24];
        let mut order: Box<dyn Eviction<Item>> = Policy::Lru.order(List::default());
        let mut naive = Naive { policy: Policy::Lru, order: Vec::new(), hand: None };
        let mut verdicts = [Verdict::Goes; 24];
        let mut left = BTreeSet::new();
        for step in steps {
            match step {
                Step::Use(id, again) if naive.order.iter().any(|item| item.0 == id) => {
                    order.used(&mut items, id, again);
                    naive.used(id, again);
                }
                Step::Use(id, _) if !left.contains(&id) => {
                    order.enter(&mut items, id);
                    naive.order.insert(0, (id, false));
                }
                Step::Leave(id) if naive.order.iter().any(|item| item.0 == id) => {
                    order.leave(&mut items, id);
                    naive.leave(id);
                }
                Step::Evict => {
                    let mut gone = Vec::new();
                    let evicted = {
                        // `evict` shows only the block, so its number says which item it is.
                        (0..24).for_each(|id| items[id].number = id as u64);
                        evict(&mut *order, &mut items, |_, item| {
                            let verdict = verdicts[item.number as usize];
                            if verdict == Verdict::Unready {
                                gone.push(item.number as u32);
                            }
                            verdict
                        })
                    };
                    prop_assert_eq!(evicted, naive.evict(|id| verdicts[id as usize]));
                    left.extend(gone);
                    if let Some(id) = evicted {
                        order.leave(&mut items, id);
                        naive.leave(id);
                    }
                }
                Step::Become(id, verdict) => {
                    verdicts[id as usize] = verdict;
                    if verdict == Verdict::Goes && left.remove(&id) {
                        order.come_back(&mut items, id);
                        naive.come_back(id);
                    }
                }
                Step::Turn(policy) if policy != naive.policy => {
                    order = policy.order(std::mem::take(order.list()));
                    (naive.policy, naive.hand) = (policy, None);
                    // LRU neither sets nor reads marks: the old ones are still there.
                    for item in &mut naive.order {
                        item.1 = items[item.0 as usize].visited;
                    }
                }
                _ => {}
            }
            prop_assert_eq!(order.list().len() as usize, naive.order.len());
        }
    }
}

#[test]
fn a_scan_takes_no_more_from_sieve_than_what_was_used_once() {
    let survivors = |policy: Policy| {
        let mut items = vec![Item::default(); 400];
        let mut order: Box<dyn Eviction<Item>> = policy.order(List::default());
        for id in 0..100 {
            order.enter(&mut items, id);
        }
        (0..50).for_each(|id| order.used(&mut items, id, true));
        for id in 100..190 {
            let gone = evict(&mut *order, &mut items, |_, _| Verdict::Goes).unwrap();
            order.leave(&mut items, gone);
            order.enter(&mut items, id);
        }
        let mut left = Vec::new();
        while let Some(id) = order.list().front() {
            left.push(id);
            order.leave(&mut items, id);
        }
        left.into_iter().filter(|&id| id < 50).count()
    };
    assert_eq!((survivors(Policy::Sieve), survivors(Policy::Lru)), (50, 10));
}

#[test]
fn a_sweep_ends_though_everything_is_marked() {
    let mut items = vec![Item::default(); 1000];
    let mut order: Box<dyn Eviction<Item>> = Policy::Sieve.order(List::default());
    (0..1000).for_each(|id| order.enter(&mut items, id));
    (0..1000).for_each(|id| order.used(&mut items, id, true));
    assert_eq!(evict(&mut *order, &mut items, |_, _| Verdict::Goes), Some(SWEEP_MAX as u32));
    assert_eq!(items.iter().filter(|item| !item.visited).count(), SWEEP_MAX);
}
