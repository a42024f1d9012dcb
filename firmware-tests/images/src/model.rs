//! A model that runs in a region of memory from any flash, and says what it computed.
//!
//! The host runs the very same function, so that it can compare.

use core::fmt::{self, Display, Write};

use tessera_hal::{Clock, Cores, Flash, PageIndex, Read};
use tessera_kernels::Kernels;
use tessera_runtime::digest::Digest;
use tessera_runtime::format::{FormatError, Image, PAGE_BYTES, SUPERBLOCK_BYTES};
use tessera_runtime::{ColdOptions, Mode, Plan, PlanError, PlanOptions, Session, SessionError};

/// Memory for superblock and section table.
pub const HEAD_BYTES: usize = 64 << 10;
/// How long a read may take.
const TIMEOUT_NS: u64 = 5_000_000_000;
/// The text begins so.
const PROMPT: [u32; 4] = [259, 388, 1151, 579];
/// Tokens that follow.
const TOKENS: usize = 24;
/// Positions of the context.
const CONTEXT: usize = 64;

/// Why a model did not run.
#[derive(Debug)]
pub enum Failure {
    /// The flash did not give its first pages.
    Flash,
    /// The image is not one, or its table is larger than [`HEAD_BYTES`].
    Format(FormatError),
    /// The memory does not suffice.
    Plan(PlanError),
    /// A token could not be computed.
    Session(SessionError),
    /// The console does not work.
    Console,
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flash => write!(f, "the head of the image cannot be read"),
            Self::Format(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
            Self::Session(error) => error.fmt(f),
            Self::Console => write!(f, "the console does not work"),
        }
    }
}

impl From<fmt::Error> for Failure {
    fn from(_: fmt::Error) -> Self {
        Self::Console
    }
}

/// What a model runs on.
pub struct Machine<'c, C, K> {
    /// Its lanes.
    pub cores: &'c C,
    /// Its clock.
    pub clock: K,
    /// Its kernels.
    pub kernels: Kernels,
}

/// How a model runs.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// Which neurons are computed.
    pub mode: Mode,
    /// Per cent of the feed-forward weights that there is memory for, beyond the least.
    pub ffn_pct: usize,
}

/// Reads the first `bytes` of the image into `buf`.
fn read_front<'m, F: Flash<'m>>(
    flash: &mut F,
    buf: &'m mut [u8],
    bytes: usize,
) -> Result<&'m mut [u8], Failure> {
    let (start, tag) = (PageIndex(0), 0);
    let read = Read {
        start,
        buf,
        bytes,
        tag,
    };
    flash.submit(read).map_err(|_| Failure::Flash)?;
    flash.flush();
    flash.wait(TIMEOUT_NS);
    match flash.reap() {
        Some((read, Ok(()))) => Ok(read.buf),
        _ => Err(Failure::Flash),
    }
}

/// Superblock and section table, in the front of `memory`.
#[inline(never)]
pub fn open<'m, F: Flash<'m>>(flash: &mut F, memory: &'m mut [u8]) -> Result<Image<'m>, Failure> {
    let memory = read_front(flash, memory, SUPERBLOCK_BYTES)?;
    let size_bytes = flash.size_bytes();
    let head_bytes = Image::head_bytes(memory, size_bytes).map_err(Failure::Format)?;
    let need_bytes = head_bytes.next_multiple_of(PAGE_BYTES as u64);
    let have_bytes = memory.len() as u64;
    if need_bytes > have_bytes {
        let error = FormatError::Truncated {
            have_bytes,
            need_bytes,
        };
        return Err(Failure::Format(error));
    }
    let memory = read_front(flash, memory, need_bytes as usize)?;
    Image::new_checked(&memory[..need_bytes as usize], size_bytes).map_err(Failure::Format)
}

/// The plan for `job`: the least memory that does, and a part of the feed-forward weights.
#[inline(never)]
pub fn plan(image: &Image<'_>, job: Job, lanes: usize) -> Result<Plan, Failure> {
    let options = PlanOptions {
        seq_len: CONTEXT,
        batch_tokens: 4,
        lanes,
        mode: job.mode,
        cold: ColdOptions {
            reads: 8,
            ..ColdOptions::default()
        },
        ..PlanOptions::default()
    };
    let least_bytes = match Plan::new(image, options) {
        Err(PlanError::Memory { need_bytes, .. }) => need_bytes,
        Err(error) => return Err(Failure::Plan(error)),
        Ok(_) => 0,
    };
    let shape = image.shape();
    let ffn_bytes = image.ffn(0, 0).bytes() as usize * shape.n_layers;
    let options = PlanOptions {
        memory_bytes: least_bytes + ffn_bytes / 100 * job.ffn_pct,
        ..options
    };
    Plan::new(image, options).map_err(Failure::Plan)
}

/// Waits for what was asked for and is not needed any more, so that no device writes to memory that
/// serves something else by then.
pub fn drain<'m, F: Flash<'m>>(flash: &mut F) {
    while flash.wait(TIMEOUT_NS) {
        flash.reap();
    }
}

/// Runs the image on `flash` within `region`, and writes tokens and the digest of all logits to
/// `out`.
pub fn run<'m, F: Flash<'m>, C: Cores, K: Clock>(
    flash: &mut F,
    region: &'m mut [u8],
    machine: &Machine<'_, C, K>,
    job: Job,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (head, region) = region.split_at_mut(HEAD_BYTES);
    let image = open(flash, head)?;
    let plan = plan(&image, job, machine.cores.lanes())?;
    let (clock, kernels) = (&machine.clock, machine.kernels);
    let mut session = Session::new(
        image,
        plan,
        region,
        &mut *flash,
        machine.cores,
        clock,
        kernels,
    );
    // Used where it was made: it is too large to be moved on a small stack.
    let result = match &mut session {
        Ok(session) => speak(session, out),
        Err(error) => Err(Failure::Session(*error)),
    };
    drop(session);
    drain(flash);
    result
}

/// Appends the prompt and [`TOKENS`] more, each the likeliest.
fn speak<'m, F: Flash<'m>, C: Cores, K: Clock>(
    session: &mut Session<'m, F, C, K>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mode = session.plan().mode.name();
    session.load(&mut |_, _| {}).map_err(Failure::Session)?;
    let loaded = session.stats();
    let mut digest = Digest::default();
    let mut logits = session.append(&PROMPT).map_err(Failure::Session)?;
    write!(out, "{mode}:")?;
    for _ in 0..TOKENS {
        digest.add(logits);
        let token = likeliest(logits);
        write!(out, " {token}")?;
        logits = session.append(&[token]).map_err(Failure::Session)?;
    }
    digest.add(logits);
    writeln!(out, "\n{mode}: digest {:016x}", digest.value())?;
    let stats = session.stats().since(&loaded);
    assert!(
        stats.bytes_read > 0,
        "all weights were in memory: {stats:?}"
    );
    assert!(stats.hit_bytes > 0, "no weight was in memory: {stats:?}");
    Ok(())
}

/// Index of the largest logit; the first of equals.
fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = index;
        }
    }
    best as u32
}
