//! The mode and group of a Unix socket, from the options of a listener.

use std::ffi::{CStr, CString};
use std::io;

/// The mode of a listener without `mode=`: the server's own user and the group of the socket.
const MODE_DEFAULT: u32 = 0o660;
/// The permissions that the server's own user always has.
const MODE_OWN: u32 = 0o600;
/// Bytes of an entry of the group database at most; groups with many members have long entries.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// Why the options of a Unix socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PermissionsError {
    #[error("group= has no value: name a group, or give its number")]
    NoGroup,
    #[error(
        "mode={0} is not the mode of a socket: write an octal number from 0600 to 0777 with which the server's own \
         user can open it, such as 0660 or 0666"
    )]
    Mode(String),
    #[error("there is no group '{0}': create it, name another one (`getent group` lists them), or give a number")]
    UnknownGroup(String),
    #[error("the group '{group}' cannot be looked up ({source}): give its number")]
    NoLookup { group: String, source: io::Error },
}

/// The mode and the group of a Unix socket.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Permissions {
    mode: Option<u32>,
    group: Option<String>,
}

impl Permissions {
    /// Parses the values of the options.
    pub fn new(mode: Option<&str>, group: Option<&str>) -> Result<Permissions, PermissionsError> {
        let mode = mode.map(parse_mode).transpose()?;
        if group == Some("") {
            return Err(PermissionsError::NoGroup);
        }
        Ok(Permissions { mode, group: group.map(str::to_owned) })
    }

    /// Whether no option is set.
    pub fn is_default(&self) -> bool {
        *self == Permissions::default()
    }

    /// The permission bits.
    pub fn mode(&self) -> u32 {
        self.mode.unwrap_or(MODE_DEFAULT)
    }

    /// The number of the group, looked up by its name; `None` for the server's own group.
    pub fn group(&self) -> Result<Option<u32>, PermissionsError> {
        self.group.as_deref().map(find_group).transpose()
    }
}

/// Prints options of a listener.
impl std::fmt::Display for Permissions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(mode) = self.mode {
            write!(f, ",mode=0{mode:o}")?;
        }
        match &self.group {
            Some(group) => write!(f, ",group={group}"),
            None => Ok(()),
        }
    }
}

fn parse_mode(text: &str) -> Result<u32, PermissionsError> {
    let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if is_octal && mode <= 0o777 && mode & MODE_OWN == MODE_OWN => Ok(mode),
        _ => Err(PermissionsError::Mode(text.into())),
    }
}

/// The number of a group that is given by name or else by number.
fn find_group(text: &str) -> Result<u32, PermissionsError> {
    let found = CString::new(text).ok().map(|name| by_name(&name)).transpose();
    match (found, text.parse::<u32>()) {
        (Ok(Some(Some(group))), _) => Ok(group),
        // The largest number means "no change" to chown.
        (_, Ok(number)) if number != u32::MAX => Ok(number),
        (Err(source), _) => Err(PermissionsError::NoLookup { group: text.into(), source }),
        _ => Err(PermissionsError::UnknownGroup(text.into())),
    }
}

/// Looks a name up in the system's group database, which may be on a network.
fn by_name(name: &CStr) -> io::Result<Option<u32>> {
    let mut buffer = vec![0; 1024];
    loop {
        // SAFETY: zeros are a valid group without members; `getgrnam_r` fills it.
        let mut entry = unsafe { std::mem::zeroed::<libc::group>() };
        let mut found = std::ptr::null_mut();
        // SAFETY: the name ends with a zero, the buffer has the given length, and all of them outlive the call.
        let error =
            unsafe { libc::getgrnam_r(name.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found) };
        match error {
            0 => return Ok((!found.is_null()).then_some(entry.gr_gid)),
            libc::ERANGE if buffer.len() < ENTRY_BYTES_MAX => buffer.resize(2 * buffer.len(), 0),
            // Some databases return these errors for an unknown name.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_leave_the_socket_to_the_server() {
        for (text, mode) in [("0666", 0o666), ("660", 0o660), ("0600", 0o600), ("0777", 0o777)] {
            assert_eq!(Permissions::new(Some(text), None).unwrap().mode(), mode);
        }
        for wrong in ["", "6", "0668", "1666", "01666", "0466", "0066", "rw", "+666", "0x666"] {
            let said = Permissions::new(Some(wrong), None).unwrap_err().to_string();
            assert!(said.contains(&format!("mode={wrong} ")) && said.contains("0660"), "{said}");
        }
        assert_eq!(Permissions::default().mode(), 0o660);
    }

    #[test]
    fn groups_are_found_by_name_or_number() {
        let group = |text: &str| Permissions::new(None, Some(text)).unwrap().group();
        assert_eq!(group("root").unwrap(), Some(0));
        assert_eq!(group("54321").unwrap(), Some(54321));
        for wrong in ["no-such-group", "4294967295", "-1", "a\0b"] {
            let said = group(wrong).unwrap_err().to_string();
            assert!(said.contains(wrong) && said.contains("getent"), "{said}");
        }
        assert_eq!(Permissions::default().group().unwrap(), None);
        assert!(Permissions::new(None, Some("")).is_err());
    }
}
