//! What the meter measures.

use super::*;

const RANDOM: Entry = Entry { cost_ns: 100, ..Entry::EMPTY };

fn watch(meter: &Meter, begun: Nanos) -> Watch {
    let mut watch = meter.watch(begun, 0);
    watch.issued(begun, &RANDOM, true);
    watch
}

/// 20 requests of cost 100. After a switch of 50, one completes every 10. Two are in the device, and the last one
/// takes 30 alone.
fn slice(meter: &mut Meter) -> Nanos {
    let mut watch = watch(meter, 1000);
    let mut now = 1050;
    for done in 1..=19 {
        now += 10;
        watch.done(now, &RANDOM, 2);
        if done == 18 {
            watch.drain(now + 5, 2, 200);
        }
    }
    watch.done(now + 30, &RANDOM, 1);
    meter.slice(now + 30, &watch, Cause::UsedUp)
}

/// Requests of cost 100 one after the other: the first one takes 40, each further one 10, after a pause of 90.
fn thinks(meter: &mut Meter, begun: Nanos, requests: u32) -> Nanos {
    let mut watch = meter.watch(begun, 25);
    let mut now = begun;
    for at in 0..requests {
        now += if at == 0 { 0 } else { 90 };
        watch.issued(now, &RANDOM, true);
        now += if at == 0 { 40 } else { 10 };
        watch.done(now, &RANDOM, 1);
    }
    meter.slice(now, &watch, Cause::Idle)
}

#[test]
fn a_switch_costs_what_the_first_request_takes_more_than_later_ones() {
    let mut meter = Meter::default();
    assert_eq!(thinks(&mut meter, 0, 1), 40 - 25, "as usual on this disk");
    (1..=8).for_each(|slice| _ = thinks(&mut meter, 1000 * slice, 3));
    assert_eq!(meter.switch_ns(&watch(&meter, 0)), 0, "nothing was done");
    assert_eq!(thinks(&mut meter, 10_000, 1), 10, "what later ones take");
}

#[test]
fn the_loss_is_what_is_slower_than_the_middle() {
    let mut meter = Meter::default();
    assert_eq!(slice(&mut meter), 200, "20 requests of 10 each");
    assert_eq!(meter.loss_ns(), Some(50 + 20), "the switch, and what the last took longer");
    assert_eq!(meter.need_ns(100, 12), 700);
    assert_eq!(meter.drain_ns(200), 35);
    assert_eq!(meter.closing_ns(), 35 - 10 + 10 - 5 + 5);
}

#[test]
fn one_request_that_took_long_does_not_end_all_slices_early() {
    // Requests of 10 one after the other, 20 in a slice. The last one of the first slice takes 1,000.
    let mut meter = Meter::default();
    for slice in 0..30 {
        let mut watch = meter.watch(0, 0);
        for done in 1..20 {
            watch.issued(10 * (done - 1), &RANDOM, true);
            watch.done(10 * done, &RANDOM, 1);
        }
        watch.issued(190, &RANDOM, true);
        if slice == 0 {
            watch.drain(190, 1, 100);
            watch.done(1190, &RANDOM, 1);
            meter.slice(1190, &watch, Cause::UsedUp);
            assert_eq!(meter.drain_ns(100), 1000);
        } else {
            watch.done(200, &RANDOM, 1);
            watch.drain(200, 0, 0);
            meter.slice(200, &watch, Cause::UsedUp);
        }
    }
    assert!((10..40).contains(&meter.drain_ns(100)), "{}", meter.drain_ns(100));
}

#[test]
fn lent_slices_show_that_requests_take_less_than_expected() {
    // A drain of 50 times the usual service rate, then lent slices with a request of 10 each.
    let mut meter = Meter::default();
    let mut watch = watch(&meter, 0);
    watch.drain(0, 1, 100);
    watch.done(500, &RANDOM, 1);
    meter.slice(500, &watch, Cause::UsedUp);
    assert_eq!(meter.drain_ns(100), 500);
    for _ in 0..30 {
        let mut watch = meter.watch(0, 0);
        watch.issued(0, &RANDOM, true);
        watch.done(10, &RANDOM, 1);
        meter.lent(20, &watch);
    }
    assert!((10..40).contains(&meter.drain_ns(100)), "{}", meter.drain_ns(100));
    assert_eq!(meter.whole.requests, 1.0, "they show no service rate");
}

#[test]
fn a_short_request_says_little_of_how_long_a_usual_one_takes() {
    // 20 requests of 10 each and cost 100 in a slice, and a drain of one that takes 10.
    let short = Entry { cost_ns: 1, ..RANDOM };
    let mut meter = Meter::default();
    let mut watch = watch(&meter, 0);
    (1..20).for_each(|at| watch.done(10 * at, &RANDOM, 1));
    watch.drain(190, 1, 100);
    watch.done(200, &RANDOM, 1);
    meter.slice(200, &watch, Cause::UsedUp);
    assert_eq!(meter.drain_ns(100), 10);
    for _ in 0..10 {
        let mut watch = meter.watch(0, 0);
        watch.issued(0, &short, true);
        watch.done(10, &short, 1);
        meter.lent(20, &watch);
    }
    assert!(meter.drain_ns(100) < 30, "{}", meter.drain_ns(100));
}

#[test]
fn a_stream_lacks_what_random_reads_have_at_both_ends_of_a_slice() {
    // After a first batch of two random reads come eighteen of a stream, and one more. The drain has two.
    let mut meter = Meter::default();
    let stream = Entry { follows: true, ..RANDOM };
    for _ in 0..10 {
        let mut watch = watch(&meter, 0);
        [50, 100].into_iter().for_each(|now| watch.done(now, &RANDOM, 2));
        (1..=18).for_each(|at| watch.done(100 + 10 * at, &stream, 2));
        watch.done(330, &RANDOM, 2);
        watch.drain(330, 2, 200);
        [380, 430].into_iter().for_each(|now| watch.done(now, &RANDOM, 1));
        meter.slice(430, &watch, Cause::UsedUp);
    }
    // The steady part: 17 of the stream, one before the drain, and the first of the drain.
    let lack = 1.0 - (18.0 / 23.0) / (17.0 / 19.0);
    assert!((meter.streams_lack() - lack).abs() < 1e-6, "{} {lack}", meter.streams_lack());
    assert!(meter.has_divided_streams());
    let mut meter = Meter::default();
    (0..10).for_each(|_| _ = slice(&mut meter));
    assert_eq!((meter.streams_lack(), meter.has_divided_streams()), (0.0, false), "there is no stream");
}

/// `requests` of cost 100, all in the device from the beginning: the first one takes 60, each further one `each`.
fn burst(meter: &mut Meter, requests: u32, each: Nanos) {
    let mut watch = watch(meter, 0);
    watch.drain(0, requests, 100 * Nanos::from(requests));
    (0..requests).for_each(|at| watch.done(60 + each * Nanos::from(at), &RANDOM, requests - at));
    meter.slice(60 + each * Nanos::from(requests - 1), &watch, Cause::UsedUp);
}

#[test]
fn a_queue_that_became_much_deeper_than_its_slices_show_is_another_load() {
    let mut meter = Meter::default();
    (0..20).for_each(|_| _ = slice(&mut meter));
    assert_eq!(meter.look_ns(), None);
    (0..3).for_each(|_| burst(&mut meter, 40, 5));
    assert!(meter.look_ns().is_some(), "its slices do not show how fast it is");
    assert!(meter.rate().unwrap() < 0.06, "nothing is left of the rate of two at a time: {:?}", meter.rate());
    burst(&mut meter, 45, 5);
    assert!(meter.whole.slices > 1.0, "what is known of the deeper queue is kept");
}

#[test]
fn a_drain_of_a_cheap_request_does_not_make_others_seem_slow() {
    // Twenty random requests, and at the end of the slice a sequential one of cost 1, which takes as long.
    let mut meter = Meter::default();
    let mut watch = watch(&meter, 0);
    (1..=20).for_each(|at| watch.done(50 + at * 10, &RANDOM, 1));
    watch.drain(250, 1, 1);
    watch.done(260, &Entry { cost_ns: 1, follows: true, ..RANDOM }, 1);
    meter.slice(260, &watch, Cause::UsedUp);
    assert!(meter.drain_ns(100) <= 20, "{}", meter.drain_ns(100));
}

#[test]
fn background_write_back_does_not_lengthen_slices() {
    let mut meter = Meter::default();
    meter.begin(Backlog { all_ns: 1000, awaited_ns: 100 });
    assert_eq!((meter.burst_ns(), meter.need_ns(100, 12)), (200, 200));
    meter.dark_ns = 4000;
    assert_eq!(meter.look_ns(), Some(3000), "the rate is observed with the whole backlog in the device");
}

#[test]
fn a_slice_that_was_not_used_up_says_nothing_of_the_loss() {
    let mut meter = Meter::default();
    let mut watch = watch(&meter, 0);
    (1..=5).for_each(|at| watch.done(at * 10, &RANDOM, 1));
    assert_eq!(meter.slice(100, &watch, Cause::Idle), 50, "then the disk was held for it in vain");
    assert_eq!((meter.loss_ns(), meter.need_ns(100, 12)), (None, 120));
}
