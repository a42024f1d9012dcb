//! Which tensors a model must have, of which shape, and where they stand in its files.

use std::collections::{BTreeMap, HashMap};

use super::config::Config;
use super::error::SourceError;
use super::types::SourceType;

/// What a tensor does. Layers and experts count from 0; dense models have expert 0 only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Token embeddings (vocab_size, dim).
    Embedding,
    /// Weights of the last norm (1, dim).
    OutputNorm,
    /// Output projection (vocab_size, dim); absent where the embeddings are used.
    LmHead,
    /// Weights of the norm before attention (1, dim).
    AttnNorm(usize),
    /// Weights of the norm before the feed-forward part (1, dim).
    FfnNorm(usize),
    /// Query projection (n_heads * head_dim, dim).
    Q(usize),
    /// Key projection (n_kv_heads * head_dim, dim).
    K(usize),
    /// Value projection (n_kv_heads * head_dim, dim).
    V(usize),
    /// Attention output projection (dim, n_heads * head_dim).
    O(usize),
    /// Query bias (1, n_heads * head_dim), where `qkv_bias`.
    QBias(usize),
    /// Key bias (1, n_kv_heads * head_dim), where `qkv_bias`.
    KBias(usize),
    /// Value bias (1, n_kv_heads * head_dim), where `qkv_bias`.
    VBias(usize),
    /// Weights of the norm of each query head (1, head_dim), where `qk_norm`.
    QNorm(usize),
    /// Weights of the norm of each key head (1, head_dim), where `qk_norm`.
    KNorm(usize),
    /// Expert router (n_experts, dim), where `n_experts` is not 0.
    Router(usize),
    /// Gate projection of an expert (ffn_dim, dim).
    Gate(usize, usize),
    /// Up projection of an expert (ffn_dim, dim).
    Up(usize, usize),
    /// Down projection of an expert (dim, ffn_dim).
    Down(usize, usize),
}

/// A tensor as a file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Which of the model's files.
    pub file: usize,
    /// First byte in that file.
    pub offset: u64,
    /// Bytes of all weights.
    pub size_bytes: u64,
    /// How weights are stored.
    pub ty: SourceType,
    /// Dimensions, the fastest last.
    pub shape: Vec<usize>,
}

/// A tensor that has been given its role.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub name: String,
    pub file: usize,
    pub offset: u64,
    pub ty: SourceType,
    pub rows: usize,
    pub cols: usize,
    /// Rows (or elements of a bias) a head, where they are interleaved for rope.
    pub interleaved: Option<usize>,
}

/// How a file format names tensors.
pub(super) trait Naming {
    /// Possible names of a role's tensor; with `true`, experts lie one after the other in it.
    fn names(&self, role: Role) -> Vec<(String, bool)>;

    /// True for tensors that hold nothing the model needs.
    fn is_ignored(&self, name: &str) -> bool;

    /// True if this role's rows are interleaved for rope.
    fn is_interleaved(&self, role: Role) -> bool;
}

/// All tensors of a model's files, by name.
pub(super) type Index = BTreeMap<String, Stored>;

/// True if the role's tensor is there.
pub(super) fn has(index: &Index, naming: &impl Naming, role: Role) -> bool {
    naming
        .names(role)
        .iter()
        .any(|(name, _)| index.contains_key(name))
}

/// Roles of layer `layer` with their shapes (rows, cols).
fn layer_roles(config: &Config, layer: usize) -> Vec<(Role, usize, usize)> {
    let Config {
        dim,
        ffn_dim,
        head_dim,
        n_experts,
        ..
    } = *config;
    let (q_dim, kv_dim) = (config.n_heads * head_dim, config.n_kv_heads * head_dim);
    let mut roles = vec![
        (Role::AttnNorm(layer), 1, dim),
        (Role::Q(layer), q_dim, dim),
        (Role::K(layer), kv_dim, dim),
        (Role::V(layer), kv_dim, dim),
        (Role::O(layer), dim, q_dim),
        (Role::FfnNorm(layer), 1, dim),
    ];
    if config.qkv_bias {
        roles.extend([
            (Role::QBias(layer), 1, q_dim),
            (Role::KBias(layer), 1, kv_dim),
            (Role::VBias(layer), 1, kv_dim),
        ]);
    }
    if config.qk_norm {
        roles.extend([
            (Role::QNorm(layer), 1, head_dim),
            (Role::KNorm(layer), 1, head_dim),
        ]);
    }
    if n_experts > 0 {
        roles.push((Role::Router(layer), n_experts, dim));
    }
    for expert in 0..n_experts.max(1) {
        roles.extend([
            (Role::Gate(layer, expert), ffn_dim, dim),
            (Role::Up(layer, expert), ffn_dim, dim),
            (Role::Down(layer, expert), dim, ffn_dim),
        ]);
    }
    roles
}

/// Gives every tensor its role; nothing may be missing, left over or of another shape.
pub(super) fn assign(
    index: &Index,
    naming: &impl Naming,
    config: &Config,
) -> Result<HashMap<Role, Placed>, SourceError> {
    let mut placed = HashMap::new();
    let mut used = std::collections::HashSet::new();
    let mut take = |role, rows, cols| -> Result<(), SourceError> {
        let tensor = find(index, naming, config, (role, rows, cols))?;
        used.insert(tensor.name.clone());
        placed.insert(role, tensor);
        Ok(())
    };
    take(Role::Embedding, config.vocab_size, config.dim)?;
    take(Role::OutputNorm, 1, config.dim)?;
    if !config.tied_embeddings {
        take(Role::LmHead, config.vocab_size, config.dim)?;
    }
    for layer in 0..config.n_layers {
        for (role, rows, cols) in layer_roles(config, layer) {
            take(role, rows, cols)?;
        }
    }
    let spare_head = naming.names(Role::LmHead);
    let left = index.keys().find(|name| {
        !used.contains(*name)
            && !naming.is_ignored(name)
            && !spare_head.iter().any(|(head, _)| head == *name)
    });
    match left {
        Some(name) => Err(SourceError::TensorUnexpected {
            name: name.clone(),
            architecture: config.architecture.clone(),
        }),
        None => Ok(placed),
    }
}

fn find(
    index: &Index,
    naming: &impl Naming,
    config: &Config,
    (role, rows, cols): (Role, usize, usize),
) -> Result<Placed, SourceError> {
    let names = naming.names(role);
    let found = names
        .iter()
        .find_map(|(name, all)| Some((name, *all, index.get(name)?)));
    let Some((name, experts_inside, stored)) = found else {
        return Err(SourceError::TensorMissing {
            name: names
                .into_iter()
                .next()
                .map(|(name, _)| name)
                .unwrap_or_default(),
            architecture: config.architecture.clone(),
        });
    };
    let mut need = if experts_inside {
        vec![config.n_experts]
    } else {
        Vec::new()
    };
    // A single row is stored as a vector.
    need.extend(if is_vector(role) {
        vec![cols]
    } else {
        vec![rows, cols]
    });
    if stored.shape != need {
        return Err(SourceError::TensorShape {
            name: name.clone(),
            have: stored.shape.clone(),
            need,
        });
    }
    let interleaved = naming.is_interleaved(role).then_some(config.head_dim);
    if is_vector(role) && stored.ty.block_len() > 1 {
        return Err(SourceError::VectorQuantized {
            name: name.clone(),
            ty: stored.ty,
        });
    }
    let expert = match role {
        Role::Gate(_, expert) | Role::Up(_, expert) | Role::Down(_, expert) if experts_inside => {
            expert
        }
        _ => 0,
    };
    // The header's checks prove that the whole tensor, and so each expert, is inside the file.
    let expert_bytes = stored.size_bytes
        / if experts_inside {
            config.n_experts as u64
        } else {
            1
        };
    let offset = stored.offset + expert as u64 * expert_bytes;
    let (name, file, ty) = (name.clone(), stored.file, stored.ty);
    Ok(Placed {
        name,
        file,
        offset,
        ty,
        rows,
        cols,
        interleaved,
    })
}

/// True for the roles that are a vector rather than a matrix.
fn is_vector(role: Role) -> bool {
    matches!(
        role,
        Role::OutputNorm
            | Role::AttnNorm(_)
            | Role::FfnNorm(_)
            | Role::QBias(_)
            | Role::KBias(_)
            | Role::VBias(_)
            | Role::QNorm(_)
            | Role::KNorm(_)
    )
}
