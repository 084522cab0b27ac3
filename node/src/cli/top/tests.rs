use engine::disk::policy::Kind;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::strip::{Owner, strip};
use super::*;
use crate::control::view::{
    ByOpView, Condition, DelayView, InsulationView, LatencyView, LiveOffloadView, OwnedView, PercentilesView,
    PolicyView, RatesView, RatioView, ShareView, SliceView, TenantView,
};
use crate::store::PolicyName;

fn slice(tenant: &str, seconds_ago: f64, seconds: f64) -> OwnedView {
    OwnedView { tenant: Some(tenant.into()), seconds_ago, seconds }
}

fn tenant(name: &str, ratio: f64, reads: f64) -> TenantView {
    let percentiles = PercentilesView {
        requests: 1000,
        p50_seconds: 0.0123,
        p99_seconds: 0.0456,
        p999_seconds: 0.0789,
        max_seconds: 0.321,
    };
    TenantView {
        name: name.into(),
        volumes: vec![name.into()],
        share: ShareView { effective: Some(0.5), ..ShareView::default() },
        guarantee: None,
        usage: None,
        slice: Some(SliceView { seconds: 0.757, loss_seconds: 0.057, round_seconds: 1.5, wait_seconds_max: 2.0 }),
        sizing: None,
        insulation: Some(RatioView { ratio, window_seconds: 5.0, prediction: String::new() }),
        own_cache_insulation: Some(RatioView { ratio: 0.97, window_seconds: 5.0, prediction: String::new() }),
        rates: Some(RatesView {
            reads,
            read_bytes: 4096.0 * reads,
            delay_seconds: DelayView { slice: 0.75, disk: 0.25, ..DelayView::default() },
            ..RatesView::default()
        }),
        latency: Some(LatencyView {
            recent: ByOpView { both: Some(percentiles), ..ByOpView::default() },
            ..LatencyView::default()
        }),
    }
}

fn disk(tenants: Vec<TenantView>, slices: Vec<OwnedView>) -> LiveView {
    let policy = PolicyView {
        name: PolicyName(Kind::Insulated),
        reason: "by slices of disk time".into(),
        requested: None,
        insulation: InsulationView { requested: 0.9, effective: Some(0.9), reason: None },
        round_seconds: Some(0.5),
        round_seconds_max: 2.0,
    };
    LiveView {
        disk: "hdd".into(),
        condition: Condition::Online,
        policy: Some(policy),
        busy_ratio: Some(0.874),
        tenants,
        slices,
        offload: None,
    }
}

#[test]
fn what_is_off_loaded_is_drawn_over_time() {
    let offload = LiveOffloadView {
        offloaded_bytes: 3 << 20,
        history_bytes: vec![7 << 20, 0, 1, 4 << 20, 8 << 20, 3 << 20],
        period_seconds: 5.0,
        written_bytes_per_s: 2048.0,
        reclaimed_bytes_per_s: 0.0,
    };
    let view = LiveView { offload: Some(offload), ..disk(Vec::new(), Vec::new()) };
    let words = "off-loaded 3MiB, 2KiB/s away, 0B/s home  ";
    let lines = screen(&mut State::new(vec![view.clone()]), 120, 8);
    assert!(lines.contains(&format!("{words}\u{2587}\u{b7}\u{2581}\u{2584}\u{2588}\u{2583}")), "{lines:?}");
    // A narrow screen has the latest ones, in a scale of their own.
    let lines = screen(&mut State::new(vec![view]), words.len() as u16 + 1, 8);
    assert!(lines.contains(&format!("{words}\u{2588}")), "{lines:?}");
}

fn screen(state: &mut State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    let text = terminal.backend().to_string();
    text.lines().map(|line| line.trim_matches('"').trim_end().to_owned()).collect()
}

fn press_key(state: &mut State, key: char) {
    assert!(press(state, KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE)));
}

#[test]
fn a_strip_ends_now_and_says_whose_each_moment_was() {
    // Two seconds, in cells of a fifth of a second.
    let tenants = vec![tenant("a", 1.0, 1.0), tenant("b", 1.0, 1.0)];
    let slices = vec![slice("a", 1.8, 0.4), slice("b", 1.4, 0.4), slice("x", 0.4, 0.2)];
    let busy = disk(tenants, slices);
    let [a, b, gone] = [Owner::Tenant(0), Owner::Tenant(1), Owner::Gone];
    let [unknown, nobody, running] = [Owner::Unknown, Owner::Nobody, Owner::Running];
    assert_eq!(strip(&busy, 10), [unknown, a, a, b, b, nobody, nobody, nobody, gone, running]);
    let idle = LiveView { busy_ratio: Some(0.0), ..busy.clone() };
    assert_eq!(strip(&idle, 10)[9], nobody);
    // Old slices must not be drawn at the present.
    let mut old = idle;
    old.slices.iter_mut().for_each(|slice| slice.seconds_ago += 60.0);
    assert_eq!(strip(&old, 10), [nobody; 10]);
    old.slices.clear();
    assert_eq!(strip(&old, 10), [nobody; 10]);
}

#[test]
fn eighty_columns_cut_no_number() {
    let tenants = vec![tenant("alice", 0.93, 123_456.0), tenant("a-tenant-with-a-long-name", 1.0, 1_234_567.0)];
    let lines = screen(&mut State::new(vec![disk(tenants, Vec::new())]), 80, 24);
    let text = lines.join("\n");
    for part in ["123456/s 482.2MiB/s", "1234567/s 4.7GiB/s", "0.93", "KEEPS", "46 ms", "busy 87%", "? help"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let wide = screen(&mut State::new(vec![disk(vec![tenant("bob", 1.0, 120.0)], Vec::new())]), 200, 24).join("\n");
    for part in ["757 ms", "57 ms", "79 ms", "321 ms", "slice 75% disk 25%", "WAITS FOR", "P99.9", "DISK", "0.97"] {
        assert!(wide.contains(part), "{part} is not in\n{wide}");
    }
    for (width, height) in [(1, 1), (20, 3), (300, 80)] {
        screen(&mut State::new(vec![disk(vec![tenant("bob", 1.0, 120.0)], Vec::new())]), width, height);
    }
}

#[test]
fn tenants_beyond_the_screen_are_announced_and_reached() {
    let tenants = (0..60).map(|i| tenant(&format!("tenant-{i:02}"), 1.0, 1.0)).collect();
    let mut state = State::new(vec![disk(tenants, Vec::new())]);
    let first = screen(&mut state, 80, 24).join("\n");
    assert!(first.contains("lines 1 to 23 of 64") && !first.contains("tenant-59"), "{first}");
    press(&mut state, KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
    let last = screen(&mut state, 80, 24).join("\n");
    assert!(last.contains("tenant-59") && last.contains("lines 42 to 64 of 64"), "{last}");
    press(&mut state, KeyEvent::new(KeyCode::PageUp, KeyModifiers::NONE));
    assert!(screen(&mut state, 80, 24).join("\n").contains("lines 19 to 41 of 64"));
}

#[test]
fn tenants_are_sorted_and_told_apart_without_the_colours_of_keeps() {
    let tenants = vec![tenant("alice", 0.93, 10.0), tenant("bob", 0.5, 20.0), tenant("carol", 1.2, 5.0)];
    let slices = vec![slice("bob", 1.0, 0.5)];
    let mut state = State::new(vec![disk(tenants, slices)]);
    let order = |state: &mut State| -> Vec<char> {
        let lines = screen(state, 120, 24);
        lines[3..6].iter().map(|line| line.chars().next().unwrap()).collect()
    };
    assert_eq!(order(&mut state), ['a', 'b', 'c']);
    press_key(&mut state, 's');
    assert_eq!(order(&mut state), ['b', 'a', 'c'], "the least insulated first; tags stay");
    press_key(&mut state, 't');
    assert_eq!(order(&mut state), ['b', 'a', 'c']);
    press_key(&mut state, 'n');
    assert!(screen(&mut state, 120, 24)[1].contains("bbbb"), "the strip has the tag of the table");

    use ratatui::style::Color;
    let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
    let many = (0..12).map(|i| tenant(&format!("t{i:02}"), 1.0, 1.0)).collect();
    terminal.draw(|frame| draw(frame, &mut State::new(vec![disk(many, Vec::new())]))).unwrap();
    let colours: Vec<Color> = (3..15).map(|row| terminal.backend().buffer()[(0, row)].fg).collect();
    let distinct: std::collections::BTreeSet<String> = colours.iter().map(|colour| format!("{colour:?}")).collect();
    assert_eq!(distinct.len(), 12, "{colours:?}");
    assert!(!colours.contains(&Color::Red) && !colours.contains(&Color::Green));
}

#[test]
fn help_and_a_lost_server_are_shown() {
    let mut state = State::new(vec![disk(vec![tenant("alice", 1.0, 1.0)], Vec::new())]);
    press_key(&mut state, '?');
    let help = screen(&mut state, 80, 24).join("\n");
    assert!(help.contains("sort by") && help.contains("quit") && !help.contains("alice"), "{help}");
    assert!(help.lines().all(|line| line.chars().count() <= 80));
    assert!(press(&mut state, KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE)), "Esc leaves the help first");
    state.lost = Some("no answer from the server for 3 s, retrying: x".into());
    let lost = screen(&mut state, 80, 24).join("\n");
    assert!(lost.contains("alice") && lost.contains("for 3 s, retrying"), "{lost}");
    assert!(!press(&mut state, KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)));
}
