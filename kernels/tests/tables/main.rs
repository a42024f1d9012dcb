//! Every table this CPU can run against the scalar reference, bit for bit.

use tessera_kernels::{Activations, FEW_TOKENS, Kernels, Rows, WeightType};
use testing::Random;

mod attend;
mod doors;
mod down;
mod floats;
mod products;
mod quantize;
#[path = "../../src/testing.rs"]
mod testing;

const QUANTIZED: [WeightType; 6] = [
    WeightType::Q8,
    WeightType::Q4,
    WeightType::Q4O,
    WeightType::Q6,
    WeightType::Q5,
    WeightType::Q4K,
];

/// Shapes with odd numbers of blocks, of pairs and of eights of blocks.
const COLS: [usize; 9] = [32, 64, 96, 128, 256, 288, 544, 576, 1536];

/// `cols` columns, or as many more as `ty` needs.
fn cols_of(ty: WeightType, cols: usize) -> usize {
    cols.next_multiple_of(ty.cols_multiple())
}

fn tables() -> impl Iterator<Item = Kernels> {
    Kernels::available().filter(|kernels| kernels.name != "scalar")
}

/// The same bits, where every NaN is the same.
#[track_caller]
fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(
            same,
            "{what}: [{i}] is {got:e} ({:#x}), not {want:e}",
            got.to_bits()
        );
    }
}

fn scratch(cols: usize) -> Vec<u8> {
    vec![0xa5; Kernels::scratch_bytes(cols)]
}

/// A matrix that owns its bytes.
struct Matrix {
    ty: WeightType,
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Matrix {
    /// Any codes and any finite scales.
    fn random(random: &mut Random, ty: WeightType, rows: usize, cols: usize) -> Self {
        let mut codes = random.bytes(rows * ty.code_bytes(cols));
        match ty {
            WeightType::F32 => {
                for bytes in codes.as_chunks_mut().0 {
                    *bytes = random.normal().to_le_bytes();
                }
            }
            WeightType::F16 => {
                for bytes in codes.as_chunks_mut().0 {
                    *bytes = half::f16::from_f32(random.normal()).to_le_bytes();
                }
            }
            WeightType::Q8 => {
                for code in &mut codes {
                    *code = if *code == 0x80 { 0x81 } else { *code };
                }
            }
            _ => {}
        }
        let mut scales = vec![0; rows * ty.scale_bytes(cols)];
        for bytes in scales.as_chunks_mut().0 {
            *bytes = half::f16::from_f32(random.normal() * 0.02).to_le_bytes();
        }
        Matrix {
            ty,
            rows,
            cols,
            codes,
            scales,
        }
    }

    /// All codes the highest (or, for `low`, the lowest), all scales one.
    fn extreme(ty: WeightType, rows: usize, cols: usize, low: bool) -> Self {
        let code = match (ty, low) {
            (WeightType::Q8, false) => 127,
            (WeightType::Q8, true) => 0x81,
            (_, false) => 0xff,
            (_, true) => 0,
        };
        let codes = vec![code; rows * ty.code_bytes(cols)];
        let one = half::f16::from_f32(1.0).to_le_bytes();
        let scales = one.repeat(rows * ty.scale_bytes(cols) / 2);
        Matrix {
            ty,
            rows,
            cols,
            codes,
            scales,
        }
    }

    fn view(&self) -> Rows<'_> {
        Rows::new(self.ty, self.rows, self.cols, &self.codes, &self.scales)
    }

    /// Makes the scales of block `block` of row `row` NaN (or a float weight there).
    fn poison(&mut self, row: usize, block: usize) {
        let nan = half::f16::NAN.to_le_bytes();
        match self.ty {
            WeightType::F32 => {
                let at = row * self.ty.code_bytes(self.cols) + block * 128;
                self.codes[at..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
            }
            WeightType::F16 => {
                let at = row * self.ty.code_bytes(self.cols) + block * 64;
                self.codes[at..][..2].copy_from_slice(&nan);
            }
            WeightType::Q4K => {
                let at = row * self.ty.scale_bytes(self.cols) + block / 8 * 16;
                self.scales[at..][..2].copy_from_slice(&nan);
            }
            _ => {
                let at = row * self.ty.scale_bytes(self.cols) + block * 2;
                self.scales[at..][..2].copy_from_slice(&nan);
            }
        }
    }
}

/// Inputs that own their numbers.
struct Inputs {
    tokens: usize,
    cols: usize,
    x: Vec<f32>,
    q: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    interleaved: Vec<i8>,
    tiles: (Vec<i8>, Vec<f32>, Vec<i32>),
}

impl Inputs {
    fn of(x: Vec<f32>, tokens: usize) -> Self {
        let (cols, len) = (x.len() / tokens, x.len());
        let (mut q, mut scales, mut sums) = (vec![0; len], vec![0.0; len / 32], vec![0; len / 32]);
        (Kernels::SCALAR.quantize)(&x, &mut q, &mut scales, &mut sums);
        let mut interleaved = vec![0; len];
        for (q, out) in q.chunks(cols).zip(interleaved.chunks_mut(cols)) {
            tessera_kernels::interleave_activations(q, out);
        }
        let len = tessera_kernels::tiles_len(tokens, cols);
        let mut tiles = (vec![1; len], vec![1.0; len / 32], vec![1; len / 32]);
        let mut out = tessera_kernels::TokenTilesMut {
            q: &mut tiles.0,
            scales: &mut tiles.1,
            sums: &mut tiles.2,
        };
        tessera_kernels::tile_activations(cols, &q, &scales, &sums, &mut out);
        Inputs {
            tokens,
            cols,
            x,
            q,
            scales,
            sums,
            interleaved,
            tiles,
        }
    }

    fn random(random: &mut Random, tokens: usize, cols: usize) -> Self {
        Self::of(random.floats(tokens * cols), tokens)
    }

    /// As products of a few tokens want them, or those of many.
    fn view(&self) -> Activations<'_> {
        match self.tokens {
            0..=FEW_TOKENS => self.plain().with_interleaved(&self.interleaved),
            _ => self.tiled(),
        }
    }

    /// As panels want them.
    fn tiled(&self) -> Activations<'_> {
        let (q, scales, sums) = &self.tiles;
        self.plain()
            .with_tiles(tessera_kernels::TokenTiles { q, scales, sums })
    }

    /// In order alone.
    fn plain(&self) -> Activations<'_> {
        Activations::new(
            self.tokens,
            self.cols,
            &self.x,
            &self.q,
            &self.scales,
            &self.sums,
        )
    }
}

#[test]
fn tables_have_their_names() {
    for kernels in Kernels::available() {
        let found = Kernels::by_name(kernels.name).map(|found| found.name);
        assert_eq!(found, Some(kernels.name));
    }
    assert_eq!(
        Kernels::best().name,
        Kernels::available().next().unwrap().name
    );
    assert!(Kernels::by_name("abacus").is_none());
    println!("{:?}", Kernels::available().collect::<Vec<_>>());
}

/// Where a CPU lacks an instruction set, what compares its table passes without a look at it. So CI
/// names the tables that its machine has: `TESSERA_REQUIRE_TABLES="avx2 avx512vnni"`.
#[test]
fn required_tables_are_here() {
    let required = std::env::var("TESSERA_REQUIRE_TABLES").unwrap_or_default();
    for name in required.split_whitespace() {
        let found = Kernels::by_name(name).is_some();
        assert!(
            found,
            "no table {name} among {:?}",
            Kernels::available().collect::<Vec<_>>()
        );
    }
}

#[test]
fn ceilings_count_their_work() {
    for kernels in Kernels::available() {
        for of in [
            tessera_kernels::Arithmetic::Bytes,
            tessera_kernels::Arithmetic::Floats,
        ] {
            let [one, ten] = [1, 10].map(|rounds| (kernels.ceiling)(of, rounds));
            assert!(one > 0 && ten == 10 * one, "{} {of:?}", kernels.name);
        }
    }
}

#[test]
fn crc_of_known_vectors() {
    for kernels in Kernels::available() {
        assert_eq!(
            (kernels.crc32c)(0, b"123456789"),
            0xe306_9283,
            "{}",
            kernels.name
        );
        // RFC 3720, B.4.
        assert_eq!((kernels.crc32c)(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!((kernels.crc32c)(0, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!((kernels.crc32c)(0, &[]), 0);
    }
}

#[test]
fn crc_continues_and_agrees() {
    let bytes = Random::new(5).bytes(20_000);
    for kernels in tables() {
        for len in [1, 7, 8, 9, 4079, 4080, 4081, 4096, 8192, 16_384, 20_000] {
            let want = (Kernels::SCALAR.crc32c)(0, &bytes[..len]);
            assert_eq!(
                (kernels.crc32c)(0, &bytes[..len]),
                want,
                "{} {len}",
                kernels.name
            );
            let (head, tail) = bytes[..len].split_at(len / 3);
            let first = (kernels.crc32c)(0, head);
            assert_eq!(
                (kernels.crc32c)(first, tail),
                want,
                "{} {len}",
                kernels.name
            );
        }
    }
}
