//! iolog of fio, versions 2 and 3.
//!
//! fio's manual ("Trace file format") and its `iolog.c`. The first line is `fio version 2 iolog` or `… 3 …`. Then
//! follow `file action` (add, open, close) and `file action offset length` (read, write, trim, sync, datasync, wait);
//! in version 3 each begins with the microseconds since the beginning. Version 2 has times only in `wait`. According to
//! the manual these are microseconds since the previous wait; the code waits until so many *milliseconds* after the
//! beginning. This reader follows the code (fio 3.33 takes 1.6 s for waits of 800 and 1600), so that a trace is
//! replayed as fio replays it. Without waits, all times are 0.

use sim::load::Op;

use super::{Line, LineFormat, field, number, record, shortened};
use crate::trace::Names;

#[derive(Default)]
pub struct Iolog {
    /// 2 or 3, after the first line.
    version: u8,
    /// In version 2: the time of the last wait.
    waited_ns: u64,
}

impl LineFormat for Iolog {
    fn line(&mut self, line: &str, names: &mut Names) -> Result<Line, String> {
        if self.version == 0 {
            self.version = match line {
                _ if line.starts_with("fio version 2 iolog") => 2,
                _ if line.starts_with("fio version 3 iolog") => 3,
                _ => return Err("before it there is no line 'fio version 2 iolog' or 'fio version 3 iolog'".into()),
            };
            return Ok(Line::Nothing);
        }
        let mut fields = line.split_ascii_whitespace();
        let time_ns = match self.version {
            3 => time_us(field(&mut fields, "time")?)?,
            _ => self.waited_ns,
        };
        let file = field(&mut fields, "file")?;
        let action = field(&mut fields, "action")?;
        let op = match action {
            "add" | "open" | "close" | "unlink" => return Ok(Line::Nothing),
            "read" => Op::Read,
            "write" => Op::Write,
            "trim" => Op::Trim,
            "sync" | "datasync" | "syncfs" | "sync_file_range" => Op::Flush,
            "wait" => return self.wait(field(&mut fields, "time to wait for")?),
            _ => return Err(format!("the action '{}' is not known", shortened(action))),
        };
        let stream = names.number(file)?;
        if op == Op::Flush {
            return Ok(record(time_ns, op, 0, 0, stream));
        }
        let offset = number(field(&mut fields, "offset")?, "offset")?;
        let bytes = number(field(&mut fields, "length")?, "length")?;
        Ok(record(time_ns, op, offset, bytes, stream))
    }
}

impl Iolog {
    fn wait(&mut self, text: &str) -> Result<Line, String> {
        if self.version == 3 {
            return Ok(Line::LeftOut("waits, which version 3 does not have"));
        }
        let until_ns = number(text, "time to wait for")?.checked_mul(1_000_000).ok_or("the wait is too long")?;
        self.waited_ns = self.waited_ns.max(until_ns);
        Ok(Line::Nothing)
    }
}

fn time_us(text: &str) -> Result<u64, String> {
    number(text, "time")?.checked_mul(1000).ok_or_else(|| format!("the time {text} us is too late"))
}
