//! Gate, up and down of single neurons as they lie in an image: bundles of whole pages, of one
//! neuron each.

use tessera_kernels::{Activation, GROUP, Kernels, NeuronRows, Rows, Soon, WeightType};

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

/// Rows `which` (gate, up, down) of a group's bundles.
fn rows(group: &[u8], which: usize) -> Rows<'_> {
    let codes = [0, 4096, 4096 + CODES][which];
    let scales = CODES + which * SCALES;
    let (codes, scales) = (&group[codes..], &group[scales..]);
    Rows::spread(TY, GROUP, COLS, codes, scales, 1, BUNDLE_BYTES)
}

impl Case {
    pub fn label(&self) -> String {
        let (name, what) = (self.kernels.name, self.what);
        format!("{name:11} neurons {what:8} {:5} 8 KiB x {COLS}", TY.name())
    }

    /// A closure that does some more work and returns all work so far. As in the engine each
    /// product asks for what the next one reads.
    pub fn runner<'m>(&self, memory: &'m Memory) -> Box<dyn FnMut() -> Work + 'm> {
        let &Case { kernels, what } = self;
        let groups = memory.weights.len() / BUNDLE_BYTES / GROUP;
        let bytes = move |index: usize| {
            let at = index % groups * GROUP * BUNDLE_BYTES;
            &memory.weights[at..][..GROUP * BUNDLE_BYTES]
        };
        let part = CODES + SCALES;
        let x = memory.inputs(1, COLS);
        let mut scratch = vec![0u8; Kernels::scratch_bytes(COLS, 1)];
        let (mut acc, mut done) = (vec![0f32; COLS], 0);
        let (mut gate, mut up) = ([0f32; GROUP], [0f32; GROUP]);
        Box::new(move || {
            let group = bytes(done);
            let next = bytes(done + 1);
            let soon = |bytes, len| Soon::stretches(bytes, BUNDLE_BYTES, len);
            let mut down = NeuronRows::new(TY, COLS);
            down.extend(&rows(group, 2));
            match what {
                "gate" => {
                    let rows = rows(group, 0).then(soon(next, part));
                    (kernels.matvec)(&rows, &x, &mut gate);
                }
                "down" => down.then(soon(&next[4096 + CODES..], CODES)),
                _ => {
                    let gate_rows = rows(group, 0).then(soon(&group[4096..], CODES));
                    (kernels.matvec)(&gate_rows, &x, &mut gate);
                    let up_rows = rows(group, 1).then(soon(&group[4096 + CODES..], CODES));
                    (kernels.matvec)(&up_rows, &x, &mut up);
                    (kernels.gated)(Activation::Silu, &mut gate, &up);
                    down.then(soon(next, CODES + 3 * SCALES));
                }
            }
            if what != "gate" {
                (kernels.down_group)(&down, &memory.floats[..GROUP], &mut acc, &mut scratch);
            }
            done += 1;
            let matrices = if what == "all" { 3 } else { 1 };
            Work {
                bytes: done * GROUP * matrices * part,
                macs: done * GROUP * matrices * COLS,
            }
        })
    }
}
