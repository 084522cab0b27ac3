//! The handshake: fixed newstyle, bytes in, bytes out.
//!
//! ```text
//!   greeting ─► client flags ─► option, option, … ─► EXPORT_NAME or GO ─► transmission
//!                                 │      ▲
//!                            STARTTLS    │ everything negotiated so far is forgotten
//!                                 └─ TLS ┘
//! ```
//!
//! The caller runs TLS: after [`Outcome::StartTls`] it sends what is outgoing in clear, performs the TLS handshake and
//! calls [`Handshake::tls_started`]. Bytes that the client sent in clear behind STARTTLS end the handshake: otherwise
//! an attacker in the path could prepend options to the encrypted session.
//!
//! [`Outcome::Transmission`] can still be refused, as long as its answer was not sent: see [`Handshake::refuse`].

use super::wire::{self, export_flag, info, option, reply};
use crate::event::Session;

/// Bytes of an option's header: magic, option, length.
const OPTION_HEADER_BYTES: usize = 16;
/// The longest option data that is looked at; longer ones are read past and answered with ERR_TOO_BIG. Four strings of
/// the longest kind, as in nbdkit: it bounds the memory of a handshake.
const OPTION_BYTES_MAX: usize = 4 * wire::STRING_BYTES_MAX;
/// Longer than any sane option: reading past it would let a client keep us busy for free.
const OPTION_BYTES_ABSURD: usize = 32 << 20;
/// With so many bytes to send, further options wait until they are sent: it bounds the memory of a client that sends
/// options and reads no answers.
const OUTGOING_BYTES_PAUSE: usize = 16 << 10;
/// The longest answer to one option: the names of some ten thousand volumes.
const OUTGOING_BYTES_MAX: usize = 4 << 20;
/// Options before a session begins; more is not a client but a loop.
const OPTIONS_MAX: u32 = 1024;

/// A volume as the handshake offers it.
#[derive(Clone, Debug, Default)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Whether the disk's profile says that it has heads.
    pub rotational: bool,
    /// For people.
    pub description: String,
    /// The client may read the volume and not change it.
    pub read_only: bool,
}

impl Export {
    fn flags(&self, structured: bool) -> u16 {
        use export_flag::*;
        let mut flags = HAS_FLAGS | SEND_FLUSH | CAN_MULTI_CONN | SEND_CACHE;
        if self.read_only {
            flags |= READ_ONLY;
        } else {
            // What cannot be fast is refused at once: that is worth announcing on every export.
            flags |= SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO;
        }
        if structured {
            flags |= SEND_DF;
        }
        if self.rotational {
            flags |= ROTATIONAL;
        }
        flags
    }
}

/// What can be opened at this moment.
#[derive(Clone, Copy, Debug)]
pub struct Exports<'a> {
    /// All volumes.
    pub volumes: &'a [Export],
    /// No new sessions: options are answered with ERR_SHUTDOWN.
    pub shutting_down: bool,
}

impl Exports<'_> {
    /// The volume of this name; the empty name is the only volume there is.
    fn find(&self, name: &[u8]) -> Result<usize, String> {
        match (name, self.volumes) {
            (b"", [_]) => Ok(0),
            (b"", []) => Err("there is no volume".to_owned()),
            (b"", _) => Err("there are several volumes: name one".to_owned()),
            (name, volumes) => volumes
                .iter()
                .position(|volume| volume.name.as_bytes() == name)
                .or((planted!(UnknownNameOpensAnother) && !volumes.is_empty()).then_some(0))
                .ok_or_else(|| format!("no volume '{}'", String::from_utf8_lossy(name))),
        }
    }
}

/// What the listener demands of the transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tls {
    /// No TLS: STARTTLS is refused.
    #[default]
    Off,
    /// The client may upgrade to TLS.
    On,
    /// Before TLS, everything but STARTTLS and ABORT is refused.
    Require,
}

/// Why a handshake ended without a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The client said ABORT.
    Abort,
    /// The client speaks the old style of the protocol.
    Oldstyle,
    /// Client flags that do not exist.
    UnknownFlags,
    /// Bytes that are no option.
    Garbage,
    /// Too many or too long options or answers.
    Excess,
    /// EXPORT_NAME named no volume, or one that is refused: the protocol has no other answer.
    Refused,
    /// EXPORT_NAME in clear where TLS is required.
    TlsRequired,
    /// Bytes in clear behind STARTTLS.
    ClearBehindStartTls,
}

/// How a handshake stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Goes on.
    Negotiating,
    /// Send what is outgoing, perform the TLS handshake as the server, then call [`Handshake::tls_started`].
    StartTls,
    /// Over: transmission of `exports.volumes[export]` begins with the first byte not consumed.
    Transmission {
        /// Index into the exports of the same call.
        export: usize,
        /// What was agreed on.
        session: Session,
    },
    /// Over: send what is outgoing, then close.
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    ClientFlags,
    Option,
    /// The rest of an option that is too long to be looked at.
    Skip {
        option: u32,
        left: usize,
    },
}

/// One client's handshake: bytes in, bytes out.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    outcome: Outcome,
    outgoing: Vec<u8>,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was selected.
    context_for: Option<Vec<u8>>,
    options: u32,
    tls: Tls,
    /// The transport is TLS.
    encrypted: bool,
    ending: Option<Ending>,
    /// The option that began transmission, and the bytes that were outgoing before its answer.
    begun: Option<(u32, usize)>,
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new()
    }
}

impl Handshake {
    /// A new one, without TLS; the greeting is already outgoing.
    pub fn new() -> Handshake {
        Handshake::with_tls(Tls::Off)
    }

    /// A new one; the greeting is already outgoing.
    pub fn with_tls(tls: Tls) -> Handshake {
        let mut outgoing = Vec::with_capacity(256);
        outgoing.extend(wire::MAGIC.to_be_bytes());
        outgoing.extend(wire::IHAVEOPT.to_be_bytes());
        outgoing.extend((wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES).to_be_bytes());
        Handshake {
            state: State::ClientFlags,
            outcome: Outcome::Negotiating,
            outgoing,
            no_zeroes: false,
            structured: false,
            context_for: None,
            options: 0,
            tls,
            encrypted: false,
            ending: None,
            begun: None,
        }
    }

    /// Consumes a prefix of `input` and says how many bytes. If it consumed some and `input` has more, call it again
    /// once the outgoing bytes are sent; if it consumed none, once more bytes have come. May need as many bytes as an
    /// option can have (16 KiB and 16) at once.
    pub fn handle(&mut self, input: &[u8], exports: Exports<'_>) -> usize {
        let mut consumed = 0;
        while self.outcome == Outcome::Negotiating && self.outgoing.len() < OUTGOING_BYTES_PAUSE {
            match self.step(&input[consumed..], exports) {
                Some(bytes) => consumed += bytes,
                None => break,
            }
        }
        if self.outcome == Outcome::StartTls && consumed < input.len() {
            // These bytes came in clear. They are not part of the encrypted session, whatever their origin.
            self.outgoing.clear();
            self.close(Ending::ClearBehindStartTls);
        }
        consumed
    }

    /// Whether `input` is enough for `handle` to consume some of it. Before that, exports need not be looked up.
    pub fn is_enough(&self, input: &[u8]) -> bool {
        match self.state {
            State::ClientFlags => input.len() >= size_of::<u32>(),
            State::Skip { .. } => !input.is_empty(),
            State::Option => match input.first_chunk::<OPTION_HEADER_BYTES>() {
                None => false,
                Some(header) => {
                    let len = u32::from_be_bytes([header[12], header[13], header[14], header[15]]) as usize;
                    header[..8] != wire::IHAVEOPT.to_be_bytes()
                        || len > OPTION_BYTES_MAX
                        || input.len() >= OPTION_HEADER_BYTES + len
                }
            },
        }
    }

    /// The transport is TLS from here on: forgets everything that was negotiated in clear. Only after
    /// [`Outcome::StartTls`].
    pub fn tls_started(&mut self) {
        assert_eq!(self.outcome, Outcome::StartTls, "TLS starts when it was asked for");
        self.encrypted = true;
        if !planted!(AgreedInClearKept) {
            (self.structured, self.context_for) = (false, None);
        }
        self.outcome = Outcome::Negotiating;
    }

    /// Refuses the transmission that `handle` has just agreed to, before its answer is sent: GO is answered with
    /// ERR_POLICY and `why`, and the client may go on; EXPORT_NAME ends the handshake.
    pub fn refuse(&mut self, why: &str) {
        let (option, start) = self.begun.take().expect("only what begins is refused");
        self.outgoing.truncate(start);
        self.outcome = Outcome::Negotiating;
        match option {
            option::EXPORT_NAME => self.close(Ending::Refused),
            _ => self.error(option, reply::ERR_POLICY, why),
        }
    }

    /// Why it ended, if the outcome is [`Outcome::Closed`].
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    fn close(&mut self, why: Ending) {
        self.outcome = Outcome::Closed;
        self.ending = Some(why);
    }

    /// Takes what is to be sent.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// How it stands after the last call of `handle`.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// One step: bytes consumed, or `None` if more must come first.
    fn step(&mut self, input: &[u8], exports: Exports<'_>) -> Option<usize> {
        match self.state {
            State::ClientFlags => {
                let flags = u32::from_be_bytes(*input.first_chunk()?);
                let known = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
                if flags & !known != 0 {
                    self.close(Ending::UnknownFlags);
                } else if flags & u32::from(wire::FLAG_FIXED_NEWSTYLE) == 0 {
                    self.close(Ending::Oldstyle);
                }
                self.no_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) != 0;
                self.state = State::Option;
                Some(4)
            }
            State::Skip { option, left } => {
                let bytes = left.min(input.len());
                if bytes < left {
                    self.state = State::Skip { option, left: left - bytes };
                    return (bytes > 0).then_some(bytes);
                }
                self.state = State::Option;
                self.error(option, reply::ERR_TOO_BIG, "the option is too long");
                Some(bytes)
            }
            State::Option => self.option(input, exports),
        }
    }

    fn option(&mut self, input: &[u8], exports: Exports<'_>) -> Option<usize> {
        let header: &[u8; OPTION_HEADER_BYTES] = input.first_chunk()?;
        let magic = u64::from_be_bytes(*header.first_chunk()?);
        let option = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        let len = u32::from_be_bytes([header[12], header[13], header[14], header[15]]) as usize;
        self.options += 1;
        if magic != wire::IHAVEOPT {
            self.close(Ending::Garbage);
            return Some(OPTION_HEADER_BYTES);
        }
        if len > OPTION_BYTES_ABSURD || self.options > OPTIONS_MAX {
            self.close(Ending::Excess);
            return Some(OPTION_HEADER_BYTES);
        }
        if len > OPTION_BYTES_MAX {
            if option == option::EXPORT_NAME {
                self.close(Ending::Excess);
            }
            self.state = State::Skip { option, left: len };
            return Some(OPTION_HEADER_BYTES);
        }
        let Some(data) = input[OPTION_HEADER_BYTES..].get(..len) else {
            // Looked at again, whole, when the rest has come.
            self.options -= 1;
            return None;
        };
        self.answer(option, data, exports);
        Some(OPTION_HEADER_BYTES + len)
    }

    fn answer(&mut self, option: u32, data: &[u8], exports: Exports<'_>) {
        match option {
            option::ABORT => {
                self.reply(option, reply::ACK, &[]);
                self.close(Ending::Abort);
            }
            option::STARTTLS => self.start_tls(data),
            // EXPORT_NAME has no way to say no but to hang up.
            option::EXPORT_NAME if self.needs_tls() => self.close(Ending::TlsRequired),
            _ if self.needs_tls() => {
                self.error(option, reply::ERR_TLS_REQD, "this listener serves over TLS only: start TLS first");
            }
            option::EXPORT_NAME if exports.shutting_down => self.close(Ending::Refused),
            option::EXPORT_NAME => self.export_name(data, exports),
            _ if exports.shutting_down => self.error(option, reply::ERR_SHUTDOWN, "the server is shutting down"),
            option::LIST => self.list(data, exports),
            option::INFO | option::GO => self.info(option, data, exports),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(option, reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY => self.error(option, reply::ERR_INVALID, "the option takes no data"),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data, exports),
            _ => self.error(option, reply::ERR_UNSUP, "the option is not supported"),
        }
    }

    fn needs_tls(&self) -> bool {
        self.tls == Tls::Require && !self.encrypted
    }

    fn start_tls(&mut self, data: &[u8]) {
        let option = option::STARTTLS;
        match self.tls {
            Tls::Off => self.error(option, reply::ERR_POLICY, "TLS is off at this listener"),
            _ if !data.is_empty() => self.error(option, reply::ERR_INVALID, "the option takes no data"),
            _ if self.encrypted => self.error(option, reply::ERR_INVALID, "TLS has been started already"),
            _ => {
                self.reply(option, reply::ACK, &[]);
                self.outcome = Outcome::StartTls;
            }
        }
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.outgoing.extend(wire::OPTION_REPLY_MAGIC.to_be_bytes());
        self.outgoing.extend(option.to_be_bytes());
        self.outgoing.extend(kind.to_be_bytes());
        self.outgoing.extend((data.len() as u32).to_be_bytes());
        self.outgoing.extend(data);
        if self.outgoing.len() > OUTGOING_BYTES_MAX {
            self.close(Ending::Excess);
        }
    }

    fn error(&mut self, option: u32, kind: u32, why: &str) {
        self.reply(option, kind, &why.as_bytes()[..why.len().min(wire::STRING_BYTES_MAX)]);
    }

    /// Transmission begins: its answer is what is outgoing beyond `start` bytes.
    fn begin(&mut self, option: u32, start: usize, export: usize, name: &[u8], read_only: bool) {
        self.begun = Some((option, start));
        let any = planted!(ContextOfAnotherExport) && self.context_for.is_some();
        let base_allocation = self.context_for.as_deref() == Some(name) || any;
        let session = Session { structured: self.structured, base_allocation, read_only };
        self.outcome = Outcome::Transmission { export, session };
    }

    fn export_name(&mut self, name: &[u8], exports: Exports<'_>) {
        let Ok(at) = exports.find(name) else {
            return self.close(Ending::Refused);
        };
        let (export, start) = (&exports.volumes[at], self.outgoing.len());
        self.outgoing.extend(export.size.to_be_bytes());
        self.outgoing.extend(export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            self.outgoing.extend([0; 124]);
        }
        self.begin(option::EXPORT_NAME, start, at, name, export.read_only);
    }

    fn list(&mut self, data: &[u8], exports: Exports<'_>) {
        if !data.is_empty() {
            return self.error(option::LIST, reply::ERR_INVALID, "the option takes no data");
        }
        for export in exports.volumes {
            let mut data = (export.name.len() as u32).to_be_bytes().to_vec();
            data.extend(export.name.as_bytes());
            data.extend(export.description.as_bytes());
            self.reply(option::LIST, reply::SERVER, &data);
        }
        self.reply(option::LIST, reply::ACK, &[]);
    }

    fn info(&mut self, option: u32, data: &[u8], exports: Exports<'_>) {
        let Some((name, requests)) = parse_info(data) else {
            return self.error(option, reply::ERR_INVALID, "the option's lengths do not add up");
        };
        let at = match exports.find(name) {
            Ok(at) => at,
            Err(why) => return self.error(option, reply::ERR_UNKNOWN, &why),
        };
        let (export, start) = (&exports.volumes[at], self.outgoing.len());
        let mut data = info::EXPORT.to_be_bytes().to_vec();
        data.extend(export.size.to_be_bytes());
        data.extend(export.flags(self.structured).to_be_bytes());
        self.reply(option, reply::INFO, &data);
        for request in requests {
            let mut data = request.to_be_bytes().to_vec();
            match request {
                info::NAME => data.extend(export.name.as_bytes()),
                info::DESCRIPTION if !export.description.is_empty() => data.extend(export.description.as_bytes()),
                _ => continue,
            }
            self.reply(option, reply::INFO, &data);
        }
        // Sent whether asked for or not: a client that does not look at it does no worse.
        let mut data = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for bytes in [1, wire::PREFERRED_BLOCK_BYTES, wire::PAYLOAD_BYTES_MAX] {
            data.extend(bytes.to_be_bytes());
        }
        self.reply(option, reply::INFO, &data);
        self.reply(option, reply::ACK, &[]);
        if option == option::GO {
            self.begin(option, start, at, name, export.read_only);
        }
    }

    fn meta_context(&mut self, option: u32, data: &[u8], exports: Exports<'_>) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            // Whatever was selected before is no longer, however this ends.
            self.context_for = None;
        }
        let Some((name, queries)) = parse_queries(data) else {
            return self.error(option, reply::ERR_INVALID, "the option's lengths do not add up");
        };
        if !self.structured {
            return self.error(option, reply::ERR_INVALID, "structured replies come first");
        }
        if let Err(why) = exports.find(name) {
            return self.error(option, reply::ERR_UNKNOWN, &why);
        }
        let wanted = |query: &&[u8]| *query == wire::BASE_ALLOCATION.as_bytes() || !set && *query == b"base:";
        let all = !set && queries.is_empty();
        if all || queries.iter().any(wanted) {
            let mut data = if set { wire::BASE_ALLOCATION_ID } else { 0 }.to_be_bytes().to_vec();
            data.extend(wire::BASE_ALLOCATION.as_bytes());
            self.reply(option, reply::META_CONTEXT, &data);
            if set {
                self.context_for = Some(name.to_vec());
            }
        }
        self.reply(option, reply::ACK, &[]);
    }
}

/// Splits a counted string off.
fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32::from_be_bytes(*data.first_chunk()?) as usize;
    if len > wire::STRING_BYTES_MAX {
        return None;
    }
    data[4..].split_at_checked(len)
}

/// The data of INFO and GO: name, requests.
fn parse_info(data: &[u8]) -> Option<(&[u8], impl Iterator<Item = u16> + '_)> {
    let (name, rest) = string(data)?;
    let count = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
    let requests = &rest[2..];
    let even = requests.len() == count * 2;
    even.then(|| (name, requests.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]]))))
}

/// The data of LIST and SET_META_CONTEXT: name, queries.
fn parse_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = string(data)?;
    let count = u32::from_be_bytes(*rest.first_chunk()?) as usize;
    let mut rest = &rest[4..];
    let mut queries = Vec::new();
    // Each takes four bytes at least, so the count cannot make us reserve more than what was sent.
    for _ in 0..count {
        let (query, after) = string(rest)?;
        queries.push(query);
        rest = after;
    }
    rest.is_empty().then_some((name, queries))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exports(names: &[&str]) -> Vec<Export> {
        let export = |name: &&str| Export { name: (*name).to_owned(), size: 1 << 20, ..Export::default() };
        names.iter().map(export).collect()
    }

    fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = wire::IHAVEOPT.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn named(name: &str, rest: &[u8]) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend(rest);
        data
    }

    fn started() -> Handshake {
        let mut handshake = Handshake::new();
        let none = Exports { volumes: &[], shutting_down: false };
        assert_eq!(handshake.handle(&3u32.to_be_bytes(), none), 4);
        assert_eq!(handshake.take_outgoing().len(), 18);
        handshake
    }

    /// A handshake at a listener with TLS, after the client flags.
    fn started_with(tls: Tls) -> Handshake {
        let mut handshake = Handshake::with_tls(tls);
        handshake.handle(&3u32.to_be_bytes(), Exports { volumes: &[], shutting_down: false });
        handshake.take_outgoing();
        handshake
    }

    fn go(name: &str) -> Vec<u8> {
        option_bytes(option::GO, &named(name, &0u16.to_be_bytes()))
    }

    fn reply_kinds(bytes: &[u8]) -> Vec<u32> {
        let mut rest = bytes;
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            kinds.push(u32::from_be_bytes(rest[12..16].try_into().unwrap()));
            let len = u32::from_be_bytes(rest[16..20].try_into().unwrap()) as usize;
            rest = &rest[20 + len..];
        }
        kinds
    }

    #[test]
    fn go_byte_by_byte() {
        let volumes = exports(&["a", "db"]);
        let exports = Exports { volumes: &volumes, shutting_down: false };
        let mut handshake = started();
        let mut bytes = option_bytes(option::STRUCTURED_REPLY, &[]);
        let query = [&1u32.to_be_bytes()[..], &named("base:allocation", &[])].concat();
        bytes.extend(option_bytes(option::SET_META_CONTEXT, &named("db", &query)));
        bytes.extend(option_bytes(option::GO, &named("db", &0u16.to_be_bytes())));
        let (mut pending, mut at) = (Vec::new(), 0);
        while handshake.outcome() == Outcome::Negotiating {
            pending.push(bytes[at]);
            at += 1;
            let consumed = handshake.handle(&pending, exports);
            pending.drain(..consumed);
        }
        assert_eq!((at, pending.len()), (bytes.len(), 0));
        let session = Session { structured: true, base_allocation: true, read_only: false };
        assert_eq!(handshake.outcome(), Outcome::Transmission { export: 1, session });
        let kinds = reply_kinds(&handshake.take_outgoing());
        use reply::*;
        assert_eq!(kinds, [ACK, META_CONTEXT, ACK, INFO, INFO, ACK]);
    }

    #[test]
    fn a_read_only_export_says_so_and_offers_no_writes() {
        let volumes = [Export { read_only: true, ..exports(&["a"]).remove(0) }];
        let mut handshake = started();
        handshake.handle(&option_bytes(option::EXPORT_NAME, b"a"), Exports { volumes: &volumes, shutting_down: false });
        let Outcome::Transmission { session, .. } = handshake.outcome() else { panic!("{:?}", handshake.outcome()) };
        assert!(session.read_only);
        let sent = handshake.take_outgoing();
        let flags = u16::from_be_bytes([sent[8], sent[9]]);
        use export_flag::*;
        assert_eq!(flags, HAS_FLAGS | READ_ONLY | SEND_FLUSH | CAN_MULTI_CONN | SEND_CACHE);
    }

    #[test]
    fn the_empty_name_is_the_only_volume() {
        for (names, expected) in [(&["a"][..], true), (&["a", "b"], false), (&[], false)] {
            let volumes = exports(names);
            let mut handshake = started();
            let go = option_bytes(option::GO, &named("", &0u16.to_be_bytes()));
            handshake.handle(&go, Exports { volumes: &volumes, shutting_down: false });
            assert_eq!(matches!(handshake.outcome(), Outcome::Transmission { .. }), expected);
        }
    }

    #[test]
    fn what_is_unknown_too_long_or_late_is_refused_and_the_handshake_goes_on() {
        let volumes = exports(&["a"]);
        let open = Exports { volumes: &volumes, shutting_down: false };
        let mut handshake = started();
        let mut bytes = option_bytes(99, b"x");
        bytes.extend(option_bytes(option::LIST, b"x"));
        bytes.extend(option_bytes(option::INFO, &named("b", &0u16.to_be_bytes())));
        bytes.extend(option_bytes(option::GO, &named("a", &9u16.to_be_bytes())));
        bytes.extend(option_bytes(option::INFO, &vec![0; OPTION_BYTES_MAX + 1]));
        assert_eq!(handshake.handle(&bytes, open), bytes.len());
        assert_eq!(handshake.outcome(), Outcome::Negotiating);
        let closing = Exports { shutting_down: true, ..open };
        let go = option_bytes(option::GO, &named("a", &0u16.to_be_bytes()));
        handshake.handle(&go, closing);
        use reply::*;
        let kinds = reply_kinds(&handshake.take_outgoing());
        assert_eq!(kinds, [ERR_UNSUP, ERR_INVALID, ERR_UNKNOWN, ERR_INVALID, ERR_TOO_BIG, ERR_SHUTDOWN]);
        handshake.handle(&option_bytes(option::ABORT, &[]), closing);
        assert_eq!(handshake.outcome(), Outcome::Closed);
    }
    #[test]
    fn starttls_forgets_what_was_negotiated_in_clear() {
        let volumes = exports(&["a"]);
        let exports = Exports { volumes: &volumes, shutting_down: false };
        let mut handshake = started_with(Tls::On);
        let query = [&1u32.to_be_bytes()[..], &named("base:allocation", &[])].concat();
        handshake.handle(&option_bytes(option::STRUCTURED_REPLY, &[]), exports);
        handshake.handle(&option_bytes(option::SET_META_CONTEXT, &named("a", &query)), exports);
        handshake.handle(&option_bytes(option::STARTTLS, &[]), exports);
        assert_eq!(handshake.outcome(), Outcome::StartTls);
        handshake.take_outgoing();
        handshake.tls_started();
        // A second one is refused, and SET_META_CONTEXT needs structured replies anew.
        handshake.handle(&option_bytes(option::STARTTLS, &[]), exports);
        handshake.handle(&option_bytes(option::SET_META_CONTEXT, &named("a", &query)), exports);
        assert_eq!(reply_kinds(&handshake.take_outgoing()), [reply::ERR_INVALID; 2]);
        handshake.handle(&go("a"), exports);
        assert_eq!(handshake.outcome(), Outcome::Transmission { export: 0, session: Session::default() });
    }

    #[test]
    fn bytes_in_clear_behind_starttls_end_the_handshake() {
        let volumes = exports(&["a"]);
        let exports = Exports { volumes: &volumes, shutting_down: false };
        for behind in [go("a"), vec![0], b"\x16\x03\x01".to_vec()] {
            for tls in [Tls::On, Tls::Require] {
                let mut handshake = started_with(tls);
                let bytes = [option_bytes(option::STARTTLS, &[]), behind.clone()].concat();
                handshake.handle(&bytes, exports);
                assert_eq!(handshake.outcome(), Outcome::Closed);
                assert_eq!(handshake.ending(), Some(Ending::ClearBehindStartTls));
                assert_eq!(handshake.take_outgoing(), [], "not even the acknowledgement");
            }
        }
    }

    #[test]
    fn where_tls_is_required_nothing_else_is_answered_in_clear() {
        let volumes = exports(&["a"]);
        let open = Exports { volumes: &volumes, shutting_down: false };
        for exports in [open, Exports { shutting_down: true, ..open }] {
            let mut handshake = started_with(Tls::Require);
            for (option, data) in [
                (option::LIST, vec![]),
                (option::INFO, named("a", &0u16.to_be_bytes())),
                (option::GO, named("a", &0u16.to_be_bytes())),
                (option::STRUCTURED_REPLY, vec![]),
                (option::SET_META_CONTEXT, vec![]),
                (99, vec![]),
            ] {
                handshake.handle(&option_bytes(option, &data), exports);
                assert_eq!(reply_kinds(&handshake.take_outgoing()), [reply::ERR_TLS_REQD], "option {option}");
            }
            handshake.handle(&option_bytes(option::EXPORT_NAME, b"a"), exports);
            assert_eq!(handshake.ending(), Some(Ending::TlsRequired));
            assert_eq!(handshake.take_outgoing(), []);
        }
        let mut handshake = started_with(Tls::Require);
        handshake.handle(&option_bytes(option::ABORT, &[]), open);
        assert_eq!((handshake.outcome(), handshake.ending()), (Outcome::Closed, Some(Ending::Abort)));
    }

    #[test]
    fn where_tls_is_off_starttls_is_refused_by_policy() {
        let mut handshake = started();
        handshake.handle(&option_bytes(option::STARTTLS, &[]), Exports { volumes: &[], shutting_down: false });
        assert_eq!(reply_kinds(&handshake.take_outgoing()), [reply::ERR_POLICY]);
        assert_eq!(handshake.outcome(), Outcome::Negotiating);
    }

    #[test]
    fn a_refused_transmission_answers_go_with_the_reason_and_nothing_else() {
        let volumes = exports(&["a"]);
        let exports = Exports { volumes: &volumes, shutting_down: false };
        let mut handshake = started();
        handshake.handle(&[option_bytes(option::LIST, &[]), go("a")].concat(), exports);
        handshake.refuse("no more connections");
        let outgoing = handshake.take_outgoing();
        assert_eq!(reply_kinds(&outgoing), [reply::SERVER, reply::ACK, reply::ERR_POLICY]);
        assert!(outgoing.ends_with(b"no more connections"));
        handshake.handle(&go("a"), exports);
        assert!(matches!(handshake.outcome(), Outcome::Transmission { .. }), "the client may try again");

        let mut handshake = started();
        handshake.handle(&option_bytes(option::EXPORT_NAME, b"a"), exports);
        handshake.refuse("no more connections");
        assert_eq!((handshake.outcome(), handshake.ending()), (Outcome::Closed, Some(Ending::Refused)));
        assert_eq!(handshake.take_outgoing(), []);
    }

    #[test]
    fn oldstyle_clients_and_garbage_are_told_apart() {
        let none = Exports { volumes: &[], shutting_down: false };
        for (flags, ending) in [(0, Ending::Oldstyle), (2, Ending::Oldstyle), (1 << 9, Ending::UnknownFlags)] {
            let mut handshake = Handshake::new();
            handshake.handle(&u32::to_be_bytes(flags), none);
            assert_eq!((handshake.outcome(), handshake.ending()), (Outcome::Closed, Some(ending)));
        }
        let mut handshake = started();
        handshake.handle(&[b'G'; 16], none);
        assert_eq!(handshake.ending(), Some(Ending::Garbage));
    }

    #[test]
    fn answers_that_are_not_read_do_not_pile_up() {
        let volumes = exports(&["x".repeat(200).as_str(); 100]);
        let exports = Exports { volumes: &volumes, shutting_down: false };
        let mut handshake = started();
        let bytes = option_bytes(option::LIST, &[]).repeat(500);
        let (mut at, mut answered) = (0, 0);
        while at < bytes.len() {
            assert!(handshake.is_enough(&bytes[at..]));
            let consumed = handshake.handle(&bytes[at..], exports);
            assert!(consumed > 0);
            at += consumed;
            let outgoing = handshake.take_outgoing();
            assert!(outgoing.len() < 2 * OUTGOING_BYTES_PAUSE + 100 * 256, "{} bytes", outgoing.len());
            answered += reply_kinds(&outgoing).iter().filter(|kind| **kind == reply::ACK).count();
        }
        assert_eq!(answered, 500);
        assert!(!handshake.is_enough(&[]) && !handshake.is_enough(&bytes[..15]));
    }
}
