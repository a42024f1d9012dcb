//! Active neurons token by token, for a simulator of caches.
//!
//! Little-endian u32 words. Head: [`MAGIC`], feed-forward sections (layer by layer, in a mixture
//! expert by expert), neurons of a section, neurons of a bundle. Then for each token, for each
//! section: the number of active neurons, and their indexes in the image, ascending.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use tessera_runtime::shape::Shape;

use super::activity::{Activity, Cut};
use super::error::ProfileError;
use super::journal::Journal;

/// The first word.
pub const MAGIC: u32 = 0x5452_5431;

/// Writes the trace of the whole text; `orders` say which neuron stands in each place of the
/// image, section by section.
///
/// # Errors
/// [`ProfileError::Io`].
pub fn write(
    path: &Path,
    shape: &Shape,
    journal: &Journal,
    cut: Cut,
    dim: usize,
    orders: &[&[u32]],
) -> Result<(), ProfileError> {
    let io = |error: std::io::Error| ProfileError::io(path, &error);
    let mut out = BufWriter::new(File::create(path).map_err(io)?);
    let numbers = [orders.len(), shape.ffn_dim, shape.bundle_neurons];
    let head = std::iter::once(MAGIC).chain(numbers.map(|number| number as u32));
    for word in head {
        out.write_all(&word.to_le_bytes()).map_err(io)?;
    }
    for chunk in 0..cut.chunks() {
        let mut sections = Vec::new();
        for (section, order) in orders.iter().enumerate() {
            let mut activity = Activity::new(shape.ffn_dim);
            activity.add_chunk(journal, section, chunk, cut, dim)?;
            sections.push((activity.reordered(order), 0));
        }
        let first = chunk * cut.chunk;
        for token in first..(first + cut.chunk).min(cut.tokens) {
            for (activity, row) in &mut sections {
                if activity.tokens.get(*row) != Some(&(token as u32)) {
                    out.write_all(&0u32.to_le_bytes()).map_err(io)?;
                    continue;
                }
                let count = activity.active_count(*row) as u32;
                out.write_all(&count.to_le_bytes()).map_err(io)?;
                for neuron in activity.active(*row) {
                    let word = (neuron as u32).to_le_bytes();
                    out.write_all(&word).map_err(io)?;
                }
                *row += 1;
            }
        }
    }
    out.flush().map_err(io)
}
