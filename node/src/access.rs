//! Which clients may open a volume, and how: a list of rules with the same syntax in specifications, API and commands.
//!
//! ```text
//!   any                        every client that reaches a listener; the default
//!   nobody                     no client
//!   user:1000                  a process of this user id, over a Unix socket
//!   cert:CN=db1,O=Example      a client certificate with this subject (RFC 4514)
//!   name:db1.example           a client certificate with this subject alternative name
//!   RULE,ro                    the same clients, for reading only
//! ```
//!
//! If several rules match a client, it may do what any of them permits. To a client that no rule matches, the volume
//! looks as if it did not exist.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::peer::{Identity, Peer};

/// Rules of one volume at most: a handshake compares its client with every rule of every volume.
const RULES_MAX: usize = 64;
/// Bytes of a rule at most: more than any subject that a certificate authority signs.
const RULE_BYTES_MAX: usize = 1024;
/// Suffix of a rule for reading only. No subject ends with it, since each part of a subject has a '='.
const READ_ONLY: &str = ",ro";

/// Why a list of rules is not valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    #[error("an access list has at least one rule: write 'any' or 'nobody'")]
    Empty,
    #[error("'nobody' and other rules exclude each other: write either")]
    NobodyAndOthers,
    #[error("an access list has at most {RULES_MAX} rules, not {0}: use fewer certificates")]
    TooMany(usize),
    #[error(
        "'{}' is not an access rule: {why}; write any, nobody, user:UID, cert:SUBJECT or name:NAME, with ,ro behind it \
         for reading only",
        rule.chars().take(80).collect::<String>().escape_debug()
    )]
    Rule { rule: String, why: RuleError },
}

/// Why a text is not a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleError {
    #[error("it is too long")]
    TooLong,
    #[error("it has control characters")]
    Control,
    #[error("'any' admits every client, 'nobody' none")]
    None,
    #[error("a user is named by its number, as `id -u NAME` prints it")]
    User,
    #[error(
        "a subject is a list such as CN=db1,O=Example, as `openssl x509 -noout -subject -nameopt RFC2253` prints it"
    )]
    Subject,
    #[error("a name has letters and no spaces")]
    Name,
    #[error("there is no such kind")]
    Kind,
}

/// The access that a client has to a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Grant {
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Who {
    Any,
    Nobody,
    User(u32),
    Certificate(String),
    Name(String),
}

/// One rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    who: Who,
    read_only: bool,
}

/// The rules of a volume; at least one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Access(Vec<Rule>);

impl Default for Access {
    fn default() -> Access {
        Access(vec![Rule { who: Who::Any, read_only: false }])
    }
}

impl Access {
    /// Checks a list of rules.
    pub fn new(rules: Vec<Rule>) -> Result<Access, AccessError> {
        let nobody = rules.iter().any(|rule| rule.who == Who::Nobody);
        match rules.len() {
            0 => Err(AccessError::Empty),
            1..=RULES_MAX if nobody && rules.len() > 1 => Err(AccessError::NobodyAndOthers),
            1..=RULES_MAX => Ok(Access(rules)),
            many => Err(AccessError::TooMany(many)),
        }
    }

    /// Whether every client may read and write.
    pub fn is_default(&self) -> bool {
        *self == Access::default()
    }

    /// The access of a client; `None` if it must not know that the volume exists.
    pub fn grants(&self, peer: &Peer) -> Option<Grant> {
        let matching = self.0.iter().filter(|rule| rule.who.is(&peer.identity));
        matching.map(|rule| if rule.read_only { Grant::Read } else { Grant::Write }).max()
    }

    /// The rules as text.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(Rule::to_string).collect()
    }
}

impl TryFrom<Vec<String>> for Access {
    type Error = AccessError;

    fn try_from(texts: Vec<String>) -> Result<Access, AccessError> {
        Access::new(texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
    }
}

impl From<Access> for Vec<String> {
    fn from(access: Access) -> Vec<String> {
        access.texts()
    }
}

impl Who {
    fn is(&self, identity: &Identity) -> bool {
        match (self, identity) {
            (Who::Any, _) => true,
            (Who::User(wanted), Identity::User(user)) => wanted == user,
            (Who::Certificate(wanted), Identity::Certificate { subject, .. }) => {
                normalised(subject).is_some_and(|subject| subject == *wanted)
            }
            (Who::Name(wanted), Identity::Certificate { names, .. }) => {
                names.iter().any(|name| name.eq_ignore_ascii_case(wanted))
            }
            _ => false,
        }
    }
}

impl FromStr for Rule {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Rule, AccessError> {
        let wrong = |why| Err(AccessError::Rule { rule: text.into(), why });
        if text.len() > RULE_BYTES_MAX {
            return wrong(RuleError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return wrong(RuleError::Control);
        }
        let unescaped = |rest: &str| !rest.ends_with('\\');
        let (rule, read_only) = match text.strip_suffix(READ_ONLY) {
            Some(rest) if unescaped(rest) => (rest, true),
            _ => (text, false),
        };
        let who = match rule.split_once(':') {
            None if rule == "any" => Who::Any,
            None if rule == "nobody" && !read_only => Who::Nobody,
            None if rule == "none" => return wrong(RuleError::None),
            Some(("user", id)) => match id.parse::<u32>() {
                Ok(id) if id != u32::MAX && id.to_string() == rule[5..] => Who::User(id),
                _ => return wrong(RuleError::User),
            },
            Some(("cert", subject)) => match parse_subject(subject) {
                Some(subject) => Who::Certificate(subject),
                None => return wrong(RuleError::Subject),
            },
            Some(("name", name)) if name.is_empty() || name.contains(char::is_whitespace) => {
                return wrong(RuleError::Name);
            }
            Some(("name", name)) => Who::Name(name.into()),
            _ => return wrong(RuleError::Kind),
        };
        Ok(Rule { who, read_only })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Who::Any => f.write_str("any"),
            Who::Nobody => f.write_str("nobody"),
            Who::User(id) => write!(f, "user:{id}"),
            Who::Certificate(subject) => write!(f, "cert:{subject}"),
            Who::Name(name) => write!(f, "name:{name}"),
        }?;
        f.write_str(if self.read_only { READ_ONLY } else { "" })
    }
}

/// The prefix that `openssl x509 -subject` prints.
const OPENSSL_PREFIX: &str = "subject=";

/// Parses and normalises the subject of a rule, with or without openssl's prefix. `None` if it is not in the form of
/// RFC 2253 (now RFC 4514). openssl's own forms have the reverse order; a rule in such a form would never match.
fn parse_subject(text: &str) -> Option<String> {
    let prefix = text.get(..OPENSSL_PREFIX.len()).filter(|start| start.eq_ignore_ascii_case(OPENSSL_PREFIX));
    let subject = text[prefix.map_or(0, str::len)..].trim_start();
    let is_rfc = |part: &&str| {
        let Some((kind, value)) = part.split_once('=') else { return false };
        let name = kind.trim_start();
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
        let is_kind = is_name && !name.eq_ignore_ascii_case("subject");
        // Refuses `O = Example, CN = db1`, and `O=Example, CN=db1` of openssl 3.2, which is recognised by the prefix.
        is_kind && !value.starts_with(' ') && !(prefix.is_some() && kind.starts_with(' '))
    };
    parts(subject).iter().all(is_rfc).then(|| normalised(&unescaped_letters(subject))).flatten()
}

/// Replaces openssl's escapes of letters beyond ASCII, such as `\C3\BC`, by the letters, as certificates have them.
/// Other escapes are kept.
fn unescaped_letters(subject: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(subject.len()), subject.as_bytes());
    while let [first, after @ ..] = rest {
        let pair = after.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let letter = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).filter(|byte| !byte.is_ascii());
        let taken = match letter {
            _ if *first != b'\\' => 1,
            Some(_) => 3,
            None => 2.min(rest.len()),
        };
        match letter.filter(|_| taken == 3) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(&rest[..taken]),
        }
        rest = &rest[taken..];
    }
    String::from_utf8(bytes).unwrap_or_else(|_| subject.to_owned())
}

/// A subject without spaces around its parts, and with attribute types in capitals, so that `cn=db1, o=Example` and
/// `CN=db1,O=Example` are equal. `None` if it is not a subject.
fn normalised(subject: &str) -> Option<String> {
    let part = |part: &str| {
        let (kind, value) = part.split_once('=')?;
        let (kind, value) = (kind.trim().to_ascii_uppercase(), value.trim());
        (!kind.is_empty() && !value.is_empty()).then(|| format!("{kind}={value}"))
    };
    let parts: Option<Vec<String>> = parts(subject).into_iter().map(part).collect();
    Some(parts?.join(","))
}

/// Splits at unescaped commas.
fn parts(subject: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, byte) in subject.bytes().enumerate() {
        match byte {
            b',' if !escaped => {
                parts.push(&subject[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        escaped = byte == b'\\' && !escaped;
    }
    parts.push(&subject[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(rules: &[&str]) -> Result<Access, AccessError> {
        Access::try_from(rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>())
    }

    fn db1() -> Peer {
        let (subject, names) = ("CN=db1,O=Ex\\, ample".into(), vec!["db1.example".into(), "10.0.0.1".into()]);
        Peer { identity: Identity::Certificate { subject, names }, ..Peer::local(0) }
    }

    fn stranger() -> Peer {
        Peer::remote("127.0.0.1:1".parse().unwrap())
    }

    #[test]
    fn a_client_may_do_what_its_best_rule_permits() {
        let grants = |rules: &[&str], peer: &Peer| access(rules).unwrap().grants(peer);
        assert_eq!(Access::default().grants(&stranger()), Some(Grant::Write));
        assert_eq!(grants(&["nobody"], &Peer::local(0)), None);
        assert_eq!(grants(&["user:7"], &Peer::local(7)), Some(Grant::Write));
        for peer in [Peer::local(8), Peer::local(0), stranger(), db1()] {
            assert_eq!(grants(&["user:7"], &peer), None);
            assert_eq!(grants(&["any,ro", "user:7"], &peer), Some(Grant::Read));
        }
        assert_eq!(grants(&["user:7,ro", "user:7"], &Peer::local(7)), Some(Grant::Write));
        assert_eq!(grants(&["cert: cn=db1 , O=Ex\\, ample"], &db1()), Some(Grant::Write));
        assert_eq!(grants(&["cert:CN=db1,O=Ex\\, ample,ro"], &db1()), Some(Grant::Read));
        assert_eq!(grants(&["name:DB1.example"], &db1()), Some(Grant::Write));
        for other in ["cert:CN=db1", "cert:CN=db1,O=Ex\\", "cert:O=Ex\\, ample,CN=db1", "name:*.example", "name:db1"] {
            assert_eq!(grants(&[other], &db1()), None, "{other}");
        }
        assert_eq!(grants(&["cert:CN=db1", "name:db1.example"], &stranger()), None);
    }

    #[test]
    fn rules_print_what_parses_to_them() {
        for rule in ["any", "any,ro", "nobody", "user:0", "user:1000,ro", "cert:CN=a\\,ro", "cert:CN=a,ro", "name:x,ro"]
        {
            assert_eq!(rule.parse::<Rule>().unwrap().to_string(), rule);
        }
        assert_eq!("cert:cn=a, o=b".parse::<Rule>().unwrap().to_string(), "cert:CN=a,O=b");
        // As users paste it; also from a specification that has the prefix.
        for pasted in ["cert:subject=CN=a,O=b", "cert:SUBJECT=CN=a,O=b", "cert:subject=CN=a,O=b,ro"] {
            let rule = pasted.parse::<Rule>().unwrap().to_string();
            assert_eq!(rule.trim_end_matches(",ro"), "cert:CN=a,O=b");
        }
        assert_eq!("cert:CN=db1,O=M\\C3\\BCl\\,ler".parse::<Rule>().unwrap().to_string(), "cert:CN=db1,O=Mül\\,ler");
        assert_eq!("cert:CN=db1,O=M\\C3ller".parse::<Rule>().unwrap().to_string(), "cert:CN=db1,O=M\\C3ller");
        assert_eq!("cert:2.5.4.3=#0c0161,O=\\ c".parse::<Rule>().unwrap().to_string(), "cert:2.5.4.3=#0c0161,O=\\ c");
    }

    #[test]
    fn the_other_forms_of_openssl_are_refused() {
        for wrong in [
            "O = Ex, CN = a",
            "subject=O = Ex, CN = a",
            "subject=O=Ex, CN=a",
            "/O=Ex/CN=a",
            "subject= /O=Ex",
            "subject=subject=CN=a",
        ] {
            let said = format!("cert:{wrong}").parse::<Rule>().unwrap_err().to_string();
            assert!(said.contains("RFC2253"), "{said}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_the_forms() {
        let long = format!("name:{}", "x".repeat(2000));
        for wrong in [
            "",
            "none",
            "Any",
            "user:",
            "user:-1",
            "user:+1",
            "user:01",
            "user:root",
            "user:4294967295",
            "user:99999999999",
            "cert:",
            "cert:db1",
            "cert:CN=",
            "cert:CN=a,",
            "name:",
            "name:a b",
            "nobody,ro",
            "ip:10.0.0.1",
            "any\n",
            &long,
        ] {
            let said = wrong.parse::<Rule>().unwrap_err().to_string();
            assert!(said.contains("user:UID") && said.len() < 400, "{said}");
        }
        assert!(access(&[]).is_err() && access(&["nobody", "any"]).is_err() && access(&["any"; 65]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(text: String) {
            if let Ok(rule) = text.parse::<Rule>() {
                proptest::prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
            }
        }
    }
}
