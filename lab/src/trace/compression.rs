//! Compressed files, recognised by their first bytes instead of their names.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::Context;

/// Extensions of compressed files.
pub const EXTENSIONS: [&str; 3] = [".gz", ".xz", ".zst"];

const GZIP: &[u8] = &[0x1f, 0x8b];
const XZ: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Memory limit for decoding xz: what its strongest preset (-9) needs, and some more.
const XZ_MEMORY_BYTES_MAX: u64 = 128 << 20;

/// The uncompressed bytes of `file`.
pub fn reader(file: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    let mut file = BufReader::with_capacity(64 << 10, file);
    let mut magic = Vec::new();
    // A pipe may deliver the bytes in parts.
    file.by_ref().take(XZ.len() as u64).read_to_end(&mut magic)?;
    let bytes = io::Cursor::new(magic.clone()).chain(file);
    Ok(if magic.starts_with(GZIP) {
        Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(bytes)))
    } else if magic.starts_with(XZ) {
        let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_BYTES_MAX, liblzma::stream::CONCATENATED)?;
        Box::new(BufReader::new(liblzma::bufread::XzDecoder::new_stream(bytes, stream)))
    } else if magic.starts_with(ZSTD) {
        Box::new(BufReader::new(zstd::stream::read::Decoder::with_buffer(bytes)?))
    } else {
        Box::new(bytes)
    })
}

/// An output file, compressed according to its name.
pub enum Out {
    /// Uncompressed.
    Plain(BufWriter<File>),
    /// gzip.
    Gzip(flate2::write::GzEncoder<BufWriter<File>>),
    /// xz.
    Xz(liblzma::write::XzEncoder<BufWriter<File>>),
    /// Zstandard.
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<File>>),
}

impl Out {
    /// An output for `file`, whose name is `path`.
    fn new(file: File, path: &Path) -> io::Result<Out> {
        let file = BufWriter::new(file);
        Ok(match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Out::Gzip(flate2::write::GzEncoder::new(file, flate2::Compression::default())),
            Some("xz") => Out::Xz(liblzma::write::XzEncoder::new(file, 6)),
            Some("zst") => Out::Zstd(zstd::stream::write::Encoder::new(file, 0)?),
            _ => Out::Plain(file),
        })
    }

    /// Writes a file with `fill`, all or nothing: under a temporary name first, so that a failure keeps an existing
    /// file. Anything but a regular file (a pipe) is written directly.
    pub fn create<T>(path: &Path, fill: impl FnOnce(Out) -> anyhow::Result<(Out, T)>) -> anyhow::Result<T> {
        let cannot = || format!("{} cannot be written", path.display());
        let is_special = std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        let name = path.file_name().with_context(cannot)?.to_string_lossy();
        let part = if is_special { path.to_owned() } else { path.with_file_name(format!(".{name}.part")) };
        let write = || {
            let (out, done) = fill(Out::new(File::create(&part).with_context(cannot)?, path).with_context(cannot)?)?;
            out.finish().with_context(cannot)?;
            if !is_special {
                std::fs::rename(&part, path).with_context(cannot)?;
            }
            Ok(done)
        };
        write().inspect_err(|_| {
            if !is_special {
                // It may not have been created.
                let _ = std::fs::remove_file(&part);
            }
        })
    }

    /// Writes the remaining bytes.
    fn finish(self) -> io::Result<()> {
        match self {
            Out::Plain(file) => file,
            Out::Gzip(encoder) => encoder.finish()?,
            Out::Xz(encoder) => encoder.finish()?,
            Out::Zstd(encoder) => encoder.finish()?,
        }
        .flush()
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Out::Plain(out) => out.write(bytes),
            Out::Gzip(out) => out.write(bytes),
            Out::Xz(out) => out.write(bytes),
            Out::Zstd(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Out::Plain(out) => out.flush(),
            Out::Gzip(out) => out.flush(),
            Out::Xz(out) => out.flush(),
            Out::Zstd(out) => out.flush(),
        }
    }
}
