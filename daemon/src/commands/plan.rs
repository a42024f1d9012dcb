//! `tessera plan`: how memory would be used, and how fast that would be.

use std::fmt;
use std::io::{Write, stdout};

use anyhow::{Result, ensure};
use layout_tool::budget::BudgetTable;
use layout_tool::size;
use serde_json::{Map, Value, json};
use tessera_hal::linux::{LaneOptions, Lanes};
use tessera_runtime::limits::LANES_MAX;
use tessera_runtime::planner::{Demand, Prediction};

use crate::engine::{EngineOptions, OpenImage};
use crate::options::PlanArgs;
use crate::planning::{Device, Planned, make_plan};

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<()> {
    let device = Device::find(args.profile.as_deref())?;
    let model = OpenImage::open(&args.image)?;
    let lanes = lanes(args, &device)?;
    let options = EngineOptions {
        memory_bytes: Some(args.memory),
        context: args.ctx,
        kv: args.kv,
        mode: args.mode.into(),
        cold: args.cold.wish(),
        logits_rows: 1,
        ..EngineOptions::default()
    };
    let planned = make_plan(&model, &options, &device, lanes)?;
    let report = Report {
        table: BudgetTable::new(args.memory, planned.plan),
        pos: planned.plan.sizes.seq_len / 2,
        profile_name: device.name(),
        planned,
    };
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{}", Value::Object(report.json()))?;
    } else {
        writeln!(out, "{report}")?;
    }
    Ok(())
}

/// As asked, else those of the profile; the built-in one says nothing about this machine's number.
fn lanes(args: &PlanArgs, device: &Device) -> Result<usize> {
    let known = device.profile.lanes.len();
    match (args.lanes.map(usize::from), &device.path) {
        (Some(lanes), Some(path)) => {
            ensure!(
                lanes <= known,
                "{lanes} lanes were asked for, the profile {} knows {known}",
                path.display()
            );
            Ok(lanes)
        }
        (Some(lanes), None) => Ok(lanes),
        (None, Some(_)) => Ok(known),
        (None, None) => {
            let (lanes, _) = Lanes::new(&LaneOptions::default());
            Ok(tessera_hal::Cores::lanes(&lanes).min(LANES_MAX))
        }
    }
}

/// What is printed.
struct Report {
    table: BudgetTable,
    planned: Planned,
    pos: usize,
    profile_name: String,
}

impl Report {
    fn sum(&self, of: impl Fn(&Demand) -> f64) -> f64 {
        self.planned.phases.iter().map(of).sum()
    }

    fn json(&self) -> Map<String, Value> {
        let Prediction {
            tokens_per_s,
            bound,
            terms,
        } = self.planned.prediction;
        let mut map = self.table.json();
        for (key, value) in [
            ("predicted_tokens_per_s", json!(tokens_per_s)),
            ("bound", json!(bound.name())),
            ("mode", json!(self.planned.plan.mode.name())),
            ("profile", json!(self.profile_name)),
            ("position", json!(self.pos)),
            ("flash_ms_per_token", json!(terms.flash_ns / 1e6)),
            ("dram_ms_per_token", json!(terms.dram_ns / 1e6)),
            ("compute_ms_per_token", json!(terms.compute_ns / 1e6)),
            ("apart_ms_per_token", json!(terms.apart_ns / 1e6)),
            ("serial_ms_per_token", json!(terms.serial_ns / 1e6)),
            (
                "streamed_bytes_per_token",
                json!(self.sum(|demand| demand.flash_sequential_bytes)),
            ),
            (
                "random_bytes_per_token",
                json!(self.sum(|demand| demand.flash_random_bytes)),
            ),
            (
                "random_reads_per_token",
                json!(self.sum(|demand| demand.flash_random_reads)),
            ),
            ("misses_per_token", json!(self.planned.misses)),
            (
                "dram_bytes_per_token",
                json!(self.sum(|demand| demand.dram_bytes)),
            ),
            (
                "multiply_adds_per_token",
                json!(self.sum(|demand| demand.multiply_adds + demand.attention_multiply_adds)),
            ),
            (
                "cold",
                json!(self.planned.cold.as_ref().map(ToString::to_string)),
            ),
        ] {
            map.insert(key.into(), value);
        }
        map
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Prediction {
            tokens_per_s,
            bound,
            terms,
        } = self.planned.prediction;
        let bytes = |of: fn(&Demand) -> f64| size::text(self.sum(of) as u64);
        let products = self.sum(|demand| demand.multiply_adds) / 1e9;
        let attention = self.sum(|demand| demand.attention_multiply_adds) / 1e9;
        let mut flash = bytes(|demand| demand.flash_sequential_bytes + demand.flash_random_bytes);
        if let Some(misses) = self.planned.misses {
            let reads = self.sum(|demand| demand.flash_random_reads);
            flash += &format!(", {misses:.0} neurons missing, {reads:.0} reads");
        }
        writeln!(f, "{}\n", self.table)?;
        if let Some(cold) = &self.planned.cold {
            writeln!(f, "cold neurons: {cold}")?;
        }
        if let Some(options) = &self.planned.suggestion {
            let two_phase = if options.two_phase {
                " --two-phase true"
            } else {
                ""
            };
            writeln!(
                f,
                "the planner would try: --hot {} --gap {}{two_phase} --reads {}",
                options.hot_pct, options.gap, options.reads
            )?;
        }
        writeln!(
            f,
            "predicted at position {}, {}: {tokens_per_s:.2} tokens/s, bound by {} (profile: {})",
            self.pos,
            self.planned.plan.mode.name(),
            bound.name(),
            self.profile_name
        )?;
        for (name, ns, what) in [
            ("flash", terms.flash_ns, flash),
            ("dram", terms.dram_ns, bytes(|demand| demand.dram_bytes)),
            (
                "compute",
                terms.compute_ns,
                format!("{products:.3} G multiply-adds, {attention:.3} of attention"),
            ),
            (
                "apart",
                terms.apart_ns,
                "phases that follow each other".into(),
            ),
            ("serial", terms.serial_ns, "on one lane".into()),
        ] {
            writeln!(f, "  {name:<18} {:>13.3} ms  {what}", ns / 1e6)?;
        }
        write!(
            f,
            "  {:<18} {:>13.3} ms  the slowest of the first three, apart, and what is serial",
            "a token",
            terms.token_ns() / 1e6
        )
    }
}
