//! What the off-loaded ranges take of the memory.

use super::*;

/// Ranges that are off-loaded: enough that what does not grow with them hardly counts.
const RANGES: u64 = 100_000;
const BLOCK: u64 = 4096;

/// A client with one store for each copy, and room for all ranges.
struct Client {
    offload: Offload,
    next_io: u32,
}

impl Client {
    fn new(copies: usize) -> Client {
        let stores = (1..=copies as u128).map(|log| Recovered::format(log, 16 << 30));
        let stores = stores.map(|store| Initial::Scanned(Box::new(store), 0)).collect();
        let settings = Settings { limit_bytes: u64::MAX, is_always: true, ..settings(copies) };
        let past = Past { incarnation: 1, ..Past::default() };
        let offload = Offload::start(0, settings, past, stores, &[VOLUME], Map::default());
        let mut client = Client { offload, next_io: 0 };
        client.act();
        client
    }

    fn write(&mut self, start: u64) {
        let range = (start, start + BLOCK);
        assert_eq!(self.offload.choose(0, VOLUME, range, 100, || 0), Choice::Stores);
        self.offload.write(0, VOLUME, IoId(self.next_io), range, 0);
        self.next_io += 1;
    }

    /// All that is to be written to the stores is written.
    fn act(&mut self) {
        while let Some(action) = self.offload.poll_action() {
            match action {
                Action::Append(store, number) => self.offload.appended(0, store, number, true),
                Action::Superblock(store) => self.offload.superblock_written(0, store, true),
                Action::Again(_) => panic!("nothing fails"),
                Action::AskLoad(_) | Action::Done(_) => {}
            }
        }
    }

    /// Writes blocks, so many at a time.
    fn fill(&mut self, at_a_time: u64, block: impl Fn(u64) -> u64) {
        for from in (0..RANGES).step_by(at_a_time as usize) {
            (from..RANGES.min(from + at_a_time)).for_each(|at| self.write(block(at) * BLOCK));
            self.act();
        }
        assert_eq!(self.offload.away_bytes(VOLUME), RANGES * BLOCK);
    }

    fn bring_home(&mut self) {
        self.offload.end();
        while let Some(reclaim) = self.offload.next_to_reclaim(VOLUME) {
            self.offload.brought_home(0, reclaim);
            self.act();
        }
        assert!(self.offload.is_over());
    }
}

/// A block for each number, in an order without a pattern, among `1 << bits`.
fn mixed(at: u64, bits: u32) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (1 << bits)
}

#[test]
fn an_off_loaded_range_takes_64_bytes_at_most() {
    type Case = (&'static str, usize, u64, fn(u64) -> u64, f64);
    let cases: [Case; 6] = [
        ("in sequence", 1, 64, |at| at, 64.0),
        ("backwards", 1, 64, |at| RANGES - at, 64.0),
        ("half of the blocks", 1, 64, |at| mixed(at, 18), 64.0),
        ("few of 4 TiB", 1, 64, |at| mixed(at, 30), 64.0),
        ("half of the blocks, a record each", 1, 1, |at| mixed(at, 18), 64.0),
        ("two copies", 2, 64, |at| mixed(at, 18), 72.0),
    ];
    for (name, copies, at_a_time, block, most) in cases {
        let mut client = Client::new(copies);
        // What the first writes take does not grow with the ranges.
        let measured = allocation_counter::measure(|| client.fill(at_a_time, block));
        let bytes = measured.bytes_current as f64 / RANGES as f64;
        println!("{name}, {copies} copies, {at_a_time} writes at a time: {bytes:.1} bytes a range");
        assert!(bytes <= most, "{name}: {bytes} bytes a range");
    }
}

#[test]
fn memory_is_given_back_when_everything_is_home() {
    let mut client = Client::new(1);
    let measured = allocation_counter::measure(|| {
        client.fill(64, |at| mixed(at, 18));
        client.bring_home();
    });
    assert!(measured.bytes_max > 40 * RANGES && measured.bytes_current < 256 * 1024, "{measured:?}");
}

/// One version that stays does not keep those that were overwritten since.
#[test]
fn overwritten_versions_are_forgotten_although_an_older_one_stays() {
    for copies in [1, 2] {
        let mut client = Client::new(copies);
        let mut write = |start: u64, end: u64| {
            client.offload.write(0, VOLUME, IoId(client.next_io), (start * BLOCK, end * BLOCK), 0);
            client.next_io += 1;
            client.act();
        };
        write(0, 2);
        (0..1000).for_each(|at| write(at % 2 * 8, at % 2 * 8 + 1));
        let versions = client.offload.known_versions().count();
        assert!(versions <= 5, "{versions} versions of two blocks, and one that stays");
    }
}
