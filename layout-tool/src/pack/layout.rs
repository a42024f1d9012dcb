//! Where everything of an image stands: superblock and section table, before a weight is read.

use sha2::{Digest, Sha256};
use tessera_kernels::{GROUP, Kernels, PANEL_ROWS_MAX, WeightType};
use tessera_runtime::format::{
    BundleLayout, ENTRY_BYTES, FfnMap, Image, MatrixMap, NO_INDEX, PAGE_BYTES, SECTION_ALIGN_BYTES,
    SUPERBLOCK_BYTES, Section, SectionKind, Superblock, TileLayout, choose_tile_rows,
};
use tessera_runtime::limits::{
    DIM_MAX, EOS_MAX, EXPERTS_MAX, LAYERS_MAX, SECTIONS_MAX, UNIT_BYTES_MAX,
};
use tessera_runtime::shape::Shape;

use super::shape::bundle_layout;
use super::types::Types;
use crate::source::Config;

/// Tiles of an embedding that is read row by row.
const EMBEDDING_TILE_BYTES: usize = 8192;
/// Tiles of the output matrix.
const HEAD_TILE_BYTES: usize = 65536;
/// Tiles of matrices that are read from end to end and have whole panels of rows, at most.
const PANELS_TILE_BYTES: usize = 262_144;
/// Most of such a tile that may be padding, in thousandths.
const TILE_WASTE_PER_MILLE_MAX: usize = 25;
/// Other tiles of matrices that are read from end to end, at most.
const MATRIX_TILE_BYTES: usize = 98304;
/// Bytes of a superblock's own checksum, its last four.
const SUPERBLOCK_CRC_AT: usize = SUPERBLOCK_BYTES - 4;
/// Where the superblock holds the image id.
const IMAGE_ID_AT: usize = 24;

/// Sections of f32 vectors or text: whole in memory.
#[derive(Debug)]
pub struct Blobs {
    /// Norms, biases, routers, rotary frequencies.
    pub vectors: Vec<u8>,
    /// `tokenizer.json`.
    pub tokenizer: Option<Vec<u8>>,
    /// Chat template.
    pub chat_template: Option<Vec<u8>>,
}

impl Blobs {
    /// The bytes of a section of kind `kind`.
    pub fn get(&self, kind: SectionKind) -> Option<&[u8]> {
        match kind {
            SectionKind::Vectors => Some(&self.vectors),
            SectionKind::Tokenizer => self.tokenizer.as_deref(),
            SectionKind::ChatTemplate => self.chat_template.as_deref(),
            _ => None,
        }
    }
}

/// A blob after the texts, whose bytes are made elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// What it holds.
    pub kind: SectionKind,
    /// Layer, or [`NO_INDEX`].
    pub layer: u16,
    /// Expert, or [`NO_INDEX`].
    pub expert: u16,
    /// Its bytes without padding.
    pub data_bytes: u64,
    /// CRC-32C of them. It changes no place, and may be filled in when they are made.
    pub crc: u32,
}

/// Rows of a tile of a matrix that is read from end to end: whole panels of rows, so that prompts
/// fill them, in the smallest tile of which little is padding; where there is none, what wastes
/// least.
fn matrix_tile_rows(ty: WeightType, rows: usize, cols: usize) -> usize {
    let tile_bytes = |tile_rows| {
        TileLayout {
            ty,
            cols,
            rows: tile_rows,
        }
        .tile_bytes(tile_rows)
    };
    let mut panels = (PANEL_ROWS_MAX..)
        .step_by(PANEL_ROWS_MAX)
        .take_while(|&tile_rows| tile_bytes(tile_rows) <= PANELS_TILE_BYTES);
    let fits = |tile_rows: &usize| {
        let waste_bytes = tile_bytes(*tile_rows) - tile_rows * ty.row_bytes(cols);
        waste_bytes * 1000 <= tile_bytes(*tile_rows) * TILE_WASTE_PER_MILLE_MAX
    };
    match panels.find(fits) {
        Some(tile_rows) => tile_rows.min(rows),
        None => choose_tile_rows(ty, rows, cols, MATRIX_TILE_BYTES),
    }
}

/// Bytes of superblock and table with every number but the image id in its place.
pub fn head(
    config: &Config,
    shape: &Shape,
    types: &Types,
    blobs: &Blobs,
    tails: &[Tail],
) -> Vec<u8> {
    let n_sections = count_sections(shape, blobs) + tails.len();
    let table_bytes = n_sections * ENTRY_BYTES;
    let mut table = Table {
        sections: Vec::new(),
        end: (SUPERBLOCK_BYTES + table_bytes) as u64,
    };
    table.fill(shape, types, blobs);
    tails.iter().for_each(|tail| table.tail(tail));
    let mut head = vec![0; SUPERBLOCK_BYTES + table_bytes];
    for (section, entry) in table
        .sections
        .iter()
        .zip(head[SUPERBLOCK_BYTES..].chunks_exact_mut(ENTRY_BYTES))
    {
        section.write(entry);
    }
    let superblock = Superblock {
        image_bytes: table.end,
        image_id: [0; 16],
        table_offset: SUPERBLOCK_BYTES as u64,
        table_entries: n_sections as u32,
        table_crc: crc32c(&head[SUPERBLOCK_BYTES..]),
        shape: *shape,
        bos_token: config.bos_token,
        add_bos: config.add_bos,
        eos_tokens: eos_tokens(&config.eos_tokens),
        eos_count: config.eos_tokens.len().min(EOS_MAX),
        name: name(&config.name),
    };
    write_superblock(&superblock, &mut head);
    head
}

/// Head of the image that has the sections `kept` of `image`, as they are but for their places, and
/// then `tails`. The image id is left as it was.
pub fn extended(image: &Image<'_>, kept: &[Section], tails: &[Tail]) -> Vec<u8> {
    let n_sections = kept.len() + tails.len();
    let table_bytes = n_sections * ENTRY_BYTES;
    let mut table = Table {
        sections: Vec::new(),
        end: (SUPERBLOCK_BYTES + table_bytes) as u64,
    };
    for section in kept {
        let align_bytes = SectionKind::from_u16(section.kind)
            .map_or(SECTION_ALIGN_BYTES, SectionKind::align_bytes);
        let offset = table.end.next_multiple_of(align_bytes);
        table.push(Section { offset, ..*section });
    }
    tails.iter().for_each(|tail| table.tail(tail));
    let mut head = vec![0; SUPERBLOCK_BYTES + table_bytes];
    let entries = head[SUPERBLOCK_BYTES..].chunks_exact_mut(ENTRY_BYTES);
    for (section, entry) in table.sections.iter().zip(entries) {
        section.write(entry);
    }
    let superblock = Superblock {
        image_bytes: table.end,
        table_offset: SUPERBLOCK_BYTES as u64,
        table_entries: n_sections as u32,
        table_crc: crc32c(&head[SUPERBLOCK_BYTES..]),
        ..*image.superblock()
    };
    write_superblock(&superblock, &mut head);
    head
}

/// Writes the superblock at the front of `head`.
pub fn write_superblock(superblock: &Superblock, head: &mut [u8]) {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    superblock.write(&mut bytes);
    head[..SUPERBLOCK_BYTES].copy_from_slice(&bytes);
}

fn eos_tokens(tokens: &[u32]) -> [u32; EOS_MAX] {
    std::array::from_fn(|index| tokens.get(index).copied().unwrap_or(0))
}

/// The first 128 bytes of a name, cut between characters.
fn name(text: &str) -> [u8; 128] {
    let text = &text[..text.floor_char_boundary(128)];
    let mut name = [0; 128];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

fn count_sections(shape: &Shape, blobs: &Blobs) -> usize {
    let layers = shape.n_layers * (4 + shape.n_ffns());
    let texts = usize::from(blobs.tokenizer.is_some()) + usize::from(blobs.chat_template.is_some());
    2 + usize::from(!shape.tied_embeddings) + layers + texts
}

/// CRC-32C of `bytes`, by the fastest kernel.
pub fn crc32c(bytes: &[u8]) -> u32 {
    (Kernels::best().crc32c)(0, bytes)
}

/// The id of the image with this head: a digest of the head, id and superblock checksum zeroed, and
/// of the checksums of all units in file order.
pub fn image_id(head: &[u8], unit_crcs: impl IntoIterator<Item = u32>) -> [u8; 16] {
    let mut digest = Sha256::new();
    digest.update(&head[..IMAGE_ID_AT]);
    digest.update([0; 16]);
    digest.update(&head[IMAGE_ID_AT + 16..SUPERBLOCK_CRC_AT]);
    digest.update([0; 4]);
    digest.update(&head[SUPERBLOCK_BYTES..]);
    for crc in unit_crcs {
        digest.update(crc.to_le_bytes());
    }
    let digest = digest.finalize();
    std::array::from_fn(|index| digest[index])
}

/// The sections so far, and where the last one ends.
struct Table {
    sections: Vec<Section>,
    end: u64,
}

impl Table {
    /// All sections in the order of the format.
    fn fill(&mut self, shape: &Shape, types: &Types, blobs: &Blobs) {
        let Shape {
            dim,
            vocab_size: vocab,
            ..
        } = *shape;
        self.blob(SectionKind::Vectors, blobs);
        if !shape.tied_embeddings {
            let kind = SectionKind::Embedding;
            let ty = types.embedding;
            let unit_rows = choose_tile_rows(ty, vocab, dim, EMBEDDING_TILE_BYTES);
            self.matrix(kind, NO_INDEX, (vocab, dim), ty, unit_rows);
        }
        let (q_dim, kv_dim) = (shape.q_dim(), shape.kv_dim());
        let attention = [
            (SectionKind::AttnQ, q_dim, dim),
            (SectionKind::AttnK, kv_dim, dim),
            (SectionKind::AttnV, kv_dim, dim),
            (SectionKind::AttnO, dim, q_dim),
        ];
        for layer in 0..shape.n_layers {
            for ((kind, rows, cols), ty) in attention.into_iter().zip(types.attention[layer]) {
                let unit_rows = matrix_tile_rows(ty, rows, cols);
                self.matrix(kind, layer as u16, (rows, cols), ty, unit_rows);
            }
            for expert in 0..shape.n_ffns() {
                let types = types.ffn[layer * shape.n_ffns() + expert];
                let expert = if shape.n_experts == 0 {
                    NO_INDEX
                } else {
                    expert as u16
                };
                self.ffn(shape, layer as u16, expert, types);
            }
        }
        let (kind, ty) = (SectionKind::LmHead, types.lm_head);
        // One row is read for a token where the matrix is the embedding too, and few prompts want
        // many tokens' logits.
        let unit_rows = choose_tile_rows(ty, vocab, dim, HEAD_TILE_BYTES);
        self.matrix(kind, NO_INDEX, (vocab, dim), ty, unit_rows);
        self.blob(SectionKind::Tokenizer, blobs);
        self.blob(SectionKind::ChatTemplate, blobs);
    }

    fn place(&self, kind: SectionKind) -> u64 {
        self.end.next_multiple_of(kind.align_bytes())
    }

    fn push(&mut self, section: Section) {
        self.end = section.offset + section.bytes;
        self.sections.push(section);
    }

    fn blob(&mut self, kind: SectionKind, blobs: &Blobs) {
        let Some(data) = blobs.get(kind) else { return };
        self.tail(&Tail {
            kind,
            layer: NO_INDEX,
            expert: NO_INDEX,
            data_bytes: data.len() as u64,
            crc: crc32c(data),
        });
    }

    fn tail(&mut self, tail: &Tail) {
        let bytes = tail.data_bytes.next_multiple_of(PAGE_BYTES as u64);
        let offset = self.place(tail.kind);
        let mut section = Section::new(tail.kind, tail.layer, tail.expert, offset, bytes);
        (section.data_bytes, section.crc) = (tail.data_bytes, tail.crc);
        self.push(section);
    }

    fn matrix(
        &mut self,
        kind: SectionKind,
        layer: u16,
        (rows, cols): (usize, usize),
        ty: WeightType,
        unit_rows: usize,
    ) {
        let tile = TileLayout {
            ty,
            cols,
            rows: unit_rows,
        };
        let offset = self.place(kind);
        let map = MatrixMap { offset, rows, tile };
        let mut section = Section::new(kind, layer, NO_INDEX, offset, map.bytes());
        (section.rows, section.cols) = (rows as u32, cols as u32);
        section.types[0] = ty as u8;
        section.unit_rows = unit_rows as u32;
        section.unit_bytes = tile.tile_bytes(unit_rows) as u32;
        self.push(section);
    }

    fn ffn(&mut self, shape: &Shape, layer: u16, expert: u16, types: [WeightType; 3]) {
        let bundle = bundle_layout(shape.dim, shape.bundle_neurons, types);
        let offset = self.place(SectionKind::Ffn);
        let map = FfnMap {
            offset,
            neurons: shape.ffn_dim,
            bundle,
        };
        let mut section = Section::new(SectionKind::Ffn, layer, expert, offset, map.bytes());
        (section.rows, section.cols) = (shape.ffn_dim as u32, shape.dim as u32);
        section.types = types.map(|ty| ty as u8);
        section.unit_rows = shape.bundle_neurons as u32;
        section.unit_bytes = bundle.bytes() as u32;
        section.first_bytes = bundle.first_bytes() as u32;
        self.push(section);
    }
}

/// The checked view of a head, as a reader has it.
///
/// # Panics
/// If a reader would refuse it. A valid shape never leads there: its largest image is within the
/// limits of the format, see the assertions below.
pub fn view(head: &[u8]) -> Image<'_> {
    match Image::new_checked(head, u64::MAX) {
        Ok(image) => image,
        Err(error) => panic!("the head that was laid out is not valid: {error}"),
    }
}

const _: () = assert!(LAYERS_MAX * (4 + EXPERTS_MAX) + 5 <= SECTIONS_MAX);
const _: () = assert!(WIDEST_BUNDLE.bytes() <= UNIT_BYTES_MAX);
/// The largest bundle that a valid shape leads to.
const WIDEST_BUNDLE: BundleLayout = BundleLayout {
    dim: DIM_MAX,
    neurons: GROUP,
    gate: WeightType::F32,
    up: WeightType::F32,
    down: WeightType::F32,
};
