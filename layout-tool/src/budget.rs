//! How an image would use so much memory.

use std::fmt;

use serde_json::{Map, Value};
use tessera_runtime::format::{Image, PAGE_BYTES};
use tessera_runtime::limits::{BATCH_TOKENS_MAX, LANES_MAX};
use tessera_runtime::{Plan, PlanError, PlanOptions};

use crate::inspect::key;
use crate::{parallel, size};

/// Positions of a context where none are asked for.
const CONTEXT_DEFAULT: usize = 4096;
/// A context that takes little beside anything else.
const CONTEXT_SHORT: usize = 256;

/// Memory that a budget is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetOptions {
    /// Bytes.
    pub memory_bytes: u64,
    /// Positions of the context; `None` for the model's, at most 4,096.
    pub context: Option<usize>,
    /// Lanes; `None` for the cores of this machine.
    pub lanes: Option<usize>,
}

impl BudgetOptions {
    /// Positions of the context of `image`.
    pub fn seq_len(&self, image: &Image<'_>) -> usize {
        self.context
            .unwrap_or(image.shape().seq_len.min(CONTEXT_DEFAULT))
    }
}

/// How memory is shared out: names and bytes add up to the total.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetTable {
    /// Memory that the plan was asked to fit.
    pub memory_bytes: u64,
    /// The plan.
    pub plan: Plan,
    /// Names and bytes, in the order in which memory is carved.
    pub parts: Vec<(&'static str, u64)>,
    /// Sum of the parts.
    pub total_bytes: u64,
}

/// The budget of running `image` in so much memory.
///
/// # Errors
/// [`PlanError`]; of too little memory, it names the least that would do.
pub fn budget_table(image: &Image<'_>, options: BudgetOptions) -> Result<BudgetTable, PlanError> {
    let plan = Plan::new(
        image,
        PlanOptions {
            memory_bytes: usize::try_from(options.memory_bytes).unwrap_or(usize::MAX),
            seq_len: options.seq_len(image),
            batch_tokens: BATCH_TOKENS_MAX,
            lanes: options.lanes.unwrap_or(parallel::threads().min(LANES_MAX)),
            ..PlanOptions::default()
        },
    )?;
    Ok(BudgetTable::new(options.memory_bytes, plan))
}

/// What to do about a plan's refusal of a context of `seq_len` positions, in brackets after it;
/// empty where its sentence says all.
pub fn hint(error: &PlanError, seq_len: usize) -> String {
    let PlanError::Memory { need_bytes, .. } = error else {
        return String::new();
    };
    let least = format!("--memory {}M", need_bytes.div_ceil(1 << 20));
    match seq_len > CONTEXT_SHORT {
        true => format!(" ({least}, or with --ctx a shorter context than {seq_len})"),
        false => format!(" ({least})"),
    }
}

impl BudgetTable {
    /// The table of a plan for `memory_bytes`.
    pub fn new(memory_bytes: u64, plan: Plan) -> Self {
        let mut parts = plan
            .budget
            .parts()
            .map(|(name, bytes)| (name, bytes as u64))
            .to_vec();
        // The region begins where the caller's memory does: up to a page is lost before it.
        parts.push(("alignment", PAGE_BYTES as u64));
        let total_bytes = parts.iter().map(|(_, bytes)| bytes).sum();
        debug_assert_eq!(
            plan.budget.total_bytes().map(|bytes| bytes as u64),
            Some(total_bytes)
        );
        BudgetTable {
            memory_bytes,
            plan,
            parts,
            total_bytes,
        }
    }

    /// Everything with stable keys.
    pub fn json(&self) -> Map<String, Value> {
        let parts: Value = self
            .parts
            .iter()
            .map(|(name, bytes)| (key(name) + "_bytes", *bytes))
            .collect();
        let mut map = Map::new();
        map.insert("budget".into(), parts);
        map.insert("total_bytes".into(), self.total_bytes.into());
        map.insert("memory_bytes".into(), self.memory_bytes.into());
        map.insert("context".into(), self.plan.sizes.seq_len.into());
        map.insert("lanes".into(), self.plan.sizes.lanes.into());
        map.insert("batch_tokens".into(), self.plan.sizes.batch_tokens.into());
        map.insert("weight_bytes".into(), self.plan.weight_bytes.into());
        map
    }
}

impl fmt::Display for BudgetTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (memory_bytes, sizes) = (self.memory_bytes, &self.plan.sizes);
        writeln!(
            f,
            "budget for {} of memory: context of {}, {} lanes, prompts in passes of {}",
            size::text(memory_bytes),
            sizes.seq_len,
            sizes.lanes,
            sizes.batch_tokens
        )?;
        let free = ("left over", memory_bytes - self.total_bytes);
        for (name, bytes) in self.parts.iter().chain([&free]) {
            writeln!(f, "  {name:<18} {:>16}", size::grouped(*bytes))?;
        }
        writeln!(f, "  {:<18} {:>16}", "memory", size::grouped(memory_bytes))?;
        let resident = self
            .parts
            .iter()
            .find(|(name, _)| name.starts_with("resident"));
        let share = resident.map_or(0, |(_, bytes)| *bytes) as f64 / self.plan.kept_bytes as f64;
        write!(
            f,
            "  {:.1} % of the {} of weights stay in memory, the others are streamed",
            100.0 * share.min(1.0),
            size::text(self.plan.weight_bytes)
        )
    }
}
