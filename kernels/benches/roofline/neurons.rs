//! Gate, up and down of single neurons as they lie in an image: bundles of whole pages, of one
//! neuron each.

use tessera_kernels::{Activation, GROUP, Kernels, NeuronRows, Rows, WeightType};

use crate::memory::{Memory, Work};

/// All of them.
pub fn cases(kernels: Kernels) -> impl Iterator<Item = Case> {
    ["gate", "down", "all"]
        .into_iter()
        .map(move |what| Case { kernels, what })
}

/// Neurons of 4-bit weights, 4,096 wide: 8 KiB each.
pub struct Case {
    kernels: Kernels,
    what: &'static str,
}

const COLS: usize = 4096;
const TY: WeightType = WeightType::Q4;
const BUNDLE_BYTES: usize = 8192;
const CODES: usize = TY.code_bytes(COLS);
const SCALES: usize = TY.scale_bytes(COLS);

/// Codes and scales of row `which` (gate, up, down) of a bundle.
fn row(bundle: &[u8], which: usize) -> (&[u8], &[u8]) {
    let codes = [0, 4096, 4096 + CODES][which];
    (
        &bundle[codes..][..CODES],
        &bundle[CODES + which * SCALES..][..SCALES],
    )
}

impl Case {
    pub fn label(&self) -> String {
        let (name, what) = (self.kernels.name, self.what);
        format!("{name:11} neurons {what:8} {:5} 8 KiB x {COLS}", TY.name())
    }

    /// A closure that does some more work and returns all work so far.
    pub fn runner<'m>(&self, memory: &'m Memory) -> Box<dyn FnMut() -> Work + 'm> {
        let &Case { kernels, what } = self;
        let groups = memory.weights.len() / BUNDLE_BYTES / GROUP;
        let rows = if what == "all" { 3 } else { 1 };
        let mut scratch = vec![0u8; Kernels::scratch_bytes(COLS, 1)];
        let (mut acc, mut done) = (vec![0f32; COLS], 0);
        let (mut gate, mut up) = ([0f32; GROUP], [0f32; GROUP]);
        Box::new(move || {
            let x = memory.inputs(1, COLS);
            let at = done % groups * GROUP * BUNDLE_BYTES;
            let group = &memory.weights[at..][..GROUP * BUNDLE_BYTES];
            if what != "down" {
                for (n, bundle) in group.chunks(BUNDLE_BYTES).enumerate() {
                    let (codes, scales) = row(bundle, 0);
                    (kernels.matvec)(&Rows::new(TY, 1, COLS, codes, scales), &x, &mut gate[n..=n]);
                    if what == "all" {
                        let (codes, scales) = row(bundle, 1);
                        let rows = Rows::new(TY, 1, COLS, codes, scales);
                        (kernels.matvec)(&rows, &x, &mut up[n..=n]);
                    }
                }
                (kernels.gated)(Activation::Silu, &mut gate, &up);
            }
            if what != "gate" {
                let mut rows = NeuronRows::new(TY, COLS);
                for bundle in group.chunks(BUNDLE_BYTES) {
                    let (codes, scales) = row(bundle, 2);
                    rows.push(codes, scales);
                }
                (kernels.down_group)(&rows, &memory.floats[..GROUP], &mut acc, &mut scratch);
            }
            done += 1;
            Work {
                bytes: done * GROUP * rows * (CODES + SCALES),
                macs: done * GROUP * rows * COLS,
            }
        })
    }
}
