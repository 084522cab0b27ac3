//! The fixed newstyle handshake of a client: bytes in, bytes out. [`super::Handshake`] is the server's side.
//!
//! ```text
//!   greeting ─► STARTTLS ─► EXTENDED_HEADERS ─► STRUCTURED_REPLY ─► SET_META_CONTEXT ─► GO ─► transmission
//!               if wanted   if wanted           if the former was   if structured and   │
//!                                               refused             wanted              └─► refused: Unopened
//! ```
//!
//! One option is outstanding at a time. A server that knows an option less is used without it. The caller runs TLS:
//! when [`Opening::wants_tls`] it performs the TLS handshake and calls [`Opening::tls_started`].

use super::wire::{self, export_flag, info, option, reply};
use super::{Claim, Form, claim};

/// Bytes of the greeting: two magic numbers and flags.
const GREETING_BYTES: usize = 18;
/// Bytes of the header of an option reply.
const REPLY_HEADER_BYTES: usize = 20;
/// The longest accepted option reply: a name or a text of the maximum length, with room for other fields.
const REPLY_BYTES_MAX: usize = 2 * wire::STRING_BYTES_MAX;
/// The longest answer to a question.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Replies before transmission: a server that sends more does not come to an end.
const REPLIES_MAX: u32 = 1024;

/// What a client wants of a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// The name of the export.
    pub name: String,
    /// The form of requests and replies, if the server knows it.
    pub form: Form,
    /// Block status, if the server offers it.
    pub base_allocation: bool,
    /// The load of the export's disk, if the server offers it: one of ours does.
    pub load: bool,
    /// A session, if the server grants sessions: one of ours does.
    pub session: Option<Claim>,
    /// That session is to demote, if the server grants that: see [`wire::DEMOTE`].
    pub demote: bool,
    /// TLS, without which nothing else is negotiated.
    pub tls: bool,
    /// Only to be told of the export (INFO): it is not opened, and a session is not claimed.
    pub info: bool,
    /// Only to ask a server of ours something about the export: see [`wire::QUESTION`]. It is not opened.
    pub question: Option<String>,
}

/// An export that was opened. By default an empty one, with the smallest unit that the protocol has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Size, bytes.
    pub size: u64,
    /// Flags, as on the wire: [`export_flag`].
    pub flags: u16,
    /// The form of requests and replies.
    pub form: Form,
    /// The number of `base:allocation` in block status, if it was selected.
    pub base_allocation: Option<u32>,
    /// The same of `aerogel:load`.
    pub load: Option<u32>,
    /// The volume, if the server has granted the session.
    pub volume: Option<u128>,
    /// How long the session's lease is, ms, if it has one.
    pub lease_ms: Option<u64>,
    /// Whether the session demotes.
    pub demotes: bool,
    /// Offsets and lengths are multiples of this, bytes.
    pub block_bytes_min: u32,
    /// The longest payload, bytes.
    pub payload_bytes_max: u32,
}

impl Default for Opened {
    fn default() -> Self {
        Opened {
            size: 0,
            flags: export_flag::HAS_FLAGS,
            form: Form::Simple,
            base_allocation: None,
            load: None,
            volume: None,
            lease_ms: None,
            demotes: false,
            block_bytes_min: 1,
            payload_bytes_max: wire::PAYLOAD_BYTES_MAX,
        }
    }
}

impl Opened {
    /// Whether an export has this flag.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Why an export was not opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unopened {
    /// The peer is no NBD server, or one that speaks oldstyle only.
    #[error("no server that speaks the fixed newstyle of NBD is there")]
    NotNbd,
    /// The server does not have the export, or not for this client.
    #[error("the server has no export '{name}'{text}")]
    Unknown {
        /// The export.
        name: String,
        /// Its explanation, after a colon, or nothing.
        text: String,
    },
    /// The server refuses TLS although it was wanted.
    #[error("the server refuses TLS{0}")]
    NoTls(String),
    /// The server refuses, with this option reply and text.
    #[error("the server refuses to open '{name}' (reply {kind:#x}){text}")]
    Refused {
        /// The export.
        name: String,
        /// As on the wire.
        kind: u32,
        /// Its explanation, after a colon, or nothing.
        text: String,
    },
    /// The server's answer violates the protocol.
    #[error("the server's answer is no option reply: {0}")]
    Broken(&'static str),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Greeting,
    /// The replies to this option.
    Option(u32),
    /// The caller starts TLS.
    Tls,
    Opened,
}

/// The handshake of a client with one server.
#[derive(Debug)]
pub struct Opening {
    wanted: Wanted,
    state: State,
    outgoing: Vec<u8>,
    replies: u32,
    form: Form,
    context: Option<u32>,
    load: Option<u32>,
    volume: Option<u128>,
    lease_ms: Option<u64>,
    demotes: bool,
    /// Size and flags of the export.
    export: Option<(u64, u16)>,
    block_bytes_min: u32,
    payload_bytes_max: Option<u32>,
    answer: Vec<u8>,
}

impl Opening {
    /// A handshake. The server speaks first.
    pub fn new(wanted: Wanted) -> Opening {
        Opening {
            wanted,
            state: State::Greeting,
            outgoing: Vec::new(),
            replies: 0,
            form: Form::Simple,
            context: None,
            load: None,
            volume: None,
            lease_ms: None,
            demotes: false,
            export: None,
            block_bytes_min: 1,
            payload_bytes_max: None,
            answer: Vec::new(),
        }
    }

    /// A handshake that goes on where another one left off, with the same wishes: TLS has started.
    pub fn encrypted(wanted: Wanted) -> Opening {
        let mut opening = Opening { state: State::Tls, ..Opening::new(wanted) };
        opening.tls_started();
        opening
    }

    /// Consumes a prefix of `input` and returns its length. It needs a whole reply at once, 8 KiB at most. When the
    /// export is open, the remaining bytes are replies of the transmission phase.
    pub fn handle(&mut self, input: &[u8]) -> Result<usize, Unopened> {
        let mut consumed = 0;
        while matches!(self.state, State::Greeting | State::Option(_))
            && let Some(bytes) = self.step(&input[consumed..])?
        {
            consumed += bytes;
        }
        if self.state == State::Tls && consumed < input.len() {
            // They came in plaintext and are not part of the encrypted session.
            return Err(Unopened::Broken("bytes in plaintext after STARTTLS"));
        }
        Ok(consumed)
    }

    /// Takes the outgoing bytes.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// The export, once it is open, or described if only that was wanted.
    pub fn opened(&self) -> Option<Opened> {
        let (size, flags) = self.export.filter(|_| self.state == State::Opened)?;
        let most = self.form.payload_bytes_max();
        Some(Opened {
            size,
            flags,
            form: self.form,
            base_allocation: self.context,
            load: self.load,
            volume: self.volume,
            lease_ms: self.lease_ms,
            demotes: self.demotes && self.volume.is_some(),
            block_bytes_min: self.block_bytes_min,
            payload_bytes_max: self.payload_bytes_max.map_or(wire::PAYLOAD_BYTES_MAX, |bytes| bytes.min(most)),
        })
    }

    /// The answer to the question, once it is complete.
    pub fn answer(&self) -> Option<&[u8]> {
        (self.state == State::Opened && self.wanted.question.is_some()).then_some(&self.answer)
    }

    /// Whether the caller starts TLS now.
    pub fn wants_tls(&self) -> bool {
        self.state == State::Tls
    }

    /// The transport is TLS from now on.
    pub fn tls_started(&mut self) {
        assert_eq!(self.state, State::Tls, "TLS starts when it was asked for");
        self.ask_form();
    }

    fn step(&mut self, input: &[u8]) -> Result<Option<usize>, Unopened> {
        match self.state {
            State::Greeting => self.greeting(input),
            State::Option(option) => self.reply(option, input),
            State::Tls | State::Opened => Ok(None),
        }
    }

    fn greeting(&mut self, input: &[u8]) -> Result<Option<usize>, Unopened> {
        let Some(greeting) = input.first_chunk::<GREETING_BYTES>() else { return Ok(None) };
        let flags = u16::from_be_bytes([greeting[16], greeting[17]]);
        let magic = [wire::MAGIC.to_be_bytes(), wire::IHAVEOPT.to_be_bytes()].concat();
        if greeting[..16] != magic || flags & wire::FLAG_FIXED_NEWSTYLE == 0 {
            return Err(Unopened::NotNbd);
        }
        let no_zeroes = flags & wire::FLAG_NO_ZEROES;
        self.outgoing.extend(u32::from(wire::FLAG_FIXED_NEWSTYLE | no_zeroes).to_be_bytes());
        if self.wanted.tls {
            self.ask(option::STARTTLS, &[])
        } else {
            self.ask_form()
        }
        Ok(Some(GREETING_BYTES))
    }

    fn reply(&mut self, option: u32, input: &[u8]) -> Result<Option<usize>, Unopened> {
        let Some(header) = input.first_chunk::<REPLY_HEADER_BYTES>() else { return Ok(None) };
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if header[..8] != wire::OPTION_REPLY_MAGIC.to_be_bytes() || word(8) != option {
            return Err(Unopened::Broken("its beginning is another one"));
        }
        let len = word(16) as usize;
        self.replies += 1;
        if len > REPLY_BYTES_MAX || self.replies > REPLIES_MAX {
            return Err(Unopened::Broken("it is too long"));
        }
        let Some(data) = input[REPLY_HEADER_BYTES..].get(..len) else {
            self.replies -= 1;
            return Ok(None);
        };
        self.answered(option, word(12), data)?;
        Ok(Some(REPLY_HEADER_BYTES + len))
    }

    /// A complete reply to the outstanding option.
    fn answered(&mut self, option: u32, kind: u32, data: &[u8]) -> Result<(), Unopened> {
        match (option, kind) {
            (option::STARTTLS, reply::ACK) => self.state = State::Tls,
            (option::STARTTLS, _) => return Err(Unopened::NoTls(text(data))),
            (option::EXTENDED_HEADERS, reply::ACK) => {
                self.form = Form::Extended;
                self.ask_context();
            }
            (option::EXTENDED_HEADERS, kind) if is_error(kind) => self.ask(option::STRUCTURED_REPLY, &[]),
            (option::STRUCTURED_REPLY, reply::ACK) => {
                self.form = Form::Structured;
                self.ask_context();
            }
            (option::STRUCTURED_REPLY, kind) if is_error(kind) => self.ask_context(),
            (option::LIST_META_CONTEXT, reply::META_CONTEXT) => {
                let piece = data.get(size_of::<u32>()..).and_then(|name| name.strip_prefix(wire::QUESTION.as_bytes()));
                self.answer.extend_from_slice(piece.ok_or(Unopened::Broken("a context that was not asked for"))?);
                if self.answer.len() > ANSWER_BYTES_MAX {
                    return Err(Unopened::Broken("it is too long"));
                }
            }
            (option::LIST_META_CONTEXT, reply::ACK) => self.state = State::Opened,
            (option::LIST_META_CONTEXT, kind) if is_error(kind) => return Err(self.refused(kind, data)),
            (option::SET_META_CONTEXT, reply::META_CONTEXT) => {
                let Some((id, name)) = data.split_first_chunk() else {
                    return Err(Unopened::Broken("a context without a number"));
                };
                match Some(u32::from_be_bytes(*id)) {
                    id if name == wire::BASE_ALLOCATION.as_bytes() => self.context = id,
                    id if name == wire::LOAD.as_bytes() && self.wanted.load => self.load = id,
                    _ => {}
                }
                self.volume = claim::volume(name).filter(|_| self.wanted.session.is_some()).or(self.volume);
                let is_leased = self.wanted.session.as_ref().is_some_and(|claim| claim.leased);
                self.lease_ms = claim::lease_ms(name).filter(|_| is_leased).or(self.lease_ms);
                self.demotes |= self.wanted.demote && name == wire::DEMOTE.as_bytes();
            }
            // Nor is it there for GO; if it appears meanwhile, it would be opened without the session.
            (option::SET_META_CONTEXT, reply::ERR_UNKNOWN) => return Err(self.refused(kind, data)),
            // Without the context there is no block status, and the export can be used all the same.
            (option::SET_META_CONTEXT, kind) if kind == reply::ACK || is_error(kind) => self.ask_go(),
            (option::GO | option::INFO, reply::INFO) => self.info(data)?,
            (option::GO | option::INFO, reply::ACK) if self.export.is_some() => self.state = State::Opened,
            (option::GO | option::INFO, reply::ACK) => {
                return Err(Unopened::Broken("it does not tell the size of the export"));
            }
            (option::GO | option::INFO, kind) if is_error(kind) => return Err(self.refused(kind, data)),
            _ => return Err(Unopened::Broken("it does not belong to its option")),
        }
        Ok(())
    }

    fn refused(&self, kind: u32, data: &[u8]) -> Unopened {
        let (name, text) = (self.wanted.name.clone(), text(data));
        match kind {
            reply::ERR_UNKNOWN => Unopened::Unknown { name, text },
            kind => Unopened::Refused { name, kind, text },
        }
    }

    fn info(&mut self, data: &[u8]) -> Result<(), Unopened> {
        let Some((kind, body)) = data.split_first_chunk() else {
            return Err(Unopened::Broken("information without a kind"));
        };
        match (u16::from_be_bytes(*kind), body) {
            (info::EXPORT, body) if body.len() == 10 => {
                let (size, flags) = body.split_first_chunk().expect("8 of 10 bytes");
                let flags = u16::from_be_bytes([flags[0], flags[1]]);
                self.export = Some((u64::from_be_bytes(*size), flags | export_flag::HAS_FLAGS));
            }
            (info::BLOCK_SIZE, body) if body.len() == 12 => {
                let word = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
                let (min, max) = (word(0), word(8));
                if !min.is_power_of_two() || max < min {
                    return Err(Unopened::Broken("impossible block sizes"));
                }
                (self.block_bytes_min, self.payload_bytes_max) = (min, Some(max));
            }
            (info::EXPORT | info::BLOCK_SIZE, _) => return Err(Unopened::Broken("information of another length")),
            _ => {}
        }
        Ok(())
    }

    fn ask(&mut self, option: u32, data: &[u8]) {
        self.outgoing.extend(wire::IHAVEOPT.to_be_bytes());
        self.outgoing.extend(option.to_be_bytes());
        self.outgoing.extend((data.len() as u32).to_be_bytes());
        self.outgoing.extend(data);
        self.state = State::Option(option);
    }

    fn ask_form(&mut self) {
        match self.wanted.form {
            Form::Simple => self.ask_go(),
            Form::Structured => self.ask(option::STRUCTURED_REPLY, &[]),
            Form::Extended => self.ask(option::EXTENDED_HEADERS, &[]),
        }
    }

    fn ask_context(&mut self) {
        if let (Some(question), true) = (&self.wanted.question, self.form.is_structured()) {
            let (query, name) = (counted(&format!("{}{question}", wire::QUESTION)), counted(&self.wanted.name));
            return self.ask(option::LIST_META_CONTEXT, &[name, 1u32.to_be_bytes().to_vec(), query].concat());
        }
        let session = self.wanted.session.as_ref().map(Claim::to_string);
        let status = self.wanted.base_allocation.then(|| wire::BASE_ALLOCATION.to_owned());
        let load = self.wanted.load.then(|| wire::LOAD.to_owned());
        let demote = (self.wanted.demote && session.is_some()).then(|| wire::DEMOTE.to_owned());
        let queries: Vec<Vec<u8>> =
            session.into_iter().chain(status).chain(load).chain(demote).map(|query| counted(&query)).collect();
        if queries.is_empty() || !self.form.is_structured() {
            return self.ask_go();
        }
        let count = (queries.len() as u32).to_be_bytes().to_vec();
        self.ask(option::SET_META_CONTEXT, &[counted(&self.wanted.name), count, queries.concat()].concat());
    }

    fn ask_go(&mut self) {
        let requests = [1u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
        let option = if self.wanted.info { option::INFO } else { option::GO };
        self.ask(option, &[counted(&self.wanted.name), requests].concat());
    }
}

fn is_error(kind: u32) -> bool {
    kind >> 31 == 1
}

/// A string with a length prefix.
fn counted(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes()].concat()
}

/// The text of an error, after a colon. It comes from outside, so it loses its control characters.
fn text(data: &[u8]) -> String {
    match String::from_utf8_lossy(data).replace(char::is_control, " ") {
        text if text.is_empty() => text,
        text => format!(": {text}"),
    }
}

#[cfg(test)]
mod tests;
