//! Products of whole matrices, over whatever part of their rows is ready, on all lanes.

use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::{Activations, Kernels, PANEL_ROWS_MAX, Rows};

use crate::format::MatrixMap;
use crate::limits::JOBS_MAX;
use crate::observe::Observer;
use crate::weights::{Ready, Weights, WeightsError};
use crate::work::Lanes;

/// The machine while a pass runs.
pub struct Machine<'a, C, K> {
    /// Lanes.
    pub cores: &'a C,
    /// Time.
    pub clock: &'a K,
    /// Arithmetic.
    pub kernels: &'a Kernels,
    /// Who watches the feed-forward network.
    pub observer: Option<&'a dyn Observer>,
}

/// While weights are streamed a run ends after so many bytes, so that the flash is looked after.
const RUN_BYTES_MAX: u64 = 8 << 20;
/// Rows of a piece are a multiple of this for one token: what kernels with 256-bit vectors take at
/// once. For several, of a panel's.
const ROWS_AT_ONCE: usize = 8;

/// A row of one of several matrices that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor {
    part: usize,
    tile: usize,
}

struct RowsJob<'a> {
    part: usize,
    row: usize,
    rows: usize,
    out: &'a mut [f32],
}

/// `out[row * tokens + t]`: each of `parts` (rows, cols) @ x (tokens, cols)^T, one matrix after the
/// other. The parts follow each other in the image, in the order of use.
///
/// # Errors
/// Weights that cannot be read.
pub fn product<'m, F: Flash<'m>, C: Cores, K: Clock>(
    machine: &Machine<'_, C, K>,
    weights: &mut Weights<'m, F>,
    lanes: &Lanes<'_>,
    parts: &[MatrixMap],
    x: &Activations<'_>,
    out: &mut [f32],
) -> Result<(), WeightsError> {
    let mut begin = Cursor { part: 0, tile: 0 };
    let mut out = out;
    while begin.part < parts.len() {
        let (end, rows, end_offset) = ready_run(machine, weights, parts, begin)?;
        let (mine, rest) = out.split_at_mut(rows * x.tokens());
        run_rows(
            machine,
            &weights.ready(),
            lanes,
            parts,
            begin,
            rows,
            x,
            mine,
        );
        weights.release_before(end_offset);
        (begin, out) = (end, rest);
    }
    assert!(out.is_empty(), "{} outputs too many", out.len());
    Ok(())
}

/// `out` (rows, tokens) = `rows` times every token of `x`.
pub fn multiply(
    kernels: &Kernels,
    rows: &Rows<'_>,
    x: &Activations<'_>,
    out: &mut [f32],
    scratch: &mut [u8],
) {
    if x.tokens() == 1 {
        (kernels.matvec)(rows, x, out);
    } else {
        (kernels.matmul)(rows, x, out, scratch);
    }
}

/// The tiles from `begin` on that are ready: where they end, their rows, their last byte's end.
fn ready_run<'m, F: Flash<'m>, C: Cores, K: Clock>(
    machine: &Machine<'_, C, K>,
    weights: &mut Weights<'m, F>,
    parts: &[MatrixMap],
    begin: Cursor,
) -> Result<(Cursor, usize, u64), WeightsError> {
    let (first, _) = parts[begin.part].tile_place(begin.tile);
    let mut ready_to = weights.make_ready(first, machine.cores, machine.clock)?;
    let limit = if weights.stream.is_streaming() {
        first + RUN_BYTES_MAX
    } else {
        u64::MAX
    };
    let (mut at, mut rows, mut end_offset) = (begin, 0, first);
    while at.part < parts.len() && end_offset < limit {
        let map = &parts[at.part];
        let (offset, bytes) = map.tile_place(at.tile);
        if offset + bytes as u64 > ready_to {
            match weights.ready_end(offset, machine.cores, machine.clock)? {
                Some(end) => ready_to = end,
                None => break,
            }
        }
        weights.count(offset, bytes as u64);
        rows += map.tile_rows(at.tile);
        end_offset = offset + bytes as u64;
        at.tile += 1;
        if at.tile == map.n_tiles() {
            at = Cursor {
                part: at.part + 1,
                tile: 0,
            };
        }
    }
    Ok((at, rows, end_offset))
}

/// Cuts `rows` rows from `begin` on into pieces and computes them.
fn run_rows<C: Cores, K>(
    machine: &Machine<'_, C, K>,
    ready: &Ready<'_>,
    lanes: &Lanes<'_>,
    parts: &[MatrixMap],
    begin: Cursor,
    rows: usize,
    x: &Activations<'_>,
    out: &mut [f32],
) {
    let pieces = (12 * machine.cores.lanes()).min(JOBS_MAX - parts.len());
    let multiple = match x.tokens() {
        1 => ROWS_AT_ONCE,
        _ => PANEL_ROWS_MAX,
    };
    let rows_per_job = rows.div_ceil(pieces).next_multiple_of(multiple);
    let mut jobs: heapless::Vec<RowsJob<'_>, JOBS_MAX> = heapless::Vec::new();
    let (mut part, mut row) = (begin.part, begin.tile * parts[begin.part].tile.rows);
    let (mut left, mut out) = (rows, out);
    while left > 0 {
        let rows = rows_per_job.min(left).min(parts[part].rows - row);
        let (mine, rest) = out.split_at_mut(rows * x.tokens());
        if jobs
            .push(RowsJob {
                part,
                row,
                rows,
                out: mine,
            })
            .is_err()
        {
            panic!("{} pieces of {rows_per_job} rows", JOBS_MAX);
        }
        (left, out, row) = (left - rows, rest, row + rows);
        if row == parts[part].rows {
            (part, row) = (part + 1, 0);
        }
    }
    let kernels = machine.kernels;
    machine.cores.for_each(&mut jobs, &|lane, job| {
        let map = &parts[job.part];
        let (mut row, mut left) = (job.row, job.rows);
        let mut out = &mut *job.out;
        while left > 0 {
            let (tile, start) = (row / map.tile.rows, row % map.tile.rows);
            let (offset, bytes) = map.tile_place(tile);
            let tile_rows = map.tile_rows(tile);
            let rows = left.min(tile_rows - start);
            let mut view = map
                .tile
                .view(tile_rows, ready.tile(offset, bytes))
                .slice(start, rows);
            if left > rows {
                // Hardware sees only a tile's beginning when it is there.
                let (offset, bytes) = map.tile_place(tile + 1);
                view = view.then(ready.tile(offset, bytes));
            }
            let (mine, rest) = out.split_at_mut(rows * x.tokens());
            multiply(kernels, &view, x, mine, lanes[lane].lock().bytes);
            (row, left, out) = (row + rows, left - rows, rest);
        }
    });
}
