//! Rows of weights, straight as 4-bit codes and scales.

use half::f16;
use tessera_kernels::{BLOCK, WeightType};

use super::design::{CODE_SQUARE, Design, Level, NOISE_SQUARE, UNIT};
use super::random::{Random, Role};

/// All weights are of this type.
pub const TYPE: WeightType = WeightType::Q4;
/// What the code 15 stands for.
const TOP_CODE: f64 = 7.0;
/// Deviation of the logits.
const LOGITS: f64 = 3.0;

/// Codes and scales of one row.
#[derive(Debug)]
pub struct Row<'a> {
    /// Its codes.
    pub codes: &'a mut [u8],
    /// Its scales.
    pub scales: &'a mut [u8],
}

impl Row<'_> {
    fn put_scale(&mut self, block: usize, scale: f64) {
        self.scales[2 * block..][..2].copy_from_slice(&f16::from_f64(scale).to_le_bytes());
    }

    /// Gives each weight of the constant block the value `weight`.
    fn put_constant(&mut self, weight: f64) {
        self.codes[..BLOCK].iter_mut().for_each(|byte| *byte |= 15);
        self.put_scale(0, weight / TOP_CODE);
    }

    /// Random codes, scales of random signs.
    fn fill(&mut self, mut random: Random, scale: f64) {
        random.fill(self.codes);
        let scales = [scale, -scale].map(|scale| f16::from_f64(scale).to_le_bytes());
        for group in self.scales.chunks_mut(128) {
            let mut signs = random.bits();
            for place in group.as_chunks_mut::<2>().0 {
                *place = scales[(signs & 1) as usize];
                signs >>= 1;
            }
        }
    }

    /// The same but for the constant block, whose weights are `constant`.
    fn plain(&mut self, random: Random, scale: f64, constant: f64) {
        self.fill(random, scale);
        self.put_constant(constant);
    }
}

/// A matrix that is stored in tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matrix {
    /// One row a token.
    Embedding,
    /// Of a layer.
    Q(usize),
    /// Of a layer.
    K(usize),
    /// Of a layer.
    V(usize),
    /// Of a layer.
    O(usize),
    /// One row a token.
    LmHead,
}

impl Design {
    fn random(&self, role: Role, layer: usize, row: usize) -> Random {
        Random::new(self.seed, role, (layer, 0), row)
    }

    /// Makes row `index` of a matrix.
    pub fn row(&self, matrix: Matrix, index: usize, row: &mut Row<'_>) {
        match matrix {
            Matrix::Embedding => {
                let random = self.random(Role::Embedding, 0, index);
                row.plain(random, 1.0 / CODE_SQUARE.sqrt(), UNIT);
            }
            Matrix::Q(layer) => self.position_row(Role::Q, layer, index, row),
            Matrix::K(layer) => self.position_row(Role::K, layer, index, row),
            Matrix::V(layer) => {
                let scale = self.plain_scale(&self.levels[layer][0], 1.0);
                row.plain(self.random(Role::V, layer, index), scale, 0.0);
            }
            Matrix::O(layer) => {
                // Nothing is added to the constant block.
                let scale = if index < BLOCK {
                    0.0
                } else {
                    self.output_scale(layer)
                };
                row.fill(self.random(Role::O, layer, index), scale);
            }
            Matrix::LmHead => {
                let level = &self.levels[self.config.n_layers - 1][1];
                let scale = self.plain_scale(level, LOGITS);
                row.plain(self.random(Role::LmHead, 0, index), scale, 0.0);
            }
        }
    }

    /// A row of q or k: a constant for pairs that take part, and noise.
    fn position_row(&self, role: Role, layer: usize, index: usize, row: &mut Row<'_>) {
        let level = &self.levels[layer][0];
        let element = index % self.config.head_dim;
        let constant = match self.window.pairs.get(element) {
            Some(true) => self.window.amplitude,
            _ => 0.0,
        };
        let scale = self.plain_scale(level, self.window.noise);
        let constant = Self::constant_weight(level, constant);
        row.plain(self.random(role, layer, index), scale, constant);
    }

    /// The router of a layer: (n_experts, dim).
    pub fn router(&self, layer: usize) -> Vec<f32> {
        let dim = self.config.dim;
        let scale = 1.0 / ((dim - BLOCK) as f32).sqrt();
        let mut weights = vec![0.0; self.config.n_experts * dim];
        for (expert, row) in weights.chunks_exact_mut(dim).enumerate() {
            let mut random = self.random(Role::Router, layer, expert);
            row[BLOCK..]
                .iter_mut()
                .for_each(|weight| *weight = scale * random.normal());
        }
        weights
    }
}

/// One feed-forward section: a layer's, or an expert's.
#[derive(Debug)]
pub struct Section<'a> {
    design: &'a Design,
    layer: usize,
    expert: usize,
    /// The two high bits of codes, for each set of directions.
    patterns: Vec<Vec<u8>>,
    /// One over the root of each direction's sum of squares, noise included: (sets, directions).
    norms: Vec<f64>,
}

impl<'a> Section<'a> {
    /// The section of `layer` and `expert` (0 in a model without experts).
    pub fn new(design: &'a Design, layer: usize, expert: usize) -> Self {
        let mut section = Section {
            design,
            layer,
            expert,
            patterns: Vec::new(),
            norms: Vec::new(),
        };
        for set in 0..design.n_sets {
            let mut codes = vec![0; TYPE.code_bytes(design.config.dim)];
            section.random(Role::Pattern, set).fill(&mut codes);
            codes.iter_mut().for_each(|byte| *byte &= 0b1100_1100);
            section.patterns.push(codes);
            let mut squares = vec![0.0; design.n_directions];
            for block in 1..design.config.dim / BLOCK {
                let direction = (block - 1) % design.n_directions;
                let of_block = (0..BLOCK).map(|i| section.pattern(set, block, i).powi(2));
                squares[direction] += of_block.sum::<f64>() + BLOCK as f64 * NOISE_SQUARE;
            }
            let norms = squares.iter().map(|square| 1.0 / square.sqrt());
            section.norms.extend(norms);
        }
        section
    }

    fn random(&self, role: Role, row: usize) -> Random {
        let place = (self.layer, self.expert);
        Random::new(self.design.seed, role, place, row)
    }

    /// Its layer.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// The norm's output that the section gets.
    pub fn level(&self) -> &'a Level {
        &self.design.levels[self.layer][1]
    }

    /// Mean of the gates' codes in column `i` of a block: -6.5, -2.5, 1.5 or 5.5.
    pub fn pattern(&self, set: usize, block: usize, i: usize) -> f64 {
        let byte = self.patterns[set][block / 2 * BLOCK + i];
        let code = byte >> (block % 2 * 4) & 0b1100;
        f64::from(code) + 1.5 - 8.0
    }

    /// Factor of the pattern of a direction that makes it a deviate, noise included.
    pub fn direction_scale(&self, set: usize, direction: usize) -> f64 {
        self.norms[set * self.design.n_directions + direction] / self.level().deviation
    }

    /// The set of directions that a neuron listens to.
    pub fn set(&self, neuron: usize) -> usize {
        neuron % self.design.n_sets
    }

    /// How the directions of its set make a neuron's gate: a vector of length 1.
    pub fn mixing(&self, neuron: usize, out: &mut [f32]) {
        let mut random = self.random(Role::Mixing, neuron);
        let mut square = 0.0;
        for weight in out.iter_mut() {
            *weight = random.normal();
            square += *weight * *weight;
        }
        let scale = 1.0 / square.sqrt();
        out.iter_mut().for_each(|weight| *weight *= scale);
    }

    /// Makes the gate row of a neuron.
    pub fn gate(&self, neuron: usize, mixing: &mut Vec<f32>, row: &mut Row<'_>) {
        let (set, directions) = (self.set(neuron), self.design.n_directions);
        mixing.resize(directions, 0.0);
        self.mixing(neuron, mixing);
        self.random(Role::Gate, neuron).fill(row.codes);
        for (code, pattern) in row.codes.iter_mut().zip(&self.patterns[set]) {
            // 1 or 2 in the low bits.
            let low = *code & 0b0001_0001;
            *code = low | (low ^ 0b0001_0001) << 1 | pattern;
        }
        for (direction, weight) in mixing.iter_mut().enumerate() {
            *weight *= self.direction_scale(set, direction) as f32;
        }
        for (block, weight) in (1..)
            .zip(mixing.iter().cycle())
            .take(row.scales.len() / 2 - 1)
        {
            row.put_scale(block, f64::from(*weight));
        }
        let threshold = f64::from(self.design.thresholds[neuron]);
        row.put_constant(Design::constant_weight(self.level(), -threshold));
    }

    /// Makes the up row of a neuron.
    pub fn up(&self, neuron: usize, row: &mut Row<'_>) {
        let (design, level) = (self.design, self.level());
        let constant = Design::constant_weight(level, design.up_mean);
        let scale = design.plain_scale(level, 1.0);
        row.plain(self.random(Role::Up, neuron), scale, constant);
    }

    /// Makes the down column of a neuron, as a row.
    pub fn down(&self, neuron: usize, row: &mut Row<'_>) {
        let scale = self.design.down_scale();
        row.plain(self.random(Role::Down, neuron), scale, 0.0);
    }
}
