//! What is in an image, and what it takes to run it.

use std::fmt;
use std::path::Path;

use serde_json::{Map, Value, json};
use tessera_runtime::PlanError;
use tessera_runtime::format::{Image, SectionKind, VERSION};

use crate::budget::{BudgetOptions, BudgetTable, budget_table, hint};
use crate::image_file::{ImageError, ImageFile};
use crate::profile::{self, SectionReport};
use crate::sparsity::{Sparsity, SparsityError, sparsity};
use crate::summary::{KindSummary, Table, kinds};

/// Why an image cannot be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InspectError {
    /// It cannot be read.
    Image(ImageError),
    /// There is no plan for the memory named.
    Plan {
        /// Why.
        error: PlanError,
        /// Positions of the context.
        seq_len: usize,
    },
    /// Its predictors or statistics are none.
    Sparsity(SparsityError),
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(error) => error.fmt(f),
            Self::Plan { error, seq_len } => write!(f, "{error}{}", hint(error, *seq_len)),
            Self::Sparsity(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InspectError {}

/// What is in an image.
#[derive(Debug, Clone)]
pub struct Inspection {
    head: Vec<u8>,
    kinds: Vec<KindSummary>,
    sparsity: Sparsity,
    budget: Option<BudgetTable>,
    calibration: Vec<SectionReport>,
}

/// Reads the head of an image, its predictors and its statistics; nothing else of it is read.
///
/// # Errors
/// [`InspectError`]: no image, damaged predictors or statistics, or a budget that is too small.
pub fn inspect(path: &Path, budget: Option<BudgetOptions>) -> Result<Inspection, InspectError> {
    let file = ImageFile::open(path).map_err(InspectError::Image)?;
    let image = file.image();
    let table = budget.map(|options| {
        budget_table(&image, options).map_err(|error| InspectError::Plan {
            error,
            seq_len: options.seq_len(&image),
        })
    });
    Ok(Inspection {
        head: file.head().to_vec(),
        kinds: kinds(&image),
        sparsity: sparsity(&file).map_err(InspectError::Sparsity)?,
        budget: table.transpose()?,
        calibration: SectionReport::read(&file).map_err(InspectError::Image)?,
    })
}

impl Inspection {
    /// The view of the head.
    pub fn image(&self) -> Image<'_> {
        match Image::new_checked(&self.head, u64::MAX) {
            Ok(image) => image,
            Err(error) => unreachable!("{error}, but the head was checked when it was read"),
        }
    }

    /// Everything with stable keys.
    pub fn json(&self) -> Value {
        let image = self.image();
        let mut all = shape_json(&image);
        let superblock = image.superblock();
        all.insert("format_version".into(), VERSION.into());
        all.insert("name".into(), superblock.name().into());
        all.insert("image_id".into(), hex(&superblock.image_id).into());
        all.insert("image_bytes".into(), superblock.image_bytes.into());
        all.insert("bos_token".into(), superblock.bos_token.into());
        all.insert("add_bos".into(), superblock.add_bos.into());
        all.insert("eos_tokens".into(), superblock.eos_tokens().into());
        let by_kind = |value: &dyn Fn(&KindSummary) -> Value| -> Value {
            self.kinds
                .iter()
                .map(|kind| (key(kind.kind.name()), value(kind)))
                .collect()
        };
        all.insert("sections".into(), by_kind(&|kind| kind.bytes.into()));
        all.insert("data_bytes".into(), by_kind(&|kind| kind.data_bytes.into()));
        all.insert("types".into(), by_kind(&types_json));
        let of = |kind: SectionKind| self.kinds.iter().find(|summary| summary.kind == kind);
        let ffn_bytes = of(SectionKind::Ffn).map_or(0, |ffn| ffn.bytes);
        all.insert("ffn_bytes".into(), ffn_bytes.into());
        // Every bundle can be streamed.
        all.insert("ffn_resident_min_bytes".into(), 0.into());
        all.insert("down_types".into(), down_types(&image).into());
        let data: u64 = self.kinds.iter().map(|kind| kind.data_bytes).sum();
        all.insert(
            "padding_bytes".into(),
            (superblock.image_bytes - data).into(),
        );
        all.extend(self.sparsity.json());
        if !self.calibration.is_empty() {
            let sections = self.calibration.iter().map(SectionReport::json);
            all.insert("calibration".into(), sections.collect());
        }
        if let Some(budget) = &self.budget {
            all.extend(budget.json());
        }
        Value::Object(all)
    }
}

/// For each matrix of a kind's sections (gate, up and down; else one): number of each type.
fn types_json(kind: &KindSummary) -> Value {
    let matrices = kind
        .types
        .iter()
        .filter(|types| !types.is_empty())
        .map(|types| {
            types
                .iter()
                .map(|(ty, count)| (ty.name().to_owned(), *count))
                .collect::<Value>()
        });
    matrices.collect()
}

/// The shortest decimal that reads back as this float.
fn float(value: f32) -> Value {
    value
        .to_string()
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}

/// The type of each feed-forward section's down columns, in file order.
fn down_types(image: &Image<'_>) -> Vec<&'static str> {
    let shape = image.shape();
    let sections = (0..shape.n_layers * shape.n_ffns())
        .map(|index| image.ffn(index / shape.n_ffns(), index % shape.n_ffns()));
    sections.map(|map| map.bundle.down.name()).collect()
}

fn shape_json(image: &Image<'_>) -> Map<String, Value> {
    let s = image.shape();
    let value = json!({
        "dim": s.dim,
        "ffn_dim": s.ffn_dim,
        "n_layers": s.n_layers,
        "n_heads": s.n_heads,
        "n_kv_heads": s.n_kv_heads,
        "head_dim": s.head_dim,
        "vocab_size": s.vocab_size,
        "seq_len": s.seq_len,
        "n_experts": s.n_experts,
        "n_experts_used": s.n_experts_used,
        "sliding_window": s.sliding_window,
        "activation": s.activation.name(),
        "rms_eps": float(s.rms_eps),
        "attention_factor": float(s.attention_factor),
        "qkv_bias": s.qkv_bias,
        "qk_norm": s.qk_norm,
        "tied_embeddings": s.tied_embeddings,
        "norm_topk_prob": s.norm_topk_prob,
        "kv_f32": s.kv_f32,
        "bundle_neurons": s.bundle_neurons,
        "cluster_neurons": s.cluster_neurons,
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// A name as a JSON key: `i/o buffers` is `io_buffers`.
pub(crate) fn key(name: &str) -> String {
    name.replace('/', "").replace(' ', "_")
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = self.image();
        let (superblock, s) = (image.superblock(), image.shape());
        let name = superblock.name();
        let title = if name.is_empty() { "(no name)" } else { name };
        writeln!(
            f,
            "{title}, image {}, format {VERSION}",
            hex(&superblock.image_id)
        )?;
        writeln!(
            f,
            "  dim {}, ffn_dim {}, {} layers, {} heads ({} kv) of {}, vocabulary {}, context {}",
            s.dim,
            s.ffn_dim,
            s.n_layers,
            s.n_heads,
            s.n_kv_heads,
            s.head_dim,
            s.vocab_size,
            s.seq_len
        )?;
        write!(
            f,
            "  activation {}, rms_eps {:e}",
            s.activation.name(),
            s.rms_eps
        )?;
        if s.n_experts > 0 {
            write!(f, ", {} experts, {} used", s.n_experts, s.n_experts_used)?;
        }
        if s.sliding_window > 0 {
            write!(f, ", sliding window {}", s.sliding_window)?;
        }
        let flags = [
            (s.qkv_bias, "qkv bias"),
            (s.qk_norm, "qk norm"),
            (s.tied_embeddings, "tied embeddings"),
            (s.kv_f32, "kv in f32"),
        ];
        for (_, text) in flags.iter().filter(|(on, _)| *on) {
            write!(f, ", {text}")?;
        }
        let bundle = image.ffn(0, 0).bundle;
        writeln!(
            f,
            "\n  bundles of {} neurons (layer 0: {} + {} bytes), clusters of {} ({} a layer)",
            s.bundle_neurons,
            bundle.first_bytes(),
            bundle.bytes() - bundle.first_bytes(),
            s.cluster_neurons,
            s.n_clusters()
        )?;
        let bos = superblock
            .bos_token
            .map_or("none".to_owned(), |token| token.to_string());
        let added = if superblock.add_bos { ", added" } else { "" };
        writeln!(
            f,
            "  begin token {bos}{added}, end tokens {:?}\n",
            superblock.eos_tokens()
        )?;
        write!(f, "{}", Table(&self.kinds, superblock.image_bytes))?;
        if self.sparsity != Sparsity::default() {
            write!(f, "\n\n{}", self.sparsity)?;
        }
        if !self.calibration.is_empty() {
            let table = profile::Table(&self.calibration, s.n_experts);
            write!(f, "\n\n{table}")?;
        }
        match &self.budget {
            Some(budget) => write!(f, "\n\n{budget}"),
            None => Ok(()),
        }
    }
}
