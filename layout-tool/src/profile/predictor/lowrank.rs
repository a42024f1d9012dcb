//! The best low-rank approximation of the gate matrix on the inputs that it really gets.
//!
//! With gate rows G (neurons, dim) and inputs of covariance C, B A of rank r that minimises the
//! squared error of the products on such inputs is B = U, A = U^T G, where U are the first r
//! eigenvectors of G C G^T. They are found by subspace iteration (Halko, Martinsson and Tropp,
//! 2011), all with transposed factors, so that every product is one of rows with rows.

use super::linalg::{Matrix, eigen};

/// Iterations; each makes the error of the subspace smaller by the ratio of eigenvalues.
const ITERATIONS: usize = 3;

/// Two factors: `score = B a`, `a = A x`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Factors {
    /// A (rank, dim); `a` has components of unit variance, the most important first.
    pub a: Matrix,
    /// B^T (rank, neurons).
    pub b: Matrix,
}

/// The factors of rank `rank`, of gate rows `gate` (neurons, dim) and inputs `x` (tokens, dim).
/// The first rows of each are the factors of any smaller rank.
pub fn factors(gate: &Matrix, x: &Matrix, rank: usize) -> Factors {
    let (neurons, dim) = (gate.rows(), gate.cols);
    let columns = x.transposed();
    let mut covariance = columns.times_transposed(&columns);
    covariance.scale(1.0 / x.rows() as f32);
    let turned = gate.transposed();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut w = Matrix::zeros(rank, dim);
    w.data.fill_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    });
    for _ in 0..ITERATIONS {
        let y = w.times_transposed(gate);
        w = y.times_transposed(&turned).times_transposed(&covariance);
        w.orthonormalize();
    }
    let mut u = w.times_transposed(gate);
    u.orthonormalize();
    let a = u.times_transposed(&turned);
    let spread = a.times_transposed(&covariance).times_transposed(&a);
    let (values, vectors) = eigen(&spread);
    // Rows of `vectors` turn the basis towards the eigenvectors.
    let mut a = vectors.times_transposed(&a.transposed());
    let mut b = vectors.times_transposed(&u.transposed());
    for (row, value) in values.iter().enumerate() {
        let deviation = value.max(0.0).sqrt();
        let by = if deviation > values[0].max(0.0).sqrt() * 1e-4 {
            1.0 / deviation
        } else {
            0.0
        };
        a.row_mut(row).iter_mut().for_each(|value| *value *= by);
        b.row_mut(row)
            .iter_mut()
            .for_each(|value| *value *= deviation);
    }
    assert_eq!((a.cols, b.cols), (dim, neurons));
    Factors { a, b }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(rows: usize, cols: usize, seed: u64) -> Matrix {
        let mut state = seed | 1;
        let mut m = Matrix::zeros(rows, cols);
        m.data.fill_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        });
        m
    }

    #[test]
    fn a_gate_of_low_rank_is_found_and_more_rank_is_never_worse() {
        let (neurons, dim, tokens) = (96, 64, 200);
        // Inputs that live mostly in eight directions; a gate of full rank.
        let mut x = noise(tokens, 8, 5).times_transposed(&noise(dim, 8, 6));
        let small = noise(tokens, dim, 7);
        let pairs = x.data.iter_mut().zip(&small.data);
        pairs.for_each(|(x, small)| *x += 0.05 * small);
        let gate = noise(neurons, dim, 8);
        let want = x.times_transposed(&gate);
        let all = factors(&gate, &x, 32);
        let error = |rank: usize| {
            let a = x.times_transposed(&all.a.slice(0, rank));
            let have = a.times_transposed(&all.b.slice(0, rank).transposed());
            let pairs = have.data.iter().zip(&want.data);
            let square: f64 = pairs.map(|(h, w)| f64::from((h - w) * (h - w))).sum();
            (square / want.data.len() as f64).sqrt() / f64::from(want.rms())
        };
        assert!(error(8) < 0.06, "{}", error(8));
        assert!(error(4) > error(8) && error(8) > error(16) && error(16) > error(32));
    }
}
