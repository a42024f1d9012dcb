//! A tiny model, made from a seed and written as an image.

#![allow(dead_code)]

use tessera_kernels::quantize::quantize_row;
use tessera_kernels::{Activation, Kernels, WeightType};
use tessera_runtime::format::{
    BATCHES, BundleLayout, CACHES, Cuts, ENTRY_BYTES, MatrixMap, NO_INDEX, PREFIXES,
    PredictorLayout, Quality, SECTION_ALIGN_BYTES, SUPERBLOCK_BYTES, Section, SectionKind,
    Statistics, StatisticsSource, Superblock, TileLayout, VectorsLayout,
};
use tessera_runtime::limits::EOS_MAX;
use tessera_runtime::shape::Shape;

/// What kind of tiny model to make.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    pub seed: u64,
    pub dim: usize,
    pub ffn_dim: usize,
    pub attention: WeightType,
    pub gate_up: WeightType,
    pub down: WeightType,
    pub activation: Activation,
    pub n_experts: usize,
    pub bundle_neurons: usize,
    pub tied: bool,
    pub sliding_window: usize,
    pub predictors: Predictors,
    /// Statistics with this threshold.
    pub threshold: Option<f32>,
}

/// Which neurons the model's predictors name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Predictors {
    /// There are none.
    None,
    /// All.
    All,
    /// A third or so, others for every token.
    Some,
    /// The same, but the last section has none.
    AllButLast,
}

impl Default for Recipe {
    fn default() -> Self {
        Recipe {
            seed: 1,
            dim: 96,
            ffn_dim: 320,
            attention: WeightType::Q4O,
            gate_up: WeightType::Q4O,
            down: WeightType::Q8,
            activation: Activation::Silu,
            n_experts: 0,
            bundle_neurons: 32,
            tied: true,
            sliding_window: 0,
            predictors: Predictors::None,
            threshold: None,
        }
    }
}

impl Recipe {
    pub fn shape(&self) -> Shape {
        Shape {
            dim: self.dim,
            ffn_dim: self.ffn_dim,
            n_layers: 3,
            n_heads: 6,
            n_kv_heads: 2,
            head_dim: 16,
            vocab_size: 300,
            seq_len: 512,
            n_experts: self.n_experts,
            n_experts_used: self.n_experts.min(2),
            sliding_window: self.sliding_window,
            activation: self.activation,
            rms_eps: 1e-5,
            attention_factor: 1.0,
            qkv_bias: self.seed.is_multiple_of(2),
            qk_norm: self.seed.is_multiple_of(3),
            tied_embeddings: self.tied,
            norm_topk_prob: true,
            kv_f32: self.attention == WeightType::F32,
            bundle_neurons: self.bundle_neurons,
            cluster_neurons: 64,
        }
    }
}

struct Writer {
    bytes: Vec<u8>,
    sections: Vec<Section>,
    state: u64,
}

impl Writer {
    fn uniform(&mut self) -> f32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn row(&mut self, ty: WeightType, cols: usize) -> (Vec<u8>, Vec<u8>) {
        let scale = (3.0 / cols as f32).sqrt();
        let x: Vec<f32> = (0..cols).map(|_| self.uniform() * scale).collect();
        let mut codes = vec![0; ty.code_bytes(cols)];
        let mut scales = vec![0; ty.scale_bytes(cols)];
        quantize_row(ty, &x, &mut codes, &mut scales);
        (codes, scales)
    }

    fn begin(&mut self, align: u64) -> u64 {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(align as usize), 0);
        self.bytes.len() as u64
    }

    fn matrix(&mut self, kind: SectionKind, layer: u16, ty: WeightType, rows: usize, cols: usize) {
        let offset = self.begin(kind.align_bytes());
        let tile = TileLayout {
            ty,
            cols,
            rows: 24.min(rows),
        };
        let map = MatrixMap { offset, rows, tile };
        for index in 0..map.n_tiles() {
            let rows = map.tile_rows(index);
            let mut bytes = vec![0; tile.tile_bytes(rows)];
            for row in 0..rows {
                let (codes, scales) = self.row(ty, cols);
                bytes[row * codes.len()..][..codes.len()].copy_from_slice(&codes);
                let at = tile.scales_at(rows) + row * scales.len();
                bytes[at..at + scales.len()].copy_from_slice(&scales);
            }
            let at = self.bytes.len() as u64;
            TileLayout::seal(&mut bytes, at, Kernels::SCALAR.crc32c);
            self.bytes.extend(bytes);
        }
        let mut section = Section::new(kind, layer, NO_INDEX, offset, map.bytes());
        (section.rows, section.cols) = (rows as u32, cols as u32);
        section.types[0] = ty as u8;
        section.unit_rows = tile.rows as u32;
        section.unit_bytes = tile.tile_bytes(tile.rows) as u32;
        self.sections.push(section);
    }

    fn ffn(&mut self, shape: &Shape, recipe: &Recipe, layer: u16, expert: u16) {
        let offset = self.begin(SECTION_ALIGN_BYTES);
        let layout = BundleLayout {
            dim: shape.dim,
            neurons: recipe.bundle_neurons,
            gate: recipe.gate_up,
            up: recipe.gate_up,
            down: recipe.down,
        };
        for _ in 0..shape.ffn_dim / layout.neurons {
            let mut bundle = vec![0; layout.bytes()];
            for index in 0..layout.neurons {
                let [gate, up, down] =
                    [layout.gate, layout.up, layout.down].map(|ty| self.row(ty, shape.dim));
                let rows = [&gate, &up, &down].map(|(codes, scales)| (&codes[..], &scales[..]));
                layout.put_neuron(&mut bundle, index, rows);
            }
            let at = self.bytes.len() as u64;
            layout.seal(&mut bundle, at, Kernels::SCALAR.crc32c);
            self.bytes.extend(bundle);
        }
        let bytes = self.bytes.len() as u64 - offset;
        let mut section = Section::new(SectionKind::Ffn, layer, expert, offset, bytes);
        (section.rows, section.cols) = (shape.ffn_dim as u32, shape.dim as u32);
        section.types = [layout.gate as u8, layout.up as u8, layout.down as u8];
        section.unit_rows = layout.neurons as u32;
        section.unit_bytes = layout.bytes() as u32;
        section.first_bytes = layout.first_bytes() as u32;
        self.sections.push(section);
    }

    fn vectors(&mut self, shape: &Shape) {
        let layout = VectorsLayout::new(shape);
        let mut values: Vec<f32> = (0..layout.len())
            .map(|_| 1.0 + self.uniform() * 0.3)
            .collect();
        for (i, freq) in values[layout.inv_freq()].iter_mut().enumerate() {
            *freq = 10000f32.powf(-2.0 * i as f32 / shape.head_dim as f32);
        }
        let data: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.blob(SectionKind::Vectors, NO_INDEX, NO_INDEX, &data);
    }

    fn blob(&mut self, kind: SectionKind, layer: u16, expert: u16, data: &[u8]) {
        let offset = self.begin(SECTION_ALIGN_BYTES);
        self.bytes.extend(data);
        let end = self.begin(4096);
        let mut section = Section::new(kind, layer, expert, offset, end - offset);
        section.data_bytes = data.len() as u64;
        section.crc = (Kernels::SCALAR.crc32c)(0, data);
        self.sections.push(section);
    }

    fn statistics(&mut self, shape: &Shape, threshold: f32, layer: u16, expert: u16) {
        let mut data = vec![0; Statistics::bytes(shape.ffn_dim)];
        let source = StatisticsSource {
            tokens: 1,
            threshold,
            threshold_share: 0.5,
            frequencies: &vec![0.5; BATCHES * shape.ffn_dim],
            misses: &[0.0; PREFIXES * CACHES],
        };
        source.write(shape.ffn_dim, &mut data);
        self.blob(SectionKind::Statistics, layer, expert, &data);
    }

    fn predictor(&mut self, shape: &Shape, which: Predictors, layer: u16, expert: u16) {
        let layout = PredictorLayout {
            rank: 64,
            dim: shape.dim,
            neurons: shape.ffn_dim,
            first: WeightType::Q8,
            second: WeightType::Q4,
        };
        let mut rows = |ty: WeightType, rows: usize, cols: usize| {
            let rows = (0..rows).map(|_| self.row(ty, cols));
            let (codes, scales): (Vec<_>, Vec<_>) = rows.unzip();
            (codes.concat(), scales.concat())
        };
        let first = rows(layout.first, layout.rank, layout.dim);
        let second = rows(layout.second, layout.neurons, layout.rank);
        let bias: Vec<f32> = (0..shape.ffn_dim)
            .map(|_| match which {
                Predictors::All => f32::INFINITY,
                _ => self.uniform() - 0.5,
            })
            .collect();
        let quality = Quality {
            recall: 1.0,
            precision: 1.0,
            active_share: 1.0,
            cuts: match which {
                Predictors::All => None,
                _ => Some(Cuts(Cuts::LOSSES_PML.map(|loss| f32::from(loss) / 250.0))),
            },
        };
        let mut data = vec![0; layout.bytes()];
        let (first, second) = ((&first.0[..], &first.1[..]), (&second.0[..], &second.1[..]));
        layout.write(quality, first, second, &bias, &mut data);
        self.blob(SectionKind::Predictor, layer, expert, &data);
    }
}

/// The image of a tiny model.
pub fn tiny_image(recipe: &Recipe) -> Vec<u8> {
    let shape = recipe.shape();
    let predicted = recipe.predictors != Predictors::None;
    let per_ffn = 1 + usize::from(predicted) + usize::from(recipe.threshold.is_some());
    let untied = usize::from(!shape.tied_embeddings);
    let lacking = usize::from(recipe.predictors == Predictors::AllButLast);
    let n_sections = 2 + untied + shape.n_layers * (4 + per_ffn * shape.n_ffns()) - lacking;
    let table_end = SUPERBLOCK_BYTES + n_sections * ENTRY_BYTES;
    let state = recipe.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut w = Writer {
        bytes: vec![0; table_end],
        sections: Vec::new(),
        state,
    };
    w.vectors(&shape);
    if !shape.tied_embeddings {
        w.matrix(
            SectionKind::Embedding,
            NO_INDEX,
            WeightType::Q8,
            shape.vocab_size,
            shape.dim,
        );
    }
    for layer in 0..shape.n_layers as u16 {
        let (q, kv) = (shape.q_dim(), shape.kv_dim());
        w.matrix(SectionKind::AttnQ, layer, recipe.attention, q, shape.dim);
        w.matrix(SectionKind::AttnK, layer, recipe.attention, kv, shape.dim);
        w.matrix(SectionKind::AttnV, layer, WeightType::Q8, kv, shape.dim);
        w.matrix(SectionKind::AttnO, layer, recipe.attention, shape.dim, q);
        for expert in 0..shape.n_ffns() as u16 {
            let expert = if shape.n_experts == 0 {
                NO_INDEX
            } else {
                expert
            };
            w.ffn(&shape, recipe, layer, expert);
        }
    }
    w.matrix(
        SectionKind::LmHead,
        NO_INDEX,
        WeightType::Q6,
        shape.vocab_size,
        shape.dim,
    );
    for layer in 0..shape.n_layers as u16 {
        for expert in 0..shape.n_ffns() as u16 {
            let expert = match shape.n_experts {
                0 => NO_INDEX,
                _ => expert,
            };
            let last = layer as usize + 1 == shape.n_layers
                && (expert == NO_INDEX || expert as usize + 1 == shape.n_ffns());
            if predicted && !(last && recipe.predictors == Predictors::AllButLast) {
                w.predictor(&shape, recipe.predictors, layer, expert);
            }
            if let Some(threshold) = recipe.threshold {
                w.statistics(&shape, threshold, layer, expert);
            }
        }
    }
    let image_bytes = w.begin(SECTION_ALIGN_BYTES);
    let mut table = vec![0; w.sections.len() * ENTRY_BYTES];
    for (entry, section) in table.chunks_exact_mut(ENTRY_BYTES).zip(&w.sections) {
        section.write(entry);
    }
    let superblock = Superblock {
        image_bytes,
        image_id: [recipe.seed as u8; 16],
        table_offset: SUPERBLOCK_BYTES as u64,
        table_entries: w.sections.len() as u32,
        table_crc: (Kernels::SCALAR.crc32c)(0, &table),
        shape,
        bos_token: None,
        add_bos: false,
        eos_tokens: [0; EOS_MAX],
        eos_count: 0,
        name: [0; 128],
    };
    let head: &mut [u8; SUPERBLOCK_BYTES] = (&mut w.bytes[..SUPERBLOCK_BYTES])
        .try_into()
        .expect("the superblock's size");
    superblock.write(head);
    w.bytes[SUPERBLOCK_BYTES..][..table.len()].copy_from_slice(&table);
    w.bytes
}
