//! A session over an image file, for watching it.

use tessera_hal::linux::{
    FixedRange, LaneOptions, Lanes, LinuxFlash, MonotonicClock, OpenOptions, Region,
    memory_limit_bytes, open,
};
use tessera_kernels::Kernels;
use tessera_runtime::format::Image;
use tessera_runtime::limits::LANES_MAX;
use tessera_runtime::{Plan, PlanOptions, Session};

use super::error::ProfileError;
use crate::image_file::ImageFile;

/// A session over real flash and real cores.
pub type Runner = Session<'static, LinuxFlash, Lanes, MonotonicClock>;

/// Tokens of a pass, where memory allows.
const BATCH_TOKENS: usize = 128;

/// Starts and loads a session with a context of `chunk` tokens. Head and region of the image live
/// as long as the process: devices write to memory by themselves.
///
/// # Errors
/// [`ProfileError::Run`].
pub fn start(
    file: &ImageFile,
    chunk: usize,
    threads: usize,
    memory_bytes: Option<u64>,
) -> Result<Runner, ProfileError> {
    let fail = |what: &str, error: &dyn std::fmt::Display| {
        ProfileError::Run(format!("{}: {what}{error}", file.path().display()))
    };
    let head: &'static [u8] = file.head().to_vec().leak();
    let image = Image::new_checked(head, u64::MAX).map_err(|e| fail("", &e))?;
    // Not pinned: threads that are started later would inherit the caller's core.
    let (cores, _) = Lanes::new(&LaneOptions {
        lanes: threads.min(LANES_MAX),
        ..LaneOptions::default()
    });
    let memory_bytes = memory_bytes.unwrap_or_else(|| available_bytes() / 2);
    let options = PlanOptions {
        memory_bytes: usize::try_from(memory_bytes).unwrap_or(usize::MAX),
        seq_len: chunk,
        batch_tokens: BATCH_TOKENS,
        lanes: tessera_hal::Cores::lanes(&cores),
        ..PlanOptions::default()
    };
    let plan = Plan::new(&image, options).map_err(|e| fail("", &e))?;
    let total_bytes = plan.budget.total_bytes().unwrap_or(usize::MAX);
    let mut region = Region::new(total_bytes).map_err(|e| fail("", &e))?;
    region.advise_huge_pages();
    let region = region.into_static();
    let options = OpenOptions {
        fixed: Some(FixedRange::of(&region[plan.budget.io_range()])),
        ..OpenOptions::default()
    };
    let (flash, _) = open(file.path(), &options).map_err(|e| fail("cannot open it: ", &e))?;
    let kernels = Kernels::best();
    let session = Session::new(image, plan, region, flash, cores, MonotonicClock, kernels);
    let mut session = session.map_err(|e| fail("", &e))?;
    session.load(&mut |_, _| {}).map_err(|e| fail("", &e))?;
    Ok(session)
}

/// Bytes that this process could still get: free in the system, and left by its memory cgroup.
pub fn available_bytes() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<u64>().ok())
        .map_or(u64::MAX, |kib| kib << 10);
    free.min(memory_limit_bytes().unwrap_or(u64::MAX))
}
