//! From an image file to a running session: head, plan, region, devices.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use tessera_hal::linux::{
    Choice, FixedRange, IoReport, LaneOptions, LaneReport, Lanes, LinuxFlash, MonotonicClock,
    OpenOptions, Region, open,
};
use tessera_kernels::Kernels;
use tessera_runtime::format::{Image, SUPERBLOCK_BYTES, Section, SectionKind};
use tessera_runtime::limits::{EMBED_SLOTS_MAX, LANES_MAX};
use tessera_runtime::planner::ColdWish;
use tessera_runtime::{Mode, Plan, Session};

use crate::environment::variable;
use crate::planning::{Device, make_plan};

/// A session over real flash and real cores.
pub type LinuxSession = Session<'static, LinuxFlash, Lanes, MonotonicClock>;

/// How the image is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Io {
    /// The best that works here.
    #[default]
    Auto,
    /// io_uring, or fail.
    Uring,
    /// Reader threads with direct reads where the file system allows them.
    Pread,
    /// Reader threads through the page cache.
    Buffered,
    /// The same, and pages stay there: memory outside the budget, for comparisons.
    #[value(hide = true)]
    Cached,
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Kv {
    /// Half floats.
    #[default]
    F16,
    /// 8-bit codes: about half the memory, nearly the same text.
    Q8,
}

/// What a session is started with.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// Bytes that weights, KV cache, buffers and scratch may take together; `None`: all that the
    /// model can use, as far as the machine has it.
    pub memory_bytes: Option<u64>,
    /// Only as much of that as is needed at least.
    pub least_memory: bool,
    /// Positions of the context; `None`: the model's, at most [`CONTEXT_DEFAULT`].
    pub context: Option<usize>,
    /// Sequences that are held side by side; `None`: one.
    pub sequences: Option<usize>,
    /// How keys and values are stored.
    pub kv: Kv,
    /// Which neurons decoding computes.
    pub mode: Mode,
    /// How the cold segment is used; the planner chooses the rest.
    pub cold: ColdWish,
    /// Profile of the device; `None`: that of `TESSERA_PROFILE`, else the saved one, else the
    /// built-in default.
    pub profile: Option<PathBuf>,
    /// Most tokens of a pass; `None`: the most there can be.
    pub batch_tokens: Option<usize>,
    /// Positions whose logits are wanted at once.
    pub logits_rows: usize,
    /// Lanes; `None`: one for each core.
    pub lanes: Option<usize>,
    /// How the image is read.
    pub io: Io,
    /// Name of the kernels; `None`: those of `TESSERA_KERNELS`, else the best of this CPU.
    pub kernels: Option<String>,
}

/// Context that is prepared unless another is asked for.
pub const CONTEXT_DEFAULT: usize = 4096;
/// Kept free when the memory is chosen here.
pub const SPARE_BYTES: u64 = 256 << 20;

/// An image whose head was read and checked.
pub struct OpenImage {
    /// Where it is.
    pub path: PathBuf,
    /// Superblock and section table. They live as long as the process.
    pub image: Image<'static>,
    file: File,
}

impl OpenImage {
    /// Reads and checks superblock and section table.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display();
        let file =
            layout_tool::regular::open(path).with_context(|| format!("cannot open {name}"))?;
        let file_bytes = file
            .metadata()
            .with_context(|| format!("cannot examine {name}"))?
            .len();
        let mut head = vec![0; (SUPERBLOCK_BYTES as u64).min(file_bytes) as usize];
        file.read_exact_at(&mut head, 0)
            .with_context(|| format!("cannot read {name}"))?;
        let head_bytes =
            Image::head_bytes(&head, file_bytes).map_err(|e| anyhow!("{name}: {e}"))?;
        head.resize(head_bytes as usize, 0);
        file.read_exact_at(&mut head, 0)
            .with_context(|| format!("cannot read {name}"))?;
        let head: &'static [u8] = head.leak();
        let image = Image::new_checked(head, file_bytes).map_err(|e| anyhow!("{name}: {e}"))?;
        Ok(OpenImage {
            path: path.to_owned(),
            image,
            file,
        })
    }

    /// The contents of a section of bytes, checked, if the image has it.
    pub fn blob(&self, kind: SectionKind) -> Result<Option<Vec<u8>>> {
        let Some(section) = self.image.find(kind) else {
            return Ok(None);
        };
        self.section_bytes(&section).map(Some)
    }

    /// The contents of a section of bytes, checked.
    pub fn section_bytes(&self, section: &Section) -> Result<Vec<u8>> {
        let data = self.first_bytes(section, usize::MAX)?;
        if (Kernels::best().crc32c)(0, &data) != section.crc {
            let name = self.path.display();
            bail!(
                "{name}: the checksum of the {} is wrong",
                kind_name(section)
            );
        }
        Ok(data)
    }

    /// Its first bytes, at most `max`, not checked.
    pub fn first_bytes(&self, section: &Section, max: usize) -> Result<Vec<u8>> {
        let name = self.path.display();
        let mut data = vec![0; usize::try_from(section.data_bytes)?.min(max)];
        self.file
            .read_exact_at(&mut data, section.offset)
            .with_context(|| format!("cannot read the {} of {name}", kind_name(section)))?;
        Ok(data)
    }
}

fn kind_name(section: &Section) -> &'static str {
    SectionKind::from_u16(section.kind).map_or("section", SectionKind::name)
}

/// What a session runs on.
pub struct EngineReport {
    /// How the image is read.
    pub io: IoReport,
    /// The lanes.
    pub lanes: LaneReport,
    /// Name of the kernels.
    pub kernels: &'static str,
    /// How cold neurons are kept and read, and who chose it; `None` without a cold segment.
    pub cold: Option<String>,
    /// Tokens a second that the planner expects.
    pub predicted_tokens_per_s: f64,
}

/// Plans, maps the region, opens the devices; [`Session::load`] is left to the caller.
pub fn start(model: &OpenImage, options: &EngineOptions) -> Result<(LinuxSession, EngineReport)> {
    let kernels = choose_kernels(options.kernels.as_deref())?;
    let (cores, lanes) = Lanes::new(&LaneOptions {
        lanes: options.lanes.unwrap_or(0).min(LANES_MAX),
        pin: true,
        pin_caller: true,
        ..LaneOptions::default()
    });
    let device = Device::find(options.profile.as_deref())?;
    let planned = make_plan(model, options, &device, tessera_hal::Cores::lanes(&cores))?;
    let plan = planned.plan;
    let total_bytes = plan
        .budget
        .total_bytes()
        .context("the plan's memory overflows")?;
    let mut region = Region::new(total_bytes)
        .map_err(|error| anyhow!("no region of {total_bytes} bytes: {error}"))?;
    region.advise_huge_pages();
    let region = region.into_static();
    let (flash, io) = open(&model.path, &open_options(options.io, region, &plan))
        .map_err(|error| anyhow!("cannot open {}: {error}", model.path.display()))?;
    let report = EngineReport {
        io,
        lanes,
        kernels: kernels.name,
        cold: planned.cold.map(|cold| cold.to_string()),
        predicted_tokens_per_s: planned.prediction.tokens_per_s,
    };
    let session = Session::new(
        model.image,
        plan,
        region,
        flash,
        cores,
        MonotonicClock,
        kernels,
    )?;
    Ok((session, report))
}

fn choose_kernels(name: Option<&str>) -> Result<Kernels> {
    let variable = variable("TESSERA_KERNELS").map(|name| name.to_string_lossy().into_owned());
    let Some(name) = name.or(variable.as_deref()) else {
        return Ok(Kernels::best());
    };
    Kernels::by_name(name).with_context(|| {
        let names: Vec<&str> = Kernels::available().map(|kernels| kernels.name).collect();
        format!(
            "this CPU has no kernels {name:?}, it has {}",
            names.join(", ")
        )
    })
}

fn open_options(io: Io, region: &[u8], plan: &Plan) -> OpenOptions {
    let (uring, direct) = match io {
        Io::Auto => (Choice::Auto, Choice::Auto),
        Io::Uring => (Choice::Require, Choice::Auto),
        Io::Pread => (Choice::Never, Choice::Auto),
        Io::Buffered | Io::Cached => (Choice::Never, Choice::Never),
    };
    let fixed = Some(FixedRange::of(&region[plan.budget.io_range()]));
    let cold_reads = plan.sizes.sparse.map_or(0, |sparse| sparse.cold.n_reads);
    OpenOptions {
        uring,
        direct,
        fixed,
        keep_cached: io == Io::Cached,
        depth: (plan.sizes.n_slots + EMBED_SLOTS_MAX + cold_reads).next_power_of_two(),
        ..OpenOptions::default()
    }
}
