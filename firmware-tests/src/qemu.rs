//! A run of an image in QEMU.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::target::Target;

/// Exit codes of images (`images/src/lib.rs`).
const DONE: i32 = 21;
const PANICKED: i32 = 50;
/// Between two looks whether QEMU has ended.
const LOOK: Duration = Duration::from_millis(5);

/// What an image is given.
#[derive(Debug, Clone, Copy, Default)]
pub struct Devices<'a> {
    /// The contents of the virtio disk.
    pub disk: Option<&'a Path>,
    /// What lies in memory before the start.
    pub loaded: Option<&'a Path>,
    /// Cores.
    pub cores: usize,
    /// Count instructions: time is their number, in nanoseconds.
    pub counted: bool,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The image said that it was done.
    Done,
    /// It panicked.
    Panicked,
    /// It was killed at its time limit.
    TimedOut,
    /// QEMU ended otherwise: its exit status, if it has one.
    Status(Option<i32>),
}

/// A run that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// How it ended.
    pub end: End,
    /// What the image sent.
    pub bytes: Vec<u8>,
    /// What QEMU itself said.
    pub messages: String,
}

impl Run {
    /// What the image sent, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).replace('\r', "")
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}\n{}", self.end, self.text(), self.messages)
    }
}

/// An emulator that runs; killed when dropped.
#[derive(Debug)]
pub struct Qemu {
    child: Child,
    target: Target,
    output: Option<JoinHandle<Vec<u8>>>,
    messages: Option<JoinHandle<Vec<u8>>>,
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is what there is.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

impl Qemu {
    /// Starts `image` on `target`.
    ///
    /// # Panics
    /// If the emulator cannot be started.
    pub fn start(target: Target, image: &Path, devices: Devices<'_>) -> Self {
        let mut command = Command::new(target.emulator());
        command.args(target.machine()).args(["-serial", "stdio"]);
        if devices.cores > 1 {
            command.args(["-smp", &devices.cores.to_string()]);
        }
        if devices.counted {
            command.args(["-icount", "shift=0,sleep=off"]);
        }
        if let Some(path) = devices.disk {
            let drive = format!(
                "if=none,id=disk,format=raw,readonly=on,file={}",
                path.display()
            );
            command.args([
                "-global",
                "virtio-mmio.force-legacy=false",
                "-drive",
                &drive,
            ]);
            command.args(["-device", "virtio-blk-device,drive=disk"]);
        }
        if let Some(path) = devices.loaded {
            let (path, at) = (path.display(), target.loaded_at());
            command.args([
                "-device",
                &format!("loader,file={path},addr={at:#x},force-raw=on"),
            ]);
        }
        let child = command
            .arg("-kernel")
            .arg(image)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child =
            child.unwrap_or_else(|error| panic!("{} cannot be run: {error}", target.emulator()));
        let output = child.stdout.take().map(collect);
        let messages = child.stderr.take().map(collect);
        Qemu {
            child,
            target,
            output,
            messages,
        }
    }

    /// Waits for the end, `limit` at most.
    pub fn finish(mut self, limit: Duration) -> Run {
        let deadline = Instant::now() + limit;
        let end = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break self.end(status.code()),
                Ok(None) if Instant::now() < deadline => thread::sleep(LOOK),
                _ => {
                    self.kill();
                    break End::TimedOut;
                }
            }
        };
        let bytes = |handle: &mut Option<JoinHandle<Vec<u8>>>| {
            handle
                .take()
                .and_then(|thread| thread.join().ok())
                .unwrap_or_default()
        };
        Run {
            end,
            bytes: bytes(&mut self.output),
            messages: String::from_utf8_lossy(&bytes(&mut self.messages)).into_owned(),
        }
    }

    fn end(&self, status: Option<i32>) -> End {
        match status {
            Some(code) if code == self.target.status(DONE) => End::Done,
            Some(code) if code == self.target.status(PANICKED) => End::Panicked,
            status => End::Status(status),
        }
    }

    /// Number of the process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}
