//! What the runtime shows of a chunk of the text, as a record of the journal.

use std::sync::{Mutex, PoisonError};

use tessera_kernels::{Activation, BLOCK, Kernels};
use tessera_runtime::Observer;
use tessera_runtime::shape::Shape;

use super::threshold::Histogram;

/// What is looked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Watch {
    /// Energy by magnitude, to set thresholds; of each neuron of each section `|down|^2`.
    Histograms(Vec<Vec<f32>>),
    /// Which neurons are active.
    Activity {
        /// Of each section, for models that have them.
        thresholds: Option<Vec<f32>>,
        /// Keep inputs, and magnitudes of held-out tokens, for predictors.
        inputs: bool,
    },
}

/// Activity of one section in one chunk.
#[derive(Debug, Clone, Default, PartialEq)]
struct Chunk {
    /// Tokens of the chunk that it served.
    tokens: Vec<u32>,
    /// A bit for each neuron (tokens, ffn_dim).
    bits: Vec<u32>,
    /// Inputs in 8-bit blocks: codes (tokens, dim) and scales (tokens, dim / 32).
    codes: Vec<i8>,
    scales: Vec<f32>,
    /// Hidden magnitudes of the active neurons of held-out tokens, token by token.
    masses: Vec<Vec<f32>>,
    histogram: Option<Histogram>,
}

struct State {
    watch: Watch,
    sections: Vec<Chunk>,
    /// Tokens of the chunk before this pass.
    begun: u32,
    /// Tokens of the chunk from this one on are held out.
    held_from: u32,
    /// Tokens of the pass that the current section serves.
    routed: Vec<u32>,
    hidden: Vec<f32>,
    acted: Vec<f32>,
    ones: Vec<f32>,
    /// Magnitude and energy (neurons, tokens) of the neurons seen of the current section.
    energies: Vec<(f32, f32)>,
}

/// Watches a session and keeps what it sees.
pub struct Recorder {
    shape: Shape,
    kernels: Kernels,
    state: Mutex<State>,
}

impl Recorder {
    /// Nothing seen yet.
    pub fn new(shape: &Shape, watch: Watch) -> Self {
        let mut sections = vec![Chunk::default(); shape.n_layers * shape.n_ffns()];
        if let Watch::Histograms(_) = watch {
            let each = sections.iter_mut();
            each.for_each(|section| section.histogram = Some(Histogram::new()));
        }
        Recorder {
            shape: *shape,
            kernels: Kernels::best(),
            state: Mutex::new(State {
                watch,
                sections,
                begun: 0,
                held_from: 0,
                routed: Vec::new(),
                hidden: Vec::new(),
                acted: Vec::new(),
                ones: Vec::new(),
                energies: Vec::new(),
            }),
        }
    }

    fn with<T>(&self, see: impl FnOnce(&mut State) -> T) -> T {
        see(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A pass begins with token `begun` of the chunk, whose tokens from `held_from` on are held
    /// out.
    pub fn begin_pass(&self, begun: usize, held_from: usize) {
        self.with(|state| {
            (state.begun, state.held_from) = (begun as u32, held_from as u32);
            state.routed.clear();
            state.energies.clear();
        });
    }

    /// What the chunk showed, as the payload of a record; then nothing is seen yet.
    ///
    /// A histogram for each section; or an offset for each section and one for the end (u64), and
    /// at each: number of tokens (u32), tokens (u32 each), bits (ffn_dim / 32 u32 a token), and
    /// with inputs: codes, scales, magnitudes (f32 each).
    pub fn take(&self) -> Vec<u8> {
        self.with(|state| {
            let mut bytes = Vec::new();
            if let Watch::Histograms(_) = state.watch {
                let all = state.sections.iter_mut();
                all.flat_map(|s| s.histogram.as_mut())
                    .for_each(|histogram| histogram.store(&mut bytes));
                return bytes;
            }
            let n_sections = state.sections.len();
            bytes.resize((n_sections + 1) * size_of::<u64>(), 0);
            for index in 0..=n_sections {
                let at = (bytes.len() as u64).to_le_bytes();
                bytes[index * size_of::<u64>()..][..size_of::<u64>()].copy_from_slice(&at);
                if let Some(section) = state.sections.get_mut(index) {
                    std::mem::take(section).store(&mut bytes);
                }
            }
            bytes
        })
    }
}

impl Chunk {
    /// Adds each neuron's share of its token's energy to the histogram.
    fn count_energies(&mut self, energies: &[(f32, f32)], tokens: usize) {
        // Tokens are of no interest here.
        self.tokens.clear();
        self.masses.clear();
        let Some(histogram) = &mut self.histogram else {
            return;
        };
        let mut totals = vec![0.0; tokens];
        for row in energies.chunks_exact(tokens) {
            for (total, (_, energy)) in totals.iter_mut().zip(row) {
                *total += f64::from(*energy);
            }
        }
        for row in energies.chunks_exact(tokens) {
            for (total, (magnitude, energy)) in totals.iter().zip(row) {
                if *total > 0.0 {
                    histogram.add(*magnitude, f64::from(*energy) / total);
                }
            }
        }
    }

    fn store(&self, bytes: &mut Vec<u8>) {
        bytes.extend((self.tokens.len() as u32).to_le_bytes());
        for word in self.tokens.iter().chain(&self.bits) {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.codes.iter().map(|&code| code as u8));
        for value in self.scales.iter().chain(self.masses.iter().flatten()) {
            bytes.extend(value.to_le_bytes());
        }
    }
}

impl State {
    /// Takes over the inputs of a section, rounded as every product's inputs are.
    fn inputs(&mut self, section: usize, x: &[f32], dim: usize, kernels: &Kernels) {
        let tokens = x.len() / dim;
        let chunk = &mut self.sections[section];
        if self.routed.is_empty() {
            self.routed.extend(0..tokens as u32);
        }
        let begun = self.begun;
        chunk
            .tokens
            .extend(self.routed.drain(..).map(|token| begun + token));
        chunk.masses.resize(chunk.tokens.len(), Vec::new());
        if !matches!(self.watch, Watch::Activity { inputs: true, .. }) {
            return;
        }
        let (code, scale) = (chunk.codes.len(), chunk.scales.len());
        chunk.codes.resize(code + x.len(), 0);
        chunk.scales.resize(scale + x.len() / BLOCK, 0.0);
        let mut sums = vec![0; x.len() / BLOCK];
        let (codes, scales) = (&mut chunk.codes[code..], &mut chunk.scales[scale..]);
        (kernels.quantize)(x, codes, scales, &mut sums);
    }
}

impl Observer for Recorder {
    fn routed(&self, _layer: usize, _expert: usize, token: usize) {
        self.with(|state| state.routed.push(token as u32));
    }

    fn inputs(&self, layer: usize, expert: usize, x: &[f32]) {
        let section = layer * self.shape.n_ffns() + expert;
        self.with(|state| state.inputs(section, x, self.shape.dim, &self.kernels));
    }

    fn products(
        &self,
        layer: usize,
        expert: usize,
        first: usize,
        tokens: usize,
        gate: &[f32],
        up: &[f32],
    ) {
        let section = layer * self.shape.n_ffns() + expert;
        let act = self.shape.activation;
        let words = self.shape.ffn_dim / u32::BITS as usize;
        self.with(|state| {
            state.hidden.clear();
            state.hidden.extend(gate);
            (self.kernels.gated)(act, &mut state.hidden, up);
            let by_magnitude = matches!(act, Activation::Silu | Activation::GeluTanh);
            if by_magnitude {
                state.acted.clear();
                state.acted.extend(gate);
                state.ones.resize(gate.len(), 1.0);
                (self.kernels.gated)(act, &mut state.acted, &state.ones);
            }
            let chunk = &mut state.sections[section];
            match &state.watch {
                Watch::Histograms(down) => {
                    for (at, (act, h)) in state.acted.iter().zip(&state.hidden).enumerate() {
                        let energy = h * h * down[section][first + at / tokens];
                        state.energies.push((act.abs(), energy));
                    }
                    if state.energies.len() == tokens * self.shape.ffn_dim {
                        chunk.count_energies(&state.energies, tokens);
                        state.energies.clear();
                    }
                }
                Watch::Activity { thresholds, inputs } => {
                    let before = chunk.tokens.len() - tokens;
                    chunk.bits.resize(chunk.tokens.len() * words, 0);
                    let threshold = thresholds.as_ref().map(|all| all[section]);
                    for (at, h) in state.hidden.iter().enumerate() {
                        let active = match threshold {
                            Some(threshold) => state.acted[at].abs() >= threshold,
                            None => *h != 0.0,
                        };
                        if !active {
                            continue;
                        }
                        let (neuron, row) = (first + at / tokens, before + at % tokens);
                        chunk.bits[row * words + neuron / 32] |= 1 << (neuron % 32);
                        if *inputs && chunk.tokens[row] >= state.held_from {
                            chunk.masses[row].push(h.abs());
                        }
                    }
                }
            }
        });
    }
}
