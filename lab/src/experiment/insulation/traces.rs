//! Traces of real servers, if available.

use std::path::Path;
use std::sync::Arc;

use sim::load::Record;

use super::super::Context;
use crate::trace::Trace;

/// A trace with its name.
pub struct Recorded {
    pub name: String,
    pub records: Arc<Vec<Record>>,
}

/// The first `count` traces, by name, in the context's directory. `None` if there are too few, as in a plain clone.
pub fn load(context: &Context, count: usize) -> Result<Option<Vec<Recorded>>, String> {
    let mut files: Vec<_> = match std::fs::read_dir(&context.traces) {
        Ok(entries) => entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()
            .map_err(|error| format!("{}: {error}", context.traces.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", context.traces.display())),
    };
    files.retain(|path| path.is_file());
    if files.len() < count {
        return Ok(None);
    }
    files.sort_unstable();
    files[..count].iter().map(|path| read(path)).collect::<Result<_, _>>().map(Some)
}

fn read(path: &Path) -> Result<Recorded, String> {
    let wrong = |error: crate::trace::TraceError| format!("{}: {error}", path.display());
    let records = Trace::open(path, None).map_err(wrong)?.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.split('.').next().unwrap_or_default().to_owned();
    Ok(Recorded { name, records: Arc::new(records) })
}
