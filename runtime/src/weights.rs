//! Weights, wherever they are: resident, or arriving on the stream.

use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::Kernels;

use crate::chunk::{Chunk, chunk_at};
use crate::format::{
    BundleLayout, Bundles, FfnMap, Image, PredictorError, Section, SectionKind, TileLayout, UnitId,
};
use crate::limits::{JOBS_MAX, READ_TRIES_MAX, SLOTS_MAX};
use crate::stream::{Select, Stream, StreamError};

/// Why weights cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum WeightsError {
    /// A read failed.
    Read {
        /// What was read.
        unit: Option<UnitId>,
        /// Why it failed.
        error: StreamError,
    },
    /// A checksum is wrong, however often it was read.
    Damaged {
        /// The tile or bundle.
        unit: Option<UnitId>,
        /// Byte of the image at which it begins.
        offset: u64,
    },
    /// A predictor is intact, but not one of this model.
    Predictor {
        /// Its layer.
        layer: u32,
        /// Its expert, 0 in a model without experts.
        expert: u32,
        /// What is wrong.
        error: PredictorError,
    },
}

impl WeightsError {
    /// The same error, with the unit of `image` that it is about.
    pub fn named(self, image: &Image<'_>) -> Self {
        match self {
            Self::Read { error, .. } => {
                let (StreamError::Device { offset, .. } | StreamError::Deadline { offset }) = error;
                let unit = image.unit_at(offset);
                Self::Read { unit, error }
            }
            Self::Damaged { offset, .. } => {
                let unit = image.unit_at(offset);
                Self::Damaged { unit, offset }
            }
            Self::Predictor { .. } => self,
        }
    }
}

impl core::fmt::Display for WeightsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let name = |unit: &Option<UnitId>, f: &mut core::fmt::Formatter<'_>| match unit {
            Some(unit) => write!(f, "{unit}"),
            None => write!(f, "image"),
        };
        match self {
            Self::Read {
                unit,
                error: StreamError::Device { offset, error },
            } => {
                name(unit, f)?;
                write!(f, ": cannot read at byte {offset}: {error}")
            }
            Self::Read {
                unit,
                error: StreamError::Deadline { offset },
            } => {
                name(unit, f)?;
                write!(f, ": the read at byte {offset} did not finish in time")
            }
            Self::Damaged { unit, offset } => {
                name(unit, f)?;
                write!(
                    f,
                    ": checksum wrong at byte {offset}, read {READ_TRIES_MAX} times"
                )
            }
            Self::Predictor {
                layer,
                expert,
                error,
            } => write!(f, "layer {layer}, expert {expert}: {error}"),
        }
    }
}

impl core::error::Error for WeightsError {}

/// A unit of a matrix or of a feed-forward section: what one checksum covers.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Tile,
    Bundle(BundleLayout),
}

/// Weights that are in memory for the length of a run: resident ones and held chunks.
pub struct Ready<'a> {
    chunks: &'a [Chunk],
    resident: &'a [u8],
    held: heapless::Vec<(usize, &'a [u8]), SLOTS_MAX>,
}

impl Ready<'_> {
    /// The bytes of a tile.
    ///
    /// # Panics
    /// If it is not ready.
    pub fn tile(&self, offset: u64, bytes: usize) -> &[u8] {
        let index = chunk_at(self.chunks, offset);
        let chunk = &self.chunks[index];
        let at = (offset - chunk.offset) as usize;
        match chunk.resident() {
            Some(start) => &self.resident[start + at..][..bytes],
            None => &self.held(index)[at..][..bytes],
        }
    }

    /// The bundles of `neurons` neurons of one cluster of a section, from `first` on.
    ///
    /// # Panics
    /// If they are not ready.
    pub fn bundles(&self, map: &FfnMap, first: usize, neurons: usize) -> Bundles<'_> {
        let offset = map.bundle_offset(first);
        let index = chunk_at(self.chunks, offset);
        let chunk = &self.chunks[index];
        let before = (offset - chunk.offset) as usize / map.bundle.bytes() * map.bundle.neurons;
        let (bytes, reader) = match chunk.resident() {
            Some(start) => (&self.resident[start..], map.bundle.packed_reader()),
            None => (self.held(index), map.bundle.reader()),
        };
        let bytes = &bytes[reader.run_bytes(before)..][..reader.run_bytes(neurons)];
        Bundles { reader, bytes }
    }

    fn held(&self, chunk: usize) -> &[u8] {
        match self.held.iter().find(|(held, _)| *held == chunk) {
            Some((_, data)) => data,
            None => panic!("chunk {chunk} is not held"),
        }
    }
}

/// Everything that is known of the weights while tokens run.
pub struct Weights<'m, F> {
    /// The image.
    pub image: Image<'m>,
    /// What arrives from flash.
    pub stream: Stream<'m, F>,
    chunks: &'m [Chunk],
    resident: &'m mut [u8],
    crc32c: fn(u32, &[u8]) -> u32,
}

impl<'m, F: Flash<'m>> Weights<'m, F> {
    /// Weights of `image`; nothing is read yet.
    pub fn new(
        image: Image<'m>,
        stream: Stream<'m, F>,
        chunks: &'m [Chunk],
        resident: &'m mut [u8],
        kernels: &Kernels,
    ) -> Self {
        Weights {
            image,
            stream,
            chunks,
            resident,
            crc32c: kernels.crc32c,
        }
    }

    /// Reads every resident chunk, checks it and puts it in its place. `progress(done, all)` in
    /// bytes; it returns false to stop early, which is reported by `Ok(false)`.
    pub fn load(
        &mut self,
        cores: &impl Cores,
        clock: &impl Clock,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<bool, WeightsError> {
        let stays = |chunk: &&Chunk| chunk.resident().is_some();
        let all = self
            .chunks
            .iter()
            .filter(stays)
            .map(|chunk| chunk.bytes as u64)
            .sum();
        let mut done = 0;
        self.seek(Select::Resident, 0, clock)?;
        for index in 0..self.chunks.len() {
            let chunk = self.chunks[index];
            let Some(at) = chunk.resident() else { continue };
            if !progress(done, all) {
                return Ok(false);
            }
            self.acquire(index, clock)?;
            self.check(index, cores, clock)?;
            let kept = &mut self.resident[at..at + chunk.kept_bytes as usize];
            keep(&self.image, &chunk, self.stream.bytes(index), kept);
            self.stream.release_before(chunk.end());
            done += chunk.bytes as u64;
        }
        progress(done, all);
        self.seek(Select::Streamed, 0, clock)?;
        Ok(true)
    }

    fn name(&self, error: StreamError) -> WeightsError {
        WeightsError::Read { unit: None, error }.named(&self.image)
    }

    /// The image, the stream, and the first `neurons` neurons of the section `map`, which are
    /// resident.
    pub fn split(
        &mut self,
        map: &FfnMap,
        neurons: usize,
    ) -> (Image<'m>, &mut Stream<'m, F>, Bundles<'_>) {
        let reader = map.bundle.packed_reader();
        let bytes = match neurons {
            0 => &[][..],
            _ => match self.chunks[chunk_at(self.chunks, map.offset)].resident() {
                Some(start) => &self.resident[start..start + reader.run_bytes(neurons)],
                None => panic!("byte {} is not resident", map.offset),
            },
        };
        (self.image, &mut self.stream, Bundles { reader, bytes })
    }

    /// Reads a section of bytes by cold reads, and checks it. `bytes` are its `data_bytes`.
    pub fn read_blob(
        &mut self,
        section: &Section,
        bytes: &mut [u8],
        clock: &impl Clock,
    ) -> Result<(), WeightsError> {
        let piece_bytes = self.stream.cold_bytes();
        for _ in 0..READ_TRIES_MAX {
            let window_bytes = piece_bytes * self.stream.cold_slots();
            for (index, window) in bytes.chunks_mut(window_bytes).enumerate() {
                let offset = section.offset + (index * window_bytes) as u64;
                let read = self.stream.cold_window(offset, piece_bytes, window, clock);
                read.map_err(|error| self.name(error))?;
            }
            if (self.crc32c)(0, bytes) == section.crc {
                return Ok(());
            }
        }
        let (offset, unit) = (section.offset, None);
        Err(WeightsError::Damaged { unit, offset }.named(&self.image))
    }

    /// Waits for all reads that a call left behind which failed.
    ///
    /// # Errors
    /// A read that does not come out of the device.
    pub fn drain(&mut self, clock: &impl Clock) -> Result<(), WeightsError> {
        let drained = self.stream.drain(clock);
        drained.map_err(|error| self.name(error))
    }

    fn acquire(&mut self, chunk: usize, clock: &impl Clock) -> Result<(), WeightsError> {
        self.stream
            .acquire(self.chunks, chunk, clock)
            .map_err(|error| self.name(error))
    }

    /// Drops what was read ahead; the stream goes on with the chunk that holds byte `offset`.
    pub fn seek_offset(&mut self, offset: u64, clock: &impl Clock) -> Result<(), WeightsError> {
        let chunk = chunk_at(self.chunks, offset);
        self.seek(Select::Streamed, chunk, clock)
    }

    /// Drops what was read ahead; the stream begins anew. For use after an error.
    pub fn rewind(&mut self, clock: &impl Clock) -> Result<(), WeightsError> {
        self.seek(Select::Streamed, 0, clock)
    }

    fn seek(
        &mut self,
        select: Select,
        chunk: usize,
        clock: &impl Clock,
    ) -> Result<(), WeightsError> {
        self.stream
            .seek(select, self.chunks, chunk, clock)
            .map_err(|error| self.name(error))
    }

    /// Keeps the flash busy.
    pub fn pump(&mut self) {
        self.stream.pump(self.chunks);
    }

    /// Makes the unit at `offset` ready, waiting if it must; returns where the chunk ends that
    /// holds it: all units up to there are ready.
    pub fn make_ready(
        &mut self,
        offset: u64,
        cores: &impl Cores,
        clock: &impl Clock,
    ) -> Result<u64, WeightsError> {
        let index = chunk_at(self.chunks, offset);
        let chunk = self.chunks[index];
        if chunk.resident().is_none() && !self.stream.is_checked(index) {
            if !self.stream.is_held(index) {
                self.acquire(index, clock)?;
            }
            self.check(index, cores, clock)?;
        }
        Ok(chunk.end())
    }

    /// The same without waiting: `None` if the unit would have to be waited for.
    pub fn ready_end(
        &mut self,
        offset: u64,
        cores: &impl Cores,
        clock: &impl Clock,
    ) -> Result<Option<u64>, WeightsError> {
        let index = chunk_at(self.chunks, offset);
        let chunk = self.chunks[index];
        if chunk.resident().is_none() && !self.stream.is_checked(index) {
            if !self.stream.is_held(index) && !self.stream.acquire_if_ready(index) {
                return Ok(None);
            }
            self.check(index, cores, clock)?;
        }
        Ok(Some(chunk.end()))
    }

    /// Everything before byte `offset` was used: its buffers may be filled anew.
    pub fn release_before(&mut self, offset: u64) {
        self.stream.release_before(offset);
        self.pump();
    }

    /// Counts the bytes of a unit as hit or miss.
    pub fn count(&mut self, offset: u64, bytes: u64) {
        let chunk = &self.chunks[chunk_at(self.chunks, offset)];
        if chunk.resident().is_some() {
            self.stream.stats.hit_bytes += bytes;
        } else {
            self.stream.stats.miss_bytes += bytes;
        }
    }

    /// What is ready now, to be shared between lanes.
    pub fn ready(&self) -> Ready<'_> {
        let held = self.stream.held().collect();
        Ready {
            chunks: self.chunks,
            resident: &*self.resident,
            held,
        }
    }

    /// True if the unit at `offset` never leaves memory.
    pub fn is_resident(&self, offset: u64) -> bool {
        self.chunks[chunk_at(self.chunks, offset)]
            .resident()
            .is_some()
    }

    /// Checks every checksum of a held chunk, on all lanes; reads it again if one is wrong.
    fn check(
        &mut self,
        index: usize,
        cores: &impl Cores,
        clock: &impl Clock,
    ) -> Result<(), WeightsError> {
        loop {
            let Some(offset) = self.first_damaged(index, cores) else {
                self.stream.set_checked(index);
                return Ok(());
            };
            let again = self.stream.read_again(index, clock);
            if !again.map_err(|error| self.name(error))? {
                return Err(WeightsError::Damaged {
                    unit: self.image.unit_at(offset),
                    offset,
                });
            }
        }
    }

    /// Offset of the first unit of a held chunk whose checksum is wrong.
    fn first_damaged(&self, index: usize, cores: &impl Cores) -> Option<u64> {
        let chunk = self.chunks[index];
        let data = self.stream.bytes(index);
        let crc32c = self.crc32c;
        let mut at = 0;
        while at < data.len() {
            let mut units: heapless::Vec<(usize, usize, Unit, bool), JOBS_MAX> =
                heapless::Vec::new();
            while at < data.len() && !units.is_full() {
                let (unit, bytes) = self.unit_at(chunk.offset + at as u64);
                let _ = units.push((at, bytes, unit, true));
                at += bytes;
            }
            cores.for_each(&mut units, &|_lane, (at, bytes, unit, intact)| {
                let offset = chunk.offset + *at as u64;
                let bytes = &data[*at..*at + *bytes];
                *intact = match unit {
                    Unit::Tile => TileLayout::is_intact(bytes, offset, crc32c),
                    Unit::Bundle(layout) => layout.is_intact(bytes, offset, crc32c),
                };
            });
            if let Some((at, ..)) = units.iter().find(|(.., intact)| !intact) {
                return Some(chunk.offset + *at as u64);
            }
        }
        None
    }

    /// The unit that begins at `offset`, and its bytes.
    fn unit_at(&self, offset: u64) -> (Unit, usize) {
        let Some(id) = self.image.unit_at(offset) else {
            panic!("byte {offset} is in no section")
        };
        let layer = id.layer as usize;
        if id.kind == SectionKind::Ffn as u16 {
            let expert = if self.image.shape().n_experts == 0 {
                0
            } else {
                id.expert as usize
            };
            let layout = self.image.ffn(layer, expert).bundle;
            return (Unit::Bundle(layout), layout.bytes());
        }
        let map = if id.kind == SectionKind::LmHead as u16 {
            self.image.lm_head()
        } else {
            self.image.attention(layer)[(id.kind - SectionKind::AttnQ as u16) as usize]
        };
        (Unit::Tile, map.tile_place(id.unit as usize).1)
    }
}

/// Copies a chunk of the image to the place where it stays.
fn keep(image: &Image<'_>, chunk: &Chunk, bytes: &[u8], kept: &mut [u8]) {
    if !chunk.is_ffn() {
        return kept.copy_from_slice(bytes);
    }
    let expert = chunk.expert().unwrap_or(0);
    let layout = image.ffn(chunk.layer as usize, expert).bundle;
    let bundles = bytes.chunks_exact(layout.bytes());
    for (bundle, kept) in bundles.zip(kept.chunks_exact_mut(layout.packed_bytes())) {
        layout.pack(bundle, kept);
    }
}
