//! From options to a plan: what the caller left open is chosen by the planner.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use layout_tool::budget::hint;
use tessera_runtime::cache::PolicyKind;
use tessera_runtime::format::{Quality, SectionKind, Statistics};
use tessera_runtime::limits::BATCH_TOKENS_MAX;
use tessera_runtime::planner::{
    ColdWish, Demand, Prediction, SearchLimits, SparseModel, Wanted, attention_demand, choose_cold,
    dense_demand, predict_phases, sparse_model, split_of,
};
use tessera_runtime::profile::DeviceProfile;
use tessera_runtime::{ColdOptions, KvType, Plan, PlanError, PlanOptions};

use crate::engine::{CONTEXT_DEFAULT, EngineOptions, Kv, OpenImage, SPARE_BYTES};
use crate::environment::variable;
use crate::options::share_of;
use crate::profile::ProfileFile;

/// Bytes of a predictor's header.
const PREDICTOR_HEADER_BYTES: usize = 64;

/// The device that plans are made for.
pub struct Device {
    /// What it can do.
    pub profile: DeviceProfile,
    /// The profile's file; `None` for the built-in default.
    pub path: Option<PathBuf>,
}

impl Device {
    /// As the profile at `path` says, else that of `TESSERA_PROFILE`, else the saved one if there
    /// is one, else the default.
    ///
    /// # Errors
    /// A profile that cannot be read or is damaged.
    pub fn find(path: Option<&Path>) -> Result<Self> {
        let named = path.map(Path::to_owned);
        let path = named
            .or_else(|| variable("TESSERA_PROFILE").map(PathBuf::from))
            .or_else(|| saved_profile().filter(|path| path.exists()));
        let profile = match &path {
            Some(path) => ProfileFile::read(path)?,
            None => DeviceProfile::default(),
        };
        Ok(Device { profile, path })
    }

    /// Where the profile comes from.
    pub fn name(&self) -> String {
        match &self.path {
            Some(path) => path.display().to_string(),
            None => "built-in default".to_owned(),
        }
    }
}

/// Where `probe` saves the profile that every command uses: `tessera/profile.toml` in the user's
/// configuration folder. `None` without a home.
pub fn saved_profile() -> Option<PathBuf> {
    let config = match variable("XDG_CONFIG_HOME") {
        Some(config) => PathBuf::from(config),
        None => PathBuf::from(variable("HOME")?).join(".config"),
    };
    Some(config.join("tessera/profile.toml"))
}

/// A plan, and what is expected of it.
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// How cold neurons are kept and read, and why.
    pub cold: Option<ColdLine>,
    /// What the planner would choose of that. Runs do not follow it: its division of memory was
    /// not the faster one where it was measured (decision 0011).
    pub suggestion: Option<ColdOptions>,
    /// Phases of a token in the middle of the context.
    pub phases: Vec<Demand>,
    /// What they take.
    pub prediction: Prediction,
    /// Neurons a token that are expected to be missing; `None` without a cold segment.
    pub misses: Option<f64>,
}

/// Why cold neurons are kept and read as they are.
pub struct ColdLine {
    options: ColdOptions,
    wish: ColdWish,
}

impl fmt::Display for ColdLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (options, wish) = (&self.options, &self.wish);
        let by = |asked: bool| if asked { "asked for" } else { "default" };
        let policy = match options.policy {
            PolicyKind::Lru => "lru",
            PolicyKind::Frequency => "frequency",
        };
        let of = |asked: Option<()>, text: String| format!("{text} ({})", by(asked.is_some()));
        let mut parts = vec![
            of(wish.hot_pct.map(drop), format!("hot {} %", options.hot_pct)),
            of(wish.gap.map(drop), format!("gap {}", options.gap)),
            of(
                wish.two_phase.map(drop),
                match options.two_phase {
                    true => "two phases".into(),
                    false => "one phase".into(),
                },
            ),
            of(
                wish.reads.map(drop),
                format!("{} reads in flight", options.reads),
            ),
            of(wish.policy.map(drop), format!("policy {policy}")),
        ];
        if options.absent_loss_pml > 0 {
            let loss = share_of(options.absent_loss_pml);
            parts.push(format!(
                "those not needed lately left out at a loss of {loss}"
            ));
        }
        write!(f, "{}", parts.join(", "))
    }
}

/// Plans `model` on `device`, with what `options` leave open as the planner chooses.
///
/// # Errors
/// A sentence: too little memory names the least that would do.
pub fn make_plan(
    model: &OpenImage,
    options: &EngineOptions,
    device: &Device,
    lanes: usize,
) -> Result<Planned> {
    let wanted = plan_options(model, options, lanes);
    let plan = plan_of(model, wanted)?;
    // The middle of the context stands for all of its tokens.
    let pos = plan.sizes.seq_len / 2;
    let profile = &device.profile;
    if split_of(&model.image, &plan).is_none() {
        let phases = vec![
            dense_demand(&model.image, &plan, profile),
            attention_demand(model.image.shape(), &plan.sizes, pos),
        ];
        let prediction = predict_phases(profile, &phases, lanes);
        let (cold, suggestion, misses) = (None, None, None);
        return Ok(Planned {
            plan,
            cold,
            suggestion,
            phases,
            prediction,
            misses,
        });
    }
    let known = Neurons::read(model)?;
    let sparse = known.model(model, &plan, pos);
    let limits = SearchLimits {
        memory_bytes: wanted.memory_bytes as u64,
        cache_bundles_min: 1,
        lanes,
        wanted: Wanted::default(),
    };
    let chosen = choose_cold(&sparse, profile, &limits, &options.cold);
    let split = split_of(&model.image, &plan).context("a sparse plan has a cold segment")?;
    let phases = sparse.phases(&split, profile).to_vec();
    Ok(Planned {
        prediction: predict_phases(profile, &phases, lanes),
        misses: Some(sparse.missing_of(&split)),
        cold: Some(ColdLine {
            options: wanted.cold,
            wish: options.cold,
        }),
        suggestion: chosen.planned.then_some(chosen.options),
        phases,
        plan,
    })
}

fn plan_options(model: &OpenImage, options: &EngineOptions, lanes: usize) -> PlanOptions {
    let shape = model.image.shape();
    let wanted = PlanOptions {
        memory_bytes: 0,
        seq_len: options
            .context
            .unwrap_or(shape.seq_len.min(CONTEXT_DEFAULT)),
        sequences: options.sequences.unwrap_or(1),
        kv: match options.kv {
            Kv::F16 => KvType::F16,
            Kv::Q8 => KvType::Q8,
        },
        batch_tokens: options.batch_tokens.unwrap_or(BATCH_TOKENS_MAX),
        logits_rows: options.logits_rows,
        lanes,
        mode: options.mode,
        cold: options.cold.or(ColdOptions::default()),
    };
    let memory_bytes = match Plan::new(&model.image, wanted) {
        Err(PlanError::Memory { need_bytes, .. }) if options.least_memory => need_bytes,
        _ => match options.memory_bytes {
            Some(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
            None => layout_tool::profile::available_bytes().saturating_sub(SPARE_BYTES) as usize,
        },
    };
    PlanOptions {
        memory_bytes,
        ..wanted
    }
}

fn plan_of(model: &OpenImage, options: PlanOptions) -> Result<Plan> {
    Plan::new(&model.image, options)
        .map_err(|error| anyhow!("{error}{}", hint(&error, options.seq_len)))
}

/// What an image says of its neurons' use.
struct Neurons {
    /// Statistics of each section, where it has them.
    statistics: Vec<Option<Vec<u8>>>,
    /// Share of predicted neurons that are active, on average.
    precision: f64,
    /// Predicted neurons for each active one, on average.
    predicted: f64,
}

impl Neurons {
    fn read(model: &OpenImage) -> Result<Self> {
        let (image, shape) = (&model.image, model.image.shape());
        let (mut statistics, mut precision, mut predicted) = (Vec::new(), 0.0, 0.0);
        for layer in 0..shape.n_layers {
            for expert in 0..shape.n_ffns() {
                statistics.push(
                    match image.find_of(SectionKind::Statistics, layer, expert) {
                        Some(section) => Some(model.section_bytes(&section)?),
                        None => None,
                    },
                );
                let section = image
                    .find_of(SectionKind::Predictor, layer, expert)
                    .with_context(|| format!("layer {layer} has no predictor"))?;
                let quality = Quality::of(&model.first_bytes(&section, PREDICTOR_HEADER_BYTES)?);
                let share = |value: f32| f64::from(value).clamp(0.01, 1.0);
                precision += share(quality.precision);
                predicted += share(quality.recall) / share(quality.precision);
            }
        }
        let count = statistics.len() as f64;
        Ok(Neurons {
            statistics,
            precision: precision / count,
            predicted: predicted / count,
        })
    }

    /// The planner's view of the image as `plan` runs it. An image of which a section has no
    /// statistics counts as one whose every neuron may be active.
    fn model(&self, model: &OpenImage, plan: &Plan, pos: usize) -> SparseModel {
        let shape = model.image.shape();
        let share = match shape.n_experts {
            0 => 1.0,
            count => shape.n_experts_used as f32 / count as f32,
        };
        let parse = |bytes: &Option<Vec<u8>>| {
            let bytes = bytes.as_deref()?;
            Statistics::new_checked(bytes, shape.ffn_dim).ok().map(drop)
        };
        let known = self.statistics.iter().all(|bytes| parse(bytes).is_some());
        let sparse = sparse_model(&model.image, plan, pos, self.precision);
        let mut sparse = sparse.unwrap_or_else(|| unreachable!("asked for sparse plans only"));
        for bytes in &self.statistics {
            let bytes = bytes.as_deref().filter(|_| known);
            match bytes.map(|bytes| Statistics::new_checked(bytes, shape.ffn_dim)) {
                Some(Ok(statistics)) => sparse.add(&statistics, share * self.predicted as f32),
                _ => sparse.add_unknown(share),
            }
        }
        sparse
    }
}
