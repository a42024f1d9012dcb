//! Images from sources.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::target::Target;

/// What of the package is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The images that print text.
    Plain,
    /// Those that send log frames.
    Frames,
}

/// The folder of the images' package.
pub fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("images")
}

/// Cargo locks its folder anyway; one at a time also keeps its messages apart.
static BUILDING: Mutex<()> = Mutex::new(());

/// Builds the images of `target` in `folder`, and names the folder that holds them.
///
/// # Errors
/// What is missing here, in one sentence.
///
/// # Panics
/// If the sources do not compile: that is a failure, whatever the machine.
pub fn build(target: Target, kind: Kind, folder: &Path) -> Result<PathBuf, String> {
    let tools = target.tools()?;
    let defmt = kind == Kind::Frames;
    let flags = target.rustflags(&tools, &images(), defmt).join("\x1f");
    let folder = folder.join(if defmt { "frames" } else { "plain" });
    let mut features = vec![target.features()];
    features.extend(defmt.then_some("defmt"));
    let (level, lto) = target.optimisation();
    let mut command = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    command
        .args(["build", "-q", "--release", "--locked", "--manifest-path"])
        .arg(images().join("Cargo.toml"))
        .args([
            "--target",
            target.triple(),
            "--features",
            &features.join(","),
        ])
        .arg("--target-dir")
        .arg(&folder)
        .args(if defmt { &["--bin", "logs"][..] } else { &[] })
        .env("RUSTC", &tools.rustc)
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", level)
        .env("CARGO_PROFILE_RELEASE_LTO", lto)
        .env("DEFMT_LOG", "trace")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER");
    let guard = BUILDING.lock();
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cargo cannot be run: {error}"));
    drop(guard);
    assert!(
        output.status.success(),
        "the images do not compile for {}:\n{}",
        target.triple(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(folder.join(target.triple()).join("release"))
}
