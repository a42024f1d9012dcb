//! Names of tensors in Hugging Face folders.

use crate::source::index::{Naming, Role};

/// How `transformers` names the tensors of llama-like models.
pub(super) struct Names;

impl Naming for Names {
    fn names(&self, role: Role) -> Vec<(String, bool)> {
        let name = match role {
            Role::Embedding => "model.embed_tokens.weight".to_owned(),
            Role::OutputNorm => "model.norm.weight".to_owned(),
            Role::LmHead => "lm_head.weight".to_owned(),
            Role::AttnNorm(l) => layer(l, "input_layernorm.weight"),
            Role::FfnNorm(l) => layer(l, "post_attention_layernorm.weight"),
            Role::Q(l) => layer(l, "self_attn.q_proj.weight"),
            Role::K(l) => layer(l, "self_attn.k_proj.weight"),
            Role::V(l) => layer(l, "self_attn.v_proj.weight"),
            Role::O(l) => layer(l, "self_attn.o_proj.weight"),
            Role::QBias(l) => layer(l, "self_attn.q_proj.bias"),
            Role::KBias(l) => layer(l, "self_attn.k_proj.bias"),
            Role::VBias(l) => layer(l, "self_attn.v_proj.bias"),
            Role::QNorm(l) => layer(l, "self_attn.q_norm.weight"),
            Role::KNorm(l) => layer(l, "self_attn.k_norm.weight"),
            Role::Router(l) => layer(l, "block_sparse_moe.gate.weight"),
            Role::Gate(l, e) => return ffn(l, e, "gate_proj", "w1"),
            Role::Up(l, e) => return ffn(l, e, "up_proj", "w3"),
            Role::Down(l, e) => return ffn(l, e, "down_proj", "w2"),
        };
        vec![(name, false)]
    }

    fn is_ignored(&self, name: &str) -> bool {
        // Old files carry the frequencies, which the configuration defines.
        name.ends_with(".rotary_emb.inv_freq")
    }

    fn is_interleaved(&self, _role: Role) -> bool {
        false
    }
}

fn layer(layer: usize, part: &str) -> String {
    format!("model.layers.{layer}.{part}")
}

/// The matrix of an expert, or of the only feed-forward part.
fn ffn(l: usize, expert: usize, dense: &str, sparse: &str) -> Vec<(String, bool)> {
    let sparse = format!("block_sparse_moe.experts.{expert}.{sparse}.weight");
    let mut names = vec![(layer(l, &sparse), false)];
    if expert == 0 {
        names.insert(0, (layer(l, &format!("mlp.{dense}.weight")), false));
    }
    names
}
