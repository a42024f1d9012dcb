//! Products of whole matrices, of one token and of many.

use tessera_kernels::{GROUP, Kernels, NeuronRows, Rows, WeightType};

use crate::memory::{Memory, Work};
use crate::{FEW, TOKENS, TYPES};

/// (rows, cols)
const SHAPES: [(usize, usize); 4] = [(8960, 1536), (1536, 8960), (1536, 576), (576, 1536)];

/// All of them.
pub fn cases(kernels: Kernels) -> impl Iterator<Item = Case> {
    let names = [
        "matvec",
        "down_group",
        "matmul",
        "down_group_many",
        "matmul_few",
        "down_group_few",
    ];
    let shaped = move |kernel, ty: WeightType| {
        let fitting = move |&(_, cols): &(usize, usize)| cols % ty.cols_multiple() == 0;
        SHAPES
            .into_iter()
            .filter(fitting)
            .map(move |(rows, cols)| Case {
                kernels,
                kernel,
                ty,
                rows,
                cols,
            })
    };
    names
        .into_iter()
        .flat_map(|kernel| TYPES.map(|ty| (kernel, ty)))
        .flat_map(move |(kernel, ty)| shaped(kernel, ty))
}

/// One kernel on matrices of one shape.
pub struct Case {
    pub kernels: Kernels,
    pub kernel: &'static str,
    pub ty: WeightType,
    pub rows: usize,
    pub cols: usize,
}

impl Case {
    pub fn label(&self) -> String {
        let (name, kernel, ty) = (self.kernels.name, self.kernel, self.ty.name());
        format!(
            "{name:11} {kernel:16} {ty:5} {:4} x {:4}",
            self.rows, self.cols
        )
    }

    /// A closure that does some more work and returns all work so far.
    pub fn runner<'m>(&self, memory: &'m Memory) -> Box<dyn FnMut() -> Work + 'm> {
        let &Case {
            kernels,
            kernel,
            ty,
            rows,
            cols,
        } = self;
        // As many rows as there are, if a matrix does not fit.
        let rows = rows.min(memory.weights.len() / ty.row_bytes(cols) / GROUP * GROUP);
        let matrix_bytes = rows * ty.row_bytes(cols);
        let matrices = memory.weights.len() / matrix_bytes;
        let code_bytes = rows * ty.code_bytes(cols);
        let tokens = match kernel {
            "matvec" | "down_group" => 1,
            "matmul_few" | "down_group_few" => FEW,
            _ => TOKENS,
        };
        let mut scratch = vec![0u8; Kernels::scratch_bytes(cols)];
        let mut out = vec![0f32; rows.max(cols) * tokens];
        let mut done = 0;
        Box::new(move || {
            let bytes = &memory.weights[done % matrices * matrix_bytes..][..matrix_bytes];
            let (codes, scales) = bytes.split_at(code_bytes);
            let w = Rows::new(ty, rows, cols, codes, scales);
            done += 1;
            match kernel {
                "matvec" => (kernels.matvec)(&w, &memory.inputs(1, cols), &mut out[..rows]),
                "matmul" | "matmul_few" => {
                    let x = memory.inputs(tokens, cols);
                    (kernels.matmul)(&w, &x, &mut out[..rows * tokens], &mut scratch);
                }
                _ => {
                    for first in (0..rows).step_by(GROUP) {
                        let mut group = NeuronRows::new(ty, cols);
                        group.extend(&w.slice(first, GROUP).zipped());
                        // As the engine does: the next group's codes are asked for meanwhile.
                        let next = codes.get((first + GROUP) * ty.code_bytes(cols)..);
                        let next = next.unwrap_or(&[]);
                        group.then(&next[..next.len().min(codes.len() / rows * GROUP)]);
                        let h = &memory.floats[first * tokens..][..GROUP * tokens];
                        let acc = &mut out[..cols * tokens];
                        if tokens > 1 {
                            let all = 0..cols;
                            (kernels.down_group_many)(&group, all, tokens, h, acc, &mut scratch);
                        } else {
                            (kernels.down_group)(&group, h, acc, &mut scratch);
                        }
                    }
                }
            }
            Work {
                bytes: done * matrix_bytes,
                macs: done * rows * cols * tokens,
            }
        })
    }
}
