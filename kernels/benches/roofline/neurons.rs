//! Gate, up and down of neurons as they stand in memory, packed: bundles of one neuron each or of a
//! group.

use tessera_kernels::{Activation, GROUP, Kernels, NeuronRows, Rows, Soon, WeightType};

use crate::memory::{Memory, Work};

/// Bundles of neurons.
struct Bundles {
    label: &'static str,
    /// Types of gate, up and down.
    types: [WeightType; 3],
    cols: usize,
    /// Neurons of one.
    k: usize,
}

/// Single neurons of 4-bit weights, 4,096 wide: 6.75 KiB each; groups of the same; groups as
/// Qwen2.5-Coder-1.5B has them.
const BUNDLES: [Bundles; 3] = [
    Bundles {
        label: "single x 4096",
        types: [WeightType::Q4; 3],
        cols: 4096,
        k: 1,
    },
    Bundles {
        label: "group x 4096",
        types: [WeightType::Q4; 3],
        cols: 4096,
        k: GROUP,
    },
    Bundles {
        label: "group x 1536",
        types: [WeightType::Q4K, WeightType::Q4K, WeightType::Q5],
        cols: 1536,
        k: GROUP,
    },
];
/// A cache line.
const ALIGN_BYTES: usize = 64;

impl Bundles {
    fn codes(&self, which: usize) -> usize {
        self.k * self.types[which].code_bytes(self.cols)
    }

    fn scales(&self, which: usize) -> usize {
        self.k * self.types[which].scale_bytes(self.cols)
    }

    /// Codes of the gate rows and all scales.
    fn first_bytes(&self) -> usize {
        self.codes(0) + (0..3).map(|which| self.scales(which)).sum::<usize>()
    }

    /// Where codes of a matrix begin.
    fn codes_at(&self, which: usize) -> usize {
        let second = self.first_bytes().next_multiple_of(ALIGN_BYTES);
        [0, second, second + self.codes(1)][which]
    }

    fn bytes(&self) -> usize {
        (self.codes_at(2) + self.codes(2)).next_multiple_of(ALIGN_BYTES)
    }

    /// Rows `which` (gate, up, down) of a group's bundles.
    fn rows<'a>(&self, group: &'a [u8], which: usize) -> Rows<'a> {
        let scales_at = self.codes(0) + (0..which).map(|which| self.scales(which)).sum::<usize>();
        let (codes, scales) = (&group[self.codes_at(which)..], &group[scales_at..]);
        let (ty, cols) = (self.types[which], self.cols);
        let rows = Rows::spread(ty, GROUP, cols, codes, scales, self.k, self.bytes());
        match (which, self.k) {
            (2, GROUP) => rows.zipped(),
            (2, _) => rows.in_order(),
            _ => rows,
        }
    }
}

impl Bundles {
    fn soon<'a>(&self, group: &'a [u8], which: usize) -> Soon<'a> {
        let len = match which {
            0 => self.first_bytes(),
            _ => self.codes(which),
        };
        Soon::stretches(&group[self.codes_at(which)..], self.bytes(), len)
    }
}
/// All of them.
pub fn cases(kernels: Kernels) -> impl Iterator<Item = Case> {
    BUNDLES.iter().flat_map(move |bundles| {
        ["gate", "up", "down", "all"].map(|what| Case {
            kernels,
            bundles,
            what,
        })
    })
}

/// One or all of the three products.
pub struct Case {
    kernels: Kernels,
    bundles: &'static Bundles,
    what: &'static str,
}

impl Case {
    pub fn label(&self) -> String {
        let (name, what, bundles) = (self.kernels.name, self.what, self.bundles.label);
        let ty = self.bundles.types[0].name();
        format!("{name:11} neurons {what:8} {ty:5} {bundles}")
    }

    /// A closure that does some more work and returns all work so far. As in the engine each
    /// product asks for what the next one reads.
    pub fn runner<'m>(&self, memory: &'m Memory) -> Box<dyn FnMut() -> Work + 'm> {
        let &Case {
            kernels,
            bundles: b,
            what,
        } = self;
        let group_bytes = b.bytes() * GROUP / b.k;
        let groups = memory.weights.len() / group_bytes;
        let bytes =
            move |index: usize| &memory.weights[index % groups * group_bytes..][..group_bytes];
        let x = memory.inputs(1, b.cols);
        let mut scratch = vec![0u8; Kernels::scratch_bytes(b.cols)];
        let (mut acc, mut done) = (vec![0f32; b.cols], 0);
        let (mut gate, mut up) = ([0f32; GROUP], [0f32; GROUP]);
        // As the engine does: single neurons' rows are picked, a group's taken as they stand.
        let product = move |rows: Rows<'_>, out: &mut [f32; GROUP]| {
            if b.k == GROUP {
                return (kernels.matvec)(&rows, &x, out);
            }
            let mut picked = NeuronRows::new(rows.ty(), b.cols);
            (0..GROUP).for_each(|row| picked.push(rows.codes(row), rows.scales(row)));
            picked.then(rows.soon());
            (kernels.dot_group)(&picked, &x, out);
        };
        Box::new(move || {
            let group = bytes(done);
            let next = bytes(done + 1);
            let mut down = NeuronRows::new(b.types[2], b.cols);
            down.extend(&b.rows(group, 2));
            match what {
                "up" => {
                    let rows = b.rows(group, 1).then(b.soon(next, 1));
                    product(rows, &mut up);
                }
                "gate" => {
                    let rows = b.rows(group, 0).then(b.soon(next, 0));
                    product(rows, &mut gate);
                }
                "down" => down.then(b.soon(next, 2)),
                _ => {
                    product(b.rows(group, 0).then(b.soon(group, 1)), &mut gate);
                    product(b.rows(group, 1).then(b.soon(group, 2)), &mut up);
                    (kernels.gated)(Activation::Silu, &mut gate, &up);
                    down.then(b.soon(next, 0));
                }
            }
            if !matches!(what, "gate" | "up") {
                (kernels.down_group)(&down, &memory.floats[..GROUP], &mut acc, &mut scratch);
            }
            done += 1;
            let matrices = match what {
                "gate" => 0..1,
                "up" => 1..2,
                "down" => 2..3,
                _ => 0..3,
            };
            let row_bytes = |which: usize| b.types[which].row_bytes(b.cols);
            Work {
                bytes: done * GROUP * matrices.clone().map(row_bytes).sum::<usize>(),
                macs: done * GROUP * matrices.len() * b.cols,
            }
        })
    }
}
