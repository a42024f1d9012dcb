//! Attention over segments of the cache.

use super::*;
use tessera_kernels::attention::{
    Queries, SEGMENT, Segment, clear, finish, merge, scratch_len, state_len,
};
use tessera_kernels::kv::{KvRows, KvRowsMut, KvType};

const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8];

/// Storage of keys or values.
struct Store {
    ty: KvType,
    floats: Vec<f32>,
    halves: Vec<u16>,
    codes: Vec<i8>,
}

impl Store {
    fn new(random: &mut Random, ty: KvType, positions: usize, dim: usize) -> Self {
        // What was never written is anything.
        let len = positions * dim;
        Store {
            ty,
            floats: (0..len).map(|_| f32::from_bits(random.bits())).collect(),
            halves: (0..len).map(|_| random.bits() as u16).collect(),
            codes: (0..len).map(|_| random.bits() as i8).collect(),
        }
    }

    fn rows_mut(&mut self, positions: usize) -> KvRowsMut<'_> {
        match self.ty {
            KvType::F32 => KvRowsMut::F32(&mut self.floats),
            KvType::F16 => KvRowsMut::F16(&mut self.halves),
            KvType::Q8 => KvRowsMut::Q8(&mut self.codes, &mut self.floats[..positions]),
        }
    }
}

/// A head's cache and some queries.
struct Case {
    dim: usize,
    group: usize,
    /// Position of the first query.
    pos: usize,
    tokens: usize,
    window: usize,
    positions: usize,
    keys: Store,
    values: Store,
    k: Vec<f32>,
    v: Vec<f32>,
    q: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random, ty: KvType, dim: usize, group: usize, tokens: usize) -> Self {
        let pos = random.below(400);
        let used = pos + tokens;
        let positions = used.next_multiple_of(32);
        let mut case = Case {
            dim,
            group,
            pos,
            tokens,
            window: [0, 0, 7, 150][random.below(4)],
            positions,
            keys: Store::new(random, ty, positions, dim),
            values: Store::new(random, ty, positions, dim),
            k: random.floats(used * dim),
            v: random.floats(used * dim),
            q: random.floats(tokens * group * dim),
        };
        case.write(&Kernels::SCALAR);
        case
    }

    fn write(&mut self, kernels: &Kernels) {
        let rows = self.k.chunks(self.dim).zip(self.v.chunks(self.dim));
        for (pos, (k, v)) in rows.enumerate() {
            self.keys.rows_mut(self.positions).put_key(kernels, pos, k);
            self.values
                .rows_mut(self.positions)
                .put_value(kernels, pos, v);
        }
    }

    /// States of `tokens` from the `first` on.
    fn states(&mut self, kernels: &Kernels, first: usize, tokens: usize) -> Vec<f32> {
        let &mut Case {
            dim,
            group,
            positions,
            ..
        } = self;
        let mut states = vec![f32::NAN; tokens * group * state_len(dim)];
        clear(dim, &mut states);
        let queries = Queries {
            q: &self.q[first * group * dim..][..tokens * group * dim],
            group,
            pos: self.pos + first,
            window: self.window,
            scale: 0.3,
        };
        let (keys, values) = (
            self.keys.rows_mut(positions),
            self.values.rows_mut(positions),
        );
        for start in (0..positions).step_by(SEGMENT) {
            let count = SEGMENT.min(positions - start);
            let segment = Segment {
                dim,
                start,
                count,
                keys: keys.rows().slice(dim, start, count),
                values: values.rows().slice(dim, start, count),
            };
            let mut work = vec![f32::NAN; scratch_len(dim)];
            (kernels.attend)(&segment, &queries, &mut states, &mut work);
        }
        states
    }

    /// Softmax attention in f64.
    fn naive(&self, token: usize, head: usize) -> Vec<f64> {
        let (dim, pos) = (self.dim, self.pos + token);
        let q = &self.q[(token * self.group + head) * dim..][..dim];
        let first = match self.window {
            0 => 0,
            window => (pos + 1).saturating_sub(window),
        };
        let product = |p: usize| -> f64 {
            let k = &self.k[p * dim..][..dim];
            q.iter()
                .zip(k)
                .map(|(&q, &k)| f64::from(q) * f64::from(k))
                .sum()
        };
        let scores: Vec<f64> = (first..=pos).map(|p| product(p) * 0.3).collect();
        let top = scores.iter().copied().fold(f64::MIN, f64::max);
        let mass: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        let mut out = vec![0.0; dim];
        for (p, score) in (first..=pos).zip(scores) {
            for (out, &v) in out.iter_mut().zip(&self.v[p * dim..]) {
                *out += (score - top).exp() / mass * f64::from(v);
            }
        }
        out
    }
}

fn cases(seed: u64) -> impl Iterator<Item = Case> {
    let mut random = Random::new(seed);
    let shapes = [
        (8, 1, 1),
        (16, 3, 1),
        (64, 3, 5),
        (40, 2, 2),
        (128, 6, 3),
        (96, 1, 9),
    ];
    (0..72).map(move |i| {
        let (dim, group, tokens) = shapes[i / 3 % shapes.len()];
        Case::new(&mut random, TYPES[i % 3], dim, group, tokens)
    })
}

#[test]
fn attend_agrees() {
    for mut case in cases(51) {
        let tokens = case.tokens;
        let want = case.states(&Kernels::SCALAR, 0, tokens);
        for kernels in tables() {
            case.write(&kernels);
            let got = case.states(&kernels, 0, tokens);
            assert_same(&got, &want, &format!("{} {:?}", kernels.name, case.keys.ty));
        }
    }
}

#[test]
fn attend_is_near_softmax() {
    for mut case in cases(52) {
        let states = case.states(&Kernels::SCALAR, 0, case.tokens);
        let error_max = match case.keys.ty {
            KvType::F32 => 5e-6,
            KvType::F16 => 4e-3,
            KvType::Q8 => 2e-1,
        };
        for (row, state) in states.chunks(state_len(case.dim)).enumerate() {
            let mut out = vec![0.0; case.dim];
            finish(case.dim, state, &mut out);
            let want = case.naive(row / case.group, row % case.group);
            for (out, want) in out.iter().zip(&want) {
                let error = (f64::from(*out) - want).abs();
                assert!(error <= error_max, "{:?}: {error:e}", case.keys.ty);
            }
        }
    }
}

/// Neither the tokens beside a query nor a cut between segments change a bit.
#[test]
fn attend_alone_and_in_parts_is_the_same() {
    for mut case in cases(53) {
        let (dim, group) = (case.dim, case.group);
        for kernels in Kernels::available() {
            let all = case.states(&kernels, 0, case.tokens);
            let all = all.chunks(group * state_len(dim));
            for (token, want) in all.enumerate().collect::<Vec<_>>() {
                assert_same(&case.states(&kernels, token, 1), want, kernels.name);
            }
        }
        let whole = case.states(&Kernels::SCALAR, 0, 1);
        let mut merged = vec![0.0; whole.len()];
        clear(dim, &mut merged);
        let parts = merged.clone();
        let states = merged.chunks_mut(state_len(dim));
        for ((state, part), whole) in states
            .zip(parts.chunks(state_len(dim)))
            .zip(whole.chunks(state_len(dim)))
        {
            merge(dim, state, part);
            merge(dim, state, whole);
            merge(dim, state, part);
        }
        assert_same(&merged, &whole, "merged with nothing");
    }
}

#[test]
fn attend_keeps_nan() {
    for mut case in cases(54) {
        let (dim, pos) = (case.dim, case.pos);
        let in_key = pos.is_multiple_of(2);
        let poisoned = if in_key { &mut case.k } else { &mut case.v };
        poisoned[pos * dim + dim / 2] = f32::NAN;
        for kernels in Kernels::available() {
            case.write(&kernels);
            let states = case.states(&kernels, 0, 1);
            for state in states.chunks(state_len(dim)) {
                let mut out = vec![0.0; dim];
                finish(dim, state, &mut out);
                let what = format!("{} {:?}", kernels.name, case.keys.ty);
                if in_key {
                    assert!(out.iter().all(|x| x.is_nan()), "{what}");
                }
                assert!(out[dim / 2].is_nan(), "{what}");
            }
        }
    }
}

#[test]
fn attend_refuses_what_does_not_fit() {
    let floats = [0.0; 32 * 8];
    let good = Segment {
        dim: 8,
        start: 128,
        count: 32,
        keys: KvRows::F32(&floats),
        values: KvRows::F32(&floats),
    };
    let queries = Queries {
        q: &floats[..16],
        group: 2,
        pos: 130,
        window: 0,
        scale: 1.0,
    };
    let run = |kernels: &Kernels, segment: &Segment<'_>, states: usize, work: usize| {
        (kernels.attend)(
            segment,
            &queries,
            &mut vec![0.0; states],
            &mut vec![0.0; work],
        );
    };
    for k in Kernels::available() {
        let (states, work) = (2 * state_len(8), scratch_len(8));
        run(&k, &good, states, work);
        let (dim, start, count) = (12, 64, 24);
        let keys = KvRows::F32(&floats[8..]);
        doors::refuses(&k, || run(&k, &good, states - 1, work));
        doors::refuses(&k, || run(&k, &good, states, work - 1));
        doors::refuses(&k, || run(&k, &Segment { dim, ..good }, states, work));
        doors::refuses(&k, || run(&k, &Segment { start, ..good }, states, work));
        doors::refuses(&k, || run(&k, &Segment { count, ..good }, states, work));
        doors::refuses(&k, || run(&k, &Segment { keys, ..good }, states, work));
    }
}
