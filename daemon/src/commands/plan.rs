//! `tessera plan`: how memory would be used, and how fast that would be.

use std::fmt;
use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use layout_tool::budget::BudgetTable;
use layout_tool::size;
use serde_json::{Map, Value, json};
use tessera_hal::linux::{LaneOptions, Lanes};
use tessera_runtime::limits::LANES_MAX;
use tessera_runtime::planner::{Demand, Prediction, Terms, dense_demand, predict};
use tessera_runtime::profile::DeviceProfile;

use crate::engine::{EngineOptions, OpenImage, make_plan};
use crate::options::PlanArgs;
use crate::profile::ProfileFile;

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<()> {
    let profile = match &args.profile {
        Some(path) => ProfileFile::read(path)?,
        None => DeviceProfile::default(),
    };
    let model = OpenImage::open(&args.image)?;
    let lanes = lanes(args, &profile)?;
    let options = EngineOptions {
        memory_bytes: Some(args.memory),
        context: args.ctx,
        kv: args.kv,
        logits_rows: 1,
        ..EngineOptions::default()
    };
    let plan = make_plan(&model, &options, lanes)?;
    // The middle of the context stands for all of its tokens.
    let pos = plan.sizes.seq_len / 2;
    let demand = dense_demand(&model.image, &plan, &profile, pos);
    let report = Report {
        table: BudgetTable::new(args.memory, plan),
        prediction: predict(&profile, &demand, lanes),
        demand,
        pos,
        profile: args.profile.clone(),
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
fn lanes(args: &PlanArgs, profile: &DeviceProfile) -> Result<usize> {
    let known = profile.lanes.len();
    match (args.lanes.map(usize::from), &args.profile) {
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
    demand: Demand,
    prediction: Prediction,
    pos: usize,
    profile: Option<PathBuf>,
}

impl Report {
    fn profile_name(&self) -> String {
        match &self.profile {
            Some(path) => path.display().to_string(),
            None => "built-in default".to_owned(),
        }
    }

    fn json(&self) -> Map<String, Value> {
        let Prediction {
            tokens_per_s,
            bound,
            terms,
        } = self.prediction;
        let demand = &self.demand;
        let mut map = self.table.json();
        for (key, value) in [
            ("predicted_tokens_per_s", json!(tokens_per_s)),
            ("bound", json!(bound.name())),
            ("profile", json!(self.profile_name())),
            ("position", json!(self.pos)),
            ("flash_ms_per_token", json!(terms.flash_ns / 1e6)),
            ("dram_ms_per_token", json!(terms.dram_ns / 1e6)),
            ("compute_ms_per_token", json!(terms.compute_ns / 1e6)),
            ("serial_ms_per_token", json!(terms.serial_ns / 1e6)),
            (
                "streamed_bytes_per_token",
                json!(demand.flash_sequential_bytes),
            ),
            ("dram_bytes_per_token", json!(demand.dram_bytes)),
            ("multiply_adds_per_token", json!(demand.multiply_adds)),
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
        } = self.prediction;
        let Terms {
            flash_ns,
            dram_ns,
            compute_ns,
            serial_ns,
        } = terms;
        let demand = &self.demand;
        let bytes = |bytes: f64| size::text(bytes as u64);
        let products = format!("{:.3} G multiply-adds", demand.multiply_adds / 1e9);
        writeln!(f, "{}\n", self.table)?;
        writeln!(
            f,
            "predicted at position {}: {tokens_per_s:.2} tokens/s, bound by {} (profile: {})",
            self.pos,
            bound.name(),
            self.profile_name()
        )?;
        for (name, ns, what) in [
            ("flash", flash_ns, bytes(demand.flash_sequential_bytes)),
            ("dram", dram_ns, bytes(demand.dram_bytes)),
            ("compute", compute_ns, products),
        ] {
            writeln!(f, "  {name:<18} {:>13.3} ms  {what}", ns / 1e6)?;
        }
        writeln!(
            f,
            "  {:<18} {:>13.3} ms  on one lane",
            "serial",
            serial_ns / 1e6
        )?;
        write!(
            f,
            "  {:<18} {:>13.3} ms  the slowest of the first three, and what is serial",
            "a token",
            terms.token_ns() / 1e6
        )
    }
}
