//! The fixed newstyle handshake: bytes in, bytes out.
//!
//! ```text
//!   greeting ─► client flags ─► option, option, … ─► EXPORT_NAME or GO ─► transmission
//!                                 │      ▲
//!                            STARTTLS    │ everything negotiated before is forgotten
//!                                 └─ TLS ┘
//! ```
//!
//! The caller runs TLS: after [`Outcome::StartTls`] it sends the outgoing bytes in plaintext, performs the TLS
//! handshake and calls [`Handshake::tls_started`]. Plaintext bytes after STARTTLS end the handshake: otherwise an
//! attacker in the path could inject options into the encrypted session.
//!
//! [`Outcome::Transmission`] can still be refused until its answer is sent: see [`Handshake::refuse`].

mod exports;
mod options;
#[cfg(test)]
mod tests;

pub use exports::{Export, Exports};

use self::options::{parse_info, parse_queries};
use super::wire::{self, info, option, reply};
use super::{Claim, Form, claim};

/// Bytes of an option header: magic, option, length.
const OPTION_HEADER_BYTES: usize = 16;
/// The longest option data that is parsed; longer data is discarded and answered with ERR_TOO_BIG. Four strings of the
/// maximum length, as in nbdkit. Limits the memory of a handshake.
const OPTION_BYTES_MAX: usize = 4 * wire::STRING_BYTES_MAX;
/// Longer than any reasonable option: to discard it would cost the server time at no cost for the client.
const OPTION_BYTES_ABSURD: usize = 32 << 20;
/// With this many outgoing bytes, further options wait until they are sent. Limits the memory of a client that sends
/// options and receives no answers.
const OUTGOING_BYTES_PAUSE: usize = 16 << 10;
/// The longest answer to one option: the names of about ten thousand volumes.
const OUTGOING_BYTES_MAX: usize = 4 << 20;
/// Options before transmission: a client that sends more is in a loop.
const OPTIONS_MAX: u32 = 1024;

/// The contexts that are offered, with their numbers.
const CONTEXTS: [(&str, u32); 2] = [(wire::BASE_ALLOCATION, wire::BASE_ALLOCATION_ID), (wire::LOAD, wire::LOAD_ID)];

/// The result of the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Session {
    /// The form of requests and replies.
    pub form: Form,
    /// `base:allocation` was selected.
    pub base_allocation: bool,
    /// `aerogel:load` was selected.
    pub load: bool,
    /// Requests that change data are answered with EPERM.
    pub read_only: bool,
    /// The epoch of a session that demotes: see [`wire::DEMOTE`].
    pub demotes: Option<u64>,
    /// The client numbers its requests: their order is in the upper bits of the cookies ([`super::ORDER_SHIFT`]). Only
    /// clients with a session of their own do.
    pub numbers: bool,
}

/// The TLS setting of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tls {
    /// No TLS: STARTTLS is refused.
    #[default]
    Off,
    /// The client may upgrade to TLS.
    On,
    /// Before TLS, every option except STARTTLS and ABORT is refused.
    Require,
}

/// Why a handshake ended without transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The client sent ABORT.
    Abort,
    /// The client uses the oldstyle protocol.
    Oldstyle,
    /// Unknown client flags.
    UnknownFlags,
    /// Bytes that are no option.
    Garbage,
    /// Too many or too long options or answers.
    Excess,
    /// EXPORT_NAME named an unknown volume, or was refused: the protocol has no error reply for it.
    Refused,
    /// EXPORT_NAME in plaintext although TLS is required.
    TlsRequired,
    /// Plaintext bytes after STARTTLS.
    ClearBehindStartTls,
}

/// The state of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// In progress.
    Negotiating,
    /// Send the outgoing bytes, perform the TLS handshake as the server, then call [`Handshake::tls_started`].
    StartTls,
    /// Done: transmission for `exports.volumes[export]` begins with the first byte that was not consumed.
    Transmission {
        /// Index into the exports of the same call.
        export: usize,
        /// The negotiated session.
        session: Session,
    },
    /// The client asks the driver something about `exports.volumes[export]`: see [`Handshake::question`]. Call
    /// [`Handshake::reply_to_question`].
    Asked {
        /// Index into the exports of the same call.
        export: usize,
    },
    /// Ended: send the outgoing bytes, then close.
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    ClientFlags,
    Option,
    /// Discards the rest of an option that is too long to be parsed.
    Skip {
        option: u32,
        left: usize,
    },
}

/// The handshake of one client: bytes in, bytes out.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    outcome: Outcome,
    outgoing: Vec<u8>,
    no_zeroes: bool,
    form: Form,
    /// The export for which contexts were selected, and those: [`CONTEXTS`].
    contexts_for: Option<(Vec<u8>, [bool; 2])>,
    /// The export and the session of it that the client claims.
    claimed: Option<(Vec<u8>, Claim)>,
    /// That session demotes.
    demotes: bool,
    options: u32,
    tls: Tls,
    /// The transport is TLS.
    encrypted: bool,
    ending: Option<Ending>,
    /// The option that began transmission, and the number of outgoing bytes before its answer.
    begun: Option<(u32, usize)>,
    /// See [`Handshake::take_unknown`].
    unknown: Option<Vec<u8>>,
    /// See [`Handshake::question`].
    question: Option<String>,
    /// See [`Handshake::explain_next`].
    explained: Option<String>,
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new()
    }
}

impl Handshake {
    /// A handshake without TLS; the greeting is outgoing already.
    pub fn new() -> Handshake {
        Handshake::with_tls(Tls::Off)
    }

    /// A handshake with this TLS setting; the greeting is outgoing already.
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
            form: Form::Simple,
            contexts_for: None,
            claimed: None,
            demotes: false,
            options: 0,
            tls,
            encrypted: false,
            ending: None,
            begun: None,
            unknown: None,
            question: None,
            explained: None,
        }
    }

    /// Consumes a prefix of `input` and returns its length. If it consumed bytes and `input` has more, call it again
    /// when the outgoing bytes are sent; if it consumed none, when more bytes have arrived. It may need a whole option
    /// at once (16 KiB and 16 bytes). An option that names an export is handled at the beginning of `input` only, where
    /// [`Handshake::next_name`] shows it: a client may send all its options at once.
    pub fn handle(&mut self, input: &[u8], exports: Exports<'_>) -> usize {
        let mut consumed = 0;
        while self.outcome == Outcome::Negotiating && self.outgoing.len() < OUTGOING_BYTES_PAUSE {
            if consumed > 0 && self.next_name(&input[consumed..]).is_some() {
                break;
            }
            match self.step(&input[consumed..], exports) {
                Some(bytes) => consumed += bytes,
                None => break,
            }
        }
        if self.outcome == Outcome::StartTls && consumed < input.len() {
            // These bytes came in plaintext. They are not part of the encrypted session, wherever they came from.
            self.outgoing.clear();
            self.close(Ending::ClearBehindStartTls);
        }
        consumed
    }

    /// Whether it is worth while to call `handle`. If not, the caller need not look up exports yet. Of an option that
    /// is too long, that is true for each [`OPTION_BYTES_MAX`] bytes: a client may send it byte by byte.
    pub fn is_enough(&self, input: &[u8]) -> bool {
        match self.state {
            State::ClientFlags => input.len() >= size_of::<u32>(),
            State::Skip { left, .. } => input.len() >= left.min(OPTION_BYTES_MAX),
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

    /// The export that the option at the beginning of `input` names, if all of it is there.
    pub fn next_name<'a>(&self, input: &'a [u8]) -> Option<&'a [u8]> {
        let header: &[u8; OPTION_HEADER_BYTES] = input.first_chunk().filter(|_| self.state == State::Option)?;
        let option = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        let len = u32::from_be_bytes([header[12], header[13], header[14], header[15]]) as usize;
        let data = input[OPTION_HEADER_BYTES..].get(..len).filter(|_| len <= OPTION_BYTES_MAX && !self.needs_tls())?;
        match option {
            option::EXPORT_NAME => Some(data),
            option::INFO | option::GO => parse_info(data).map(|(name, _)| name),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => parse_queries(data).map(|(name, _)| name),
            _ => None,
        }
    }

    /// Why the export that the next option names cannot be opened although it exists.
    pub fn explain_next(&mut self, why: String) {
        self.explained = Some(why);
    }

    /// The transport is TLS from now on: forgets everything that was negotiated in plaintext. Only after
    /// [`Outcome::StartTls`].
    pub fn tls_started(&mut self) {
        assert_eq!(self.outcome, Outcome::StartTls, "TLS starts when it was asked for");
        self.encrypted = true;
        if !planted!(AgreedInClearKept) {
            (self.form, self.contexts_for) = (Form::Simple, None);
            self.claimed = None;
        }
        self.outcome = Outcome::Negotiating;
    }

    /// Refuses the transmission that `handle` has just accepted, before its answer is sent. GO is answered with
    /// ERR_POLICY and `why`, and the client may continue; EXPORT_NAME ends the handshake.
    pub fn refuse(&mut self, why: &str) {
        self.refuse_as(reply::ERR_POLICY, why);
    }

    /// The same for a claim that continues a session after which another client was admitted: with ERR_INVALID.
    pub fn refuse_continuation(&mut self, why: &str) {
        self.refuse_as(reply::ERR_INVALID, why);
    }

    fn refuse_as(&mut self, kind: u32, why: &str) {
        let (option, start) = self.begun.take().expect("only what begins is refused");
        self.outgoing.truncate(start);
        self.outcome = Outcome::Negotiating;
        match option {
            option::EXPORT_NAME => self.close(Ending::Refused),
            _ => self.error(option, kind, why),
        }
    }

    /// The last unknown export name since the previous call that the client requested (INFO, GO or EXPORT_NAME).
    pub fn take_unknown(&mut self) -> Option<Vec<u8>> {
        self.unknown.take()
    }

    /// The session that the client claims of the export that it opens. The driver grants it, as [`Claim`] says, before
    /// it sends the answer that begins transmission, or refuses.
    pub fn claim(&self) -> Option<&Claim> {
        self.claimed.as_ref().map(|(_, claim)| claim)
    }

    /// What the client asks, while the outcome is [`Outcome::Asked`]: the rest of a query that begins with
    /// [`wire::QUESTION`].
    pub fn question(&self) -> Option<&str> {
        self.question.as_deref()
    }

    /// Answers the question, or refuses to, for this reason. Negotiation continues.
    pub fn reply_to_question(&mut self, answer: Result<&str, &str>) {
        assert!(self.question.take().is_some(), "only what was asked is answered");
        self.outcome = Outcome::Negotiating;
        let option = option::LIST_META_CONTEXT;
        match answer {
            Ok(answer) => {
                for piece in answer.as_bytes().chunks(wire::STRING_BYTES_MAX - wire::QUESTION.len()) {
                    let data = [&0u32.to_be_bytes()[..], wire::QUESTION.as_bytes(), piece].concat();
                    self.reply(option, reply::META_CONTEXT, &data);
                }
                self.reply(option, reply::ACK, &[]);
            }
            Err(why) => self.error(option, reply::ERR_POLICY, why),
        }
    }

    /// Why the handshake ended, if the outcome is [`Outcome::Closed`].
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    fn close(&mut self, why: Ending) {
        self.outcome = Outcome::Closed;
        self.ending = Some(why);
    }

    /// Takes the outgoing bytes.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// The state after the last call of `handle`.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// One step: the bytes consumed, or `None` if more must arrive first.
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
            State::Option => {
                let consumed = self.option(input, exports)?;
                self.explained = None;
                Some(consumed)
            }
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
            // Parsed when all of it has arrived.
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
            // EXPORT_NAME has no error reply: the connection is closed.
            option::EXPORT_NAME if self.needs_tls() => self.close(Ending::TlsRequired),
            _ if self.needs_tls() => {
                self.error(option, reply::ERR_TLS_REQD, "this listener serves over TLS only: start TLS first");
            }
            option::EXPORT_NAME if exports.shutting_down => self.close(Ending::Refused),
            option::EXPORT_NAME => self.export_name(data, exports),
            _ if exports.shutting_down => self.error(option, reply::ERR_SHUTDOWN, "the server is shutting down"),
            option::LIST => self.list(data, exports),
            option::INFO | option::GO => self.info(option, data, exports),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => self.set_form(option, data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data, exports),
            _ => self.error(option, reply::ERR_UNSUP, "the option is not supported"),
        }
    }

    fn set_form(&mut self, option: u32, data: &[u8]) {
        let (form, extended) = match option {
            option::EXTENDED_HEADERS => (Form::Extended, self.form == Form::Extended),
            _ => (Form::Structured, false),
        };
        if !data.is_empty() {
            self.error(option, reply::ERR_INVALID, "the option takes no data");
        } else if extended {
            self.error(option, reply::ERR_INVALID, "extended headers have been negotiated already");
        } else if self.form > form {
            self.error(option, reply::ERR_EXT_HEADER_REQD, "extended headers have been negotiated");
        } else {
            self.form = form;
            self.reply(option, reply::ACK, &[]);
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

    /// Begins transmission. The answer is the outgoing bytes from `start` on.
    fn begin(&mut self, option: u32, start: usize, export: usize, name: &[u8], read_only: bool) {
        self.begun = Some((option, start));
        self.claimed = self.claimed.take().filter(|(of, _)| of == name);
        let is_meant = |(of, _): &&(Vec<u8>, [bool; 2])| of == name || planted!(ContextOfAnotherExport);
        let [base_allocation, load] = self.contexts_for.as_ref().filter(is_meant).map_or([false; 2], |&(_, set)| set);
        let numbers = self.claimed.as_ref().is_some_and(|(_, claim)| !claim.shared);
        let demotes = self.claimed.as_ref().filter(|_| self.demotes && !read_only).map(|(_, claim)| claim.epoch);
        let session = Session { form: self.form, base_allocation, load, read_only, numbers, demotes };
        self.outcome = Outcome::Transmission { export, session };
    }

    fn export_name(&mut self, name: &[u8], exports: Exports<'_>) {
        let Ok(at) = exports.find(name) else {
            self.unknown = Some(name.to_vec());
            return self.close(Ending::Refused);
        };
        let (export, start) = (&exports.volumes[at], self.outgoing.len());
        self.outgoing.extend(export.size.to_be_bytes());
        self.outgoing.extend(export.flags(self.form.is_structured()).to_be_bytes());
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
            if self.outcome == Outcome::Closed {
                // It has too much to send already.
                return;
            }
        }
        self.reply(option::LIST, reply::ACK, &[]);
    }

    fn info(&mut self, option: u32, data: &[u8], exports: Exports<'_>) {
        let Some((name, requests)) = parse_info(data) else {
            return self.error(option, reply::ERR_INVALID, "the option's lengths do not add up");
        };
        let at = match exports.find(name) {
            Ok(at) => at,
            Err(why) => {
                self.unknown = Some(name.to_vec());
                return match self.explained.take() {
                    Some(why) => self.error(option, reply::ERR_POLICY, &why),
                    None => self.error(option, reply::ERR_UNKNOWN, &why),
                };
            }
        };
        let (export, start) = (&exports.volumes[at], self.outgoing.len());
        let mut data = info::EXPORT.to_be_bytes().to_vec();
        data.extend(export.size.to_be_bytes());
        data.extend(export.flags(self.form.is_structured()).to_be_bytes());
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
        // Sent even if not requested: clients may ignore it.
        let mut data = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for bytes in [1, wire::PREFERRED_BLOCK_BYTES, self.form.payload_bytes_max()] {
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
            // The earlier selection is void, even if this option fails.
            (self.contexts_for, self.claimed) = (None, None);
        }
        let Some((name, queries)) = parse_queries(data) else {
            return self.error(option, reply::ERR_INVALID, "the option's lengths do not add up");
        };
        if !self.form.is_structured() {
            return self.error(option, reply::ERR_INVALID, "structured replies come first");
        }
        let at = match exports.find(name) {
            Ok(at) => at,
            Err(why) => match self.explained.take() {
                Some(why) => return self.error(option, reply::ERR_POLICY, &why),
                None => return self.error(option, reply::ERR_UNKNOWN, &why),
            },
        };
        let export = &exports.volumes[at];
        let is_question = |query: &&[u8]| query.starts_with(wire::QUESTION.as_bytes());
        if let (false, true, Some(query)) = (set, export.identity.is_some(), queries.iter().find(|it| is_question(it)))
            && let Ok(question) = std::str::from_utf8(&query[wire::QUESTION.len()..])
        {
            self.question = Some(question.to_owned());
            self.outcome = Outcome::Asked { export: at };
            return;
        }
        let all = !set && queries.is_empty();
        let selected = CONTEXTS.map(|(context, id)| {
            // To list, the name of a namespace is enough.
            let is_of = |query: &[u8]| query.ends_with(b":") && context.as_bytes().starts_with(query);
            let is_wanted = |query: &&[u8]| *query == context.as_bytes() || !set && is_of(query);
            let is_selected = all || queries.iter().any(is_wanted);
            if is_selected {
                let id: u32 = if set { id } else { 0 };
                self.reply(option, reply::META_CONTEXT, &[&id.to_be_bytes()[..], context.as_bytes()].concat());
            }
            is_selected
        });
        if set {
            self.contexts_for = Some((name.to_vec(), selected));
        }
        if let (true, Some(volume)) = (set, export.identity)
            && let Some(claim) = queries.iter().find_map(|query| Claim::parse(query))
        {
            let data = [&wire::SESSION_ID.to_be_bytes()[..], claim::context(volume).as_bytes()].concat();
            self.reply(option, reply::META_CONTEXT, &data);
            if let Some(lease_ms) = export.lease_ms.filter(|_| claim.leased) {
                let data = [&wire::LEASE_ID.to_be_bytes()[..], claim::lease_context(lease_ms).as_bytes()].concat();
                self.reply(option, reply::META_CONTEXT, &data);
            }
            // Another client's changes would not be known in time.
            let wants = queries.iter().any(|query| *query == wire::DEMOTE.as_bytes());
            self.demotes = wants && !claim.shared && !export.read_only && self.form == Form::Extended;
            if self.demotes {
                let data = [&wire::DEMOTE_ID.to_be_bytes()[..], wire::DEMOTE.as_bytes()].concat();
                self.reply(option, reply::META_CONTEXT, &data);
            }
            self.claimed = Some((name.to_vec(), claim));
        }
        self.reply(option, reply::ACK, &[]);
    }
}
