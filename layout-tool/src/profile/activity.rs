//! Which neurons of one section were active for which token, over the whole text.

use tessera_kernels::BLOCK;

use super::error::ProfileError;
use super::journal::{Journal, Kind};

/// Activity of a section. A row is a token that it served.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Activity {
    /// Neurons of the section.
    pub neurons: usize,
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// A bit for each neuron (rows, neurons), 32 a word.
    bits: Vec<u32>,
    /// Inputs: codes (rows, dim) and scales (rows, dim / 32); empty unless they were kept.
    pub codes: Vec<i8>,
    /// Scales of the inputs.
    pub scales: Vec<f32>,
    /// Rows from this one on are held out.
    pub held_row: usize,
    /// Hidden magnitudes of the active neurons of held-out rows, row by row.
    pub masses: Vec<f32>,
}

/// How a text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Tokens of the text.
    pub tokens: usize,
    /// Tokens of a chunk.
    pub chunk: usize,
}

impl Cut {
    /// Chunks of the text.
    pub fn chunks(&self) -> usize {
        self.tokens.div_ceil(self.chunk)
    }

    /// Tokens from this one on, the last fifth, are held out: nothing is fitted to them.
    pub fn held_from(&self) -> usize {
        self.tokens - self.tokens / 5
    }
}

/// What is read of a chunk's record.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> &'a [[u8; 4]] {
        let (words, rest) = self.bytes.split_at(4 * count.min(self.bytes.len() / 4));
        self.bytes = rest;
        words.as_chunks().0
    }

    fn words(&mut self, count: usize) -> impl Iterator<Item = u32> + use<'a> {
        self.take(count)
            .iter()
            .map(|word| u32::from_le_bytes(*word))
    }

    fn floats(&mut self, count: usize) -> impl Iterator<Item = f32> + use<'a> {
        self.take(count)
            .iter()
            .map(|word| f32::from_le_bytes(*word))
    }
}

impl Activity {
    /// No rows yet.
    pub fn new(neurons: usize) -> Self {
        Activity {
            neurons,
            ..Activity::default()
        }
    }

    /// Activity of `neurons` neurons that is given row by row.
    #[cfg(test)]
    pub fn from_rows<'r>(neurons: usize, rows: impl IntoIterator<Item = &'r [usize]>) -> Self {
        let mut all = Activity::new(neurons);
        for (row, active) in rows.into_iter().enumerate() {
            all.tokens.push(row as u32);
            all.bits.resize((row + 1) * neurons / 32, 0);
            active.iter().for_each(|&neuron| all.set(row, neuron));
        }
        all.held_row = all.rows();
        all
    }

    /// Reads the activity of section `section` in chunk `chunk`; with inputs of width `dim` where
    /// that is not 0.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn add_chunk(
        &mut self,
        journal: &Journal,
        section: usize,
        chunk: usize,
        cut: Cut,
        dim: usize,
    ) -> Result<(), ProfileError> {
        let place = journal.read(Kind::Activity, chunk, section * 8, Some(16))?;
        let places = place.as_chunks().0;
        let [start, end] = [0, 1].map(|index: usize| u64::from_le_bytes(places[index]) as usize);
        let len = end.saturating_sub(start);
        let bytes = journal.read(Kind::Activity, chunk, start, Some(len))?;
        let mut reader = Reader { bytes: &bytes };
        let rows = reader.words(1).next().unwrap_or(0) as usize;
        let first = (chunk * cut.chunk) as u32;
        let before = self.rows();
        self.tokens
            .extend(reader.words(rows).map(|token| first + token));
        self.bits.extend(reader.words(rows * self.neurons / 32));
        let held = |token: &u32| (*token as usize) < cut.held_from();
        self.held_row = self.tokens.partition_point(held);
        if dim == 0 {
            return Ok(());
        }
        let (codes, rest) = reader.bytes.split_at((rows * dim).min(reader.bytes.len()));
        reader.bytes = rest;
        self.codes.extend(codes.iter().map(|&code| code as i8));
        self.scales.extend(reader.floats(rows * dim / BLOCK));
        let first_held = self.held_row.max(before);
        let masses = (first_held..self.rows())
            .map(|row| self.active_count(row))
            .sum();
        self.masses.extend(reader.floats(masses));
        Ok(())
    }

    /// The whole activity of a section.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn read(
        journal: &Journal,
        section: usize,
        neurons: usize,
        cut: Cut,
        dim: usize,
    ) -> Result<Self, ProfileError> {
        let mut all = Activity::new(neurons);
        for chunk in 0..cut.chunks() {
            all.add_chunk(journal, section, chunk, cut, dim)?;
        }
        Ok(all)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    fn words(&self, row: usize) -> &[u32] {
        let words = self.neurons / 32;
        &self.bits[row * words..][..words]
    }

    fn set(&mut self, row: usize, neuron: usize) {
        self.bits[row * (self.neurons / 32) + neuron / 32] |= 1 << (neuron % 32);
    }

    /// True if `neuron` is active in `row`.
    pub fn is_active(&self, row: usize, neuron: usize) -> bool {
        self.words(row)[neuron / 32] >> (neuron % 32) & 1 == 1
    }

    /// Active neurons of `row`, ascending.
    pub fn active(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        let words = self.words(row).iter().enumerate();
        words.flat_map(|(index, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.wrapping_sub(1);
                (bit < 32).then_some(index * 32 + bit as usize)
            })
        })
    }

    /// Number of active neurons of `row`.
    pub fn active_count(&self, row: usize) -> usize {
        self.words(row)
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Rows in which each neuron is active.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.neurons];
        for row in 0..self.rows() {
            self.active(row).for_each(|neuron| counts[neuron] += 1);
        }
        counts
    }

    /// Share of neurons and rows that are active.
    pub fn active_share(&self) -> f64 {
        let active: usize = (0..self.rows()).map(|row| self.active_count(row)).sum();
        active as f64 / (self.rows() * self.neurons).max(1) as f64
    }

    /// The same with neuron `order[i]` in place `i`.
    pub fn reordered(&self, order: &[u32]) -> Activity {
        let mut place = vec![0; self.neurons];
        for (to, &from) in order.iter().enumerate() {
            place[from as usize] = to;
        }
        let mut new = Activity {
            bits: vec![0; self.bits.len()],
            masses: Vec::with_capacity(self.masses.len()),
            tokens: self.tokens.clone(),
            codes: self.codes.clone(),
            scales: self.scales.clone(),
            ..*self
        };
        let mut masses = self.masses.iter();
        let mut pairs = Vec::new();
        for row in 0..self.rows() {
            self.active(row)
                .for_each(|neuron| new.set(row, place[neuron]));
            if row < self.held_row || self.masses.is_empty() {
                continue;
            }
            pairs.clear();
            pairs.extend(
                self.active(row)
                    .map(|neuron| place[neuron])
                    .zip(masses.by_ref()),
            );
            pairs.sort_unstable_by_key(|&(neuron, _)| neuron);
            new.masses.extend(pairs.iter().map(|&(_, mass)| *mass));
        }
        new
    }
}
