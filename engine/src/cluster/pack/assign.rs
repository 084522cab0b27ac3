//! Servers for slices whose times are known.

use super::order::Placed;
use super::{Problem, Servers};

/// The servers of each slice. Without pinned slices, in the order of their starts each slice takes the servers that are
/// free; there are enough, since no moment asks for more than there are.
pub(super) fn servers(problem: &Problem, placed: &Placed) -> Vec<Servers> {
    if problem.has_pinned {
        return placed.servers.clone();
    }
    let mut order: Vec<usize> = (0..problem.slices.len()).collect();
    order.sort_by_key(|&at| placed.starts[at]);
    let mut free_at = vec![0; problem.servers];
    let mut all = vec![Servers::default(); problem.slices.len()];
    for at in order {
        let (start, slice) = (placed.starts[at], &problem.slices[at]);
        let free = (0..problem.servers).filter(|&server| free_at[server] <= start).take(slice.servers);
        all[at] = free.collect();
        assert_eq!(all[at].len(), slice.servers, "no moment asks for more servers than there are");
        for server in all[at].iter() {
            free_at[server] = start + slice.length;
        }
    }
    all
}
