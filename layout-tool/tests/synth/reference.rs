//! A plain forward pass over an image in memory, one token at a time, that shows what is inside.

use tessera_kernels::{Activations, Kernels, interleave_activations};
use tessera_runtime::format::{Image, MatrixMap, VectorsLayout};
use tessera_runtime::shape::Shape;

/// What one feed-forward section did for a token.
pub struct Seen {
    pub layer: usize,
    pub expert: usize,
    /// Input of the section (dim,).
    pub x: Vec<f32>,
    /// `act(gate) * up` (ffn_dim,).
    pub hidden: Vec<f32>,
}

pub struct Reference<'a> {
    bytes: &'a [u8],
    image: Image<'a>,
    shape: Shape,
    kernels: Kernels,
    vectors: Vec<f32>,
    /// Keys and values of each layer.
    cache: Vec<Vec<(Vec<f32>, Vec<f32>)>>,
}

/// Vectors rounded to 8-bit blocks, as products take them.
pub struct Rounded {
    q: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    interleaved: Vec<i8>,
}

impl Rounded {
    pub fn new(kernels: &Kernels, x: &[f32]) -> Self {
        let blocks = x.len() / 32;
        let (mut q, mut scales, mut sums) = (vec![0; x.len()], vec![0.0; blocks], vec![0; blocks]);
        (kernels.quantize)(x, &mut q, &mut scales, &mut sums);
        let mut interleaved = vec![0; q.len()];
        interleave_activations(&q, &mut interleaved);
        Rounded {
            q,
            scales,
            sums,
            interleaved,
        }
    }

    pub fn view(&self) -> Activations<'_> {
        Activations::new(1, self.q.len(), &[], &self.q, &self.scales, &self.sums)
            .with_interleaved(&self.interleaved)
    }
}

impl<'a> Reference<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
        let section = image.vectors();
        let data = &bytes[section.offset as usize..][..section.data_bytes as usize];
        let vectors = data.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x));
        Reference {
            bytes,
            shape: *image.shape(),
            kernels: Kernels::best(),
            vectors: vectors.collect(),
            cache: vec![Vec::new(); image.shape().n_layers],
            image,
        }
    }

    fn at(&self, offset: u64, bytes: usize) -> &'a [u8] {
        &self.bytes[offset as usize..][..bytes]
    }

    fn product(&self, map: &MatrixMap, x: &Rounded) -> Vec<f32> {
        let mut out = vec![0.0; map.rows];
        let outs = out.chunks_mut(map.tile.rows);
        for (tile, out) in outs.enumerate() {
            let (offset, bytes) = map.tile_place(tile);
            let rows = map.tile.view(out.len(), self.at(offset, bytes));
            (self.kernels.matvec)(&rows, &x.view(), out);
        }
        out
    }

    fn norm(&self, x: &[f32]) -> Vec<f32> {
        let (mut out, weight) = (vec![0.0; x.len()], vec![1.0; x.len()]);
        (self.kernels.rmsnorm)(x, &weight, self.shape.rms_eps, &mut out);
        out
    }

    /// The residual stream of a token before the first layer.
    fn embedding(&self, token: u32) -> Vec<f32> {
        let map = self.image.embedding();
        let (tile, row) = (
            token as usize / map.tile.rows,
            token as usize % map.tile.rows,
        );
        let (offset, bytes) = map.tile_place(tile);
        let rows = map.tile.view(map.tile_rows(tile), self.at(offset, bytes));
        let mut x = vec![0.0; self.shape.dim];
        rows.dequantize(row, &mut x);
        x
    }

    fn rotate(&self, head: &mut [f32], pos: usize) {
        let half = head.len() / 2;
        for i in 0..half {
            let (sin, cos) = (pos as f32 * self.vectors[i]).sin_cos();
            let (a, b) = (head[i], head[i + half]);
            (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
        }
    }

    fn attention(&mut self, layer: usize, x: &[f32]) -> Vec<f32> {
        let [q, k, v, o] = self.image.attention(layer);
        let x = Rounded::new(&self.kernels, x);
        let [mut q, mut k, v] = [q, k, v].map(|map| self.product(&map, &x));
        let pos = self.cache[layer].len();
        let head_dim = self.shape.head_dim;
        for head in q
            .chunks_exact_mut(head_dim)
            .chain(k.chunks_exact_mut(head_dim))
        {
            self.rotate(head, pos);
        }
        self.cache[layer].push((k, v));
        let mut out = vec![0.0; q.len()];
        let group = self.shape.n_heads / self.shape.n_kv_heads;
        let heads = q.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
        for (head, (q, out)) in heads.enumerate() {
            let at = head / group * head_dim..(head / group + 1) * head_dim;
            let dot = |k: &[f32]| q.iter().zip(k).map(|(a, b)| a * b).sum::<f32>();
            let root = (head_dim as f32).sqrt();
            let cache = &self.cache[layer];
            let scores: Vec<f32> = cache
                .iter()
                .map(|(k, _)| dot(&k[at.clone()]) / root)
                .collect();
            let top = scores.iter().copied().fold(f32::MIN, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| (score - top).exp()).collect();
            let sum: f32 = weights.iter().sum();
            for (weight, (_, v)) in weights.iter().zip(cache) {
                for (out, v) in out.iter_mut().zip(&v[at.clone()]) {
                    *out += weight / sum * v;
                }
            }
        }
        self.product(&o, &Rounded::new(&self.kernels, &out))
    }

    /// Experts of a token and their weights; expert 0 alone in a model without.
    fn experts(&self, layer: usize, x: &[f32]) -> Vec<(usize, f32)> {
        if self.shape.n_experts == 0 {
            return vec![(0, 1.0)];
        }
        let router = &self.vectors[VectorsLayout::new(&self.shape).router(layer)];
        let dot = |row: &[f32]| row.iter().zip(x).map(|(a, b)| a * b).sum::<f32>();
        let scores = router.chunks_exact(x.len()).map(|row| dot(row).exp());
        let mut all: Vec<(usize, f32)> = scores.enumerate().collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(self.shape.n_experts_used);
        let sum: f32 = all.iter().map(|(_, score)| score).sum();
        all.iter_mut().for_each(|(_, score)| *score /= sum);
        all
    }

    fn ffn(&self, layer: usize, expert: usize, x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let map = self.image.ffn(layer, expert);
        let (k, dim) = (map.bundle.neurons, self.shape.dim);
        let rounded = Rounded::new(&self.kernels, x);
        let [mut hidden, mut up] = [(); 2].map(|()| vec![0.0; map.neurons]);
        let (mut sum, mut row) = (vec![0.0; dim], vec![0.0; dim]);
        for first in (0..map.neurons).step_by(k) {
            let bundle = self.at(map.bundle_offset(first), map.bundle.bytes());
            let parts = map.bundle.view(bundle);
            let (hidden, up) = (&mut hidden[first..][..k], &mut up[first..][..k]);
            (self.kernels.matvec)(&parts.gate, &rounded.view(), hidden);
            (self.kernels.matvec)(&parts.up, &rounded.view(), up);
            (self.kernels.gated)(self.shape.activation, hidden, up);
            for (index, h) in hidden.iter().enumerate().filter(|(_, h)| **h != 0.0) {
                let down = parts.down;
                down.dequantize(index, &mut row);
                for (sum, weight) in sum.iter_mut().zip(&row) {
                    *sum += h * weight;
                }
            }
        }
        (hidden, sum)
    }

    /// Appends a token: its logits, and what each feed-forward section did.
    pub fn append(&mut self, token: u32) -> (Vec<f32>, Vec<Seen>) {
        let mut x = self.embedding(token);
        let mut seen = Vec::new();
        for layer in 0..self.shape.n_layers {
            let normed = self.norm(&x);
            let more = self.attention(layer, &normed);
            x.iter_mut().zip(&more).for_each(|(x, more)| *x += more);
            let normed = self.norm(&x);
            for (expert, weight) in self.experts(layer, &normed) {
                let (hidden, more) = self.ffn(layer, expert, &normed);
                let both = x.iter_mut().zip(&more);
                both.for_each(|(x, more)| *x += weight * more);
                seen.push(Seen {
                    layer,
                    expert,
                    x: normed.clone(),
                    hidden,
                });
            }
        }
        let x = Rounded::new(&self.kernels, &self.norm(&x));
        (self.product(&self.image.lm_head(), &x), seen)
    }
}
