//! Blocks that a partition never evicts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::cache::{ByteWork, Cache, Rest};
use crate::eviction::Policy;
use crate::ids::{FrameId, TenantId, VolumeId};
use crate::spec::TenantSpec;
use crate::units::BLOCK;

/// No test looks at the content of frames.
struct Bytes;

impl ByteWork for Bytes {
    fn copy(&mut self, _: FrameId, _: FrameId, _: u64, _: u64) {}

    fn zero(&mut self, _: FrameId, _: u64, _: u64) {}
}

proptest! {
    /// Two tenants fill their partitions with clean, dirty and referenced blocks. Frames come from the tenant's own
    /// clean blocks without other references, as long as there are any, and never from another tenant.
    #[test]
    fn only_own_clean_idle_blocks_are_evicted(
        policies in [
            prop_oneof![Just(Policy::Lru), Just(Policy::Sieve)],
            prop_oneof![Just(Policy::Lru), Just(Policy::Sieve)],
        ],
        steps in prop::collection::vec((0u32..2, 0u64..12, 0u8..6), 1..300),
    ) {
        let mut cache = Cache::new(12, 12, 0);
        let mut bytes = Bytes;
        for tenant in 0..2 {
            let spec = TenantSpec { eviction: policies[tenant as usize], ..TenantSpec::default() };
            cache.set_tenant(TenantId(tenant), spec);
            cache.partition_mut(TenantId(tenant)).target = 6;
            cache.open_volume(VolumeId(tenant), TenantId(tenant), false, false);
        }
        // By volume and number: whether the block is dirty, and the frame of an additional reference.
        let mut there: BTreeMap<(u32, u64), (bool, Option<FrameId>)> = BTreeMap::new();
        for (of, number, what) in steps {
            let volume = VolumeId(of);
            let known = cache.lookup(volume, number);
            match (what, known) {
                (0..=2, None) => {
                    let mut frames = Vec::new();
                    let own = || there.iter().filter(|(at, _)| at.0 == of);
                    let full = own().count() == 6;
                    let can = !full || own().any(|(_, &(dirty, held))| !dirty && held.is_none());
                    prop_assert_eq!(cache.take_frames(TenantId(of), 1, &mut frames), can);
                    for (&(of, number), &(dirty, held)) in &there {
                        let stays = cache.lookup(VolumeId(of), number).is_some();
                        prop_assert!(stays || !dirty && held.is_none(), "volume {of}, block {number} was evicted");
                    }
                    there.retain(|&(of, number), _| cache.lookup(VolumeId(of), number).is_some());
                    let Some(frame) = frames.pop() else { continue };
                    let id = cache.insert(volume, number);
                    if what == 0 {
                        cache.write(0, id, frame, (0, BLOCK), Rest::Cached, &mut bytes);
                    } else {
                        cache.begin_fill(id, frame);
                        cache.end_fill(id, true, &mut bytes);
                    }
                    there.insert((of, number), (what == 0, None));
                }
                (0..=2, Some(id)) => cache.touch(id),
                (3, Some(id)) => {
                    let frame = cache.block(id).frame;
                    let held = &mut there.get_mut(&(of, number)).unwrap().1;
                    match held.take() {
                        Some(frame) => cache.release(frame),
                        None => {
                            cache.retain(frame);
                            *held = Some(frame);
                        }
                    }
                }
                (4, Some(id)) => {
                    cache.forget_dirt(id);
                    there.get_mut(&(of, number)).unwrap().0 = false;
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_writer_whose_loan_is_recalled_goes_on_with_half_of_what_it_writes_back() {
    let (tenant, volume, mut frames) = (TenantId(0), VolumeId(0), Vec::new());
    let mut cache = Cache::new(2000, 2000, 0);
    cache.set_tenant(tenant, TenantSpec::default());
    cache.partition_mut(tenant).target = 2000;
    cache.open_volume(volume, tenant, false, false);
    let dirty: Vec<_> = (0..1500)
        .map(|number| {
            assert!(cache.take_frames(tenant, 1, &mut frames));
            let id = cache.insert(volume, number);
            cache.write(0, id, frames.pop().unwrap(), (0, BLOCK), Rest::Cached, &mut Bytes);
            id
        })
        .collect();
    cache.partition_mut(tenant).target = 600;
    assert!(!cache.partition(tenant).admits_payload(1) && !cache.take_frames(tenant, 1, &mut frames));
    // 1,500 dirty blocks become 450, three quarters of what is left.
    let mut taken = 0;
    for &id in &dirty {
        cache.forget_dirt(id);
        while cache.partition(tenant).admits_payload(1) && cache.partition(tenant).unwritten > 450 {
            assert!(cache.take_frames(tenant, 1, &mut frames));
            taken += 1;
        }
        if cache.partition(tenant).unwritten <= 450 {
            break;
        }
    }
    assert!((500..=526).contains(&taken), "{taken}");
    assert_eq!(cache.partition(tenant).relief, 0);
}

#[test]
fn blocks_of_unsent_replies_leave_the_order_until_the_last_one_is_sent() {
    for eviction in Policy::ALL {
        let tenant = TenantId(0);
        let mut cache = Cache::new(4, 4, 0);
        cache.set_tenant(tenant, TenantSpec { eviction, ..TenantSpec::default() });
        cache.partition_mut(tenant).target = 4;
        cache.open_volume(VolumeId(0), tenant, false, false);
        let mut frames = Vec::new();
        assert!(cache.take_frames(tenant, 4, &mut frames));
        for (number, &frame) in frames.iter().enumerate() {
            let id = cache.insert(VolumeId(0), number as u64);
            cache.begin_fill(id, frame);
            cache.end_fill(id, true, &mut Bytes);
            // Two replies.
            cache.retain(frame);
            cache.retain(frame);
        }
        let in_order = |cache: &mut Cache| cache.partition_mut(tenant).order.list().len();
        assert!(!cache.take_frames(tenant, 1, &mut Vec::new()));
        assert_eq!(in_order(&mut cache), 0, "the next search passes over nothing");

        // A further use enters the block although it is still in replies.
        let id = cache.lookup(VolumeId(0), 1).unwrap();
        cache.touch(id);
        frames.iter().for_each(|&frame| cache.release(frame));
        assert!(!cache.take_frames(tenant, 1, &mut Vec::new()));
        cache.partition_mut(tenant).stirred = false;
        cache.release(frames[1]);
        assert_eq!((in_order(&mut cache), cache.partition(tenant).stirred), (1, true), "what waits is tried again");
        cache.release(frames[3]);
        let mut taken = Vec::new();
        assert!(cache.take_frames(tenant, 2, &mut taken));
        assert_eq!(taken, [frames[1], frames[3]]);

        // Dropped while a reply has its content.
        let id = cache.lookup(VolumeId(0), 0).unwrap();
        cache.drop_block(id);
        assert_eq!(in_order(&mut cache), 0);
        cache.release(frames[0]);
        assert_eq!((in_order(&mut cache), cache.pool().available()), (0, 1));
    }
}
