//! Names of tensors in GGUF files.

use crate::source::index::{Naming, Role};

/// How llama.cpp's converters name tensors.
pub(super) struct Names {
    /// Rows of q and k alternate between the halves of a head, as llama.cpp's rope of "normal"
    /// type wants them; true for `llama`.
    pub interleaved: bool,
}

impl Naming for Names {
    fn names(&self, role: Role) -> Vec<(String, bool)> {
        let layer = |layer: usize, part: &str| vec![(format!("blk.{layer}.{part}"), false)];
        match role {
            Role::Embedding => vec![("token_embd.weight".into(), false)],
            Role::OutputNorm => vec![("output_norm.weight".into(), false)],
            Role::LmHead => vec![("output.weight".into(), false)],
            Role::AttnNorm(l) => layer(l, "attn_norm.weight"),
            Role::FfnNorm(l) => layer(l, "ffn_norm.weight"),
            Role::Q(l) => layer(l, "attn_q.weight"),
            Role::K(l) => layer(l, "attn_k.weight"),
            Role::V(l) => layer(l, "attn_v.weight"),
            Role::O(l) => layer(l, "attn_output.weight"),
            Role::QBias(l) => layer(l, "attn_q.bias"),
            Role::KBias(l) => layer(l, "attn_k.bias"),
            Role::VBias(l) => layer(l, "attn_v.bias"),
            Role::QNorm(l) => layer(l, "attn_q_norm.weight"),
            Role::KNorm(l) => layer(l, "attn_k_norm.weight"),
            Role::Router(l) => layer(l, "ffn_gate_inp.weight"),
            Role::Gate(l, e) => ffn(l, e, "gate"),
            Role::Up(l, e) => ffn(l, e, "up"),
            Role::Down(l, e) => ffn(l, e, "down"),
        }
    }

    fn is_ignored(&self, name: &str) -> bool {
        name == "rope_freqs.weight" || name.ends_with(".attn_rot_embd")
    }

    fn is_interleaved(&self, role: Role) -> bool {
        self.interleaved
            && matches!(
                role,
                Role::Q(_) | Role::K(_) | Role::QBias(_) | Role::KBias(_)
            )
    }
}

/// A dense matrix, all experts in one tensor, or (old files) a tensor an expert.
fn ffn(layer: usize, expert: usize, part: &str) -> Vec<(String, bool)> {
    let mut names = vec![
        (format!("blk.{layer}.ffn_{part}_exps.weight"), true),
        (format!("blk.{layer}.ffn_{part}.{expert}.weight"), false),
    ];
    if expert == 0 {
        names.insert(0, (format!("blk.{layer}.ffn_{part}.weight"), false));
    }
    names
}
