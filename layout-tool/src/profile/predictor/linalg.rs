//! Dense matrices in f32, row by row, in one fixed order of operations.

use tessera_kernels::Kernels;

/// A matrix (rows, cols), row-major.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Matrix {
    /// Number of columns.
    pub cols: usize,
    /// Elements.
    pub data: Vec<f32>,
}

/// Rows of the second factor that are multiplied while they are in the cache.
const BLOCK_BYTES: usize = 128 << 10;

impl Matrix {
    /// All zeros.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Matrix {
            cols,
            data: vec![0.0; rows * cols],
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / self.cols
    }

    /// Row `row`.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }

    /// Row `row`.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.cols..][..self.cols]
    }

    /// Rows `start..start + count`.
    pub fn slice(&self, start: usize, count: usize) -> Matrix {
        Matrix {
            cols: self.cols,
            data: self.data[start * self.cols..][..count * self.cols].to_vec(),
        }
    }

    /// self^T
    pub fn transposed(&self) -> Matrix {
        let (rows, cols) = (self.rows(), self.cols);
        let mut out = Matrix::zeros(cols, rows);
        for row in 0..rows {
            for (col, value) in self.row(row).iter().enumerate() {
                out.data[col * rows + row] = *value;
            }
        }
        out
    }

    /// self (m, k) @ other (n, k)^T -> (m, n)
    pub fn times_transposed(&self, other: &Matrix) -> Matrix {
        assert_eq!(self.cols, other.cols);
        let dot = Kernels::best().dot;
        let mut out = Matrix::zeros(self.rows(), other.rows());
        let block = (BLOCK_BYTES / (4 * self.cols)).max(1);
        for start in (0..other.rows()).step_by(block) {
            let end = (start + block).min(other.rows());
            for row in 0..self.rows() {
                let this = self.row(row);
                for (to, index) in out.row_mut(row)[start..end].iter_mut().zip(start..) {
                    *to = dot(this, other.row(index));
                }
            }
        }
        out
    }

    /// Multiplies every element.
    pub fn scale(&mut self, by: f32) {
        self.data.iter_mut().for_each(|value| *value *= by);
    }

    /// Root of the mean square of the elements.
    pub fn rms(&self) -> f32 {
        let square = |value: &f32| f64::from(*value) * f64::from(*value);
        let sum: f64 = self.data.iter().map(square).sum();
        (sum / self.data.len().max(1) as f64).sqrt() as f32
    }

    /// Makes the rows orthonormal (modified Gram-Schmidt, twice); rows that depend on earlier ones
    /// become zero.
    pub fn orthonormalize(&mut self) {
        let dot = Kernels::best().dot;
        for row in 0..self.rows() {
            let before = dot(self.row(row), self.row(row));
            for _ in 0..2 {
                for other in 0..row {
                    let (done, rest) = self.data.split_at_mut(row * self.cols);
                    let other = &done[other * self.cols..][..self.cols];
                    let this = &mut rest[..self.cols];
                    let share = dot(this, other);
                    for (value, other) in this.iter_mut().zip(other) {
                        *value -= share * other;
                    }
                }
            }
            let after = dot(self.row(row), self.row(row));
            let independent = after > before * 1e-10 && after > f32::MIN_POSITIVE;
            let by = if independent { 1.0 / after.sqrt() } else { 0.0 };
            self.row_mut(row).iter_mut().for_each(|value| *value *= by);
        }
    }
}

/// Eigenvalues of a symmetric matrix, descending, and their vectors as rows (cyclic Jacobi).
pub fn eigen(matrix: &Matrix) -> (Vec<f32>, Matrix) {
    let n = matrix.cols;
    let mut a: Vec<f64> = matrix.data.iter().map(|&value| f64::from(value)).collect();
    let mut v = vec![0.0; n * n];
    (0..n).for_each(|i| v[i * n + i] = 1.0);
    for _ in 0..SWEEPS_MAX {
        let squares = |pick: &dyn Fn(usize, usize) -> bool| -> f64 {
            let all = (0..n * n).filter(|at| pick(at / n, at % n));
            all.map(|at| a[at] * a[at]).sum()
        };
        if squares(&|i, j| i != j) <= 1e-18 * squares(&|_, _| true) {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut v, n, p, q);
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[j * n + j].total_cmp(&a[i * n + i]));
    let values = order.iter().map(|&i| a[i * n + i] as f32).collect();
    let data = order
        .iter()
        .flat_map(|&i| v[i * n..(i + 1) * n].iter().map(|&value| value as f32))
        .collect();
    (values, Matrix { cols: n, data })
}

/// Sweeps of Jacobi's method, at most; it converges quadratically.
const SWEEPS_MAX: usize = 12;

/// Makes the element (p, q) zero by a rotation of rows and columns p and q.
fn rotate(a: &mut [f64], v: &mut [f64], n: usize, p: usize, q: usize) {
    let apq = a[p * n + q];
    if apq == 0.0 {
        return;
    }
    let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * apq);
    let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let c = 1.0 / (t * t + 1.0).sqrt();
    let s = t * c;
    let turn = |x: f64, y: f64| (c * x - s * y, s * x + c * y);
    for k in 0..n {
        let (x, y) = turn(a[k * n + p], a[k * n + q]);
        (a[k * n + p], a[k * n + q]) = (x, y);
    }
    for k in 0..n {
        let (x, y) = turn(a[p * n + k], a[q * n + k]);
        (a[p * n + k], a[q * n + k]) = (x, y);
        let (x, y) = turn(v[p * n + k], v[q * n + k]);
        (v[p * n + k], v[q * n + k]) = (x, y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(rows: usize, cols: usize, seed: u32) -> Matrix {
        let value = |i: usize| {
            let mixed = (i as u32 ^ seed)
                .wrapping_mul(2_654_435_761)
                .rotate_left(13);
            (mixed.wrapping_mul(2_246_822_519) >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        Matrix {
            cols,
            data: (0..rows * cols).map(value).collect(),
        }
    }

    #[test]
    fn eigenvectors_take_the_matrix_apart() {
        let x = noise(20, 12, 1);
        let s = x.transposed().times_transposed(&x.transposed());
        let (values, vectors) = eigen(&s);
        assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
        for (row, value) in values.iter().enumerate() {
            let v = vectors.slice(row, 1);
            let sv = v.times_transposed(&s);
            for (have, want) in sv.data.iter().zip(&v.data) {
                assert!((have - value * want).abs() < 1e-4 * values[0]);
            }
        }
    }

    #[test]
    fn rows_become_orthonormal_and_dependent_ones_zero() {
        let mut m = noise(4, 9, 2);
        let sum: Vec<f32> = m.row(0).iter().zip(m.row(1)).map(|(a, b)| a + b).collect();
        m.row_mut(2).copy_from_slice(&sum);
        m.orthonormalize();
        let gram = m.times_transposed(&m);
        for i in 0..4 {
            for j in 0..4 {
                let want = if i == j && i != 2 { 1.0 } else { 0.0 };
                assert!((gram.row(i)[j] - want).abs() < 1e-5, "{gram:?}");
            }
        }
    }
}
