//! The machines: how each is compiled for and emulated, or why not here.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A machine without an operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// QEMU's `microvm`, by the host's own compiler.
    X86_64,
    /// QEMU's `virt` with a 64-bit Arm.
    Aarch64,
    /// QEMU's `virt` with a 64-bit RISC-V.
    Riscv64,
    /// Arm's MPS2+ AN505: a Cortex-M33, so `usize` has 32 bits.
    Thumb,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 4] = [Self::X86_64, Self::Aarch64, Self::Riscv64, Self::Thumb];

    /// Name in reports and snapshots.
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::Riscv64 => "riscv64",
            Self::Thumb => "thumbv8m",
        }
    }

    /// The compiler's name for it.
    pub const fn triple(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-none",
            Self::Riscv64 => "riscv64gc-unknown-none-elf",
            Self::Thumb => "thumbv8m.main-none-eabihf",
        }
    }

    /// The linker script in `images`.
    pub const fn script(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64.ld",
            Self::Aarch64 => "aarch64.ld",
            Self::Riscv64 => "riscv64.ld",
            Self::Thumb => "arm.ld",
        }
    }

    /// The package's features for it.
    pub const fn features(self) -> &'static str {
        match self {
            Self::Thumb => "",
            _ => "virtio",
        }
    }

    /// How the images are optimised: level and link-time optimisation. For size where memory is
    /// small; elsewhere so that all images are compiled soon.
    pub const fn optimisation(self) -> (&'static str, &'static str) {
        match self {
            Self::Thumb => ("s", "fat"),
            _ => ("3", "off"),
        }
    }

    /// Where the machine expects what QEMU loads into memory (`IMAGE` of the entry points).
    pub const fn loaded_at(self) -> u64 {
        match self {
            Self::X86_64 => 0x0400_0000,
            Self::Aarch64 => 0x4800_0000,
            Self::Riscv64 => 0x8800_0000,
            Self::Thumb => 0x8000_0000,
        }
    }

    /// Exit status of QEMU when an image exits with `code`.
    pub const fn status(self, code: i32) -> i32 {
        match self {
            Self::X86_64 => code << 1 | 1,
            _ => code,
        }
    }

    /// The emulator.
    pub const fn emulator(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 => "qemu-system-aarch64",
            Self::Riscv64 => "qemu-system-riscv64",
            Self::Thumb => "qemu-system-arm",
        }
    }

    /// Its arguments for the machine itself.
    pub fn machine(self) -> Vec<&'static str> {
        let board: &[&str] = match self {
            Self::X86_64 => &[
                "-M",
                "microvm,rtc=off",
                "-cpu",
                "max",
                "-m",
                "128",
                "-no-reboot",
                "-device",
                "isa-debug-exit,iobase=0xf4,iosize=0x04",
            ],
            Self::Aarch64 => &["-M", "virt", "-cpu", "max", "-m", "256"],
            Self::Riscv64 => &["-M", "virt", "-bios", "none", "-m", "256"],
            Self::Thumb => &["-M", "mps2-an505"],
        };
        let mut arguments = board.to_vec();
        if self != Self::X86_64 {
            arguments.extend(["-semihosting-config", "enable=on,target=native"]);
        }
        arguments.extend(["-accel", "tcg", "-display", "none", "-nodefaults"]);
        arguments
    }

    /// Compiler and linker.
    ///
    /// # Errors
    /// What is missing here, in one sentence.
    pub fn tools(self) -> Result<Tools, String> {
        let host = Command::new("rustc")
            .args(["--print", "sysroot"])
            .output()
            .map_err(|error| format!("rustc cannot be run: {error}"))?;
        let host = PathBuf::from(String::from_utf8_lossy(&host.stdout).trim());
        let linker = host.join("lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld");
        if !linker.exists() {
            return Err(format!("there is no linker {}", linker.display()));
        }
        if !has_program(self.emulator()) {
            return Err(format!("{} is not installed", self.emulator()));
        }
        let rustc = match self {
            Self::X86_64 => PathBuf::from("rustc"),
            _ => self.sysroot_rustc()?,
        };
        Ok(Tools { rustc, linker })
    }

    /// Name and version of the compiler.
    ///
    /// # Errors
    /// As [`Target::tools`].
    pub fn compiler(self) -> Result<String, String> {
        let output = Command::new(self.tools()?.rustc).arg("-V").output();
        let output = output.map_err(|error| format!("rustc cannot be run: {error}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// The compiler that `.ci/sysroot` prepared.
    fn sysroot_rustc(self) -> Result<PathBuf, String> {
        let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
        let cache = env::var_os("TESSERA_CACHE").map(PathBuf::from);
        let xdg = || {
            env::var_os("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(home)
        };
        let cache = cache.or_else(|| Some(xdg()?.join("tessera")));
        let sysroot = cache.ok_or("no cache folder is known")?.join("sysroot");
        let complete = sysroot.join(format!("complete-{}", self.triple()));
        if complete.exists() {
            Ok(sysroot.join("rustc"))
        } else {
            Err(format!(
                "there is no core library for {0}; on Debian `.ci/sysroot {0}` makes one",
                self.triple()
            ))
        }
    }

    /// What the compiler is told.
    pub fn rustflags(self, tools: &Tools, images: &Path, defmt: bool) -> Vec<String> {
        let script = images.join(self.script());
        let mut flags = vec![
            format!("-Clinker={}", tools.linker.display()),
            format!("-Clink-arg=-T{}", script.display()),
        ];
        if self == Self::X86_64 {
            flags.extend(
                [
                    "-Clinker-flavor=ld.lld",
                    "-Crelocation-model=static",
                    "-Clink-arg=-nostdlib",
                    "-Clink-arg=-static",
                    "-Ctarget-feature=+avx2,+f16c,+sse4.2",
                ]
                .map(String::from),
            );
        }
        // Sizes shall not depend on where the clone is.
        let root = images.join("../..");
        let root = root.canonicalize().unwrap_or(root);
        flags.push(format!("--remap-path-prefix={}=", root.display()));
        if defmt {
            flags.push("-Clink-arg=-Tdefmt.x".into());
            if self == Self::Riscv64 {
                // The names of log lines begin at address 0, 2 GiB before the code: too far for
                // addresses relative to it.
                flags.push("-Ccode-model=large".into());
            }
        }
        flags
    }
}

/// What compiles images for a target.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The compiler.
    pub rustc: PathBuf,
    /// The linker.
    pub linker: PathBuf,
}

fn has_program(name: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|paths| env::split_paths(&paths).any(|folder| folder.join(name).is_file()))
}
