//! The cluster.

use super::{bytes, list, table};
use crate::cluster::view::{ClockView, ClusterView, MemberState, MemberView, NeedView, ScheduleView, SlotView};
use crate::control::view::InCluster;
use crate::quantity::duration;
use crate::store::spec::Part;

fn seconds(ns: u64) -> String {
    duration(ns as f64 / 1e9)
}

/// What a volume is a part of.
pub(super) fn part(part: &Part) -> String {
    let whole = match part.servers.len() {
        1 => "the whole volume".to_owned(),
        servers => {
            let (size, stripe) = (bytes(part.size), bytes(part.stripe));
            format!("a part of {size}, striped over {servers} servers by {stripe}")
        }
    };
    let names: Vec<&str> = part.servers.iter().map(|server| server.as_str()).collect();
    let state = match (part.lost, part.committed) {
        (true, _) => "; given up: the server was removed from the cluster",
        (false, true) => "",
        (false, false) => "; its creation is not complete",
    };
    format!("{}: {whole} ({}){state}", part.cluster, names.join(" "))
}

/// A server's place in a cluster, in a line.
pub(super) fn in_cluster(place: &InCluster) -> String {
    let InCluster { cluster, server, joined, reason, version, in_step, etcd_answers } = place;
    let joined = if *joined { "joined" } else { "NOT JOINED" };
    let step = if *in_step { "in step" } else { "OUT OF STEP" };
    let schedule = if *version == 0 { "no schedule".into() } else { format!("schedule version {version}, {step}") };
    let etcd = if *etcd_answers { "" } else { "; etcd does not answer" };
    let reason = reason.as_ref().map_or(String::new(), |reason| format!("; {reason}"));
    format!("{cluster}, as {server}: {joined}, {schedule}{etcd}{reason}")
}

/// The need that decided the round; nothing if none is known.
fn need(need: Option<&NeedView>) -> String {
    need.map_or(String::new(), |NeedView { server, volume, slice_ns }| {
        format!("volume '{volume}', which needs slices of {} on server '{server}'", seconds(*slice_ns))
    })
}

/// All servers, etcd and the schedule.
pub fn cluster_status(view: &ClusterView) -> String {
    let etcd = match (&view.etcd.reason, view.etcd.silent_seconds) {
        (Some(reason), silent) => format!(
            "does not answer for {} s: {reason}\nwhat follows is as it was last; the last schedule is followed, \
             changes are refused",
            silent.unwrap_or(0)
        ),
        (None, _) => "answers".into(),
    };
    let schedule = view.schedule.as_ref().map_or("none yet".into(), |schedule| {
        format!(
            "version {}, R of the cluster {:.3}, a round has {}, since {}",
            schedule.version,
            schedule.r_cluster,
            seconds(schedule.round_ns),
            schedule.begins
        )
    });
    let joined = if view.joined { "joined" } else { "NOT JOINED" };
    let mut text = list(&[
        ("cluster", view.cluster.clone()),
        ("this server", format!("{}, {joined}", view.server)),
        ("reason", view.reason.clone().unwrap_or_default()),
        ("disk", view.disk.clone().unwrap_or_default()),
        ("etcd", etcd),
        ("schedule", schedule),
        ("round for", need(view.schedule.as_ref().and_then(|schedule| schedule.need.as_ref()))),
        ("change", view.change.as_ref().map_or(String::new(), |of| format!("'{of}' is being changed"))),
    ]);
    if !view.members.is_empty() {
        let headings = ["SERVER", "STATE", "CLOCK", "DISK", " FREE", " R", " SCHEDULE", "MISSING"];
        let row = |member: &MemberView| {
            vec![
                member.name.clone(),
                state(member),
                member.clock.as_ref().map_or("-".into(), clock),
                member.disk.clone().unwrap_or("-".into()),
                member.free_bytes.map_or("-".into(), bytes),
                member.insulation.map_or("-".into(), |r| format!("{r}")),
                member.version.to_string(),
                if member.missing.is_empty() { "-".into() } else { member.missing.join(" ") },
            ]
        };
        text += "\n";
        text += &table(&headings, view.members.iter().map(row).collect());
    }
    if !view.volumes.is_empty() {
        let headings = ["VOLUME", " SIZE", " SHARE", " STRIPE", "SERVERS", "STATE"];
        let rows = view.volumes.iter().map(|volume| {
            let stripe = if volume.servers.len() > 1 { bytes(volume.stripe_bytes) } else { "-".into() };
            let state = match (volume.deleting, &volume.lost[..]) {
                (true, _) => "deleting".into(),
                (false, []) => "ready".into(),
                (false, lost) => format!("BROKEN: lost with {}", lost.join(" ")),
            };
            vec![
                volume.name.clone(),
                bytes(volume.size_bytes),
                volume.share.clone(),
                stripe,
                volume.servers.join(" "),
                state,
            ]
        });
        text += "\n";
        text += &table(&headings, rows.collect());
    }
    text
}

/// The state of a server.
fn state(member: &MemberView) -> String {
    let state = match member.state {
        MemberState::Ready => "ready",
        MemberState::Draining => "draining",
        MemberState::Away => "AWAY",
    };
    match (member.in_step, member.version) {
        (true, _) => state.into(),
        (false, 0) => format!("{state}, OUT OF STEP (no schedule)"),
        (false, version) => format!("{state}, OUT OF STEP (version {version})"),
    }
}

fn clock(clock: &ClockView) -> String {
    let how = match (clock.trusted, clock.synchronised) {
        (true, _) => "trusted",
        (false, true) => "synchronised",
        (false, false) => return "NOT SYNCHRONISED".into(),
    };
    let error = seconds(clock.error_ns);
    if clock.good { format!("{how}, {error}") } else { format!("{how}, {error}: TOO INEXACT") }
}

/// A table of servers with their volumes.
pub fn cluster_members(view: &ClusterView) -> String {
    let headings = ["SERVER", "STATE", "ADDRESS", "DISK", "UUID", "VOLUMES"];
    let row = |member: &MemberView| {
        vec![
            member.name.clone(),
            state(member),
            member.advertise.clone(),
            member.disk.clone().unwrap_or("-".into()),
            member.uuid.to_string(),
            if member.volumes.is_empty() { "-".into() } else { member.volumes.join(" ") },
        ]
    };
    let mut text = table(&headings, view.members.iter().map(row).collect());
    if !view.etcd.answers {
        text += "\netcd does not answer: this is as it was last\n";
    }
    text
}

/// A schedule as a table.
pub fn schedule(view: &ScheduleView) -> String {
    let mut text = list(&[
        ("version", view.version.to_string()),
        ("begins", view.begins.clone()),
        ("round", seconds(view.round_ns)),
        ("round for", need(view.need.as_ref())),
        ("R of the cluster", format!("{:.3}", view.r_cluster)),
    ]);
    if view.slots.is_empty() {
        return text + "\nno slices: the cluster has no volumes\n";
    }
    let row = |slot: &SlotView| {
        let part = 100.0 * slot.length_ns as f64 / view.round_ns as f64;
        let (start, length) = (seconds(slot.start_ns), seconds(slot.length_ns));
        vec![slot.volume.clone(), start, length, format!("{part:.1}%"), slot.servers.join(" ")]
    };
    text += "\n";
    text + &table(
        &["VOLUME", " START", " LENGTH", " OF ROUND", "SERVERS"],
        in_order(view).into_iter().map(row).collect(),
    )
}

/// The slots in the order in which they begin.
fn in_order(view: &ScheduleView) -> Vec<&SlotView> {
    let mut slots: Vec<&SlotView> = view.slots.iter().collect();
    slots.sort_by_key(|slot| (slot.start_ns, slot.volume.as_str()));
    slots
}

/// A schedule as a picture: servers from the top to the bottom, one round from left to right.
pub fn schedule_svg(view: &ScheduleView) -> String {
    const LEFT: f64 = 110.0;
    const TOP: f64 = 50.0;
    const ACROSS: f64 = 660.0;
    const ROW: f64 = 26.0;
    let mut servers: Vec<&str> = view.slots.iter().flat_map(|slot| &slot.servers).map(String::as_str).collect();
    servers.sort_unstable();
    servers.dedup();
    let height = TOP + ROW * servers.len() as f64 + 50.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"800\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let mut put = |text: String| svg += &(text + "\n");
    put(format!(
        "<text x=\"{LEFT}\" y=\"28\" font-size=\"15\">schedule {}: one round of {}, R of the cluster {:.3}</text>",
        view.version,
        seconds(view.round_ns),
        view.r_cluster
    ));
    let x = |ns: u64| LEFT + ACROSS * ns as f64 / view.round_ns as f64;
    let y = |server: &str| TOP + ROW * servers.iter().position(|known| *known == server).unwrap_or(0) as f64;
    for server in &servers {
        let middle = y(server) + ROW * 0.65;
        put(format!("<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{server}</text>", LEFT - 8.0));
    }
    for (at, slot) in view.slots.iter().enumerate() {
        // Hues that are far apart for volumes that follow each other (golden ratio).
        let hue = 360.0 * (at as f64 * 0.618_034).fract();
        let (left, width) = (x(slot.start_ns), x(slot.length_ns) - LEFT);
        for server in &slot.servers {
            let top = y(server);
            put(format!(
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
                 fill=\"hsl({hue:.0},55%,70%)\"/>",
                ROW - 2.0
            ));
            put(format!("<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", left + 5.0, top + ROW * 0.65, slot.volume));
        }
    }
    let below = height - 30.0;
    put(format!("<text x=\"{LEFT}\" y=\"{below:.1}\" text-anchor=\"middle\">0</text>"));
    put(format!(
        "<text x=\"{}\" y=\"{below:.1}\" text-anchor=\"middle\">{}</text>",
        LEFT + ACROSS,
        seconds(view.round_ns)
    ));
    put("</svg>".into());
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> ScheduleView {
        let slot = |volume: &str, start_ns, servers: &[&str]| SlotView {
            volume: volume.into(),
            start_ns,
            length_ns: 300_000_000,
            servers: servers.iter().map(|server| (*server).to_owned()).collect(),
        };
        ScheduleView {
            version: 4,
            begins_ns: 0,
            begins: "1970-01-01T00:00:00.000Z".into(),
            round_ns: 900_000_000,
            r_cluster: 1.0,
            need: Some(NeedView { server: "s2".into(), volume: "b".into(), slice_ns: 120_000_000 }),
            slots: vec![slot("b", 300_000_000, &["s2"]), slot("a", 0, &["s1", "s2"])],
        }
    }

    #[test]
    fn slices_are_shown_in_their_order() {
        let text = schedule(&view());
        let at = |volume: &str| text.find(&format!("\n{volume} ")).unwrap_or_else(|| panic!("{volume} in {text}"));
        assert!(at("a") < at("b") && text.contains("33.3%") && text.contains("s1 s2"), "{text}");
        assert!(text.contains("round for         volume 'b', which needs slices of 120 ms on server 's2'"), "{text}");
        assert!(schedule(&ScheduleView { slots: Vec::new(), ..view() }).contains("no volumes"));
    }

    #[test]
    fn the_place_in_a_cluster_is_a_line() {
        let mut place = InCluster {
            cluster: "lab".into(),
            server: "s1".into(),
            joined: true,
            reason: None,
            version: 4,
            in_step: true,
            etcd_answers: true,
        };
        assert_eq!(in_cluster(&place), "lab, as s1: joined, schedule version 4, in step");
        place = InCluster { in_step: false, etcd_answers: false, ..place };
        assert_eq!(in_cluster(&place), "lab, as s1: joined, schedule version 4, OUT OF STEP; etcd does not answer");
        place = InCluster { joined: false, version: 0, reason: Some("it has no disk".into()), ..place };
        assert_eq!(in_cluster(&place), "lab, as s1: NOT JOINED, no schedule; etcd does not answer; it has no disk");
    }

    #[test]
    fn the_picture_has_a_box_for_each_slice_on_each_server() {
        let picture = schedule_svg(&view());
        assert_eq!(picture.matches("hsl(").count(), 3);
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    }
}
