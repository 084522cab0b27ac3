//! Write-back that can wait, beside reads of its tenant.

use super::*;
use crate::disk::Op;

const WRITE: Entry = Entry { op: Op::Write { durable: false }, can_wait: true, ..ENTRY };
/// They take longer than a slice, and less than a slice and a round.
const BATCH: u32 = 8;

/// Two tenants with half of the disk each for a minute. Both always have a read outstanding, and the first one has a
/// batch of write-back each 20 of its reads. Returns its number of reads, and for each batch in how many slices it was
/// written.
fn batches() -> (u64, Vec<usize>) {
    let mut scheduler = Stage::new(&[50, 50], &[]).policy;
    let (mut now, mut reads, mut written) = (0, [0u64; 2], Vec::new());
    let mut slices = std::collections::BTreeSet::new();
    let mut number = 0;
    let mut arrives = |scheduler: &mut Scheduler<Insulated>, now, tenant: usize, entry: Entry| {
        number += 1;
        scheduler.arrived(now, TenantId(tenant as u32), Entry { io: IoId(number), ..entry }, false);
    };
    (0..2).for_each(|tenant| arrives(&mut scheduler, now, tenant, ENTRY));
    let mut left = 0;
    let mut device = VecDeque::new();
    while now < 60 * SECOND {
        while let Some((tenant, entry)) = scheduler.next(now) {
            device.push_back((tenant, entry, now));
        }
        let Some((tenant, entry, since)) = device.pop_front() else {
            now = scheduler.poll_timeout().expect("something happens");
            continue;
        };
        // The first of several that are in the device together takes longer.
        now += if device.is_empty() { COST } else { COST / 2 };
        scheduler.done(now, tenant, &entry, since);
        if entry.can_wait {
            slices.insert(scheduler.plan(now, tenant).expect("a plan").slices);
            left -= 1;
            if left == 0 {
                written.push(std::mem::take(&mut slices).len());
            }
            continue;
        }
        let at = tenant.0 as usize;
        reads[at] += 1;
        arrives(&mut scheduler, now, at, ENTRY);
        if at == 0 && reads[0] % 20 == 0 && left == 0 {
            left = BATCH;
            (0..BATCH).for_each(|_| arrives(&mut scheduler, now, 0, WRITE));
        }
    }
    (reads[0], written)
}

#[test]
fn a_batch_that_does_not_fit_into_a_slice_waits_for_a_long_one() {
    let (reads, written) = batches();
    let divided = written[written.len() / 4..].iter().filter(|&&slices| slices > 1).count();
    assert!(written.len() > 40 && divided * 10 <= written.len(), "{divided} divided: {written:?}");
    assert!(reads > 1500, "{reads}");
}
