//! The options that clients send in a handshake, and the answers that the protocol requires (`doc/proto.md` of the NBD
//! project). Written independently of the engine's handshake, so that the two can be compared.

use std::collections::VecDeque;

use engine::Session;
use engine::nbd::wire::{self, export_flag, info, option, reply};
use engine::nbd::{Ending, Export, Form, Tls};

use crate::rng::Rng;

/// Lengths of option data that are too long to be parsed, and so long that the connection is closed.
const TOO_LONG: u32 = 20_000;
const ABSURD: u32 = 64 << 20;
/// An option that does not exist.
const UNKNOWN: u32 = 99;

/// A message of the client.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// The client flags.
    Hello(u32),
    /// An option without data; if true, with invalid data.
    Plain(u32, bool),
    /// INFO or GO: name, kinds of information.
    Info(u32, String, Vec<u16>),
    /// INFO or GO with inconsistent lengths.
    Torn(u32),
    /// LIST_META_CONTEXT or SET_META_CONTEXT: name, queries.
    Context(u32, String, Vec<&'static str>),
    /// EXPORT_NAME: its answer cannot report an error.
    ExportName(String),
    /// Option data that is too long to be parsed.
    TooLong(u32),
    /// Option data that is too long to be read.
    Absurd,
    /// Bytes that are no option.
    Garbage,
}

/// The state of the negotiation.
#[derive(Clone, Default, Debug)]
pub(crate) struct Agreed {
    no_zeroes: bool,
    form: Form,
    /// The name for which contexts were selected, and whether `base:allocation` and `aerogel:load` are among them.
    contexts: Option<(String, bool, bool)>,
    encrypted: bool,
}

/// The exports that a certain client is offered now.
#[derive(Debug)]
pub(crate) struct Offer {
    /// Indices of the volumes in the world.
    pub(crate) at: Vec<usize>,
    /// The corresponding exports.
    pub(crate) exports: Vec<Export>,
    pub(crate) shutting_down: bool,
    pub(crate) tls: Tls,
}

/// The state after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    GoesOn,
    StartsTls,
    /// Transmission, of this export of the offer.
    Begins(usize, Session),
    Closes(Ending),
}

/// An answer that the server must send.
#[derive(Debug)]
pub(crate) struct Answer {
    option: u32,
    /// Bytes that are not option replies.
    raw: Vec<u8>,
    /// Option replies: kind and data, in any order except for the last one; the text of an error is not compared.
    replies: Vec<(u32, Vec<u8>)>,
    pub(crate) end: End,
}

impl Ask {
    /// The messages of a client that wants the session `wanted` on a volume, with some random ones in between.
    pub(crate) fn plan(at: usize, volumes: usize, wanted: Session, tls: Tls, rng: &mut Rng) -> VecDeque<Ask> {
        let flags = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        let hello = if rng.one_in(60) { rng.pick(&[0, 2, 1 << 9 | flags]) } else { rng.pick(&[flags, flags, 1]) };
        let mut plan = VecDeque::from([Ask::Hello(hello)]);
        let name = if rng.one_in(8) { String::new() } else { format!("v{at}") };
        let digress = |plan: &mut VecDeque<Ask>, rng: &mut Rng| {
            if rng.one_in(3) {
                plan.push_back(Ask::digression(volumes, wanted.form, rng));
            }
        };
        digress(&mut plan, rng);
        let starts_tls = match tls {
            Tls::Off => rng.one_in(20),
            Tls::On => rng.one_in(2),
            Tls::Require => !rng.one_in(10),
        };
        if starts_tls {
            if rng.one_in(3) {
                plan.push_back(Ask::Plain(option::STRUCTURED_REPLY, false));
            }
            plan.push_back(Ask::Plain(option::STARTTLS, false));
        }
        match wanted.form {
            Form::Simple => {}
            Form::Structured => plan.push_back(Ask::Plain(option::STRUCTURED_REPLY, false)),
            Form::Extended => plan.push_back(Ask::Plain(option::EXTENDED_HEADERS, false)),
        }
        digress(&mut plan, rng);
        let contexts = [(wanted.base_allocation, wire::BASE_ALLOCATION), (wanted.load, wire::LOAD)];
        let contexts: Vec<&str> =
            contexts.into_iter().filter_map(|(is_wanted, name)| is_wanted.then_some(name)).collect();
        if !contexts.is_empty() {
            plan.push_back(Ask::Context(option::SET_META_CONTEXT, name.clone(), contexts));
        }
        digress(&mut plan, rng);
        if rng.one_in(4) {
            plan.push_back(Ask::ExportName(name));
        } else {
            let wants = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 77];
            let wants = wants.into_iter().filter(|_| rng.one_in(2)).collect();
            plan.push_back(Ask::Info(option::GO, name, wants));
        }
        if rng.one_in(2) {
            // In case transmission did not begin.
            plan.push_back(Ask::Plain(option::ABORT, false));
        }
        plan
    }

    /// A message that is unnecessary or invalid.
    fn digression(volumes: usize, wanted: Form, rng: &mut Rng) -> Ask {
        let name = match rng.below(4) {
            0 => String::new(),
            1 => "nobody".into(),
            _ => format!("v{}", rng.below(volumes as u64)),
        };
        let queries = rng.pick(&[
            &[][..],
            &["base:"],
            &["aerogel:"],
            &[wire::BASE_ALLOCATION],
            &["x:y", wire::LOAD, wire::BASE_ALLOCATION],
        ]);
        let context = rng.pick(&[option::LIST_META_CONTEXT, option::SET_META_CONTEXT]);
        match rng.below(40) {
            0..6 => Ask::Plain(option::LIST, rng.one_in(8)),
            6..14 => Ask::Info(option::INFO, name, vec![info::DESCRIPTION, info::NAME]),
            14..16 => Ask::Torn(rng.pick(&[option::INFO, option::GO])),
            16..26 => Ask::Context(context, name, queries.to_vec()),
            26 => Ask::Plain(option::STRUCTURED_REPLY, true),
            27 => Ask::Plain(option::EXTENDED_HEADERS, true),
            28..30 => Ask::Plain(UNKNOWN, rng.one_in(2)),
            30 => Ask::TooLong(rng.pick(&[option::LIST, option::GO, UNKNOWN])),
            31 => Ask::Absurd,
            32 => Ask::Garbage,
            33 => Ask::Plain(option::STARTTLS, true),
            34..37 => Ask::Info(option::GO, "nobody".into(), Vec::new()),
            37 => Ask::ExportName("nobody".into()),
            38 if wanted == Form::Extended => Ask::Plain(option::EXTENDED_HEADERS, false),
            _ => Ask::Plain(option::STRUCTURED_REPLY, false),
        }
    }

    /// Whether a client waits for the answer before it sends more.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_start_tls() || matches!(self, Ask::Info(option::GO, ..) | Ask::ExportName(_))
    }

    pub(crate) fn is_start_tls(&self) -> bool {
        matches!(self, Ask::Plain(option::STARTTLS, _))
    }

    /// The bytes on the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let counted = |name: &str| [&(name.len() as u32).to_be_bytes()[..], name.as_bytes()].concat();
        let (option, data) = match self {
            Ask::Hello(flags) => return flags.to_be_bytes().into(),
            Ask::Garbage => return b"GET / HTTP/1.1\r\n".into(),
            Ask::Absurd => return header(option::LIST, ABSURD),
            Ask::TooLong(option) => (*option, vec![7; TOO_LONG as usize]),
            Ask::Plain(option, data) => (*option, if *data { vec![1] } else { Vec::new() }),
            Ask::Torn(option) => (*option, vec![0, 0, 0, 9, b'v']),
            Ask::ExportName(name) => (option::EXPORT_NAME, name.as_bytes().to_vec()),
            Ask::Info(option, name, wants) => {
                let mut data = counted(name);
                data.extend((wants.len() as u16).to_be_bytes());
                data.extend(wants.iter().flat_map(|want| want.to_be_bytes()));
                (*option, data)
            }
            Ask::Context(option, name, queries) => {
                let mut data = counted(name);
                data.extend((queries.len() as u32).to_be_bytes());
                data.extend(queries.iter().flat_map(|query| counted(query)));
                (*option, data)
            }
        };
        [header(option, data.len() as u32), data].concat()
    }

    /// The required answer; updates the state of the negotiation.
    pub(crate) fn answer(&self, agreed: &mut Agreed, offer: &Offer) -> Answer {
        let needs_tls = offer.tls == Tls::Require && !agreed.encrypted;
        match self {
            Ask::Hello(flags) => return Self::hello(*flags, agreed),
            Ask::Garbage => return Answer::closes(0, Ending::Garbage),
            Ask::Absurd => return Answer::closes(0, Ending::Excess),
            Ask::TooLong(option) => return Answer::error(*option, reply::ERR_TOO_BIG),
            Ask::Plain(option::ABORT, _) => {
                return Answer { end: End::Closes(Ending::Abort), ..Answer::done(option::ABORT, Vec::new()) };
            }
            Ask::Plain(option::STARTTLS, data) => return Self::start_tls(*data, agreed, offer.tls),
            Ask::ExportName(_) if needs_tls => return Answer::closes(option::EXPORT_NAME, Ending::TlsRequired),
            Ask::ExportName(_) if offer.shutting_down => {
                return Answer::closes(option::EXPORT_NAME, Ending::Refused);
            }
            _ => {}
        }
        match self {
            Ask::ExportName(name) => Self::export_name(name, agreed, offer),
            _ if needs_tls => Answer::error(self.option(), reply::ERR_TLS_REQD),
            _ if offer.shutting_down => Answer::error(self.option(), reply::ERR_SHUTDOWN),
            Ask::Info(option, name, wants) => Self::info(*option, name, wants, agreed, offer),
            Ask::Context(option, name, queries) => Self::context(*option, name, queries, agreed, offer),
            Ask::Plain(UNKNOWN, _) => Answer::error(UNKNOWN, reply::ERR_UNSUP),
            Ask::Plain(option, true) => Answer::error(*option, reply::ERR_INVALID),
            Ask::Torn(option) => Answer::error(*option, reply::ERR_INVALID),
            Ask::Plain(option::STRUCTURED_REPLY, _) => {
                if agreed.form == Form::Extended {
                    return Answer::error(option::STRUCTURED_REPLY, reply::ERR_EXT_HEADER_REQD);
                }
                agreed.form = Form::Structured;
                Answer::done(option::STRUCTURED_REPLY, Vec::new())
            }
            Ask::Plain(option::EXTENDED_HEADERS, _) if agreed.form == Form::Extended => {
                Answer::error(option::EXTENDED_HEADERS, reply::ERR_INVALID)
            }
            Ask::Plain(option::EXTENDED_HEADERS, _) => {
                agreed.form = Form::Extended;
                Answer::done(option::EXTENDED_HEADERS, Vec::new())
            }
            _ => {
                let entry = |export: &Export| {
                    let (name, description) = (export.name.as_bytes(), export.description.as_bytes());
                    (reply::SERVER, [&(name.len() as u32).to_be_bytes()[..], name, description].concat())
                };
                Answer::done(option::LIST, offer.exports.iter().map(entry).collect())
            }
        }
    }

    fn option(&self) -> u32 {
        match self {
            Ask::Plain(option, _) | Ask::Info(option, ..) | Ask::Torn(option) | Ask::Context(option, ..) => *option,
            _ => 0,
        }
    }

    fn hello(flags: u32, agreed: &mut Agreed) -> Answer {
        agreed.no_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) != 0;
        let end = match flags {
            0..=3 if flags & 1 != 0 => End::GoesOn,
            0..=3 => End::Closes(Ending::Oldstyle),
            _ => End::Closes(Ending::UnknownFlags),
        };
        Answer { option: 0, raw: Vec::new(), replies: Vec::new(), end }
    }

    fn start_tls(data: bool, agreed: &Agreed, tls: Tls) -> Answer {
        let option = option::STARTTLS;
        match tls {
            Tls::Off => Answer::error(option, reply::ERR_POLICY),
            _ if data || agreed.encrypted => Answer::error(option, reply::ERR_INVALID),
            _ => Answer { end: End::StartsTls, ..Answer::done(option, Vec::new()) },
        }
    }

    fn export_name(name: &str, agreed: &Agreed, offer: &Offer) -> Answer {
        let Some(at) = offer.find(name) else { return Answer::closes(option::EXPORT_NAME, Ending::Refused) };
        let export = &offer.exports[at];
        let mut raw = [&export.size.to_be_bytes()[..], &flags(export, agreed).to_be_bytes()].concat();
        raw.extend(vec![0; if agreed.no_zeroes { 0 } else { 124 }]);
        let end = End::Begins(at, agreed.session(name, export));
        Answer { option: option::EXPORT_NAME, raw, replies: Vec::new(), end }
    }

    fn info(option: u32, name: &str, wants: &[u16], agreed: &Agreed, offer: &Offer) -> Answer {
        let Some(at) = offer.find(name) else { return Answer::error(option, reply::ERR_UNKNOWN) };
        let export = &offer.exports[at];
        let of_kind = |kind: u16, data: &[u8]| (reply::INFO, [&kind.to_be_bytes()[..], data].concat());
        let size_flags = [&export.size.to_be_bytes()[..], &flags(export, agreed).to_be_bytes()].concat();
        let extended = agreed.form == Form::Extended;
        let payload_bytes = if extended { wire::EXTENDED_PAYLOAD_BYTES_MAX } else { wire::PAYLOAD_BYTES_MAX };
        let sizes = [1, wire::PREFERRED_BLOCK_BYTES, payload_bytes].map(u32::to_be_bytes).concat();
        let mut replies = vec![of_kind(info::EXPORT, &size_flags), of_kind(info::BLOCK_SIZE, &sizes)];
        for &want in wants {
            match want {
                info::NAME => replies.push(of_kind(want, export.name.as_bytes())),
                info::DESCRIPTION if !export.description.is_empty() => {
                    replies.push(of_kind(want, export.description.as_bytes()));
                }
                _ => {}
            }
        }
        let end = match option {
            option::GO => End::Begins(at, agreed.session(name, export)),
            _ => End::GoesOn,
        };
        Answer { end, ..Answer::done(option, replies) }
    }

    fn context(option: u32, name: &str, queries: &[&str], agreed: &mut Agreed, offer: &Offer) -> Answer {
        let set = option == option::SET_META_CONTEXT;
        if set {
            agreed.contexts = None;
        }
        if agreed.form == Form::Simple {
            return Answer::error(option, reply::ERR_INVALID);
        }
        if offer.find(name).is_none() {
            return Answer::error(option, reply::ERR_UNKNOWN);
        }
        let mut replies = Vec::new();
        let mut context = |space: &str, context: &str, id: u32| {
            let lists = |query: &&str| *query == context || !set && *query == space;
            let is_selected = queries.iter().any(lists) || !set && queries.is_empty();
            if is_selected {
                let number = if set { id } else { 0 };
                replies.push((reply::META_CONTEXT, [&number.to_be_bytes()[..], context.as_bytes()].concat()));
            }
            is_selected
        };
        let base_allocation = context("base:", wire::BASE_ALLOCATION, wire::BASE_ALLOCATION_ID);
        let load = context("aerogel:", wire::LOAD, wire::LOAD_ID);
        if set {
            agreed.contexts = Some((name.to_owned(), base_allocation, load));
        }
        Answer::done(option, replies)
    }
}

impl Agreed {
    /// Everything negotiated in clear text is void.
    pub(crate) fn tls_started(&mut self) {
        (self.form, self.contexts, self.encrypted) = (Form::Simple, None, true);
    }

    fn session(&self, name: &str, export: &Export) -> Session {
        let selected = self.contexts.as_ref().filter(|(of, ..)| of == name);
        let (base_allocation, load) = selected.map_or((false, false), |&(_, status, load)| (status, load));
        Session { form: self.form, base_allocation, load, read_only: export.read_only, demotes: None }
    }
}

impl Offer {
    fn find(&self, name: &str) -> Option<usize> {
        match (name, &self.exports[..]) {
            ("", [_]) => Some(0),
            ("", _) => None,
            (name, exports) => exports.iter().position(|export| export.name == name),
        }
    }
}

/// The transmission flags of an export.
fn flags(export: &Export, agreed: &Agreed) -> u16 {
    use export_flag::*;
    let writes = SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO;
    let access = if export.read_only { READ_ONLY } else { writes };
    let optional = [(agreed.form != Form::Simple, SEND_DF), (export.rotational, ROTATIONAL)];
    let optional: u16 = optional.into_iter().filter(|(has, _)| *has).map(|(_, flag)| flag).sum();
    HAS_FLAGS | SEND_FLUSH | CAN_MULTI_CONN | SEND_CACHE | access | optional
}

fn header(option: u32, len: u32) -> Vec<u8> {
    [&wire::IHAVEOPT.to_be_bytes()[..], &option.to_be_bytes(), &len.to_be_bytes()].concat()
}

impl Answer {
    /// The server's first message.
    pub(crate) fn greeting() -> Answer {
        let flags = wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES;
        let raw = [&b"NBDMAGICIHAVEOPT"[..], &flags.to_be_bytes()].concat();
        Answer { option: 0, raw, replies: Vec::new(), end: End::GoesOn }
    }

    /// Clear-text bytes followed STARTTLS.
    pub(crate) fn clear_behind_start_tls() -> End {
        End::Closes(Ending::ClearBehindStartTls)
    }

    fn done(option: u32, mut replies: Vec<(u32, Vec<u8>)>) -> Answer {
        replies.push((reply::ACK, Vec::new()));
        Answer { option, raw: Vec::new(), replies, end: End::GoesOn }
    }

    fn error(option: u32, kind: u32) -> Answer {
        Answer { option, raw: Vec::new(), replies: vec![(kind, Vec::new())], end: End::GoesOn }
    }

    fn closes(option: u32, why: Ending) -> Answer {
        Answer { option, raw: Vec::new(), replies: Vec::new(), end: End::Closes(why) }
    }

    /// The answer instead of this one if the driver refuses the client.
    pub(crate) fn refused(&self) -> Answer {
        match self.option {
            option::EXPORT_NAME => Answer::closes(self.option, Ending::Refused),
            option => Answer::error(option, reply::ERR_POLICY),
        }
    }

    /// Checks that `sent` begins with this answer. Returns the remaining bytes.
    pub(crate) fn compare<'a>(&self, sent: &'a [u8]) -> Result<&'a [u8], String> {
        let mut rest = sent.strip_prefix(&self.raw[..]).ok_or("other bytes were sent")?;
        let mut replies = Vec::new();
        for _ in &self.replies {
            let (kind, data, after) = option_reply(self.option, rest)?;
            replies.push((kind, if kind >> 31 == 1 { Vec::new() } else { data.to_vec() }));
            rest = after;
        }
        let mut expected = self.replies.clone();
        let last = replies.len().saturating_sub(1);
        replies[..last].sort();
        expected[..last].sort();
        if replies == expected { Ok(rest) } else { Err(format!("these replies were sent: {replies:?}")) }
    }
}

/// Parses the option reply at the beginning of `bytes`: kind, data, remaining bytes.
fn option_reply(option: u32, bytes: &[u8]) -> Result<(u32, &[u8], &[u8]), String> {
    let (header, rest) = bytes.split_at_checked(20).ok_or("a reply is missing")?;
    let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    if header[..8] != wire::OPTION_REPLY_MAGIC.to_be_bytes() || number(8) != option {
        return Err(format!("{header:?} is no reply to option {option}"));
    }
    let (data, after) = rest.split_at_checked(number(16) as usize).ok_or("a reply is cut off")?;
    Ok((number(12), data, after))
}
