//! Every weight of a model is where the runtime looks for it.

use std::path::Path;

use layout_tool::image_file::ImageFile;
use layout_tool::pack::{Choice, PackOptions, Weights};
use tessera_kernels::{Rows, WeightType};
use tessera_runtime::format::{MatrixMap, SectionKind, VectorsLayout};

use crate::model::{SPEC, Spec, folder, packed};

fn row(rows: &Rows<'_>, index: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows.cols()];
    rows.dequantize(index, &mut out);
    out
}

/// All rows of a matrix of the image.
fn matrix(bytes: &[u8], map: &MatrixMap) -> Vec<Vec<f32>> {
    let tiles = (0..map.n_tiles()).flat_map(|tile| {
        let (offset, size) = map.tile_place(tile);
        let view = map
            .tile
            .view(map.tile_rows(tile), &bytes[offset as usize..][..size]);
        (0..view.rows())
            .map(|index| row(&view, index))
            .collect::<Vec<_>>()
    });
    tiles.collect()
}

/// Relative RMS error that type `ty` may have on a row of this length.
fn bound(ty: WeightType) -> f64 {
    match ty {
        WeightType::F32 => 0.0,
        WeightType::F16 => 0.0005,
        WeightType::Q8 => 0.008,
        WeightType::Q6 => 0.03,
        WeightType::Q5 => 0.06,
        WeightType::Q4O | WeightType::Q4K => 0.10,
        WeightType::Q4 => 0.12,
    }
}

fn assert_close(have: &[f32], want: impl Fn(usize) -> f32, ty: WeightType, what: &str) {
    let (mut error, mut total) = (0.0, 0.0);
    for (index, have) in have.iter().enumerate() {
        let want = want(index);
        error += f64::from(have - want).powi(2);
        total += f64::from(want).powi(2);
    }
    assert!(
        error.sqrt() <= bound(ty) * total.sqrt(),
        "{what}: {}",
        (error / total).sqrt()
    );
}

/// Packs and compares every row of every matrix, and every vector.
fn check(spec: &Spec, options: &PackOptions) {
    packed(options).unwrap();
    let file = ImageFile::open(&options.target).unwrap();
    let bytes = std::fs::read(&options.target).unwrap();
    let image = file.image();
    let shape = *image.shape();
    let ffn_dim = spec.ffn_dim.next_multiple_of(32);
    assert_eq!(
        (shape.dim, shape.ffn_dim, shape.n_layers),
        (spec.dim, ffn_dim, spec.n_layers)
    );
    let weight = |name: &str, row: usize| {
        let name = name.to_owned();
        let weight = spec.weight;
        move |col: usize| weight(&name, row, col)
    };
    let check_matrix = |map: &MatrixMap, name: &str| {
        for (index, have) in matrix(&bytes, map).iter().enumerate() {
            assert_close(have, weight(name, index), map.tile.ty, name);
        }
    };
    let embedding = "model.embed_tokens.weight";
    check_matrix(&image.embedding(), embedding);
    check_matrix(
        &image.lm_head(),
        if spec.tied {
            embedding
        } else {
            "lm_head.weight"
        },
    );
    for layer in 0..spec.n_layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let parts = ["q_proj", "k_proj", "v_proj", "o_proj"];
        for (map, part) in image.attention(layer).iter().zip(parts) {
            check_matrix(map, &name(&format!("self_attn.{part}")));
        }
        for expert in 0..shape.n_ffns() {
            let names = if spec.n_experts == 0 {
                ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"].map(name)
            } else {
                ["w1", "w3", "w2"].map(|w| name(&format!("block_sparse_moe.experts.{expert}.{w}")))
            };
            let map = image.ffn(layer, expert);
            for neuron in 0..ffn_dim {
                let first = neuron / shape.bundle_neurons * shape.bundle_neurons;
                let offset = map.bundle_offset(first) as usize;
                let parts = map.bundle.view(&bytes[offset..][..map.bundle.bytes()]);
                let [gate, up, down] =
                    [parts.gate, parts.up, parts.down].map(|rows| row(&rows, neuron - first));
                if neuron >= spec.ffn_dim {
                    assert!(gate.iter().chain(&up).chain(&down).all(|w| *w == 0.0));
                    continue;
                }
                assert_close(&gate, weight(&names[0], neuron), map.bundle.gate, &names[0]);
                assert_close(&up, weight(&names[1], neuron), map.bundle.up, &names[1]);
                let column = |output: usize| (spec.weight)(&names[2], output, neuron);
                assert_close(&down, column, map.bundle.down, &names[2]);
            }
        }
    }
    check_vectors(spec, &file, &bytes);
}

fn check_vectors(spec: &Spec, file: &ImageFile, bytes: &[u8]) {
    let image = file.image();
    let shape = image.shape();
    let section = image.vectors();
    let data = &bytes[section.offset as usize..][..section.data_bytes as usize];
    let floats: Vec<f32> = data
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let layout = VectorsLayout::new(shape);
    let vector = |name: &str, place: std::ops::Range<usize>| {
        for (col, have) in floats[place].iter().enumerate() {
            assert_eq!(*have, (spec.weight)(name, 0, col), "{name} {col}");
        }
    };
    let half = spec.head_dim / 2;
    for (pair, have) in floats[layout.inv_freq()].iter().enumerate() {
        let want = 10000f64.powf(-(pair as f64) / half as f64);
        assert!(
            (f64::from(*have) / want - 1.0).abs() < 1e-6,
            "pair {pair}: {have} {want}"
        );
    }
    vector("model.norm.weight", layout.output_norm());
    for layer in 0..spec.n_layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        vector(&name("input_layernorm.weight"), layout.attn_norm(layer));
        vector(
            &name("post_attention_layernorm.weight"),
            layout.ffn_norm(layer),
        );
        let bias = layout.qkv_bias(layer);
        assert_eq!(bias.is_empty(), spec.model_type != "qwen2");
        if !bias.is_empty() {
            let (q_dim, kv_dim) = (shape.q_dim(), shape.kv_dim());
            let at = bias.start;
            vector(&name("self_attn.q_proj.bias"), at..at + q_dim);
            vector(
                &name("self_attn.k_proj.bias"),
                at + q_dim..at + q_dim + kv_dim,
            );
            vector(
                &name("self_attn.v_proj.bias"),
                at + q_dim + kv_dim..bias.end,
            );
        }
        let (q, k) = layout.qk_norm(layer);
        assert_eq!(q.is_empty(), spec.model_type != "qwen3");
        vector(&name("self_attn.q_norm.weight"), q);
        vector(&name("self_attn.k_norm.weight"), k);
        let router = layout.router(layer);
        for (index, have) in floats[router].iter().enumerate() {
            let name = name("block_sparse_moe.gate.weight");
            assert_eq!(
                *have,
                (spec.weight)(&name, index / spec.dim, index % spec.dim)
            );
        }
    }
}

fn options(folder: &Path, spec: &Spec) -> PackOptions {
    let mut options = PackOptions::new(spec.write(folder), folder.join("a.image"));
    options.force = true;
    options
}

#[test]
fn every_weight_reads_back_in_every_type() {
    let folder = folder();
    let mut options = options(folder.path(), &SPEC);
    for weights in [
        Weights::Auto,
        Weights::Q4,
        Weights::Q4o,
        Weights::Q8,
        Weights::F16,
        Weights::F32,
    ] {
        options.weights = weights;
        check(&SPEC, &options);
    }
    options.weights = Weights::Auto;
    for choice in [
        Choice::Q4,
        Choice::Q4o,
        Choice::Q6,
        Choice::Q8,
        Choice::F16,
        Choice::F32,
    ] {
        (options.down, options.lm_head) = (choice, choice);
        check(&SPEC, &options);
        let file = ImageFile::open(&options.target).unwrap();
        let ty = choice.weight_type().unwrap();
        assert_eq!(file.image().lm_head().tile.ty, ty);
        assert_eq!(file.image().ffn(1, 0).bundle.down, ty);
        assert_eq!(file.image().ffn(1, 0).bundle.up, WeightType::Q8);
    }
}

#[test]
fn every_architecture_and_bundle() {
    let folder = folder();
    for spec in [
        Spec {
            tied: true,
            model_type: "qwen2",
            ..SPEC
        },
        Spec {
            model_type: "qwen3",
            head_dim: 64,
            ..SPEC
        },
        Spec {
            model_type: "mixtral",
            n_experts: 3,
            activation: "relu",
            ..SPEC
        },
        Spec {
            model_type: "bamboo",
            activation: "relu",
            ..SPEC
        },
    ] {
        let mut options = options(folder.path(), &spec);
        options.weights = Weights::F32;
        check(&spec, &options);
        for bundle in [1, 2, 4, 8, 16, 32] {
            (options.weights, options.bundle_neurons) = (Weights::Auto, Some(bundle));
            check(&spec, &options);
        }
    }
}

/// 80 neurons are padded to 96, and 300 need a second strip; odd widths go with float types.
#[test]
fn odd_sizes() {
    let folder = folder();
    for ffn_dim in [80, 300] {
        let spec = Spec { ffn_dim, ..SPEC };
        let mut options = options(folder.path(), &spec);
        for weights in [Weights::Auto, Weights::F32] {
            options.weights = weights;
            check(&spec, &options);
        }
    }
    let spec = Spec {
        dim: 40,
        head_dim: 6,
        ffn_dim: 33,
        vocab: 5,
        ..SPEC
    };
    let mut options = options(folder.path(), &spec);
    for weights in [Weights::F16, Weights::F32] {
        options.weights = weights;
        check(&spec, &options);
    }
}

#[test]
fn the_same_bytes_whatever_the_threads() {
    let folder = folder();
    let spec = Spec {
        ffn_dim: 1000,
        vocab: 3000,
        ..SPEC
    };
    let mut options = options(folder.path(), &spec);
    let mut images = Vec::new();
    for threads in [None, Some(1), Some(2), Some(7)] {
        options.threads = threads;
        packed(&options).unwrap();
        images.push(std::fs::read(&options.target).unwrap());
    }
    assert!(images.iter().all(|image| *image == images[0]));
    // And another id where anything is different, if only a token.
    let ids = [
        &spec,
        &Spec {
            weight: |n, r, c| crate::model::noise(n, r, c) * 1.01,
            ..spec.clone()
        },
    ]
    .map(|spec| {
        let mut options = self::options(folder.path(), spec);
        options.threads = None;
        packed(&options).unwrap().image_id
    });
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn sources_of_half_floats() {
    let folder = folder();
    // Weights that both types hold.
    let weight =
        |n: &str, r: usize, c: usize| (crate::model::noise(n, r, c) * 100.0).round() / 64.0;
    let spec = Spec { weight, ..SPEC };
    let f16 = |w: f32| half::f16::from_f32(w).to_le_bytes().to_vec();
    let bf16 = |w: f32| half::bf16::from_f32(w).to_le_bytes().to_vec();
    let mut sources = vec![spec.write_as(&folder.path().join("a"), "F16", f16)];
    sources.push(spec.write_as(&folder.path().join("b"), "BF16", bf16));
    for source in sources {
        for weights in [Weights::F32, Weights::F16, Weights::Auto] {
            let mut options = PackOptions::new(&source, folder.path().join("a.image"));
            (options.weights, options.force) = (weights, true);
            check(&spec, &options);
        }
    }
}

#[test]
fn the_head_says_what_the_model_is() {
    let folder = folder();
    let mut options = options(folder.path(), &SPEC);
    options.weights = Weights::F32;
    let report = packed(&options).unwrap();
    let file = ImageFile::open(&options.target).unwrap();
    let superblock = *file.image().superblock();
    assert_eq!(superblock.name(), "model");
    assert_eq!(
        (superblock.bos_token, superblock.eos_tokens()),
        (Some(1), &[2, 3][..])
    );
    assert!(superblock.shape.kv_f32);
    assert_eq!(
        superblock.image_bytes,
        std::fs::metadata(&options.target).unwrap().len()
    );
    assert_eq!(superblock.image_id, report.image_id);
    assert_eq!(file.image().find(SectionKind::Tokenizer), None);
    let sum: u64 = report.kinds.iter().map(|kind| kind.bytes).sum();
    assert!(sum < report.image_bytes);
    assert_eq!(report.down.len(), SPEC.n_layers);
    assert_eq!(report.down_loss().error, 0.0);
}
