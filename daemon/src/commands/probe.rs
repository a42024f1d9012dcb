//! `tessera probe`: measures this device and writes its profile.

use std::fs::File;
use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use layout_tool::size;

use crate::options::ProbeArgs;
use crate::planning::saved_profile;
use crate::probe::{ProbeOptions, probe};
use crate::profile::{Number, ProfileFile};

/// How long a probe takes, unless told otherwise.
const SECONDS: f64 = 55.0;
const QUICK_SECONDS: f64 = 14.0;
/// Steps of the progress bar.
const STEPS: u64 = 1000;

/// Runs the command.
pub fn run(args: &ProbeArgs) -> Result<()> {
    let seconds = match (args.seconds, args.quick) {
        (Some(seconds), _) => f64::from(seconds),
        (None, true) => QUICK_SECONDS,
        (None, false) => SECONDS,
    };
    let output = match (&args.output, saved_profile()) {
        (Some(path), _) => path.clone(),
        (None, Some(path)) => {
            let folder = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            path
        }
        (None, None) => bail!("no home to save the profile in: --output says where else"),
    };
    let cannot = || format!("cannot write {}", output.display());
    try_output(&output).with_context(cannot)?;
    let bar = ProgressBar::new(STEPS);
    bar.set_style(ProgressStyle::with_template("{msg:24} {bar:32} {elapsed}")?);
    let progress = |what: &str, done: f64| {
        bar.set_message(what.to_owned());
        bar.set_position((done * STEPS as f64) as u64);
    };
    let file = probe(&ProbeOptions {
        folder: &args.dir,
        size_bytes: args.size,
        seconds,
        progress: &progress,
    })?;
    bar.finish_and_clear();
    // What no planner would accept is better refused here, where it was measured.
    file.profile()
        .context("what was measured makes no profile")?;
    std::fs::write(&output, file.text()?).with_context(cannot)?;
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&file)?)?;
    } else {
        print(&mut out, &file)?;
        eprintln!("wrote {}", output.display());
    }
    Ok(())
}

/// A profile that cannot be written shall not cost a minute first. Leaves nothing behind.
fn try_output(path: &Path) -> std::io::Result<()> {
    if path.exists() {
        return File::options().append(true).open(path).map(drop);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    tempfile::tempfile_in(folder).map(drop)
}

fn gb(value: Number) -> f64 {
    value.0 / 1e9
}

/// The profile as tables.
fn print(out: &mut dyn Write, file: &ProfileFile) -> std::io::Result<()> {
    let flash = &file.flash;
    if let Some(measured) = &file.measured {
        writeln!(
            out,
            "flash below {}: {} ({}), test file of {}",
            measured.folder,
            measured.io_path,
            measured.io,
            size::text(measured.test_file_bytes)
        )?;
        if measured.io_path.ends_with("buffered") {
            writeln!(
                out,
                "reads went through the page cache: these are not the speeds of the flash alone"
            )?;
        }
    }
    for range in &flash.ranges {
        let text = size::text(range.range_bytes.0 as u64);
        writeln!(out, "\nrandom reads over {text}: MB/s (thousand reads/s)")?;
        write!(out, "  in flight")?;
        for depth in &flash.depths {
            write!(out, "{:>18}", depth.0)?;
        }
        writeln!(out)?;
        for (block, row) in flash.blocks_bytes.iter().zip(&range.bytes_per_s) {
            write!(out, "  {:>9}", size::text(block.0 as u64))?;
            for speed in row {
                let reads = speed.0 / block.0 / 1e3;
                write!(out, "{:>9.1} {:>8}", speed.0 / 1e6, format!("({reads:.1})"))?;
            }
            writeln!(out)?;
        }
    }
    let sequential = flash.sequential_bytes_per_s.0 / 1e6;
    writeln!(out, "\nsequential reads of 1 MiB: {sequential:.0} MB/s")?;
    write!(out, "CPU time of a read, in microseconds:")?;
    for (block, cpu_ns) in flash.blocks_bytes.iter().zip(&flash.cpu_ns_per_read) {
        write!(
            out,
            "  {}: {:.1}",
            size::text(block.0 as u64),
            cpu_ns.0 / 1e3
        )?;
    }
    writeln!(out)?;
    for core in file
        .measured
        .iter()
        .flat_map(|measured| &measured.issuing_cores)
    {
        writeln!(
            out,
            "issued by core {}: {:.1} MB/s ({} of {} in flight), {:.1} us of CPU a read",
            core.core,
            core.bytes_per_s.0 / 1e6,
            core.depth,
            size::text(core.block_bytes),
            core.cpu_ns_per_read.0 / 1e3
        )?;
    }
    writeln!(out)?;
    for (index, lane) in file.lanes.iter().enumerate() {
        let core = lane
            .core
            .map_or("not pinned".into(), |core| format!("core {core}"));
        writeln!(
            out,
            "lane {index} ({core}): {:.1} G multiply-adds/s, of attention {:.1}; {:.1} GB/s of \
             4-bit rows from memory",
            gb(lane.multiply_adds_per_s),
            lane.attention_multiply_adds_per_s.map_or(0.0, gb),
            gb(lane.rows_bytes_per_s)
        )?;
    }
    for (index, (speed, join)) in file
        .dram
        .bytes_per_s
        .iter()
        .zip(&file.dram.join_ns)
        .enumerate()
    {
        writeln!(
            out,
            "{} lanes: {:.1} GB/s from memory, a fork-join takes {:.1} us",
            index + 1,
            gb(*speed),
            join.0 / 1e3
        )?;
    }
    Ok(())
}
